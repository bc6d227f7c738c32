"""One event as HTML for an exported page: the same facts and class names as the page's event panel.

Every piece of run text passes through `html_text`. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from probe.wire import Event, StackFrame
from probe.wire.event_texts import kind_label
from probe.wire.libraries import first_own

from ..page.views import event_facts as facts
from ..page.views.event_sparkline import SIZE, sparkline
from ..page.views.event_values import TENSOR_COLUMNS, data_facts, tensor_rows
from ..page.views.evidence import Fact, evidence_facts, measure, neighbour_facts, neighbour_title
from ..page.views.source_lines import SourceLine, current_line, is_library, source_lines
from ..page.views.visible_text import LINES
from ..page.views.visible_text import html_text as escape


def event_html(event: Event, *, started: float | None, stacks: bool = True) -> str:
    """Return a `<details>` that unfolds message, place, evidence, stacks with source and advice."""
    shown = facts.stacks(event) if stacks else ()
    sections = (
        ("Where", _facts(facts.place(event)) + _affected(event)),
        ("What changed before", _moves(event)),
        ("Evidence", _evidence(event)),
        ("Tensors", _tensors(event)),
        ("Data", _data(event)),
        ("What to try", _advice(event)),
        ("Run the step again", _reproduction(event)),
        ("Stack traces", "".join(map(_stack, shown))),
    )
    body = "".join(
        f'<section class="event-section"><h3>{title}</h3>{content}</section>'
        for title, content in sections
        if content
    )
    paragraphs = "".join(f'<p class="event-message">{_text(line)}</p>' for line in facts.explanation(event))
    return (
        f'<details class="event" id="event-{escape(event.id)}"><summary>{_badge(event)}'
        f'<span class="event-step">step {event.step:,}</span>'
        f'<span class="event-headline">{_text(facts.heading(event))}</span></summary>'
        f'<div class="event-panel">{paragraphs}{_chips(event, started)}{body}</div></details>'
    )


def _badge(event: Event) -> str:
    icon = facts.SEVERITY_ICONS[event.severity]
    return (
        f'<span class="severity-badge severity-{event.severity}">'
        f'<span aria-hidden="true">{icon}</span> {event.severity}</span>'
    )


def _chips(event: Event, started: float | None) -> str:
    texts = [f"rank {event.rank}", kind_label(event.kind), facts.episode(event), f"id {event.id}"]
    if event.micro_step is not None:
        texts.insert(1, f"micro-step {event.micro_step}")
    chips = "".join(f'<span class="event-chip">{escape(text)}</span>' for text in texts)
    absolute, relative = facts.absolute_time(event.time), facts.relative_time(event.time, started)
    return (
        f'<div class="event-chips">{chips}<time class="event-chip" title="{absolute}">{relative}</time></div>'
    )


def _facts(rows: Sequence[Fact]) -> str:
    pairs = "".join(
        f"<dt>{escape(row.label)}</dt><dd{_title(row.detail)}>{escape(row.value)}{_code(row.code)}</dd>"
        for row in rows
    )
    return f'<dl class="event-facts">{pairs}</dl>'


def _code(line: str) -> str:
    return f'<code class="event-line">{escape(line)}</code>' if line else ""


def _affected(event: Event) -> str:
    if not (affected := facts.affected(event)):
        return ""
    names = escape("\n".join(affected), keep=LINES)
    return (
        f"<details><summary>{escape(facts.affected_summary(event))}</summary>"
        f'<pre class="event-names">{names}</pre></details>'
    )


def _moves(event: Event) -> str:
    items = "".join(f"<li>{escape(move)}</li>" for move in facts.moves(event))
    return f'<ol class="event-moves">{items}</ol>' if items else ""


def _reproduction(event: Event) -> str:
    command = facts.replay_command(event)
    return "" if command is None else f'<pre class="event-names">{escape(command)}</pre>'


def _evidence(event: Event) -> str:
    rows = evidence_facts(event)
    if not rows:
        return ""
    measured = measure(event)
    table = _course(event) + _table(measured.name, rows)
    neighbours = neighbour_facts(event)
    if not neighbours:
        return table
    summary = f"<summary>{neighbour_title(event)}</summary>"
    return f"{table}<details>{summary}{_table(measured.neighbours or measured.name, neighbours)}</details>"


def _course(event: Event) -> str:
    if (shown := sparkline(event)) is None:
        return ""
    image = f'<svg role="img" aria-label="{escape(shown.words)}" {SIZE}>{shown.shapes}</svg>'
    return f'<figure class="event-spark">{image}<figcaption>{escape(shown.caption)}</figcaption></figure>'


def _tensors(event: Event) -> str:
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in cells)}</tr>'
        for name, *cells in tensor_rows(event)
    )
    head = "".join(f'<th scope="col">{column}</th>' for column in TENSOR_COLUMNS)
    table = f'<table class="event-evidence"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="event-wide" tabindex="0">{table}</div>' if body else ""


def _data(event: Event) -> str:
    return _table("value", rows, first="name") if (rows := data_facts(event)) else ""


def _table(caption: str, rows: Sequence[Fact], *, first: str = "number") -> str:
    body = "".join(
        f'<tr><th scope="row">{escape(row.label)}</th><td{_title(row.detail)}>{escape(row.value)}</td></tr>'
        for row in rows
    )
    head = f'<thead><tr><th scope="col">{first}</th><th scope="col">{escape(caption)}</th></tr></thead>'
    return f'<table class="event-evidence">{head}<tbody>{body}</tbody></table>'


def _stack(stack: facts.Stack) -> str:
    own = first_own(stack.frames)
    frames = "".join(_frame(frame, is_open=frame is own) for frame in stack.frames)
    return (
        f'<div class="event-stack"><h4>{stack.title}<small> · {facts.STACK_ORDER}</small></h4>{frames}</div>'
    )


def _frame(frame: StackFrame, *, is_open: bool) -> str:
    library = is_library(frame)
    lines = source_lines(frame)
    body = _source(lines) if lines else "<p>The source of this frame could not be read.</p>"
    return (
        f'<details class="event-frame{" library" if library else ""}"{" open" if is_open else ""}>'
        f"<summary{_title(f'{frame.file}:{frame.line}')}>{escape(facts.frame_label(frame))}"
        f"{' <small>library</small>' if library else ''}{_code(current_line(frame))}</summary>"
        f"{body}</details>"
    )


def _source(lines: Sequence[SourceLine]) -> str:
    return f'<pre class="source" tabindex="0">{"".join(map(_source_line, lines))}</pre>'


def _source_line(line: SourceLine) -> str:
    code = "".join(
        f'<span class="{token.kind}">{_code_text(token.text)}</span>'
        if token.kind
        else _code_text(token.text)
        for token in line.tokens
    )
    mark = "▶" if line.is_current else " "
    classes = "source-line current" if line.is_current else "source-line"
    number = f'<span class="source-number">{mark}{line.number:>5} </span>'
    return f'<div class="{classes}">{number}<code>{code}\n</code></div>'


def _code_text(text: str) -> str:
    return escape(text, keep=LINES)


def _advice(event: Event) -> str:
    if not event.advice:
        return ""
    return f'<ul class="event-advice">{"".join(f"<li>{_text(line)}</li>" for line in event.advice)}</ul>'


def _text(line: str) -> str:
    """Escaped, with code between backticks."""
    parts = facts.code_parts(line)
    return "".join(f"<code>{escape(part)}</code>" if is_code else escape(part) for part, is_code in parts)


def _title(detail: str) -> str:
    return f' title="{escape(detail)}"' if detail else ""
