"""What a `hang` event says: a training that stands still, was stopped, or is dead. Pure; no torch.

Used by the recorder's thread for what it sees from inside, and by the helper for what it sees from outside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from ..wire import Event, Evidence, RunStart, Severity, StackFrame, Stacks
from ..wire.events import make_event

State: TypeAlias = Literal["stuck", "stopped", "dead"]
"""The event's subject. `stuck`: it lives and does not train on. `stopped`: by a signal, until another lets it
go on. `dead`: its process is gone and said nothing."""

SEVERITY: Final[Mapping[State, Severity]] = {"stuck": "warning", "stopped": "warning", "dead": "critical"}
"""Nobody can tell from outside that a thread will wait for ever; a dead process is certain."""
ADVICE: Final[Mapping[State, tuple[str, ...]]] = {
    "stuck": (
        "The process lives, but no forward, backward or update has begun or ended: the stack shows the line "
        "at which it waits or works.",
        "At a DataLoader: a worker that waits or has died (try `num_workers=0`, and `timeout=60` to get an "
        "error), slow storage, or one very large sample.",
        "In a collective, or in backward under DDP: another rank has not come there. Look at its events, and "
        "at branches that only some ranks take.",
        "At a lock, queue or `join()`: two threads wait for each other; a lock that was held at a fork stays "
        "locked in the child.",
        "If it is work of yours that takes so long, move it out of the loop, or raise `hang_seconds`.",
    ),
    "stopped": (
        "A signal has stopped the process (Ctrl-Z, SIGSTOP, SIGTTIN of a job in the background that reads "
        "the terminal, or a scheduler that suspends jobs). It loses nothing: `kill -CONT` lets it go on.",
        "In a distributed run the other ranks wait meanwhile, until their collectives time out.",
    ),
    "dead": (
        "The process is gone without an exception or an exit that Python knows of: killed by a signal, "
        "crashed in C code, or left through `os._exit`.",
        "Look for the out-of-memory killer (`dmesg`, or the container's and the scheduler's log), for a time "
        "limit, and for a core dump; the last memory readings are on the page.",
        "`python -X faulthandler train.py` prints the stack of a crash in C code.",
        "Restart from the last checkpoint; every step that was finished is in the journal.",
    ),
}
_TEXT_LIMIT: Final = 4000


def hang_event(
    start: RunStart,
    model: str,
    state: State,
    message: str,
    *,
    step: int,
    time: float,
    idle_s: float | None = None,
    limit_s: float | None = None,
    step_s: float | None = None,
    frames: Sequence[StackFrame] = (),
    ended: bool = False,
) -> Event:
    """Make the event in its first state.

    Args:
        start: the incarnation that it is about.
        model: name of the naming root.
        state: what is the matter, the event's subject.
        message: first line answers everything.
        step: number of the step that does not go on.
        time: UNIX seconds of the last sign of life.
        idle_s: how long it has stood still.
        limit_s: what that is judged by.
        step_s: median time of a step.
        frames: stack of the thread that trains.
        ended: whether it is over already.
    """
    return make_event(
        start,
        model,
        "hang",
        state,
        step=step,
        time=time,
        severity=SEVERITY[state],
        message=message[:_TEXT_LIMIT],
        evidence=Evidence(
            value=idle_s,
            threshold=limit_s,
            baseline={"median_step_s": step_s} if step_s else None,
        ),
        stacks=Stacks(training_loop=list(frames)),
        advice=list(ADVICE[state]),
        ended=ended,
    )


def renewed(event: Event, message: str, *, idle_s: float, ended: bool, count: int, last_step: int) -> Event:
    """The event in a later state: longer, over, or come again; its stack stays the first one."""
    return msgspec.structs.replace(
        event,
        message=message[:_TEXT_LIMIT],
        evidence=msgspec.structs.replace(event.evidence, value=idle_s),
        ended=ended,
        count=count,
        last_step=last_step,
    )


def duration_text(seconds: float) -> str:
    """Write "41 ms", "5.2 s", "3 min 20 s", "2 h 5 min"."""
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"
