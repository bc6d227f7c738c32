"""Callbacks of the section that changes a run: its level, its deletion. On callback threads.

What a page shows may be old: what may be done is asked of the store again at each click.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from dash import Dash, Input, Output, State, ctx, no_update

from probe.delivery.control.control_messages import ChangeLevel
from probe.settings.levels import LEVELS

from ... import ids
from ...callers import view_only_reason
from ...ingest.control_desk import ControlDesk, UnreachableError
from ...ingest.run_removal import remove_runs, run_rows
from ...store.protocol import Store
from ...store.run_row import RunRow
from ..views.run_actions import delete_question, delete_reason, level_reason
from ..views.trainer_answers import answer_text

Text = Annotated[str, msgspec.Meta(max_length=4096)]


class ActionsScope(msgspec.Struct, frozen=True, kw_only=True):
    """What the scripts say of the run that is shown."""

    run: Text
    state: Text
    """Makes two askings differ; the store has the word."""
    level: Text
    before: Text | None = None
    """Level of the same run that was told before; None where this is the first."""


class SectionView(NamedTuple):
    """What the section shows, in the order of the callback's outputs."""

    level: Any
    level_disabled: Any
    set_disabled: Any
    level_said: Any
    delete_disabled: Any
    delete_said: Any


class DialogView(NamedTuple):
    """What the question shows, in the order of the callback's outputs."""

    hidden: bool
    question: str
    asked: str | None
    said: Any


def register_run_actions(
    app: Dash, store: Store, desk: ControlDesk, *, spool: Path | None, changed: Callable[[], None]
) -> None:
    """Register the callbacks.

    Args:
        app: Gets them.
        store: Has the runs.
        desk: Carries requests to trainers.
        spool: Where this machine's trainings write; a deleted run's folder goes there, too.
        changed: Called after a deletion.
    """

    def show(data: Any, _: Any, choice: Any) -> SectionView:
        return section_view(store, data, choice)

    def set_level(_: Any, level: Any, data: Any) -> Any:
        return ask_for_level(store, desk, data, level)

    def delete(_ask: Any, _confirm: Any, _keep: Any, data: Any, asked: Any) -> DialogView:
        return dialog_view(store, data, ctx.triggered_id, asked, spool=spool, changed=changed)

    app.callback(
        Output(ids.LEVEL_CHOICE, "value"),
        Output(ids.LEVEL_CHOICE, "disabled"),
        Output(ids.LEVEL_SET, "disabled"),
        Output(ids.LEVEL_SAID, "children"),
        Output(ids.DELETE_ASK, "disabled"),
        Output(ids.DELETE_SAID, "children"),
        Input(ids.ACTIONS_SCOPE, "data"),
        Input(ids.ACTIONS_SUMMARY, "n_clicks"),
        State(ids.LEVEL_CHOICE, "value"),
        prevent_initial_call=True,
    )(show)
    app.callback(
        Output(ids.LEVEL_SAID, "children", allow_duplicate=True),
        Input(ids.LEVEL_SET, "n_clicks"),
        State(ids.LEVEL_CHOICE, "value"),
        State(ids.ACTIONS_SCOPE, "data"),
        prevent_initial_call=True,
    )(set_level)
    app.callback(
        Output(ids.DELETE_DIALOG, "hidden"),
        Output(ids.DELETE_QUESTION, "children"),
        Output(ids.DELETE_ASKED, "data"),
        Output(ids.DELETE_SAID, "children", allow_duplicate=True),
        Input(ids.DELETE_ASK, "n_clicks"),
        Input(ids.DELETE_CONFIRM, "n_clicks"),
        Input(ids.DELETE_KEEP, "n_clicks"),
        State(ids.ACTIONS_SCOPE, "data"),
        State(ids.DELETE_ASKED, "data"),
        prevent_initial_call=True,
    )(delete)


def section_view(store: Store, data: Any, choice: Any = None) -> SectionView:
    """Return what the shown run allows; a malformed scope shows no run.

    Args:
        store: has the runs.
        data: scope of the page.
        choice: level that is chosen in the form now. One that somebody has chosen and not set yet stays.
    """
    scope = scope_of(data)
    row = row_of(store, scope.run) if scope is not None else None
    state = None if row is None else row.state
    stays = view_only_reason() or level_reason(state)
    kept = _stays(row)
    level = scope.level if scope is not None and scope.level in LEVELS else None
    said = stays or (f"The level is {level}." if level else "")
    is_own = scope is not None and scope.before is not None and choice not in (None, scope.before)
    return SectionView(no_update if is_own else level, bool(stays), bool(stays), said, bool(kept), kept)


def ask_for_level(store: Store, desk: ControlDesk, data: Any, level: Any) -> str:
    """Ask the trainers of the shown run for a level, and return what is said then."""
    scope = scope_of(data)
    row = row_of(store, scope.run) if scope is not None else None
    if row is None or (reason := level_reason(row.state)):
        return "No run is shown." if row is None else reason
    chosen = next((one for one in LEVELS if one == level), None)
    if chosen is None:
        return f"Choose a level: {', '.join(LEVELS)}."
    try:
        answers = desk.ask(row.run, ChangeLevel(level=chosen), source="browser")
    except UnreachableError as error:
        return f"Level unchanged: {error}."
    return answer_text(answers, done=f"The level is {chosen} from the next step on")


def dialog_view(
    store: Store,
    data: Any,
    trigger: Any,
    asked: Any,
    *,
    spool: Path | None,
    changed: Callable[[], None],
) -> DialogView:
    """Ask whether to delete, or do what was answered; only the run that the question named is deleted.

    Args:
        store: has the runs.
        data: scope of the page.
        trigger: id of the button that was clicked.
        asked: id of the run that the question was about.
        spool: see `register_run_actions`.
        changed: called after a deletion.
    """
    if trigger == ids.DELETE_ASK:
        scope = scope_of(data)
        row = row_of(store, scope.run) if scope is not None else None
        reason = _stays(row)
        if row is None or reason:
            return DialogView(True, "", None, reason)
        return DialogView(False, delete_question(row.run, row.name), row.run, "")
    if trigger == ids.DELETE_CONFIRM and isinstance(asked, str):
        return DialogView(True, "", None, _said_of(store, asked, spool=spool, changed=changed))
    return DialogView(True, "", None, no_update)


def delete_run(store: Store, run: str, *, spool: Path | None, changed: Callable[[], None]) -> str:
    """Delete a run that nobody writes or keeps; return why it stays, empty where it is gone.

    Args:
        store: has it.
        run: its id.
        spool: see `register_run_actions`.
        changed: called after a deletion.
    """
    row = row_of(store, run)
    if row is None:
        return "The run no longer exists."
    if reason := _stays(row):
        return reason
    refused = remove_runs(store, [run], spool=spool)
    changed()
    return f"The run stays: {refused[run]}." if refused else ""


def _said_of(store: Store, run: str, *, spool: Path | None, changed: Callable[[], None]) -> str:
    """Delete a run, and return what is said then."""
    row = row_of(store, run)
    problem = delete_run(store, run, spool=spool, changed=changed)
    return problem or f"{row.name if row else run} ({run}) is deleted."


def _stays(row: RunRow | None) -> str:
    return view_only_reason() or delete_reason(
        None if row is None else row.state, is_starred=row is not None and row.starred
    )


def scope_of(data: Any) -> ActionsScope | None:
    """Return which run the page shows; None for a malformed scope."""
    try:
        return msgspec.convert(data, ActionsScope)
    except msgspec.ValidationError:
        return None


def row_of(store: Store, run: str) -> RunRow | None:
    """Return what the store says of a run; None for one that it does not have."""
    return next((row for row in run_rows(store) if row.run == run), None)
