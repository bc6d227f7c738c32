"""The heatmap read: which rows a picture has, from which layouts they come, and their pooled values.

Called by `DuckStore.heatmap`: `plan_heatmap` under the store's lock, `read_heatmap` with a snapshot.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from probe.wire.module_frames import MODULE_COLUMNS

from .catalog import Catalog
from .protocol import Heatmap, StepRange
from .pyramid import FACTOR, MEASURED, POOLED, Grid, choose_grid
from .queries import Extent, Index, Picture, Snapshot, blank_picture, combine, read_picture, tensor_extent
from .timelines import LAYER, MODULE, PARAMETER

ZERO_WHEN_ABSENT: Final = {
    "grad_nan_count": "grad_norm",
    "grad_inf_count": "grad_norm",
    "activation_nan_count": "activation_rms",
    "activation_inf_count": "activation_rms",
    "activation_gradient_nan_count": "activation_gradient_max_abs",
    "activation_gradient_inf_count": "activation_gradient_max_abs",
}
"""The probe leaves these columns out when all are zero; zero then is what was measured, wherever the other
statistic was."""


@dataclass(frozen=True, slots=True)
class Source:
    """One layout of the same model whose rows belong into the picture."""

    timeline: int
    names: dict[str, tuple[str, ...]]
    """Kind -> row names of the layout."""
    series: dict[tuple[str, str], int]
    """(kind, statistic) -> series."""


@dataclass(frozen=True, slots=True)
class HeatmapPlan:
    """Rows of the picture and where they come from."""

    statistic: str
    rows: tuple[str, ...]
    kinds: tuple[str, ...]
    sources: tuple[Source, ...]
    """Oldest first."""
    may_be_pooled: bool = False
    """The rank's helper may have pooled what it sent."""


def plan_heatmap(
    catalog: Catalog, run: str, rank: int, *, statistic: str, unfolded: Sequence[str]
) -> HeatmapPlan | None:
    """Return the plan of a picture; None before the first layout."""
    timelines = same_model(catalog, run, rank)
    if not timelines:
        return None
    is_of_modules = statistic in MODULE_COLUMNS
    rows = (
        _module_rows(catalog, timelines) if is_of_modules else _layer_rows(catalog, timelines[-1], unfolded)
    )
    sources = [source_of(catalog, timeline, statistic) for timeline in timelines]
    names, kinds = zip(*rows, strict=True) if rows else ((), ())
    return HeatmapPlan(statistic, names, kinds, tuple(sources), catalog.has_detail(run, rank))


def statistic_names(catalog: Catalog, run: str, rank: int) -> list[str]:
    """Return the statistics that a picture of the rank's newest model has values for, sorted."""
    names = {
        name
        for timeline in same_model(catalog, run, rank)
        for kind in (LAYER, MODULE)
        for name in catalog.timelines.series_names(timeline, kind)
    }
    return sorted(names | {absent for absent, companion in ZERO_WHEN_ABSENT.items() if companion in names})


def same_model(catalog: Catalog, run: str, rank: int) -> list[int]:
    """Return the timelines of all layouts of the newest one's model, oldest first and the newest last."""
    found = catalog.newest_layout(run, rank)
    if found is None:
        return []
    model = catalog.layout(found[0])[1].model
    others = [timeline for timeline in catalog.timelines.of_layouts(run, rank) if timeline != found[0]]
    return [timeline for timeline in others if catalog.layout(timeline)[1].model == model] + [found[0]]


def _layer_rows(catalog: Catalog, timeline: int, unfolded: Sequence[str]) -> list[tuple[str, str]]:
    """Return (name, kind) of the layers, and below the unfolded ones their parameters."""
    geometry = catalog.layout(timeline)[1]
    rows: list[tuple[str, str]] = []
    for name, members in zip(geometry.layers, geometry.parameters_of, strict=True):
        rows.append((name, LAYER))
        if name in unfolded:
            rows += [(geometry.parameters[index], PARAMETER) for index in members]
    return rows


def _module_rows(catalog: Catalog, timelines: Sequence[int]) -> list[tuple[str, str]]:
    """Return (name, kind) of the newest layout that names its modules, as an incarnation's first does not."""
    for timeline in reversed(timelines):
        if modules := catalog.layout(timeline)[1].modules:
            return [(name, MODULE) for name in modules]
    return []


def source_of(catalog: Catalog, timeline: int, statistic: str) -> Source:
    """Return what a layout has of a statistic."""
    geometry = catalog.layout(timeline)[1]
    wanted = [statistic, *filter(None, [ZERO_WHEN_ABSENT.get(statistic)])]
    series = {
        (kind, name): number
        for kind in (LAYER, PARAMETER, MODULE)
        for name in wanted
        if (number := catalog.timelines.find_series(timeline, kind, name)) is not None
    }
    names = {LAYER: geometry.layers, PARAMETER: geometry.parameters, MODULE: geometry.modules}
    return Source(timeline, names, series)


def read_heatmap(snapshot: Snapshot, plan: HeatmapPlan, *, steps: StepRange, max_columns: int) -> Heatmap:
    """Read a planned picture. Before the first frame it has rows and no columns."""
    extents = {source.timeline: tensor_extent(snapshot, source.timeline) for source in plan.sources}
    spans = [span for extent in extents.values() if (span := extent.clip(steps))]
    if not spans:
        nothing = Grid(0, 1, 0, 1)
        return _heatmap(plan, blank_picture(nothing, len(plan.rows)), nothing)
    first, last = min(span[0] for span in spans), max(span[1] for span in spans)
    finest = max(extent.finest_level(first, last) for extent in extents.values())
    came_pooled = False
    while True:
        grid = choose_grid(first, last, max_columns=max_columns, finest=finest)
        picture = _combined(snapshot, plan, grid, extents)
        if grid.width >= FACTOR or not plan.may_be_pooled:
            break
        # What stands for the first bucket may stand before the first column.
        before = Grid(grid.first // FACTOR * FACTOR, 1, grid.first % FACTOR, 1)
        is_pooled = _has_pooled(picture) or (
            before.columns > 0 and _has_pooled(_combined(snapshot, plan, before, extents))
        )
        if not is_pooled:
            break
        # A value of a whole bucket is not shown as that of fewer steps.
        finest, came_pooled = FACTOR, True
    shown = Picture(picture.values, picture.flags & ~np.uint8(POOLED))
    return _heatmap(*_measured_modules(plan, shown), grid, came_pooled=came_pooled)


def _combined(snapshot: Snapshot, plan: HeatmapPlan, grid: Grid, extents: dict[int, Extent]) -> Picture:
    layers = [_read(snapshot, source, plan, grid, extents[source.timeline]) for source in plan.sources]
    return combine(layers, grid)


def _has_pooled(picture: Picture) -> bool:
    return bool((picture.flags & POOLED).any())


def _measured_modules(plan: HeatmapPlan, picture: Picture) -> tuple[HeatmapPlan, Picture]:
    """Leave out modules without any value: most statistics exist for some kinds of module only."""
    measured = (picture.flags > 0).any(axis=0)
    if MODULE not in plan.kinds or not measured.any():
        return plan, picture
    keep = np.flatnonzero(measured).tolist()
    rows, kinds = tuple(plan.rows[row] for row in keep), tuple(plan.kinds[row] for row in keep)
    chosen = Picture(picture.values[:, keep], picture.flags[:, keep])
    return dataclasses.replace(plan, rows=rows, kinds=kinds), chosen


def _read(snapshot: Snapshot, source: Source, plan: HeatmapPlan, grid: Grid, extent: Extent) -> Picture:
    """Return what one layout contributes, in the order of the plan's rows."""
    result = blank_picture(grid, len(plan.rows))
    for kind in (LAYER, PARAMETER, MODULE):
        places = [index for index, of_kind in enumerate(plan.kinds) if of_kind == kind]
        if places:
            where = {name: index for index, name in enumerate(source.names[kind])}
            wanted = np.array([where.get(plan.rows[place], -1) for place in places], dtype=np.intp)

            def read(statistic: str, kind: str = kind, wanted: Index = wanted) -> Picture:
                number = source.series.get((kind, statistic))
                if number is None:
                    return blank_picture(grid, len(wanted))
                return read_picture(
                    snapshot, source.timeline, kind, series=number, index=wanted, grid=grid, extent=extent
                )

            picture = _with_zeros(read, plan.statistic)
            result.values[:, places], result.flags[:, places] = picture.values, picture.flags
    return result


def _with_zeros(read: Callable[[str], Picture], statistic: str) -> Picture:
    """Read a statistic; one that is left out when zero is zero wherever its companion was measured."""
    picture = read(statistic)
    if statistic not in ZERO_WHEN_ABSENT:
        return picture
    companion = read(ZERO_WHEN_ABSENT[statistic]).flags & np.uint8(MEASURED | POOLED)
    zero = (picture.flags == 0) & (companion > 0)
    return Picture(np.where(zero, np.float32(0), picture.values), np.where(zero, companion, picture.flags))


def _heatmap(plan: HeatmapPlan, picture: Picture, grid: Grid, *, came_pooled: bool = False) -> Heatmap:
    steps = grid.first + np.arange(grid.columns, dtype=np.int64) * grid.width
    finite = np.where(np.isfinite(picture.values), picture.values, np.float32(np.nan))
    values, flags = np.ascontiguousarray(finite.T), np.ascontiguousarray(picture.flags.T)
    for array in (steps, values, flags):
        array.setflags(write=False)
    return Heatmap(
        rows=plan.rows,
        row_kinds=plan.kinds,
        steps=steps,
        steps_per_column=grid.width,
        values=values,
        flags=flags,
        came_pooled=came_pooled,
    )
