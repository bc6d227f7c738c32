"""Journals of several ranks that nobody has read yet are judged in pieces: the helper has little room."""

from __future__ import annotations

import contextlib
import os
import tracemalloc
from pathlib import Path

from ranks_run import RUN, bad_from, frames, write_rank

from probe.delivery.journal.journal import JournalWriter
from probe.delivery.journal.rank_journals import RankJournals, generations
from probe.delivery.journal.run_folders import list_writers
from probe.wire import RunStart, encode

RANKS, STEPS, DAMAGED = 4, 1600, 1000
MOST_BYTES = 5 * 1024 * 1024 // 2
"""A round of pieces has 1,400 frames, of some 500 bytes each while they wait; all of them would be 3 MiB."""


def test_long_journals_are_judged_in_one_look_within_a_bound_of_memory(tmp_path: Path) -> None:
    for rank in range(RANKS):
        damaged = bad_from(2, DAMAGED)
        write_rank(tmp_path, rank, RANKS, list(frames(rank, range(STEPS), damaged, before_s=lambda *_: 0.01)))
    folders = list_writers(tmp_path / RUN)
    peaks = []
    for _ in range(3):
        journals = RankJournals(tmp_path / RUN)
        tracemalloc.start()
        try:
            (event,) = journals.look(folders, folders)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert (event.kind, event.rank, event.step) == ("rank_divergence", 2, DAMAGED)
    assert event.ended
    # What another thread of this process allocates meanwhile is counted too.
    assert min(peaks) < MOST_BYTES


def begin(spool: Path, rank: int, incarnation: int, *, began_s: float, wrote_s: float) -> Path:
    """Return the folder of a start that has written something last at a time."""
    folder = spool / RUN / f"{rank}-{incarnation}"
    with contextlib.closing(JournalWriter(folder, run=RUN, writer=folder.name)) as journal:
        journal.append("events", encode(RunStart(run=RUN, rank=rank, incarnation=incarnation, time=began_s)))
    for segment in folder.glob("*.seg"):
        os.utime(segment, (wrote_s, wrote_s))
    return folder


def test_ranks_that_began_again_after_the_clock_went_back_are_of_another_generation(tmp_path: Path) -> None:
    number = 1000 * 10**9
    first = [begin(tmp_path, rank, number + rank, began_s=1000.0, wrote_s=5000.0) for rank in (0, 1)]
    # The clock stands at 900 s: the numbers are counted on from the first start's.
    again = [begin(tmp_path, rank, number + rank + 1, began_s=900.0, wrote_s=950.0) for rank in (0, 1)]
    later = [
        begin(tmp_path, rank, (6000 + rank) * 10**9, began_s=6000.0 + rank, wrote_s=6100.0) for rank in (0, 1)
    ]
    assert generations([*again, *later, *first]) == [first, again, later]


def test_ranks_of_one_start_are_of_one_generation(tmp_path: Path) -> None:
    folders = [
        begin(tmp_path, rank, (1000 + rank) * 10**9, began_s=1000.0 + rank, wrote_s=5000.0) for rank in (0, 1)
    ]
    twice = begin(tmp_path, 1, 1002 * 10**9, began_s=1002.0, wrote_s=5000.0)
    assert generations([*folders, twice]) == [[*folders, twice]]
