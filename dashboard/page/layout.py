"""The page's skeleton: header, verdict, the views, and the panels beside them.

Built once per server, on the thread that starts it. Everything that changes is filled in by the scripts in
`assets/` (live data) and by the callbacks (events).
"""

from __future__ import annotations

from typing import Any, Final

import dash_mantine_components as dmc
from dash import dcc, html
from dash.development.base_component import Component

from probe.wire import SEVERITIES

from .. import ids
from .asides import event_aside, row_aside
from .axis_kinds import axis_kinds
from .header import header, verdict_line
from .icicle_panel import icicle_panel
from .layers_tools import filter_and_sort, layers_overlay, scale_choice
from .ranks_panel import ranks_panel
from .tabs import TABS, charts_of, panel
from .views.chart_specs import CHARTS, LOGGED, ChartSpec
from .views.charts import LOG_RATIO
from .views.controls import controls_section
from .views.dialogs import editor_dialog, palette, toast, value_table, views_dialog
from .views.empty_state import empty_state
from .views.event_facts import SEVERITY_ICONS
from .views.event_table import event_list
from .views.export_dialog import export_dialog
from .views.heatmap import CIVIDIS
from .views.heatmap_statistics import GROUPS, STATISTICS
from .views.key_sheet import key_sheet
from .views.magnitude_facts import magnitude_axis
from .views.memory_panel import memory_panel
from .views.note_sections import note_dialog, note_list, note_undo
from .views.profile_section import profile_form
from .views.run_actions import run_actions_section
from .views.runs_section import runs_section
from .views.system_panel import system_panel
from .views.theme import THEMES, Theme, colours
from .views.tiles import TILES
from .views.watchpoint_panel import watchpoint_section


def page_layout(*, page: str, ingest: str) -> Component:
    """Return the whole page.

    Args:
        page: Address of the page, without the token.
        ingest: Address that probes ship to.
    """
    return dmc.MantineProvider(
        [
            *_stores(),
            html.A("Skip to the charts", href="#charts", className="ns-skip"),
            header(),
            verdict_line(),
            html.Div(id="notice", className="ns-notice", hidden=True, role="status"),
            html.Div(
                [
                    html.Main(
                        [
                            html.Div(
                                empty_state(page=page, ingest=ingest),
                                id=ids.EMPTY_STATE,
                                className="ns-empty",
                                hidden=True,
                            ),
                            html.Div("Connecting to the dashboard", id="connecting", role="status"),
                            _charts(),
                        ],
                        className="ns-main",
                    ),
                    event_aside(),
                    row_aside(),
                ],
                className="ns-body",
            ),
            html.Div(id="announcer", className="ns-hidden", role="status", **{"aria-live": "polite"}),
            html.Div(id="runs-undo", className="ns-runs-undo", role="status"),
            note_undo(),
            note_dialog(),
            html.Div(id="tooltip", className="ns-tooltip", hidden=True),
            key_sheet(),
            export_dialog(),
            palette(),
            value_table(),
            toast(),
            views_dialog(),
            editor_dialog(),
        ],
        id=ids.PROVIDER,
        theme={"fontFamily": "inherit", "primaryColor": "blue"},
    )


TRACKS: Final = ("loss", "grad_norm")
"""Line charts that share the first screen with the heatmap; what else a run has stands below it."""


def page_facts() -> dict[str, Any]:
    """Return what the scripts draw with: the charts that there are, colours of both themes, statistics."""
    return {
        "themes": {theme: {"colours": _colours(theme)} for theme in THEMES},
        "charts": [_chart(spec) for spec in CHARTS],
        "logged": _chart(_ANY_LOGGED),
        "logRatio": LOG_RATIO,
        "cividis": list(CIVIDIS),
        "statistics": [
            {
                "id": each.id,
                "label": each.label,
                "title": each.title,
                "scale": each.scale,
                "of": each.of,
                "unit": each.unit,
                "isCount": each.is_count,
            }
            for each in STATISTICS
        ],
        "tracks": list(TRACKS),
        "magnitudes": magnitude_axis(),
    }


_ANY_LOGGED: Final = ChartSpec(id=LOGGED, title="", unit="", names=(), labels={}, prefix=LOGGED)


def _chart(spec: ChartSpec) -> dict[str, Any]:
    return {
        "id": spec.id,
        "title": spec.title,
        "unit": spec.unit,
        "names": list(spec.names),
        "labels": dict(spec.labels),
        "prefix": spec.prefix,
        "marks": {name: {"isCount": mark.is_count} for name, mark in spec.marks.items()},
        "log": spec.log,
        "always": spec.always,
        "stacked": spec.stacked,
    }


def _colours(theme: Theme) -> dict[str, Any]:
    palette = colours(theme)
    return {
        "nan": palette.nan,
        "inf": palette.inf,
        "unmeasured": palette.unmeasured,
        "gap": palette.gap,
        "grid": palette.grid,
        "text": palette.text,
        "muted": palette.muted,
        "series": list(palette.series),
        "kinds": list(palette.kinds),
        "severities": [palette.severity(severity) for severity in SEVERITIES],
    }


def _stores() -> list[Component]:
    return [
        dcc.Store(id=ids.TEMPLATES, data=page_facts()),
        dcc.Store(id=ids.BOOTED),
        dcc.Store(id=ids.SELECTION),
        dcc.Store(id=ids.EVENT_ROWS_SCOPE),
        dcc.Store(id=ids.EVENT_ROWS),
        dcc.Store(id=ids.ROW_SCOPE),
        dcc.Store(id=ids.ROW_NAMES),
        dcc.Store(id=ids.ROW_HISTOGRAMS),
        dcc.Store(id=ids.ROW_TRACKS_SCOPE),
        dcc.Store(id=ids.ROW_TRACKS),
        dcc.Store(id=ids.MODULE_TIMES_SCOPE),
        dcc.Store(id=ids.MODULE_TIMES),
        dcc.Store(id=ids.DOCUMENTS_SCOPE),
        dcc.Store(id=ids.MEMORY_SCOPE),
        dcc.Store(id=ids.SYSTEM_SCOPE),
        dcc.Store(id=ids.DOCTOR_NEXT),
    ]


def _charts() -> Component:
    plots = {spec.id: _track(spec) for spec in CHARTS if spec.id not in TRACKS}
    placed = {chart for tab in TABS for chart in tab.charts}
    own = [plot for id_, plot in plots.items() if id_ not in placed]

    def charts(tab: str) -> list[Component]:
        return [plots[id_] for id_ in charts_of(tab)]

    return html.Div(
        [
            html.Div(id="no-step", className="ns-card ns-no-step", hidden=True, role="status"),
            html.Div(
                [
                    panel("overview", [_tracks(), *own, html.Div(id="pinned"), _logged_section()]),
                    panel("events", [note_list(), event_list()]),
                    panel("memory", memory_panel(charts("memory"))),
                    panel("ranks", ranks_panel()),
                    panel("profile", _profile(charts("profile"))),
                    panel("runs", runs_section()),
                    panel(
                        "system",
                        system_panel([_tile(id_, label) for id_, label in TILES], charts("system")),
                    ),
                    panel("controls", [run_actions_section(), controls_section(), watchpoint_section()]),
                ],
                id="step-charts",
            ),
        ],
        id=ids.CHARTS,
        hidden=True,
        tabIndex=-1,
    )


def _profile(charts: list[Component]) -> list[Component]:
    """The phases of a step, its modules, then the other charts."""
    return [charts[0], icicle_panel(), *charts[1:], profile_form(), html.Div(id=ids.DOCUMENTS_PROFILE)]


def _tracks() -> Component:
    """What shares one screen and one step axis: lines, heatmap and events, with their values in the gutter.

    The line of the crosshair and that of a fault's origin lie over all of them (`assets/ns_45_crosshair.js`).
    """
    return html.Div(
        [
            _axis_row(),
            *(_track(spec) for spec in CHARTS if spec.id in TRACKS),
            _heatmap_card(),
            _timeline(),
            html.Div(id="origin-line", className="ns-origin-line", hidden=True),
            html.Div(id="crosshair", className="ns-crosshair", hidden=True),
            html.Div(
                [html.Span(), html.Span(className="ns-crosshair-time")],
                id="crosshair-step",
                className="ns-crosshair-step",
                hidden=True,
            ),
            html.Div(id="drag-selection", className="ns-selection", hidden=True),
        ],
        id="tracks",
        className="ns-tracks",
        role="group",
        tabIndex=0,
        **{"aria-label": "Charts over steps; arrow keys read the values of a step"},
    )


def _axis_row() -> Component:
    """The newest step, and the whole run with the part that is shown."""
    step = html.Div(
        ["Step ", html.Span("\u2013", className="ns-tile-value")], id="tile-step", className="ns-gutter"
    )
    strip = html.Canvas(
        id="strip",
        className="ns-strip",
        role="slider",
        tabIndex=0,
        title="Drag to choose steps; double click for all of them",
        **{"aria-label": "Steps that are shown, of the whole run"},
    )
    reset = html.Button(
        ["Reset ", html.Kbd("0")],
        id=ids.RESET_BUTTON,
        className="ns-button",
        title="Show the whole range again (0)",
    )
    return html.Div([step, reset, strip], className="ns-axis-row")


def _track(spec: ChartSpec) -> Component:
    """A line chart with its name and newest value at the left; under the crosshair, the value there."""
    gutter = html.Div(
        [
            html.Div(spec.title, className="ns-track-name", title=spec.title),
            html.Div(
                [
                    html.Span("\u2013", className="ns-tile-value"),
                    html.Span(spec.unit, className="ns-tile-unit"),
                ],
                className="ns-tile-line",
            ),
            html.Div("", className="ns-tile-detail"),
            html.Div(id=f"legend-{spec.id}", className="ns-track-legend"),
        ],
        id=f"gutter-{spec.id}",
        className="ns-gutter",
    )
    return html.Div(
        [html.Div(id=f"plot-{spec.id}", className="ns-plot"), gutter],
        className="ns-card ns-track",
        role="group",
        **{"data-chart": spec.id, "aria-label": f"{spec.title} over steps"},
    )


def _timeline() -> Component:
    """The lanes of the events, the axis of all tracks at their foot, and what that axis counts."""
    lanes = [
        html.Div(
            [
                html.Span(f"{SEVERITY_ICONS[severity]} ", className=f"ns-lane-{severity}"),
                severity,
                html.Span(),
            ]
        )
        for severity in SEVERITIES
    ]
    return html.Div(
        [
            html.Div(id="plot-timeline", className="ns-plot"),
            html.Div(id="timeline-markers", className="ns-markers"),
            html.Div(lanes, id="timeline-names", className="ns-lanes"),
            axis_kinds("axis"),
        ],
        className="ns-card ns-track",
        role="group",
        **{"data-chart": "timeline", "aria-label": "Events over steps"},
    )


def _logged_section() -> Component:
    """Folded; the scripts fill it with one card for each series that the user logs."""
    return html.Details(
        [
            html.Summary(["Logged values ", html.Span(id="logged-count", className="ns-small")]),
            html.Div(id="logged-charts", className="ns-charts"),
        ],
        id="logged",
        className="ns-logged",
        hidden=True,
    )


def _heatmap_card() -> Component:
    """Canvas below, axes over it, names of layers as buttons on the left, colour scale on the right."""
    return html.Div(
        [
            html.Canvas(id="heatmap-canvas", **{"aria-hidden": "true"}),
            html.Div(id="plot-heatmap", className="ns-plot"),
            html.Div(id="origin-mark", className="ns-origin-mark", hidden=True),
            html.Div(id="heatmap-labels", className="ns-labels"),
            html.Div(id="heatmap-scale", className="ns-scale"),
            *layers_overlay(),
            html.Div(
                [
                    *filter_and_sort(),
                    html.Select(
                        _statistic_options(),
                        id="heatmap-select",
                        className="ns-heading",
                        title="What the heatmap shows",
                        **{"aria-label": "What the heatmap shows"},
                    ),
                    html.Button(
                        "Histograms",
                        id="row-open",
                        className="ns-link",
                        title="How large the elements of a parameter, layer or module are; a click on a row "
                        "of the heatmap shows it, too",
                        hidden=True,
                    ),
                    scale_choice(),
                    html.Div(id="heatmap-facts", className="ns-facts"),
                ],
                className="ns-crumbs",
            ),
        ],
        className="ns-card ns-track ns-heatmap",
        role="group",
        **{"data-chart": "heatmap", "aria-label": "Heatmap of layers or modules over steps"},
    )


def _statistic_options() -> list[Component]:
    return [
        html.Optgroup(
            [html.Option(each.title, value=each.id) for each in STATISTICS if each.group == group],
            label=group,
        )
        for group in GROUPS
    ]


def _tile(id_: str, label: str) -> Component:
    return html.Div(
        [
            html.Div(label, className="ns-tile-label"),
            html.Div(
                [html.Span("\u2013", className="ns-tile-value"), html.Span("", className="ns-tile-unit")],
                className="ns-tile-line",
            ),
            html.Div("", className="ns-tile-detail"),
        ],
        id=f"tile-{id_}",
        className="ns-tile",
    )
