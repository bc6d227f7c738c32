"""The callback of the controls beside the level: asks every rank, says what it answers. On callback threads.

What a page shows may be old: what may be asked is asked of the store again at each click.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final

import msgspec
from dash import ALL, Dash, Input, Output, State, ctx, no_update

from probe.delivery.control.control_messages import (
    AskState,
    ChangeFeatures,
    ChangeLevel,
    ChangeLimit,
    ChangePreset,
    KeepSnapshot,
    Pause,
    Request,
    Resume,
    TakeMemorySnapshot,
    TrainerState,
    WriteBundle,
)
from probe.settings.levels import FEATURES, LEVELS, PRESETS, Level

from ... import ids
from ...callers import view_only_reason
from ...ingest.control_desk import ControlDesk, UnreachableError
from ...store.protocol import Store
from ..views import controls as views
from ..views.trainer_answers import answer_text
from .run_actions import row_of, scope_of

_SIMPLE: Final[Mapping[str, tuple[Request, str]]] = {
    "pause": (Pause(), "Accepted: the training pauses before its next update"),
    "resume": (Resume(), "Accepted: training continues"),
    "snapshot": (KeepSnapshot(), "Accepted: an event will name the file with the next step's statistics"),
    "bundle": (WriteBundle(), "Accepted: an event will name the bundle of the next step"),
    "memory_snapshot": (TakeMemorySnapshot(), "Taken: see Memory, and the event of the run"),
}
"""Button -> what it asks, and what is said where that was accepted."""
_FROM_NEXT: Final = "Accepted, from the next step on"


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What the training was asked for when it answered last, as the page has it."""

    level: Annotated[str, msgspec.Meta(max_length=64)] = ""
    preset: Annotated[str, msgspec.Meta(max_length=200)] | None = None
    features: Annotated[dict[str, int], msgspec.Meta(max_length=64)] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlsView:
    """What the section shows."""

    reason: str
    """Line at the top: what holds now, or why nothing can be asked."""
    is_off: bool = False
    """Nothing can be asked."""
    state: TrainerState | None = None
    """What a trainer has answered; None: nobody was asked, or nobody has answered."""
    said: Mapping[str, str] = field(default_factory=dict)
    """Button or feature -> what is said beside it; beside the others nothing is."""
    level_before: Level = "basic"
    """To which the recording goes back."""


def register_controls(app: Dash, store: Store, desk: ControlDesk) -> None:
    """Register the callbacks: one that shows the state, and one for the switches and for each button.

    Dash drops the answer to a callback that is called again meanwhile. A click changes the level, then the
    state is asked for anew: what was answered to the click must be shown all the same.
    """

    def answer(scope: Any, preset: Any, limit: Any, known: Any) -> list[Any]:
        trigger = ctx.triggered_id
        view = controls_view(store, desk, scope, trigger, preset=preset, limit=limit, known=known)
        return outputs_of(view, trigger, scope)

    def refresh(scope: Any, _: Any, *form: Any) -> list[Any]:
        return answer(scope, *form)

    def click(clicks: Any, scope: Any, *form: Any) -> list[Any]:
        if isinstance(ctx.triggered_id, dict) and not any(clicks):
            # Switches of a new list appear: nobody has clicked.
            return [no_update] * (7 + 3 * len(views.ACTS))
        return answer(scope, *form)

    form = [
        State(ids.PRESET_CHOICE, "value"),
        State(ids.LIMIT_VALUE, "value"),
        State(ids.CONTROLS_STATE, "data"),
    ]
    scope = (ids.ACTIONS_SCOPE, "data")
    summary = Input(ids.ACTIONS_SUMMARY, "n_clicks")
    app.callback(*_outputs(), Input(*scope), summary, *form, prevent_initial_call=True)(refresh)
    for clicked in ({"type": views.FEATURE, "name": ALL}, *map(views.act_id, views.ACTS)):
        given = (Input(clicked, "n_clicks"), State(*scope), *form)
        app.callback(*_outputs(allow_duplicate=True), *given, prevent_initial_call=True)(click)


def _outputs(*, allow_duplicate: bool = False) -> list[Output]:
    """What each callback changes, in the order of `outputs_of`."""
    buttons = [views.act_id(name) for name in views.ACTS]
    changed = [
        (ids.CONTROLS_REASON, "children"),
        (ids.CONTROLS_FEATURES, "children"),
        (ids.CONTROLS_STATE, "data"),
        (ids.PRESET_CHOICE, "value"),
        (ids.LIMIT_VALUE, "value"),
        (ids.PRESET_CHOICE, "disabled"),
        (ids.LIMIT_VALUE, "disabled"),
        *((views.said_id(name), "children") for name in views.ACTS),
        *((button, "disabled") for button in buttons),
        *((button, "children") for button in buttons),
    ]
    return [Output(*one, allow_duplicate=allow_duplicate) for one in changed]


def controls_view(
    store: Store, desk: ControlDesk, data: Any, trigger: Any, *, preset: Any, limit: Any, known: Any
) -> ControlsView:
    """Ask what was clicked, or for the state alone, and return what the section shows then.

    Args:
        store: has the runs.
        desk: carries the request.
        data: scope of the page.
        trigger: id of the element that was used.
        preset: what is chosen in the form.
        limit: what stands in the field, in percent.
        known: what `CONTROLS_STATE` holds.
    """
    scope = scope_of(data)
    row = None if scope is None else row_of(store, scope.run)
    if reason := view_only_reason() or views.controls_reason(None if row is None else row.state):
        return ControlsView(reason=reason, is_off=True)
    assert row is not None
    name = _name_of(trigger)
    before = _level_before(store, row.run)
    try:
        request, done = _request(name, preset=preset, limit=limit, known=_known(known), before=before)
    except ValueError as error:
        # Somebody's mistake; what holds is asked for all the same, so that nothing else on screen is old.
        view = controls_view(store, desk, data, None, preset=preset, limit=limit, known=known)
        return replace(view, said={name: str(error)})
    try:
        answers = desk.ask(row.run, request, source="browser")
    except UnreachableError as error:
        return ControlsView(
            reason=f"Not asked: {error}.", said={name: f"Not asked: {error}."} if name else {}
        )
    text = answer_text(answers, done=done)
    states = [one.answer.state for one in answers if one.answer is not None]
    state = next((one for one in states if one.is_paused), states[0] if states else None)
    return ControlsView(
        reason=views.state_text(state) if state is not None else text,
        state=state,
        said={name: text} if name else {},
        level_before=before,
    )


def outputs_of(view: ControlsView, trigger: Any, scope: Any) -> list[Any]:
    """Return the callback's outputs, in their order."""
    state, name = view.state, _name_of(trigger)
    known: Any = no_update
    if state is not None:
        known = {"level": state.level, "preset": state.preset, "features": state.features}
    is_new_run = trigger == ids.ACTIONS_SCOPE and isinstance(scope, dict) and scope.get("before") is None
    is_fresh = trigger == ids.ACTIONS_SUMMARY or is_new_run
    # What somebody has chosen and not set yet stays.
    preset = limit = no_update
    if state is not None and (is_fresh or name in ("preset", "record")):
        preset = state.preset or views.NO_PRESET
    if state is not None and (is_fresh or name == "limit"):
        limit = round(state.overhead_limit * 100, 6)
    is_at_off = state is not None and state.level == "off"
    waits = {act for act in views.NEEDS_STEPS if is_at_off}
    # What was answered a moment ago stays while the run's level changes, as it does by that.
    stays = not name and not is_fresh and not view.is_off
    said: dict[str, Any] = {
        act: no_update if stays and act not in views.NEEDS_STEPS else "" for act in views.ACTS
    }
    said |= dict.fromkeys(waits, views.AT_OFF) | dict(view.said)
    switches: Any = no_update
    if state is not None or view.is_off:
        switches = views.feature_switches(state, view.said, is_off=view.is_off)
    labels = dict(views.ACTS)
    if is_at_off:
        labels["record"] = f"Record again, at level {view.level_before}"
    return [
        view.reason,
        switches,
        known,
        preset,
        limit,
        view.is_off,
        view.is_off,
        *(said[act] for act in views.ACTS),
        *(view.is_off or act in waits for act in views.ACTS),
        *(labels[act] for act in views.ACTS),
    ]


def _name_of(trigger: Any) -> str:
    """Button or feature that was clicked; empty for none."""
    if isinstance(trigger, dict):
        return str(trigger.get("name", ""))
    return next((act for act in views.ACTS if views.act_id(act) == trigger), "")


def _request(name: str, *, preset: Any, limit: Any, known: Known, before: Level) -> tuple[Request, str]:
    """Make the request of a click, and what is said where it is accepted.

    Raises:
        ValueError: what is chosen cannot be asked; says what can.
    """
    if name in _SIMPLE:
        return _SIMPLE[name]
    if name in FEATURES:
        period = 0 if known.features.get(name) else _period_when_on(name, known)
        return ChangeFeatures(features={name: period}), _FROM_NEXT
    if name == "preset":
        if preset != views.NO_PRESET and preset not in PRESETS:
            raise ValueError(f"Choose a preset: {', '.join(PRESETS)}, or none.")
        return ChangePreset(preset=None if preset == views.NO_PRESET else preset), _FROM_NEXT
    if name == "limit":
        return ChangeLimit(overhead_limit=_fraction(limit)), _FROM_NEXT
    if name == "record":
        if known.level == "off":
            return ChangeLevel(level=before), f"Accepted: level {before} from the next step on"
        return ChangeLevel(level="off"), "Accepted: level `off` from the next step on; training continues"
    return AskState(), ""


def _period_when_on(name: str, known: Known) -> int | None:
    return views.period_when_on(name, level=known.level, preset=known.preset)


def _fraction(percent: Any) -> float | None:
    """Return what stands in the field of the limit as a fraction; None where nothing does.

    Raises:
        ValueError: it is no percentage.
    """
    if percent in (None, ""):
        return None
    if isinstance(percent, bool) or not isinstance(percent, int | float) or not 0 <= percent <= 100:
        raise ValueError("Enter a number from 0 (no limit) to 100, or leave it empty for the level's limit.")
    return percent / 100


def _known(data: Any) -> Known:
    try:
        return msgspec.convert(data, Known)
    except msgspec.ValidationError:
        return Known()


def _level_before(store: Store, run: str) -> Level:
    """The newest level of a run that was not off: where the recording goes on."""
    changes = [event for event in store.events(run) if event.kind == "level_changed"]
    changes.sort(key=lambda event: (event.time, event.step), reverse=True)
    starts = [summary.start.level for summary in store.runs() if summary.run == run]
    names = [*(event.subject for event in changes), *starts]
    return next((level for name in names for level in LEVELS if level == name != "off"), "basic")
