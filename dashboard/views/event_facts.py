"""What is to be said about an event, as plain text: headline, place, evidence, numbers with sensible digits.

The event panel, the table, the timeline, the export and `dashboard events` all take their words from here.
Pure functions on any thread; imports neither dash nor pandas.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from probe import message_lines
from probe.wire import SEVERITIES, Event, Severity, StackFrame, is_in_derivative

from .source_lines import is_library, short_path

SEVERITY_ICONS: Final[dict[Severity, str]] = {"critical": "◆", "warning": "▲", "info": "●"}
"""The same shapes as the timeline's markers: severity is never told by colour alone."""
STACK_TITLES: Final[dict[str, str]] = {
    "forward": "Forward",
    "backward": "Backward",
    "training_loop": "Training loop",
}
STACK_ORDER: Final = "innermost frame first"
_BYTE_KINDS: Final = frozenset({"memory_leak", "out_of_memory", "high_resource_use"})
_BYTE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_BASELINE_LABELS: Final = {
    "median": "median of this run",
    "mad": "median absolute deviation",
    "steps": "steps",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One labelled line; `detail` is the whole text where `value` is a short form of it."""

    label: str
    value: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """One of an event's stacks as it is shown: innermost frame first, where the fault is."""

    title: str
    frames: tuple[StackFrame, ...]


def event_order(event: Event) -> tuple[int, float, int, str]:
    """Sort key: by step, then time; what happened at the same moment by severity."""
    return event.step, event.time, SEVERITIES.index(event.severity), event.id


def headline(event: Event) -> str:
    """The first line of the message, which says what, when and where."""
    lines = event.message.strip().splitlines()
    return lines[0] if lines else f"{kind_label(event.kind)} at step {event.step:,}"


def explanation(event: Event) -> tuple[str, ...]:
    """The lines of the message after the first, without empty ones and those that have their own section."""
    lines = event.message.strip().splitlines()[1:]
    return tuple(line for line in lines if line.strip() and message_lines.is_plain(line))


def moves(event: Event) -> list[str]:
    """What left its usual range before the event, the earliest first."""
    return message_lines.moves(event.message)


def replay_command(event: Event) -> str | None:
    """How to make the step again on any machine, where the run has written a bundle of it."""
    folder = message_lines.bundle(event.message)
    return None if folder is None else f"dashboard replay {shlex.quote(folder)} --entry MODULE:FUNCTION"


def kind_label(kind: str) -> str:
    """A kind in words: ``nonfinite_gradient`` -> ``non-finite gradient``."""
    return kind.replace("_", " ").replace("nonfinite", "non-finite")


def fault_frame(event: Event) -> StackFrame | None:
    """The line to look at first: the innermost of the user's own, forward before backward before loop.

    Where a derivative of the user's own went wrong, its line comes first.
    """
    stacks = [event.stacks.forward, event.stacks.backward, event.stacks.training_loop]
    if is_in_derivative(event.origin, event.stacks.backward):
        stacks.insert(0, event.stacks.backward)
    for frames in stacks:
        for frame in reversed(frames):
            if not is_library(frame):
                return frame
    return next((frames[-1] for frames in stacks if frames), None)


def module_label(module: str | None) -> str:
    """A module's qualified name in words; the root and code outside any module have none."""
    if module is None:
        return "outside any module"
    return module or "the model itself"


def place(event: Event) -> tuple[Fact, ...]:
    """Where it happened: op, phase, module, line; for a NaN without an origin, the reason in its message."""
    facts: list[Fact] = []
    if event.origin is not None:
        facts.append(Fact(label="Operation", value=event.origin.op))
        facts.append(Fact(label="Phase", value=event.origin.phase))
        facts.append(Fact(label="Module", value=module_label(event.origin.module)))
        if event.origin.stage:
            facts.append(Fact(label="Gradient", value=event.origin.stage))
    elif event.kind.startswith("nonfinite_"):
        facts.append(Fact(label="Origin", value=" ".join(explanation(event)) or headline(event)))
    if event.subject:
        facts.append(Fact(label="Subject", value=event.subject))
    if event.model:
        facts.append(Fact(label="Model", value=event.model))
    if (frame := fault_frame(event)) is not None:
        facts.append(Fact(label="Line", value=frame_label(frame), detail=f"{frame.file}:{frame.line}"))
    return tuple(facts)


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


def quantity(event: Event) -> str:
    """What the numbers of the evidence are, with their unit."""
    if event.kind in _BYTE_KINDS:
        return "memory"
    if event.kind in ("replayed", "hang"):
        return "seconds"
    if event.kind == "rank_divergence":
        return "relative difference"
    if "loss" in event.kind:
        return "loss"
    if "gradient" in event.kind:
        return "gradient L2 norm"
    return "parameter L2 norm" if "parameter" in event.kind else "value"


def evidence_facts(event: Event) -> tuple[Fact, ...]:
    """The number that tripped against the run's own baseline, one row per number that is known."""
    evidence, baseline = event.evidence, event.evidence.baseline or {}
    rows: list[Fact] = []
    if evidence.value is not None:
        rows.append(_row("at this event", evidence.value, event))
    if evidence.threshold is not None:
        rows.append(_row("threshold", evidence.threshold, event))
    for key, number in baseline.items():
        rows.append(_row(_BASELINE_LABELS.get(key, key.replace("_", " ")), number, event, key=key))
    median = baseline.get("median")
    if evidence.value is not None and median and math.isfinite(evidence.value / median):
        ratio = evidence.value / median
        rows.append(Fact(label="ratio to the median", value=f"× {number_text(ratio)}", detail=repr(ratio)))
    return tuple(rows)


def neighbour_facts(event: Event) -> tuple[Fact, ...]:
    """The values of the steps before, newest last."""
    return tuple(_row(f"step {step:,}", value, event) for step, value in event.evidence.neighbours)


def _row(label: str, value: float, event: Event, *, key: str = "") -> Fact:
    if key == "steps" or key.endswith("_steps"):
        return Fact(label=label, value=f"{value:,.0f}", detail=repr(value))
    text = bytes_text(value) if event.kind in _BYTE_KINDS else number_text(value)
    return Fact(label=label, value=text, detail=repr(value))


def number_text(value: float) -> str:
    """Four significant digits; NaN and infinities by name."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:.4g}"
    if abs(value) < 1e6 and value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3e}"


def bytes_text(value: float) -> str:
    """Bytes in binary units, for instance ``1.5 GiB``."""
    if not math.isfinite(value):
        return number_text(value)
    size, unit = float(value), 0
    while abs(size) >= 1024 and unit < len(_BYTE_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.4g} {_BYTE_UNITS[unit]}"


def duration_text(seconds: float) -> str:
    """``12.3 s``, ``4 min 05 s``, ``3 h 12 min``."""
    if not math.isfinite(seconds):
        return number_text(seconds)
    if abs(seconds) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60:,} h {minutes % 60:02d} min"


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
    """``1 critical, 2 warning`` or ``no events``."""
    counts = {severity: sum(event.severity == severity for event in events) for severity in SEVERITY_ICONS}
    return ", ".join(f"{number:,} {name}" for name, number in counts.items() if number) or "no events"
