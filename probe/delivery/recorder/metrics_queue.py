"""What waits for the metrics stream: the ring, and what found no room in it.

`append` is called on the training thread, `write` on the recorder's. Records keep their order: as long as
something waits beside the ring, nothing is appended to it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from ...errors import JournalError
from ...threads.pieces import give_way
from ..journal.journal import SLOW_S, JournalWriter
from .frame_mould import FrameMoulds
from .ring import Ring, capacity_for
from .ring_format import ADDITION, FRAME, RAW, RingRecord, metrics_of, read_raw

HOLD_S: Final = 0.2
"""The newest step waits so long in the ring for what `run.log` adds to it."""
MEMORY_HOLD_S: Final = 0.02
"""The same, where the ring is no file: a kill would take the step."""
RING_FRAMES: Final = 4096
"""So many records wait beside a full ring, in memory alone."""
_PIECE_RECORDS: Final = 32
_PIECE_BYTES: Final = 256 * 1024
"""What is written at once, so that training gets Python's lock again within a millisecond."""
_SLOW_PIECES: Final = 32
"""So many pieces are written at once on a slow disk."""
_Group = tuple[bytes | None, Sequence[RingRecord]]


class MetricsQueue:
    """The rings of one writer.

    Args:
        folder: the writer's; its ring lies there.
        journal: where the records go.
        note: is told, in one sentence, what goes wrong.

    Attributes:
        lost: records that found no room, or that cannot be written.
    """

    def __init__(self, folder: Path, journal: JournalWriter, note: Callable[[str], None]) -> None:
        self._folder, self._journal, self._note = folder, journal, note
        self._rings: tuple[Ring, ...] = ()
        self._begun = 0
        self._lost = 0
        self._beside: deque[tuple[int, bytes]] = deque()
        self._lock = threading.RLock()
        self._write_lock = threading.Lock()
        self._moulds = FrameMoulds()
        self._has_warned = False
        self.problem: str | None = None
        """Why nothing can be written to the journal just now; None while it can."""
        self.lost_steps: tuple[int, int] | None = None
        """The first and the last step of those that found no room; whoever tells of them sets it back."""
        self.before_take: Callable[[], None] = lambda: None
        """Called before records leave the ring, for who has to see them there."""

    @property
    def lost(self) -> int:
        """Records that found no room, or that cannot be written."""
        return self._lost

    @property
    def ring(self) -> Ring:
        """The ring that is appended to; made by the first who asks."""
        if not self._rings:
            self.make_room_for(0)
        return self._rings[-1]

    def make_room_for(self, parameters: int) -> None:
        """See to a ring that is large enough for steps of so many parameters; an older one is emptied first.

        Code that knows a ring by its address has to ask for the new one.
        """
        with self._lock:
            wanted = capacity_for(parameters)
            if self._rings and self._rings[-1].capacity >= wanted:
                return
            name = f"ring-{self._begun}" if self._begun else "ring"
            self._begun += 1
            ring = Ring(self._folder / name, wanted)
            if self._beside:
                ring.hold(True)
            self._rings = (*self._rings, ring)
            self._tell_of(ring)

    def append(self, kind: int, data: bytes) -> bool:
        """Append a record; returns whether the thread had better come soon."""
        ring = self.ring
        with self._lock:
            if self._beside or not ring.append(kind, data):
                ring.hold(True)
                self._beside.append((FRAME if kind == ADDITION else kind, data))
                while len(self._beside) > RING_FRAMES:
                    self._lose(step_of(self._beside.popleft()[1]))
        if ring.problem is not None:
            self._tell_of(ring)
        return ring.is_wanted or bool(self._beside) or ring.problem is not None

    def _lose(self, step: int | None) -> None:
        """Count a record that found no room, and note its step."""
        self._lost += 1
        if step is not None:
            first, last = self.lost_steps or (step, step)
            self.lost_steps = (min(first, step), max(last, step))

    @property
    def waiting(self) -> int:
        """Records that are in memory or in a ring, and not in the journal."""
        return len(self._beside) + sum(ring.waiting for ring in self._rings)

    @property
    def is_in_memory_alone(self) -> bool:
        """Whether a kill of this process would take what waits: its ring is no file."""
        return any(ring.problem is not None for ring in self._rings)

    def lose_files(self, why: str) -> None:
        """The rings' files are gone: what waits is in memory alone from now on."""
        with self._lock:
            for ring in self._rings:
                ring.lose_file(why)
                self._tell_of(ring)

    def count_lost(self, records: int = 1) -> None:
        """Count what never came here."""
        with self._lock:
            self._lost += records

    # -- on the recorder's thread

    @property
    def is_crowded(self) -> bool:
        """Whether an appender has found the ring half full."""
        return bool(self._beside) or any(ring.is_wanted for ring in self._rings)

    def write(self, *, everything: bool) -> float | None:
        """Move to the journal what is to be moved; what cannot be written stays.

        Args:
            everything: the newest step, too, to which something may still be added.

        Returns:
            Seconds after which the newest step is old enough; None where none waits for that, or where
            steps come so fast that it is when the next ones are written.
        """
        if not self._beside and all(ring.is_empty for ring in self._rings):
            return None
        with self._write_lock:
            left_s = None
            try:
                for ring in self._rings:
                    ring.check()
                    is_newest = ring is self._rings[-1]
                    left_s = self._write_ring(ring, everything=everything or not is_newest)
                    if not is_newest and ring.is_empty:
                        self._rings = tuple(other for other in self._rings if other is not ring)
                        ring.close()
                if self._beside:
                    self._write_ring(self.ring, everything=True)
                    self._write_beside()
                self.problem = None
            except JournalError as error:
                self.problem = str(error)
                self._note(str(error))
            return left_s

    def _write_ring(self, ring: Ring, *, everything: bool) -> float | None:
        has_written = False
        while True:
            groups, left_s = self._groups(ring, everything)
            if not groups:
                self.count_lost(ring.skip_damaged(self._journal.next_seq("metrics")))
                return None if has_written else left_s
            self.before_take()
            encoded = [data for data, _ in groups if data is not None]
            last = groups[-1][1][-1]
            ring.take(
                end=last.end,
                end_seq=last.seq + 1,
                records=len(encoded),
                next_seq=self._journal.next_seq("metrics"),
                store=lambda data=encoded: self._store(data),  # type: ignore[misc]
            )
            self.count_lost(len(groups) - len(encoded))
            has_written = True
            give_way()
            if left_s is not None or ring.is_empty:
                return None

    def _groups(self, ring: Ring, everything: bool) -> tuple[list[_Group], float | None]:
        """Return what is to be written next, and how long the newest step of all still waits."""
        groups: list[_Group] = []
        size, pieces = 0, _SLOW_PIECES if self._journal.write_s >= SLOW_S else 1
        for group in metrics_of(ring.records(), ring.templates, self._moulds.press):
            groups.append(group)
            size += len(group[0] or b"")
            if len(groups) > _PIECE_RECORDS * pieces or size > _PIECE_BYTES * pieces:
                # The last one may go on after the end of what was looked at.
                return groups[:-1] or groups, None
        hold_s = HOLD_S if ring.problem is None else MEMORY_HOLD_S
        if groups and not everything and (left_s := hold_s - _age_s(ring, groups[-1][1])) > 0:
            return groups[:-1], left_s
        return groups, None

    def _store(self, records: list[bytes]) -> None:
        if records:
            self._journal.append_many("metrics", records)

    def _write_beside(self) -> None:
        while self._beside:
            with self._lock:
                piece = [self._beside[index] for index in range(min(len(self._beside), _PIECE_RECORDS))]
            # Their ring is empty. It says that they are being moved: its file is never behind the journal.
            ring = self.ring
            ring.take(
                end=ring.counters.tail,
                end_seq=ring.counters.next_seq - ring.waiting,
                records=len(piece),
                next_seq=self._journal.next_seq("metrics"),
                store=lambda data=piece: self._store([one for _, one in data]),  # type: ignore[misc]
            )
            with self._lock:
                for one in piece:
                    if self._beside and self._beside[0] is one:
                        self._beside.popleft()
                if not self._beside:
                    self.ring.hold(False)

    def close(self) -> None:
        """Give up what could not be written, and remove the files.

        Where the journal cannot be written, a ring's file stays: who reads finds there what is in it.
        """
        with self._lock:
            for ring in self._rings:
                if self.problem is None or not ring.leave():
                    for record in ring.records():
                        self._lose(_step_of_record(record))
                    ring.close()
            for _, data in self._beside:
                self._lose(step_of(data))
            self._beside.clear()

    def _tell_of(self, ring: Ring) -> None:
        if ring.problem is not None and not self._has_warned:
            self._has_warned = True
            self._note(f"a kill of this process may lose its newest steps: {ring.problem}")


class _Step(msgspec.Struct):
    """What of a frame says which step it is of."""

    step: int


_steps = msgspec.msgpack.Decoder(_Step)


def step_of(data: bytes | memoryview) -> int | None:
    """Return the step of an encoded frame; None of another record."""
    try:
        return _steps.decode(data).step
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _step_of_record(record: RingRecord) -> int | None:
    return read_raw(record.payload).step if record.kind == RAW else step_of(record.payload)


def _age_s(ring: Ring, records: Sequence[RingRecord]) -> float:
    """How long ago a step was appended."""
    first = records[0]
    if first.kind != RAW:
        return time.monotonic() - ring.appended_s
    age_s = time.time() - read_raw(first.payload).time
    # A clock that was set back is no reason to wait.
    return age_s if age_s >= 0 else HOLD_S
