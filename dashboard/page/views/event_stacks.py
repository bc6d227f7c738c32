"""The stacks of an event as components: innermost frame first, the script's own before library frames.

Text of the training's files is passed as text children. Called by the event panel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from dash import html
from dash.development.base_component import Component

from probe.wire import StackFrame
from probe.wire.libraries import first_own

from . import event_facts as facts
from .event_report import traceback_text
from .source_buttons import source_buttons
from .source_lines import SourceLine, current_line, is_library, source_lines

HIGHLIGHTED_FRAMES: Final = 8
FOLDING_FRAMES: Final = 32
"""So many frames of a stack have coloured source, so many unfold one by one; the rest is one text. Dash needs
a minute for 6,000 components, and a deep recursion would be tens of thousands."""


def stack_view(stack: facts.Stack) -> Component:
    """Draw a stack: of the script's own frames the innermost unfolded, runs of library frames as one."""
    copy = html.Button(
        "Copy",
        className="event-copy",
        type="button",
        **{"data-text": traceback_text(stack.frames), "aria-label": f"Copy the {stack.title} stack as text"},
    )
    return html.Div(
        [
            html.H4([stack.title, html.Small(f" · {facts.STACK_ORDER}"), copy]),
            *_frames(stack.frames[:FOLDING_FRAMES]),
            *_rest(stack.frames[FOLDING_FRAMES:]),
        ],
        className="event-stack",
        **{"aria-label": f"{stack.title} stack, {facts.STACK_ORDER}", "role": "group"},
    )


def _frames(frames: Sequence[StackFrame]) -> Iterator[Component]:
    own = first_own(frames)
    numbered = list(enumerate(frames))
    for library, group in groupby(numbered, key=lambda pair: is_library(pair[1])):
        views = [
            _frame(frame, is_plain=number >= HIGHLIGHTED_FRAMES, is_open=frame is own)
            for number, frame in group
        ]
        if library and len(views) > 1:
            summary = html.Summary(f"{len(views)} library frames")
            yield html.Details([summary, *views], className="event-frame library event-frames")
        else:
            yield from views


def _frame(frame: StackFrame, *, is_plain: bool, is_open: bool) -> Component:
    """One frame. Folded, it is two lines as in a traceback: the place, and the code that ran there."""
    library = is_library(frame)
    code = current_line(frame)
    summary = html.Summary(
        [
            html.Span(facts.frame_label(frame)),
            *([html.Small(" library")] if library else []),
            *([html.Code(code, className="event-line")] if code else []),
        ],
        title=f"{frame.file}:{frame.line}",
    )
    lines = source_lines(frame)
    body: Component = html.P("The source of this frame could not be read.")
    if lines:
        plain = html.Pre(_plain_text(frame), className="source", tabIndex="0")
        body = plain if library or is_plain else _source(lines)
    return html.Details(
        [
            summary,
            html.Div([f"{frame.file}:{frame.line} ", source_buttons(frame)], className="event-path"),
            body,
        ],
        open=is_open,
        className="event-frame library" if library else "event-frame",
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
