"""What may stay in the ring for another wake does, unless somebody waits for it or room runs out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from probe.delivery.journal.journal import JournalWriter
from probe.delivery.recorder.metrics_queue import MetricsQueue
from probe.delivery.recorder.ring_format import FRAME
from probe.wire import Frame, encode


class Waiting:
    """A queue with three frames in its ring, and who says whether they may stay."""

    def __init__(self, folder: Path) -> None:
        self.journal = JournalWriter(folder / "run" / "0-1", run="run", writer="0-1")
        self.queue = MetricsQueue(folder / "run" / "0-1", self.journal, pytest.fail)
        self.asked, self.answer = 0, True
        self.queue.may_wait = self._may_wait
        for step in range(3):
            self.append(step)

    def _may_wait(self) -> bool:
        self.asked += 1
        return self.answer

    def append(self, step: int) -> None:
        self.queue.append(FRAME, encode(Frame(step=step, time=0.0, scalars={"loss": 1.0})))

    def write(self, *, everything: bool = False, in_hurry: bool = False) -> int:
        self.queue.ring.appended_s = 0.0  # long ago
        self.queue.write(everything=everything, in_hurry=in_hurry)
        return self.journal.next_seq("metrics")


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[Waiting]:
    waiting = Waiting(tmp_path)
    yield waiting
    waiting.queue.close()
    waiting.journal.close()


def test_what_may_wait_stays_until_it_may_not(waiting: Waiting) -> None:
    assert waiting.write() == 0 and waiting.write() == 0
    waiting.answer = False
    assert waiting.write() == 3 and waiting.asked == 3


@pytest.mark.parametrize("who", [{"everything": True}, {"in_hurry": True}])
def test_nothing_waits_where_somebody_does(waiting: Waiting, who: dict[str, bool]) -> None:
    assert waiting.write(**who) == 3 and waiting.asked == 0


def test_an_empty_ring_is_not_asked_about(waiting: Waiting) -> None:
    waiting.write(everything=True)
    waiting.write()
    assert waiting.asked == 0


def test_a_crowded_ring_does_not_wait(waiting: Waiting) -> None:
    while not waiting.queue.is_crowded:
        waiting.append(5)
    assert waiting.write() > 3 and waiting.asked == 0


def test_an_older_ring_does_not_wait(waiting: Waiting) -> None:
    waiting.queue.make_room_for(20_000)
    waiting.append(3)
    assert waiting.write() == 4 and waiting.asked == 0
