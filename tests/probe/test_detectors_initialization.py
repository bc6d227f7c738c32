"""Signals that shrink or grow layer by layer, and matrices of one number, while a run is young."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from sampled_runs import OPTIONS, find, module_sample, plain
from torch import nn

from probe.detectors.initialization import InitializationDetector
from probe.detectors.sample import Sample


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
    assert "by a factor of 10 from one Linear to the next: from 1 in m0 to 1e-05 in m10" in finding.message


HEALTHY = {
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
