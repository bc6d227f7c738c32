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
HIGHLIGHTED_FRAMES: Final = 8
FOLDING_FRAMES: Final = 32
"""So many frames of a stack have coloured source, so many unfold one by one; the rest is one text. Dash needs
a minute for 6,000 components, and a deep recursion would be tens of thousands."""


def event_panel(event: Event | None, *, run: RunSummary | None = None, missing: str = "") -> Component:
    """Draw one event; without one, say how to choose one, and which one is `missing`.

    `run` turns the event's time into a time since the run's start. Its buttons are `event-copy-link` and
    `event-download`.
    """
    if event is None:
        lost = f"The event {missing} is not in this run. " if missing else ""
        return html.P(
            f"{lost}Click a marker or a row, or press n, to see an event here.", className="event-empty"
        )
    return html.Article(
        [
            _header(event, run),
            _actions(),
            *_list_section("Where", [_facts(facts.place(event)), *_propagated(event)]),
            *_list_section("What moved first", _moves(event)),
            *_list_section("Evidence", _evidence(event)),
            *_list_section("Stack traces", [_stack(stack) for stack in facts.stacks(event)]),
            *_list_section("What to try", _advice(event)),
            *_list_section("Make the step again", _reproduction(event)),
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


def _moves(event: Event) -> list[Component]:
    if not (moves := facts.moves(event)):
        return []
    return [html.Ol([html.Li(move) for move in moves], className="event-moves")]


def _reproduction(event: Event) -> list[Component]:
    if (command := facts.replay_command(event)) is None:
        return []
    return [
        html.Pre(command, className="event-names", tabIndex="0"),
        html.P(
            "MODULE:FUNCTION is yours, and builds the model. The folder can be copied to another machine."
        ),
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
            *(
                _frame(frame, is_plain=number >= HIGHLIGHTED_FRAMES)
                for number, frame in enumerate(stack.frames[:FOLDING_FRAMES])
            ),
            *_rest(stack.frames[FOLDING_FRAMES:]),
        ],
        className="event-stack",
        **{"aria-label": f"{stack.title} stack, {facts.STACK_ORDER}", "role": "group"},
    )


def _rest(frames: Sequence[StackFrame]) -> list[Component]:
    """The outermost frames of a deep stack, folded as one."""
    if not frames:
        return []
    text = "\n\n".join(
        f"{frame.file}:{frame.line} in {frame.function}\n{_plain_text(frame)}" for frame in frames
    )
    summary = html.Summary(f"{len(frames):,} more frames")
    return [
        html.Details([summary, html.Pre(text, className="source", tabIndex="0")], className="event-frame")
    ]


def _frame(frame: StackFrame, *, is_plain: bool) -> Component:
    """One frame: the user's own code unfolded, library code and plain source folded."""
    library = is_library(frame)
    lines = source_lines(frame)
    summary = html.Summary(
        [html.Span(facts.frame_label(frame)), *([html.Small(" library")] if library else [])],
        title=f"{frame.file}:{frame.line}",
    )
    body: Component = html.P("The source of this frame could not be read.")
    if lines:
        plain = html.Pre(_plain_text(frame), className="source", tabIndex="0")
        body = plain if library or is_plain else _source(lines)
    return html.Details(
        [summary, body],
        open=not library and not is_plain,
        className="event-frame library" if library else "event-frame",
    )


def _source(lines: Sequence[SourceLine]) -> Component:
    return html.Pre([_source_line(line) for line in lines], className="source", tabIndex="0")


def _plain_text(frame: StackFrame) -> str:
    """The lines of a frame as one text."""
    return "\n".join(
        f"{_mark(line)}{line.number:>5} {''.join(token.text for token in line.tokens)}"
        for line in source_lines(frame)
    )


def _mark(line: SourceLine) -> str:
    return "▶" if line.is_current else " "


def _source_line(line: SourceLine) -> Component:
    code = [
        html.Span(token.text, className=token.kind) if token.kind else token.text for token in line.tokens
    ]
    return html.Div(
        [html.Span(f"{_mark(line)}{line.number:>5} ", className="source-number"), html.Code([*code, "\n"])],
        className="source-line current" if line.is_current else "source-line",
        **({"aria-current": "true"} if line.is_current else {}),
    )


def _advice(event: Event) -> list[Component]:
    return (
        [html.Ul([html.Li(line) for line in event.advice], className="event-advice")] if event.advice else []
    )
