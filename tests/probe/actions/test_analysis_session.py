"""The analysis calls as methods of a session, watched tensors, and `debug_training_session`."""

import asyncio
import json
import logging
import math
import os
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from journals import Journal, read_journal
from planted_models import backward, chain
from torch import Tensor, nn

import probe
from probe.actions.analysis.analysis_calls import AnalysisCalls
from probe.actions.analysis.memory_calls import MemoryCalls
from probe.actions.analysis.summary_calls import SummaryCalls
from probe.actions.analysis.watched_tensors import STATISTICS, deferred_statistics
from probe.actions.optimisation.optimisation_calls import OptimizationCalls


@pytest.fixture
def model() -> nn.Sequential:
    torch.manual_seed(0)
    return chain(6, 5, 2)


def spool() -> Path:
    return Path(os.environ["NANSCOPE_SPOOL"])


def journal_of(run: probe.Probe) -> Journal:
    return read_journal(spool() / run.run)


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, each: Callable[[], None] = lambda: None
) -> None:
    """Three steps; `each` is called between backward and step."""
    for _ in range(3):
        optimizer.zero_grad()
        backward(model, torch.ones(4, 6))
        each()
        optimizer.step()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01)


def test_methods_are_about_the_watched_model(model: nn.Sequential) -> None:
    with probe.watch(model, sgd(model)) as run:
        backward(model, torch.ones(4, 6))
        assert run.check_gradients().to_dict() == probe.check_gradients(model).to_dict()
        assert run.check_gradient_explosion().to_dict() == probe.check_gradient_explosion(model).to_dict()
        assert (
            run.check_gradient_vanishing(threshold=1.0).names
            == probe.check_gradient_vanishing(model, 1.0).names
        )
        assert run.analyze_gradient_flow().to_dict() == probe.analyze_gradient_flow(model).to_dict()
        assert run.check_model_parameters().to_dict() == probe.check_model_parameters(model).to_dict()
        assert run.inspect_model().to_dict() == probe.inspect_model(model).to_dict()
        assert asyncio.run(run.aio.check_gradients()).total_norm == run.check_gradients().total_norm


def test_methods_take_another_model_too(model: nn.Sequential) -> None:
    other = chain(6, 3, 1)
    backward(other, torch.ones(2, 6))
    with probe.watch(model, sgd(model)) as run:
        assert run.check_gradients(other).to_dict() == probe.check_gradients(other).to_dict()


def test_methods_of_a_closed_session_say_that_there_is_no_model(model: nn.Sequential) -> None:
    run = probe.watch(model, sgd(model))
    run.close()
    for result in (
        run.check_gradients(),
        run.check_gradient_explosion(),
        run.check_gradient_vanishing(),
        run.analyze_gradient_flow(),
        run.check_model_parameters(),
        run.monitor_training_step(None, 1.0, 0),
    ):
        assert result.ok and "no model is watched" in str(result)
        json.dumps(result.to_dict(), allow_nan=False)
    assert "no model is watched" in str(run.inspect_model())
    assert run.snapshot_parameters().count == 0
    with pytest.raises(ValueError, match="no run to report on"):
        probe.Probe().save_debug_report("x")


def test_training_through_an_inert_handle_is_the_same_training(
    model: nn.Sequential, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NANSCOPE_OFF", "1")
    torch.manual_seed(0)
    twin = chain(6, 5, 2)
    optimizers = sgd(model), sgd(twin)
    run = probe.watch(model, optimizers[0])
    report = run.debug_training_step(
        model, torch.ones(4, 6), None, lambda out, _: out.square().mean(), optimizers[0]
    )
    backward(twin, torch.ones(4, 6))
    optimizers[1].step()
    assert not run.active and len(report.forward.layers) == 1 and report.updates == ()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    run.watch_tensor("x", torch.ones(2))
    with run.debug_context("quiet") as region:
        pass
    assert region.report is not None


@pytest.mark.capability(19)
def test_watched_tensor_has_its_statistics_at_every_step(model: nn.Sequential) -> None:
    values = torch.tensor([3.0, -4.0, 0.0])
    optimizer = sgd(model)
    with probe.watch(model, optimizer) as run:
        train(model, optimizer, lambda: run.watch_tensor("hidden", values.add_(1)))
    frames = journal_of(run).frames
    assert [frame.step for frame in frames] == [0, 1, 2]
    for frame in frames:
        expected = np.array([3.0, -4.0, 0.0]) + frame.step + 1
        assert frame.scalars["log/hidden/norm"] == pytest.approx(np.linalg.norm(expected))
        assert frame.scalars["log/hidden/mean"] == pytest.approx(expected.mean())
        assert frame.scalars["log/hidden/std"] == pytest.approx(expected.std())
        assert frame.scalars["log/hidden/max_abs"] == np.abs(expected).max()
        assert frame.scalars["log/hidden/nan_count"] == 0


@pytest.mark.parametrize("bad", [[1.0], torch.empty(2, device="meta")])
def test_watched_tensor_misuse_is_logged_once_and_never_raised(
    model: nn.Sequential, caplog: pytest.LogCaptureFixture, bad: object
) -> None:
    optimizer = sgd(model)
    with probe.watch(model, optimizer) as run:
        train(model, optimizer, lambda: run.watch_tensor("bad", bad))  # type: ignore[arg-type]
    assert sum("watch_tensor('bad'" in record.message for record in caplog.records) == 1
    assert len(journal_of(run).frames) == 3


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(40, generator=torch.Generator().manual_seed(1)),
        torch.randn(40, generator=torch.Generator().manual_seed(1)).bfloat16(),
        torch.arange(10),
        torch.tensor([True, False]),
        torch.tensor([1.0, math.nan, math.inf]),
        torch.tensor([1 + 2j, 3 - 4j]),
        torch.tensor([[0.0, 2.0], [0.0, 0.0]]).to_sparse(),
    ],
    ids=["float", "bfloat16", "int", "bool", "nonfinite", "complex", "sparse"],
)
def test_deferred_statistics_are_those_of_analyze_tensor(tensor: Tensor) -> None:
    report = probe.analyze_tensor(tensor)
    found = {name: read() for name, read in deferred_statistics("t", tensor).items()}
    assert list(found) == [f"t/{name}" for name in STATISTICS]
    for name in STATISTICS:
        assert found[f"t/{name}"] == pytest.approx(getattr(report, name), rel=1e-6, nan_ok=True)


def test_deferred_statistics_of_nothing_are_none() -> None:
    assert deferred_statistics("t", torch.empty(0)) == {}


def test_region_of_a_session_becomes_a_series_and_an_error_an_event(model: nn.Sequential) -> None:
    optimizer = sgd(model)

    with probe.watch(model, optimizer) as run:

        @run.debug_operation("batch")
        def batch(fail: bool) -> None:
            optimizer.zero_grad()
            backward(model, torch.ones(4, 6))
            with run.debug_context("inner"):
                if fail:
                    raise KeyError("gone")
            optimizer.step()

        batch(False)
        with pytest.raises(KeyError):
            batch(True)
        regions = {row.path: row for row in run.get_debug_summary().regions}
    journal = journal_of(run)
    assert journal.frames[0].scalars["log/region/batch/inner_s"] > 0
    assert regions["batch"].count == 2 and regions["batch"].errors == 1
    assert regions["batch"].gradient_anomalies == 0
    (event,) = (event for event in journal.latest_events if event.kind == "exception")
    assert (event.severity, event.data) == ("warning", {"region": "batch/inner"})
    assert event.message.startswith("KeyError: 'gone' at step 1, test_analysis_session.py:")
    assert 'raise KeyError("gone")' in event.stacks.training_loop[-1].code
    assert not {row.path for row in probe.get_debug_summary().regions} & {"batch", "batch/inner"}


def test_region_of_a_session_follows_its_level(model: nn.Sequential) -> None:
    optimizer = sgd(model)
    with probe.watch(model, optimizer, level="off") as run:
        for name in ("before", "while", "after"):
            for context in (run.debug_context, probe.debug_context):
                with context(f"{name}/{context.__module__}"):
                    pass
            run.set_level("basic" if name == "before" else "off")
            optimizer.zero_grad()
            backward(model, torch.ones(4, 6))
            optimizer.step()
        with run.debug_context("always", enabled=True):
            pass
        paths = [row.path.partition("/")[0] for row in run.get_debug_summary().regions]
    assert paths == ["while", "while", "always"]


def test_summary_of_a_session_has_the_anomalies_of_its_run(model: nn.Sequential) -> None:
    optimizer = sgd(model)
    run = probe.watch(model, optimizer, mode="warn", replay=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(6):
            optimizer.zero_grad()
            (model(torch.ones(4, 6)).sum() * (1.0 if step < 4 else math.nan)).backward()
            optimizer.step()
            if step == 3:
                clean = run.get_debug_summary().recorded
        found = run.get_debug_summary()
    run.close()
    # The newest step counts, too: it is in the ring.
    assert clean is not None and (clean.total_steps, clean.total_anomalies, clean.history) == (4, 0, ())
    recorded = found.recorded
    assert recorded is not None and recorded.mode == run.mode == "warn"
    kinds = {"nonfinite_loss": 1}
    assert (recorded.total_steps, recorded.event_counts) == (6, kinds)
    assert recorded.steps_found == {"nonfinite_loss": 2}
    assert recorded.rates["nonfinite_loss"] == 2 / 6
    assert [event["step"] for event in recorded.history] == [4]
    assert recorded.step_time_max_s is not None
    assert json.loads(json.dumps(found.to_dict()))["recorded"]["total_anomalies"] == 1
    assert "1 anomal" in str(found)


def test_monitoring_in_a_session_counts_without_logging_twice(
    model: nn.Sequential, caplog: pytest.LogCaptureFixture
) -> None:
    with probe.watch(model, sgd(model)) as run:
        backward(model, torch.ones(4, 6))
        model[0].weight.grad[0, 0] = math.nan
        seen = run.monitor_training_step(None, math.nan, 0)
        summary = run.get_debug_summary()
    assert not seen.ok and summary.monitored.nonfinite_steps == 1 and summary.training.nonfinite_steps == 0
    assert not [record for record in caplog.records if "monitoring" in record.name]


def test_training_session_writes_its_report(model: nn.Sequential, tmp_path: Path) -> None:
    optimizer = torch.optim.SGD([*model[0].parameters(), model[2].weight], lr=0.01)
    with probe.debug_training_session(
        model, optimizer, report=tmp_path / "out" / "r.json", name="mine"
    ) as run:
        train(model, optimizer)
        run.record_event("half way", share=0.5)
    (path,) = (tmp_path / "out").iterdir()
    report = json.loads(path.read_text())
    frames = journal_of(run).frames
    series = {row["name"]: row for row in report["series"]}
    assert (report["run"], report["name"], report["first_step"], report["last_step"]) == (
        run.run,
        "mine",
        0,
        2,
    )
    losses = [frame.scalars["loss"] for frame in frames]
    assert (series["loss"]["first"], series["loss"]["last"]) == (losses[0], losses[2])
    assert series["loss"]["mean"] == pytest.approx(sum(losses) / 3)
    assert report["events"][0]["message"] == "half way" and report["event_counts"] == {"custom": 1}
    norm = math.hypot(*(float(p.grad.norm()) for p in model[0].parameters()))
    assert report["last_gradient_norms"]["0"] == pytest.approx(norm, rel=1e-5)
    assert report["extra"]["parameters"]["never_updated"] == ["2.bias"]
    assert report["extra"]["model"]["parameters"] == sum(p.numel() for p in model.parameters())
    assert report["extra"]["settings"]["name"] == "mine" and report["extra"]["cuda"]["devices"] == []
    assert [step["loss"] for step in report["steps"]] == losses and path.name == "r.json"


def test_training_session_reports_an_exception_and_lets_it_pass(model: nn.Sequential, tmp_path: Path) -> None:
    optimizer, error = sgd(model), ZeroDivisionError("mine")
    with pytest.raises(ZeroDivisionError) as caught:
        with probe.debug_training_session(model, optimizer, report=tmp_path / "r", anomaly=True):
            train(model, optimizer)
            assert torch.is_anomaly_enabled()
            raise error
    assert caught.value is error and not torch.is_anomaly_enabled()
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["severity_counts"]["critical"] == 1 and report["ok"] is False
    assert report["events"][-1]["kind"] == "exception"


def test_training_session_that_cannot_write_does_not_disturb(
    model: nn.Sequential, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    optimizer = sgd(model)
    with probe.debug_training_session(model, optimizer, report=tmp_path / "file" / "r"):
        train(model, optimizer)
    lines = [line for line in capsys.readouterr().err.splitlines() if "report" in line]
    assert len(lines) == 1 and "could not be written" in lines[0]


def test_training_session_leaves_a_running_session_running(model: nn.Sequential, tmp_path: Path) -> None:
    optimizer = sgd(model)
    with probe.watch(model, optimizer) as outer:
        with probe.debug_training_session(model, optimizer, report=tmp_path / "r") as inner:
            train(model, optimizer)
        assert inner is outer and outer.active
    assert json.loads((tmp_path / "r.json").read_text())["last_step"] >= 1


def test_training_session_sends_its_log_to_the_given_logger(model: nn.Sequential, tmp_path: Path) -> None:
    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    logger, ours = logging.Logger("mine", logging.INFO), logging.getLogger("probe")
    logger.addHandler(Keep())
    before = list(ours.handlers), ours.propagate, ours.level
    optimizer = sgd(model)
    with probe.debug_training_session(model, optimizer, report=tmp_path / "r", logger=logger):
        for value in (1.0, math.nan):
            optimizer.zero_grad()
            (model(torch.ones(4, 6)).sum() * value).backward()
            optimizer.step()
    assert any(
        record.levelno == logging.ERROR and "nonfinite_loss" in record.getMessage() for record in records
    )
    assert (list(ours.handlers), ours.propagate, ours.level) == before


def test_training_session_switched_off_writes_nothing(
    model: nn.Sequential, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NANSCOPE_OFF", "1")
    optimizer = sgd(model)
    with probe.debug_training_session(model, optimizer, report=tmp_path / "r") as run:
        train(model, optimizer)
    assert not run.active and not list(tmp_path.glob("r.*"))


def test_every_analysis_call_is_a_method_and_a_function() -> None:
    methods = {**vars(SummaryCalls), **vars(AnalysisCalls), **vars(MemoryCalls), **vars(OptimizationCalls)}
    names = {name for name in methods if not name.startswith("_")}
    only_methods = {
        "aio",
        "watch_tensor",
        "debug_metrics",
        "region_table",
        "region_progress",
        "record_region",
        "keeps_regions",
    }
    only_methods |= {"memory_snapshots", "found_leaks"}  # of one run
    only_methods |= {"keep_benchmark", "optimization_metrics"}
    only_functions = {"clear_debug_history", "save_debug_report"}  # of `ReportCalls`
    only_functions |= {
        "AnomalyError",
        "Probe",
        "ProbeConfig",
        "watch",
        "show",
        "aio",
        "debug_training_session",
    }
    only_functions |= {"clip_gradients"}  # a method of the session itself
    only_functions |= {"RuleResult", "StepView"}  # what rules get and give
    only_functions |= {"Recovery", "InputPolicy", "OutputPolicy", "PolicyError"}
    only_functions |= {"robust_training_step", "safe_inference"}  # they take any model
    only_functions |= {"record_event", "track_error"}  # methods of `EventCalls`
    only_functions |= {"DetectorThresholds", "Features", "LEVELS", "Level", "PRESETS", "Preset"}
    only_functions |= {"SampledThresholds", "InferenceResult", "ResourceLimits"}  # settings and a result
    only_functions |= {"start_training", "update_progress", "phase"}  # methods of `ProgressCalls`
    only_functions |= {"clear_memory", "track_tensor", "tracked_tensors"}  # of the process
    only_functions |= {"compare_memory_snapshots", "cuda_memory_history"}
    only_functions |= {"profiling"}  # a method of `ProfileCalls`
    assert names - only_methods == set(probe.__all__) - only_functions
