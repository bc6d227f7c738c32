"""The view of memory, empty: charts, then what the callbacks fill in. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dash import html
from dash.development.base_component import Component

from ... import ids


def memory_panel(charts: Sequence[Component]) -> list[Component]:
    """Return what stands in the view.

    Args:
        charts: the cards of its line charts.
    """
    details = html.Div(id=ids.MEMORY_DETAILS, className="ns-memory-details")
    return [*charts, details, html.Div(id=ids.DOCUMENTS_MEMORY)]
