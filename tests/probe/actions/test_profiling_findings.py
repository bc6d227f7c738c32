"""What a profile says in plain words: planted bottlenecks are found, healthy programs are silent.

The planted programs are real ones; tables made by hand show what needs a GPU, or would depend on the machine.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from profiled_training import SlowSet, batches_of, train_on, wide_model
from torch import nn

import probe
from probe.actions.profiling.profile_findings import find_bottlenecks
from probe.actions.profiling.profile_table import OpCall, Place, ProfileTable, build_table
from probe.actions.profiling.trace_events import cut_trace, read_trace
from probe.errors import WireError
from probe.wire.profiles import ProfileBody, ProfileFinding

pytestmark = pytest.mark.usefixtures("one_thread")


def profiled(model: nn.Module, inputs: object, *, steps: int = 3) -> ProfileBody:
    train_on(model, [torch.zeros(2, 8)])
    with probe.profiling(steps=steps) as profile:
        train_on(model, inputs)  # type: ignore[arg-type]
    assert profile.report is not None
    return profile.report


def found(report: ProfileBody) -> dict[str, ProfileFinding]:
    return {finding.kind: finding for finding in report.findings}


class ReadsElements(nn.Sequential):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.total = 0.0
        for row in inputs:
            self.total += row.sum().item()
        return super().forward(inputs)


class TinyAdds(nn.Sequential):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            shift = torch.zeros(())
            for _ in range(3000):
                shift = shift + 0.0
        return super().forward(inputs + shift)


class HugeMatmul(nn.Sequential):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            large = torch.ones(700, 700)
            shift = (large @ large)[0, 0] * 0.0
        return super().forward(inputs + shift)


class Copies(nn.Sequential):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for _ in range(10):
            torch.ones(1000, 1000).to(torch.float64)
        return super().forward(inputs)


def test_slow_loader_is_found_with_its_share() -> None:
    finding = found(profiled(nn.Linear(8, 1), batches_of(SlowSet(), 3)))["input_wait"]
    assert finding.value > 0.5 and "num_workers" in " ".join(finding.advice)


def test_items_in_a_loop_are_counted_and_placed() -> None:
    finding = found(profiled(ReadsElements(nn.Linear(8, 1)), [torch.ones(40, 8)] * 3))["host_sync"]
    line = 1 + next(at for at, text in enumerate(_source()) if "row.sum().item()" in text)
    assert finding.value == 40 and f"{Path(__file__).name}:{line}" in finding.message


def test_thousands_of_tiny_adds_are_found() -> None:
    finding = found(profiled(TinyAdds(nn.Linear(8, 1)), [torch.ones(4, 8)] * 3))["small_ops"]
    assert finding.value > 3000 and "aten::add" in finding.message


def test_huge_matmul_is_named_with_module_and_line() -> None:
    finding = found(profiled(HugeMatmul(nn.Linear(8, 1)), [torch.ones(4, 8)] * 3))["dominant_op"]
    line = 1 + next(at for at, text in enumerate(_source()) if "large @ large" in text)
    assert finding.message.startswith("aten::mm in module HugeMatmul_0") and finding.value > 0.3
    # An operator is no call of a function: its line is that of the function that has it.
    assert f"{Path(__file__).name}:{line - 3}" in finding.message


def test_copies_are_found() -> None:
    assert found(profiled(Copies(nn.Linear(8, 1)), [torch.ones(4, 8)] * 3))["copies"].value > 0.15


def test_healthy_training_is_silent() -> None:
    torch.manual_seed(0)
    ready = [torch.randn(1000, 8) for _ in range(8)]
    loader = torch.utils.data.DataLoader(ready, batch_size=None)  # type: ignore[arg-type]
    report = profiled(wide_model(), loader, steps=8)
    assert report.ops and found(report) == {}


def _source() -> list[str]:
    return Path(__file__).read_text().splitlines()


# -- tables made by hand


def table(*calls: OpCall, wall_us: float = 10_000.0, **fields: object) -> ProfileTable:
    made = ProfileTable(wall_us=wall_us, steps=1, calls=list(calls))
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def call(
    name: str, us: float, *, line: str | None = "train.py:7", cuda_us: float = 0.0, **place: bool
) -> OpCall:
    return OpCall(name, 0.0, us, us, Place("net", line, **place), True, False, cuda_us=cuda_us)


def kinds(made: ProfileTable) -> list[str]:
    return [finding.kind for finding in find_bottlenecks(made)]


def test_gpu_that_idles_is_found_and_a_busy_one_is_not() -> None:
    idle = table(call("aten::mm", 100.0), has_device=True, device_us=2_000.0)
    assert kinds(idle) == ["idle_gpu"]
    assert "80 %" in find_bottlenecks(idle)[0].message
    assert kinds(table(call("aten::mm", 100.0), has_device=True, device_us=9_000.0)) == []


def test_waits_for_the_gpu_are_found_by_their_time() -> None:
    waits = [call("cudaStreamSynchronize", 2_000.0)]
    assert kinds(table(*waits, has_device=True, device_us=9_000.0)) == ["host_sync"]


def test_optimizers_own_reads_are_left_out() -> None:
    reads = [call("aten::_local_scalar_dense", 1.0, is_in_optimizer=True) for _ in range(100)]
    assert kinds(table(*reads)) == []


def test_time_of_recording_is_no_wait_for_input() -> None:
    busy = call("aten::mm", 2_000.0)
    assert kinds(table(busy, input_wait_us=3_000.0)) == ["input_wait"]
    assert kinds(table(busy, input_wait_us=3_000.0, traced_in_input=900)) == []


def test_probes_own_operations_are_left_out() -> None:
    assert kinds(table(call("aten::mm", 9_000.0, is_ours=True))) == []


def test_op_of_many_places_is_not_one_op() -> None:
    convolutions = [call("aten::conv2d", 2_000.0, line=f"net.py:{line}") for line in range(5)]
    assert kinds(table(*convolutions)) == []


# -- traces made by hand


def trace(*events: dict[str, object]) -> bytes:
    return msgspec.json.encode({"baseTimeNanoseconds": 0, "traceEvents": [*events]})


def event(
    name: str, ts: float, dur: float, cat: str = "cpu_op", tid: int = 1, **args: object
) -> dict[str, object]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}


def build(*events: dict[str, object]) -> dict[str, OpCall]:
    made = build_table(read_trace(trace(*events)), wall_us=100.0, steps=1, modules={}, calling_lines={})
    return {one.name: one for one in made.calls}


def test_self_time_is_without_the_operations_called() -> None:
    calls = build(event("aten::linear", 0, 50), event("aten::addmm", 10, 30), event("aten::copy_", 15, 5))
    assert [calls[name].self_us for name in ("aten::linear", "aten::addmm", "aten::copy_")] == [20, 25, 5]


def test_kernels_belong_to_what_launched_them() -> None:
    launch = event("aten::mm", 0, 5, **{"External id": 9})
    kernel = event("sgemm", 7, 40, "kernel", 70, **{"External id": 9})
    made = build_table(read_trace(trace(launch, kernel)), wall_us=80.0, steps=1, modules={}, calling_lines={})
    assert [one.cuda_us for one in made.calls] == [40] and made.device_us == 40 and made.has_device


@pytest.mark.parametrize(
    ("functions", "is_ours"),
    [
        (["train.py(3): main", "probe/measure/update_meter.py(9): read"], True),
        (
            ["train.py(3): main", "probe/measure/update_meter.py(9): read", "torch/functional.py(7): norm"],
            True,
        ),
        (["train.py(3): main", "probe/attach/hooks.py(9): backward", "torch/_tensor.py(7): backward"], False),
        (["probe/actions/rules/user_rule.py(9): call", "train.py(3): my_rule"], False),
        (["probe/forensics/rerun.py(9): rerun", "nn.Module: Linear_0"], False),
    ],
)
def test_operations_below_the_probes_functions_are_its_own(functions: list[str], is_ours: bool) -> None:
    outer = [event(name, at, 50 - 2 * at, "python_function") for at, name in enumerate(functions)]
    assert build(*outer, event("aten::mm", 10, 3))["aten::mm"].place.is_ours is is_ours


def test_backward_on_another_thread_stands_where_its_forward_does() -> None:
    calls = build(
        event("train.py(3): main", 0, 100, "python_function"),
        event("nn.Module: Linear_0", 1, 9, "python_function"),
        event("aten::addmm", 2, 3, **{"Sequence number": 4}),
        event("autograd::engine::evaluate_function: AddmmBackward0", 20, 9, tid=2, **{"Sequence number": 4}),
        event("aten::mm", 21, 3, tid=2),
    )
    assert calls["aten::mm"].is_backward
    assert calls["aten::mm"].place.module == "Linear_0"


def test_trace_that_is_too_large_loses_its_last_steps() -> None:
    data = trace(*(event("aten::mm", ts, 1) for ts in range(100)))
    smaller, kept = cut_trace(data, [25.0, 50.0, 75.0, 100.0], most_bytes=len(data) * 6 // 10)
    assert kept == 2 and len(smaller) <= len(data) * 6 // 10
    assert [one.ts for one in read_trace(smaller).events] == list(range(50))


def test_step_that_is_too_large_loses_its_functions_first() -> None:
    functions = [event("train.py(1): f", ts, 1, "python_function") for ts in range(50)]
    data = trace(*functions, *(event("aten::mm", ts, 1) for ts in range(50)))
    smaller, kept = cut_trace(data, [100.0], most_bytes=len(data) * 6 // 10)
    assert kept == 1 and {one.name for one in read_trace(smaller).events} == {"aten::mm"}
    assert len(read_trace(smaller).events) == 50


def test_what_is_no_trace_is_refused() -> None:
    for data in (b"", b"[]", b'{"traceEvents": 3}'):
        with pytest.raises(WireError):
            read_trace(data)
