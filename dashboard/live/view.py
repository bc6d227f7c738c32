"""What a client can wish to see of a store, and the header fields and arrays that answer it.

Reads the store; called by `pictures` on the hub's reader threads, never on the event loop. Everything here
costs the pixels asked for, not the steps stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pandas as pd

from probe.wire import Event

from ..page.event_feed import event_state
from ..page.views.breaks import extent
from ..page.views.heatmap import INF, LOG10_BELOW_ONE, NAN, most_columns, widened
from ..page.views.heatmap import pooling_note as heatmap_note
from ..page.views.heatmap_statistics import DEFAULT_STATISTIC, STATISTICS, Statistic
from ..page.views.tiles import RECENT_NAMES, RECENT_STEPS, SLOW_NAMES, tile_texts
from ..store.protocol import Heatmap, RankStart, RankSummary, RunSummary, StepRange, Store
from .newest import Edge, NewestPoints, newest_points
from .tracks import Track

SLOW_STEPS: Final = 2000
"""How far back the newest reading of memory is looked for."""
CODE_NAN: Final = 1
CODE_INF: Final = 2
CODE_ZERO: Final = 4
CODE_FIRST: Final = 5
LOG10_LOW: Final = -46.0
LOG10_HIGH: Final = 39.0
"""Heatmap cells travel as u2: 0 not measured, bit 0 NaN and bit 1 Inf up to 3, 4 zero, then log10 in equal
steps from `LOG10_LOW` to `LOG10_HIGH` (0.0013 decades: three significant digits)."""
_CODES: Final = 65535 - CODE_FIRST

RunText = Annotated[str, msgspec.Meta(max_length=64)]
Pixels = Annotated[int, msgspec.Meta(ge=16, le=2000)]
StepNumber = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class Subscription(msgspec.Struct, frozen=True, kw_only=True, tag="subscribe", tag_field="m"):
    """What a client wants to see; a new one replaces the last."""

    id: StepNumber
    run: RunText | None = None
    """None: that of `event`, else the newest live run, else the newest."""
    event: RunText | None = None
    """Id of an event, where it is all that is known of the run."""
    rank: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 0
    first: StepNumber | None = None
    end: StepNumber | None = None
    window: Annotated[int, msgspec.Meta(ge=1, le=2**53)] | None = None
    """Live: only the newest so many steps, when `first` and `end` are open."""
    points: Pixels = 600
    columns: Pixels = 600
    unfolded: Annotated[
        list[Annotated[str, msgspec.Meta(max_length=4096)]], msgspec.Meta(max_length=256)
    ] = []
    statistic: Annotated[str, msgspec.Meta(max_length=64)] = DEFAULT_STATISTIC
    """What the heatmap shows; the default for one that there is not."""
    logged: bool = False
    """The charts of what the user logs too."""
    ranks: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """What the view Ranks compares; empty while it is not open."""
    paused: bool = False


def choose_run(runs: list[RunSummary], wanted: str | None) -> RunSummary | None:
    """Return the wanted run; without a wish the newest running one, else the newest."""
    if wanted is not None:
        return next((run for run in runs if run.run == wanted), None)
    running = [run for run in runs if any(rank.state == "running" for rank in run.ranks)]
    return next(iter(running or runs), None)


def choose_rank(run: RunSummary, wanted: int) -> RankSummary | None:
    """Return the wanted rank, else the one nearest to it, as `assets/ns_60_status.js` chooses it."""
    return min(run.ranks, key=lambda rank: abs(rank.rank - wanted), default=None)


def run_list(runs: list[RunSummary]) -> list[dict[str, Any]]:
    """Return the run selector's lines; nothing in them changes from step to step."""
    return [
        {
            "run": run.run,
            "name": run.name or run.run,
            "started": run.started,
            "group": run.start.group or run.recorded_as,
            "model": run.start.model,
            "member": run.member,
            "series": run.series,
            "ranks": [{"rank": rank.rank, "state": rank.state} for rank in run.ranks],
        }
        for run in runs
    ]


def step_range(
    first: int | None,
    end: int | None,
    window: int | None,
    rank: RankSummary,
    starts: Sequence[RankStart] = (),
) -> StepRange:
    """Return the steps in view. A live window moves in jumps of a 32nd, so that pooled columns stay put.

    What follows the newest step ends with it, also where steps from before a restart go further.
    """
    if first is not None or end is not None:
        return StepRange(first=first, end=end)
    whole = extent(starts)
    if rank.last_step is None:
        return StepRange()
    newest_end = rank.last_step + 1
    behind = newest_end if whole is not None and whole[1] > newest_end else None
    if window is None:
        return StepRange(end=behind)
    jump = max(1, window // 32)
    return StepRange(first=-(-max(0, newest_end - window) // jump) * jump, end=behind)


def shown_range(
    steps: StepRange,
    asked_end: int | None,
    rank: RankSummary,
    starts: Sequence[RankStart],
    *,
    event_end: int | None,
) -> list[int | None]:
    """Return the x-axis of a picture, [first, end): of the whole run from the first step of any start.

    A restarted rank that has no step yet shows what was there before.
    """
    whole = extent(starts)
    first = steps.first if steps.first is not None or whole is None else whole[0]
    if asked_end is not None or whole is None:
        return [first, asked_end]
    return [first, whole[1] if rank.last_step is None else max(rank.last_step + 1, event_end or 0)]


def slow_scalars(store: Store, run: RunSummary, rank: RankSummary) -> pd.DataFrame:
    """Return the newest of what is read about once a second; there is no need to ask more often."""
    return store.scalars(run.run, rank.rank, list(SLOW_NAMES), _newest_steps(rank, SLOW_STEPS), 50)


def _newest_steps(rank: RankSummary, most: int) -> StepRange:
    """Return the newest steps of the newest incarnation: others may have gone further, or begun earlier."""
    if rank.last_step is None:
        return StepRange(first=0, end=0)
    return StepRange(first=max(rank.first_step or 0, rank.last_step + 1 - most), end=rank.last_step + 1)


def status(
    store: Store, run: RunSummary, rank: RankSummary, *, slow: pd.DataFrame
) -> tuple[dict[str, Any], NewestPoints]:
    """Return what the header of every message says: state, newest step, tiles; and the newest points.

    Args:
        store: Where the newest scalars are read.
        run: The run in view.
        rank: Its rank in view.
        slow: From `slow_scalars`.
    """
    last = rank.last_step
    newest = _newest_steps(rank, RECENT_STEPS)
    recent = store.scalars(run.run, rank.rank, list(RECENT_NAMES), newest, RECENT_STEPS)
    names = recent["name"].to_numpy(dtype=object)
    step_times = recent["mean"].to_numpy(dtype=np.float64)[names == "step_time_s"]
    finite = step_times[np.isfinite(step_times)]
    edge = newest_edge(rank)
    return {
        "run": run.run,
        "name": run.name or run.run,
        "rank": rank.rank,
        "state": rank.state,
        "newestStep": last,
        "newestTime": rank.last_time,
        "stepSeconds": _mean(finite),
        "lost": rank.lost_before_write,
        "tiles": [asdict(tile) for tile in tile_texts(recent, slow, last_step=last)],
    }, newest_points(recent, edge=edge, first=newest.first or 0)


def newest_edge(rank: RankSummary) -> Edge:
    """Return the end of all steps that a rank has sent."""
    return Edge(incarnation=rank.incarnation, end=0 if rank.last_step is None else rank.last_step + 1)


def level_of(events: list[Event], run: RunSummary, rank: RankSummary) -> dict[str, Any]:
    """Return the level that the rank is at, and since which step; None since its start.

    Only the newest incarnation counts: a restart begins at the level of its own start.
    """
    changes = [
        event
        for event in events
        if event.kind == "level_changed" and (event.rank, event.incarnation) == (rank.rank, rank.incarnation)
    ]
    if not changes:
        return {"name": run.start.level, "since": None}
    newest = max(changes, key=lambda event: (event.time, event.step))
    return {"name": newest.subject, "since": newest.step}


def events_mark(events: list[Event]) -> int:
    """Return a number that changes whenever any event of the run does (within this process)."""
    return hash(tuple(event_state(event) for event in events)) & (2**52 - 1)


def gap_list(store: Store, run: str, rank: int) -> list[dict[str, Any]]:
    """Return the grey bands; an open end is null."""
    return [
        {"first": gap.first_step, "last": gap.last_step, "count": gap.count, "reason": gap.reason}
        for gap in store.gaps(run, rank)
    ]


def note_list(store: Store, run: RunSummary) -> list[dict[str, Any]]:
    """Return the notes at steps of a run, by step."""
    return [{"id": note.id, "step": note.step, "text": note.text} for note in store.notes(run.run)]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatmapPart:
    """The heatmap of a picture."""

    fields: dict[str, Any]
    """Header fields, without the names of the rows."""
    rows: tuple[str, ...]
    kinds: tuple[str, ...]
    tensors: tuple[int, ...]
    """Parameters inside each row."""
    track: Track


def read_heatmap(
    store: Store,
    run: str,
    rank: int,
    *,
    steps: StepRange,
    statistic: Statistic,
    columns: int,
    unfolded: tuple[str, ...],
) -> HeatmapPart | None:
    """Read the heatmap's codes, column by column; None before the first layout."""
    layout = store.layout(run, rank)
    if layout is None:
        return None
    rows = layout.layers if statistic.of == "layer" else layout.modules
    most = most_columns(columns, rows=len(rows))
    found = store.heatmap(run, rank, statistic.id, steps, max_columns=most, unfolded=unfolded)
    if found is None:
        return None
    heatmap, every = widened(found)
    codes = cell_codes(heatmap)
    low, high = code_limits(codes, is_count=statistic.is_count)
    fields: dict[str, Any] = {
        "rowCount": len(heatmap.rows),
        "stepsPerColumn": heatmap.steps_per_column,
        "low": low,
        "high": high,
        "hasValues": bool((heatmap.flags > 0).any()),
        "note": heatmap_note(heatmap.steps_per_column, every=every, came_pooled=heatmap.came_pooled),
        "every": every,
        "statistic": statistic.id,
        "statistics": _offered(store.statistic_names(run, rank), statistic.id),
    }
    counts = tensor_counts(each.name for each in layout.parameters)
    track = Track(
        "heatmap/steps",
        heatmap.steps.astype("<f8"),
        "heatmap/codes",
        codes.T.reshape(-1),
        rows=len(heatmap.rows),
    )
    return HeatmapPart(
        fields=fields,
        rows=heatmap.rows,
        kinds=heatmap.row_kinds,
        tensors=tuple(counts[name] for name in heatmap.rows),
        track=track,
    )


def tensor_counts(parameters: Iterable[str]) -> Counter[str]:
    """Return how many parameters are inside each module path, by its name; "" is the whole model."""
    counts: Counter[str] = Counter()
    for name in parameters:
        parts = name.split(".")
        counts.update(".".join(parts[:depth]) for depth in range(len(parts) + 1))
    return counts


def _offered(names: list[str], shown: str) -> list[str]:
    """Return what the selector offers: what the run has, what is shown, and always the default."""
    return [each.id for each in STATISTICS if each.id in (*names, shown, DEFAULT_STATISTIC)]


def cell_codes(heatmap: Heatmap) -> npt.NDArray[np.uint16]:
    """Return (rows, columns) codes as `CODE_FIRST` describes them."""
    values = heatmap.values.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = (np.log10(values) - LOG10_LOW) / (LOG10_HIGH - LOG10_LOW)
    codes = np.where(np.isfinite(scaled), CODE_FIRST + np.clip(np.rint(scaled * _CODES), 0, _CODES), 0)
    codes[values == 0] = CODE_ZERO
    bad = CODE_NAN * ((heatmap.flags & NAN) != 0) + CODE_INF * ((heatmap.flags & INF) != 0)
    return np.where(bad > 0, bad, codes).astype("<u2")


def code_limits(
    codes: npt.NDArray[np.uint16], *, is_count: bool = False
) -> tuple[int, int] | tuple[None, None]:
    """Return the codes of the colour scale's ends: 1st and 99th percentile of what is positive and finite.

    None and None where nothing is. With the extremes themselves a single exploding step would turn everything
    else into one colour. The scale of counts begins below 1: even the smallest must not look like none.
    """
    positive = codes[codes >= CODE_FIRST]
    if not positive.size:
        return None, None
    low, high = np.percentile(positive, (1, 99))
    if is_count:
        low = CODE_FIRST + round((LOG10_BELOW_ONE - LOG10_LOW) / (LOG10_HIGH - LOG10_LOW) * _CODES)
    return int(low), max(int(low) + 1, int(np.ceil(high)))


@np.errstate(over="ignore", invalid="ignore")  # what no float64 holds is Inf
def _mean(finite: npt.NDArray[np.float64]) -> float | None:
    return float(finite.mean()) if finite.size else None
