"""`debug_forward_pass`, `debug_backward_pass`, `debug_training_step`: right numbers, the same training."""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from journals import read_journal
from planted_models import Mixed, chain, with_dead_layer
from torch import Tensor, nn

import probe
from probe import debug_backward_pass, debug_forward_pass, debug_training_step


class Log(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.log(x - 100)


class Fails(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise KeyError("lost")


def mlp() -> nn.Sequential:
    torch.manual_seed(1)
    inner = nn.Sequential(nn.Linear(16, 16), nn.Tanh())
    return nn.Sequential(
        nn.Linear(8, 16), nn.ReLU(inplace=True), nn.BatchNorm1d(16), nn.Dropout(0.3), inner, nn.Linear(16, 3)
    )


INPUTS = torch.randn(32, 8, generator=torch.Generator().manual_seed(2))
TARGETS = torch.randint(3, (32,), generator=torch.Generator().manual_seed(3))


@pytest.mark.capability(31)
def test_forward_statistics_match_numpy_at_the_time_of_the_call() -> None:
    model = chain(8, 6, 4, activation=nn.ReLU)
    report = debug_forward_pass(model, INPUTS)
    expected, x = {}, INPUTS
    for name, module in model.named_children():
        x = module(x)
        expected[name] = np.array(x.tolist())
    for layer in report.layers[1:]:
        values = expected[layer.layer]
        assert layer.rms == pytest.approx(np.sqrt(np.mean(values**2)), rel=1e-5)
        assert layer.mean == pytest.approx(values.mean(), rel=1e-4, abs=1e-7)
        assert layer.std == pytest.approx(values.std(), rel=1e-5)
        assert layer.max_abs == pytest.approx(np.abs(values).max(), rel=1e-6)
        assert layer.zero_fraction == pytest.approx(np.mean(values == 0))
        assert layer.output_shapes == (values.shape,)
    assert report.ok and report.first_nonfinite is None
    json.dumps(report.to_dict(), allow_nan=False)


def test_forward_measures_before_an_in_place_layer_changes_it() -> None:
    report = debug_forward_pass(mlp(), INPUTS)
    rows = {layer.layer: layer for layer in report.layers}
    assert rows["0"].zero_fraction == 0
    assert rows["1"].zero_fraction > 0.2


def test_forward_gives_the_output_with_its_graph() -> None:
    model = mlp()
    report = debug_forward_pass(model, INPUTS)
    report.output.sum().backward()
    assert model[0].weight.grad is not None
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_forward_names_the_innermost_layer_that_made_nan() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), Log()), nn.Linear(4, 2))
    report = debug_forward_pass(model, torch.ones(3, 4))
    assert report.first_nonfinite == "1.1"
    assert not report.ok and not report.parameters_are_bad
    assert "first in 1.1" in str(report)


def test_forward_with_nan_weights_blames_them() -> None:
    model = chain(8, 6, 4)
    with torch.no_grad():
        model[2].weight[0, 0] = math.nan
    report = debug_forward_pass(model, INPUTS)
    assert report.first_nonfinite == "2" and report.parameters_are_bad


def test_forward_with_nan_inputs_blames_no_layer() -> None:
    report = debug_forward_pass(chain(8, 6, 4), torch.full((2, 8), math.nan))
    assert report.first_nonfinite is None
    assert not report.ok and "own inputs are not finite" in str(report)


def test_forward_counts_calls_of_a_module_that_is_used_twice() -> None:
    shared = nn.Linear(8, 8)
    report = debug_forward_pass(nn.Sequential(shared, nn.Sequential(shared)), INPUTS)
    assert [(layer.layer, layer.call) for layer in report.layers if layer.type == "Linear"] == [
        ("0", 0),
        ("0", 1),
    ]


def test_forward_that_raises_passes_it_on_with_the_layer() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(Fails()))
    with pytest.raises(KeyError, match="lost") as caught:
        debug_forward_pass(model, INPUTS)
    assert caught.value.__notes__ == ["raised in 1.0 during debug_forward_pass"]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_forward_without_layer_hooks_measures_the_output_alone() -> None:
    report = debug_forward_pass(mlp(), INPUTS, layer_hooks=False)
    assert [layer.layer for layer in report.layers] == [""]


def test_forward_of_a_compiled_model_adds_no_graph() -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> object:
        graphs.append(graph)
        return graph.forward

    model = torch.compile(chain(8, 6, 4), backend=backend)
    model(INPUTS)
    assert len(debug_forward_pass(model, INPUTS).layers) == 4
    model(INPUTS)
    torch._dynamo.reset()
    assert len(graphs) == 1


@pytest.mark.capability(32)
def test_backward_reports_what_plain_backward_gives() -> None:
    model, twin = mlp(), mlp()
    loss = nn.functional.cross_entropy(model.eval()(INPUTS), TARGETS)
    report = debug_backward_pass(loss, model=model)
    nn.functional.cross_entropy(twin.eval()(INPUTS), TARGETS).backward()
    assert [leaf.name for leaf in report.leaves] == [name for name, _ in twin.named_parameters()]
    for leaf, parameter in zip(report.leaves, twin.parameters(), strict=True):
        assert torch.equal(model.get_parameter(leaf.name).grad, parameter.grad)
        assert leaf.norm == pytest.approx(np.linalg.norm(np.array(parameter.grad.tolist())), rel=1e-6)
    assert report.total_norm == pytest.approx(math.hypot(*(leaf.norm for leaf in report.leaves)), rel=1e-6)
    assert report.loss == pytest.approx(float(loss.detach())) and report.ok


def test_backward_lists_parameters_that_the_loss_does_not_reach() -> None:
    model = Mixed()
    report = debug_backward_pass(model(torch.tensor([[1, 2]])).sum(), model=model)
    assert report.unreached == ("empty", "unused.weight", "unused.bias")


def test_backward_with_retained_graph_can_run_again_and_accumulates() -> None:
    leaf = torch.ones(3, requires_grad=True)
    loss = (leaf * 2).sum()
    first = debug_backward_pass(loss, retain_graph=True)
    second = debug_backward_pass(loss)
    assert (first.leaves[0].accumulated, second.leaves[0].accumulated) == (False, True)
    assert second.total_norm == pytest.approx(2 * first.total_norm)


def test_backward_of_nan_is_not_ok() -> None:
    leaf = torch.zeros(2, requires_grad=True)
    report = debug_backward_pass((leaf / leaf).sum())
    assert report.nonfinite == ("leaf[0]",) and not report.ok


@pytest.mark.parametrize(
    ("loss", "problem"),
    [
        (torch.ones(3, requires_grad=True), "reduce it"),
        (torch.ones(()), "has no graph"),
        (1.5, "got float"),
    ],
)
def test_backward_refuses_what_has_no_gradient(loss: Tensor, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        debug_backward_pass(loss)


def plain_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(INPUTS), TARGETS)
        loss.backward()
        return loss

    if isinstance(optimizer, torch.optim.LBFGS):
        optimizer.step(closure)
        return
    closure()
    optimizer.step()


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.AdamW(p, lr=1e-2),
        lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=4),
    ],
    ids=["sgd", "adamw", "lbfgs"],
)
@pytest.mark.capability(33)
def test_step_leaves_the_same_bits_as_a_plain_step(make: Callable[..., torch.optim.Optimizer]) -> None:
    debugged, plain = mlp(), mlp()
    optimizers = make(debugged.parameters()), make(plain.parameters())
    torch.manual_seed(7)
    for _ in range(3):
        debug_training_step(debugged, INPUTS, TARGETS, nn.functional.cross_entropy, optimizers[0])
    torch.manual_seed(7)
    for _ in range(3):
        plain_step(plain, optimizers[1])
    for name, tensor in debugged.state_dict().items():
        assert torch.equal(tensor, plain.state_dict()[name]), name


@pytest.mark.capability(33)
def test_step_reports_updates_of_every_parameter() -> None:
    model, twin = mlp(), mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    report = debug_training_step(model, INPUTS, TARGETS, nn.functional.cross_entropy, optimizer)
    for update in report.updates:
        before = np.array(twin.get_parameter(update.name).tolist())
        after = np.array(model.get_parameter(update.name).tolist())
        assert update.norm == pytest.approx(np.linalg.norm(before), rel=1e-6)
        assert update.update_norm == pytest.approx(np.linalg.norm(after - before), rel=1e-4)
    assert report.ok and report.learning_rates == (0.5,) and report.stepped
    assert report.gradients.total_norm == pytest.approx(report.backward.total_norm)
    json.dumps(report.to_dict(), allow_nan=False)


def test_step_of_a_dead_layer_and_an_unused_one_says_so() -> None:
    model = with_dead_layer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    report = debug_training_step(
        model.eval(), torch.randn(4, 6), None, lambda out, _: out.square().mean(), optimizer
    )
    assert "the gradient dies at 4" in report.problems
    assert "the model is in evaluation mode" in report.problems
    assert set(report.unmoved) == {f"{i}.{kind}" for i in (0, 2, 4) for kind in ("weight", "bias")} | {
        "6.weight"
    }


@pytest.mark.parametrize("skip", [False, True])
def test_step_with_nan_updates_as_a_plain_step_does_unless_told_to_skip(skip: bool) -> None:
    model = chain(6, 4, 2)
    before = model[0].weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    report = debug_training_step(
        model,
        torch.ones(2, 6),
        None,
        lambda out, _: (out * math.nan).sum(),
        optimizer,
        skip_nonfinite=skip,
    )
    assert report.stepped is not skip and not report.ok
    assert torch.equal(model[0].weight, before) is skip


def test_step_can_add_to_gradients_that_are_there() -> None:
    model = chain(6, 4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    reports = [
        debug_training_step(
            model, torch.ones(2, 6), None, lambda out, _: out.sum(), optimizer, zero_grad=False
        )
        for _ in range(2)
    ]
    assert reports[1].gradients.total_norm == pytest.approx(2 * reports[0].gradients.total_norm)


def test_step_is_one_step_of_a_watching_session() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer) as run:
        for _ in range(3):
            debug_training_step(model, INPUTS, TARGETS, nn.functional.cross_entropy, optimizer)
        folder = Path(os.environ["NANSCOPE_SPOOL"]) / run.run
    frames = read_journal(folder).frames
    assert [frame.step for frame in frames] == [0, 1, 2]
    assert all(frame.scalars["samples"] == 32 for frame in frames)


def test_step_refuses_what_is_no_optimizer() -> None:
    with pytest.raises(ValueError, match=r"torch.optim.Optimizer, got str"):
        debug_training_step(mlp(), INPUTS, TARGETS, nn.functional.cross_entropy, "sgd")  # type: ignore[arg-type]
