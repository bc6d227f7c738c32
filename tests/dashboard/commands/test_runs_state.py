"""Which state `dashboard runs` shows: a run has ended as soon as its journals say so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ranks_run import BEGAN, RUN, frames, incarnation_of, write_rank

from dashboard.commands.runs import json_lines, known_runs
from probe.wire import Event

STEPS = range(4)


def killed(rank: int, began: float = BEGAN) -> Event:
    return Event(
        id=f"{rank:016x}",
        run=RUN,
        rank=rank,
        incarnation=incarnation_of(rank, began),
        step=3,
        time=began,
        kind="killed",
        severity="critical",
        message="Process 7 is gone without an exit after step 3: SIGKILL",
        ended=True,
    )


@pytest.mark.parametrize(
    ("written", "state"),
    [
        # (rank, began, ends, was killed), oldest first
        ([(0, BEGAN, True, False)], "ended"),
        ([(0, BEGAN, False, False)], "running"),
        ([(0, BEGAN, False, True)], "ended"),
        ([(0, BEGAN, True, False), (1, BEGAN, False, False)], "running"),
        ([(0, BEGAN, True, False), (1, BEGAN, False, True)], "ended"),
        ([(0, BEGAN, True, False), (0, BEGAN + 60, False, False)], "running"),
        ([(0, BEGAN, False, True), (0, BEGAN + 60, False, False)], "running"),
    ],
    ids=["ended", "goes on", "killed", "one rank goes on", "one rank killed", "again", "again after a kill"],
)
def test_state_is_that_of_the_newest_starts(
    tmp_path: Path, written: list[tuple[int, float, bool, bool]], state: str
) -> None:
    for rank, began, ends, was_killed in written:
        events = (killed(rank, began),) if was_killed else ()
        steps = list(frames(rank, STEPS, began=began))
        write_rank(tmp_path, rank, 2, steps, events=events, began=began, ends=ends)
    (line,) = json_lines(known_runs(tmp_path))
    assert json.loads(line)["state"] == state
