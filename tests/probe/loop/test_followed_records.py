"""Steps that C has followed: in small pieces on the recorder's thread, at once on the training thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from probe.delivery.recorder.ring_format import FRAME
from probe.guard import Guard
from probe.loop import followed_records
from probe.loop.followed_records import FollowedRecords
from probe.loop.step_queue import JUDGE_S


class Pieces:
    """Stands in for the incidents: counts how many records are taken each time that the lock is held."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    @contextmanager
    def judging(self, guard: Guard) -> Iterator[None]:
        self.taken.append(0)
        yield


class Records:
    """Stands in for the ring: records without a step in them, of one byte each."""

    def __init__(self, count: int, pieces: Pieces) -> None:
        self.counters, self._pieces = SimpleNamespace(head=count), pieces

    def records(self, begin: int) -> Iterator[Any]:
        for at in range(begin, self.counters.head):
            self._pieces.taken[-1] += 1
            yield SimpleNamespace(kind=FRAME, end=at + 1)


def followed(count: int) -> tuple[FollowedRecords, Pieces]:
    pieces = Pieces()
    records = FollowedRecords(
        SimpleNamespace(look=list),  # type: ignore[arg-type]
        SimpleNamespace(),  # type: ignore[arg-type]
        incidents=pieces,  # type: ignore[arg-type]
        guard=Guard(),
    )
    records._ring = Records(count, pieces)  # type: ignore[assignment]
    return records, pieces


def test_recorders_thread_takes_a_few_at_once_and_lets_training_go_on_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records, pieces = followed(10)
    pauses: list[int] = []
    monkeypatch.setattr(followed_records, "give_way", lambda: pauses.append(len(pieces.taken)))
    records.take(is_recorders_thread=True)
    assert pieces.taken == [8, 2]
    assert pauses == [1, 2]
    records.take(is_recorders_thread=True)
    assert len(pieces.taken) == 2


@pytest.mark.parametrize("age_s", [0.0, 0.15, 3.0, -60.0])
def test_a_step_is_judged_when_it_is_found(monkeypatch: pytest.MonkeyPatch, age_s: float) -> None:
    """No other one comes before the next look; whatever has been done to the machine's clock."""
    records, _ = followed(0)
    monkeypatch.setattr(followed_records, "measured_of", lambda *given: SimpleNamespace())
    monkeypatch.setattr(followed_records.time, "time", lambda: 1000.0 + age_s)
    monkeypatch.setattr(followed_records.time, "monotonic", lambda: 50.0)
    records._following[7] = SimpleNamespace(stack=())  # type: ignore[assignment]
    queued = records._queued(SimpleNamespace(template=7, step=3, time=1000.0))  # type: ignore[arg-type]
    assert queued is not None and queued.ended_s + JUDGE_S <= 50.0


def test_training_takes_all_at_once() -> None:
    records, pieces = followed(10)
    records.take()
    assert pieces.taken == [10]


def test_a_part_that_has_failed_is_not_tried_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    records, pieces = followed(10)

    def fail(*_: Any) -> None:
        raise ValueError("broken")

    monkeypatch.setattr(FollowedRecords, "_take", fail)
    records.take(is_recorders_thread=True)
    records.take(is_recorders_thread=True)
    assert pieces.taken == [0, 0]
