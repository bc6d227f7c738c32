"""A training that waits in known places and times its own calls: what the phases of its steps may be.

What a phase is said to take is at least what was slept inside of it, and at most what the script has measured
round the call, whatever the machine does meanwhile.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from probe.wire import Frame

PHASES = ("data_wait_s", "forward_s", "backward_s", "optimizer_s")
SLEEP_S = 0.002
Nanoseconds = dict[str, int]


class Reference:
    """What the script has measured of the step under way and of those before it.

    Attributes:
        inside: of each finished step, what was slept in each phase, in ns.
        around: the same of the calls as a whole.
        meanwhile: called once inside the next forward or backward, which it says, before it sleeps.
    """

    def __init__(self) -> None:
        self.inside: list[Nanoseconds] = []
        self.around: list[Nanoseconds] = []
        self.meanwhile: tuple[str, Callable[[], object]] | None = None
        self._inside: Nanoseconds = defaultdict(int)
        self._around: Nanoseconds = defaultdict(int)

    def sleep(self, phase: str) -> None:
        """Sleep inside of a phase."""
        if self.meanwhile is not None and self.meanwhile[0] == phase:
            act, self.meanwhile = self.meanwhile[1], None
            act()
        began_ns = time.perf_counter_ns()
        time.sleep(SLEEP_S)
        self._inside[phase] += time.perf_counter_ns() - began_ns

    @contextmanager
    def call(self, phase: str) -> Iterator[None]:
        """Time a call that is this phase."""
        began_ns = time.perf_counter_ns()
        yield
        self._around[phase] += time.perf_counter_ns() - began_ns

    def end_step(self) -> None:
        """The optimizer is about to update: the step's frame is made."""
        self.inside.append(self._inside)
        self.around.append(self._around)
        self._inside, self._around = defaultdict(int), defaultdict(int)

    def forget(self, *phases: str) -> None:
        """What was slept in these phases since the last step was in a call of another kind."""
        for phase in phases:
            self._inside.pop(phase, None)


class SleepySamples(Dataset[tuple[Tensor, Tensor]]):
    """Takes its time for each of them."""

    def __init__(self, reference: Reference, count: int = 1000) -> None:
        self._reference, self._count = reference, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
        if at >= self._count:
            raise IndexError(at)
        self._reference.sleep("data_wait_s")
        return torch.ones(4) * (at % 3), torch.ones(2)


class _Sleepy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, reference: Reference) -> Tensor:
        ctx.reference = reference
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor, None]:
        ctx.reference.sleep("backward_s")
        return given[0], None


class SleepyModel(nn.Module):
    """Takes its time in forward and backward."""

    def __init__(self, reference: Reference) -> None:
        super().__init__()
        self.reference, self.layer = reference, nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        self.reference.sleep("forward_s")
        outputs: Tensor = _Sleepy.apply(self.layer(inputs), self.reference)
        return outputs


class SleepySGD(torch.optim.SGD):
    """Takes its time in the update, which the optimizer's hooks are round."""

    reference: Reference

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.reference.sleep("optimizer_s")
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter -= group["lr"] * parameter.grad
        return loss


class TimedLoop:
    """The parts of a training, and what was measured of it."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.reference = Reference()
        self.model = SleepyModel(self.reference)
        self.optimizer = SleepySGD(self.model.parameters(), lr=1e-3)
        self.optimizer.reference = self.reference
        self.batches = self.pass_over_data()

    def pass_over_data(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Begin one."""
        return iter(DataLoader(SleepySamples(self.reference), batch_size=2))

    def batch(self) -> tuple[Tensor, Tensor]:
        with self.reference.call("data_wait_s"):
            return next(self.batches)

    def forward(self, inputs: Tensor) -> Tensor:
        with self.reference.call("forward_s"):
            outputs: Tensor = self.model(inputs)
        return outputs

    def micro_step(self) -> Tensor:
        """Batch, forward, backward."""
        inputs, targets = self.batch()
        loss = (self.forward(inputs) - targets).square().mean()
        with self.reference.call("backward_s"):
            loss.backward()
        return loss

    def update(self) -> None:
        self.reference.end_step()
        with self.reference.call("optimizer_s"):
            self.optimizer.step()
        self.optimizer.zero_grad()

    def step(self, micro_steps: int = 1) -> None:
        for _ in range(micro_steps):
            self.micro_step()
        self.update()

    def steps(self, count: int, micro_steps: int = 1) -> None:
        """From one line: C follows those alone that come from a line that it has learned."""
        for _ in range(count):
            self.step(micro_steps)


def assert_phases(frames: list[Frame], reference: Reference, *, first: int = 1) -> None:
    """Compare what was recorded of each step with what the script has measured."""
    assert len(reference.around) >= len(frames) > first, [frame.step for frame in frames]
    for frame in frames[first:]:
        inside, around = reference.inside[frame.step], reference.around[frame.step]
        for phase in PHASES:
            value = frame.scalars.get(phase)
            if not around[phase]:
                assert value is None, f"step {frame.step}: {phase} is {value}"
                continue
            assert value is not None, f"step {frame.step}: no {phase}"
            assert inside[phase] <= 1e9 * value + 1 <= around[phase] + 2, f"step {frame.step}: {phase}"
        assert_within_step(frame)


def assert_within_step(frame: Frame) -> None:
    """Have the phases and the probe take no more than the whole step."""
    scalars = frame.scalars
    step_s = scalars["step_time_s"]
    parts_s = sum(scalars.get(phase, 0.0) for phase in PHASES) + scalars["probe_fraction"] * step_s
    assert parts_s <= step_s + 1e-8, f"step {frame.step}: {parts_s} of {step_s}"
