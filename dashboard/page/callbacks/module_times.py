"""The callback of the icicle of modules: the newest times at or before a step. On callback threads.

Times are measured by the probe every so many steps (level advanced and above), or are those of a profile; the
newer of the two is shown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from dash import Dash, Input, Output, no_update

from probe.errors import WireError
from probe.wire.documents import read_body
from probe.wire.profiles import KIND, MAX_ROWS, ProfileBody

from ... import ids
from ...store.protocol import Heatmap, StepRange, Store, StoredDocument
from ..views.module_icicle import ModuleTime, boxes_data, module_boxes

_COLUMNS: Final = 64
"""Of one look: the newest column with a value is looked into again, until it is one step."""
_FORWARD, _BACKWARD = "forward_time_s", "backward_time_s"
Name = Annotated[str, msgspec.Meta(max_length=4096)]


class ModuleTimesScope(msgspec.Struct, frozen=True, kw_only=True):
    """What the scripts ask to see; `mark` only makes two askings differ."""

    run: Name
    rank: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 0
    step: Annotated[float, msgspec.Meta(ge=0, le=2**53)] | None = None
    """None is the newest."""
    mark: float = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTimes:
    """Times of modules, and what they are of."""

    step: int
    """The last of them."""
    title: str
    note: str
    times: dict[str, ModuleTime]


def register_module_times(app: Dash, store: Store) -> None:
    """Register the callback."""
    app.callback(
        Output(ids.MODULE_TIMES, "data"), Input(ids.MODULE_TIMES_SCOPE, "data"), prevent_initial_call=True
    )(lambda data: module_times_view(store, data))


def module_times_view(store: Store, data: Any) -> Any:
    """Return title, note and boxes of the icicle; a malformed asking changes nothing."""
    try:
        scope = msgspec.convert(data, ModuleTimesScope)
    except msgspec.ValidationError:
        return no_update
    end = None if scope.step is None else int(scope.step) + 1
    found = [
        measured_times(store, scope.run, scope.rank, end=end),
        profiled_times(store.documents(scope.run, KIND, scope.rank), end=end),
    ]
    newest = max((one for one in found if one is not None), key=lambda one: one.step, default=None)
    answer = {"run": scope.run, "rank": scope.rank}
    if newest is None:
        return {**answer, "title": "", "note": "", "boxes": [], "hidden": 0}
    boxes, hidden = module_boxes(newest.times)
    return {
        **answer,
        "title": newest.title,
        "note": newest.note,
        "boxes": boxes_data(boxes),
        "hidden": hidden,
    }


def measured_times(store: Store, run: str, rank: int, *, end: int | None = None) -> MeasuredTimes | None:
    """Return the newest times of modules that the probe has measured before step `end`; None without any."""
    found = _newest_column(store, run, rank, StepRange(end=end))
    if found is None:
        return None
    picture, column = found
    step, width = int(picture.steps[column]), picture.steps_per_column
    times = {name: ModuleTime(forward_s=value) for name, value in _values(picture, column)}
    later = store.heatmap(run, rank, _BACKWARD, StepRange(first=step, end=step + width), 1)
    for name, value in [] if later is None or not len(later.steps) else _values(later, 0):
        times[name] = replace(times.get(name, ModuleTime()), backward_s=value)
    what = "forward and backward, with its children"
    if width == 1:
        return MeasuredTimes(step=step, title=f"Step {step:,}", note=f"Measured: {what}.", times=times)
    title = f"Steps {step:,} to {step + width - 1:,}"
    note = f"Measured: {what}; of each module the longest of these steps."
    return MeasuredTimes(step=step + width - 1, title=title, note=note, times=times)


def _newest_column(
    store: Store, run: str, rank: int, steps: StepRange, *, wider: float = math.inf
) -> tuple[Heatmap, int] | None:
    """The finest picture that is stored of the newest of these steps with times, and its column there.

    Args:
        store, run, rank: whose.
        steps: that may be shown.
        wider: steps of a column of the picture in which these steps are one.
    """
    picture = store.heatmap(run, rank, _FORWARD, steps, _COLUMNS)
    if picture is None:
        return None
    for column in np.flatnonzero((picture.flags > 0).any(axis=0))[::-1].tolist():
        width, first = picture.steps_per_column, int(picture.steps[column])
        if width in (1, wider):
            return picture, column
        last = first + width if steps.end is None else min(first + width, steps.end)
        # The last column may have pooled what comes behind these steps, and nothing of them.
        if found := _newest_column(store, run, rank, StepRange(first=first, end=last), wider=width):
            return found
    return None


def _values(picture: Heatmap, column: int) -> list[tuple[str, float]]:
    values = picture.values[:, column].astype(np.float64).tolist()
    return [(name, value) for name, value in zip(picture.rows, values, strict=True) if math.isfinite(value)]


def profiled_times(documents: Sequence[StoredDocument], *, end: int | None = None) -> MeasuredTimes | None:
    """Return the times of the newest profile with modules that ended before step `end`; None without any."""
    profiles = [body for found in documents if (body := _read(found)) is not None]
    fitting = [body for body in profiles if end is None or _last(body) < end]
    newest = max(fitting, key=_last, default=None)
    if newest is None:
        return None
    is_of_device = newest.has_cuda and any(row.self_cuda_s for row in newest.modules)
    steps = max(newest.steps, 1)
    times = {
        row.name: ModuleTime(self_s=(row.self_cuda_s if is_of_device else row.self_cpu_s) / steps)
        for row in newest.modules
    }
    clock = "CUDA" if is_of_device else "CPU"
    parts = [f"From a profile: {clock} time of the operations of forward and backward, per step"]
    if len(newest.modules) >= MAX_ROWS:
        parts.append(f"the {MAX_ROWS} most expensive modules")
    return MeasuredTimes(step=_last(newest), title=_steps(newest), note="; ".join(parts) + ".", times=times)


def _read(found: StoredDocument) -> ProfileBody | None:
    try:
        body = read_body(found.document, ProfileBody)
    except WireError:
        return None
    return body if body.first_step is not None and body.modules else None


def _last(body: ProfileBody) -> int:
    return (body.first_step or 0) + max(body.steps, 1) - 1


def _steps(body: ProfileBody) -> str:
    if body.steps <= 1:
        return f"Step {_last(body):,}"
    return f"Steps {body.first_step or 0:,} to {_last(body):,}"
