"""The views of the page as tabs: which there are, the bar in the header, and what stands in each.

Built once per server; shown and hidden by `assets/ns_25_tabs.js`. Overview and Layers are one panel, whose
tracks stay in place: Layers shows the heatmap alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dash import html
from dash.development.base_component import Component

from .. import ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Tab:
    """One view."""

    id: str
    title: str
    panel: str
    """Id of the element that it shows."""
    charts: tuple[str, ...] = ()
    """Line charts that stand in it, see `views.chart_specs`."""


TABS: Final = (
    Tab(id="overview", title="Overview", panel=ids.TRACKS_PANEL),
    Tab(id="layers", title="Layers", panel=ids.TRACKS_PANEL),
    Tab(id="events", title="Events", panel="panel-events"),
    Tab(
        id="memory",
        title="Memory",
        panel="panel-memory",
        charts=("memory_kinds", "memory", "allocator", "memory_growth"),
    ),
    Tab(id="ranks", title="Ranks", panel="panel-ranks"),
    Tab(
        id="profile",
        title="Profile",
        panel="panel-profile",
        charts=("step_phases", "step_time", "steps_per_s", "samples_per_s"),
    ),
    Tab(id="runs", title="Runs", panel="panel-runs"),
    Tab(id="system", title="System", panel="panel-system", charts=("utilisation", "machine_memory")),
    Tab(id="controls", title="Controls", panel="panel-controls"),
)
_BY_ID: Final = {tab.id: tab for tab in TABS}


def tab_bar() -> Component:
    """Return the bar. One tab is in the order of the Tab key; arrows go to the others."""
    buttons = [
        html.Button(
            [tab.title, html.Span("", className="ns-tab-count", **{"data-count": tab.id})],
            id=f"tab-{tab.id}",
            className="ns-tab",
            role="tab",
            tabIndex="0" if tab is TABS[0] else "-1",
            **{"aria-controls": tab.panel, "aria-selected": str(tab is TABS[0]).lower(), "data-tab": tab.id},
        )
        for tab in TABS
    ]
    return html.Div(buttons, id=ids.TAB_BAR, className="ns-tabs", role="tablist", **{"aria-label": "Views"})


def tab_picker() -> Component:
    """Return the same as a select, for screens that the bar does not fit on."""
    options = [html.Option(tab.title, value=tab.id, id=f"tab-option-{tab.id}") for tab in TABS]
    return html.Select(options, id="tab-picker", className="ns-tab-picker", **{"aria-label": "View"})


def panel(tab: str, children: Sequence[Component]) -> Component:
    """Return the element that a tab shows; of several tabs with one element, the first one's.

    Args:
        tab: id of one of `TABS`.
        children: what stands in it.
    """
    shown = _BY_ID[tab]
    return html.Div(
        list(children),
        id=shown.panel,
        className="ns-charts ns-panel",
        role="tabpanel",
        hidden=tab != TABS[0].id,
        **{"aria-labelledby": f"tab-{tab}"},
    )


def charts_of(tab: str) -> tuple[str, ...]:
    """Return the line charts that stand in a tab."""
    return _BY_ID[tab].charts
