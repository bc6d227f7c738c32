"""What is to be said about an event, as plain text: headline, place, spread, stacks, times.

The event panel, the table, the timeline, the export and `dashboard events` all take their words from here.
Pure functions on any thread; imports neither dash nor pandas.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from probe.wire import SEVERITIES, Event, Severity, StackFrame, is_in_derivative, message_lines
from probe.wire.causes import is_of_probe
from probe.wire.event_places import BEGAN, NOTICED, is_only_noticed
from probe.wire.event_texts import headline
from probe.wire.libraries import first_own

from .evidence import Fact
from .quantities import duration_text, number_text
from .source_lines import current_line, short_path

SEVERITY_ICONS: Final[dict[Severity, str]] = {"critical": "◆", "warning": "▲", "info": "●"}
"""The same shapes as the timeline's markers: severity is never told by colour alone."""
STACK_TITLES: Final[dict[str, str]] = {
    "forward": "Forward",
    "backward": "Backward",
    "training_loop": "Training loop",
}
LINE_LABELS: Final = ("Line", "Noticed at")
"""Of the fact that says which line to look at first."""
STACK_ORDER: Final = "innermost frame first"
HEADLINE_LENGTH: Final = 280
"""Characters of the first line that stand as a heading; a longer one goes on below."""
_SUBJECT_IS_TOLD: Final = frozenset(
    {
        "replayed",
        "cleared",
        "control",
        "level_changed",
        "throttled",
        "recovery",
        "exception",
        "out_of_memory",
        "high_anomaly_rate",
        "killed",
    }
)
"""Kinds whose subject is a key for the episode; the message has it in words."""
_SUMMARY_LENGTH: Final = 48
_CODE: Final = re.compile(r"`([^`\n]+)`")
_TENSOR: Final = re.compile(r"(input|output)( \d+)?: ")
_STAGES: Final = {
    "reduced": "averaged over ranks",
    "unscaled": "the GradScaler's scale taken out",
    "scaled": "with the GradScaler's scale",
    "shard": "this rank's part",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """One of an event's stacks as it is shown: innermost frame first, where the fault is."""

    title: str
    frames: tuple[StackFrame, ...]


def event_order(event: Event) -> tuple[bool, int, bool, float, int, str]:
    """Sort key: by step; a proven origin of any model first, then by time; at one moment by severity.

    What says nothing of training is last.
    """
    is_last = is_of_probe(event)
    is_proven = event.severity == "critical" and not is_only_noticed(event)
    is_proven = is_proven and event.origin is not None
    return is_last, event.step, not is_proven, event.time, SEVERITIES.index(event.severity), event.id


def heading(event: Event) -> str:
    """The headline, cut where it is too long to be one."""
    text = headline(event)
    return text if len(text) <= HEADLINE_LENGTH else f"{text[:HEADLINE_LENGTH].rstrip()} …"


def explanation(event: Event) -> tuple[str, ...]:
    """What the message says beyond the heading, without what the heading or a section of its own says."""
    first = headline(event)
    rest = (line for line in event.message.strip().splitlines()[1:] if line.strip())
    lines = tuple(line for line in rest if message_lines.is_plain(line) and not _is_said(line, event))
    return (first, *lines) if len(first) > HEADLINE_LENGTH else lines


def _is_said(line: str, event: Event) -> bool:
    if event.origin is not None and _TENSOR.match(line):
        return True
    return message_lines.why_no_line(line) is not None or headline(event).startswith(line.strip())


def moves(event: Event) -> list[str]:
    """What left its usual range before the event, the earliest first."""
    return message_lines.moves(event.message)


def replay_command(event: Event) -> str | None:
    """How to make the step again on any machine, where the run has written a bundle of it."""
    folder = message_lines.bundle(event.message)
    return None if folder is None else f"dashboard replay {shlex.quote(folder)} --entry MODULE:FUNCTION"


def code_parts(text: str) -> list[tuple[str, bool]]:
    """Split a text into (part, whether it is code), by what stands between backticks."""
    parts = _CODE.split(text)
    return [(part, bool(number % 2)) for number, part in enumerate(parts) if part]


def fault_frame(event: Event) -> StackFrame | None:
    """The line to look at first: the innermost of the user's own, forward before backward before loop.

    Where a derivative of the user's own went wrong, its line comes first.
    """
    stacks = [event.stacks.forward, event.stacks.backward, event.stacks.training_loop]
    if is_in_derivative(event.origin, event.stacks.backward):
        stacks.insert(0, event.stacks.backward)
    for frames in stacks:
        if frame := first_own(reversed(frames), is_of_op=event.origin is not None):
            return frame
    return next((frames[-1] for frames in stacks if frames), None)


def line_label(event: Event) -> str:
    """The line to look at first, marked by whether it began there or was only noticed; "" without."""
    if (frame := fault_frame(event)) is None:
        return ""
    if is_only_noticed(event):
        return f"{NOTICED} noticed at {frame_label(frame)}"
    return f"{BEGAN} {frame_label(frame)}"


def module_label(module: str | None) -> str:
    """A module's qualified name in words; the root and code outside any module have none."""
    if module is None:
        return "outside the model"
    return module or "the model itself"


def place(event: Event) -> tuple[Fact, ...]:
    """Where it happened: line, module, op, phase, tensors; for a NaN without an origin the reason."""
    facts = [*_line(event), *_origin(event), *_tensors(event)]
    if event.subject and not _names_subject(event):
        label = "State" if event.kind == "hang" else "Subject"
        facts.append(Fact(label=label, value=event.subject))
    if event.model:
        facts.append(Fact(label="Model", value=event.model))
    return tuple(facts)


def _names_subject(event: Event) -> bool:
    """Whether the subject is told already: as the module, or in the words of the script's own event."""
    if event.kind in _SUBJECT_IS_TOLD or event.subject.startswith("policy: "):
        return True
    if event.kind in ("custom", "snapshot"):
        return event.subject in event.message
    return event.origin is not None and event.subject == event.origin.module


def _line(event: Event) -> list[Fact]:
    """The line to look at first; where it was only noticed there, also why no other is known."""
    said = message_lines.why_no_line(event.message)
    label, _, reason = (said or "").partition(" ")
    why = [Fact(label=label, value=reason)] if said else []
    if (frame := fault_frame(event)) is None:
        return why
    began, noticed = LINE_LABELS
    mark, label = (NOTICED, noticed) if is_only_noticed(event) else (BEGAN, began)
    value, detail = f"{mark} {frame_label(frame)}", f"{frame.file}:{frame.line}"
    if mark == NOTICED and not why:
        why = [Fact(label="Why no line", value="Events of this kind are found from numbers alone.")]
    return [Fact(label=label, value=value, detail=detail, code=current_line(frame)), *why]


def _origin(event: Event) -> list[Fact]:
    origin = event.origin
    if origin is None:
        return []
    if origin.phase == "input":
        facts = [Fact(label="Origin", value="the batch itself, before any operation")]
    else:
        facts = [
            Fact(label="Module", value=module_label(origin.module)),
            Fact(label="Operation", value=origin.op),
            Fact(label="Phase", value=origin.phase),
        ]
    # On one process without a GradScaler there is but one kind of gradient.
    if origin.stage in _STAGES:
        facts.append(Fact(label="Gradient", value=f"{origin.stage} ({_STAGES[origin.stage]})"))
    return facts


def _tensors(event: Event) -> list[Fact]:
    """What went into the operation and what came out of it."""
    lines = event.message.splitlines()[1:] if event.origin is not None else []
    pairs = (line.split(": ", 1) for line in lines if _TENSOR.match(line))
    return [Fact(label=name.capitalize(), value=text) for name, text in pairs]


def affected(event: Event) -> tuple[str, ...]:
    """What it spread to, in order, or what else it is about; nothing where the subject alone is named."""
    names = event.propagated_to
    return () if names == [event.subject] else tuple(names)


def affected_summary(event: Event) -> str:
    """``Spread to 12: head, attention.v, attention.k, ...``: the first names, as many as fit on a line."""
    names = affected(event)
    shown = [names[0]]
    while len(shown) < len(names) and len(", ".join([*shown, names[len(shown)]])) <= _SUMMARY_LENGTH:
        shown.append(names[len(shown)])
    verb = "Spread to" if event.origin is not None else "Affects"
    return f"{verb} {len(names):,}: {', '.join(shown)}{', …' if len(shown) < len(names) else ''}"


def frame_label(frame: StackFrame) -> str:
    """``folder/file.py:26 in forward``."""
    return f"{short_path(frame.file)}:{frame.line} in {frame.function}"


def stacks(event: Event) -> tuple[Stack, ...]:
    """The stacks that have frames, in the order in which they are worth reading."""
    return tuple(
        Stack(title=title, frames=tuple(reversed(frames)))
        for name, title in STACK_TITLES.items()
        if (frames := getattr(event.stacks, name))
    )


def episode(event: Event) -> str:
    """How long it went on: once, or how often and until when."""
    if event.count <= 1:
        return "once"
    last = f", last at step {event.last_step:,}" if event.last_step is not None else ""
    return f"{event.count:,} times{last}, {'ended' if event.ended else 'not ended'}"


def absolute_time(unix_s: float) -> str:
    """UTC date and time, or the number itself when no calendar has it."""
    try:
        return datetime.fromtimestamp(unix_s, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, OSError, ValueError):
        return number_text(unix_s)


def relative_time(unix_s: float, started: float | None) -> str:
    """Time since the run's start, or the absolute time when the start is not known."""
    if started is None or not math.isfinite(unix_s - started) or unix_s < started:
        return absolute_time(unix_s)
    return f"{duration_text(unix_s - started)} into the run"


def severity_counts(events: Sequence[Event]) -> str:
    """``1 critical, 2 warnings, 1 info``, or ``no events``; what is about the probe alone is not counted."""
    counted = [event.severity for event in events if not is_of_probe(event)]
    counts = {severity: counted.count(severity) for severity in SEVERITY_ICONS}
    named = {"warning": "warning" if counts["warning"] == 1 else "warnings"}
    parts = [f"{number:,} {named.get(name, name)}" for name, number in counts.items() if number]
    return ", ".join(parts) or "no events"
