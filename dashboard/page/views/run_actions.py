"""The section that changes a run: another level, deletion. Pure: facts of the run in, texts out."""

from __future__ import annotations

from typing import Final

import dash_mantine_components as dmc
from dash import dcc, html
from dash.development.base_component import Component

from probe.settings.levels import LEVELS

from ... import ids

ENDED: Final = {
    "finished": "This run has ended",
    "exception": "This run was ended by an exception",
    "killed": "This run was killed",
}
"""State of a run that nobody can ask for anything -> what is said of it."""
_LEVEL_NOTES: Final = {
    "off": "off: nothing is recorded",
    "basic": "basic: at most 2 % of a step",
    "advanced": "advanced: at most 10 %",
    "extreme": "extreme: at most 25 %",
}


def run_actions_section() -> Component:
    """Return the section; its callbacks fill in what the shown run allows."""
    return html.Details(
        [
            html.Summary("Level, deletion", id=ids.ACTIONS_SUMMARY, n_clicks=0),
            html.Div([*_level_form(), *_delete_form()], className="ns-card ns-watchpoints"),
            dcc.Store(id=ids.ACTIONS_SCOPE),
            dcc.Store(id=ids.DELETE_ASKED),
        ],
        id="run-actions",
        open=True,
        className="ns-logged",
    )


def level_reason(state: str | None) -> str:
    """Return why the level cannot be changed; empty where the trainers can be asked.

    Args:
        state: of the run; None where none is shown.
    """
    if state is None:
        return "No run is shown."
    return f"The level cannot be changed: {ENDED[state]}." if state in ENDED else ""


def delete_reason(state: str | None, *, is_starred: bool) -> str:
    """Return why a run cannot be deleted; empty where it can.

    Args:
        state: of the run; None where none is shown.
        is_starred: whether somebody keeps it.
    """
    if state is None:
        return "No run is shown."
    if state == "running":
        return (
            "The run cannot be deleted: it is still being written. It can be deleted once its "
            "training has ended."
        )
    return "The run cannot be deleted: it is starred. Take the star off first." if is_starred else ""


def _level_form() -> list[Component]:
    choice = dmc.Select(
        id=ids.LEVEL_CHOICE,
        label="Level",
        data=[{"value": level, "label": _LEVEL_NOTES[level]} for level in LEVELS],
        value=None,
        placeholder="level",
        allowDeselect=False,
        size="xs",
        withScrollArea=False,
        disabled=True,
    )
    button = html.Button("Set the level", id=ids.LEVEL_SET, className="ns-button", n_clicks=0, disabled=True)
    return [html.Div([choice, button], className="ns-watchpoint-form"), _said(ids.LEVEL_SAID)]


def _delete_form() -> list[Component]:
    ask = html.Button(
        "Delete this run\u2026", id=ids.DELETE_ASK, className="ns-button", n_clicks=0, disabled=True
    )
    confirm = html.Div(
        [
            html.P(id=ids.DELETE_QUESTION),
            html.Button("Delete for good", id=ids.DELETE_CONFIRM, className="ns-button", n_clicks=0),
            " ",
            html.Button("Keep it", id=ids.DELETE_KEEP, className="ns-button", n_clicks=0),
        ],
        id=ids.DELETE_DIALOG,
        hidden=True,
        role="alertdialog",
        **{"aria-labelledby": ids.DELETE_QUESTION},
    )
    return [html.Div(ask), confirm, _said(ids.DELETE_SAID)]


def delete_question(run: str, name: str) -> str:
    """Return what is asked before a run is deleted."""
    return (
        f"Delete {name} ({run})? Its numbers, events and journals go, from the dashboard and from this "
        "machine's spool. This cannot be undone."
    )


def _said(id_: str) -> Component:
    return html.P("", id=id_, className="ns-small", role="status", **{"aria-live": "polite"})
