"""Takes the session's records to the journal, and sees to it that a helper ships them.

Lives in the training process. `event` and `frame` are called on the training thread; one daemon thread
writes the frames, reads the process's memory and looks after the helper. Nothing here raises into training.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol

import psutil

from .errors import JournalError
from .helper import HelperKeeper
from .journal import DEFAULT_CAP_BYTES, JournalWriter, write_run_json
from .wire import MAX_RECORD_BYTES, Event, Frame, Layout, Record, RunEnd, RunStart, encode

_logger = logging.getLogger(__name__)

WAKE_S: Final = 0.05
"""How often the thread writes; also the most that a kill -9 can take from the metrics."""
RING_FRAMES: Final = 4096
UNWRITTEN_EVENTS: Final = 256
_WRITE_BYTES: Final = 4 * 1024**2
"""Frames are written in groups of about this size, so that a segment does not outgrow its limit by much."""
_CLOSE_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySample:
    """Memory as the operating system sees it, read about once a second."""

    rss_bytes: int
    """Resident memory of the training process."""
    system_used_bytes: int
    system_total_bytes: int


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
        """Called once, when the thread has ended; returns what is to be written before the run's end."""
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
        self._ring_lock = threading.Lock()
        self._write_lock = threading.Lock()
        self._events_lock = threading.Lock()
        self._unwritten_events: deque[bytes] = deque()
        self._wake = threading.Event()
        self._closed = False
        self._close_request: Callable[[], None] | None = None
        self.watches: list[Watch] = []
        """They look at the training from the thread; to be added by who starts the session."""
        self._helper = HelperKeeper(run_folder, connect) if connect != "" else None
        self._tend()
        self._thread = threading.Thread(target=self._run, name="nanscope-recorder", daemon=True)
        self._thread.start()

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
            with self._events_lock:
                self._unwritten_events.append(encoded)
                self._write_events()

    def frame(self, frame: Frame | FrameSource) -> None:
        """Hand over a frame; the thread writes it within 50 ms. A full ring drops its oldest frame."""
        if self._is_inert():
            return
        self._ring.append(frame)
        if len(self._ring) < RING_FRAMES // 2:
            return
        self._wake.set()
        with self._ring_lock:
            while len(self._ring) > RING_FRAMES:
                self._ring.popleft()
                self.lost_before_write += 1

    def flush(self) -> None:
        """Write what is in the ring, on the calling thread."""
        if not self._is_inert():
            self._write_frames()

    def close_soon(self, close: Callable[[], None]) -> None:
        """Have the thread call `close` within 50 ms; takes no lock, so it may be called amid anything."""
        self._close_request = close

    def close(self, *, outcome: Literal["finished", "exception"], last_step: int | None) -> None:
        """Write what is left and the `RunEnd`, then stop the thread. Idempotent; waits 2 s at most."""
        if self._is_inert():
            return
        self._closed = True
        self._wake.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_S)
        self._write_frames()
        for watch in self.watches:
            self._write_of_watch(watch.close())
        with self._events_lock:
            self._write_events()
            self._count_unwritten()
            lost = self.lost_before_write
            if lost:
                _logger.warning("nanscope: %d records of this run could not be written and are lost", lost)
            end = RunEnd(time=time.time(), step=last_step, outcome=outcome, lost_before_write=lost)
            self._unwritten_events.append(encode(end))
            self._write_events()
        self._journal.close()
        # The helper of an earlier incarnation may have left since the thread last looked.
        if self._helper is not None and (problem := self._helper.ensure(is_last=True)) is not None:
            self._note(problem)

    def _write_of_watch(self, events: list[Event]) -> None:
        """Like `event`, also while closing: what the watch has told once, it does not tell again."""
        encoded = list(filter(None, map(self._encode, events)))
        with self._events_lock:
            self._unwritten_events.extend(encoded)
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
        next_tend = time.monotonic() + 1.0
        while not self._closed:
            self._wake.wait(WAKE_S)
            self._wake.clear()
            self._write_frames()
            for watch in self.watches:
                if events := watch.look():
                    self._write_of_watch(events)
            if self._close_request is not None:
                self._close_request()
                return
            if time.monotonic() >= next_tend:
                next_tend = time.monotonic() + 1.0
                self._tend()
                with self._events_lock:
                    self._write_events()

    def _tend(self) -> None:
        """What is done once a second."""
        self.memory = read_memory()
        if not self.folder.is_dir():
            self._note(f"{self.folder} has been removed; what is recorded from now on is lost")
        if self._helper is not None and (problem := self._helper.ensure()) is not None:
            self._note(problem)

    def _write_frames(self) -> None:
        """Move the ring to the journal; what cannot be written stays in the ring for the next time."""
        if not self._write_lock.acquire(timeout=_CLOSE_S):
            return
        try:
            while group := self._take_group():
                try:
                    self._journal.append_many("metrics", [encoded for _, encoded in group])
                except JournalError as error:
                    self._note(str(error))
                    self._give_back([frame for frame, _ in group])
                    return
        finally:
            self._write_lock.release()

    def _take_group(self) -> list[tuple[Frame | FrameSource, bytes]]:
        """Take frames from the ring, oldest first, until they make one write; empty when there are none."""
        group: list[tuple[Frame | FrameSource, bytes]] = []
        size = 0
        while size < _WRITE_BYTES:
            with self._ring_lock:
                if not self._ring:
                    break
                frame = self._ring.popleft()
            encoded = self._encode(frame)
            if encoded is not None:
                group.append((frame, encoded))
                size += len(encoded)
        return group

    def _give_back(self, frames: list[Frame | FrameSource]) -> None:
        with self._ring_lock:
            self._ring.extendleft(reversed(frames))
            while len(self._ring) > RING_FRAMES:
                self._ring.popleft()
                self.lost_before_write += 1

    def _write_events(self) -> None:
        """Write waiting events in order; `_events_lock` is held."""
        try:
            while self._unwritten_events:
                self._journal.append("events", self._unwritten_events[0])
                self._unwritten_events.popleft()
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


def read_memory() -> MemorySample | None:
    """Read this process's resident memory and the machine's; None where the system does not tell."""
    try:
        machine = psutil.virtual_memory()
        return MemorySample(
            rss_bytes=psutil.Process().memory_info().rss,
            system_used_bytes=machine.total - machine.available,
            system_total_bytes=machine.total,
        )
    except (psutil.Error, OSError):
        return None
