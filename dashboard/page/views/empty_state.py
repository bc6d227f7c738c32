"""What the page shows before any run: how to attach a training script. Data in, component out."""

from __future__ import annotations

from typing import Final

from dash import html
from dash.development.base_component import Component

COMMAND: Final = "dashboard run train.py"
SNIPPET: Final = """import probe

run = probe.watch(model, optimizer)   # before the training loop
run.log(loss=loss)                    # optional, inside the loop"""


def empty_state(*, page: str, ingest: str) -> Component:
    """Tell how a run gets here: one command, or two lines in the script.

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
            html.H2("Run your script, as it is"),
            _copied(COMMAND, id_="command"),
            html.H2("Or add the probe to it, and start it in any way"),
            _copied(SNIPPET, id_="snippet"),
            html.P(
                [
                    "A script on this machine finds this page by itself. Probes ship to ",
                    html.Code(ingest),
                    "; this page is ",
                    html.Code(page),
                    ".",
                ]
            ),
            html.H2("No training at hand?"),
            html.P([html.Code("dashboard demo"), " trains a small real model beside the page."]),
        ],
        className="ns-empty-card",
        **{"aria-label": "How to attach a training script"},
    )


def _copied(code: str, *, id_: str) -> Component:
    return html.Div(
        [
            html.Pre(html.Code(code, id=id_), className="ns-snippet"),
            html.Button("Copy", className="ns-button ns-copy", **{"data-copy": id_}),
        ],
        className="ns-snippet-box",
    )
