"""What is kept of a model around its first calls is little, and sees every change that a forward makes."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import nn

from probe.forensics.module_state import StateWatch


class Changing(nn.Module):
    """Changes one piece of its own state in each forward."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.count, self.rate, self.memory = what, 0, 0.5, None
        self.plain = torch.zeros(2)
        self.register_buffer("buffer", torch.zeros(2))
        self.register_buffer("empty", None)

    def forward(self) -> None:
        changes: dict[str, Any] = {
            "count": lambda: setattr(self, "count", self.count + 1000),
            "rate": lambda: setattr(self, "rate", self.rate / 2),
            "memory": lambda: setattr(self, "memory", torch.ones(1)),
            "plain": lambda: self.plain.add_(1.0),
            "buffer": lambda: self.buffer.add_(1.0),
            "empty": lambda: setattr(self, "empty", torch.ones(1)),
        }
        if self.what in changes:
            changes[self.what]()
        self.new_attribute = 3


def learned(model: nn.Module, call: Any) -> set[str]:
    """Names of the state that two calls were seen to change."""
    watch = StateWatch()
    for _ in range(2):
        watch.before_call(model)
        call()
        watch.after_call()
    return {copy.name for copy in watch.before_call(model)}


@pytest.mark.parametrize("what", ["count", "rate", "memory", "plain", "buffer", "empty"])
def test_state_that_a_forward_changes_is_learned(what: str) -> None:
    inner = Changing(what)
    assert learned(nn.Sequential(nn.ReLU(), inner), inner) - {"new_attribute"} == {what}


def test_state_that_no_forward_changes_is_not_copied() -> None:
    inner = Changing("nothing")
    assert learned(nn.Sequential(inner, nn.Dropout()), inner) == set()


def test_running_statistics_that_training_does_not_read_are_left_out() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4))
    assert learned(model, lambda: model(torch.randn(3, 4))) == set()


def test_first_call_of_many_modules_makes_few_objects() -> None:
    model, watch = nn.Sequential(*(nn.Linear(1, 1) for _ in range(500))), StateWatch()
    gc.collect()
    gc.disable()
    try:
        before = len(gc.get_objects())
        watch.before_call(model)
        assert len(gc.get_objects()) - before < 4 * 500
    finally:
        gc.enable()
