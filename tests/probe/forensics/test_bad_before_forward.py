"""What was NaN or Inf before the forward: its name and the line of its first use, which is no origin."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from journals import read_journal
from torch import Tensor, nn

import probe
from dashboard.page.views.event_facts import event_order
from probe.wire import Event

INF = float("inf")


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        return x * self.scale  # USE scale


class Shifted(nn.Module):
    """The buffer is of a part, and used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Scaled()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.part.scale.sum()  # USE part.scale
        return self.part(x)


class Normed(nn.Module):
    """A running mean that evaluation reads."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.norm.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.body(x))  # USE norm.running_mean

    def train(self, mode: bool = True) -> Normed:
        super().train(mode)
        self.norm.eval()
        return self


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.gain = nn.Linear(4, 4), nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) * self.gain  # USE gain


CASES = [
    (Scaled, "buffer scale", INF),
    (Scaled, "buffer scale", float("nan")),
    (Shifted, "buffer part.scale", INF),
    (Normed, "buffer norm.running_mean", float("nan")),
    (Weighted, "parameter gain", float("nan")),
]


def line_of(name: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# USE {name}"))


@pytest.mark.parametrize(("make", "what", "value"), CASES)
def test_name_and_first_use_are_said_and_no_origin_is_claimed(
    make: type[nn.Module], what: str, value: float, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model, (_, name) = make(), what.split()
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    with probe.watch(model, opt, spool=tmp_path / "spool", connect="") as run:
        for step in range(5):
            if step == 4:
                state = model.state_dict()
                state[name][1] = value
            opt.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            opt.step()
        assert run._guard.failures == 0
    event = nonfinite_of(tmp_path / "spool")

    assert event.origin is None
    assert f"the {what.replace(' ', ' `')}` was already non-finite before the forward" in event.message
    assert event.noticed_at is not None, event.message
    assert (event.noticed_at.file, event.noticed_at.line) == (__file__, line_of(name))
    assert f"test_bad_before_forward.py:{line_of(name)}" in event.message


def nonfinite_of(spool: Path) -> Event:
    (journal,) = spool.iterdir()
    return next(event for event in read_journal(journal).events if event.kind == "nonfinite_loss")


class Fails(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.offset = nn.Linear(4, 4), 0.0

    def forward(self, x: Tensor) -> Tensor:
        return (self.body(x) - self.offset).abs().sub(self.offset).sqrt()


@pytest.mark.parametrize("is_first_updated", [False, True])
def test_of_two_models_the_event_with_the_proven_origin_comes_first(
    is_first_updated: bool, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    first, second = Fails(), Scaled()
    models = (first, second) if is_first_updated else (second, first)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
    spool = tmp_path / "spool"
    for model, optimizer in zip(models, optimizers, strict=True):
        probe.watch(model, optimizer, spool=spool, connect="", model_name=type(model).__name__)
    for step in range(4):
        first.offset = 10.0 * (step == 3)
        for optimizer in optimizers:
            optimizer.zero_grad()
        second(first(torch.randn(8, 4))).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    for model in models:
        probe.watch(model).close()
    events = [event for journal in spool.iterdir() for event in read_journal(journal).latest_events]
    events = sorted((event for event in events if event.severity == "critical"), key=event_order)

    assert [(event.model, event.origin is None) for event in events] == [("Fails", False), ("Scaled", True)]
