"""What the page shows before any run: how to attach a training script. Data in, component out."""

from __future__ import annotations

from typing import Final

from dash import html
from dash.development.base_component import Component

SNIPPET: Final = """import probe

run = probe.watch(model, optimizer)   # before the training loop
run.log(loss=loss)                    # optional, inside the loop"""


def empty_state(*, page: str, ingest: str) -> Component:
    """Explain in three steps how a run gets here.

    Args:
        page: Address of this page, without the token.
        ingest: Address that probes ship to.
    """
    return html.Section(
        [
            html.H1("No run yet"),
            html.P(
                "This page listens and turns into charts by itself as soon as a training script attaches. "
                "Either order of starting is fine."
            ),
            html.H2("1. Add the probe to your training script"),
            html.Div(
                [
                    html.Pre(html.Code(SNIPPET, id="snippet"), className="ns-snippet"),
                    html.Button("Copy", className="ns-button ns-copy", **{"data-copy": "snippet"}),
                ],
                className="ns-snippet-box",
            ),
            html.H2("2. Run it"),
            html.P(
                [
                    "A script on this machine finds this page by itself. Probes ship to ",
                    html.Code(ingest),
                    "; this page is ",
                    html.Code(page),
                    ".",
                ]
            ),
            html.H2("Nothing at hand to train?"),
            html.P([html.Code("dashboard demo"), " trains a small real model beside the page."]),
        ],
        className="ns-empty-card",
        **{"aria-label": "How to attach a training script"},
    )
