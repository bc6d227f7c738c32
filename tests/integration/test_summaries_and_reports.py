"""Summaries, reports, regions and clearing of real trainings, against what the test has planted in them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
import torch
from cuda_stand_in import SECOND_DEVICE, stand_in_two_devices
from journals import read_journal
from torch import nn

import probe
from dashboard.cli import main
from dashboard.ingest.spool import SpoolIngest
from dashboard.page.callbacks.documents import documents_view
from dashboard.store.duck import DuckStore
from probe.actions.analysis.regions import MAX_REGIONS, MAX_RUNS
from probe.loop.step_queue import MOST_WAITING, StepQueue

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_switched_off")
SCRIPTS = Path(__file__).with_name("scripts")
SPIKES = (*range(50, 58), 90)
"""Steps whose loss, and gradients, are made a million times larger."""
BURSTS = tuple(step for step in range(1000) if step % 15 < 4)
"""Steps of many short events, none of which explains the others."""
NINE = [
    *("total_steps", "anomaly_steps", "gradient_explosions", "gradient_vanishing", "loss_anomalies"),
    *("anomaly_rate", "loss_anomaly_rate", "gradient_explosion_rate", "gradient_vanishing_rate"),
]


class Loop:
    """A training whose weights hardly move: what is found is what was planted."""

    def __init__(self, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-9)
        self.generator = torch.Generator().manual_seed(1)
        self.run = probe.watch(self.model, self.optimizer, replay=False, **options)

    def step(self, factor: float = 1.0) -> None:
        inputs = torch.randn(32, 8, generator=self.generator)
        self.optimizer.zero_grad()
        ((self.model(inputs) - 1).square().mean() * factor).backward()
        self.optimizer.step()

    def train(
        self,
        steps: int,
        spikes: Collection[int] = (),
        *,
        step: Callable[..., None] | None = None,
        logs: bool = False,
    ) -> None:
        """Make steps; what logs has each of them judged by the detectors of sampled numbers, too."""
        for number in range(steps):
            (step or self.step)(1e6 if number in spikes else 1.0)
            if logs:
                self.run.log(mark=1.0)


@pytest.mark.capability(14, 26, 56)
def test_summaries_count_what_was_planted(spool: Path) -> None:
    loop = Loop(mode="warn")
    with pytest.warns(RuntimeWarning, match="step"), loop.run as run:
        loop.train(100, SPIKES)
        training, summary = run.get_training_summary(), run.get_debug_summary()
        assert dict(probe.get_training_summary(loop.model)) == dict(training)
        assert probe.get_training_summary()["total_steps"] == 100
    assert list(training)[:9] == NINE and json.loads(json.dumps(training)) == dict(training)
    assert (training["total_steps"], training["gradient_explosions"]) == (100, len(SPIKES))
    assert training["gradient_explosion_rate"] == training.gradient_explosion_rate == len(SPIKES) / 100
    assert training["gradient_vanishing"] == 0 and training["loss_anomalies"] == len(SPIKES)
    assert training["anomaly_steps"] >= len(SPIKES) and training.last_step == 99
    plain = json.loads(json.dumps(summary, indent=2))
    assert plain["gradient_violations"] == len(SPIKES) and plain["mode"] == "warn"
    assert plain["event_counts"]["gradient_explosion"] == 2 and plain["anomaly_mode"] is False
    found = [event for event in read_journal(spool / run.run).latest_events if event.severity != "info"]
    assert plain["total_anomalies"] == len(found) and plain["debug_history_length"] >= len(found)
    history = [(one["step"], one["kind"]) for one in summary.recorded.history]
    assert {(50, "gradient_explosion"), (90, "gradient_explosion")} <= set(history)


def test_summary_of_a_running_episode_has_all_of_its_steps() -> None:
    loop = Loop()
    with loop.run as run:
        loop.train(57, range(50, 57))
        assert run.get_training_summary()["gradient_explosions"] == 7


def test_summaries_without_a_watched_run_count_what_was_monitored() -> None:
    model = nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    probe.monitor_training_step(model, float("nan"), 0)
    summary = probe.get_debug_summary(model)
    assert (summary["total_steps"], summary["loss_anomalies"], summary["total_anomalies"]) == (1, 1, 1)
    assert summary.recorded is None and summary["event_counts"] == {}


@pytest.mark.capability(47)
def test_slow_region_is_one_event_and_a_row_of_the_page(spool: Path, tmp_path: Path) -> None:
    loop = Loop()
    wait = threading.Event().wait

    @probe.debug_operation("train_step", slow_above_s=0.02)
    def step(factor: float) -> None:
        with loop.run.debug_context("inner"):
            loop.step(factor)
        wait(0.05)

    with loop.run as run:
        loop.train(60, (50,), step=step)
        summary, metrics = run.get_debug_summary(), run.debug_metrics
    slow = [
        one for one in read_journal(spool / run.run).latest_events if one.kind == "performance_degradation"
    ]
    assert [(one.subject, one.severity, one.evidence.threshold) for one in slow] == [
        ("train_step", "warning", 0.02)
    ]
    assert slow[0].message.startswith("Region `train_step` is slow: it took ") and slow[0].ended
    assert "(limit 20 ms)" in slow[0].message
    assert slow[0].count > 30
    assert summary["total_operations"] == 120 and summary["max_execution_time"] >= 0.05
    assert summary["avg_execution_time"] >= 0.025 and summary["avg_memory_usage"] > 50
    exploded = [one for one in metrics if one.gradient_anomalies]
    assert [one.mode.value for one in exploded] == ["train_step/inner", "train_step"]
    assert exploded[1].gradient_anomalies[0].startswith("gradient_explosion at step 50")
    assert exploded[1].execution_time >= 0.05 and exploded[1].gpu_memory is None
    assert {row.path: row.gradient_anomalies for row in summary.regions} == {
        "train_step": 1, "train_step/inner": 1,
    }  # fmt: skip
    store = DuckStore(tmp_path / "data")
    SpoolIngest(store, spool).run()
    sections = {one.id: one for one in documents_view(store, {"run": run.run})}
    store.close()
    section = sections["documents-region"]
    assert all(text in repr(section) for text in ("train_step/inner", "'60'", "too slow", "20 ms"))


def test_quick_region_and_one_between_the_steps_are_quiet(spool: Path) -> None:
    loop = Loop()
    with loop.run as run:
        loop.train(50)
        with run.debug_context("validation", slow_above_s=1e3):
            pass
        loop.train(1, (0,))
        with run.debug_context("later"):
            pass
        rows = {row.path: row.gradient_anomalies for row in run.get_debug_summary().regions}
    kinds = {event.kind for event in read_journal(spool / run.run).latest_events}
    assert rows == {"validation": 0, "later": 0}
    assert "gradient_explosion" in kinds and "performance_degradation" not in kinds


@pytest.mark.capability(57)
def test_report_of_a_run_has_what_was_planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    loop = Loop(name="planted", overhead_limit=0.5)
    with loop.run as run:
        loop.train(100, SPIKES)
        with run.debug_context("validation"):
            pass
        assert run.save_debug_report("debug_report.json") == Path("debug_report.json")
        assert probe.save_debug_report().name == f"nanscope-{run.run}.json"
        page = run.save_debug_report("debug_report.html").read_text()
        text = run.save_debug_report("debug_report.txt").read_text()
    report = json.loads(Path("debug_report.json").read_text())
    assert report["training"]["gradient_explosions"] == report["extra"]["summary"]["gradient_violations"] == 9
    assert [(one["step"], one["count"]) for one in report["gradient_violations"]] == [(50, 8), (90, 1)]
    steps = {step["step"]: step["grad_norm"] for step in report["steps"]}
    assert len(steps) == 100 and steps[50] > 1e4 * steps[49]
    flow = {layer["name"]: layer for layer in report["gradient_flow"]["layers"]}
    assert list(flow) == ["0", "2"] and report["gradient_flow"]["steps"][:2] != [0, 0]
    assert max(flow["0"]["norms"]) > 1e4 * min(flow["0"]["norms"])
    assert report["regions"][0]["body"]["path"] == "validation" and report["extra"]["cuda"]["in_use"] is False
    assert report["extra"]["settings"]["overhead_limit"] == 0.5 and "torch" in report["versions"]
    assert [one["name"] for one in report["parameter_table"]] == [n for n, _ in loop.model.named_parameters()]
    assert "planted" in text and "gradient_explosion x8" in text
    assert page.count("<svg") >= 5 and "gradient_explosion" in page and "<script" not in page
    assert not re.search(r"(?:src|href)=|url[(]", page)


@pytest.mark.capability(44, 57)
def test_report_has_the_devices_and_their_allocators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop()
    with loop.run as run, monkeypatch.context() as patch:
        loop.train(2)
        stand_in_two_devices(patch)
        for ending in (".json", ".txt", ".html"):
            run.save_debug_report(tmp_path / f"cuda{ending}")
    cuda = json.loads((tmp_path / "cuda.json").read_text())["extra"]["cuda"]
    assert (cuda["in_use"], cuda["device_count"], cuda["current_device"]) == (True, 2, 1)
    assert (cuda["cudnn_version"], cuda["built_for"]) == (91000, torch.version.cuda)
    assert cuda["devices"] == [SECOND_DEVICE]
    text = (tmp_path / "cuda.txt").read_text()
    assert all(f"'{name}': {value!r}" in text for name, value in SECOND_DEVICE.items())
    page = (tmp_path / "cuda.html").read_text()
    (table,) = re.findall(
        r"<tr>((?:<th>\w+</th>)+)</tr><tr>((?:<td>[^<]*</td>)+)</tr>", page[page.index(">CUDA<") :]
    )[:1]
    names, values = (re.findall(r">([^<]+)</t[hd]>", row) for row in table)
    assert dict(zip(names, values, strict=True)) == {
        name: str(value) for name, value in SECOND_DEVICE.items()
    }


@pytest.mark.parametrize("ending", [".json", ".txt", ".html"])
def test_report_is_written_at_the_end_after_an_exception_too(tmp_path: Path, ending: str) -> None:
    loop = Loop(report=tmp_path / f"end{ending}")
    with pytest.raises(ZeroDivisionError), loop.run:
        loop.train(3)
        raise ZeroDivisionError("planted")
    assert "planted" in (tmp_path / f"end{ending}").read_text()


def test_report_that_cannot_be_written_is_one_line_and_the_training_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    loop = Loop(report=tmp_path / "file" / "r.json")
    loop.train(2)
    loop.run.close()
    lines = [line for line in capsys.readouterr().err.splitlines() if "could not be written" in line]
    assert len(lines) == 1


def test_two_runs_that_are_given_one_file_have_a_report_each(tmp_path: Path) -> None:
    for _ in range(2):
        loop = Loop(report=tmp_path / "both.json")
        loop.train(2)
        loop.run.close()
    runs = {json.loads(path.read_text())["run"] for path in tmp_path.glob("both*.json")}
    assert len(runs) == 2 and (tmp_path / "both.json").exists()


def test_dashboard_run_writes_the_report_that_it_is_asked_for(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dashboard", "run", "--report", "out/", str(SCRIPTS / "plain_loop.py")]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    (path,) = (tmp_path / "out").iterdir()
    report = json.loads(path.read_text())
    assert path.name == f"nanscope-{report['run']}.json"
    printed = [float(line) for line in ended.stdout.splitlines() if re.fullmatch(r"[0-9.e-]+", line)]
    assert [step["loss"] for step in report["steps"]] == pytest.approx(printed) and len(printed) == 5


def test_variable_asks_for_a_report_and_an_option_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NANSCOPE_REPORT", str(tmp_path / "variable.txt"))
    for options in ({}, {"report": tmp_path / "option.txt"}):
        loop = Loop(**options)
        loop.train(2)
        loop.run.close()
    assert sorted(path.name for path in tmp_path.glob("*.txt")) == ["option.txt", "variable.txt"]


@pytest.mark.parametrize("bad", ["", 3])
def test_report_option_that_is_no_file_is_refused(bad: Any) -> None:
    with pytest.raises(ValueError, match="report="):
        Loop(report=bad)


@pytest.mark.capability(36)
def test_training_session_writes_its_report_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(KeyError), probe.debug_training_session(model, optimizer, anomaly=True) as run:
        assert torch.is_anomaly_enabled()
        for _ in range(5):
            run.debug_training_step(model, torch.ones(2, 4), torch.zeros(2, 1), nn.MSELoss(), optimizer)
        raise KeyError("planted")
    report = json.loads((tmp_path / f"nanscope-{run.run}.json").read_text())
    assert report["last_step"] == 4 and report["event_counts"]["exception"] == 1
    assert report["extra"]["parameters"]["never_updated"] == [] and not torch.is_anomaly_enabled()


@pytest.mark.capability(51)
def test_clearing_saves_first_and_counts_begin_anew(
    spool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    loop = Loop()
    with loop.run as run:
        for number in range(MAX_REGIONS + 5):
            with run.debug_context(f"region {number}"):
                pass
        summary = run.get_debug_summary()
        sizes, limits = summary["history_sizes"], summary["history_limits"]
        assert sizes["regions"] == limits["regions"] == MAX_REGIONS + 1
        assert sizes["operations"] == limits["operations"] == MAX_RUNS
        loop.train(60, range(50, 60))
        saved = run.clear()
        cleared = run.get_debug_summary()
        assert [cleared[name] for name in NINE] == [0] * 9 and cleared["total_anomalies"] == 0
        assert cleared["total_operations"] == 0 and cleared["history_sizes"]["operations"] == 0
        loop.train(10, (4, 5))
        again = run.get_training_summary()
        assert run.clear_debug_data(report=False) is None
        run.save_debug_report("whole.json")
        assert run.clear_debug_history(report="mine.txt") == Path("mine.txt")
    assert saved == tmp_path / f"nanscope-{run.run}.json"
    assert json.loads(saved.read_text())["training"]["gradient_explosions"] == 10
    whole = json.loads((tmp_path / "whole.json").read_text())
    for counts in (whole["training"], whole["extra"]["summary"]):
        assert (counts["total_steps"], counts["gradient_explosions"]) == (70, 12), "a report shows all events"
    assert (again["total_steps"], again["gradient_explosions"]) == (10, 2)
    events = read_journal(spool / run.run).latest_events
    assert [event.step for event in events if event.kind == "gradient_explosion"] == [50, 64]
    assert [event.evidence.value for event in events if event.kind == "cleared"] == [60, 70]


@pytest.mark.capability(59)
def test_many_anomalies_are_one_warning_of_their_rate(
    spool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = Loop()
    with loop.run as run:
        loop.train(60)
        for _ in range(6):
            loop.train(15, range(3), logs=True)
        assert run.get_debug_summary()["event_counts"]["high_anomaly_rate"] == 1
    capsys.readouterr()
    assert main(["events", str(spool / run.run), "--json"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (found,) = [event for event in events if event["kind"] == "high_anomaly_rate"]
    assert found["severity"] == "warning" and found["evidence"]["threshold"] == 0.1
    assert 0.1 < found["evidence"]["value"] <= 0.5 and found["advice"]
    explosions = [event for event in events if event["kind"] == "gradient_explosion"]
    assert [event["count"] for event in explosions] == [3] * 6


def test_one_event_that_lasts_is_no_high_rate() -> None:
    loop = Loop()
    with loop.run as run:
        loop.train(60)
        loop.train(60, range(30), logs=True)
        counts = run.get_debug_summary()["event_counts"]
    assert counts["gradient_explosion"] == 1 and "high_anomaly_rate" not in counts


def test_high_anomaly_rate_begins_anew_after_clearing() -> None:
    loop = Loop()
    with loop.run as run:
        loop.train(100, BURSTS[12:], logs=True)
        assert "high_anomaly_rate" in run.get_debug_summary()["event_counts"]
        run.clear(report=False)
        loop.train(80, logs=True)
        assert "high_anomaly_rate" not in run.get_debug_summary()["event_counts"]


def test_high_anomaly_rate_is_found_where_steps_are_judged_after_their_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As on a machine where the recorder's thread gets no turn: the training thread judges many steps at once.
    monkeypatch.setattr(StepQueue, "look", lambda queue: [])
    loop = Loop()
    with loop.run as run:
        quiet = 3 * MOST_WAITING
        loop.train(quiet + MOST_WAITING - 8, BURSTS[20:], logs=True)
        assert run.get_debug_summary()["event_counts"]["high_anomaly_rate"] == 1


@pytest.mark.parametrize("then", [24, 31])
def test_high_anomaly_rate_is_told_once_while_steps_wait_to_be_judged(
    monkeypatch: pytest.MonkeyPatch, then: int
) -> None:
    # As above: steps that wait for their verdict do not count as quiet.
    monkeypatch.setattr(StepQueue, "look", lambda queue: [])
    loop = Loop()
    with loop.run as run:
        loop.train(60)
        loop.train(40, BURSTS, logs=True)
        assert run.get_debug_summary()["event_counts"]["high_anomaly_rate"] == 1
        loop.train(then, BURSTS, logs=True)
        assert run.get_debug_summary()["event_counts"]["high_anomaly_rate"] == 1
