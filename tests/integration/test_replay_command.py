"""A bundle on another machine: in a folder of its own, with a copy of the model's file and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "probe"))

import bundle_models
from bundle_models import Planted
from bundled_step import bundle_of
from replayed_step import batch, run_step

from dashboard.cli import main as dashboard
from dashboard.runs import resolve_runs
from probe.forensics.bundle.__main__ import main
from probe.wire import Origin

MODELS = Path(bundle_models.__file__)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Origin]:
    """The bundle of a step that went wrong, and the origin that its own process found."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(5)
    step = run_step(Planted(), batch(32), shift=1.0)
    replay = step.replay()
    assert replay.origin is not None
    folder = bundle_of(step, tmp_path_factory.mktemp("there"), replay=replay)
    torch.set_num_threads(threads)
    return folder, replay.origin


@pytest.fixture
def bundle(made: tuple[Path, Origin], tmp_path: Path) -> Path:
    """The bundle alone, under another name: nothing else of its run is there."""
    return Path(shutil.copytree(made[0], tmp_path / "bundle"))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the model's file, which is the current one."""
    folder = tmp_path / "here"
    folder.mkdir()
    shutil.copy(MODELS, folder / "models.py")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield folder
    sys.modules.pop("models", None)


def test_step_is_reproduced_in_another_process_and_folder(made, bundle, here):
    (here / "probe.py").write_text("raise ImportError('not this one')\n", encoding="utf-8")
    command = [
        sys.executable,
        "-P",
        "-m",
        "dashboard",
        "replay",
        str(bundle),
        "--entry",
        "models:build_planted",
    ]
    ending = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=120)
    assert (ending.returncode, ending.stderr) == (0, "")
    found = json.loads(ending.stdout)
    assert (found["reproduced"], found["exact"], found["fidelity"]) == (True, True, "exact")
    assert found["outputs"] == {"identical": 1, "different": 0, "unknown": 0, "largest_difference": 0.0}
    assert found["gradients"] == 6
    assert found["origin"] == found["recorded_origin"]
    assert (found["origin"]["op"], found["origin"]["module"]) == (made[1].op, made[1].module)
    frame = found["forward"][-1]
    assert frame["file"] == str(here / "models.py")
    assert MODELS.read_text(encoding="utf-8").splitlines()[frame["line"] - 1].endswith("# planted")
    assert not list(Path(os.environ["NANSCOPE_SPOOL"]).glob("*"))


def test_answer_names_line_fidelity_and_stack(bundle, here, capsys):
    assert main([str(bundle), "--entry", "models:build_several"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "nonfinite_loss at step 7 of bundled"
    assert lines[1].endswith("in the run: NaN first at step 7")
    assert ", models.py:" in lines[2]
    assert lines[2].endswith(", forward (sqrt)")
    assert "Fidelity: exact: every output and every gradient is the same bit for bit" in lines
    assert "    x = torch.sqrt(x - shift)  # planted" in lines


def test_another_forward_does_not_reproduce_the_step(bundle, here, capsys):
    text = MODELS.read_text(encoding="utf-8").replace("torch.sqrt(x - shift)", "torch.abs(x - shift)")
    (here / "models.py").write_text(text, encoding="utf-8")
    assert main([str(bundle), "--entry", "models:build_planted"]) == 1
    assert "Fidelity: could not reproduce: this was not the step" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("models", "give module:function"),
        ("nowhere:build", "there is no module 'nowhere' here"),
        ("models:build_it", "has no attribute 'build_it'"),
        ("models:build_number", "returned a int; it has to return the model"),
        ("models:build_nothing", "failed with KeyError: 'no such checkpoint'"),
        ("models:build_wider", "enter.weight is [9, 4], in the run [8, 4]"),
        ("models:build_other", "the model lacks enter.bias, enter.weight, head.bias"),
        ("models:Planted.forward", "is called without arguments: name a function that needs none"),
        ("models:random", "is a module; name a function that returns the model"),
        ("models.py:build_planted", "give the module's name, models, and not its file"),
        ("models:build_with_a_library", "failed with ModuleNotFoundError: No module named 'nowhere'"),
        ("models:build_attribute", "failed with AttributeError: no such thing, models.py:"),
        ("models:build_on_meta", "is on the meta device, where there are no values; build it on the CPU"),
    ],
)
def test_entry_that_builds_no_such_model_is_a_mistake(bundle, here, capsys, entry, said):
    assert main([str(bundle), "--entry", entry]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("dashboard: ")
    assert said in told.err
    assert len(told.err.splitlines()) == 1


def test_folder_that_is_no_bundle_is_a_mistake(here, capsys):
    assert main([str(here), "--entry", "models:build_planted"]) == 2
    assert "is not a bundle" in capsys.readouterr().err


def test_control_characters_of_a_bundle_do_not_reach_the_terminal(bundle, here, capsys):
    path = bundle / "bundle.json"
    description = json.loads(path.read_text(encoding="utf-8"))
    description["event"]["message"] = "\x1b[2Jgone"
    path.write_text(json.dumps(description), encoding="utf-8")
    assert main([str(bundle), "--entry", "models:build_planted"]) == 0
    assert "[U+001B][2Jgone" in capsys.readouterr().out


# ---------------------------------------------------------------------------- commands that read a spool


def test_events_of_a_bundle_are_listed(made, bundle, capsys):
    assert dashboard(["events", str(bundle), "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert (json.loads(line)["id"], json.loads(line)["run"]) == (made[0].name, "bundled")


def test_bundle_is_exported_with_its_last_steps(bundle, tmp_path, capsys):
    assert dashboard(["export", str(bundle), "--format", "json", "-o", str(tmp_path / "run.json")]) == 0
    found = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert (found["run"]["first_step"], found["run"]["last_step"]) == (36, 99)
    assert [event["step"] for event in found["events"]] == [7]


def test_bundle_is_a_spool_of_one_run(bundle):
    (run,) = resolve_runs(str(bundle))
    assert (run.run, run.name, run.path.parent) == ("bundled", "train.py", bundle / "spool")
