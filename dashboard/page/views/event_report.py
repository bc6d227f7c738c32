"""An event as plain text, to paste into a message or a bug report. Pure; called by the event panel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe.wire import Event, StackFrame
from probe.wire.event_texts import headline, kind_label

from . import event_facts as facts
from .event_values import data_facts, tensor_lines
from .evidence import Fact, evidence_facts, measure
from .source_lines import current_line
from .visible_text import LINES, visible_text


def event_report(event: Event) -> str:
    """Everything that the panel says of the event, stacks as Python writes them."""
    kind = f"{event.severity}, {kind_label(event.kind)}, {facts.episode(event)}"
    moment = f"step {event.step:,}, rank {event.rank} of run {event.run}, {facts.absolute_time(event.time)}"
    parts = [
        f"{headline(event)}\n{kind}\n{moment}",
        "\n".join(line for line in facts.explanation(event) if line != headline(event)),
        _titled("Where", [*_rows(facts.place(event)), *_affected(event)]),
        _titled("What changed before", facts.moves(event)),
        _titled(f"Evidence ({measure(event).name})", _rows(evidence_facts(event))),
        _titled("Tensors", tensor_lines(event)),
        _titled("Data", _rows(data_facts(event))),
        _titled("What to try", event.advice),
        _titled("Run the step again", filter(None, [facts.replay_command(event)])),
        *(f"{stack.title} stack\n{traceback_text(stack.frames)}" for stack in facts.stacks(event)),
    ]
    return visible_text("\n\n".join(part for part in parts if part) + "\n", keep=LINES)


def traceback_text(frames: Sequence[StackFrame]) -> str:
    """The frames, innermost first, as a traceback of Python's: innermost last."""
    lines = ["Traceback (most recent call last):"]
    for frame in reversed(frames):
        lines.append(f'  File "{frame.file}", line {frame.line}, in {frame.function}')
        if code := current_line(frame):
            lines.append(f"    {code}")
    return "\n".join(lines)


def _titled(title: str, lines: Iterable[str]) -> str:
    body = "\n".join(f"  {line}" for line in lines)
    return f"{title}\n{body}" if body else ""


def _rows(rows: Iterable[Fact]) -> list[str]:
    return [f"{row.label}: {row.value}{f'  {row.code}' if row.code else ''}" for row in rows]


def _affected(event: Event) -> list[str]:
    return [facts.affected_summary(event)] if facts.affected(event) else []
