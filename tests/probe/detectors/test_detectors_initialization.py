"""Signals that shrink or grow layer by layer, and matrices of one number, while a run is young."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch
from sampled_runs import OPTIONS, find, module_sample, plain
from torch import nn

from probe.detectors.initialization import InitializationDetector
from probe.detectors.sample import Sample
from probe.incidents.event_writer import evidence_of
from probe.wire import Evidence


def signals(sizes: Sequence[float], steps: int = 5, first: int = 0, type_: str = "Linear") -> list[Sample]:
    """Layers of one type with outputs of these sizes, with activations between them."""
    types = [name for _ in sizes for name in (type_, "ReLU")]
    rms = np.repeat(np.asarray(sizes, dtype=np.float64), 2)
    rms[1::2] = 0.5
    return [plain(first + step, modules=module_sample(types, activation_rms=rms)) for step in range(steps)]


def alarms(samples: list[Sample]) -> list[tuple[int, str]]:
    found = find(samples, InitializationDetector(OPTIONS))
    assert {(finding.kind, finding.severity) for _, finding in found} <= {("poor_initialization", "warning")}
    return [(step, finding.subject) for step, finding in found]


@pytest.mark.parametrize("factor", [0.1, 10.0])
@pytest.mark.parametrize("scale", [1e-6, 1.0])
def test_signal_that_changes_tenfold_in_each_layer_is_found_at_the_second_sample(
    factor: float, scale: float
) -> None:
    found = alarms(signals([scale * factor**i for i in range(6)]))
    assert found[0] == (1, "m10")


def test_signal_finding_says_how_much_each_layer_does() -> None:
    finding = find(signals([0.1**i for i in range(6)]), InitializationDetector(OPTIONS))[0][1]
    assert finding.value == pytest.approx(1e5)
    assert (
        "by a factor of 10 from one Linear to the next: from 1 in `m0` to 1e-05 in `m10`" in finding.message
    )


def test_signal_of_a_very_deep_model_fits_into_its_event() -> None:
    """A record with more neighbours than an event has room for cannot be read by anyone."""
    sizes = [0.9**i for i in range(500)]
    finding = find(signals(sizes), InitializationDetector(OPTIONS))[0][1]
    evidence = evidence_of(finding)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(evidence), type=Evidence) == evidence
    assert [evidence.neighbours[0], evidence.neighbours[-1]] == [(0, 1.0), (499, sizes[-1])]
    assert len(evidence.neighbours) == 128
    positions = [position for position, _ in evidence.neighbours]
    spread = np.linspace(0, 499, 128)
    assert max(abs(at - exact) for at, exact in zip(positions, spread, strict=True)) <= 1
    assert all(value == sizes[at] for at, value in evidence.neighbours)


def test_signal_that_dies_out_is_found_on_the_weights_as_they_were_made_alone() -> None:
    """One update of the biases of the last layers, and the line over the depth is a V."""
    crooked = [*(0.25**i for i in range(10)), *(0.25**i for i in range(10, 0, -1))]
    steep = [0.25**i for i in range(20)]
    assert alarms(signals(steep, steps=1) + signals(crooked, first=1)) == [(0, "m38")]


HEALTHY = {
    "steep once, later": signals([1.0] * 20, steps=1) + signals([0.25**i for i in range(20)], 1, first=1),
    "less steep, once": signals([0.25**i for i in range(10)], 1) + signals([1.0] * 10, first=1),
    "equal": signals([1.0] * 8),
    "default shrinking": signals([0.5**i for i in range(8)]),
    "bottleneck": signals([1.0, 1e-2, 1e-6, 1e-2, 1.0]),
    "one small output": signals([1.0, 1.0, 1.0, 1.0, 1.0, 1e-5]),
    "too few": signals([1.0, 1e-3, 1e-6]),
    "zeros at the end": signals([1.0, 1.0, 1.0, 1.0, 0.0, 0.0]),
    "late in the run": signals([1.0] * 8, steps=1) + signals([0.1**i for i in range(8)], first=200),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_signal_is_silent_on_what_is_healthy(name: str) -> None:
    assert alarms(HEALTHY[name]) == []


def test_signal_of_the_first_twenty_samples_only_is_judged() -> None:
    samples = signals([1.0] * 8, steps=20) + signals([0.1**i for i in range(8)], steps=10, first=20)
    assert alarms(samples) == []


# ---------------------------------------------------------------------------------- constant matrices


def parameters(model: nn.Module, step: int = 0) -> list[Sample]:
    """The first step of a model, with the deviation of every parameter's elements."""
    named = dict(model.named_parameters())
    values = [p.detach().double() for p in named.values()]
    return [
        plain(
            step,
            parameter_norm=np.array([float(v.norm()) for v in values]),
            parameter_std=np.array([float(v.std(correction=0)) for v in values]),
            is_matrix=np.array([sum(d > 1 for d in v.shape) > 1 for v in values]),
            parameter_names=tuple(named),
            layer_names=tuple(named),
            layer_of=np.arange(len(named)),
        )
    ]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)
    )


def test_matrices_of_one_number_are_found_at_the_first_step() -> None:
    model = network()
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.01)
    found = find(parameters(model), InitializationDetector(OPTIONS))
    assert [(step, finding.subject, finding.affected) for step, finding in found] == [
        (0, "0.weight", ("0.weight", "3.weight", "5.weight"))
    ]
    assert "begin equal" in found[0][1].advice[0], "no other gain helps"


def test_matrices_that_are_random_or_zero_are_silent() -> None:
    plain_model, zero_head, lora = network(), network(), network()
    nn.init.zeros_(zero_head[5].weight)
    for layer in (0, 3):
        nn.init.zeros_(lora[layer].weight)
    for model in (plain_model, zero_head, lora):
        assert alarms(parameters(model)) == []


def test_a_single_constant_matrix_is_silent() -> None:
    model = network()
    nn.init.constant_(model[3].weight, 0.1)
    assert alarms(parameters(model)) == []


def test_a_model_of_one_constant_matrix_is_silent() -> None:
    """A single layer learns from any start: its inputs differ."""
    model = nn.Linear(8, 3)
    nn.init.constant_(model.weight, 0.1)
    assert alarms(parameters(model)) == []


# ------------------------------------------------------------------------------------- zeros behind zeros


def first_step(model: nn.Module) -> list[Sample]:
    """The first step of a model on noise, with its gradients."""
    model(torch.randn(16, 8)).square().add(1.0).log().sum().backward()
    grads = [p.grad for p in model.parameters()]
    (sample,) = parameters(model)
    norms = np.array([0.0 if grad is None else float(grad.double().norm()) for grad in grads])
    missing = np.array([grad is None for grad in grads])
    return [replace(sample, grad_norm=norms, missing=missing)]


def zeroed(*layers: int) -> nn.Sequential:
    model = network()
    for layer in layers:
        nn.init.zeros_(model[layer].weight)
        nn.init.zeros_(model[layer].bias)
    nn.init.constant_(model[5].bias, 0.5)
    return model


def test_matrices_of_zeros_that_get_no_gradient_are_found_at_the_first_step() -> None:
    found = find(first_step(zeroed(0, 3, 5)), InitializationDetector(OPTIONS))
    assert [(step, finding.subject, len(finding.affected)) for step, finding in found] == [(0, "0.weight", 3)]
    assert "3 weight matrices are 0 throughout at step 0" in found[0][1].message


class Heads(nn.Module):
    """Two heads that begin at 0, side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(8, 2) for _ in range(2))
        for head in self.heads:
            nn.init.zeros_(head.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([head(x) for head in self.heads], dim=-1)


@pytest.mark.parametrize(
    "model", [zeroed(5), zeroed(3), zeroed(0), Heads()], ids=["head", "middle", "first", "heads side by side"]
)
def test_zero_matrices_that_learn_are_silent(model: nn.Module) -> None:
    assert alarms(first_step(model)) == []


# ------------------------------------------------------------------------------------------ tiny matrices


def scaled(factor: float, *layers: int, types: Sequence[str] = ("Linear", "ReLU")) -> list[Sample]:
    """The first step of the network with some matrices made smaller."""
    model = network()
    for layer in layers:
        model[layer].weight.data.mul_(factor)
    modules = module_sample(types, activation_rms=[1.0] * len(types))
    return [replace(sample, modules=modules) for sample in parameters(model)]


def test_matrices_that_let_next_to_nothing_through_are_found_at_the_first_step() -> None:
    """The default has a standard deviation of 1 / sqrt(3 n), so that its own gain is about 0.6."""
    found = find(scaled(1e-3, 0, 3, 5), InitializationDetector(OPTIONS))
    assert [(step, finding.subject, len(finding.affected)) for step, finding in found] == [(0, "0.weight", 3)]
    assert 1e-4 < (found[0][1].value or 0.0) < 1e-3


@pytest.mark.parametrize(
    "samples",
    [
        scaled(0.1, 0, 3, 5),
        scaled(1e-3, 5),
        scaled(1e-3, 0, 3, 5, types=("Linear", "Dropout")),
        scaled(0.0, 0, 3),
    ],
    ids=["ten times smaller", "head alone", "deep linear net", "zeros"],
)
def test_small_matrices_that_are_meant_are_silent(samples: list[Sample]) -> None:
    assert alarms(samples) == []


# ------------------------------------------------------------------------------------ gradients over depth


def backwards(norms: Sequence[float], steps: int = 6, **values: object) -> list[Sample]:
    """Samples of a model of so many weight matrices with these gradients."""
    names = tuple(f"layers.{i}.weight" for i in range(len(norms)))
    given = {
        "grad_norm": np.asarray(norms, dtype=np.float64),
        "missing": np.zeros(len(norms), dtype=np.bool_),
        "is_matrix": np.ones(len(norms), dtype=np.bool_),
        "parameter_names": names,
        "layer_names": names,
        "layer_of": np.arange(len(norms)),
    }
    return [plain(step, **(given | values)) for step in range(steps)]


@pytest.mark.parametrize(("factor", "verb"), [(0.1, "grows"), (10.0, "shrinks")])
@pytest.mark.parametrize("scale", [1e-9, 1.0])
def test_gradient_that_changes_tenfold_in_each_layer_is_found_at_the_fourth_sample(
    factor: float, verb: str, scale: float
) -> None:
    norms = [scale * factor**i for i in range(7)]
    found = find(backwards(norms), InitializationDetector(OPTIONS))
    assert (found[0][0], found[0][1].subject) == (3, "layers.0.weight")
    assert found[0][1].value == pytest.approx(1e6)
    assert f"the gradient {verb} by a factor of 10 from one weight matrix to the one before" in (
        found[0][1].message
    )


@pytest.mark.parametrize(("first", "is_of_updates"), [(2.8e-2, True), (1e-7, False)])
def test_gradient_that_the_updates_killed_is_not_advised_another_initialisation(
    first: float, is_of_updates: bool
) -> None:
    before = backwards([first] * 7 if is_of_updates else [first * 10.0**i for i in range(7)], steps=1)
    killed = [replace(one, step=one.step + 1) for one in backwards([1e-7 * 10.0**i for i in range(7)])]
    finding = find([*before, *killed], InitializationDetector(OPTIONS))[0][1]
    assert ("at step 0 it was 0.028 there" in finding.message) == is_of_updates
    assert any("not the initialisation" in sentence for sentence in finding.advice) == is_of_updates


def test_gradients_of_a_deep_sigmoid_net_are_found_and_those_of_a_shallow_one_are_not() -> None:
    def model(depth: int, between: type[nn.Module]) -> nn.Sequential:
        torch.manual_seed(0)
        layers = [layer for _ in range(depth) for layer in (nn.Linear(8, 8), between())]
        return nn.Sequential(*layers, nn.Linear(8, 2))

    (sigmoid,), (tanh,) = first_step(model(10, nn.Sigmoid)), first_step(model(5, nn.Tanh))
    found = find([replace(sigmoid, step=step) for step in range(5)], InitializationDetector(OPTIONS))
    assert found[0][1].kind == "poor_initialization"
    assert alarms([replace(tanh, step=step) for step in range(5)]) == []


HEALTHY_GRADIENTS = {
    "equal": backwards([1.0] * 12),
    "halved in each layer": backwards([0.5**i for i in range(12)]),
    "too few": backwards([10.0**i for i in range(5)]),
    "one large head": backwards([1.0] * 11 + [1e6]),
    "alternating, as of adapters": backwards([1e-6, 1.0] * 6),
    "biases": backwards([10.0**i for i in range(8)], is_matrix=np.zeros(8, dtype=np.bool_)),
    "not for long": backwards([10.0**i for i in range(8)], steps=3) + backwards([1.0] * 8)[3:],
}


@pytest.mark.parametrize("name", HEALTHY_GRADIENTS)
def test_gradients_over_depth_are_silent_on_what_is_healthy(name: str) -> None:
    assert alarms(HEALTHY_GRADIENTS[name]) == []
