"""`monitor_training_step`: the detectors of a watched run, on request, with counts."""

import gc
import json
import logging
import math
import weakref

import pytest
import torch
from planted_models import chain
from torch import nn

from probe import clear_debug_history, get_training_summary, monitor_training_step


def prepared(scale: float = 1.0) -> nn.Sequential:
    """A model whose gradients have a known size."""
    torch.manual_seed(0)
    model = chain(4, 4, 2)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, scale)
    return model


def rescale(model: nn.Module, scale: float) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, scale)


def test_monitor_of_a_healthy_step_is_ok() -> None:
    model = prepared(0.5)
    result = monitor_training_step(model, torch.tensor(1.5), 3)
    elements = sum(p.numel() for p in model.parameters())
    assert result.ok and result.findings == ()
    assert (result.step, result.loss) == (3, 1.5)
    assert result.total_norm == pytest.approx(0.5 * math.sqrt(elements))
    json.dumps(result.to_dict(), allow_nan=False)


@pytest.mark.capability(25, 33)
def test_monitor_finds_an_explosion_against_the_models_own_history(caplog: pytest.LogCaptureFixture) -> None:
    model = prepared()
    for step in range(40):
        rescale(model, 1.0 + 0.01 * (step % 5))
        assert monitor_training_step(model, 1.0, step).ok
    rescale(model, 1e4)
    result = monitor_training_step(model, 1.0, 40)
    assert [finding.kind for finding in result.findings] == ["gradient_explosion"]
    summary = get_training_summary(model)
    assert (summary.total_steps, summary.anomaly_steps, summary.gradient_explosions) == (41, 1, 1)
    assert summary.anomaly_rate == pytest.approx(1 / 41)
    assert "gradient_explosion" in caplog.text


def test_monitor_logs_nonfinite_values_as_errors_to_the_given_logger(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = prepared()
    model[0].weight.grad[0, 0] = math.nan
    result = monitor_training_step(model, math.nan, 0, logger=logging.getLogger("mine"))
    assert {finding.kind for finding in result.findings} == {"nonfinite_loss", "nonfinite_gradient"}
    assert {(record.name, record.levelno) for record in caplog.records} == {("mine", logging.ERROR)}
    summary = get_training_summary(model)
    assert (summary.nonfinite_steps, summary.loss_anomalies, summary.total_anomalies) == (1, 1, 2)
    assert summary.to_dict()["last_loss"] == "NaN"


@pytest.mark.parametrize(
    ("limits", "kind", "worst"),
    [
        ({"explosion_threshold": 3.0}, "gradient_explosion", "0.weight"),
        ({"vanishing_threshold": 1.5}, "gradient_vanishing", "2.bias"),
    ],
)
@pytest.mark.capability(25)
def test_monitor_judges_by_the_callers_own_limits(limits: dict[str, float], kind: str, worst: str) -> None:
    result = monitor_training_step(prepared(), 1.0, 0, **limits)
    (finding,) = result.findings
    assert (finding.kind, finding.subject) == (kind, worst)
    assert not result.ok


def test_monitor_without_gradients_says_so_and_goes_on() -> None:
    result = monitor_training_step(chain(2, 2, 2), 1.0, 0)
    assert result.note == "no parameter has a gradient" and result.total_norm is None


def test_monitor_keeps_the_best_loss_and_largest_norm() -> None:
    model = prepared()
    for step, loss in enumerate((3.0, 1.0, math.inf, 2.0)):
        monitor_training_step(model, loss, step)
    summary = get_training_summary(model)
    assert (summary.best_loss, summary.last_loss, summary.last_step) == (1.0, 2.0, 3)


def test_monitor_history_can_be_cleared() -> None:
    model = prepared()
    monitor_training_step(model, 1.0, 0)
    clear_debug_history(model)
    assert get_training_summary(model).total_steps == 0


def test_monitor_keeps_no_model_alive() -> None:
    model = prepared()
    monitor_training_step(model, 1.0, 0)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("loss", [torch.ones(3), "low", [1.0]])
def test_monitor_refuses_a_loss_that_is_not_one_number(loss: object) -> None:
    with pytest.raises(ValueError, match="loss must be one"):
        monitor_training_step(prepared(), loss, 0)  # type: ignore[arg-type]
