"""The event panel: everything known about one event, as Dash components. Data in, component out.

All text comes from the training process and is passed as text children: never Markdown, never raw HTML.
Styled by `assets/event.css`. Called by the page's callbacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from probe.wire import Event, Severity, StackFrame

from ..store.protocol import RunSummary
from . import event_facts as facts
from .source_lines import SourceLine, is_library, source_lines

COPY_LINK_ID: Final = "event-copy-link"
DOWNLOAD_ID: Final = "event-download"


def event_panel(event: Event | None, *, run: RunSummary | None = None) -> Component:
    """Draw one event; without one, say how to choose one.

    `run` turns the event's time into a time since the run's start. Its buttons are `event-copy-link` and
    `event-download`.
    """
    if event is None:
        return html.P("Click a marker or a row, or press n, to see an event here.", className="event-empty")
    return html.Article(
        [
            _header(event, run),
            _actions(),
            *_list_section("Where", [_facts(facts.place(event)), *_propagated(event)]),
            *_list_section("Evidence", _evidence(event)),
            *_list_section("Stack traces", [_stack(stack) for stack in facts.stacks(event)]),
            *_list_section("What to try", _advice(event)),
        ],
        className=f"event-panel severity-{event.severity}",
        **{"aria-label": f"Event: {facts.headline(event)}", "data-event": event.id},
    )


def severity_badge(severity: Severity) -> Component:
    """Severity as shape and text."""
    icon = html.Span(facts.SEVERITY_ICONS[severity], **{"aria-hidden": "true"})
    return html.Span([icon, " ", severity], className=f"severity-badge severity-{severity}")


def _header(event: Event, run: RunSummary | None) -> Component:
    started = run.started if run is not None else None
    chips = [f"step {event.step:,}", f"rank {event.rank}", facts.kind_label(event.kind), facts.episode(event)]
    if event.micro_step is not None:
        chips.insert(1, f"micro-step {event.micro_step}")
    time = html.Time(
        facts.relative_time(event.time, started),
        title=facts.absolute_time(event.time),
        className="event-chip",
    )
    return html.Header(
        [
            html.Div(
                [
                    severity_badge(event.severity),
                    *(html.Span(chip, className="event-chip") for chip in chips),
                    time,
                ],
                className="event-chips",
            ),
            html.H2(facts.headline(event), className="event-headline", id="event-headline", tabIndex="-1"),
            *(html.P(line, className="event-message") for line in facts.explanation(event)),
        ]
    )


def _actions() -> Component:
    return html.Div(
        [
            dmc.Button("Copy link", id=COPY_LINK_ID, size="compact-sm", variant="light"),
            dmc.Button("Download JSON", id=DOWNLOAD_ID, size="compact-sm", variant="default"),
        ],
        className="event-actions",
    )


def _list_section(title: str, children: Sequence[Component]) -> list[Component]:
    """A titled section, or nothing when there is nothing to say."""
    if not children:
        return []
    return [html.Section([html.H3(title), *children], className="event-section", **{"aria-label": title})]


def _facts(rows: Sequence[facts.Fact]) -> Component:
    return html.Dl(
        [part for row in rows for part in (html.Dt(row.label), html.Dd(row.value, title=row.detail or None))],
        className="event-facts",
    )


def _propagated(event: Event) -> list[Component]:
    if not event.propagated_to:
        return []
    names = event.propagated_to
    summary = f"{len(names):,} affected: {names[0]}" + (" …" if len(names) > 1 else "")
    return [
        html.Details(
            [html.Summary(summary), html.Pre("\n".join(names), className="event-names")],
            className="event-affected",
        )
    ]


def _evidence(event: Event) -> list[Component]:
    rows = facts.evidence_facts(event)
    if not rows:
        return []
    table = _table(facts.quantity(event), rows)
    if not (neighbours := facts.neighbour_facts(event)):
        return [table]
    summary = html.Summary(f"The {len(neighbours):,} steps before")
    return [table, html.Details([summary, _table("step", neighbours)], className="event-neighbours")]


def _table(caption: str, rows: Sequence[facts.Fact]) -> Component:
    return html.Table(
        [
            html.Thead(html.Tr([html.Th("number", scope="col"), html.Th(caption, scope="col")])),
            html.Tbody(
                [
                    html.Tr([html.Th(row.label, scope="row"), html.Td(row.value, title=row.detail or None)])
                    for row in rows
                ]
            ),
        ],
        className="event-evidence",
    )


def _stack(stack: facts.Stack) -> Component:
    return html.Div(
        [
            html.H4([stack.title, html.Small(f" · {facts.STACK_ORDER}")]),
            *(_frame(frame) for frame in stack.frames),
        ],
        className="event-stack",
        **{"aria-label": f"{stack.title} stack, {facts.STACK_ORDER}", "role": "group"},
    )


def _frame(frame: StackFrame) -> Component:
    """One frame: the user's own code unfolded, library code folded."""
    library = is_library(frame)
    lines = source_lines(frame)
    summary = html.Summary(
        [html.Span(facts.frame_label(frame)), *([html.Small(" library")] if library else [])],
        title=f"{frame.file}:{frame.line}",
    )
    body = _source(lines) if lines else html.P("The source of this frame could not be read.")
    return html.Details(
        [summary, body], open=not library, className="event-frame library" if library else "event-frame"
    )


def _source(lines: Sequence[SourceLine]) -> Component:
    return html.Pre([_source_line(line) for line in lines], className="source", tabIndex="0")


def _source_line(line: SourceLine) -> Component:
    mark = "▶" if line.is_current else " "
    code = [html.Span(token.text, className=token.kind or None) for token in line.tokens]
    return html.Div(
        [html.Span(f"{mark}{line.number:>5} ", className="source-number"), html.Code([*code, "\n"])],
        className="source-line current" if line.is_current else "source-line",
        **({"aria-current": "true"} if line.is_current else {}),
    )


def _advice(event: Event) -> list[Component]:
    return (
        [html.Ul([html.Li(line) for line in event.advice], className="event-advice")] if event.advice else []
    )
