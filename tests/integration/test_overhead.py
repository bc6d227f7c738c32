"""The overhead benchmark runs from end to end, whatever is installed, and leaves nothing running."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "overhead.py"


@dataclass(frozen=True)
class QuickRun:
    """A finished run of the script, and the folder that was its only one for temporary files."""

    stdout: str
    report: dict[str, Any]
    folder: Path


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory: pytest.TempPathFactory) -> QuickRun:
    folder = tmp_path_factory.mktemp("overhead")
    file = folder / "overhead.json"
    command = [sys.executable, str(SCRIPT), "--quick", "--workloads", "mlp", "--device", "cpu"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("NANSCOPE_")}
    environment |= {"TMPDIR": str(folder), "HOME": str(folder), "XDG_STATE_HOME": str(folder)}
    done = subprocess.run(
        [*command, "--json", str(file)], capture_output=True, text=True, timeout=150, env=environment
    )
    assert done.returncode == 0, done.stderr
    return QuickRun(done.stdout, json.loads(file.read_text()), folder)


@pytest.mark.slow
def test_overhead_quick_run_measures_every_recorder_or_says_why_not(quick_run: QuickRun) -> None:
    measured = {cost["recorder"] for cost in quick_run.report["costs"]}
    assert {"off", "basic", "naive"} <= measured
    assert measured | set(quick_run.report["skipped"]) >= {"advanced", "extreme", "tensorboard", "wandb"}
    for cost in quick_run.report["costs"]:
        assert cost["step_ms"] > 0.0
        assert (cost["inside_ms"] is None) == (cost["recorder"] == "off")
        assert f"{cost['workload']:8} {cost['recorder']:12}" in quick_run.stdout


def test_overhead_quick_run_measures_clipping_and_frames(quick_run: QuickRun) -> None:
    (clipping,) = quick_run.report["clipping"]
    assert clipping["torch_clip_ms"] > 0.0 and clipping["probe_clip_ms"] > 0.0
    frame = quick_run.report["frame"]
    assert frame["frame_bytes"] > frame["values_bytes"] == 64_000
    assert "CUDA: not run" in quick_run.stdout


def test_overhead_quick_run_leaves_no_helper(quick_run: QuickRun) -> None:
    commands = [process.info["cmdline"] or () for process in psutil.process_iter(["cmdline"])]
    assert not [command for command in commands if str(quick_run.folder) in " ".join(command)]
