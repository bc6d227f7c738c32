"""The verdict on a run in one sentence, the largest on the page: what is wrong, and where it began. Pure.

An event's first line answers everything already ("NaN first at step 400 in `blocks.3.norm`, `train.py:26`");
`probe.wire.run_verdict` chooses the event.
The live feed sends the verdict; `assets/ns_61_verdict.js` shows it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from probe.wire import Event, member_number
from probe.wire.causes import Cause, group_by_cause, of_newest_start, worst_cause
from probe.wire.event_texts import headline, model_label
from probe.wire.run_verdict import State, run_verdict

from ...store.protocol import RankSummary
from .event_facts import code_parts, fault_frame

_LINE: Final = r"[^\s,:]+\.[A-Za-z]\w*:\d+"
"""``train.py:26``"""
_SHORT_KINDS: Final = {"nonfinite": "NaN/Inf", "exception": "Exception"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the line says."""

    severity: State
    parts: tuple[tuple[str, bool], ...]
    """(text, whether it is code), in order."""
    title: str = ""
    """The same in few words, for the window's title; empty where nothing is wrong."""
    event: str | None = None
    """Id of the event that it names."""
    run: str | None = None
    """Run that the store keeps it with: that of another model than is shown, as the case may be."""
    source: tuple[str, int] | None = None
    """File and line to look at first."""
    consequences: int = 0
    """Events that followed from it."""
    time: float | None = None
    """Of that event, UNIX seconds."""
    step: int | None = None
    """None also where it is of another model than the steps that are shown."""
    rank: int | None = None
    counts: tuple[int, int] = (0, 0)
    """Critical events and warnings of the run."""


def verdict(
    events: Sequence[Event],
    *,
    last_step: int | None,
    ranks: Sequence[RankSummary] = (),
    losses: Sequence[float] = (),
    member: int | None = None,
    counts: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """Return the verdict as a header of the live feed.

    Args:
        events: of the run, in any order; of several models, those of all with something to say, numbered.
        last_step: newest step; None before the first.
        ranks: of the run: their newest starts are what it speaks of.
        losses: of the newest steps, in order.
        member: which model the steps and losses are of; None where there is one.
        counts: critical events and warnings of the run; None counts those given.
    """
    counts = counts or (_number(events, "critical"), _number(events, "warning"))
    current = of_newest_start(events, {each.rank: each.incarnation for each in ranks})
    ids = {event.id for event in current}
    past = [event for event in events if event.id not in ids]
    # Where nothing was critical before a restart, the steps before it are of the same healthy run.
    restarted = worst_cause(group_by_cause(past)) if past else None
    if restarted is None or restarted.severity != "critical":
        restarted = None
    first = None if restarted is None else _first_step(ranks, restarted.origin.rank)
    found = run_verdict(current, last_step=last_step, first_step=first or 0, losses=losses)
    if found.cause is not None:
        of_cause = _of_cause(found.cause, found.state, counts)
        is_other = member is not None and member_number(found.cause.origin.member) != member
        return asdict(replace(of_cause, step=None) if is_other else of_cause)
    if restarted is None or found.state != "none":
        title = "Loss not finite" if found.state != "none" else ""
        said = ((found.sentence, False),)
        return asdict(Verdict(severity=found.state, parts=said, title=title, counts=counts))
    at = "" if first is None else f" at step {first:,}"
    before = (f"{found.sentence}; before the restart{at}: ", False)
    origin = restarted.origin
    parts = (before, *_parts(origin))
    return asdict(Verdict(severity="none", parts=parts, event=origin.id, run=origin.run, counts=counts))


def _of_cause(cause: Cause, state: State, counts: tuple[int, int]) -> Verdict:
    origin = cause.origin
    return Verdict(
        severity=state,
        parts=tuple(_parts(origin)),
        title=_title(origin),
        event=origin.id,
        run=origin.run,
        source=_source(origin),
        consequences=len(cause.consequences),
        time=origin.time,
        step=origin.step,
        rank=origin.rank,
        counts=counts,
    )


def _first_step(ranks: Sequence[RankSummary], rank: int) -> int | None:
    return next((each.first_step for each in ranks if each.rank == rank), None)


def _parts(event: Event) -> list[tuple[str, bool]]:
    """Split the sentence into (part, whether it is code): module and line too, which a probe writes plain."""
    places = [_LINE]
    if event.origin is not None and event.origin.module:
        places.append(rf"(?<![\w.]){re.escape(event.origin.module)}(?!\w|\.\w)")
    place = re.compile(f"({'|'.join(places)})")
    return [
        (part, is_code or number % 2 == 1)
        for text, is_code in code_parts(model_label(event) + headline(event))
        for number, part in enumerate([text] if is_code else place.split(text))
        if part
    ]


def _number(events: Sequence[Event], severity: str) -> int:
    return sum(event.severity == severity for event in events)


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
