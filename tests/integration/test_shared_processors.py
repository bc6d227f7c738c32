"""Steps that take longer: a warning where the training does, none where other programs have its processor."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from journals import read_journal

SCRIPT = Path(__file__).parent / "scripts" / "shared_processor.py"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not Path("/proc/self/schedstat").exists(), reason="only Linux counts how threads wait"
    ),
]


def severities(tmp_path: Path, way: str) -> set[str]:
    """What is said of the speed of a training that something disturbs."""
    spool = tmp_path / "spool"
    spool.mkdir()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, SCRIPT, way, spool], env=environment, check=True, timeout=180)
    (run,) = spool.iterdir()
    events = read_journal(run).latest_events
    return {event.severity for event in events if event.kind == "performance_degradation"}


@pytest.mark.parametrize(
    "way",
    [
        "others have the processor",
        pytest.param("last in the queue", marks=pytest.mark.faults),
        pytest.param("stopped now and then", marks=pytest.mark.faults),
    ],
)
def test_training_that_gets_no_processor_is_no_warning(tmp_path: Path, way: str) -> None:
    assert "warning" not in severities(tmp_path, way)


@pytest.mark.parametrize(
    "way",
    [
        pytest.param("loader that sleeps", marks=pytest.mark.faults),
        "more to compute",
        pytest.param("slower disk", marks=pytest.mark.faults),
        pytest.param("both: others and a loader that sleeps", marks=pytest.mark.faults),
    ],
)
def test_training_that_is_slower_by_itself_is_a_warning(tmp_path: Path, way: str) -> None:
    assert "warning" in severities(tmp_path, way)
