"""What `dashboard doctor` finds, on the page: a button, and a table for each side. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dash import html
from dash.development.base_component import Component

from probe.wire.findings import Finding

from ... import ids

LOOKING: Final = "Checking what recording needs, in a process that imports torch. This takes a few seconds."


def doctor_section() -> Component:
    """Return the section, empty: nothing is checked until somebody asks."""
    return html.Section(
        [
            html.H2("Doctor"),
            html.Div(
                [
                    html.Button("Check this machine", id=ids.DOCTOR_ASK, className="ns-button", n_clicks=0),
                    html.Span(
                        [
                            "As ",
                            html.Code("dashboard doctor"),
                            ": libraries, folders, ports, and what works with torch here.",
                        ],
                        className="ns-small",
                    ),
                ],
                className="ns-doctor-ask",
            ),
            html.Div(id=ids.DOCTOR_SERVING),
            html.Div(id=ids.DOCTOR_RECORDING),
            html.P(id=ids.DOCTOR_SAID, className="ns-small", role="status"),
        ],
        **{"aria-label": "Doctor"},
    )


def findings_table(title: str, found: Sequence[Finding]) -> Component:
    """Return a side's findings: state, what it is about, what was found and what follows."""
    rows = [
        html.Tr(
            [
                html.Td(one.state, className=f"ns-doctor-{one.state}"),
                html.Th(one.name, scope="row"),
                html.Td([one.found, *([html.Div(one.advice, className="ns-small")] if one.advice else [])]),
            ]
        )
        for one in found
    ]
    heads = html.Tr([html.Th(head, scope="col") for head in ("State", title, "Found")])
    return html.Table([html.Thead(heads), html.Tbody(rows)], className="ns-doctor")


def doctor_said(recording: Sequence[Finding]) -> str:
    """Return what comes of it for recording, in one sentence."""
    missing = [one for one in recording if one.state == "missing"]
    limited = [one.name for one in recording if one.state == "limited"]
    if missing:
        first = missing[0]
        return f"Nothing can be recorded here: {first.name}: {first.advice or first.found}"
    if limited:
        return f"Recording works. What is limited, and why, is listed above: {', '.join(limited)}."
    return "Recording works; nothing to do."
