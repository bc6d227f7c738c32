"""docs/launchers/ray_train.py on a local Ray cluster of two workers, one of which fails once: `make ray`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from journals import read_journal
from run_numbers import steps_of

from probe.delivery.journal.run_folders import list_runs

ROOT = Path(__file__).resolve().parents[3]
RECIPE = ROOT / "docs" / "launchers"
DRIVER = """
import os, sys
from pathlib import Path
from ray_train import fit, train_loop

FAILED = Path(sys.argv[1], "failed")

def fails_once(config):
    train_loop(config)
    if os.environ["RANK"] == "1" and not FAILED.exists():
        FAILED.touch()
        raise RuntimeError("this worker fails once")

fit(fails_once, steps=5, workers=2, storage=sys.argv[1])
assert FAILED.exists()
"""


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_workers_of_ray_train_are_ranks_of_one_run(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: make ray")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, RECIPE))),
        "HOME": str(tmp_path),  # where Ray keeps a token
        "RAY_USAGE_STATS_ENABLED": "0",
        "NANSCOPE_RUN": "on-ray",
    }
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(tmp_path)],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    (run,) = list_runs(Path(os.environ["NANSCOPE_SPOOL"]))
    assert run.name == "on-ray"
    for rank in range(2):
        assert len(list(run.glob(f"{rank}-*"))) == 2
        journal = read_journal(run, rank)
        assert (journal.start.rank, journal.start.world_size) == (rank, 2)
        assert steps_of(journal) == list(range(5))
