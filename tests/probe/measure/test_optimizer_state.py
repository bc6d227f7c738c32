"""`moment_statistics` against the optimizers' own state in float64, and against what updates really did."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from probe.measure import optimizer_state
from probe.measure.optimizer_state import moment_statistics

Make = Callable[[Iterable[nn.Parameter]], Optimizer]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3))


def train(network: nn.Module, optimizer: Optimizer, steps: int = 3) -> dict[str, Tensor]:
    """Train, and return the parameters as they were before the last update."""
    generator = torch.Generator().manual_seed(1)
    before: dict[str, Tensor] = {}
    for _ in range(steps):
        optimizer.zero_grad()
        network(torch.randn(4, 6, generator=generator)).square().sum().backward()
        before = {name: value.detach().clone() for name, value in network.named_parameters()}
        optimizer.step()
    return before


MAKERS: dict[str, tuple[Make, str, str | None]] = {
    "adam": (lambda p: torch.optim.Adam(p, lr=0.01), "exp_avg", "exp_avg_sq"),
    "adamw": (lambda p: torch.optim.AdamW(p, lr=0.01), "exp_avg", "exp_avg_sq"),
    "momentum": (lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9), "momentum_buffer", None),
    "rmsprop": (lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9), "momentum_buffer", "square_avg"),
}


@pytest.mark.parametrize("name", MAKERS)
def test_moment_norms_are_those_of_the_optimizers_state(name: str) -> None:
    make, first, second = MAKERS[name]
    network = model()
    optimizer = make(network.parameters())
    train(network, optimizer)
    parameters = list(network.parameters())
    found = moment_statistics([optimizer], parameters)
    for column, key in (("first_moment_norm", first), ("second_moment_norm", second)):
        if key is None:
            assert column not in found
            continue
        expected = [float(optimizer.state[p][key].double().norm()) for p in parameters]
        assert found[column].values == pytest.approx(expected, rel=1e-6)
        assert not found[column].missing.any()


@pytest.mark.parametrize(
    "options", [{}, {"amsgrad": True}, {"betas": (0.5, 0.7), "eps": 1e-3}, {"foreach": False}]
)
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_effective_step_is_what_the_update_really_did(
    kind: type[Optimizer], options: dict[str, object]
) -> None:
    network = model().double()
    optimizer = kind(network.parameters(), lr=0.02, weight_decay=0.0, **options)  # type: ignore[call-arg]
    network.double()
    generator = torch.Generator().manual_seed(1)
    before: list[Tensor] = []
    for _ in range(4):
        optimizer.zero_grad()
        inputs = torch.randn(4, 6, generator=generator, dtype=torch.float64)
        network(inputs).square().sum().backward()
        before = [value.detach().clone() for value in network.parameters()]
        optimizer.step()
    parameters = list(network.parameters())
    moved = [
        float((p.detach() - old).square().mean().sqrt()) for p, old in zip(parameters, before, strict=True)
    ]
    found = moment_statistics([optimizer], parameters)["effective_step"]
    assert found.values == pytest.approx(moved, rel=1e-5)


def test_effective_step_of_large_parameters_is_computed_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    network = model()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    train(network, optimizer)
    whole = moment_statistics([optimizer], list(network.parameters()))["effective_step"]
    monkeypatch.setattr(optimizer_state, "_BATCH_ELEMENTS", 5)
    sliced = moment_statistics([optimizer], list(network.parameters()))["effective_step"]
    assert sliced.values == pytest.approx(whole.values, rel=1e-6)


def exact_effective_step(optimizer: Optimizer, parameter: Tensor) -> float:
    """Kingma and Ba's step in float64, of the state as it is."""
    group, state = optimizer.param_groups[0], optimizer.state[parameter]
    beta1, beta2 = group["betas"]
    updates = float(state["step"])
    first = state["exp_avg"].double() / (1 - beta1**updates)
    second = state.get("max_exp_avg_sq", state["exp_avg_sq"]).double() / (1 - beta2**updates)
    return float((group["lr"] * first / (second.sqrt() + group["eps"])).square().mean().sqrt())


@pytest.mark.parametrize("way", ["native", "torch"])
@pytest.mark.parametrize("options", [{}, {"amsgrad": True}, {"eps": 1e-3}, {"betas": (0.5, 0.7)}])
def test_moments_of_every_kind_of_tensor_are_those_of_the_state(
    way: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "torch":
        monkeypatch.setenv("NANSCOPE_KERNEL", "off")
    generator = torch.Generator().manual_seed(5)
    shapes = {"table": (700, 40), "one": (1,), "scalar": (), "image": (3, 4, 5, 6)}
    values = [torch.randn(shape, generator=generator) for shape in shapes.values()]
    values += [torch.randn(9, 7, generator=generator).t(), values[0].bfloat16(), values[0].half()]
    values += [values[0].double(), values[3].to(memory_format=torch.channels_last)]
    parameters = [nn.Parameter(value) for value in values]
    optimizers = [torch.optim.AdamW([parameter], lr=0.01, **options) for parameter in parameters]
    for _ in range(3):
        for parameter, optimizer in zip(parameters, optimizers, strict=True):
            noise = torch.randn(parameter.shape, generator=generator)
            # An embedding, most of whose rows were never used.
            if parameter.shape == shapes["table"]:
                noise[torch.arange(700) % 40 != 3] = 0.0
            parameter.grad = torch.empty_like(parameter).copy_(noise)
            optimizer.step()
    found = moment_statistics(optimizers, parameters)
    states = [(optimizer, p, optimizer.state[p]) for optimizer, p in zip(optimizers, parameters, strict=True)]
    for column, key in (("first_moment_norm", "exp_avg"), ("second_moment_norm", "exp_avg_sq")):
        expected = [float(state[key].double().norm()) for _, _, state in states]
        assert found[column].values == pytest.approx(expected, rel=1e-6)
    steps = [exact_effective_step(optimizer, parameter) for optimizer, parameter, _ in states]
    assert found["effective_step"].values == pytest.approx(steps, rel=1e-6)


def test_effective_step_is_not_claimed_for_other_optimizers() -> None:
    network = model()
    optimizer = torch.optim.NAdam(network.parameters(), lr=0.01)
    train(network, optimizer)
    assert set(moment_statistics([optimizer], list(network.parameters()))) == {
        "first_moment_norm",
        "second_moment_norm",
    }


def test_parameters_without_state_are_missing_and_get_none() -> None:
    network = model()
    parameters = list(network.parameters())
    optimizer = torch.optim.Adam(parameters, lr=0.01)
    parameters[1].requires_grad_(False)
    train(network, optimizer)
    entries = len(optimizer.state)
    found = moment_statistics([optimizer], parameters)
    for column in found.values():
        assert list(np.flatnonzero(column.missing)) == [1]
        assert column.values[1] == 0
    assert len(optimizer.state) == entries


def test_several_optimizers_give_each_parameter_its_own() -> None:
    network = model()
    parameters = list(network.parameters())
    optimizers = [
        torch.optim.Adam(parameters[:2], lr=0.01),
        torch.optim.SGD(parameters[2:], lr=0.01, momentum=0.5),
    ]
    network(torch.ones(4, 6)).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
    found = moment_statistics(optimizers, parameters)
    assert not found["first_moment_norm"].missing.any()
    assert list(found["effective_step"].missing) == [False] * 2 + [True] * (len(parameters) - 2)


def test_optimizers_that_have_yet_to_step_or_keep_nothing_give_nothing() -> None:
    network = model()
    parameters = list(network.parameters())
    assert moment_statistics([torch.optim.Adam(parameters)], parameters) == {}
    plain = torch.optim.SGD(parameters, lr=0.1)
    train(network, plain)
    assert moment_statistics([plain], parameters) == {}
    assert moment_statistics([], parameters) == {}


def test_moments_that_are_not_finite_stay_so() -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([weight], lr=0.1)
    weight.grad = torch.tensor([1.0, float("nan"), 1.0])
    optimizer.step()
    found = moment_statistics([optimizer], [weight])
    assert all(np.isnan(column.values[0]) and not column.missing[0] for column in found.values())


def test_measuring_changes_neither_state_nor_parameters() -> None:
    network = model()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    train(network, optimizer)
    tensors = [*network.parameters(), *(s for state in optimizer.state.values() for s in state.values())]
    before = [(tensor.detach().clone(), tensor._version) for tensor in tensors]
    moment_statistics([optimizer], list(network.parameters()))
    for tensor, (value, version) in zip(tensors, before, strict=True):
        assert torch.equal(tensor.detach(), value)
        assert tensor._version == version
