"""The view of the system, empty: tiles and charts, then what the callbacks and the scripts fill in. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dash import html
from dash.development.base_component import Component

from ... import ids
from .doctor_section import doctor_section

RETENTION: Final = (
    "Of each run the newest 20,000 steps stay as they are, older ones pooled by 16 and more, but for 200 "
    "steps on either side of an event. Finished runs are deleted, the oldest first, where the spool becomes "
    "larger than its cap; starred ones and those that are still written stay."
)
"""As `store/retention.py` and `probe/delivery/spool_care.py` have it."""


def system_panel(tiles: Sequence[Component], charts: Sequence[Component]) -> list[Component]:
    """Return what stands in the view.

    Args:
        tiles: the numbers above the charts.
        charts: the cards of its line charts.
    """
    store = html.Section(
        [
            html.H2("Store"),
            html.P(id="storage", className="ns-small"),
            html.P(RETENTION, className="ns-small"),
        ],
        **{"aria-label": "Store"},
    )
    return [
        html.Div(list(tiles), className="ns-tiles"),
        *charts,
        html.Div(
            [
                html.Div(id=ids.SYSTEM_ACCOUNT, className="ns-system-account"),
                html.Div([store, doctor_section()], className="ns-system-account"),
            ],
            className="ns-system-sections",
        ),
        html.Div(id=ids.DOCUMENTS_SYSTEM),
    ]
