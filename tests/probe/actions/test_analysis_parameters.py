"""`check_model_parameters` on a model with a shared, a frozen, an unused and a loose parameter."""

import copy
import json
import math

import numpy as np
import pytest
import torch
from planted_models import Mixed, backward, chain
from torch import nn

from probe import check_model_parameters, snapshot_parameters

TOKENS = torch.tensor([[1, 2, 3, 4]])


@pytest.fixture
def model() -> Mixed:
    torch.manual_seed(0)
    return Mixed()


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    backward(model, TOKENS)
    optimizer.step()


def test_parameters_of_every_kind_are_told_apart(model: Mixed) -> None:
    backward(model, TOKENS)
    report = check_model_parameters(model)
    assert report.shared == (("head.weight", "table.weight"),)
    assert report.frozen == ("frozen.weight", "frozen.bias")
    assert report.without_gradient == ("unused.weight", "unused.bias")
    assert [p.name for p in report.parameters] == [name for name, _ in model.named_parameters()]
    json.dumps(report.to_dict(), allow_nan=False)


@pytest.mark.capability(27)
def test_parameters_statistics_match_numpy(model: Mixed) -> None:
    for state in check_model_parameters(model).parameters:
        values = np.array(model.get_parameter(state.name).tolist(), dtype=np.float64)
        if not values.size:
            assert state.norm is None
            continue
        assert state.norm == pytest.approx(np.sqrt(np.sum(values**2)), rel=1e-6)
        assert state.std == pytest.approx(values.std(), rel=1e-5, abs=1e-9)
        assert state.mean == pytest.approx(values.mean(), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_parameters_with_nan_or_inf_are_named(model: Mixed, bad: float) -> None:
    with torch.no_grad():
        model.unused.bias[1] = bad
    report = check_model_parameters(model)
    assert report.nonfinite == ("unused.bias",)
    assert not report.ok and "NaN or Inf in unused.bias" in report.problems


def test_parameters_without_a_snapshot_claim_nothing_about_updates(model: Mixed) -> None:
    report = check_model_parameters(model)
    assert report.never_updated == ()
    assert all(p.changed is None and p.drift is None for p in report.parameters)
    assert "no snapshot" in report.note


@pytest.mark.capability(27)
def test_parameters_never_updated_are_those_that_are_bit_equal(model: Mixed) -> None:
    since = snapshot_parameters(model)
    step(model, torch.optim.SGD(model.parameters(), lr=0.1))
    report = check_model_parameters(model, since=since)
    assert report.never_updated == ("unused.weight", "unused.bias")
    assert {p.name for p in report.parameters if p.changed} == {"scale", "table.weight"}


@pytest.mark.capability(27)
def test_parameters_drift_is_the_relative_distance(model: Mixed) -> None:
    since, before = snapshot_parameters(model), copy.deepcopy(model)
    step(model, torch.optim.Adam(model.parameters(), lr=0.05))
    states = {p.name: p for p in check_model_parameters(model, since=since).parameters}
    for name in ("scale", "table.weight"):
        new = np.array(model.get_parameter(name).tolist())
        old = np.array(before.get_parameter(name).tolist())
        expected = np.linalg.norm(new - old) / np.linalg.norm(old)
        assert states[name].drift == pytest.approx(expected, rel=1e-5)
        change = (np.linalg.norm(new) - np.linalg.norm(old)) / np.linalg.norm(old)
        assert states[name].norm_change == pytest.approx(change, rel=1e-3, abs=1e-7)
        assert abs(states[name].norm_change) <= states[name].drift * (1 + 1e-6)


def test_snapshot_without_values_still_sees_one_flipped_bit(model: Mixed) -> None:
    since = snapshot_parameters(model, keep_values=False)
    with torch.no_grad():
        element = model.table.weight[3, 1]
        element.copy_(torch.nextafter(element, torch.tensor(math.inf)))
    states = {p.name: p for p in check_model_parameters(model, since=since).parameters}
    assert since.nbytes == 0
    assert states["table.weight"].changed and states["table.weight"].drift is None
    assert not states["scale"].changed


def test_snapshot_is_not_changed_by_training(model: Mixed) -> None:
    since = snapshot_parameters(model)
    assert not any(p.changed for p in check_model_parameters(model, since=since).parameters)
    with torch.no_grad():
        model.scale.add_(1)
    assert check_model_parameters(model, since=since).parameters[0].drift == pytest.approx(1.0)


def test_parameters_frozen_but_changed_is_a_problem(model: Mixed) -> None:
    since = snapshot_parameters(model)
    with torch.no_grad():
        model.frozen.bias.add_(1)
    assert any(
        "frozen, but changed" in problem for problem in check_model_parameters(model, since=since).problems
    )


def test_parameters_against_the_optimizer_name_what_is_missing_and_stale(model: Mixed) -> None:
    optimizer = torch.optim.SGD([model.table.weight, nn.Parameter(torch.ones(2))], lr=0.1)
    report = check_model_parameters(model, optimizer=optimizer)
    assert report.not_in_optimizer == ("scale", "unused.weight", "unused.bias")
    assert report.stale_in_optimizer == 1
    assert any("does not have" in problem for problem in report.problems)


def test_parameters_in_one_memory_are_shared_but_neighbours_are_not() -> None:
    model = chain(4, 4, 4)
    model[2].weight = nn.Parameter(model[0].weight.detach())
    flat = torch.zeros(8)
    model[0].bias, model[2].bias = nn.Parameter(flat[:4]), nn.Parameter(flat[4:])
    assert check_model_parameters(model).shared == (("0.weight", "2.weight"),)


def test_snapshot_of_half_complex_and_strided_parameters_sees_changes() -> None:
    model = nn.ParameterDict(
        {
            "a_half": nn.Parameter(torch.ones(3, dtype=torch.bfloat16)),
            "a_complex": nn.Parameter(torch.ones(3, dtype=torch.complex64)),
            "a_strided": nn.Parameter(torch.ones(4, 3).t()),
        }
    )
    since = snapshot_parameters(model)
    with torch.no_grad():
        for parameter in model.values():
            parameter.reshape(-1)[0] += 1
            parameter[0] = 2
    report = check_model_parameters(model, since=since)
    assert all(p.changed and p.drift for p in report.parameters)


def test_snapshot_of_another_model_is_refused(model: Mixed) -> None:
    with pytest.raises(ValueError, match="has no parameter of Mixed"):
        check_model_parameters(model, since=snapshot_parameters(chain(2, 2, 2)))


def test_parameters_refuse_what_is_no_optimizer(model: Mixed) -> None:
    with pytest.raises(ValueError, match=r"torch.optim.Optimizer, got list"):
        check_model_parameters(model, optimizer=[1])  # type: ignore[arg-type]
