"""`optimize_model` and `optimize_training_loop`: each mode against the same done by hand in plain torch."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from journals import read_journal
from optimised_models import batch, everything, gradients_of, is_same, net, plain_gradients
from torch import Tensor, nn
from torch.nn import functional as F

import probe
from probe.actions.optimisation import applied
from probe.actions.optimisation.checkpointing import choose_blocks
from probe.actions.optimisation.modes import MODES, amp_dtype
from probe.actions.optimisation.optimised_model import OptimizedModel
from probe.actions.optimisation.optimised_step import OptimizedStep
from probe.compat import torch_compiler


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


LAYERS = {"layers.0", "layers.1"}


def backward_of(model: nn.Module, seed: int = 7) -> None:
    inputs, targets = batch()
    torch.manual_seed(seed)
    F.cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call]


@pytest.mark.capability(76)
def test_amp_multiplies_in_bfloat16_and_gives_what_autocast_by_hand_gives() -> None:
    model, inputs = net(), batch()[0]
    own = probe.optimize_model(model, "amp")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        by_hand = model(inputs)
    model.layers[0].dtypes.clear()
    assert torch.equal(own(inputs), by_hand)
    assert model.layers[0].dtypes == [torch.bfloat16]
    model(inputs)
    assert model.layers[0].dtypes[-1] is torch.float32


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.capability(76)
def test_memory_efficient_computes_blocks_twice_with_the_gradients_of_once(norm: bool) -> None:
    model = net(dropout=0.5, norm=norm)
    expected = plain_gradients(model)
    plain = copy.deepcopy(model)
    backward_of(plain)
    own = probe.optimize_model(model, "memory_efficient")
    backward_of(own)
    assert own.checkpointed == ("layers.0", "layers.1", "layers.2")
    assert [len(layer.dtypes) for layer in model.layers] == [2, 2, 2]
    assert is_same(gradients_of(model), expected)
    # Running statistics are those of one forward, and nothing is left on the modules.
    assert is_same(dict(model.state_dict()), dict(plain.state_dict()))
    assert not [module for module in model.modules() if "forward" in module.__dict__]


def test_plain_sequence_is_checkpointed_in_segments() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(9)))
    calls: list[int] = []
    for at, module in enumerate(model):
        module.register_forward_hook(lambda *_, at=at: calls.append(at))
    plain_gradients_ = plain_gradients(model)
    calls.clear()
    backward_of(probe.optimize_model(model, "memory_efficient"))
    # A part is computed again as far as its backward needs what was dropped.
    assert calls[:9] == list(range(9)) and calls[9] == 6 and sorted(set(calls[9:])) != []
    assert is_same(gradients_of(model), plain_gradients_)


def test_module_that_stands_twice_in_a_sequence_is_called_twice() -> None:
    torch.manual_seed(0)
    twice, tanh = nn.Linear(8, 8), nn.Tanh()
    model = nn.Sequential(twice, tanh, nn.Linear(8, 8), twice, tanh, nn.Linear(8, 8))
    expected = plain_gradients(model)
    backward_of(probe.optimize_model(model, "memory_efficient"))
    assert is_same(gradients_of(model), expected)


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2))), {"0", "1"}),
        (nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 1, 4), 2, enable_nested_tensor=False), LAYERS),
        (nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2), nn.ReLU()), {""}),
        (nn.Linear(2, 2), set()),
    ],
    ids=["sequential of blocks", "list of layers", "plain sequence", "leaf"],
)  # fmt: skip
def test_blocks_are_chosen_by_structure(model: nn.Module, names: set[str]) -> None:
    assert set(choose_blocks(model)) == names


@pytest.mark.parametrize("rows", [12, 13, 1])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.capability(76)
def test_accumulation_gives_the_gradients_of_the_whole_batch(reduction: str, rows: int) -> None:
    model, (inputs, targets) = net(), batch(rows)
    by_hand = copy.deepcopy(model)
    whole = F.cross_entropy(by_hand(inputs), targets, reduction=reduction)
    whole.backward()  # type: ignore[no-untyped-call]
    criterion = nn.CrossEntropyLoss(reduction=reduction)
    step = OptimizedStep(OptimizedModel(model, "memory_efficient"), criterion, None, accumulation=3)
    loss = step.run(inputs, targets)
    assert len(step.outputs) == min(rows, 3)
    torch.testing.assert_close(loss, whole.detach())
    for name, gradient in gradients_of(by_hand).items():
        torch.testing.assert_close(gradients_of(model)[name], gradient)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("mode", ["compilation", "full"])
@pytest.mark.capability(76)
def test_compiled_modes_compute_what_the_plain_model_does(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[nn.Module] = []

    def stand_in(model: nn.Module) -> nn.Module:
        compiled.append(model)
        return torch.compile(model, backend="eager")  # type: ignore[return-value]

    monkeypatch.setattr("probe.actions.optimisation.optimised_model.compiled", stand_in)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2)), nn.Linear(8, 3))
    expected = plain_gradients(model)
    graphs = torch_compiler.graphs_compiled() or 0
    own = probe.optimize_model(model, mode)
    backward_of(own)
    assert compiled == [model] and torch_compiler.graphs_compiled() == graphs + 1
    tolerance = {"rtol": 0.1, "atol": 0.02} if mode == "full" else {}
    for name, gradient in gradients_of(model).items():
        torch.testing.assert_close(gradient, expected[name], **tolerance)
    assert own(batch()[0]).dtype is (torch.bfloat16 if mode == "full" else torch.float32)


def test_full_checkpoints_no_block_that_has_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probe.actions.optimisation.optimised_model.compiled", lambda model: model)
    assert probe.optimize_model(net(norm=True), "full").checkpointed == ()
    assert len(probe.optimize_model(net(), "full").checkpointed) == 3
    with pytest.raises(ValueError, match="Net has no block to checkpoint"):
        probe.optimize_model(net(norm=True), "full", checkpoint=["layers.0"])


def test_inference_in_memory_efficient_mode_computes_once() -> None:
    model, (inputs, _) = net(), batch()
    own = probe.optimize_model(model, "memory_efficient")
    with torch.no_grad():
        assert torch.equal(own(inputs), model(inputs))
    assert [len(layer.dtypes) for layer in model.layers] == [2, 2, 2]


def test_optimised_model_is_a_new_one_with_the_same_parameters() -> None:
    model = net()
    own = probe.optimize_model(model, "memory_efficient")
    assert own is not model and list(map(id, own.parameters())) == list(map(id, model.parameters()))
    assert own.state_dict().keys() == model.state_dict().keys()
    assert own.layers is model.layers
    own.eval()
    assert not model.training


@pytest.mark.capability(64)
def test_decorator_optimises_the_model_that_a_function_makes_or_takes() -> None:
    @probe.optimize_model(mode="amp")
    def make(layers: int) -> nn.Module:
        """Make one."""
        return nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers)))

    @probe.optimize_model(mode="amp")
    def infer(model: nn.Module, data: Tensor, *, criterion: nn.Module) -> Tensor:
        assert type(criterion) is nn.MSELoss
        with torch.no_grad():
            return model(data)  # type: ignore[no-any-return]

    made = make(2)
    assert isinstance(made, OptimizedModel) and made.mode == "amp" and make.__doc__ == "Make one."
    found = infer(nn.Linear(4, 4), torch.ones(2, 4), criterion=nn.MSELoss())
    assert found.dtype is torch.bfloat16
    assert infer(made, torch.ones(2, 4), criterion=nn.MSELoss()).dtype is torch.bfloat16


def test_misspelled_mode_is_named_with_the_nearest_one() -> None:
    with pytest.raises(ValueError, match=r"mode='compile' is none of 'none', .*did you mean 'compilation'"):
        probe.optimize_model(net(), "compile")
    with pytest.raises(ValueError, match="mode=3 is none of"):
        probe.optimize_model(mode=3)


@pytest.mark.parametrize(
    ("model", "options", "problem"),
    [
        (nn.Linear(2, 2), {"mode": "memory_efficient"}, "Linear has no block to checkpoint"),
        (
            net(),
            {"mode": "memory_efficient", "checkpoint": ["layer"]},
            "checkpoint='layer' is not a module of Net",
        ),
        (net(), {"mode": "amp", "dtype": torch.float64}, "float64 is not an autocast dtype"),
        (3, {"mode": "amp"}, "must be a torch.nn.Module, got int"),
        (OptimizedModel(net(), "none"), {"mode": "amp"}, "optimised already, in mode none"),
    ],
)
def test_misuse_says_what_is_wrong(model: Any, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        probe.optimize_model(model, **options)


@pytest.mark.capability(76)
def test_missing_cpp_compiler_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    for mode in ("compilation", "full"):
        with pytest.raises(RuntimeError, match=r"needs a C\+\+ compiler, and there is none on the PATH"):
            probe.optimize_model(net(), mode)
    assert torch_compiler.cpp_compiler() is None


def test_float16_asks_for_a_scaler_and_bfloat16_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert probe.optimize_model(net(), "amp", dtype=torch.float16).needs_scaler
    assert not probe.optimize_model(net(), "amp").needs_scaler
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: False)
    assert amp_dtype(torch.device("cuda"), None) is torch.float16


@pytest.mark.capability(76)
def test_float16_step_unscales_before_the_update() -> None:
    model, (inputs, targets) = net(), batch()
    by_hand = copy.deepcopy(model)
    criterion = nn.CrossEntropyLoss()
    for one in (model, by_hand):
        one.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    own = OptimizedStep(
        OptimizedModel(model, "amp", dtype=torch.float16), criterion, optimizer, accumulation=1
    )
    own.run(inputs, targets)
    assert own.scaler is not None and own.scaler.get_scale() > 1
    other = torch.optim.SGD(by_hand.parameters(), lr=0.1)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = criterion(by_hand(inputs), targets)
    (loss * own.scaler.get_scale()).backward()
    for parameter in by_hand.parameters():
        assert parameter.grad is not None
        parameter.grad /= own.scaler.get_scale()
    other.step()
    for mine, plain in zip(model.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(mine, plain)


@pytest.mark.parametrize("mode", ["none", "memory_efficient"])
@pytest.mark.capability(76)
def test_training_loop_trains_as_one_by_hand(mode: str) -> None:
    model, loader = net(), [batch(12), batch(8)]
    by_hand = copy.deepcopy(model)
    optimizer = torch.optim.SGD(by_hand.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(by_hand(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.item())
    found = probe.optimize_training_loop(
        model,
        loader,
        torch.optim.SGD(model.parameters(), lr=0.1),
        nn.CrossEntropyLoss(),
        epochs=2,
        mode=mode,
        compare=False,
    )
    for mine, plain in zip(model.parameters(), by_hand.parameters(), strict=True):
        if mode == "none":
            assert torch.equal(mine, plain)
        torch.testing.assert_close(mine, plain)
    assert found["steps"] == 4 and found["total_time"] == found.total_time > 0
    assert found.epoch_losses == pytest.approx([sum(losses[:2]) / 2, sum(losses[2:]) / 2])


@pytest.mark.capability(76)
def test_training_loop_measures_its_speed_up_on_copies_first() -> None:
    model, loader = net(), [batch(12)]
    other = copy.deepcopy(model)
    results = [
        probe.optimize_training_loop(
            one, loader, torch.optim.SGD(one.parameters(), lr=0.1), nn.CrossEntropyLoss(), compare=compare
        )
        for one, compare in ((model, True), (other, False))
    ]
    metrics = results[0]["optimization_metrics"]
    assert metrics["speedup_factor"] > 0 and metrics["amp_enabled"]
    assert results[1]["optimization_metrics"]["speedup_factor"] is None
    assert is_same(dict(model.state_dict()), dict(other.state_dict()))
    assert "1 steps in mode amp" in str(results[0])


def test_training_loop_of_a_dictionary_takes_the_models_own_loss() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net()

        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            return {"loss": F.cross_entropy(self.inner(x), labels)}

    inputs, labels = batch()
    model = Own()
    loader = [{"x": inputs, "labels": labels}]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = probe.optimize_training_loop(model, loader, optimizer, mode="none")
    assert found.epoch_losses == pytest.approx([F.cross_entropy(net()(inputs), labels).item()])
    with pytest.raises(ValueError, match="without a criterion the model's output needs a `loss`"):
        probe.optimize_training_loop(net(), [batch()], optimizer, mode="none")


@pytest.mark.parametrize("options", [{"epochs": 0}, {"accumulation": 0}, {"epochs": 1.5}])
def test_training_loop_refuses_numbers_below_one(options: dict[str, Any]) -> None:
    model = net()
    with pytest.raises(ValueError, match="must be a whole number, at least 1"):
        probe.optimize_training_loop(model, [], torch.optim.SGD(model.parameters()), **options)


def test_training_loop_without_a_batch_has_no_loss() -> None:
    model = net()
    found = probe.optimize_training_loop(model, [], torch.optim.SGD(model.parameters()))
    assert found.steps == 0 and math.isnan(found.epoch_losses[0])


def test_applied_modes_are_counted_and_listed() -> None:
    before = applied.applied_count()
    probe.optimize_model(net(), "amp")
    assert applied.applied_count() == before + 1
    assert probe.get_debug_summary()["total_optimizations"] == before + 1
    newest = applied.metrics()[-1]
    assert (newest.mode.value, newest.amp_enabled, newest.speedup_factor) == ("amp", True, None)


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in ("compilation", "full")])
def test_optimised_model_leaves_the_model_as_it_was(mode: str) -> None:
    model = net(dropout=0.5)
    optimizer = torch.optim.AdamW(model.parameters())
    backward_of(model)
    optimizer.step()
    before = everything(model, optimizer)
    probe.optimize_model(model, mode)
    assert is_same(everything(model, optimizer), before)


@pytest.mark.parametrize("mode", ["none", "amp", "memory_efficient"])
@pytest.mark.parametrize("how", ["model", "wrapper"])
@pytest.mark.capability(76)
def test_training_loop_in_a_mode_is_recorded_as_any_other(mode: str, how: str) -> None:
    model = net(dropout=0.2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watched = OptimizedModel(model, "none") if how == "wrapper" else model
    with probe.watch(watched, optimizer) as run:
        found = probe.optimize_training_loop(
            model, [batch(12)] * 4, optimizer, nn.CrossEntropyLoss(), mode=mode, compare=mode == "amp"
        )
    assert run.steps_made == 4
    frames = read_journal(Path(os.environ["NANSCOPE_SPOOL"]) / run.run).frames
    losses = [frame.scalars["loss"] for frame in frames]
    assert len(losses) == 4 and sum(losses) / 4 == pytest.approx(found.epoch_losses[0], rel=1e-4)
    layout = read_journal(Path(os.environ["NANSCOPE_SPOOL"]) / run.run).layouts[0]
    assert layout.layers[0].name == "layers.0.linear" and layout.model == "Net"
