"""Takes the session's records to the journal, and sees to it that a helper ships them.

Lives in the training process. `event` and `frame` are called on the training thread; one daemon thread
writes the frames and the end, reads the process's memory and looks after the helper. Nothing here raises
into training. The garbage collector and signals' handlers may call any of it amid any of it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, Protocol

import msgspec

from ...errors import JournalError
from ...wire import MAX_RECORD_BYTES, Event, Frame, Layout, Record, RunEnd, RunStart, encode
from ..helper.helper import HelperKeeper
from ..host_memory import MemorySample, read_memory
from ..journal.journal import DEFAULT_CAP_BYTES, JournalWriter, write_run_json
from .bell import Bell

_logger = logging.getLogger(__name__)

WAKE_S: Final = 0.05
"""How often the thread writes; also the most that a kill -9 can take from the metrics."""
RING_FRAMES: Final = 4096
UNWRITTEN_EVENTS: Final = 256
_WRITE_BYTES: Final = 4 * 1024**2
"""Frames are written in groups of about this size, so that a segment does not outgrow its limit by much."""
_CLOSE_S: Final = 2.0
"""How long whoever flushes or closes waits for the thread: a disk can hang."""
_CLOSE_AGAIN_S: Final = 0.2
"""The same, for who comes when that time is over."""


class FrameSource(Protocol):
    """A step whose frame is built when it is written: off the training thread, many in a row."""

    def build(self) -> Frame:
        """Return the frame; called on the recorder's thread, again if it could not be written."""
        ...


class Watch(Protocol):
    """What the thread asks every time it wakes; neither method raises."""

    def look(self) -> list[Event]:
        """Called every 50 ms, on the recorder's thread; returns what is to be written."""
        ...

    def close(self) -> list[Event]:
        """Called once, on the thread, after the last look; what is to be written before the run's end."""
        ...


class Recorder:
    """Writes one rank's records under `SPOOL/<run>/<rank>-<incarnation>`.

    In a process forked from the training process every method does nothing.

    Args:
        spool: root folder of all runs; created if missing.
        start: becomes the first record of the events stream, and `run.json`.
        connect: ingest address; None finds a local dashboard; "" never ships, and starts no helper.
        cap_bytes: size of the run's folder above which the oldest metrics are evicted.

    Raises:
        JournalError: the spool cannot be written.
    """

    def __init__(
        self, spool: Path, start: RunStart, *, connect: str | None, cap_bytes: int = DEFAULT_CAP_BYTES
    ) -> None:
        run_folder = spool.resolve() / start.run
        writer = f"{start.rank}-{start.incarnation}"
        self.folder: Path = run_folder / writer
        self.memory: MemorySample | None = read_memory()
        """Newest reading; None where it cannot be read."""
        self.failed: str | None = None
        """What last went wrong, in one sentence; None while all is well. The first is logged too."""
        self.lost_before_write = 0
        """Records dropped because they could not be encoded or written."""
        self._pid = os.getpid()
        self._journal = JournalWriter(self.folder, run=start.run, writer=writer, cap_bytes=cap_bytes)
        self._journal.append("events", encode(start))
        write_run_json(run_folder, start)
        self._ring: deque[Frame | FrameSource] = deque()
        self._ring_lock = threading.RLock()
        self._write_lock = threading.Lock()
        self._events_lock = threading.RLock()
        self._events_writer = 0
        """The thread that is writing events."""
        self._unwritten_events: deque[bytes] = deque()
        self._flushes: deque[Bell] = deque()
        self._wake = Bell()
        self._next_tend_s = 0.0
        self._closed = False
        self._close_by_s = 0.0
        self._end: RunEnd | None = None
        self._is_ended = False
        self._is_over, self._over = False, Bell()
        """Whether the thread has ended, or has never begun."""
        self._progress = 0
        """Grows as long as the thread gets on."""
        self._close_request: Callable[[], None] | None = None
        self.watches: list[Watch] = []
        """They look at the training from the thread; to be added by who starts the session."""
        self._helper = HelperKeeper(run_folder, connect) if connect != "" else None
        self._tend()
        self._thread = threading.Thread(target=self._run, name="nanscope-recorder", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # a limit on threads, or the interpreter is ending
            self._is_over = True
            self.close(outcome="finished", last_step=None)
            raise JournalError(f"no thread can be started: {error}") from error

    @property
    def has_helper(self) -> bool:
        """Whether a helper process looks at this one from outside."""
        return self._helper is not None

    @property
    def evicted(self) -> int:
        """Frames of this incarnation that were deleted to keep the journal below its cap."""
        return self._journal.evicted

    def event(self, record: Event | Layout) -> None:
        """Write a record to the events stream before returning, so that it survives a kill -9.

        When it cannot be written it is kept (up to a limit) and tried again by the thread, in order.
        """
        if self._is_inert():
            return
        encoded = self._encode(record)
        if encoded is not None:
            self._unwritten_events.append(encoded)
            self._write_events()

    def frame(self, frame: Frame | FrameSource) -> None:
        """Hand over a frame; the thread writes it within 50 ms. A full ring drops its oldest frame."""
        if self._is_inert():
            return
        self._ring.append(frame)
        if len(self._ring) < RING_FRAMES // 2:
            return
        self._wake.ring()
        self._drop_oldest()

    def flush(self) -> None:
        """Have the thread write what is in the ring, and wait for it, 2 s at most."""
        # The garbage collector may call this on the thread itself, amid its writing.
        if self._is_inert() or self.is_own_thread:
            return
        done = Bell()
        self._flushes.append(done)
        self._wake.ring()
        done.wait(_CLOSE_S)

    @property
    def is_own_thread(self) -> bool:
        """Whether the caller is the thread that writes: it must not wait for itself."""
        return threading.current_thread() is self._thread

    def close_soon(self, close: Callable[[], None]) -> None:
        """Have the thread call `close` within 50 ms; takes no lock, so it may be called amid anything."""
        self._close_request = close

    def close(self, *, outcome: Literal["finished", "exception"], last_step: int | None) -> bool:
        """Have the thread write what is left and the `RunEnd`, and end; wait for it, 2 s at most.

        On the thread itself only as its last act. What breaks off the caller (a Ctrl-C, a signal's handler)
        does not touch what is being written. Idempotent: the first outcome counts. Returns whether that is
        done; later calls wait again, for a moment.
        """
        if os.getpid() != self._pid:
            return True
        if self._end is None:
            self._close_by_s = time.monotonic() + _CLOSE_S
            self._end = RunEnd(time=time.time(), step=last_step, outcome=outcome)
        self._closed = True
        self._wake.ring()
        if not self.is_own_thread:
            if not self._has_thread_ended():
                return False
            if self._thread.ident is not None:
                self._thread.join(_CLOSE_AGAIN_S)
        self._attempt(self._write_end)
        return True

    def _has_thread_ended(self) -> bool:
        """Wait until it has, or has got nowhere for a while."""
        # Not by `join`, after which Python 3.11 takes a thread for ended where a Ctrl-C has broken it off.
        progress = -1
        while not self._is_over and progress != self._progress:
            if self._events_writer == threading.get_ident():
                return False  # a signal's handler asks, and the thread waits for what is below it
            progress = self._progress
            if self._over.wait(max(self._close_by_s - time.monotonic(), _CLOSE_AGAIN_S)):
                self._over.ring()  # there may be other waiters
        return self._is_over

    def _write_end(self) -> None:
        """Write everything that is left, once; nobody else writes any more."""
        end = self._end
        if end is None or self._is_ended:
            return
        self._is_ended = True
        self._progress += 1
        self._write_frames()
        for watch in self.watches:
            self._write_of_watch(watch.close())
        self._write_events()
        self._count_unwritten()
        lost = self.lost_before_write
        if lost:
            _logger.warning("nanscope: %d records of this run could not be written and are lost", lost)
        self._unwritten_events.append(encode(msgspec.structs.replace(end, lost_before_write=lost)))
        self._write_events()
        self._journal.close()
        # The helper of an earlier incarnation may have left since the thread last looked.
        if self._helper is not None and (problem := self._helper.ensure(is_last=True)) is not None:
            self._note(problem)

    def _write_of_watch(self, events: list[Event]) -> None:
        """Like `event`, also while closing: what the watch has told once, it does not tell again."""
        self._unwritten_events.extend(filter(None, map(self._encode, events)))
        self._write_events()

    def _count_unwritten(self) -> None:
        """Give up what the disk has no room for."""
        with self._ring_lock:
            self.lost_before_write += len(self._ring) + len(self._unwritten_events)
            self._ring.clear()
            self._unwritten_events.clear()

    def _is_inert(self) -> bool:
        return self._closed or os.getpid() != self._pid

    def _run(self) -> None:
        self._next_tend_s = time.monotonic() + 1.0
        while not self._closed:
            self._wake.wait(WAKE_S)
            self._attempt(self._write_and_look)
        self._attempt(self._write_end)
        self._is_over = True
        self._over.ring()
        self._tell_flushed()

    def _attempt(self, function: Callable[[], None]) -> None:
        try:
            function()
        except Exception as error:  # noqa: BLE001 - memory is short or a file system gone; that may pass
            self._note(f"{type(error).__name__}: {error}")

    def _write_and_look(self) -> None:
        """What is done every 50 ms."""
        self._tell_flushed(self._write_frames)
        for watch in self.watches:
            if events := watch.look():
                self._write_of_watch(events)
        if time.monotonic() >= self._next_tend_s:
            self._next_tend_s = time.monotonic() + 1.0
            self._tend()
            self._write_events()
        request, self._close_request = self._close_request, None
        if request is not None:
            request()

    def _tell_flushed(self, write: Callable[[], None] | None = None) -> None:
        """Let go of who waited for what was given before now, once it is written."""
        waiting = [self._flushes.popleft() for _ in range(len(self._flushes))]
        try:
            if write is not None:
                write()
        finally:
            for done in waiting:
                done.ring()

    def _tend(self) -> None:
        """What is done once a second."""
        self.memory = read_memory()
        if not self.folder.is_dir():
            self._note(f"{self.folder} has been removed; what is recorded from now on is lost")
        if self._helper is not None and (problem := self._helper.ensure()) is not None:
            self._note(problem)

    def _write_frames(self) -> None:
        """Move the ring to the journal; what cannot be written stays in the ring for the next time."""
        with self._write_lock:
            while group := self._take_group():
                try:
                    self._journal.append_many("metrics", [encoded for _, encoded in group])
                except JournalError as error:
                    self._note(str(error))
                    self._give_back([frame for frame, _ in group])
                    return

    def _take_group(self) -> list[tuple[Frame | FrameSource, bytes]]:
        """Take frames from the ring, oldest first, until they make one write; empty when there are none."""
        group: list[tuple[Frame | FrameSource, bytes]] = []
        size = 0
        while size < _WRITE_BYTES:
            with self._ring_lock:
                try:
                    frame = self._ring.popleft()
                except IndexError:
                    break
            encoded = self._encode(frame)
            if encoded is not None:
                group.append((frame, encoded))
                size += len(encoded)
        return group

    def _give_back(self, frames: list[Frame | FrameSource]) -> None:
        self._ring.extendleft(reversed(frames))
        self._drop_oldest()

    def _drop_oldest(self) -> None:
        with self._ring_lock:
            with contextlib.suppress(IndexError):
                while len(self._ring) > RING_FRAMES:
                    self._ring.popleft()
                    self.lost_before_write += 1

    def _write_events(self) -> None:
        """Write waiting events in order."""
        if self._events_writer == threading.get_ident():
            # The garbage collector or a signal has come here amid this: what waits is written all the same.
            return
        with self._events_lock:
            self._events_writer = threading.get_ident()
            try:
                self._write_waiting_events()
            finally:
                self._events_writer = 0

    def _write_waiting_events(self) -> None:
        try:
            while self._unwritten_events:
                self._journal.append("events", self._unwritten_events[0])
                self._unwritten_events.popleft()
                self._progress += 1
        except JournalError as error:
            self._note(str(error))
            while len(self._unwritten_events) > UNWRITTEN_EVENTS:
                self._unwritten_events.popleft()
                self.lost_before_write += 1

    def _encode(self, record: Record | FrameSource) -> bytes | None:
        """Encode a record; one that cannot be encoded, or is too large for the journal, is counted."""
        try:
            encoded = encode(record if isinstance(record, Record) else record.build())
        except Exception as error:  # noqa: BLE001 - building reads the script's tensors, and ends no thread
            problem = f"a {type(record).__name__} does not encode: {error}"
        else:
            self._progress += 1
            if len(encoded) <= MAX_RECORD_BYTES:
                return encoded
            problem = f"a {type(record).__name__} takes {len(encoded)} bytes; {MAX_RECORD_BYTES} are allowed"
        self._note(problem)
        with self._ring_lock:
            self.lost_before_write += 1
        return None

    def _note(self, problem: str) -> None:
        if self.failed is None:
            _logger.warning("nanscope: training goes on, but its recording has a problem: %s", problem)
        self.failed = problem
