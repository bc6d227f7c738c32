"""The callback that fills the sections below the charts of memory. Runs on callback threads."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
import numpy as np
import pandas as pd
from dash import Dash, Input, Output, no_update

from probe.wire.memory_snapshots import MEMORY_SNAPSHOT, MemorySnapshot
from probe.wire.tracked_tensors import KIND as TRACKED

from ... import ids
from ...store.protocol import StepRange, Store
from ..views.memory_comparison import KINDS, Moment
from ..views.memory_details import MemoryFacts, memory_details, snapshot_choices
from ..views.memory_growth import WATCHED

POINTS: Final = 250
_BACK_STEPS: Final = 2000
"""How far before a snapshot the reading of what its memory was for is looked for."""
Step = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Id = Annotated[str, msgspec.Meta(max_length=600)]


class MemoryScope(msgspec.Struct, frozen=True, kw_only=True):
    """What the scripts ask to see; `mark` only makes two askings differ."""

    run: Annotated[str, msgspec.Meta(max_length=4096)]
    rank: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 0
    first: Step | None = None
    end: Step | None = None
    picked: Annotated[list[Id | None], msgspec.Meta(max_length=2)] = []
    """Ids of the snapshots to compare, older and newer; for None the oldest or the newest, as for one
    that is not there, which the sections say then."""
    mark: float = 0


def register_memory(app: Dash, store: Store) -> None:
    """Register the callback."""
    app.callback(
        Output(ids.MEMORY_DETAILS, "children"),
        Input(ids.MEMORY_SCOPE, "data"),
        prevent_initial_call=True,
    )(lambda data: memory_view(store, data))


def memory_view(store: Store, data: Any) -> Any:
    """Return the sections of a rank; a malformed asking changes nothing."""
    try:
        scope = msgspec.convert(data, MemoryScope)
    except msgspec.ValidationError:
        return no_update
    return memory_details(_facts(store, scope))


def _facts(store: Store, scope: MemoryScope) -> MemoryFacts:
    steps = StepRange(first=scope.first, end=scope.end)
    names = [name for name, _ in WATCHED]
    choices = snapshot_choices(store.documents(scope.run, MEMORY_SNAPSHOT, scope.rank))
    leaks = [event for event in store.events(scope.run, scope.rank) if event.kind == "memory_leak"]
    return MemoryFacts(
        series=store.scalars(scope.run, scope.rank, names, steps, POINTS),
        free_bytes=_free_bytes(store, scope),
        leaks=sorted(leaks, key=lambda event: event.step),
        choices=choices,
        gone=tuple(id_ is not None and id_ not in dict(choices) for id_ in _pair(scope)),
        moments=_moments(store, scope, choices),
        tracked=store.documents(scope.run, TRACKED, scope.rank),
    )


def _free_bytes(store: Store, scope: MemoryScope) -> float | None:
    """What the machine had left at the newest reading in view."""
    rows = _newest_rows(store, scope, ["system_used_bytes", "system_total_bytes"], scope.end)
    used, total = rows.get("system_used_bytes"), rows.get("system_total_bytes")
    return None if used is None or total is None else total - used


def _moments(
    store: Store, scope: MemoryScope, choices: list[tuple[str, MemorySnapshot]]
) -> tuple[Moment, Moment] | None:
    if len(choices) < 2:
        return None
    known = dict(choices)
    first, second = (id_ if id_ in known else None for id_ in _pair(scope))
    # What stands in for one that is not there differs from the other.
    first = first or next(id_ for id_ in known if id_ != second)
    second = second or next(id_ for id_ in reversed(known) if id_ != first)
    pair = sorted((first, second), key=lambda id_: known[id_].time)
    before, after = (Moment(id_, known[id_], _kinds_at(store, scope, known[id_].step)) for id_ in pair)
    return before, after


def _pair(scope: MemoryScope) -> tuple[str | None, str | None]:
    first, second, *_ = [*scope.picked, None, None]
    return first, second


def _kinds_at(store: Store, scope: MemoryScope, step: int | None) -> dict[str, float]:
    return {} if step is None else _newest_rows(store, scope, list(KINDS), step + 1)


def _newest_rows(store: Store, scope: MemoryScope, names: list[str], end: int | None) -> dict[str, float]:
    """The newest finite value of each series before a step; of all steps where none is given."""
    first = None if end is None else max(0, end - _BACK_STEPS)
    data: pd.DataFrame = store.scalars(
        scope.run, scope.rank, names, StepRange(first=first, end=end), _BACK_STEPS
    )
    finite = data[np.isfinite(data["mean"].to_numpy(dtype=np.float64))]
    return {str(name): float(rows["mean"].iloc[-1]) for name, rows in finite.groupby("name", sort=False)}
