"""Journals of several ranks that nobody has read yet are judged in pieces: the helper has little room."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

from ranks_run import RUN, bad_from, frames, write_rank

from probe.delivery.journal.journal_reader import list_writers
from probe.delivery.journal.rank_journals import RankJournals

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
