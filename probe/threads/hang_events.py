"""What `hang` and `killed` events say: a training that stands still, was stopped, or is gone. Pure; no torch.

Used by the recorder's thread for what it sees from inside, and by the helper for what it sees from outside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from ..wire import Event, Evidence, RunStart, StackFrame, Stacks
from ..wire.events import make_event

State: TypeAlias = Literal["stuck", "stopped"]
"""A hang's subject. `stuck`: it lives and does not train on. `stopped`: by a signal, until another lets it go
on."""
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
        "the terminal, or a scheduler that suspends jobs). It loses nothing: `kill -CONT` continues it.",
        "In a distributed run the other ranks wait meanwhile, until their collectives time out.",
    ),
}
_RESTART: Final = "Restart from the last checkpoint; every step that was finished is in the journal."
_CRASH: Final = (
    "It crashed in C code, of torch, of an extension or of a library: `python -X faulthandler train.py` "
    "prints the stack.",
    "A core dump, where the system writes them (`coredumpctl`, `ulimit -c`), shows the C code.",
    _RESTART,
)
_ENDED_FROM_OUTSIDE: Final = (
    "Somebody asked the process to end: a scheduler at a time limit, a terminal that was closed, or `kill`. "
    "Look at the scheduler's log.",
    _RESTART,
)
KILLED: Final[Mapping[str, tuple[str, ...]]] = {
    "SIGKILL": (
        "Nothing in the process can see SIGKILL: it comes from the out-of-memory killer (`dmesg`, or the "
        "container's log), from a scheduler at a limit, or from `kill -9`.",
        "The last memory readings are on the page.",
        _RESTART,
    ),
    **dict.fromkeys(("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT"), _CRASH),
    **dict.fromkeys(("SIGTERM", "SIGHUP", "SIGINT", "SIGXCPU"), _ENDED_FROM_OUTSIDE),
    "unknown": (
        "The process is gone without an exception or an exit that Python knows of: killed by a signal, "
        "crashed in C code, or left through `os._exit`.",
        "Look for the out-of-memory killer (`dmesg`, or the container's and the scheduler's log), for a time "
        "limit, and for a core dump; the last memory readings are on the page.",
        "`python -X faulthandler train.py` prints the stack of a crash in C code.",
        _RESTART,
    ),
}
"""By the signal that has ended it."""
OUT_OF_MEMORY: Final = (
    "The kernel had no memory left and has ended this process: a smaller batch, fewer workers of the "
    "DataLoader, or a higher limit of the container or the job.",
    "Memory that grew step by step is a leak: the charts of memory and a `memory_leak` event before this "
    "show it.",
    _RESTART,
)
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
    """
    return make_event(
        start,
        model,
        "hang",
        state,
        step=step,
        time=time,
        severity="warning",  # nobody can tell from outside that a thread will wait for ever
        message=message[:_TEXT_LIMIT],
        evidence=Evidence(
            value=idle_s,
            threshold=limit_s,
            baseline={"median_step_s": step_s} if step_s else None,
        ),
        stacks=Stacks(training_loop=list(frames)),
        advice=list(ADVICE[state]),
    )


def killed_event(
    start: RunStart, model: str, message: str, *, cause: str, step: int, time: float, is_memory: bool = False
) -> Event:
    """Make the event of a process that is gone without an exit.

    Args:
        start: the incarnation that it is about.
        model: name of the naming root.
        message: first line answers everything.
        cause: the signal, `exit code N` or `unknown`: the event's subject.
        step: number of the newest finished step.
        time: UNIX seconds of the last sign of life.
        is_memory: the kernel says that there was no memory left.
    """
    return make_event(
        start,
        model,
        "killed",
        cause,
        step=step,
        time=time,
        severity="critical",
        message=message[:_TEXT_LIMIT],
        advice=list(OUT_OF_MEMORY if is_memory else KILLED.get(cause, KILLED["unknown"])),
        ended=True,
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
