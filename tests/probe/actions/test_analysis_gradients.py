"""Gradient checks and the gradient's flow, on models with planted faults and against numpy in float64."""

import json
import math

import numpy as np
import pytest
import torch
from planted_models import Mixed, backward, chain, with_dead_layer, with_exploding_layer
from torch import nn

from probe import analyze_gradient_flow, check_gradient_explosion, check_gradient_vanishing, check_gradients


def norms(model: nn.Module) -> dict[str, float]:
    """L2 norm of each gradient, in numpy float64."""
    return {
        name: float(np.sqrt(np.sum(np.square(np.array(p.grad.tolist(), dtype=np.float64)))))
        for name, p in model.named_parameters()
        if p.grad is not None
    }


@pytest.fixture
def trained() -> nn.Sequential:
    torch.manual_seed(0)
    model = chain(6, 8, 5, 2)
    backward(model, torch.randn(16, 6))
    return model


@pytest.mark.capability(21, 22)
def test_check_gradients_matches_numpy(trained: nn.Sequential) -> None:
    report, expected = check_gradients(trained), norms(trained)
    assert [p.name for p in report.parameters] == list(expected)
    for parameter in report.parameters:
        gradient = np.array(trained.get_parameter(parameter.name).grad.tolist())
        assert parameter.norm == pytest.approx(expected[parameter.name], rel=1e-6)
        assert parameter.rms == pytest.approx(np.sqrt(np.mean(gradient**2)), rel=1e-6)
        assert parameter.std == pytest.approx(gradient.std(), rel=1e-5)
        assert parameter.max_abs == pytest.approx(np.abs(gradient).max(), rel=1e-6)
    assert report.total_norm == pytest.approx(math.hypot(*expected.values()), rel=1e-6)
    assert report.ok and not report.missing
    json.dumps(report.to_dict(), allow_nan=False)


def test_check_gradients_undoes_a_loss_scale(trained: nn.Sequential) -> None:
    before = check_gradients(trained)
    for parameter in trained.parameters():
        parameter.grad.mul_(1024)
    assert check_gradients(trained, loss_scale=1024).to_dict() == before.to_dict()


def test_check_gradients_over_its_limit_is_not_ok(trained: nn.Sequential) -> None:
    total = check_gradients(trained).total_norm
    assert not check_gradients(trained, total * 0.99).ok
    assert check_gradients(trained, total * 1.01).ok


def test_check_gradients_names_what_is_not_finite(trained: nn.Sequential) -> None:
    trained[2].weight.grad[0, 0] = math.nan
    trained[4].bias.grad[0] = math.inf
    report = check_gradients(trained)
    assert report.nonfinite == ("2.weight", "4.bias")
    assert not report.ok and "NaN or Inf in 2.weight, 4.bias" in str(report)


def test_check_gradients_lists_what_backward_did_not_reach() -> None:
    model = Mixed()
    backward(model, torch.tensor([[1, 2, 3]]))
    assert check_gradients(model).missing == ("empty", "unused.weight", "unused.bias")


@pytest.mark.capability(22)
def test_check_explosion_returns_offenders_worst_first(trained: nn.Sequential) -> None:
    trained[0].weight.grad.mul_(1e6)
    trained[2].weight.grad.mul_(1e4)
    trained[4].weight.grad[0] = math.nan
    found = check_gradient_explosion(trained, threshold=10.0)
    assert found.names == ("4.weight", "0.weight", "2.weight")
    assert found[1].norm == pytest.approx(norms(trained)["0.weight"], rel=1e-6)
    assert found and len(found) == 3 and not found.ok


def test_check_explosion_of_healthy_gradients_is_false(trained: nn.Sequential) -> None:
    found = check_gradient_explosion(trained)
    assert not found and found.ok and found.threshold == 10.0 and list(found) == []


@pytest.mark.capability(22)
def test_check_vanishing_returns_exact_zeros_and_small_ones() -> None:
    torch.manual_seed(0)
    model = with_dead_layer()
    backward(model, torch.randn(8, 6))
    model[6].bias.grad.mul_(1e-12)
    found = check_gradient_vanishing(model)
    expected = {name for name, norm in norms(model).items() if norm < 1e-6}
    assert set(found.names) == expected
    assert found[0].norm == 0.0


@pytest.mark.parametrize("call", [check_gradients, check_gradient_explosion, analyze_gradient_flow])
def test_checks_without_any_gradient_say_when_to_call(call: object) -> None:
    with pytest.raises(ValueError, match=r"after loss.backward\(\) and before optimizer.zero_grad\(\)"):
        call(chain(2, 2, 2))  # type: ignore[operator]


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_checks_refuse_a_limit_that_is_no_positive_number(trained: nn.Sequential, bad: float) -> None:
    with pytest.raises(ValueError, match="threshold"):
        check_gradient_explosion(trained, bad)


def test_checks_refuse_what_is_no_module_and_a_lazy_one() -> None:
    with pytest.raises(ValueError, match="got str"):
        check_gradients("model")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="run one forward first"):
        check_gradients(nn.LazyLinear(3))


def test_checks_look_through_compile(trained: nn.Sequential) -> None:
    compiled = torch.compile(trained, backend="eager")
    assert check_gradients(compiled).to_dict() == check_gradients(trained).to_dict()


@pytest.mark.capability(23)
def test_flow_ratios_are_of_successive_layers(trained: nn.Sequential) -> None:
    flow = analyze_gradient_flow(trained)
    by_parameter = norms(trained)
    layers = {f"{i}": math.hypot(by_parameter[f"{i}.weight"], by_parameter[f"{i}.bias"]) for i in (0, 2, 4)}
    assert [layer.layer for layer in flow.layers] == ["0", "2", "4"]
    for layer in flow.layers:
        assert layer.norm == pytest.approx(layers[layer.layer], rel=1e-6)
    assert flow.layers[0].ratio == pytest.approx(layers["0"] / layers["2"], rel=1e-6)
    assert flow.layers[2].ratio is None
    assert flow.ok and flow.dies_at is None and flow.blows_up_at is None


@pytest.mark.capability(23)
def test_flow_of_a_dead_layer_names_where_it_dies() -> None:
    torch.manual_seed(0)
    model = with_dead_layer()
    backward(model, torch.randn(8, 6))
    flow = analyze_gradient_flow(model)
    assert flow.dies_at == "4"
    assert flow.in_state("dead") == ("0", "2", "4")
    assert "dies at 4" in str(flow)


def test_flow_through_sigmoids_names_the_layer_where_too_little_is_left() -> None:
    torch.manual_seed(0)
    model = chain(*[32] * 12, 2, activation=nn.Sigmoid)
    backward(model, torch.randn(16, 32))
    flow, by_parameter = analyze_gradient_flow(model), norms(model)
    layers = [math.hypot(by_parameter[f"{i}.weight"], by_parameter[f"{i}.bias"]) for i in range(0, 24, 2)]
    expected = next(i for i in reversed(range(12)) if layers[i] * 1e4 < max(layers[i + 1 :], default=0.0))
    assert flow.dies_at == str(2 * expected)


@pytest.mark.capability(23)
def test_flow_of_an_exploding_layer_names_where_it_blows_up() -> None:
    torch.manual_seed(0)
    model = with_exploding_layer()
    backward(model, torch.randn(8, 6))
    flow = analyze_gradient_flow(model)
    assert flow.blows_up_at == "2"
    assert not flow.ok


def test_flow_of_a_branch_that_is_dead_does_not_die_where_the_rest_lives(trained: nn.Sequential) -> None:
    trained[2].weight.grad.zero_()
    trained[2].bias.grad.zero_()
    flow = analyze_gradient_flow(trained)
    assert flow.dies_at is None
    assert flow.in_state("dead") == ("2",)
    assert flow.layers[0].ratio == math.inf


def test_flow_marks_nonfinite_and_missing_layers(trained: nn.Sequential) -> None:
    trained[4].weight.grad[0, 0] = math.nan
    trained[0].weight.grad = trained[0].bias.grad = None
    flow = analyze_gradient_flow(trained)
    assert flow.in_state("nonfinite") == ("4",) and flow.in_state("missing") == ("0",)
    assert json.loads(json.dumps(flow.to_dict(), allow_nan=False))["layers"][2]["norm"] == "NaN"


def test_flow_of_a_healthy_residual_network_is_ok() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True, norm_first=True)
    model = nn.Sequential(nn.Embedding(100, 32), nn.TransformerEncoder(layer, 4, enable_nested_tensor=False))
    backward(model, torch.randint(100, (4, 10)))
    assert analyze_gradient_flow(model).ok
