"""Watches over one trainer from outside: stopped by a signal, stuck in C code that holds Python's lock, dead.

Used by the helper's census, once a second. What a thread of Python in the trainer can see, `hang_watch.py`
sees there; this is for when none can run. Returns events; writes nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import psutil

from ...errors import WireError
from ...threads.hang_events import State, duration_text, hang_event, killed_event, renewed
from ...threads.life_sign import (
    LifeSign,
    ask_for_stacks,
    last_sign_at,
    read_life_sign,
    read_stack,
    stacks_size,
)
from ...threads.source_lines import stack_frame
from ...threads.watchdog import IDLE_FRACTION, PATIENCE
from ...threads.whereabouts import Line, at_line, place_of
from ...wire import Event, Frame, RunStart, decode_record
from ..journal.journal_reader import Chunk, StreamFollower, has_ring, written_to
from .oom_record import Death

SHORTEST_S: Final = 3.0
"""Both sides look once a second: what is shorter than this is not seen from here."""
_OWN_GAP_S: Final = 3.0
"""After a longer pause the helper itself stood still, and knows nothing of the time between."""
_FOR_STACKS_S: Final = 3.0
"""How long the trainer has for writing its stacks."""
_MIB: Final = 1024 * 1024


class TrainerWatch:
    """Follows one incarnation's signs of life.

    Args:
        folder: the writer's, `SPOOL/<run>/<rank>-<incarnation>`.
        start: who it is.
    """

    def __init__(self, folder: Path, start: RunStart) -> None:
        self._folder, self._start = folder, start
        self.model = ""
        """Name of the naming root, once its layout has been read."""
        self._step: int | None = None
        self._count: int | None = None
        self._changed_at = self._looked_at = time.monotonic()
        self._cpu_s = 0.0
        self._running: Event | None = None
        self._what = ""
        self._tell_next_s = 0.0
        self._asked: tuple[float, int] | None = None
        """When the stacks were asked for, and the size of their file before."""
        self._has_judged = False

    def adopt(self, event: Event) -> None:
        """Go on with what an earlier helper has begun."""
        self._running, self._what = event, _what_of(event)

    def train_next(self, start: RunStart) -> None:
        """A further model of the run is trained from now on: what is said is of that one."""
        self._start, self._step = start, None

    def look(self, process: psutil.Process, status: str) -> list[Event]:
        """Look once at a process that is there.

        Args:
            process: the trainer.
            status: what psutil says of it.
        """
        now_s = time.monotonic()
        was_away = now_s - self._looked_at > _OWN_GAP_S
        self._looked_at = now_s
        sign = read_life_sign(self._folder)
        if sign is None or sign.count != self._count or was_away or status == psutil.STATUS_TRACING_STOP:
            is_alive = sign is not None and self._count is not None and sign.count != self._count
            self._renew(now_s, process, sign)
            return self._end("and went on") if is_alive else []
        idle_s = now_s - self._changed_at
        if self._running is not None:
            return self._go_on()
        if idle_s < max(sign.limit_s, SHORTEST_S):
            return []
        if status == psutil.STATUS_STOPPED:
            return self._begin("stopped", sign, f"process {self._start.pid} stopped by a signal")
        return self._judge(sign, process, idle_s)

    def finish(self) -> list[Event]:
        """It has ended in an orderly way: end what was running."""
        return self._end("and went on")

    def die(self, exit_code: int | None, death: Death, open_events: Iterable[Event]) -> list[Event]:
        """The process is gone, and its journal has no end: say so, and end what was running.

        Args:
            exit_code: as `/proc/<pid>/stat` had it; None where nobody could read it.
            death: what the kernel and the last look say.
            open_events: hangs that the trainer itself had not ended.
        """
        now = time.time()
        ended = self._end("until it was gone")
        ended += [renewed(event, event.message, idle_s=now - event.time, ended=True, count=event.count,
                          last_step=event.last_step or event.step) for event in open_events]  # fmt: skip
        if exit_code == 0:
            # Left through `os._exit(0)`: odd, and no fault.
            return ended
        step = self._last_step()
        where = "before its first step was finished" if step is None else f"after step {step}"
        cause = "SIGKILL" if exit_code is None and death.oom_record else cause_of(exit_code)
        how = cause + (", by the kernel for want of memory" if death.oom_record else "")
        first = f"Process {self._start.pid} is gone without an exit {where}: {how}"
        if cause == "unknown":
            # `os._exit(0)` looks like a kill to who did not see it.
            how = "killed, crashed, or left through `os._exit`"
            first = f"Process {self._start.pid} ended without saying so {where}: {how}"
        return [
            *ended,
            killed_event(
                self._start,
                self.model,
                "\n".join(filter(None, [first, death.oom_record, death.memory])),
                cause=cause,
                step=step or 0,
                time=min(last_sign_at(self._folder) or now, now),
                is_memory=cause == "SIGKILL" and death.is_memory,
            ),
        ]

    def _renew(self, now_s: float, process: psutil.Process, sign: LifeSign | None) -> None:
        self._changed_at, self._cpu_s = now_s, _cpu_s(process)
        self._asked, self._has_judged = None, False
        if sign is not None:
            self._count, self._step = sign.count, sign.step

    def _judge(self, sign: LifeSign, process: psutil.Process, idle_s: float) -> list[Event]:
        """No thread of Python has run for long: ask where the script is, and say so if that is a hang."""
        if not sign.is_training or self._has_judged or not _waits_for_the_lock(process.pid, sign.recorder):
            return []
        is_long = idle_s >= PATIENCE * sign.limit_s
        stack = self._stack(sign, process)
        if stack is None:
            return []
        place = place_of(stack, sign.mark) if stack else "other_work"
        if place == "away":
            self._has_judged = True
            return []
        is_working = _cpu_s(process) - self._cpu_s > IDLE_FRACTION * idle_s
        if place == "other_work" and (is_working or not is_long):
            return []
        what = f"in C code that lets no other thread of Python run{at_line(stack)}"
        return self._begin("stuck", sign, what, stack)

    def _stack(self, sign: LifeSign, process: psutil.Process) -> list[Line] | None:
        """The stack of the thread that trains; empty where it cannot be had, None while it is awaited."""
        if not sign.signal or not sign.thread:
            return []
        if self._asked is None:
            self._asked = time.monotonic(), stacks_size(self._folder)
            return None if ask_for_stacks(process.pid, sign, self._folder) else []
        asked_at, size = self._asked
        stack = read_stack(self._folder, thread=sign.thread, after=size)
        return None if not stack and time.monotonic() - asked_at < _FOR_STACKS_S else stack

    def _begin(self, state: State, sign: LifeSign, what: str, stack: Iterable[Line] = ()) -> list[Event]:
        idle_s = time.monotonic() - self._changed_at
        self._what = what
        self._running = hang_event(
            self._start,
            self.model,
            state,
            "",
            step=(self._last_step() or 0) + 1,
            time=time.time() - idle_s,
            limit_s=sign.limit_s,
            step_s=sign.step_s,
            frames=[stack_frame(*line) for line in stack],
        )
        return [self._renewed("")]

    def _go_on(self) -> list[Event]:
        """Say how long whenever that has doubled."""
        assert self._running is not None
        return [self._renewed("")] if time.time() - self._running.time >= self._tell_next_s else []

    def _end(self, how: str) -> list[Event]:
        if self._running is None:
            return []
        event = self._renewed(how)
        self._running = None
        return [event]

    def _renewed(self, how: str) -> Event:
        """The running event as it is now; `how` it ended, if it did."""
        assert self._running is not None
        event = self._running
        idle_s = max(time.time() - event.time, 0.0)
        self._tell_next_s = 2 * idle_s
        verb = "stood" if how else "stands"
        message = f"Step {event.step} {verb} still for {duration_text(idle_s)}, {self._what} {how}".rstrip()
        self._running = renewed(
            event, message, idle_s=idle_s, ended=bool(how), count=event.count, last_step=event.step
        )
        return self._running

    def _last_step(self) -> int | None:
        """The newest finished step, by the sign of life and by the last frame in the journal."""
        sign = read_life_sign(self._folder)
        steps = [self._step, sign.step if sign is not None else None, _last_written_step(self._folder)]
        return max((step for step in steps if step is not None), default=None)


def memory_sentence(rss_bytes: int | None, used_bytes: int | None, total_bytes: int | None) -> str:
    """Say what memory it had when it was last seen; empty where that is not known."""
    if rss_bytes is None or not used_bytes or not total_bytes:
        return ""
    return (
        f"When last seen it held {rss_bytes / _MIB:,.0f} MiB, and {used_bytes / total_bytes:.0%} of the "
        f"machine's {total_bytes / _MIB:,.0f} MiB were in use."
    )


def cause_of(wait_status: int | None) -> str:
    """Name the signal, or the exit code; `unknown` where somebody else has waited for the process."""
    if wait_status is None:
        return "unknown"
    if os.WIFSIGNALED(wait_status):
        number = os.WTERMSIG(wait_status)
        with contextlib.suppress(ValueError):
            return signal.Signals(number).name
        return f"signal {number}"
    return f"exit code {os.waitstatus_to_exitcode(wait_status)}"


def _what_of(event: Event) -> str:
    """What an event of an earlier helper says it is at."""
    return event.message.partition(", ")[2]


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


def _waits_for_the_lock(pid: int, thread: int) -> bool:
    """Whether the recorder's thread is there and neither runs nor waits for a disk."""
    with contextlib.suppress(OSError, IndexError):
        text = Path(f"/proc/{pid}/task/{thread}/stat").read_text()
        return text.rpartition(")")[2].split()[0] == "S"
    return False


def _last_written_step(folder: Path) -> int | None:
    with contextlib.suppress(OSError, WireError):
        metrics_end = written_to(folder, "metrics") or 0
        records = _in_rings(folder, metrics_end)
        if not records and metrics_end:
            found = StreamFollower(folder, "metrics", from_seq=metrics_end - 1).poll()
            records = found.records if isinstance(found, Chunk) else ()
        if records and isinstance(frame := decode_record(records[-1]), Frame):
            return frame.step
    return None


def _in_rings(folder: Path, metrics_end: int) -> Sequence[bytes]:
    """What has been recorded since the journal was written: up to a second of steps."""
    if not has_ring(folder):
        return ()
    # It loads numpy, a quarter of the helper's memory: once a trainer hangs or is killed, and not before.
    from ..journal.ring_rest import read_rest_of_living

    return read_rest_of_living(folder, metrics_end=metrics_end)
