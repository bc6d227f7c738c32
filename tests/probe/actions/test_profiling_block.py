"""`probe.profiling`: traces, nesting with the other contexts, exceptions, a second profiler."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from profiled_training import Session
from small_training import seeded_model, train
from torch.profiler import profile as torch_profile

import probe

pytestmark = pytest.mark.usefixtures("one_thread")


def train_some(steps: int = 3) -> None:
    model = seeded_model()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps)


def read(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    events = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)["traceEvents"]
    assert isinstance(events, list)
    return events


@pytest.mark.capability(45, 46)
@pytest.mark.parametrize("name", ["trace.json", "new/folder/trace.json.gz"])
def test_output_file_is_a_chrome_trace_whose_calls_nest(name: str, tmp_path: Path) -> None:
    with probe.profiling(tmp_path / name):
        train_some()
    events = [event for event in read(tmp_path / name) if event["ph"] == "X"]
    outer = [event for event in events if event["name"] == "aten::linear"]
    inner = [event for event in events if event["name"] == "aten::addmm"]
    assert len(outer) == len(inner) == 6
    for one in inner:
        assert any(
            two["tid"] == one["tid"]
            and two["ts"] <= one["ts"]
            and one["ts"] + one["dur"] <= two["ts"] + two["dur"]
            for two in outer
        )


@pytest.mark.capability(45)
def test_report_agrees_with_torch_on_calls_and_shapes(tmp_path: Path) -> None:
    with probe.profiling() as profile:
        train_some(4)
    report = profile.report
    assert report is not None and report.steps == 4
    with torch_profile() as theirs:
        train_some(4)
    counts = {row.key: row.count for row in theirs.key_averages()}
    for row in report.ops:
        if row.name.startswith("aten::") and row.name not in ("aten::empty", "aten::random_"):
            assert row.calls == counts[row.name], row.name
    assert "aten::addmm" in str(profile)


@pytest.mark.capability(13)
def test_contexts_nest_and_each_is_put_back(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with probe.anomaly_detection(), probe.profiling(path) as profile, probe.memory_tracking() as tracked:
        with probe.debug_context("epoch"):
            assert torch.is_anomaly_enabled()
            train_some()
    assert tracked is not None
    assert not torch.is_anomaly_enabled()
    assert profile.report is not None and path.exists()
    assert "epoch" in str(probe.get_debug_summary())


def test_block_that_raises_keeps_its_trace_and_its_exception(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="mine"), probe.profiling(tmp_path / "trace.json"):
        train_some()
        raise KeyError("mine")
    assert any(event["name"] == "aten::addmm" for event in read(tmp_path / "trace.json"))
    with probe.profiling() as again:
        train_some()
    assert again.report is not None


def test_second_profiler_is_refused_and_the_first_goes_on() -> None:
    with probe.profiling() as outer:
        with pytest.raises(ValueError, match="running in this process already"), probe.profiling():
            pass
        train_some()
    assert outer.report is not None and outer.report.ops
    with torch_profile(), pytest.raises(ValueError, match="end it first"), probe.profiling():
        pass


def test_disabled_block_profiles_nothing(tmp_path: Path) -> None:
    with probe.profiling(tmp_path / "trace.json", enabled=False) as profile:
        train_some()
    assert profile.report is None and not (tmp_path / "trace.json").exists()


def test_output_file_that_cannot_be_written_raises(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError), probe.profiling(tmp_path / "file" / "trace.json"):
        train_some()


def test_block_of_a_run_is_recorded_and_marks_its_steps(spool: Path) -> None:
    session = Session(spool)
    session.train(3)
    with session.run.profiling(stacks=False) as profile:
        session.train(2)
    session.train(3)
    (body,) = session.profiles().values()
    session.run.close()
    assert profile.report is not None
    assert (body.steps, body.asked_by, body.trace) == (2, "run.profiling()", "block.json.gz")
    assert session.marked_steps() == [3, 4, 5]


def test_function_of_setprofile_stays_in_place() -> None:
    def mine(*_: object) -> None:
        pass

    sys.setprofile(mine)
    try:
        with probe.profiling() as profile:
            train_some()
        assert sys.getprofile() is mine
    finally:
        sys.setprofile(None)
    assert profile.report is not None and profile.report.ops and not profile.report.lines
    assert "sys.setprofile" in str(profile)


def test_workers_of_a_loader_are_profiled_with_it() -> None:
    ready = [torch.ones(8, 6)] * 6
    loader = torch.utils.data.DataLoader(ready, batch_size=None, num_workers=2)  # type: ignore[arg-type]
    with probe.profiling() as profile:
        batches = list(loader)
    assert len(batches) == 6
    assert profile.report is not None and profile.report.input_wait_s > 0.0


@pytest.mark.parametrize("steps", [0, 1.5, True])
def test_wrong_number_of_steps_is_refused(steps: int) -> None:
    with pytest.raises(ValueError, match="steps="):
        probe.profiling(steps=steps)
