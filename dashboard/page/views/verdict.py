"""The verdict on a run in one sentence, the largest on the page: what is wrong, and where it began. Pure.

An event's first line answers everything already ("NaN first at step 400 in `blocks.3.norm`, `train.py:26`");
here the right event is chosen. The live feed sends the verdict; `assets/ns_61_verdict.js` shows it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from probe.wire import Event

from ...store.protocol import RankSummary
from .causes import Cause, group_by_cause, of_newest_start
from .event_facts import code_parts, fault_frame, headline

_STANDING: Final = frozenset(
    {
        *("memory_leak", "parameter_not_updated", "poor_initialization", "dead_units", "overfitting"),
        *("input_out_of_range", "output_degenerate", "loss_plateau"),
    }
)
"""Kinds of warnings that are true until somebody changes the script, though their event is written once."""
_LINE: Final = r"[^\s,:]+\.[A-Za-z]\w*:\d+"
"""``train.py:26``"""
_SHORT_KINDS: Final = {"nonfinite": "NaN/Inf", "exception": "Exception"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the line says."""

    severity: Literal["none", "warning", "critical"]
    parts: tuple[tuple[str, bool], ...]
    """(text, whether it is code), in order."""
    title: str = ""
    """The same in few words, for the window's title; empty where nothing is wrong."""
    event: str | None = None
    """Id of the event that it names."""
    source: tuple[str, int] | None = None
    """File and line to look at first."""
    consequences: int = 0
    """Events that followed from it."""
    time: float | None = None
    """Of that event, UNIX seconds."""
    step: int | None = None
    rank: int | None = None
    counts: tuple[int, int] = (0, 0)
    """Critical events and warnings of the run."""


def verdict(
    events: Sequence[Event], *, last_step: int | None, ranks: Sequence[RankSummary] = ()
) -> dict[str, Any]:
    """Return the verdict as a header of the live feed.

    Args:
        events: of the run, in any order.
        last_step: newest step; None before the first.
        ranks: of the run: their newest starts are what it speaks of.
    """
    counts = (_number(events, "critical"), _number(events, "warning"))
    current = of_newest_start(events, ranks)
    cause = _worst(group_by_cause(current))
    if cause is None:
        ids = {event.id for event in current}
        past = _worst(group_by_cause(event for event in events if event.id not in ids))
        return asdict(_no_fault(past, last_step, ranks, counts))
    origin = cause.origin
    return asdict(
        Verdict(
            severity="critical" if cause.severity == "critical" else "warning",
            parts=tuple(_parts(origin)),
            title=_title(origin),
            event=origin.id,
            source=_source(origin),
            consequences=len(cause.consequences),
            time=origin.time,
            step=origin.step,
            rank=origin.rank,
            counts=counts,
        )
    )


def _no_fault(
    past: Cause | None, last_step: int | None, ranks: Sequence[RankSummary], counts: tuple[int, int]
) -> Verdict:
    """Nothing is wrong now; a critical fault from before a restart is told as such."""
    if past is None or past.severity != "critical":
        return Verdict(severity="none", parts=((_quiet(last_step), False),), counts=counts)
    origin = past.origin
    first = next((each.first_step for each in ranks if each.rank == origin.rank), None)
    at = "" if first is None else f" at step {first:,}"
    quiet = f"{_quiet(last_step, first or 0)}; before the restart{at}: "
    return Verdict(severity="none", parts=((quiet, False), *_parts(origin)), event=origin.id, counts=counts)


def _parts(event: Event) -> list[tuple[str, bool]]:
    """Split the headline into (part, whether it is code): module and line too, which a probe writes plain."""
    places = [_LINE]
    if event.origin is not None and event.origin.module:
        places.append(rf"(?<![\w.]){re.escape(event.origin.module)}(?!\w|\.\w)")
    place = re.compile(f"({'|'.join(places)})")
    return [
        (part, is_code or number % 2 == 1)
        for text, is_code in code_parts(headline(event))
        for number, part in enumerate([text] if is_code else place.split(text))
        if part
    ]


def _worst(causes: Sequence[Cause]) -> Cause | None:
    """Return the fault to name: of the critical ones one that goes on, the earliest; else the newest of them.

    A warning counts while it goes on: one that is over is a number beside the line, no verdict on the run.
    """
    critical = [cause for cause in causes if cause.severity == "critical"]
    if critical:
        return next((cause for cause in critical if not cause.is_over), critical[-1])
    warnings = (cause for cause in causes if cause.severity == "warning")
    return next((each for each in warnings if not each.is_over or each.origin.kind in _STANDING), None)


def _number(events: Sequence[Event], severity: str) -> int:
    return sum(event.severity == severity for event in events)


def _quiet(last_step: int | None, first_step: int = 0) -> str:
    if last_step is None:
        return "No step yet"
    count = last_step + 1 - min(first_step, last_step)
    return f"No fault in {count:,} step{'' if count == 1 else 's'}"


def _source(event: Event) -> tuple[str, int] | None:
    frame = fault_frame(event)
    return None if frame is None else (frame.file, frame.line)


def _title(event: Event) -> str:
    """``NaN at step 400 in blocks.3.norm``."""
    label = _SHORT_KINDS.get(event.kind.split("_")[0], event.kind.replace("_", " "))
    if "NaN" in event.message and event.kind.startswith("nonfinite"):
        label = "NaN"
    where = event.origin.module if event.origin is not None and event.origin.module else event.subject
    return f"{label} at step {event.step:,}{f' in {where}' if where else ''}"
