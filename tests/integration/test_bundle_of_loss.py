"""A loss that the script makes outside of its model comes again from a bundle, by the script's own lines."""

from __future__ import annotations

import json
import linecache
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from journals import read_journal

from probe.forensics.bundle.__main__ import main

SCRIPT = Path(__file__).with_name("scripts") / "failing_loss.py"


@pytest.fixture
def bundle(tmp_path, spool, forked) -> Path:
    """The bundle of the failing step, moved to where it is replayed, with the script beside it."""
    there, here = tmp_path / "there", tmp_path / "here"
    for folder in (there, here):
        folder.mkdir()
        shutil.copy(SCRIPT, folder / "train.py")
    assert forked.launch(["--quiet", "train.py"], there).wait() == 0
    (run_folder,) = spool.iterdir()
    events = read_journal(run_folder).latest_events
    event = next(event for event in events if event.kind == "nonfinite_loss")
    made = run_folder / "bundles" / event.id
    assert (event.step, event.origin.op, event.origin.phase) == (5, "log", "loss")
    return Path(shutil.move(made, here / "bundle"))


REPLAY = ["bundle", "--entry", "train:build_model", "--json"]


def replay(bundle: Path) -> dict:
    command = [sys.executable, "-P", "-m", "probe.forensics.bundle", *REPLAY]
    done = subprocess.run(command, cwd=bundle.parent, capture_output=True, text=True, timeout=120, check=True)
    return json.loads(done.stdout)


def replay_in_this_process(bundle: Path, monkeypatch, capsys) -> dict:
    """The same, without three seconds of imports; the script's module is loaded anew."""
    with monkeypatch.context() as patch:
        patch.chdir(bundle.parent)
        patch.setattr(sys, "path", list(sys.path))
        sys.modules.pop("train", None)
        linecache.clearcache()
        assert main(REPLAY) == 0
    sys.modules.pop("train", None)
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_loss_and_its_line_come_again_until_the_lines_are_others(bundle, monkeypatch, capsys):
    found = replay(bundle)
    assert (found["exact"], found["loss"], found["origin"]) == (True, True, found["recorded_origin"])
    frame = found["forward"][-1]
    assert frame["file"] == str(bundle.parent / "train.py")
    source = SCRIPT.read_text(encoding="utf-8")
    assert "# planted" in source.splitlines()[frame["line"] - 1]

    changed = source.replace("torch.log(share + FLOOR)", "torch.log(share + 1e-6)")
    (bundle.parent / "train.py").write_text(changed, encoding="utf-8")
    found = replay_in_this_process(bundle, monkeypatch, capsys)
    assert (found["exact"], found["loss"]) == (True, False)
    assert "the lines of the loss in train.py are not those of the run" in " ".join(found["notes"])

    # Text that came with the bundle is compared, and never run.
    described = json.loads((bundle / "bundle.json").read_text(encoding="utf-8"))
    assert "torch.log(share + FLOOR)" in described["contents"]["loss_maker"]["text"]
    planted = "import os\nos.mkdir('executed')"
    described["contents"]["loss_maker"]["text"] = planted
    (bundle / "bundle.json").write_text(json.dumps(described), encoding="utf-8")
    assert replay_in_this_process(bundle, monkeypatch, capsys)["loss"] is False
    assert not (bundle.parent / "executed").exists()
