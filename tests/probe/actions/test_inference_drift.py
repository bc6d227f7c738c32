"""`safe_inference` on a watched model: inputs and outputs beside what the training has shown."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from run_numbers import run_of
from torch import Tensor, nn

import probe
from probe.session import Probe

GENERATOR = torch.Generator().manual_seed(3)


def batch(rows: int = 16) -> Tensor:
    return torch.randn(rows, 4, generator=GENERATOR)


def train(run: Probe, model: nn.Module, steps: int = 120) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(steps):
        x = batch()
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
    run.flush()


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1))


@pytest.mark.capability(72)
def test_drift_of_inputs_is_an_event_of_the_session_and_in_the_result(spool: Path) -> None:
    model = net()
    with probe.watch(model) as run:
        train(run, model)
        assert probe.safe_inference(model, batch()).drift == ()
        told, again = (probe.safe_inference(model, batch() * 60.0).drift[0] for _ in range(2))
        assert probe.safe_inference(model, batch()).drift == ()
        probe.safe_inference(model, batch() - 9.0)
    assert again.startswith("Input `input` has drifted")
    assert told.startswith("Input `input` has drifted from what training showed: its largest magnitude is ")
    events = [one for one in run_of(spool).latest_events if one.subject.startswith("drift")]
    assert [(one.kind, one.severity, one.subject) for one in events] == [
        ("input_out_of_range", "warning", "drift: input"),
        ("input_out_of_range", "warning", "drift: input 2"),
    ]
    assert events[0].message == f"{told} (safe_inference)" and events[0].evidence.value is not None


def test_drift_of_the_output_alone_is_told(spool: Path) -> None:
    """Weights that were changed after the training: the inputs are as they were."""
    model = net()
    with probe.watch(model) as run:
        train(run, model)
        with torch.no_grad():
            model[3].bias.add_(40.0)  # type: ignore[operator, union-attr]
        (told,) = probe.safe_inference(model, batch()).drift
    assert told.startswith("The output has drifted")
    (event,) = [one for one in run_of(spool).latest_events if one.subject == "drift: output"]
    assert event.kind == "output_degenerate"


def test_single_rows_and_evaluation_mode_are_no_drift(spool: Path) -> None:
    model = net()
    with probe.watch(model) as run:
        train(run, model)
        assert [probe.safe_inference(model, batch(rows)).drift for rows in [1] * 200 + [500]] == [()] * 201


def test_nothing_is_compared_without_a_training() -> None:
    assert probe.safe_inference(net(), batch() * 1e6).drift == ()


def test_odd_inputs_leave_the_result_as_it_is(spool: Path) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 1)

        def forward(self, x: Tensor, *more: object) -> Tensor:
            output: Tensor = self.inner(x.to_dense() if x.is_sparse else x)
            return output

    model = Odd()
    with probe.watch(model) as run:
        train(run, model)
        result = probe.safe_inference(model, (batch().to_sparse(), None, ["text", {}]))
        assert result.success and result.data.shape == (16, 1)
