"""The memory snapshots of a run: those that the script takes, every so many steps, and at each epoch's end.

The automatic ones are read on the recorder's thread, never on the one that trains. However long the run, few
hundred are written of each sort: the longer it lasts, the further apart they are.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal

from ..delivery.recorder.recorder import Recorder
from ..wire import Document

if TYPE_CHECKING:
    from ..wire.memory_snapshots import MemorySnapshot

_KEPT: Final = 1000
"""Newest snapshots that stay in memory, some hundred bytes each."""
_STAGE: Final = 64
_CADENCE_S: Final = 0.25
_USUAL_S: Final = 1.0
MOST_ASKED: Final = 256
"""Snapshots of a session that somebody outside may ask for."""
_FREE: Final = 16
"""So many snapshots of epochs are taken whatever they cost."""
_REST: Final = 50.0
"""After that the thread rests between two this many times as long as the last one took: 2 % of its time."""


class Thinning:
    """Lets all of the first ones through, then every second, every fourth ...: `_STAGE` of each density.

    A billion asked for are less than 1,700 let through: the journal takes 4,096 documents of a start.
    """

    def __init__(self, stage: int = _STAGE) -> None:
        self._stage, self._stride, self._asked, self._taken = stage, 1, 0, 0

    def wants(self) -> bool:
        """Whether this one is taken."""
        number, self._asked = self._asked, self._asked + 1
        if number % self._stride:
            return False
        self._taken += 1
        if self._taken % self._stage == 0:
            self._stride *= 2
        return True


class RunSnapshots:
    """Takes, writes and keeps the snapshots of one session. A `Watch` of the recorder's thread.

    Args:
        recorder: writes the documents.
        every: steps between two automatic ones; 0: none but those of epochs.
        last_step: gives the number of the newest finished step, on any thread; None before the first.
        clock: seconds.
    """

    def __init__(
        self,
        recorder: Recorder,
        *,
        every: int,
        last_step: Callable[[], int | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._recorder, self._every, self._last_step, self._clock = recorder, every, last_step, clock
        self._kept: deque[MemorySnapshot] = deque(maxlen=_KEPT)
        self._due, self._previous = every, -1
        self._ended: deque[tuple[int, int | None]] = deque(maxlen=_FREE)
        """Epochs whose snapshot is still to be taken: number, last step."""
        self._epochs = self._asked = 0
        self._epoch_not_before_s = 0.0
        self._of_steps, self._of_epochs, self._of_calls = Thinning(), Thinning(), Thinning(4 * _STAGE)

    @property
    def kept(self) -> list[MemorySnapshot]:
        """The newest ones, in the order in which they were taken."""
        return list(self._kept)

    def end_epoch(self, number: int) -> None:
        """An epoch has ended: have memory read soon; on the training thread, which waits for nothing."""
        if self._of_epochs.wants():
            self._ended.append((number, self._last_step()))
            self._recorder.do_once(self._write_epochs)

    def take(self, label: str, *, uss: bool = True, tracked: tuple[int, int] = (0, 0)) -> MemorySnapshot:
        """Take one that the script asks for, on its thread, and write it; see `read_snapshot`."""
        from .process_memory import read_snapshot

        step = self._last_step()
        snapshot = read_snapshot(label, step=step, uss=uss, tracked=tracked)
        self._kept.append(snapshot)
        if self._of_calls.wants():
            at = "" if step is None else f"step {step:,}"
            self._recorder.document(_document(snapshot, f"{label}, {at}" if label and at else label or at))
        return snapshot

    def take_asked(self, who: str) -> MemorySnapshot:
        """Take one that somebody outside asks for, and write it; on the recorder's thread.

        Args:
            who: asks, in words.

        Raises:
            ValueError: `MOST_ASKED` of this session were asked for already.
        """
        if self._asked >= MOST_ASKED:
            raise ValueError(
                f"{MOST_ASKED} memory snapshots of this session were asked for, which is the most"
            )
        self._asked += 1
        document = self._read("request", f"asked for by {who} ({self._asked})", self._last_step())
        self._recorder.document(document)
        return self._kept[-1]

    # -- Watch

    @property
    def period_s(self) -> float:
        """Seconds until the next look."""
        return _CADENCE_S if self._every else _USUAL_S

    def look(self) -> list[Document]:
        """Take the one of the cadence, where it is due."""
        step = self._last_step()
        if not self._every or step is None:
            return []
        if step < self._previous:  # steps have restarted
            self._due = self._every
        self._previous, done = step, step + 1
        if done < self._due:
            return []
        self._due = (done // self._every + 1) * self._every
        return [self._read("steps", f"step {step:,}", step)] if self._of_steps.wants() else []

    def close(self) -> list[Document]:
        """Take those of epochs that have ended just now."""
        return self._of_ended_epochs()

    def _write_epochs(self) -> None:
        for document in self._of_ended_epochs():
            self._recorder.document(document)

    def _of_ended_epochs(self) -> list[Document]:
        found: list[Document] = []
        while self._ended:
            number, step = self._ended.popleft()
            if self._epochs >= _FREE and self._clock() < self._epoch_not_before_s:
                continue
            began_s = self._clock()
            found.append(self._read("epoch", f"epoch {number:,}", step))
            self._epochs += 1
            now_s = self._clock()
            self._epoch_not_before_s = now_s + _REST * (now_s - began_s)
        return found

    def _read(self, cause: Literal["steps", "epoch", "request"], label: str, step: int | None) -> Document:
        from .process_memory import read_snapshot

        snapshot = read_snapshot(label, cause=cause, step=step)
        self._kept.append(snapshot)
        return _document(snapshot, label)


def _document(snapshot: MemorySnapshot, key: str) -> Document:
    from ..wire.documents import make_document
    from ..wire.memory_snapshots import MEMORY_SNAPSHOT

    return make_document(snapshot, kind=MEMORY_SNAPSHOT, key=key, step=snapshot.step, time=snapshot.time)
