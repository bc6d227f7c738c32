"""Trainings on a busy machine, killed at random moments: what a finished step had recorded is there."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from delivery_processes import wait_until
from forked_scripts import ForkedScripts

from probe.delivery.journal.journal_reader import read_stream
from probe.delivery.journal.run_folders import list_writers
from probe.wire import Event, Frame, decode_record

SCRIPT = Path(__file__).with_name("scripts") / "chaos_training.py"
MANY = 200
MOST_IN_MEMORY_S = 0.05


@pytest.fixture
def busy() -> Iterator[None]:
    """Two programs that take all they get."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    yield
    for loop in loops:
        loop.kill()
        loop.wait(30)


def finished(log: Path) -> dict[int, float]:
    """When each step had ended, by the script's own word; a line that is cut off is none."""
    if not log.exists():
        return {}
    rows = [line.split() for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return {int(step): float(at) for step, at in rows}


def kill_one(
    forked: ForkedScripts, folder: Path, wait_s: float, environment: dict[str, str]
) -> dict[int, float]:
    """Start a training and kill it; return what it had finished."""
    folder.mkdir()
    script = forked.start([str(SCRIPT), str(folder / "spool"), str(folder / "log")], folder, environment)
    try:
        wait_until(lambda: len(finished(folder / "log")) > 0, "it does not begin")
        time.sleep(wait_s)
    finally:
        script.kill()
        script.wait()
    return finished(folder / "log")


def recorded(folder: Path) -> tuple[list[int], list[Event]]:
    """The steps that a reader finds, and what tells of losses."""
    (writer,) = list_writers(folder / "spool" / "chaos")
    frames = [decode_record(data) for _, data in read_stream(writer, "metrics")]
    events = [decode_record(data) for _, data in read_stream(writer, "events")]
    losses = [event for event in events if isinstance(event, Event) and event.kind == "data_gap"]
    return [frame.step for frame in frames if isinstance(frame, Frame)], losses


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("kills", [10, pytest.param(MANY, marks=pytest.mark.faults)])
def test_kill_takes_no_step_that_had_finished(forked: ForkedScripts, tmp_path: Path, kills: int) -> None:
    seed = int(os.environ.get("SEED", "0")) or random.SystemRandom().randrange(2**32)
    print(f"seed {seed}, {kills} kills")
    chance, total = random.Random(seed), 0
    for number in range(kills):
        steps = kill_one(forked, tmp_path / str(number), chance.uniform(0, 0.4), {})
        found, losses = recorded(tmp_path / str(number))
        # The step in which it was killed may be there too.
        assert found[: len(steps)] == list(steps), f"kill {number} of seed {seed}"
        assert len(found) <= len(steps) + 1 and losses == [], f"kill {number} of seed {seed}"
        total += len(steps)
    print(f"{total:,} finished steps, none lost")


@pytest.mark.faults
@pytest.mark.parametrize("is_busy", [False, True])
def test_kill_takes_little_where_the_ring_cannot_be_a_file(
    forked: ForkedScripts, tmp_path: Path, request: pytest.FixtureRequest, is_busy: bool
) -> None:
    if is_busy:
        request.getfixturevalue("busy")
    seed = int(os.environ.get("SEED", "0")) or random.SystemRandom().randrange(2**32)
    chance, lost_s = random.Random(seed), []
    for number in range(40):
        steps = kill_one(forked, tmp_path / str(number), chance.uniform(0.1, 0.5), {"IN_MEMORY": "1"})
        # What is added to a step may be a record of its own.
        found = sorted(set(recorded(tmp_path / str(number))[0]))
        assert found == list(range(len(found)))
        missing = [steps[step] for step in steps if step >= len(found)]
        lost_s.append(max(steps.values()) - min(missing) if missing else 0.0)
    lost_s.sort()
    print(f"seed {seed}, busy {is_busy}: lost at the median {lost_s[20]:.3f} s, at most {lost_s[-1]:.3f} s")
    # Of a thread that gets no processor nothing can be asked.
    assert lost_s[20] <= MOST_IN_MEMORY_S
