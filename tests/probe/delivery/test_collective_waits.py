"""What is said of ranks that wait for each other: by lines of events, and by journals beside one's own."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from ranks_run import BEGAN, RUN, frames, incarnation_of, write_rank

from probe.delivery.journal.rank_events import explain_wait
from probe.detectors.ranks.waits import RankState, compare_waits
from probe.wire import Event, StackFrame, Stacks
from probe.wire.collective_waits import CollectiveWait, wait_in

REDUCE = CollectiveWait(op="all_reduce", number=12, group="", tensor="float32 of shape (3,)", place="a.py:3")
BARRIER = CollectiveWait(op="barrier", number=12, group="", tensor="", place="a.py:4")


def changed(**values: object) -> CollectiveWait:
    return msgspec.structs.replace(REDUCE, **values)


@pytest.mark.parametrize(
    "wait",
    [
        REDUCE,
        BARRIER,
        changed(number=None, group="experts", tensor="2 tensors, int64 of shape ()"),
        changed(place="my train, called at night.py:3"),
    ],
)
def test_line_of_a_wait_is_read_as_it_was_written(wait: CollectiveWait) -> None:
    message = f"Step 3 stands still\n{wait.line()}\nRaised outside the model"
    assert wait_in(message) == wait
    assert wait_in("RuntimeError at step 3\nCollective: made up") is None


def states(*waits: CollectiveWait | str) -> list[RankState]:
    return [
        RankState(rank=rank, otherwise=wait) if isinstance(wait, str) else RankState(rank=rank, wait=wait)
        for rank, wait in enumerate(waits)
    ]


@pytest.mark.parametrize(
    ("others", "sentence"),
    [
        (
            [BARRIER],
            "rank 0 waits in `all_reduce` (number 12) at a.py:3, rank 1 waits in `barrier` (number 12) at "
            "a.py:4: the ranks do not call the same collectives in the same order",
        ),
        (
            [REDUCE, BARRIER],
            "ranks 0 and 1 wait in `all_reduce` (number 12) at a.py:3, rank 2 waits in `barrier` (number 12) "
            "at a.py:4: the ranks do not call the same collectives in the same order",
        ),
        (
            [changed(tensor="float32 of shape (4,)")],
            "rank 0 waits in `all_reduce` (number 12) with float32 of shape (3,) at a.py:3, rank 1 waits in "
            "`all_reduce` (number 12) with float32 of shape (4,) at a.py:3: the collective is the same, the "
            "tensors differ",
        ),
        (
            [changed(number=11)],
            "rank 0 waits in `all_reduce` (number 12) at a.py:3, rank 1 waits in `all_reduce` (number 11) at "
            "a.py:3: the ranks have not called the same number of collectives",
        ),
        (
            ["has ended after step 41", "has ended after step 41"],
            "rank 0 waits in `all_reduce` (number 12) at a.py:3, ranks 1 and 2 have ended after step 41: a "
            "collective ends only when all ranks of its group call it",
        ),
        (
            [REDUCE],
            "ranks 0 and 1 wait in `all_reduce` (number 12) at a.py:3: they do not differ, so look at the "
            "network",
        ),
    ],
    ids=["another", "one of three", "shape", "number", "ended", "the same"],
)
def test_waits_are_compared_in_one_sentence(others: list[CollectiveWait | str], sentence: str) -> None:
    assert compare_waits(states(REDUCE, *others), len(others) + 1) == sentence


def test_a_rank_of_which_nothing_is_known_is_named() -> None:
    found = compare_waits(states(REDUCE, REDUCE), 3)
    assert found is not None and found.endswith("these do not differ, and nothing is known here of rank 2")
    assert compare_waits(states(REDUCE), 2) is None
    in_group = changed(group="experts")
    found = compare_waits(states(in_group, in_group), 8)
    assert found is not None and "nothing is known" not in found


def event_of(rank: int, kind: str, message: str, *, ended: bool = False, subject: str = "stuck") -> Event:
    frame = StackFrame(file="/home/me/a.py", line=50, function="main", code="", code_first_line=1)
    return Event(
        id=f"{rank:016x}",
        run=RUN,
        rank=rank,
        incarnation=incarnation_of(rank, BEGAN),
        step=3,
        time=BEGAN,
        kind=kind,
        subject=subject,
        severity="critical" if kind == "exception" else "warning",
        message=message,
        stacks=Stacks(training_loop=[frame]),
        ended=ended,
    )


OVER = event_of(1, "hang", f"It stood.\n{BARRIER.line()}", ended=True)


@pytest.mark.parametrize(
    ("event", "ends", "said"),
    [
        (
            event_of(1, "hang", f"It stands.\n{BARRIER.line()}"),
            False,
            "rank 1 waits in `barrier` (number 12)",
        ),
        (event_of(1, "exception", f"It fails.\n{BARRIER.line()}"), True, "rank 1 waits in `barrier`"),
        (
            event_of(1, "exception", "ValueError", subject="ValueError"),
            True,
            "rank 1 has raised `ValueError` in step 3 at a.py:50",
        ),
        (event_of(1, "hang", "It stands."), False, "rank 1 has stood still in step 3 at a.py:50"),
        (
            event_of(1, "hang", f"It stood.\n{BARRIER.line()}", ended=True),
            True,
            "rank 1 has ended after step 3",
        ),
        (event_of(1, "hang", f"It stood.\n{BARRIER.line()}", ended=True), False, None),
    ],
    ids=["hang", "exception", "other exception", "hang elsewhere", "ended", "goes on"],
)
def test_journals_beside_say_what_the_other_rank_waits_in(
    tmp_path: Path, event: Event, ends: bool, said: str | None
) -> None:
    own = write_rank(tmp_path, 0, 2, list(frames(0, range(4))), ends=False)
    write_rank(tmp_path, 1, 2, list(frames(1, range(4))), events=(event,), ends=ends)
    found = explain_wait(own, REDUCE, world_size=2)
    assert (found is None) if said is None else (found is not None and said in found), found
