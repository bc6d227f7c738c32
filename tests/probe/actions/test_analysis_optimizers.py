"""`analyze_optimizer` against Adam written out in numpy float64."""

import json
import math

import numpy as np
import pytest
import torch
from planted_models import backward, chain
from torch import nn

from probe import analyze_optimizer

INPUTS = torch.randn(16, 6, generator=torch.Generator().manual_seed(1))


def stepped(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        backward(model, INPUTS)
        optimizer.step()


@pytest.mark.capability(35)
def test_optimizer_moments_and_ratios_match_adam_in_numpy() -> None:
    torch.manual_seed(0)
    model = chain(6, 5, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    before: dict[str, np.ndarray] = {}
    for _ in range(3):
        before = {name: np.array(p.tolist()) for name, p in model.named_parameters()}
        stepped(model, optimizer, 1)
    report = analyze_optimizer(optimizer, model)
    for found in report.parameters:
        parameter = model.get_parameter(found.name)
        state, now = optimizer.state[parameter], np.array(parameter.tolist())
        first, second = np.array(state["exp_avg"].tolist()), np.array(state["exp_avg_sq"].tolist())
        change = 0.01 * (first / (1 - 0.9**3)) / (np.sqrt(second / (1 - 0.999**3)) + 1e-8)
        np.testing.assert_allclose(before[found.name] - now, change, rtol=1e-3, atol=1e-7)
        assert found.first_moment_norm == pytest.approx(np.linalg.norm(first), rel=1e-5)
        assert found.second_moment_norm == pytest.approx(np.linalg.norm(second), rel=1e-5)
        assert found.effective_step == pytest.approx(np.sqrt(np.mean(change**2)), rel=1e-4)
        assert found.update_ratio == pytest.approx(np.linalg.norm(change) / np.linalg.norm(now), rel=1e-4)
    json.dumps(report.to_dict(), allow_nan=False)


def test_optimizer_groups_keep_their_settings_and_names() -> None:
    model = chain(6, 5, 2)
    optimizer = torch.optim.SGD(
        [
            {"params": model[0].parameters(), "lr": 0.1, "name": "body"},
            {"params": model[2].parameters(), "lr": torch.tensor(0.2), "weight_decay": 0.5},
        ],
        momentum=0.9,
    )
    report = analyze_optimizer(optimizer)
    assert [(g.name, g.learning_rate, g.weight_decay, g.parameters) for g in report.groups] == [
        ("body", 0.1, 0.0, 2),
        ("", pytest.approx(0.2), 0.5, 2),
    ]
    assert [p.name for p in report.parameters] == [f"param[{index}]" for index in range(4)]
    assert report.ok and all(p.first_moment_norm is None for p in report.parameters)


@pytest.mark.parametrize(
    ("rate", "problem"), [(0.0, "learns nothing"), (3.0, "above 1"), (math.nan, "is NaN")]
)
@pytest.mark.capability(35)
def test_optimizer_with_a_senseless_learning_rate_is_not_ok(rate: float, problem: str) -> None:
    optimizer = torch.optim.SGD(chain(2, 2, 2).parameters(), lr=0.1)
    optimizer.param_groups[0]["lr"] = rate
    report = analyze_optimizer(optimizer)
    assert problem in report.problems[0] and not report.ok


def test_optimizer_with_poisoned_moments_names_the_parameter() -> None:
    model = chain(6, 5, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    stepped(model, optimizer)
    optimizer.state[model[2].bias]["exp_avg"][0] = math.nan
    report = analyze_optimizer(optimizer, model)
    assert any(problem.startswith("moments with NaN or Inf: 2.bias") for problem in report.problems)


def test_optimizer_with_huge_updates_is_not_ok() -> None:
    model = chain(6, 5, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.9)
    stepped(model, optimizer, 1)
    assert any("of the weight" in problem for problem in analyze_optimizer(optimizer, model).problems)


def test_optimizer_analysis_makes_no_state() -> None:
    model = chain(6, 5, 2)
    optimizer = torch.optim.Adam(model.parameters())
    analyze_optimizer(optimizer, model)
    assert not optimizer.state


def test_optimizer_analysis_refuses_a_model_in_its_place() -> None:
    with pytest.raises(ValueError, match=r"torch\.optim\.Optimizer, got Sequential"):
        analyze_optimizer(chain(2, 2, 2))  # type: ignore[arg-type]
