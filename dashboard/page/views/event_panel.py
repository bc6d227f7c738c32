"""The event panel: everything known about one event, as Dash components. Data in, component out.

All text comes from the training process and is passed as text children: never Markdown, never raw HTML.
Styled by `assets/event.css`. Called by the page's callbacks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from dash import html
from dash.development.base_component import Component

from probe.wire import Event, Severity, StackFrame, encode
from probe.wire.event_texts import kind_label

from ...store.protocol import RunSummary
from . import event_facts as facts
from .event_report import event_report
from .event_sparkline import HEIGHT, WIDTH, sparkline
from .event_stacks import stack_view
from .event_tables import data_table, tensor_table
from .evidence import Fact, evidence_facts, measure, neighbour_facts, neighbour_title, neighbour_word
from .source_buttons import source_buttons

COPY_LINK_ID: Final = "event-copy-link"
DOWNLOAD_ID: Final = "event-download"
LONG_HEADING: Final = 140
"""Characters from which on a heading is set smaller."""
SHOWN_LINES: Final = 8
SHOWN_CHARACTERS: Final = 1200
SHOWN_NUMBERS: Final = 12
"""So much of a message and so many numbers stand open; the rest is folded."""


def event_panel(event: Event | None, *, run: RunSummary | None = None, missing: str = "") -> Component:
    """Draw one event; without one, say how to choose one, and which one is `missing`.

    `run` turns the event's time into a time since the run's start. Its buttons are `event-copy-link` and
    `event-download`; every button with `data-text` copies that.
    """
    if event is None:
        lost = f"The event {missing} is not in this run. " if missing else ""
        return html.P(
            f"{lost}Click a marker or a row, or press n, to see an event here.", className="event-empty"
        )
    return html.Article(
        [
            _header(event, run),
            _actions(event),
            *_list_section(
                "Where", [*_facts(facts.place(event), facts.fault_frame(event)), *_affected(event)]
            ),
            *_list_section("What changed before", _moves(event)),
            *_list_section("Evidence", _evidence(event)),
            *_list_section("Tensors", tensor_table(event)),
            *_list_section("Data", data_table(event)),
            *_list_section("What to try", _advice(event)),
            *_list_section("Run the step again", _reproduction(event)),
            *_list_section("Stack traces", [stack_view(stack) for stack in facts.stacks(event)]),
        ],
        className=f"event-panel severity-{event.severity}",
        **{
            "aria-label": f"Event: {facts.heading(event)}",
            "data-event": event.id,
            "data-state": panel_state(event),
        },
    )


def panel_state(event: Event) -> str:
    """Name the state that the event is in, by its content: a panel that shows it needs no drawing."""
    return hashlib.blake2b(encode(event), digest_size=8).hexdigest()


def severity_badge(severity: Severity) -> Component:
    """Severity as shape and text."""
    icon = html.Span(facts.SEVERITY_ICONS[severity], **{"aria-hidden": "true"})
    return html.Span([icon, " ", severity], className=f"severity-badge severity-{severity}")


def _header(event: Event, run: RunSummary | None) -> Component:
    started = run.started if run is not None else None
    when = [f"step {event.step:,}", f"rank {event.rank}", facts.episode(event)]
    if event.micro_step is not None:
        when.insert(1, f"micro-step {event.micro_step}")
    time = html.Time(facts.relative_time(event.time, started), title=facts.absolute_time(event.time))
    return html.Header(
        [
            html.Div(
                [
                    severity_badge(event.severity),
                    html.Span(kind_label(event.kind), className="event-chip"),
                ],
                className="event-chips",
            ),
            html.H2(
                with_code(facts.heading(event)),
                className=f"event-headline{' long' if len(facts.heading(event)) > LONG_HEADING else ''}",
                id="event-headline",
                tabIndex="-1",
            ),
            html.P([f"{' · '.join(when)} · ", time], className="event-when"),
            *_message(facts.explanation(event)),
        ]
    )


def _message(lines: Sequence[str]) -> list[Component]:
    """The paragraphs of an explanation; what is more than a screen of it folded as one text."""
    end, left = 0, SHOWN_CHARACTERS
    while end < min(len(lines), SHOWN_LINES) and len(lines[end]) <= left:
        left -= len(lines[end])
        end += 1
    shown: list[Component] = [html.P(with_code(line), className="event-message") for line in lines[:end]]
    if end < len(lines):
        more = f"{len(lines) - end:,} more lines" if len(lines) - end > 1 else "The whole message"
        text = html.Pre("\n".join(lines[end:]), className="event-names event-long", tabIndex="0")
        shown.append(html.Details([html.Summary(more), text], className="event-more"))
    return shown


def _actions(event: Event) -> Component:
    report = {
        "data-text": event_report(event),
        "title": "Everything shown here as text, to paste into a message",
    }
    return html.Div(
        [
            html.Button("Copy link", id=COPY_LINK_ID, className="ns-button", type="button"),
            html.Button("Copy as text", className="ns-button", type="button", **report),
            html.Button("Download JSON", id=DOWNLOAD_ID, className="ns-button", type="button"),
        ],
        className="event-actions",
    )


def _list_section(title: str, children: Sequence[Component]) -> list[Component]:
    """A titled section, or nothing when there is nothing to say."""
    if not children:
        return []
    return [html.Section([html.H3(title), *children], className="event-section", **{"aria-label": title})]


def _facts(rows: Sequence[Fact], frame: StackFrame | None) -> list[Component]:
    """The facts; beside the line, which `frame` is, what copies and opens it."""
    if not rows:
        return []
    pairs = [(html.Dt(row.label), html.Dd(_value(row, frame), title=row.detail or None)) for row in rows]
    return [html.Dl([part for pair in pairs for part in pair], className="event-facts")]


def _value(row: Fact, frame: StackFrame | None) -> str | list[str | Component]:
    code = [html.Code(row.code, className="event-line")] if row.code else []
    if frame is not None and row.label in facts.LINE_LABELS:
        return [row.value, *code, source_buttons(frame)]
    return [row.value, *code] if code else row.value


def _affected(event: Event) -> list[Component]:
    if not (names := facts.affected(event)):
        return []
    summary = html.Summary(facts.affected_summary(event))
    return [
        html.Details(
            [summary, html.Pre("\n".join(names), className="event-names", tabIndex="0")],
            className="event-affected",
        )
    ]


def _moves(event: Event) -> list[Component]:
    if not (moves := facts.moves(event)):
        return []
    return [html.Ol([html.Li(move) for move in moves], className="event-moves")]


def _reproduction(event: Event) -> list[Component]:
    if (command := facts.replay_command(event)) is None:
        return []
    copy = {"data-text": command, "aria-label": "Copy the command"}
    return [
        html.Div(
            [
                html.Pre(command, className="event-names event-command", tabIndex="0"),
                html.Button("Copy", className="event-copy", type="button", **copy),
            ],
            className="event-command-box",
        ),
        html.P(
            "MODULE:FUNCTION names your function that builds the model. The folder can be "
            "copied to another machine."
        ),
    ]


def _evidence(event: Event) -> list[Component]:
    if not (rows := evidence_facts(event)):
        return []
    measured = measure(event)
    parts: list[Component] = [*_course(event), _table(measured.name, rows[:SHOWN_NUMBERS])]
    if more := rows[SHOWN_NUMBERS:]:
        parts.append(_folded(f"{len(more):,} more numbers", "number", measured.name, more))
    if neighbours := neighbour_facts(event):
        caption = measured.neighbours or measured.name
        parts.append(_folded(neighbour_title(event), neighbour_word(event), caption, neighbours))
    return parts


def _course(event: Event) -> list[Component]:
    """The course of its number; the folded table beside it is the alternative."""
    if (shown := sparkline(event)) is None:
        return []
    image = html.Img(src=shown.address, alt=shown.words, width=WIDTH, height=HEIGHT)
    return [html.Figure([image, html.Figcaption(shown.caption)], className="event-spark")]


def _folded(title: str, first: str, caption: str, rows: Sequence[Fact]) -> Component:
    return html.Details(
        [html.Summary(title), _table(caption, rows, first=first)], className="event-neighbours"
    )


def _table(caption: str, rows: Sequence[Fact], *, first: str = "number") -> Component:
    return html.Table(
        [
            html.Thead(html.Tr([html.Th(first, scope="col"), html.Th(caption, scope="col")])),
            html.Tbody(
                [
                    html.Tr([html.Th(row.label, scope="row"), html.Td(row.value, title=row.detail or None)])
                    for row in rows
                ]
            ),
        ],
        className="event-evidence",
    )


def _advice(event: Event) -> list[Component]:
    if not event.advice:
        return []
    return [html.Ul([html.Li(with_code(line)) for line in event.advice], className="event-advice")]


def with_code(text: str) -> list[str | Component]:
    """Text in which what stands between backticks is code."""
    return [html.Code(part) if is_code else part for part, is_code in facts.code_parts(text)]
