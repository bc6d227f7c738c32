"""The callback of the form that asks for a profile: asks every rank. On callback threads."""

from __future__ import annotations

from typing import Any, NamedTuple

from dash import Dash, Input, Output, State

from probe.delivery.control.control_messages import Profile
from probe.wire.profiles import MAX_STEPS

from ... import ids
from ...ingest.control_desk import ControlDesk, UnreachableError


class FormView(NamedTuple):
    """What the form says, in the order of the callback's outputs."""

    said: str
    error: str


def register_profiles(app: Dash, desk: ControlDesk) -> None:
    """Register the callback."""

    def ask(_: Any, steps: Any, run: Any) -> FormView:
        return ask_for_profile(desk, run, steps)

    app.callback(
        Output(ids.PROFILE_SAID, "children"),
        Output(ids.PROFILE_STEPS, "error"),
        Input(ids.PROFILE_ASK, "n_clicks"),
        State(ids.PROFILE_STEPS, "value"),
        State(ids.RUN_SELECT, "value"),
        prevent_initial_call=True,
    )(ask)


def ask_for_profile(desk: ControlDesk, run: Any, steps: Any) -> FormView:
    """Ask the trainers of a run, and return what the form says then."""
    if not isinstance(run, str) or not run:
        return FormView("No run is shown.", "")
    if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= MAX_STEPS:
        return FormView("", f"Enter a whole number from 1 to {MAX_STEPS}.")
    try:
        answers = desk.ask(run, Profile(steps=steps), source="browser")
    except UnreachableError as error:
        return FormView(f"Not asked: {error}.", "")
    problems = [one.answer.problem for one in answers if one.answer is not None and one.answer.problem]
    if problems:
        return FormView(f"Not profiled: {problems[0]}.", "")
    if all(one.answer is None for one in answers):
        return FormView("The training does not answer: it is stopped or busy in C code.", "")
    what = "step is" if steps == 1 else f"{steps} steps are"
    return FormView(f"The next {what} profiled. The result appears under Profiles, and as an event.", "")
