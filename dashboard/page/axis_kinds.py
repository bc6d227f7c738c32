"""The buttons that choose what the x-axis counts: below the tracks, and in the view Ranks.

Built once per server; `assets/ns_38_axis.js` presses them, in every place at once.
"""

from __future__ import annotations

from typing import Final

from dash import html
from dash.development.base_component import Component

AXIS_KINDS: Final = (
    ("step", "step", "Count steps"),
    ("clock", "clock", "Show the time of day"),
    ("relative", "since start", "Show the time since the run began"),
)
"""(id, text, title) of what the x-axis can count."""


def axis_kinds(prefix: str) -> Component:
    """Return the buttons of one place; their ids are `prefix` and the kind's id."""
    kinds = [
        html.Button(
            text, id=f"{prefix}-{id_}", className="ns-axis-kind", title=title, **{"aria-pressed": "false"}
        )
        for id_, text, title in AXIS_KINDS
    ]
    return html.Div(
        kinds, className="ns-axis-kinds", role="group", **{"aria-label": "What the x-axis counts"}
    )
