"""Processes that wait for each other: events name which rank waits in which collective."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from journals import Journal, read_journal

from probe.wire import Event
from probe.wire.collective_waits import wait_in

SCRIPT = Path(__file__).with_name("scripts") / "ranks_in_collectives.py"
DIFFER = "the ranks do not call the same collectives in the same order"


def at(marker: str) -> str:
    """A pattern of the line of the script that ends so."""
    lines = SCRIPT.read_text().splitlines()
    return rf" at {SCRIPT.name}:{next(n for n, line in enumerate(lines, 1) if line.endswith(f'# {marker}'))}"


ALL_REDUCE = rf"`all_reduce` \(number 9\).*{at('ALL_REDUCE')}"


def journals_of(spool: Path, case: str, *, ranks: int = 2, timeout_s: float = 5) -> list[Journal]:
    command = [sys.executable, str(SCRIPT), case, str(ranks), str(timeout_s)]
    environment = {**os.environ, "NANSCOPE_SPOOL": str(spool), "NANSCOPE_CONNECT": "", "OMP_NUM_THREADS": "1"}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode, "the ranks are to fail"
    (run,) = spool.iterdir()
    return [read_journal(run, rank) for rank in range(ranks)]


def events(journal: Journal, kind: str) -> list[Event]:
    return [event for event in journal.latest_events if event.kind == kind]


def sentence(event: Event) -> str:
    return event.message.splitlines()[0]


def test_ranks_in_other_order_name_each_other(tmp_path: Path) -> None:
    journals = journals_of(tmp_path, "order")
    waits = (
        rf"ank 0 waits in {ALL_REDUCE}, rank 1 waits in `broadcast` \(number 9\).*{at('BROADCAST')}: {DIFFER}"
    )
    for journal in journals:
        (hang,), (error,) = events(journal, "hang"), events(journal, "exception")
        for event in (hang, error):
            assert re.search(waits, sentence(event)), event.message
            assert "branch" in event.advice[0]
        # It ends by the exception.
        assert "went on" not in sentence(hang)
        assert "RuntimeError at step 8" in sentence(error)
    own = [wait_in(events(journal, "hang")[0].message) for journal in journals]
    assert [wait and (wait.op, wait.number, wait.tensor) for wait in own] == [
        ("all_reduce", 9, "float32 of shape (3,)"),
        ("broadcast", 9, "float32 of shape (2,)"),
    ]


@pytest.mark.faults
def test_rank_that_has_left_the_loop_is_named(tmp_path: Path) -> None:
    journal, _ = journals_of(tmp_path, "missing")
    (error,) = events(journal, "exception")
    assert re.match(rf"Rank 0 waits in {ALL_REDUCE}, rank 1 has ended after step 7: a coll", sentence(error))


@pytest.mark.faults
def test_two_ranks_wait_for_a_third_at_a_barrier(tmp_path: Path) -> None:
    journals = journals_of(tmp_path, "barrier", ranks=3)
    others = rf"rank 2 waits in `barrier` \(number 9\){at('BARRIER')}: {DIFFER}"
    waits = rf"Ranks 0 and 1 wait in {ALL_REDUCE}, {others}"
    errors = [event for journal in journals for event in events(journal, "exception")]
    assert any(re.match(waits, sentence(event)) for event in errors), [sentence(event) for event in errors]
