"""What is measured of a model's inputs, against numpy; and that a bad batch is told of in a real run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from journals import read_journal
from torch import Tensor, nn

import probe
from probe.measure.input_sample import measure_inputs


class Takes(nn.Module):
    def forward(self, x: Tensor, *more: Any, mask: Tensor | None = None, batch: Any = None) -> Tensor:
        return x


def test_floating_point_tensors_are_measured_by_name() -> None:
    x, extra = torch.randn(4, 3), torch.tensor([1.0, float("nan"), -float("inf"), -8.0])
    nested = {"image": torch.full((2,), 5.0), "label": torch.tensor([1, 2]), "pair": [torch.ones(3)]}
    sample = measure_inputs(Takes(), (x, extra), {"batch": nested, "mask": torch.tensor([True])})
    assert sample is not None
    assert sample.names == ("x", "args[1]", "batch['image']", "batch['pair'][0]")
    array = x.double().numpy()
    assert sample.max_abs[0] == pytest.approx(np.abs(array).max(), rel=1e-6)
    assert sample.mean[0] == pytest.approx(array.mean(), rel=1e-5)
    assert sample.std[0] == pytest.approx(array.std(), rel=1e-5)
    assert sample.nan_count.tolist() == [0, 1, 0, 0]
    assert sample.inf_count.tolist() == [0, 1, 0, 0]
    assert sample.max_abs[2:].tolist() == [5.0, 1.0]


def test_calls_without_such_tensors_have_no_sample() -> None:
    assert measure_inputs(Takes(), (torch.tensor([1, 2]), "text", torch.empty(0)), {}) is None
    assert measure_inputs(nn.Identity(), (), {}) is None


def test_the_tensors_stay_as_they_are() -> None:
    x = torch.randn(5, requires_grad=True)
    before, version = x.detach().clone(), x._version
    measure_inputs(Takes(), (x,), {})
    assert torch.equal(x.detach(), before)
    assert (x._version, x.grad, x.grad_fn) == (version, None, None)


def test_an_input_far_out_of_its_range_is_an_event(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with probe.watch(
        model, optimizer, spool=tmp_path, connect="", overhead_limit=0.0, features={"activations": 2}
    ):
        for step in range(60):
            inputs = torch.randn(16, 8) * (1e4 if step == 50 else 1.0)
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
    (folder,) = tmp_path.iterdir()
    found = [event for event in read_journal(folder).events if event.kind == "input_out_of_range"]
    assert {(event.subject, event.step, event.severity) for event in found} == {("input", 50, "warning")}
    assert found[0].evidence is not None
    assert found[0].evidence.value is not None
    assert found[0].evidence.value > 1e4


def inputs_that_go_blank(spool: Path, *, images: int) -> set[tuple[str, int]]:
    """Train at the default level on noise that is all zeros from step 65 on; return what is out of range."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with probe.watch(model, optimizer, spool=spool, connect="", overhead_limit=0.0):
        for step in range(95):
            inputs = torch.randn(images, 64) * (step < 65)
            optimizer.zero_grad()
            (model(inputs).square().mean() + 0.1 * model[2].bias.square().sum()).backward()
            optimizer.step()
    (folder,) = spool.iterdir()
    return {(e.kind, e.step) for e in read_journal(folder).events if e.kind == "input_out_of_range"}


def test_small_inputs_are_glanced_at_where_parameters_are_measured(tmp_path: Path) -> None:
    assert inputs_that_go_blank(tmp_path, images=8) == {("input_out_of_range", 80)}


def test_large_inputs_are_measured_with_the_activations_alone(tmp_path: Path) -> None:
    assert inputs_that_go_blank(tmp_path, images=512) == set()
