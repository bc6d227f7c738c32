"""All detectors of sampled numbers together, on models that are really trained, sound ones and spoilt."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from detector_series import _Transformer
from sampled_runs import (
    NAMES,
    Forward,
    LossOf,
    SampledTraining,
    as_basic,
    describe,
    every_step,
    find,
    kinds,
    module_sample,
    plain,
)
from torch import Tensor, nn
from torch.nn import functional as F

from probe.detectors.base import Finding
from probe.detectors.sample import Sample
from probe.detectors.sampled_bank import SampledDetectorBank
from probe.detectors.sampled_thresholds import _ALLOWED, SampledThresholds


def mlp(activation: Callable[[], nn.Module] = nn.ReLU, *, depth: int = 2, outputs: int = 10) -> nn.Sequential:
    hidden = [layer for _ in range(depth - 1) for layer in (nn.Linear(64, 64), activation())]
    return nn.Sequential(nn.Linear(20, 64), activation(), *hidden, nn.Linear(64, outputs))


def classes(*, scale: float = 1.0) -> LossOf:
    """Ten classes of 20 numbers, learnable."""
    generator = torch.Generator().manual_seed(1)
    inputs, rule = torch.randn(2048, 20, generator=generator), torch.randn(20, 10, generator=generator)
    labels = (inputs @ rule).argmax(1)

    def loss_of(step: int, forward: Forward) -> Tensor:
        chosen = torch.randint(2048, (32,), generator=generator)
        return F.cross_entropy(forward(scale * inputs[chosen]), labels[chosen])

    return loss_of


def cnn() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)),
    )


def pictures() -> LossOf:
    generator = torch.Generator().manual_seed(1)
    pattern = torch.randn(10, 1, 8, 8, generator=generator)

    def loss_of(step: int, forward: Forward) -> Tensor:
        label = torch.randint(10, (8,), generator=generator)
        return F.cross_entropy(
            forward(pattern[label] + 0.5 * torch.randn(8, 1, 8, 8, generator=generator)), label
        )

    return loss_of


def text() -> LossOf:
    generator = torch.Generator().manual_seed(1)
    words = torch.multinomial(1.0 / torch.arange(1.0, 41.0), 4000, replacement=True, generator=generator)
    words[1::2] = (words[::2] * 7 + 3) % 40

    def loss_of(step: int, forward: Forward) -> Tensor:
        starts = torch.randint(0, 3900, (4,), generator=generator)
        ids = torch.stack([words[start : start + 13] for start in starts.tolist()])
        return F.cross_entropy(forward(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    return loss_of


def adam(model: nn.Module, rate: float = 1e-3) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), rate)


def trained(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_of: LossOf,
    steps: int,
    due: Callable[[int], set[str]] = as_basic,
) -> list[tuple[int, Finding]]:
    """Everything that is found in a training."""
    return find(SampledTraining(model, optimizer, due).run(loss_of, steps))


def frozen() -> nn.Module:
    model = mlp(depth=3)
    model[0].requires_grad_(False)
    return model


HEALTHY: dict[str, tuple[Callable[[], nn.Module], Callable[[], LossOf], float, int]] = {
    "mlp": (mlp, classes, 3e-3, 250),
    "sigmoid": (lambda: mlp(nn.Sigmoid), classes, 1e-2, 150),
    "cnn": (cnn, pictures, 3e-3, 150),
    "gpt": (_Transformer, text, 3e-3, 100),
    "frozen": (frozen, classes, 1e-3, 100),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_bank_is_silent_on_a_healthy_training(name: str) -> None:
    make, data, rate, steps = HEALTHY[name]
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], rate)
    found = trained(model, optimizer, data(), steps)
    assert not found, describe(found)


def test_bank_is_silent_on_a_healthy_training_measured_at_every_step() -> None:
    torch.manual_seed(0)
    model = mlp()
    found = trained(model, adam(model), classes(), 80, every_step)
    assert not found, describe(found)


def test_dead_relus_are_found_within_three_steps() -> None:
    torch.manual_seed(0)
    model = mlp()
    nn.init.constant_(model[0].bias, -20.0)
    found = trained(model, adam(model), classes(), 5)
    assert next((step, finding.subject) for step, finding in found if finding.kind == "dead_units") == (
        2,
        "1",
    )


def test_tanh_of_unscaled_inputs_is_found_within_three_steps() -> None:
    torch.manual_seed(0)
    model = mlp(nn.Tanh)
    found = trained(model, adam(model), classes(scale=255.0), 5)
    assert next((step, f.subject) for step, f in found if f.kind == "saturated_activation") == (2, "1")


def test_layer_that_is_not_in_the_optimizer_is_found_within_twenty_steps() -> None:
    torch.manual_seed(0)
    model = mlp(depth=3)
    known = [parameter for name, parameter in model.named_parameters() if not name.startswith("2.")]
    found = trained(model, torch.optim.Adam(known, 1e-3), classes(), 21)
    assert kinds(found) == {"parameter_not_updated"}
    assert found[0][0] == 20
    assert found[0][1].affected == ("2.weight", "2.bias")


@pytest.mark.parametrize("rate", [0.3, 1.0])
def test_learning_rate_that_is_far_too_large_is_found_within_three_steps(rate: float) -> None:
    torch.manual_seed(0)
    model = mlp()
    found = trained(model, adam(model, rate), classes(), 5)
    assert next(step for step, finding in found if finding.kind == "update_ratio_high") == 3


def test_learning_rate_that_is_far_too_small_is_found() -> None:
    torch.manual_seed(0)
    model = mlp()
    found = trained(model, torch.optim.SGD(model.parameters(), 1e-9), classes(), 60)
    assert kinds(found) == {"update_ratio_low"}


def test_initialization_with_large_weights_is_found_at_the_second_step() -> None:
    torch.manual_seed(0)
    model = mlp(depth=8)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    found = trained(model, adam(model), classes(), 3)
    assert next(step for step, finding in found if finding.kind == "poor_initialization") == 1


def test_model_that_ignores_its_input_is_found_by_its_output() -> None:
    class Ignorant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp(outputs=1)

        def forward(self, x: Tensor) -> Tensor:
            return 0.0 * self.body(x) + 0.1

    def regression(step: int, forward: Forward) -> Tensor:
        x = torch.randn(32, 20)
        return (forward(x) - x.sum(1, keepdim=True)).square().mean()

    torch.manual_seed(0)
    model = Ignorant()
    found = trained(model, adam(model), regression, 20)
    assert "output_degenerate" in kinds(found)


# ------------------------------------------------------------------------------------------- the bank


def test_bank_begins_anew_with_another_layout() -> None:
    bank = SampledDetectorBank(SampledThresholds())
    for step in range(3):
        bank.observe(
            plain(step, modules=module_sample(("ReLU",), units=[64.0], activation_zero_fraction=[1.0]))
        )
    other = plain(
        3,
        parameter_names=NAMES[:2],
        layer_of=torch.arange(2).numpy(),
        modules=module_sample(("ReLU", "ReLU"), units=[64.0] * 2, activation_zero_fraction=[0.5] * 2),
    )
    assert bank.observe(other) == []


def test_bank_of_an_empty_sample_finds_nothing() -> None:
    empty: Sample = plain(
        0, parameter_names=(), layer_names=(), layer_of=torch.zeros(0).numpy().astype("intp")
    )
    assert SampledDetectorBank(SampledThresholds()).observe(empty) == []


@pytest.mark.parametrize("option", [field.name for field in fields(SampledThresholds)])
def test_option_out_of_range_is_named_with_what_is_allowed(option: str) -> None:
    low, high = _ALLOWED[option]
    for value in (low, high):
        SampledThresholds(**{option: value})
    for value in (low - 1.0, high * 2.0, float("nan")):
        with pytest.raises(ValueError, match=rf"{option}=.* is not allowed: use "):
            SampledThresholds(**{option: value})


def test_options_are_all_in_the_page_of_the_detectors() -> None:
    page = (Path(__file__).parents[3] / "docs" / "detectors.md").read_text(encoding="utf-8")
    assert [field.name for field in fields(SampledThresholds) if f"`{field.name}`" not in page] == []
    defaults = {field.name: field.default for field in fields(SampledThresholds)}
    stated = dict(re.findall(r"`(\w+)` \(([^)]*)\)", page))
    assert {name: stated[name] for name in defaults} == {name: str(value) for name, value in defaults.items()}
