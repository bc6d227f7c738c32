"""A recorded script that goes wrong leaves a bundle, by which another machine goes wrong the same way."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from journals import read_journal

from dashboard.commands.events import load_events, table_lines
from dashboard.commands.open import _fill
from dashboard.errors import NotASpoolError
from dashboard.runs import resolve_runs
from dashboard.store.duck import DuckStore
from probe.forensics.bundle.__main__ import main

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("scripts") / "failing_step.py"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A bundle, and the folder that was all of its machine, which is gone."""
    there = tmp_path_factory.mktemp("there")
    bundle = shutil.move(train_on(there), tmp_path_factory.mktemp("parcel") / "bundle")
    shutil.rmtree(there)
    return Path(bundle), there


def train_on(machine: Path) -> Path:
    """Record the script in a home of its own, by a copy of nanscope that lies there; return the bundle."""
    site, work, home = machine / "site", machine / "work" / "proj", machine / "home" / "alice"
    for package in ("probe", "dashboard", "assets"):
        shutil.copytree(ROOT / package, site / package, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in (work, home):
        folder.mkdir(parents=True)
    shutil.copy(SCRIPT, work / "failing_train.py")
    kept = {name: value for name, value in os.environ.items() if name != "NANSCOPE_SPOOL"}
    own = {"HOME": str(home), "XDG_STATE_HOME": "", "XDG_CACHE_HOME": "", "PYTHONPATH": str(site)}
    subprocess.run(
        [sys.executable, "-P", "-m", "dashboard", "run", "--quiet", "failing_train.py"],
        cwd=work,
        env={**kept, **own, "USER": "alice", "TZ": "America/New_York", "OMP_NUM_THREADS": "1"},
        timeout=120,
        check=True,
    )
    (bundle,) = home.rglob("bundles/*")
    run_folder = bundle.parent.parent
    event = next(event for event in read_journal(run_folder).latest_events if event.id == bundle.name)
    assert event.message.splitlines()[-1] == f"Bundle for dashboard replay: {bundle}"
    return bundle


@pytest.fixture
def other_machine(tmp_path: Path) -> Iterator[Path]:
    """A folder that is the current one, with the script in it, in another home, zone and language."""
    here = tmp_path / "here" / "code"
    here.mkdir(parents=True)
    shutil.copy(SCRIPT, here / "failing_train.py")
    places = {"HOME": "home", "XDG_STATE_HOME": "home/state", "XDG_CACHE_HOME": "home/cache"}
    values = {name: str(tmp_path / place) for name, place in places.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        patch.setattr(sys, "path", list(sys.path))
        for name, value in (values | {"USER": "bob", "TZ": "Asia/Tokyo", "LC_ALL": "POSIX"}).items():
            patch.setenv(name, value)
        time.tzset()
        yield here
    time.tzset()
    sys.modules.pop("failing_train", None)


@pytest.mark.slow
def test_failing_step_comes_again_where_nothing_of_its_machine_is(made, tmp_path, other_machine, capsys):
    bundle, there = made
    assert main([str(bundle), "--entry", "failing_train:build_model", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["exact"], found["step"]) == (True, 5)
    assert found["origin"] == found["recorded_origin"]
    frame = found["forward"][-1]
    assert frame["file"] == str(other_machine / "failing_train.py")
    source = SCRIPT.read_text(encoding="utf-8").splitlines()
    assert "# planted" in source[frame["line"] - 1]

    # What the page shows of it, with the line as it was there.
    (event,) = load_events(str(bundle)).events
    recorded = event.stacks.forward[-1]
    assert recorded.file == str(there / "work" / "proj" / "failing_train.py")
    assert "# planted" in recorded.code.splitlines()[recorded.line - recorded.code_first_line]
    _fill(tmp_path / "data", resolve_runs(str(bundle)), notice=pytest.fail)
    store = DuckStore(tmp_path / "data", clock=lambda: time.time() + 60)
    assert [stored.id for run in store.runs() for stored in store.events(run.run)] == [event.id]
    assert [rank.state for run in store.runs() for rank in run.ranks] == ["silent"]
    store.close()


def test_paths_of_windows_are_shown_as_they_are(made, tmp_path, other_machine, capsys):
    there = str(made[1] / "work" / "proj") + "/"
    bundle = Path(shutil.copytree(made[0], tmp_path / "bundle"))
    description = bundle / "bundle.json"
    text = description.read_text(encoding="utf-8")
    assert there in text
    description.write_text(text.replace(there, r"D:\\exp \u00e4\\"), encoding="utf-8")
    assert main([str(bundle), "--entry", "failing_train:build_model"]) == 0
    assert "D:\\exp \u00e4\\failing_train.py:" in capsys.readouterr().out
    (event,) = load_events(str(bundle)).events
    frames = [
        msgspec.structs.replace(frame, file=frame.file.replace(there, "D:\\exp\\"))
        for frame in event.stacks.forward
    ]
    moved = msgspec.structs.replace(event, stacks=msgspec.structs.replace(event.stacks, forward=frames))
    assert ", ▶ exp/failing_train.py:16 in Net.forward" in "".join(table_lines([moved]))


def test_bundle_of_another_format_is_refused_by_every_command(made, tmp_path):
    bundle = Path(shutil.copytree(made[0], tmp_path / "bundle"))
    (bundle / "bundle.json").write_text('{"version": 7, "event": {}}', encoding="utf-8")
    with pytest.raises(NotASpoolError, match="version 7, which a newer nanscope has written"):
        resolve_runs(str(bundle))
