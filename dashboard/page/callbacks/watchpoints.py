"""The callback of the watchpoints' section: asks the trainer, shows what it answers. On callback threads."""

from __future__ import annotations

from typing import Any, NamedTuple

from dash import ALL, Dash, Input, Output, State, ctx, no_update

from probe.delivery.control.control_messages import (
    AddWatchpoint,
    AskState,
    RemoveWatchpoint,
    Request,
    Resume,
    TrainerState,
)
from probe.delivery.control.rule_options import ACTIONS, Action, WatchpointOptions

from ... import ids
from ...ingest.control_desk import ControlDesk, UnreachableError
from ..views.watchpoint_panel import REMOVE, count_text, watchpoint_list


class SectionView(NamedTuple):
    """What the section shows, in the order of the callback's outputs."""

    rows: Any
    count: Any
    resume_hidden: Any
    error: Any
    condition: Any


def register_watchpoints(app: Dash, desk: ControlDesk) -> None:
    """Register the callback of the section."""

    def show(
        run: Any,
        opened: Any,
        added: Any,
        submitted: Any,
        resumed: Any,
        removed: Any,
        condition: Any,
        action: Any,
    ) -> SectionView:
        if isinstance(ctx.triggered_id, dict) and not any(removed):
            # Buttons of a new list appear: nobody has clicked.
            return SectionView(*[no_update] * 5)
        return section_view(desk, run, ctx.triggered_id, condition=condition, action=action)

    app.callback(
        Output(ids.WATCHPOINT_LIST, "children"),
        Output(ids.WATCHPOINT_COUNT, "children"),
        Output(ids.WATCHPOINT_RESUME, "hidden"),
        Output(ids.WATCHPOINT_CONDITION, "error"),
        Output(ids.WATCHPOINT_CONDITION, "value"),
        Input(ids.RUN_SELECT, "value"),
        Input(ids.WATCHPOINT_SUMMARY, "n_clicks"),
        Input(ids.WATCHPOINT_ADD, "n_clicks"),
        Input(ids.WATCHPOINT_CONDITION, "n_submit"),
        Input(ids.WATCHPOINT_RESUME, "n_clicks"),
        Input({"type": REMOVE, "name": ALL}, "n_clicks"),
        State(ids.WATCHPOINT_CONDITION, "value"),
        State(ids.WATCHPOINT_ACTION, "value"),
        prevent_initial_call=True,
    )(show)


def section_view(desk: ControlDesk, run: Any, trigger: Any, *, condition: Any, action: Any) -> SectionView:
    """Do what was clicked, and return what the section shows then; ranks are asked alike, the first is shown.

    Args:
        desk: carries the request.
        run: id of the run that is shown.
        trigger: id of the element that was used.
        condition: what stands in the field.
        action: what is chosen beside it.
    """
    if not isinstance(run, str) or not run:
        return SectionView(watchpoint_list(None, "No run is shown."), "", True, "", no_update)
    is_addition = trigger in (ids.WATCHPOINT_ADD, ids.WATCHPOINT_CONDITION)
    try:
        request = _request(trigger, condition, action)
    except ValueError as error:
        return SectionView(no_update, no_update, no_update, str(error), no_update)
    try:
        state, problem = _ask(desk, run, request)
    except UnreachableError as error:
        shown = str(error) if is_addition else ""
        return SectionView(watchpoint_list(None, f"{error}."), "", True, shown, no_update)
    if is_addition and problem:
        # What is wrong with the condition stands at the field, and what was typed stays.
        return SectionView(watchpoint_list(state), count_text(state), not _paused(state), problem, no_update)
    typed = "" if is_addition else no_update
    return SectionView(watchpoint_list(state, problem), count_text(state), not _paused(state), "", typed)


def _request(trigger: Any, condition: Any, action: Any) -> Request:
    """Make the request of a click.

    Raises:
        ValueError: the condition cannot be read; says where.
    """
    if trigger in (ids.WATCHPOINT_ADD, ids.WATCHPOINT_CONDITION):
        text = condition if isinstance(condition, str) else ""
        chosen: Action = next((one for one in ACTIONS if one == action), ACTIONS[0])
        WatchpointOptions(condition=text, action=chosen)
        return AddWatchpoint(condition=text, action=chosen)
    if trigger == ids.WATCHPOINT_RESUME:
        return Resume()
    if isinstance(trigger, dict) and isinstance(trigger.get("name"), str):
        return RemoveWatchpoint(name=trigger["name"][:200])
    return AskState()


def _ask(desk: ControlDesk, run: str, request: Request) -> tuple[TrainerState | None, str]:
    answers = desk.ask(run, request, source="browser")
    states = [one.answer.state for one in answers if one.answer is not None]
    problems = [one.answer.problem for one in answers if one.answer is not None and one.answer.problem]
    if not states:
        return None, "The training does not answer: it is stopped or busy in C code."
    paused = [state for state in states if state.is_paused]
    return (paused or states)[0], problems[0] if problems else ""


def _paused(state: TrainerState | None) -> bool:
    return state is not None and state.is_paused
