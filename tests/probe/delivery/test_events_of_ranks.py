"""What rank 0 reads at its end beside its own journal: events of the other ranks of this start."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest
from ranks_run import BEGAN, RUN, bad_from, frames, incarnation_of, write_rank

from probe.delivery.journal.journal import JournalWriter
from probe.delivery.journal.rank_events import events_beside
from probe.wire import Event, encode

STEPS = range(4)


def event_of(rank: int, number: int, began: float = BEGAN, *, severity: str = "warning") -> Event:
    return Event(
        id=f"{rank:08x}{number:08x}",
        run=RUN,
        rank=rank,
        incarnation=incarnation_of(rank, began),
        step=number,
        time=began,
        kind="loss_spike",
        severity=severity,  # type: ignore[arg-type]
        message="It jumps.",
    )


def written(spool: Path, rank: int, *events: Event, began: float = BEGAN, ends: bool = True) -> Path:
    steps = list(frames(rank, STEPS, began=began))
    return write_rank(spool, rank, 3, steps, events=events, began=began, ends=ends)


def test_events_of_other_ranks_are_read_in_their_newest_states(tmp_path: Path) -> None:
    own = written(tmp_path, 0, event_of(0, 1))
    written(tmp_path, 1, event_of(1, 1), event_of(1, 2), event_of(1, 1, severity="critical"))
    written(tmp_path, 2)
    found = events_beside(own, patience_s=60.0)
    assert [(event.rank, event.step, event.severity) for event in found] == [
        (1, 1, "critical"),
        (1, 2, "warning"),
    ]


def test_events_of_an_earlier_start_of_the_run_are_left_out(tmp_path: Path) -> None:
    for rank in (0, 1):
        written(tmp_path, rank, event_of(rank, 1))
    later = time.time() + 3600
    own = written(tmp_path, 0, began=later)
    assert events_beside(own, patience_s=0.0) == []
    written(tmp_path, 1, event_of(1, 2, later), began=later)
    assert [event.step for event in events_beside(own, patience_s=0.0)] == [2]


def test_what_the_helper_has_seen_of_a_rank_is_read_too(tmp_path: Path) -> None:
    own = written(tmp_path, 0)
    written(tmp_path, 1)
    journal = JournalWriter(tmp_path / RUN / "host-box", run=RUN, writer="host-box")
    journal.append("host", encode(event_of(1, 3, severity="critical")))
    journal.append("host", encode(event_of(1, 2, BEGAN - 1e6, severity="critical")))
    journal.close()
    (event,) = events_beside(own, patience_s=60.0)
    assert event.incarnation == incarnation_of(1)


def test_short_journals_are_compared_where_no_helper_has(tmp_path: Path) -> None:
    folders = [
        write_rank(tmp_path, rank, 3, list(frames(rank, range(40), bad_from(2, 10)))) for rank in range(3)
    ]
    (event,) = events_beside(folders[0], patience_s=60.0)
    assert (event.kind, event.rank) == ("rank_divergence", 2)


@pytest.mark.parametrize(("patience_s", "looks"), [(0.0, 1), (3.0, 4)])
def test_rank_that_trains_on_is_not_waited_for(
    tmp_path: Path, patience_s: float, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = written(tmp_path, 0)
    written(tmp_path, 1, event_of(1, 1), ends=False)
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    found = events_beside(own, patience_s=patience_s, clock=map(float, itertools.count()).__next__)
    assert [event.step for event in found] == [1]
    assert len(slept) < looks


def test_last_words_of_a_rank_that_ends_meanwhile_are_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = written(tmp_path, 0)

    def end_rank_1(_: float) -> None:
        if not any(tmp_path.glob(f"{RUN}/1-*")):
            written(tmp_path, 1, event_of(1, 3))

    written(tmp_path, 2, ends=False)
    monkeypatch.setattr(time, "sleep", end_rank_1)
    found = events_beside(own, patience_s=3.0, clock=map(float, itertools.count()).__next__)
    assert [event.rank for event in found] == [1]


def test_rank_that_runs_alone_waits_for_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = written(tmp_path, 0, event_of(0, 1))
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("it waits"))
    assert events_beside(own, patience_s=60.0) == []


def test_damaged_journal_beside_is_passed_over(tmp_path: Path) -> None:
    own, other = written(tmp_path, 0), written(tmp_path, 1, event_of(1, 1))
    (segment,) = other.glob("events-*.seg")
    segment.write_bytes(segment.read_bytes()[:-40] + b"\xff" * 40)
    assert [event.step for event in events_beside(own, patience_s=0.0)] == [1]
