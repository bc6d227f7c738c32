"""Takes the session's records to the journal, and sees to it that a helper ships them.

Lives in the training process. `event` and `frame` are called on the training thread; one daemon thread
takes the frames out of the ring, each of its tasks by its own period, and writes the end. Nothing here raises
into training. The garbage collector and signals' handlers may call any of it in the middle of any of it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Literal

import msgspec

from ...errors import JournalError
from ...guard import let_pass
from ...threads.life_sign import LifeSignWriter
from ...threads.pieces import give_way, process, work_in_pieces
from ...threads.processor_wait import ProcessorWait
from ...wire import (
    MEMBERS_IN_FULL,
    Document,
    Event,
    Frame,
    Gap,
    Layout,
    RunEnd,
    RunStart,
    encode_record,
    member_number,
)
from ..helper.helper import HelperKeeper, is_listened_to
from ..host_memory import MemorySample, read_memory
from ..journal.journal import DEFAULT_CAP_BYTES
from ..journal.run_json import write_run_json
from ..utilisation import UtilisationReader
from .bell import Bell
from .beside import END_WAIT_S, BesideWriter
from .events_queue import EventsQueue
from .metrics_queue import MetricsQueue
from .record_encoder import FrameSource, RecordEncoder
from .ring import Ring
from .ring_format import ADDITION, FRAME
from .schedule import Schedule, Watch
from .start_files import open_journal, write_start
from .thread_end import CLOSE_AGAIN_S, CLOSE_S, ThreadEnd

_logger = logging.getLogger(__name__)

WRITE_S: Final = 1.0
"""How often the thread takes frames out of the ring; a kill -9 takes none of them, the ring is a file.
Events do not wait for it."""
_LISTENED_S: Final = 0.1
"""The same, while a dashboard listens."""
_CROWDED_S: Final = 0.05
"""The same, while the ring is half full each time."""
_MEMORY_S: Final = 0.02
"""The same, where the ring is no file: what a kill takes is what waits in memory, 50 ms of steps at most."""
_TEND_S: Final = 1.0
_STREAMS: Final = ("events", "metrics")


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
        self.folder: Path = run_folder / f"{start.rank}-{start.incarnation}"
        self.group, self.world_size = start.group or start.run, start.world_size
        self.memory: MemorySample | None = read_memory()
        self._utilisation = UtilisationReader()
        self._utilisation.read()
        """Newest reading; None where it cannot be read."""
        self.processors = ProcessorWait()
        """Looked at as often."""
        self.failed: str | None = None
        """What last went wrong, in one sentence; None while all is well. The first is logged too."""
        self._pid = os.getpid()
        self._journal = open_journal(self.folder, start, cap_bytes)
        self._start = start
        self._first_records = [encode_record(start)]
        """Without which nobody understands the others: the start, the layouts."""
        self.removals: list[int] = []
        """How many records a folder had that somebody has removed, for who tells of it."""
        rest = write_start(self._journal, self._first_records[0], start, self._note)
        self._metrics = MetricsQueue(self.folder, self._journal, self._note)
        self._takers: tuple[Callable[[], object], ...] = ()
        self._metrics.before_take = self._call_takers
        self._encoder = RecordEncoder(self._note, self._metrics.count_lost)
        self.life_sign: LifeSignWriter | None = None
        """Made by who watches for hangs, one for all members."""
        self._schedule = Schedule()
        self._events = EventsQueue(self._journal, self._encoder, self._note)
        self.tally = self._events.tally
        """The warnings and critical events so far."""
        self.last_words: Callable[[], Sequence[Event | Gap]] = tuple
        """Called once nothing more can be written; returns what is to be written all the same."""
        self.beside = BesideWriter()
        self._flushes: deque[Bell] = deque()
        self._wants_all = False
        self._wake = Bell()
        self._wake_up, self._beats = self._wake.ring, process.lull.beats
        self._closed = False
        self._end: RunEnd | None = None
        self._is_ended = False
        self._thread_end = ThreadEnd()
        self._progress = 0
        self._close_requests: deque[Callable[[], None]] = deque()
        self._once: deque[Callable[[], None]] = deque(rest)
        self.watches: list[Watch] = []
        """They look at the training from the thread, in this order; `look_with` adds to them."""
        self._watches_lock = threading.Lock()
        self.is_listened_to = False
        """Whether a dashboard has taken what this host's trainers write within the last seconds."""
        self._helper = HelperKeeper(run_folder, connect) if connect != "" else None
        self._tend()
        self._thread = threading.Thread(target=self._run, name="nanscope-recorder", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # a limit on threads, or the interpreter is ending
            self._thread_end.is_over = True
            self.close(outcome="finished", last_step=None)
            let_pass(error)
            raise JournalError(f"no thread can be started: {error}") from error

    @property
    def has_helper(self) -> bool:
        """Whether a helper process looks at this one from outside."""
        return self._helper is not None

    @property
    def evicted(self) -> int:
        """Frames of this incarnation that were deleted to keep the journal below its cap."""
        return self._journal.evicted

    @property
    def lost_before_write(self) -> int:
        """Records dropped because they could not be encoded or written."""
        return self._events.lost + self._metrics.lost

    @property
    def blocked(self) -> str | None:
        """Why nothing can be written just now, in one sentence; None while it can."""
        return self._metrics.problem or self._events.problem

    @property
    def waiting(self) -> int:
        """Records that could not be written yet."""
        return self._metrics.waiting + self._events.waiting

    @property
    def metrics_end(self) -> int:
        """The number that the next record of the metrics gets."""
        return self._journal.next_seq("metrics")

    @property
    def lost_steps(self) -> tuple[int, int] | None:
        """The first and the last step that were lost since `forget_lost_steps`; None where none was."""
        return self._metrics.lost_steps

    def forget_lost_steps(self) -> None:
        """They have been told."""
        self._metrics.lost_steps = None

    @property
    def ring(self) -> Ring:
        """What is appended to at the end of a step, by C code too; a larger layout begins another one."""
        return self._metrics.ring

    def call_before_taking(self, look: Callable[[], object]) -> None:
        """Have `look` called on the recorder's thread before records leave the ring; it may not raise."""
        self._takers = (*self._takers, look)

    def _call_takers(self) -> None:
        for look in self._takers:
            look()

    def look_with(self, *watches: Watch) -> None:
        """Have these look at the training, in their order after those that do; the first time at once."""
        with self._watches_lock:
            self.watches = [*self.watches, *watches]
        self._wake.ring()

    def release(self, watches: Sequence[Watch], taker: Callable[[], object]) -> None:
        """A session has written all of its own, and others go on here: its watches write their last and go.

        Args:
            watches: that looked for it.
            taker: that it gave to `call_before_taking`.
        """
        self.do_once(partial(self._release, watches, taker))

    def _release(self, watches: Sequence[Watch], taker: Callable[[], object]) -> None:
        taker()
        self._takers = tuple(one for one in self._takers if one is not taker)
        with self._watches_lock:
            self.watches = [watch for watch in self.watches if watch not in watches]
        for watch in watches:
            self._schedule.forget(watch)
            self._write_of_watch(watch.close())

    def do_once(self, task: Callable[[], None]) -> None:
        """Have the thread do something now, and not again; it may not raise. Between two of them it looks."""
        self._once.append(task)
        self._wake.ring()

    def event(self, record: Event | Layout | Document | RunStart) -> None:
        """Write a record to the events stream before returning, so that it survives a kill -9.

        On a slow disk this is done for the first critical event of a step, and the thread writes the others.
        What cannot be written is kept (up to a limit) and tried again by the thread, in order.
        """
        if self._is_inert():
            return
        if isinstance(record, Layout | RunStart):
            if isinstance(record, Layout):
                self._metrics.make_room_for(len(record.parameters))
                self._encoder.note_layout(record)
            if member_number(record.member) >= MEMBERS_IN_FULL:
                return
            if (first := self._encoder.encode(record)) is not None:
                self._first_records.append(first)
        self._events.keep(record)
        if self.is_own_thread:
            self._events.write()
        elif not self._events.write_now(record):
            self._wake.ring()

    def settle(self, event_id: str, line: str) -> None:
        """Have an event say of its bundle what is known of it now, in place of `BEING_WRITTEN`."""
        if not self._is_inert():
            self._events.settle(event_id, line)
            self._wake.ring()

    def document(self, document: Document) -> None:
        """Write a document as `event` writes an event; `MAX_DOCUMENTS` of them at most."""
        if self.is_own_thread:
            # What a task of the thread has measured is written while the session closes, too.
            self._write_of_watch([document])
        else:
            self.event(document)

    def frame(self, frame: Frame | FrameSource, *, is_addition: bool = False) -> None:
        """Put a frame into the ring before returning, so that it survives a kill -9.

        Args:
            frame: what is known of a step.
            is_addition: it is more of the step that was put there last, and becomes one frame with it.
        """
        if self._is_inert():
            return
        encoded = self._encoder.encode(frame)
        if encoded is not None and self._metrics.append(ADDITION if is_addition else FRAME, encoded):
            self._schedule.again(self._metrics, 0.0)
            self._wake.ring()

    def flush(self) -> bool:
        """Have the thread write what is in the ring, and wait for it, 2 s at most; whether it has."""
        # The garbage collector may call this on the thread itself, in the middle of its writing.
        if self._is_inert() or self.is_own_thread:
            return True
        done = Bell()
        self._flushes.append(done)
        self._wake.ring()
        return done.wait(CLOSE_S)

    @property
    def is_open(self) -> bool:
        """Whether what is given is still written."""
        return not self._is_inert()

    @property
    def is_own_thread(self) -> bool:
        """Whether the caller is the thread that writes: it must not wait for itself."""
        return threading.current_thread() is self._thread

    def close_soon(self, close: Callable[[], None]) -> None:
        """Have the thread call `close` at its next wake; takes no lock: may be called at any moment."""
        self._close_requests.append(close)

    def close(self, *, outcome: Literal["finished", "exception"], last_step: int | None) -> bool:
        """Have the thread write what is left and the `RunEnd`, and end; wait for it, 2 s at most.

        On a slow disk it waits for bundles, 10 s at most, and then for 20 s at most, as long as one write
        follows the other. On the thread itself only as its last act. What breaks off the caller (a Ctrl-C, a
        signal's handler) does not touch what is being written. Idempotent: the first outcome counts. Returns
        whether that is done; later calls wait again, for a moment.
        """
        if os.getpid() != self._pid:
            return True
        if self._end is None:
            self._end_bundles()
            self._thread_end.begin()
            self._end = RunEnd(time=time.time(), step=last_step, outcome=outcome)
        self._closed = True
        self._wake.ring()
        if not self.is_own_thread:
            if not self._thread_end.wait(self):
                return False
            if self._thread.ident is not None:
                self._thread.join(CLOSE_AGAIN_S)
        self._attempt(self._write_end)
        return True

    def _end_bundles(self) -> None:
        """Wait for those that are being written, unless they wait for this thread; say which are not done."""
        self.beside.end(0.0 if self.is_own_thread or self.is_writing_here else END_WAIT_S)

    @property
    def is_writing_here(self) -> bool:
        """Whether the caller, a signal's handler, has interrupted a write: the thread waits for that one."""
        return self._events.is_being_written_here

    @property
    def progress(self) -> int:
        """Grows as long as the thread gets on."""
        return self._progress + self._encoder.encoded + self._journal.writes

    @property
    def write_s(self) -> float:
        """How long the newest write took."""
        return self._journal.write_s

    def _write_end(self) -> None:
        """Write everything that is left, once; nobody else writes any more."""
        end = self._end
        if end is None or self._is_ended:
            return
        self._is_ended = True
        self._progress += 1
        self._wants_all = True
        self._write_frames()
        while self._once:
            self._once.popleft()()
        for watch in self.watches:
            self._write_of_watch(watch.close())
        if self.life_sign is not None:
            self.life_sign.close()
        self._events.write()
        self._count_unwritten()
        lost = self.lost_before_write
        if lost:
            _logger.warning("nanscope: %d records of this run could not be written and are lost", lost)
        self._write_of_watch(self.last_words())
        self._events.write()
        end = msgspec.structs.replace(
            end,
            lost_before_write=lost,
            events_written=self._journal.next_seq("events") + 1,
            metrics_written=self._journal.next_seq("metrics"),
        )
        self._events.keep_last(end)
        self._events.write()
        self._journal.close()
        # The helper of an earlier incarnation may have left since the thread last looked.
        if self._helper is not None and (problem := self._helper.ensure(is_last=True)) is not None:
            self._note(problem)

    def _write_of_watch(self, records: Sequence[Event | Document | Gap]) -> None:
        """Like `event`, also while closing: what the watch has told once, it does not tell again."""
        if records:
            for record in records:
                self._events.keep(record)
            self._events.write()

    def _count_unwritten(self) -> None:
        """Give up what the disk has no room for."""
        self._metrics.close()
        self._events.give_up()

    def _is_inert(self) -> bool:
        return self._closed or os.getpid() != self._pid

    def _run(self) -> None:
        work_in_pieces()
        self._schedule.again(self._tend, _TEND_S)
        self._schedule.again(self._metrics, WRITE_S)
        while not self._closed:
            self._wait()
            self._attempt(self._work)
        self._attempt(self._write_end)
        self._thread_end.note()
        self._tell_flushed()

    def _wait(self) -> None:
        """Sleep until somebody rings or something is due; a lull shortly before that is the better time."""
        wait_s, lull = self._schedule.wait_s, process.lull
        before, self._beats = self._beats, lull.beats
        # Where training has not gone on since, a lull is not worth a wake of its own.
        early_s = self._schedule.early_s(wait_s) if self._beats != before else 0.0
        if self._wake.wait(wait_s - early_s) or not early_s or lull.is_on:
            return
        lull.call_at_next(self._wake_up)
        self._wake.wait(early_s)
        lull.call_at_next(None)

    def _attempt(self, function: Callable[[], None]) -> None:
        try:
            function()
        except Exception as error:  # noqa: BLE001 - memory is short or a file system gone; that may pass
            self._note(f"{type(error).__name__}: {error}")

    def _work(self) -> None:
        """Do what is due."""
        schedule = self._schedule
        if self._events.is_left:  # before the frames, which may need a layout
            self._events.write()
        if self._once:
            self._once.popleft()()
            if self._once:
                self._wake.ring()
        if self._flushes or schedule.is_due(self._metrics):
            self._tell_flushed(self._write_frames)
        for watch in self.watches:
            if schedule.is_due(watch):
                self._write_of_watch(watch.look())
                schedule.again(watch, watch.period_s)
                give_way()
        if schedule.is_due(self._tend):
            schedule.again(self._tend, _TEND_S)
            self._tend()
            self._events.write()
        for _ in range(len(self._close_requests)):  # one may ask to be called again
            self._close_requests.popleft()()

    @property
    def _usual_s(self) -> float:
        """How often frames are written just now."""
        if self._metrics.is_crowded:
            return _CROWDED_S
        if self._metrics.is_in_memory_alone:
            return _MEMORY_S
        return _LISTENED_S if self.is_listened_to else WRITE_S

    def _write_frames(self) -> None:
        """Empty the ring; the newest step waits a moment for `run.log`, unless somebody waits for it."""
        left_s = self._metrics.write(everything=self._wants_all)
        usual_s = self._usual_s
        self._schedule.again(self._metrics, usual_s if left_s is None else min(left_s, usual_s))

    def _tell_flushed(self, write: Callable[[], None] | None = None) -> None:
        """Let go of who waited for what was given before now, once it is written."""
        waiting = [self._flushes.popleft() for _ in range(len(self._flushes))]
        self._wants_all = bool(waiting)
        try:
            if write is not None:
                write()
        finally:
            for done in waiting:
                done.ring()

    def _tend(self) -> None:
        """What is done once a second."""
        self.processors.look()
        used, memory = self._utilisation.read(), read_memory()
        self.memory = None if memory is None else msgspec.structs.replace(memory, utilisation=used)
        if not self._journal.is_there():
            self._begin_again()
        if self._helper is None:
            return
        self.is_listened_to = is_listened_to(self.folder.parent)
        if (problem := self._helper.ensure()) is not None:
            self._note(problem)

    def _begin_again(self) -> None:
        """Somebody has removed the folder, or files of it: make it anew, and say who writes there."""
        self._metrics.lose_files(f"{self.folder} was removed")
        written = sum(self._journal.next_seq(stream) for stream in _STREAMS)
        try:
            with self._events.lock:
                self._journal.begin_again()
                for record in self._first_records:
                    self._journal.append("events", record)
            write_run_json(self.folder.parent, self._start)
        except JournalError as error:
            self._note(f"{self.folder} was removed, and what is recorded is lost: {error}")
            return
        self.removals.append(written)
        self._note(f"{self.folder} was removed with {written:,} records; a new one is written")

    def _note(self, problem: str) -> None:
        if self.failed is None:
            _logger.warning("nanscope: training goes on, but its recording has a problem: %s", problem)
        self.failed = problem
