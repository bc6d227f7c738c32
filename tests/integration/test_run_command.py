"""`dashboard run`: an unmodified script does what it does without, and is recorded all the same.

Every script runs twice as a process, with and without; what they print, how they end and what they say of an
uncaught exception must be the same. Where the subject is what happens once torch is imported, both are forked
from a process that has it; where it is how Python starts, and once for each way to start, they are started.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from forked_scripts import TORCH, ForkedScript, ForkedScripts
from journals import Journal, read_journal

import probe
from dashboard.cli import main
from dashboard.commands.run import launch_environment

SCRIPTS = Path(__file__).with_name("scripts")
DASHBOARD = [sys.executable, "-m", "dashboard"]
PLAIN_LOOP = (str(SCRIPTS / "plain_loop.py"), "--level", "a b", "-m")
TIMEOUT_S = 120


@dataclass
class Ending:
    """How a process ended."""

    code: int
    out: str
    err: str

    @property
    def own_lines(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("nanscope:")]

    @property
    def foreign_err(self) -> list[str]:
        return [line for line in self.err.splitlines() if not line.startswith("nanscope:")]


@dataclass
class Both:
    """A script's two processes, and what the recorded one left."""

    bare: Ending
    recorded: Ending
    spool: Path

    @property
    def runs(self) -> list[Path]:
        return sorted(self.spool.iterdir()) if self.spool.exists() else []

    @property
    def journal(self) -> Journal:
        (run,) = self.runs
        return read_journal(run)

    @property
    def printed_losses(self) -> list[float]:
        return [float(line.split()[-1]) for line in self.bare.out.splitlines()]


def start(command: Sequence[str], folder: Path, **environment: str) -> subprocess.Popen[str]:
    values = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.Popen(
        command, cwd=folder, env=values, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def finish(process: subprocess.Popen[str] | ForkedScript) -> Ending:
    if isinstance(process, ForkedScript):
        return Ending(*process.finish(TIMEOUT_S))
    out, err = process.communicate(timeout=TIMEOUT_S)
    return Ending(process.returncode, out, err)


def run_both(
    folder: Path,
    *command: str,
    options: Sequence[str] = (),
    launcher: Sequence[str] = (),
    bare: Sequence[str] | None = None,
    forked: ForkedScripts | None = None,
    is_started: bool = False,
) -> Both:
    """Run a script without and with `dashboard run`, side by side; nothing but stderr may differ.

    Args:
        folder: where it runs.
        command: the script and its arguments.
        options: of `dashboard run`.
        launcher: goes before both.
        bare: the command that must print the same, if it is another one.
        forked: runs both scripts, if nothing of how Python starts them is looked at.
        is_started: the recorded one is not forked.
    """
    folder.mkdir(exist_ok=True)
    key = (*launcher, *(command if bare is None else bare))
    recorded: subprocess.Popen[str] | ForkedScript
    if forked is not None and not is_started:
        recorded = forked.launch([*options, *command], folder)
    else:
        recorded = start([*launcher, *DASHBOARD, "run", *options, *command], folder)
    if key not in _bare and forked is not None:
        _bare[key] = Ending(*forked.start(key, folder).finish())
    elif key not in _bare:
        python = [sys.executable, *key] if not launcher else [*launcher, sys.executable, *command]
        _bare[key] = finish(start(python, folder))
    both = Both(_bare[key], finish(recorded), spool=Path(os.environ["NANSCOPE_SPOOL"]))
    assert both.recorded.out == both.bare.out
    assert both.recorded.code == both.bare.code
    return both


_bare: dict[tuple[str, ...], Ending] = {}
"""How the scripts end without us: needed once each."""


@pytest.fixture(scope="module")
def forked() -> Iterator[ForkedScripts]:
    """Without the probe: these scripts show how one ends that has nothing of it, no import either."""
    with ForkedScripts(*TORCH) as scripts:
        yield scripts


def losses_of(journal: Journal) -> list[float]:
    return [frame.scalars["loss"] for frame in journal.frames]


@pytest.mark.capability(66)
def test_plain_loop_is_recorded_from_its_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTS_START_QUICKLY", "")  # for one at least, Python's collector does as for users
    both = run_both(tmp_path / "work", *PLAIN_LOOP)
    losses = [float(line) for line in both.bare.out.splitlines()[:5]]
    journal = both.journal
    assert [frame.step for frame in journal.frames] == list(range(5))
    assert losses_of(journal) == pytest.approx(losses)
    assert [frame.scalars["samples"] for frame in journal.frames] == [3.0] * 5
    assert [p.name for p in journal.layouts[0].parameters] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert journal.start.name == "plain_loop.py"
    assert journal.layouts[0].model == "model"
    assert journal.end is not None
    (line,) = both.recorded.err.splitlines()
    assert line.startswith(f"nanscope: recording run {journal.start.run} of model (Sequential); ")


def test_options_and_first_step_reach_the_session(tmp_path: Path, forked: ForkedScripts) -> None:
    options = ["--quiet", "--level=advanced", "--first-step", "41000", "--spool", "elsewhere"]
    both = run_both(tmp_path / "work", *PLAIN_LOOP, options=options, forked=forked)
    assert both.recorded.err == ""
    (run,) = (tmp_path / "work" / "elsewhere").iterdir()
    journal = read_journal(run)
    assert journal.start.level == "advanced"
    assert journal.frames[0].step == 41_000 and journal.end is not None
    assert journal.end.step == 41_000 + len(journal.frames) - 1


def test_script_that_watches_late_goes_on_with_what_can_be_had(tmp_path: Path, forked: ForkedScripts) -> None:
    options = ["--spool", "recorded"]
    both = run_both(tmp_path / "work", str(SCRIPTS / "watches_late.py"), options=options, forked=forked)
    (run,) = (tmp_path / "work" / "recorded").iterdir()
    journal = read_journal(run)
    assert [frame.step for frame in journal.frames] == list(range(12))
    assert journal.start.name == "watches_late.py"
    (change,) = [event for event in journal.events if event.kind == "level_changed"]
    assert change.message.startswith("Level advanced instead of basic, overhead limit 50 %")
    (warning,) = [line for line in both.recorded.own_lines if "warning: " in line]
    assert "name='mine' cannot change" in warning


def test_address_without_a_scheme_is_refused_before_the_script_starts(
    executed: list[tuple[list[str], dict[str, str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["run", "--connect", "localhost:8051", "x.py"])
    assert executed == []
    assert "must be a ZeroMQ address such as" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["-1", "4e4", str(2**53)])
def test_first_step_that_is_none_is_refused_before_the_script_starts(
    value: str, executed: list[tuple[list[str], dict[str, str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["run", f"--first-step={value}", "x.py"])
    assert executed == []
    assert f"{value} is not a step; give a whole number from 0" in capsys.readouterr().err


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, str]]]:
    """What the command would have become."""
    calls: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setattr(
        os, "execve", lambda file, arguments, environment: calls.append((arguments, environment))
    )
    return calls


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["x.py"], ["x.py"]),
        (["--quiet", "x.py", "--quiet", "-m", "--level", "q"], ["x.py", "--quiet", "-m", "--level", "q"]),
        (["-m", "pkg", "--spool", "a", "--", "b"], ["-m", "pkg", "--spool", "a", "--", "b"]),
        (["--level", "basic", "-m", "pkg"], ["-m", "pkg"]),
        (["--first-step", "7", "x.py", "--first-step", "8"], ["x.py", "--first-step", "8"]),
        (["--", "x.py", "--", "-h"], ["x.py", "--", "-h"]),
    ],
)
def test_arguments_after_the_script_are_the_scripts(
    given: list[str], expected: list[str], executed: list[tuple[list[str], dict[str, str]]]
) -> None:
    main(["run", *given])
    ((arguments, _),) = executed
    assert arguments[0] == sys.executable
    assert arguments[-len(expected) :] == expected
    assert expected[0] not in arguments[1 : -len(expected)]


def test_level_off_leaves_the_environment_alone(executed: list[tuple[list[str], dict[str, str]]]) -> None:
    before = dict(os.environ)
    main(["run", "--level", "off", "x.py"])
    main(["run", "--connect", "tcp://127.0.0.1:1", "x.py"])
    (_, off), (_, on) = executed
    assert off == {**before, "NANSCOPE_LEVEL": "off"}
    assert on["NANSCOPE_CONNECT"] == "tcp://127.0.0.1:1"
    assert set(on) - set(before) <= {"PYTHONPATH", "NANSCOPE_LAUNCH", "NANSCOPE_CONNECT"}


def test_module_is_run_as_python_does(tmp_path: Path, forked: ForkedScripts) -> None:
    package = tmp_path / "work" / "training" / "inner"
    package.mkdir(parents=True)
    shutil.copy(SCRIPTS / "plain_loop.py", package / "__main__.py")
    both = run_both(tmp_path / "work", "-m", "training.inner", "--quiet", forked=forked, is_started=True)
    assert both.journal.start.name == "training.inner"


def test_two_models_have_a_run_each(tmp_path: Path, forked: ForkedScripts) -> None:
    both = run_both(tmp_path / "work", str(SCRIPTS / "gan.py"), forked=forked)
    journals = {read_journal(run).start.name: read_journal(run) for run in both.runs}
    assert set(journals) == {"gan.py (judge)", "gan.py (painter)"}
    for name in ("judge", "painter"):
        printed = [float(line.split()[1]) for line in both.bare.out.splitlines() if line.startswith(name)]
        assert losses_of(journals[f"gan.py ({name})"]) == pytest.approx(printed)
    first, second = both.runs
    assert second.name == f"{first.name}-judge" or second.name == f"{first.name}-painter"
    # One training, one line: that of the run which leads to both.
    (said,) = both.recorded.own_lines
    assert said.startswith(f"nanscope: recording run {first.name} of ")


def test_models_that_one_function_trains_have_different_names(tmp_path: Path, forked: ForkedScripts) -> None:
    both = run_both(tmp_path / "work", str(SCRIPTS / "one_function.py"), forked=forked)
    journals = [read_journal(run) for run in both.runs]
    assert {journal.layouts[0].model for journal in journals} == {"net", "second"}
    assert {journal.start.name for journal in journals} == {
        "one_function.py (net)",
        "one_function.py (second)",
    }


def test_modules_of_one_optimizer_that_nothing_holds_have_a_run_each(
    tmp_path: Path, forked: ForkedScripts
) -> None:
    both = run_both(tmp_path / "work", str(SCRIPTS / "encoder_and_head.py"), forked=forked)
    journals = {read_journal(run).start.name: read_journal(run) for run in both.runs}
    assert set(journals) == {"encoder_and_head.py (encoder)", "encoder_and_head.py (head)"}
    losses, norms = zip(*(map(float, line.split()[1:]) for line in both.bare.out.splitlines()), strict=True)
    parts = []
    for journal in journals.values():
        assert losses_of(journal) == pytest.approx(losses)
        parts.append([frame.scalars["grad_norm"] for frame in journal.frames])
    assert [math.hypot(*both_norms) for both_norms in zip(*parts, strict=True)] == pytest.approx(norms)


@pytest.mark.parametrize(("way", "model"), [("forgotten", "encoder"), ("meant", "head")])
def test_calls_without_gradients_are_told_where_nothing_is_trained(
    tmp_path: Path, way: str, model: str, forked: ForkedScripts
) -> None:
    both = run_both(tmp_path / "work", str(SCRIPTS / "gradients_off.py"), way, forked=forked)
    assert both.journal.layouts[0].model == model
    found = [event for event in both.journal.latest_events if event.kind == "parameter_not_updated"]
    assert [event.step < 20 for event in found] == ([True] if way == "forgotten" else [])
    assert all("gradients_off.py:15: with torch.no_grad()" in event.message for event in found)


def test_parts_of_a_model_are_named_by_what_holds_them(tmp_path: Path, forked: ForkedScripts) -> None:
    both = run_both(tmp_path / "work", str(SCRIPTS / "parts.py"), forked=forked)
    names = [parameter.name for parameter in both.journal.layouts[0].parameters]
    assert names == ["encoder.weight", "encoder.bias", "decoder.weight", "decoder.bias"]
    assert losses_of(both.journal) == pytest.approx(both.printed_losses)


def test_run_is_that_of_the_model_and_not_of_what_holds_it_and_a_copy(
    tmp_path: Path, forked: ForkedScripts
) -> None:
    both = run_both(tmp_path / "work", str(SCRIPTS / "moving_average.py"), forked=forked)
    layout = both.journal.layouts[0]
    assert layout.model == "denoiser"
    assert [parameter.name for parameter in layout.parameters] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert losses_of(both.journal) == pytest.approx(both.printed_losses)
    assert "of denoiser (Sequential)" in both.recorded.own_lines[0]


def test_first_epoch_counts_though_it_had_begun_before_the_session(
    tmp_path: Path, forked: ForkedScripts
) -> None:
    both = run_both(tmp_path / "work", str(SCRIPTS / "epochs.py"), forked=forked)
    epochs = [frame.scalars.get("epoch") for frame in both.journal.frames]
    assert [epoch for epoch in epochs if epoch is not None] == [1.0, 2.0]
    assert losses_of(both.journal) == pytest.approx(both.printed_losses)


def test_closure_that_is_evaluated_several_times_is_one_step_from_the_first_on(
    tmp_path: Path, forked: ForkedScripts
) -> None:
    both = run_both(tmp_path / "work", str(SCRIPTS / "lbfgs.py"), forked=forked)
    assert [frame.step for frame in both.journal.frames] == list(range(6))
    assert losses_of(both.journal) == pytest.approx(both.printed_losses)
    assert both.journal.layouts[0].model == "model"


def test_updates_by_hand_are_recorded_from_the_first_step_to_the_last(
    tmp_path: Path, forked: ForkedScripts
) -> None:
    both = run_both(tmp_path / "work", str(SCRIPTS / "by_hand.py"), forked=forked)
    assert losses_of(both.journal) == pytest.approx(both.printed_losses)
    assert [frame.step for frame in both.journal.frames] == [0, 1, 2, 3]


@pytest.mark.parametrize("way", ["chained", "optimizer", "interrupt", "interrupt_with_hook"])
def test_end_by_exception_is_told_as_without(tmp_path: Path, way: str, forked: ForkedScripts) -> None:
    started = None if way == "chained" else forked
    both = run_both(tmp_path / "work", str(SCRIPTS / "ends.py"), way, forked=started)
    assert both.bare.code != 0
    assert both.recorded.foreign_err == both.bare.err.splitlines()
    kinds = [event.kind for event in both.journal.latest_events]
    assert kinds == ([] if way.startswith("interrupt") else ["exception"])


def test_uncaught_anomaly_has_its_public_name(tmp_path: Path, spool: Path, forked: ForkedScripts) -> None:
    recorded = finish(forked.launch([str(SCRIPTS / "watches_itself.py"), "raise"], tmp_path))
    assert recorded.code == 1
    assert any(line.startswith("probe.AnomalyError: ") for line in recorded.err.splitlines())
    assert "_nanscope" not in recorded.err
    assert [run.name for run in spool.iterdir()] == ["my-own"]


def test_exit_code_and_signal_are_the_scripts_own(tmp_path: Path, forked: ForkedScripts) -> None:
    assert run_both(tmp_path / "work", str(SCRIPTS / "ends.py"), "exit", forked=forked).recorded.code == 3
    terminated = run_both(tmp_path / "work", str(SCRIPTS / "ends.py"), "terminate", forked=forked)
    assert terminated.recorded.code == -signal.SIGTERM
    assert terminated.recorded.out == "trained\n"


@pytest.mark.capability(6)
def test_critical_event_is_one_line_on_stderr_and_none_in_the_scripts_log(
    tmp_path: Path, forked: ForkedScripts
) -> None:
    both = run_both(tmp_path / "work", str(SCRIPTS / "ends.py"), "nan", forked=forked)
    assert [event.kind for event in both.journal.latest_events if event.severity == "critical"] == [
        "nonfinite_loss"
    ]
    _, critical, last = both.recorded.own_lines
    assert critical.startswith("nanscope: nonfinite_loss: ")
    assert last.startswith("nanscope: 1 critical event; this: NaN first at step 2")
    assert "ends.py:" in last
    assert last.endswith(f"; see: dashboard events {both.runs[0]}")


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_ranks_that_a_script_starts_are_one_run(tmp_path: Path, method: str, forked: ForkedScripts) -> None:
    script = str(SCRIPTS / "ranks.py")
    both = run_both(tmp_path / "work", script, method, bare=[script, "fork"], forked=forked)
    assert frames_of_two_ranks(both) == (3, 3)


def test_ranks_that_torchrun_starts_are_one_run(tmp_path: Path, forked: ForkedScripts) -> None:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python"]
    script = str(SCRIPTS / "ranks.py")
    ranks = forked.start([*torchrun, *DASHBOARD, "run", script], tmp_path)
    bare = Ending(*forked.start([script, "fork"], tmp_path).finish())
    assert frames_of_two_ranks(Both(bare, finish(ranks), Path(os.environ["NANSCOPE_SPOOL"]))) == (3, 3)


def test_torchrun_below_the_command_records_its_ranks(tmp_path: Path, forked: ForkedScripts) -> None:
    script, options = str(SCRIPTS / "ranks.py"), ["--standalone", "--nproc-per-node=2"]
    command = ["-m", "torch.distributed.run", *options, script]
    both = run_both(tmp_path / "work", *command, bare=[script, "fork"], forked=forked)
    assert frames_of_two_ranks(both) == (3, 3)


def frames_of_two_ranks(both: Both) -> tuple[int, int]:
    """How many each has, once it is certain that they are one run, and its losses those that were printed."""
    (run,) = both.runs
    of_first, of_second = read_journal(run, 0), read_journal(run, 1)
    assert losses_of(of_first) == pytest.approx(both.printed_losses)
    assert (of_first.start.world_size, of_second.start.rank) == (2, 1)
    assert of_first.layouts[0].parameters[0].name == "0.weight"
    assert None not in (of_first.end, of_second.end)
    (said,) = both.recorded.own_lines  # healthy ranks end without a line
    assert said.startswith(f"nanscope: recording run {run.name} ")
    assert "; see: dashboard events" not in both.recorded.err
    return len(of_first.frames), len(of_second.frames)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", pytest.param("forkserver", marks=pytest.mark.faults), "spawn"])
def test_workers_of_a_data_loader_are_left_alone(tmp_path: Path, method: str, forked: ForkedScripts) -> None:
    script = str(SCRIPTS / "workers.py")
    both = run_both(tmp_path / "work", script, method, bare=[script, "fork"], forked=forked)
    assert losses_of(both.journal) == pytest.approx(both.printed_losses)
    (run,) = both.runs
    assert len(list(run.glob("*-*/"))) == 1
    assert len(both.recorded.err.splitlines()) == 1


def test_child_forked_before_the_first_step_is_left_alone(tmp_path: Path, forked: ForkedScripts) -> None:
    """It has the optimizer that its parent waits for; no data loader says that it is a worker."""
    both = run_both(tmp_path / "work", str(SCRIPTS / "forked_child.py"), forked=forked)
    assert losses_of(both.journal) == pytest.approx(both.printed_losses)
    (run,) = both.runs
    assert len(list(run.glob("*-*/"))) == 1
    assert len(both.recorded.own_lines) == 1


def test_script_keeps_its_own_probe_and_dashboard(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    (folder / "dashboard").mkdir(parents=True)
    (folder / "probe.py").write_text("VALUE = 1\n")
    (folder / "dashboard" / "__init__.py").write_text("")
    (folder / "dashboard" / "page.py").write_text("VALUE = 2\n")
    shutil.copy(SCRIPTS / "own_names.py", folder)
    both = run_both(tmp_path, str(folder / "own_names.py"), bare=["-c", "print('1 2 probe')"])
    assert len(both.journal.frames) == 2


def test_script_that_watches_itself_has_that_session_alone(tmp_path: Path, forked: ForkedScripts) -> None:
    script = str(SCRIPTS / "watches_itself.py")
    both = run_both(tmp_path / "work", script, bare=["-c", "print(True, True)"], forked=forked)
    assert [run.name for run in both.runs] == ["my-own"]
    (line,) = both.recorded.err.splitlines()
    assert line.startswith("nanscope: recording run my-own of Sequential; ")


def test_training_by_autograd_grad_is_recorded(tmp_path: Path, forked: ForkedScripts) -> None:
    both = run_both(tmp_path / "work", str(SCRIPTS / "momentum_by_hand.py"), forked=forked)
    assert both.recorded.out == both.bare.out
    (run,) = both.runs
    assert len(read_journal(run).frames) >= 38


@pytest.mark.parametrize("options", [[], ["--quiet"]])
def test_training_of_no_module_is_told_at_the_end(
    tmp_path: Path, options: list[str], forked: ForkedScripts
) -> None:
    both = run_both(tmp_path / "work", str(SCRIPTS / "raw_tensors.py"), options=options, forked=forked)
    assert both.recorded.out == both.bare.out
    assert both.runs == []
    said = [line for line in both.recorded.own_lines if "nothing is recorded" in line]
    assert len(said) == (0 if options else 1)


_RARE = [pytest.param(way, marks=pytest.mark.faults) for way in ("before torch", "module", "late path")]


@pytest.mark.parametrize("way", ["beside", "no import", *_RARE])
def test_training_beside_a_checkouts_probe_is_one_run(way: str, tmp_path: Path, spool: Path) -> None:
    """The script's own `import probe` leads to another copy of nanscope's than the command's."""
    work, elsewhere = tmp_path / "work", tmp_path / "elsewhere"
    work.mkdir()
    copied = (elsewhere if way == "late path" else work) / "probe"
    shutil.copytree(Path(probe.__file__).parent, copied, ignore=shutil.ignore_patterns("__pycache__"))
    text = (SCRIPTS / "watches_itself.py").read_text()
    if way == "no import":
        text = (SCRIPTS / "plain_loop.py").read_text()
    if way == "before torch":
        text = f"import probe\n{text}"
    if way == "late path":
        text = text.replace("import probe\n", f"sys.path.insert(0, {str(elsewhere)!r})\nimport probe\n")
    (work / "training.py").write_text(text)
    # As the installed command does: for `python -m dashboard` the current folder would come first.
    (tmp_path / "command.py").write_text("from dashboard.cli import main\nmain()\n")
    command = [sys.executable, str(tmp_path / "command.py"), "run"]
    script = ["-m", "training"] if way == "module" else ["training.py"]
    ending = finish(start([*command, *script], work, PYTHONPATH=str(Path(probe.__file__).parents[1])))
    assert ending.code == 0
    (run,) = spool.iterdir()
    assert run.name == "my-own" or way == "no import"
    assert len(list(run.glob("0-*"))) == 1
    assert way == "no import" or ending.out == "True True\n"


def test_quiet_is_a_script_that_watches_itself_too(tmp_path: Path, forked: ForkedScripts) -> None:
    script, bare = str(SCRIPTS / "watches_itself.py"), ["-c", "print(True, True)"]
    both = run_both(tmp_path / "work", script, options=["--quiet"], bare=bare, forked=forked)
    assert [run.name for run in both.runs] == ["my-own"]
    assert both.recorded.err == ""


def test_script_without_torch_loads_nothing_of_ours(tmp_path: Path) -> None:
    both = run_both(tmp_path / "work", str(SCRIPTS / "no_torch.py"), "--quiet", "-x")
    assert both.recorded.out == "hello ['--quiet', '-x'] []\n"
    assert (both.recorded.err, both.runs) == ("", [])


def test_sitecustomize_of_the_users_own_still_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import sys; sys.customized = True\n")
    monkeypatch.setenv("PYTHONPATH", str(site))
    script = tmp_path / "script.py"
    script.write_text("import sys; print(sys.path[1:2], 'sitecustomize' in sys.modules, sys.customized)")
    both = run_both(tmp_path / "work", str(script))
    assert both.recorded.out == f"['{site}'] True True\n"


def test_script_that_is_not_there_fails_as_without(tmp_path: Path) -> None:
    both = run_both(tmp_path / "work", "missing.py")
    assert (both.recorded.code, both.recorded.err) == (2, both.bare.err)


def test_spool_that_cannot_be_written_does_not_stop_the_script(tmp_path: Path, forked: ForkedScripts) -> None:
    (tmp_path / "file").write_text("")
    options = ["--spool", str(tmp_path / "file" / "spool")]
    both = run_both(tmp_path / "work", *PLAIN_LOOP, options=options, forked=forked)
    assert len(both.recorded.own_lines) == 1
    assert "not recorded" in both.recorded.own_lines[0]


def test_run_without_a_script_is_a_users_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["run", "--quiet"])
    assert caught.value.code == 2
    assert "which script?" in capsys.readouterr().err


def test_launch_environment_keeps_the_users_paths_once() -> None:
    first = launch_environment({"PYTHONPATH": "/a:/b"}, is_quiet=False)
    again = launch_environment(first, is_quiet=False)
    assert first["PYTHONPATH"] == again["PYTHONPATH"]
    assert first["PYTHONPATH"].endswith(":/a:/b")
