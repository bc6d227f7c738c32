"""What a session writes to stderr, its `repr`, and the groups that runs belong to."""

import logging
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from journals import read_journal
from small_training import batches, seeded_model, train
from torch import nn
from torch.nn import functional as F

import probe
from probe.session import Probe

pytestmark = pytest.mark.usefixtures("one_thread")


def ruined(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Three healthy steps, and one whose loss is NaN."""
    train(model, optimizer, 3)
    (inputs, targets), *_ = batches(1)
    (F.cross_entropy(model(inputs), targets) * float("nan")).backward()
    optimizer.step()


def begun(**options: object) -> tuple[Probe, nn.Module, torch.optim.Optimizer]:
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return probe.watch(model, optimizer, **options), model, optimizer  # type: ignore[arg-type]


def own_lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("nanscope: ")]


def test_healthy_run_says_once_where_it_records(spool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, model, optimizer = begun()
    probe.watch(model, optimizer)
    train(model, optimizer, 3)
    run.close()
    run.close()
    (line,) = own_lines(capsys)
    assert line.startswith(
        f"nanscope: recording run {run.run} of Sequential; in {spool / run.run}, open with: "
    )


def test_ruined_run_ends_with_its_worst_event(spool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, model, optimizer = begun()
    ruined(model, optimizer)
    run.close()
    _, line = own_lines(capsys)
    assert line.startswith("nanscope: 1 critical event; this: NaN first at step 3")
    assert f"{Path(__file__).name}:" in line
    assert line.endswith(f"see: dashboard events {spool / run.run}")


@pytest.mark.parametrize("way", ["option", "environment", "rank"])
def test_asked_to_be_quiet_nothing_is_said(
    way: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    variables = {"environment": {"NANSCOPE_QUIET": "1"}, "rank": {"RANK": "1", "WORLD_SIZE": "2"}}
    for name, value in variables.get(way, {}).items():
        monkeypatch.setenv(name, value)
    run, model, optimizer = begun(quiet=True) if way == "option" else begun()
    ruined(model, optimizer)
    run.close()
    assert own_lines(capsys) == []


@pytest.mark.parametrize(("is_quiet", "has_handler"), [(True, False), (False, False), (True, True)])
def test_quiet_run_logs_only_where_logging_is_set_up(
    is_quiet: bool, has_handler: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = logging.Logger("alone")
    if has_handler:
        logger.addHandler(logging.StreamHandler(sys.stderr))
    run, model, optimizer = begun(quiet=is_quiet, logger=logger)
    ruined(model, optimizer)
    run.close()
    assert ("nonfinite_loss: " in capsys.readouterr().err) == (has_handler or not is_quiet)


@pytest.mark.parametrize("value", ["", "0"])
def test_quiet_switched_off_in_the_environment_speaks(
    value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NANSCOPE_QUIET", value)
    begun()[0].close()
    assert len(own_lines(capsys)) == 1


@pytest.mark.parametrize(("first", "second", "lines"), [(False, True, 1), (True, False, 1), (False, None, 2)])
def test_second_watch_switches_the_last_line(
    first: bool, second: bool | None, lines: int, capsys: pytest.CaptureFixture[str]
) -> None:
    run, model, optimizer = begun(quiet=first)
    probe.watch(model, optimizer, quiet=second)
    ruined(model, optimizer)
    run.close()
    assert len(own_lines(capsys)) == lines


def test_two_models_of_a_process_end_with_one_line(spool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (first, *one), (second, *other) = begun(run="one"), begun(run="other")
    ruined(*one)  # type: ignore[arg-type]
    ruined(*other)  # type: ignore[arg-type]
    first.close()
    second.close()
    said = own_lines(capsys)
    assert len(said) == 2
    assert "2 critical events; the worst: " in said[-1]
    groups = {read_journal(folder).start.group for folder in spool.iterdir()}
    assert len(groups) == 1


@pytest.mark.parametrize(
    ("steps", "closes", "lines"),
    [(0, False, 1), (1, False, 1), (5, False, 1), (40, False, 2), (1, True, 2)],
    ids=["watched together", "a step later", "after a critic's updates", "pretrained", "one after the other"],
)
def test_models_of_one_training_begin_with_one_line(
    steps: int, closes: bool, lines: int, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *one = begun(name="teacher")
    train(*one, steps)  # type: ignore[arg-type]
    if closes:
        first.close()
    (second, *_), (third, *_) = begun(name="student"), begun(name="judge")
    said = own_lines(capsys)
    for run in (first, second, third):
        run.close()
    assert len(said) == lines
    assert said[0].startswith(f"nanscope: recording run {first.run} of ")
    assert all(f" {second.run} of " in line for line in said[1:])


def test_model_beside_a_quiet_one_says_where_it_records(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = begun(quiet=True)[0], begun()[0]
    (line,) = own_lines(capsys)
    assert line.startswith(f"nanscope: recording run {second.run} of ")
    first.close()
    second.close()


def test_model_that_is_dropped_ends_with_the_line_too(capsys: pytest.CaptureFixture[str]) -> None:
    run, model, optimizer = begun()
    ruined(model, optimizer)
    del model, optimizer
    run.close()
    assert "1 critical event" in own_lines(capsys)[-1]


def test_stderr_that_is_closed_disturbs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in (None, SimpleNamespace()):
        monkeypatch.setattr(sys, "stderr", stream)
        run, model, optimizer = begun()
        train(model, optimizer, 2)
        run.close()
        assert not run.active


def test_repr_says_run_model_steps_and_level() -> None:
    run, model, optimizer = begun(level="advanced", run="mine", quiet=True)
    assert repr(run) == "<probe.Probe run mine of Sequential: 0 steps, level advanced>"
    train(model, optimizer, 1)
    assert repr(run) == "<probe.Probe run mine of Sequential: 1 step, level advanced>"
    run.close()
    assert repr(run) == "<probe.Probe run mine of Sequential: 1 step, level advanced, closed>"
    assert repr(Probe.inert(model)) == "<probe.Probe: nothing is recorded>"


class Shell:
    """What the probe reads of IPython's."""

    def __init__(self, cell: int, **variables: str) -> None:
        self.user_ns = {"In": [""] * (cell + 1), **variables}


@pytest.mark.parametrize(
    ("variables", "session", "modules", "name"),
    [
        ({}, "/home/me/train.ipynb", ["ipykernel"], "train.ipynb [7]"),
        ({"__vsc_ipynb_file__": "/w/vs code.ipynb"}, "", ["ipykernel"], "vs code.ipynb [7]"),
        ({}, "", ["ipykernel"], "notebook [7]"),
        ({}, "", [], "ipython [7]"),
    ],
)
def test_runs_of_a_notebook_are_named_after_their_cells(
    variables: dict[str, str],
    session: str,
    modules: list[str],
    name: str,
    spool: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ipython = ModuleType("IPython")
    for module in ("IPython", *modules):
        monkeypatch.setitem(sys.modules, module, ipython)
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    monkeypatch.setenv("JPY_SESSION_NAME", session)
    groups = {}
    for cell in (7, 8):
        monkeypatch.setattr(ipython, "get_ipython", lambda n=cell: Shell(n, **variables), raising=False)
        run, _, _ = begun(quiet=True)
        run.close()
        start = read_journal(spool / run.run).start
        groups[start.name] = start.group == run.run
    # A cell that trains again is another run, not a second model of the first.
    assert groups == {name: True, name.replace("7", "8"): True}


def test_script_that_loads_ipython_is_named_after_its_file(
    spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ipython = ModuleType("IPython")
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setattr(ipython, "get_ipython", lambda: None, raising=False)
    run, _, _ = begun(quiet=True)
    run.close()
    assert read_journal(spool / run.run).start.name == Path(sys.argv[0]).name
