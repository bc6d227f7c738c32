"""Statistics of the frames of one append as arrays: of parameters and their layers, and of modules.

Called by `ingest` under the store's lock. Gradient statistics stand in a frame's `columns`; what is measured
at some steps only, in its `parameter_columns` and `module_columns`, each with gaps of its own. Histograms
travel in the frame too: see `histogram_blocks`. Pooled frames have `layer_columns` in place of both.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from probe.errors import WireError
from probe.wire import Column, Frame, ModuleColumn
from probe.wire.columns import unpack_column, unpack_missing
from probe.wire.layer_values import (
    REDUCTIONS,
    WITHOUT_GRADIENT,
    Geometry,
    narrow,
    reduce_calls,
    reduce_layers,
)
from probe.wire.module_frames import unpack_module_column, unpack_module_rows

from .catalog import Catalog
from .edge import TensorBlock, TensorRows
from .pyramid import MEASURED, POOLED, Flags, Floats, flags_of
from .timelines import LAYER, MODULE, PARAMETER

Frames = Sequence[tuple[int, Frame]]
"""(sequence number, frame), in order of arrival."""
Values = npt.NDArray[np.float64]
Gaps = npt.NDArray[np.bool_]
Row = tuple[Values, Gaps]
"""(width,) values of one step, and where there is none."""
Statistic = tuple[str, Floats, Flags | None]
"""Kind, (frames, width) values, and flags unless all were measured and are finite."""


def has_tensors(frame: Frame) -> bool:
    """Whether a frame holds anything besides scalars and histograms."""
    return bool(frame.columns or frame.parameter_columns or frame.module_columns or frame.layer_columns)


def tensor_block(catalog: Catalog, timeline: int, incarnation: int, frames: Frames) -> TensorBlock:
    """Arrange the statistics of frames of one layout.

    A sampled column that does not fit the layout is left out alone: the rest of its frame is kept.
    """
    frames = [item for item in frames if has_tensors(item[1])]
    geometry = catalog.layout(timeline)[1]
    steps = np.array([frame.step for _, frame in frames], dtype=np.int64)
    seqs = np.array([seq for seq, _ in frames], dtype=np.int64)
    pooled = np.array([frame.pooled > 0 for _, frame in frames], dtype=np.bool_)
    rows = [
        TensorRows(
            series=series,
            kind=kind,
            step=steps[chosen],
            seq=seqs[chosen],
            values=values,
            flags=_marked(flags, pooled[chosen], values),
        )
        for name, chosen, (kind, values, flags) in (
            *_gradients(frames, geometry),
            *_sampled(frames, geometry),
            *_layers(frames, geometry),
            *_modules(frames, geometry),
        )
        if (series := catalog.timelines.add_series(timeline, kind, name)) is not None
    ]
    return TensorBlock(timeline=timeline, incarnation=incarnation, step=steps, rows=tuple(rows))


Found = Iterable[tuple[str, npt.NDArray[np.intp], Statistic]]
"""Name, indices of the frames that have it, and the values."""


def _gradients(frames: Frames, geometry: Geometry) -> Found:
    """Yield the statistics of `columns`, which all parameters have but those without a gradient."""
    missing = _missing(frames, len(geometry.parameters))
    by_name: dict[str, dict[int, Column]] = defaultdict(dict)
    for index, (_, frame) in enumerate(frames):
        for column in frame.columns:
            by_name[column.name][index] = column
    for name, columns in by_name.items():
        chosen = np.array(list(columns), dtype=np.intp)
        absent = missing[chosen] if missing is not None and name not in WITHOUT_GRADIENT else None
        wide = _values(list(columns.values()), len(geometry.parameters))
        for statistic in _of_parameters(name, wide, absent, geometry):
            yield name, chosen, statistic


def _sampled(frames: Frames, geometry: Geometry) -> Found:
    """Yield the statistics of `parameter_columns`; of one that `columns` has as well, nothing."""
    columns = (frame.parameter_columns for _, frame in frames)
    for name, chosen, wide, gaps in _stacked(frames, columns, len(geometry.parameters)):
        for statistic in _of_parameters(name, wide, gaps, geometry):
            yield name, chosen, statistic


def _marked(flags: Flags | None, pooled: npt.NDArray[np.bool_], values: Floats) -> Flags | None:
    """Mark what is the largest of its bucket, and the value of no step."""
    if not pooled.any():
        return flags
    marked = np.full(values.shape, MEASURED, np.uint8) if flags is None else flags
    return np.where(pooled[:, None] & (marked > 0), marked | POOLED, marked).astype(np.uint8)


def _layers(frames: Frames, geometry: Geometry) -> Found:
    """Yield the statistics of layers that came without those of their parameters."""
    columns = (frame.layer_columns for _, frame in frames)
    for name, chosen, wide, gaps in _stacked(frames, columns, len(geometry.layers)):
        flags = _flags(wide, gaps)
        yield name, chosen, (LAYER, _narrowed(wide, flags), flags)


def _stacked(
    frames: Frames, columns: Iterable[Sequence[ModuleColumn]], width: int
) -> Iterable[tuple[str, npt.NDArray[np.intp], Values, Gaps]]:
    """Yield name, indices of the frames, (frames, width) values and gaps of columns that fit.

    Args:
        columns: of each frame; one that its own `columns` have as well is left out.
    """
    by_name: dict[str, dict[int, Row]] = defaultdict(dict)
    for index, ((_, frame), own) in enumerate(zip(frames, columns, strict=True)):
        known = {column.name for column in frame.columns}
        for column in own:
            if column.name not in known:
                with contextlib.suppress(WireError):
                    by_name[column.name][index] = unpack_module_column(column, width)
    for name, found in by_name.items():
        wide, gaps = (np.stack(part) for part in zip(*found.values(), strict=True))
        yield name, np.array(list(found), dtype=np.intp), wide, gaps


def _modules(frames: Frames, geometry: Geometry) -> Found:
    """Yield the statistics of modules; several calls of a module in one step become one value."""
    by_name: dict[str, dict[int, Row]] = defaultdict(dict)
    for index, (_, frame) in enumerate(frames):
        for name, row in _module_rows(frame, len(geometry.modules)):
            by_name[name][index] = row
    for name, found in by_name.items():
        wide, gaps = (np.stack(part) for part in zip(*found.values(), strict=True))
        flags = _flags(wide, gaps)
        yield name, np.array(list(found), dtype=np.intp), (MODULE, _narrowed(wide, flags), flags)


def _module_rows(frame: Frame, modules: int) -> Iterable[tuple[str, Row]]:
    if not frame.module_columns or not modules:
        return
    try:
        calls = unpack_module_rows(frame, modules) if frame.module_rows else None
    except WireError:
        return
    for column in frame.module_columns:
        try:
            values, gaps = unpack_module_column(column, modules if calls is None else len(calls))
        except WireError:
            continue
        if calls is not None:
            values, gaps = reduce_calls(column.name, values, gaps, calls=calls, modules=modules)
        yield column.name, (values, gaps)


def _missing(frames: Frames, parameters: int) -> Gaps | None:
    """Return (frames, parameters), True where a parameter had no gradient; None when all had one."""
    if not any(frame.missing for _, frame in frames):
        return None
    return np.stack([unpack_missing(frame, parameters) for _, frame in frames])


def _values(columns: Sequence[Column], parameters: int) -> npt.NDArray[np.floating]:
    """Return (frames, parameters), float32 unless a column needs float64."""
    if all(column.dtype == "f4" for column in columns):
        joined = b"".join(column.data for column in columns)
        return np.frombuffer(joined, dtype="<f4").reshape(len(columns), parameters)
    return np.stack([unpack_column(column) for column in columns])


def _of_parameters(
    name: str, wide: npt.NDArray[np.floating], absent: Gaps | None, geometry: Geometry
) -> list[Statistic]:
    """Return the parameter rows of a statistic and, where it has them, its layer rows."""
    flags = _flags(wide, absent)
    result: list[Statistic] = [(PARAMETER, _narrowed(wide, flags), flags)]
    reduction = REDUCTIONS.get(name)
    if reduction is not None:
        result.append((LAYER, *reduce_layers(reduction, wide, flags, geometry)))
    return result


def _flags(wide: npt.NDArray[np.floating], absent: Gaps | None) -> Flags | None:
    """Return flags, 0 where nothing was measured; None when everything was and is finite."""
    if (absent is None or not absent.any()) and np.isfinite(wide).all():
        return None
    flags = flags_of(wide)
    if absent is not None:
        flags[absent] = 0
    return flags


def _narrowed(wide: npt.NDArray[np.floating], flags: Flags | None) -> Floats:
    """Return float32, NaN where nothing was measured."""
    values = wide if wide.dtype == np.float32 else narrow(wide.astype(np.float64))
    if flags is not None:
        values = np.where(flags == 0, np.float32(np.nan), values)
    return values.astype(np.float32, copy=False)
