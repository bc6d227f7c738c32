"""Models on CUDA that C follows: what `test_followed_late.py` shows on a stand-in, where there is a GPU.

What a stand-in cannot have is here: kernels, streams, events, pinned memory, waits, the device's generator.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from armed_training import ARMED_AT, Planted, Training, calls_state, watched_training
from both_ways import Act, assert_same, recorded
from cuda_waits import cuda_waits_are_errors
from followed_kinds import Accumulating, Single
from torch import Tensor, nn
from torch.nn import functional as F

from probe.loop import followed_late, verdict_timing
from probe.measure.kernels import device_pass, hot_binding
from probe.measure.statistics import late_check

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; this machine has none"),
    pytest.mark.skipif(hot_binding.status().calls is None, reason=hot_binding.status().reason),
    pytest.mark.usefixtures("nothing_switched_off", "one_thread"),
]


@pytest.fixture(autouse=True)
def one_pass() -> None:
    """The pass over the gradients is there from the first step on: until then torch measures, and rounds."""
    tensors = [torch.ones(3, device="cuda")]
    device_pass.measure_in_one_pass(tensors)
    device_pass._of_devices[tensors[0].device]._thread.join(60)
    assert device_pass.measure_in_one_pass(tensors) is not None


@contextmanager
def device_that_is(*, idle: bool) -> Iterator[None]:
    """Whether the device has nothing left to do is no matter of chance: it chooses when a step is judged."""
    patch = pytest.MonkeyPatch()
    patch.setattr(verdict_timing, "device_is_idle", lambda: idle)
    try:
        yield
    finally:
        patch.undo()


class Lasting(Planted):
    """Its fault comes again in a replay; its dropout draws from the device's generator."""

    def __init__(self) -> None:
        super().__init__()
        self.cuda()

    def forward(self, inputs: Tensor) -> Tensor:
        fault = self.fault
        scores = super().forward(inputs)
        self.fault = fault
        return scores


class OnDevice(Single):
    """Batches that are made on the host."""

    def batch(self) -> tuple[Tensor, Tensor]:
        inputs, targets = super().batch()
        return inputs.cuda(), targets.cuda()


class InPieces(Accumulating):
    """Micro-steps."""

    def batch(self) -> tuple[Tensor, Tensor]:
        inputs, targets = super().batch()
        return inputs.cuda(), targets.cuda()


class Clipped(OnDevice):
    """Clipped by torch's function."""

    def update(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.05)
        super().update()


class Fused(OnDevice):
    """Updated in one kernel."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        for group in self.optimizer.param_groups:
            group["fused"] = True


class OnStream(OnDevice):
    """On a stream of its own."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.stream = torch.cuda.Stream()
        self.stream.wait_stream(torch.cuda.current_stream())

    def step(self, *given: Any, **planted: Any) -> Tensor:
        with torch.cuda.stream(self.stream):
            return super().step(*given, **planted)


class Scaled(OnDevice):
    """Half precision, and a GradScaler whose scale grows now and then."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10, growth_interval=20)

    def loss_of(self, inputs: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast("cuda", dtype=torch.float16):
            return F.cross_entropy(self.model(inputs), targets)

    def send_back(self, loss: Tensor) -> None:
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def update(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()


class ReadsItsLoss(OnDevice):
    """Waits for the device in each step, before the update."""

    def send_back(self, loss: Tensor) -> None:
        loss.backward()
        loss.item()


KINDS = {
    "plain": OnDevice,
    "micro-steps": InPieces,
    "clipped": Clipped,
    "fused": Fused,
    "side stream": OnStream,
    "scaled": Scaled,
    "reads its loss": ReadsItsLoss,
}


def on_device(tmp_path: Path, act: Act, kind: Any = OnDevice, **options: Any) -> Any:
    with device_that_is(idle=kind is ReadsItsLoss):
        return assert_same(tmp_path, act, kind=kind, model=Lasting, **options)


def bad_root(hidden: Tensor) -> Tensor:
    return hidden + torch.sqrt((hidden * 0).sum())


@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_recorded_as_in_the_slow_way(tmp_path: Path, kind: str) -> None:
    journal = on_device(tmp_path, lambda training: training.steps(60), KINDS[kind])
    assert sorted({frame.step for frame in journal.frames}) == [*range(ARMED_AT + 60)]


@pytest.mark.parametrize("kind", KINDS)
def test_fault_gives_the_same_events(tmp_path: Path, kind: str) -> None:
    def act(training: Training) -> None:
        assert isinstance(training, Accumulating)
        training.steps(5)
        training.step(fault=bad_root)
        training.steps(3)

    events = on_device(tmp_path, act, KINDS[kind]).latest_events
    assert events and events[0].step == ARMED_AT + 5


def test_origin_is_found_where_the_script_has_waited(tmp_path: Path) -> None:
    """Its replay draws the same dropout from the device's generator: C has kept its state."""

    def act(training: Training) -> None:
        assert isinstance(training, Accumulating)
        training.steps(5)
        training.step(fault=bad_root)

    event = on_device(tmp_path, act, ReadsItsLoss).latest_events[0]
    assert event.origin is not None and "sqrt" in event.origin.op.lower(), event.message


@pytest.mark.parametrize("kind", [OnDevice, Clipped, InPieces])
def test_followed_step_waits_for_no_device(kind: type[Training]) -> None:
    """torch raises at every wait. The batches are there: what is left to wait for is ours."""

    class Ready(kind):  # type: ignore[valid-type, misc]
        ready: tuple[tuple[Tensor, Tensor], ...] = ()

        def batch(self) -> tuple[Tensor, Tensor]:
            return self.ready[0] if self.ready else super().batch()

    with device_that_is(idle=False), watched_training(in_c=True, kind=Ready, model=Lasting) as training:
        training.steps(5)
        before = int(calls_state().steps)
        training.ready = (training.batch(),)  # type: ignore[attr-defined]
        torch.cuda.synchronize()
        with cuda_waits_are_errors():
            training.steps(30)
        assert training.is_followed
        assert int(calls_state().steps) == before + 30


def test_weights_are_those_of_a_training_that_nobody_watches(tmp_path: Path) -> None:
    _, watched = recorded(
        tmp_path, lambda training: training.steps(60), in_c=True, kind=OnDevice, model=Lasting
    )
    torch.manual_seed(0)
    model, generator = Lasting(), torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    for _ in range(ARMED_AT + 60):
        inputs = torch.randn(16, 20, generator=generator).cuda()
        targets = torch.randint(5, (16,), generator=generator).cuda()
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    assert all(map(torch.equal, watched, model.parameters()))


def test_memory_of_followed_steps_does_not_grow() -> None:
    with watched_training(in_c=True, kind=OnDevice, model=Lasting, black_box_steps=4) as training:
        used = []
        training.steps(50)  # by then each kind of step has come
        for _ in range(3):
            training.steps(12)
            torch.cuda.synchronize()
            used.append(torch.cuda.memory_allocated())
        assert training.is_followed
        assert used[0] == used[1] == used[2], used


def test_capture_of_a_graph_goes_the_slow_way() -> None:
    with watched_training(in_c=True, kind=OnDevice, model=Lasting) as training:
        inputs, targets = training.batch()
        training.optimizer.zero_grad()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            F.cross_entropy(training.model(inputs), targets).backward()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        training.optimizer.zero_grad()
        with torch.cuda.graph(graph):
            F.cross_entropy(training.model(inputs), targets).backward()
        graph.replay()
        torch.cuda.synchronize()
        assert all(bool(parameter.grad.isfinite().all()) for parameter in training.model.parameters())  # type: ignore[union-attr]


def test_what_arrives_is_what_is_measured_by_waiting() -> None:
    assert late_check.try_device(torch.device("cuda")) is None
    with watched_training(in_c=True, kind=OnDevice, model=Lasting) as training:
        training.steps(5)
        assert training.is_followed
    assert not followed_late._distrusted
