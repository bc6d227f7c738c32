"""A small training that C follows, and the same one that goes the slow way, for tests that compare them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from early_arming import early_arming
from torch import Tensor, nn
from torch.nn import functional as F

import probe
from probe.loop.closer_look import CloserLook
from probe.measure.kernels import hot_binding
from probe.session import Probe

ARMED_AT = 30
"""Detectors have seen what is usual by now."""
LAST = 50


class Planted(nn.Module):
    """Two layers and dropout; `fault` is called with the hidden values of a forward, once."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(20, 30), nn.Linear(30, 5)
        self.drop = nn.Dropout(0.1)
        self.fault: Callable[[Tensor], Tensor] | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.relu(self.first(inputs))
        fault, self.fault = self.fault, None
        if fault is not None:
            hidden = fault(hidden)
        scores: Tensor = self.second(self.drop(hidden))
        return scores


class Training:
    """A plain loop over seeded batches, step by step."""

    def __init__(self, run: Probe, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.run, self.model, self.optimizer = run, model, optimizer
        self.generator = torch.Generator().manual_seed(1)

    @property
    def is_followed(self) -> bool:
        """Whether C follows the step under way."""
        tracker = self.run._tracker
        return tracker is not None and tracker.fast.is_engaged

    def batch(self) -> tuple[Tensor, Tensor]:
        inputs = torch.randn(16, 20, generator=self.generator)
        return inputs, torch.randint(5, (16,), generator=self.generator)

    def step(self, change: Callable[[Tensor], Tensor] = lambda loss: loss) -> Tensor:
        """One step; `change` makes another loss of its loss."""
        inputs, targets = self.batch()
        self.optimizer.zero_grad()
        loss = change(F.cross_entropy(self.model(inputs), targets))
        loss.backward()
        self.optimizer.step()
        return loss

    def steps(self, count: int, /, *changes: Callable[[Tensor], Tensor], **planted: Any) -> None:
        """Steps from one line: C follows those alone that come from a line that it has learned."""
        for _ in range(count):
            self.step(*changes, **planted)


@contextmanager
def watched_training(
    *, in_c: bool, kind: type[Training] = Training, model: Callable[[], nn.Module] = Planted, **options: Any
) -> Iterator[Training]:
    """A training that is watched, up to step `ARMED_AT`; from there on C follows it, or not."""
    patch = pytest.MonkeyPatch()
    # Nor when something is looked at more closely: that follows when an event is found.
    patch.setattr(CloserLook, "begin", lambda *given: None)
    try:
        with early_arming(in_c=in_c, at_once=False):
            training = begin(kind, model, options)
            with training.run:
                training.steps(ARMED_AT)
                assert training.is_followed is in_c, why_not()
                yield training
                assert training.run._guard.failures == 0, "a part of the probe has failed: see the log"
    finally:
        patch.undo()


def calls_state() -> hot_binding.HotState:
    """What C says of itself."""
    calls = hot_binding.status().calls
    assert calls is not None
    return calls.state


def why_not() -> str:
    """What C says of the steps that it did not follow."""
    state = calls_state()
    at = f"step {state.step}, attention {state.attention}, slow at {state.slow_at}"
    return f"refused {state.refused} times, last at line {state.refused_at} of hot_*.h; {at}"


def begin(kind: type[Training], make: Callable[[], nn.Module], options: dict[str, Any]) -> Training:
    """Watch a model that the training alone holds."""
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    return kind(probe.watch(model, optimizer, overhead_limit=0.0, **options), model, optimizer)
