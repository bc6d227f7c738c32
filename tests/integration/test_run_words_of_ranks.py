"""What a training of several ranks says at its end: one line of all ranks, by rank 0."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "scripts" / "one_bad_rank.py"
TORCHRUN = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node=2"]
TIMEOUT_S = 120


def started(folder: Path, *arguments: str, is_launched: bool = True) -> subprocess.Popen[str]:
    command = ["--no-python", sys.executable, "-m", "dashboard", "run"] if is_launched else []
    return subprocess.Popen(
        [*TORCHRUN, *command, str(SCRIPT), *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def end_lines(err: str) -> list[str]:
    """The lines that lead to the events; torchrun may put the rank before each."""
    return [line for line in err.splitlines() if "; see: dashboard events" in line]


@pytest.mark.parametrize(
    ("step", "way"),
    [
        pytest.param("2", "run", id="early-run"),
        pytest.param("5", "run", id="last-run"),
        pytest.param("2", "watch", id="early-watch"),
        pytest.param("5", "watch", id="last-watch"),
    ],
)
@pytest.mark.faults
def test_end_line_of_rank_0_tells_of_rank_1(tmp_path: Path, way: str, step: str) -> None:
    process = started(tmp_path, step, way, is_launched=way == "run")
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    (line,) = end_lines(err)
    assert tells_of_rank_1(line, step)


def tells_of_rank_1(line: str, step: str) -> bool:
    told = rf"critical events?; (this|the worst), on rank 1: NaN first at step {step}\b.*one_bad_rank\.py:"
    return re.search(told, line) is not None


def test_end_line_does_not_wait_for_a_rank_that_trains_on(tmp_path: Path) -> None:
    process = started(tmp_path, "2", "slow")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    began = time.monotonic()
    while not end_lines(line := process.stderr.readline()):
        assert line
    assert tells_of_rank_1(line, "2")
    # The slow rank sleeps for 30 s; it is still there.
    assert process.poll() is None
    assert time.monotonic() - began < 29
    process.terminate()
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert end_lines(err) == []  # one line of all ranks
