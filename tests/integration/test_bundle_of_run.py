"""A recorded script that goes wrong leaves a bundle, by which another process goes wrong the same way."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from journals import read_journal

from probe.bundle.__main__ import main

SCRIPT = Path(__file__).with_name("scripts") / "failing_step.py"


def test_failing_step_comes_again_from_its_bundle(tmp_path, spool, monkeypatch, capsys):
    there, here = tmp_path / "there", tmp_path / "here"
    for folder in (there, here):
        folder.mkdir()
        shutil.copy(SCRIPT, folder / "failing_train.py")
    subprocess.run(
        [sys.executable, "-P", "-m", "dashboard", "run", "--quiet", "failing_train.py"],
        cwd=there,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=120,
        check=True,
    )
    (run_folder,) = spool.iterdir()
    (bundle,) = (run_folder / "bundles").iterdir()
    event = next(event for event in read_journal(run_folder).latest_events if event.id == bundle.name)
    assert event.message.splitlines()[-1] == f"Bundle for dashboard replay: {bundle}"
    moved = shutil.move(bundle, here / "bundle")
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main([str(moved), "--entry", "failing_train:build_model", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["exact"], found["step"]) == (True, 5)
    assert found["origin"] == found["recorded_origin"]
    frame = found["forward"][-1]
    assert frame["file"] == str(here / "failing_train.py")
    assert "# planted" in SCRIPT.read_text(encoding="utf-8").splitlines()[frame["line"] - 1]
