"""The watchpoints of a running training: a section with the list, and a line to add one. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from probe.delivery.control.control_messages import TrainerState, WatchpointState
from probe.delivery.control.rule_options import ACTIONS

from ... import ids

REMOVE: Final = "watchpoint-remove"
_ACTION_LABELS: Final = {
    "event": "make an event",
    "snapshot": "keep a snapshot",
    "bundle": "write a bundle",
    "pause": "pause the training",
    "profile": "profile the next steps",
}


def watchpoint_section() -> Component:
    """Return the section, empty; the callbacks fill it."""
    return html.Details(
        [
            html.Summary(
                ["Watchpoints ", html.Span(id=ids.WATCHPOINT_COUNT, className="ns-small")],
                id=ids.WATCHPOINT_SUMMARY,
                n_clicks=0,
            ),
            html.Div(
                [
                    _form(),
                    html.Div(id=ids.WATCHPOINT_LIST, role="status", **{"aria-live": "polite"}),
                ],
                className="ns-card ns-watchpoints",
            ),
        ],
        id="watchpoints",
        open=True,
        className="ns-logged",
    )


def _form() -> Component:
    return html.Div(
        [
            dmc.TextInput(
                id=ids.WATCHPOINT_CONDITION,
                label="When",
                placeholder='grad_norm("layers.3.*") > 8 * median',
                size="xs",
                className="ns-watchpoint-condition",
                autoComplete="off",
                spellCheck=False,
                n_submit=0,
                value="",
                error="",
            ),
            dmc.Select(
                id=ids.WATCHPOINT_ACTION,
                label="Then",
                data=[{"value": action, "label": _ACTION_LABELS[action]} for action in ACTIONS],
                value="event",
                allowDeselect=False,
                size="xs",
                withScrollArea=False,
            ),
            html.Button("Add", id=ids.WATCHPOINT_ADD, className="ns-button", n_clicks=0),
            html.Button(
                "Resume training",
                id=ids.WATCHPOINT_RESUME,
                className="ns-button",
                n_clicks=0,
                hidden=True,
            ),
        ],
        className="ns-watchpoint-form",
    )


def watchpoint_list(state: TrainerState | None, problem: str = "") -> list[Component]:
    """Return one row for each watchpoint, or what there is to say instead.

    Args:
        state: of the trainer; None where nobody answers.
        problem: why nobody does, or what was not done.
    """
    said = [html.P(problem, className="ns-small")] if problem else []
    if state is None:
        return said
    if state.is_paused:
        step = "" if state.step is None else f" at step {state.step:,}"
        said.append(html.P(f"The training is paused{step}.", className="ns-watchpoint-paused"))
    if not state.watchpoints:
        return [*said, html.P("No watchpoints.", className="ns-small")]
    return [*said, html.Ul(_rows(state.watchpoints), className="ns-watchpoint-rows")]


def count_text(state: TrainerState | None) -> str:
    """What stands beside the section's title."""
    if state is None:
        return ""
    paused = ", paused" if state.is_paused else ""
    return f"{len(state.watchpoints):,}{paused}"


def _rows(watchpoints: Sequence[WatchpointState]) -> list[Component]:
    return [
        html.Li(
            [
                html.Code(one.condition),
                html.Span(
                    [_ACTION_LABELS.get(one.action, one.action), ", once" if one.once else "", _named(one)],
                    className="ns-small",
                ),
                html.Button(
                    "Remove",
                    id={"type": REMOVE, "name": one.name},
                    className="ns-link",
                    n_clicks=0,
                    **{"aria-label": f"Remove {one.name}"},
                ),
            ]
        )
        for one in watchpoints
    ]


def _named(one: WatchpointState) -> str:
    return "" if one.name in one.condition else f" ({one.name})"
