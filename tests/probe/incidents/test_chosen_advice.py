"""Advice of real faults: chosen by what the replay saw, and by what the training had changed before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from journals import read_journal
from torch import Tensor, nn

import probe
from probe.incidents.moved_before import _norms
from probe.wire import Event

pytestmark = pytest.mark.usefixtures("one_thread")


class Gain(nn.Module):
    """As dropout and BatchNorm do, more so: other outputs in the other mode."""

    def forward(self, x: Tensor) -> Tensor:
        return x if self.training else 40.0 * x


def event_of(kind: str, spool: Path, disturb: Callable[[int, nn.Module], None], steps: int) -> Event:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), Gain(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    run = probe.watch(model, optimizer, spool=spool, connect="", quiet=True, bundles=0)
    for step in range(steps):
        disturb(step, model)
        loss = nn.functional.cross_entropy(model(torch.randn(16, 4)), torch.randint(0, 3, (16,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    run.close()
    (journal,) = spool.iterdir()
    return next(event for event in read_journal(journal).events if event.kind == kind)


def test_eval_that_is_left_on_is_what_changed_and_what_is_advised(tmp_path: Path) -> None:
    def forget_train(step: int, model: nn.Module) -> None:
        if step == 50:
            model.eval()

    event = event_of("loss_spike", tmp_path, forget_train, 56)
    assert "mode train -> eval at step 50" in event.message
    assert "call `model.train()`" in event.advice[0]
    assert not any("clip" in sentence.lower() or "batch" in sentence for sentence in event.advice)


def test_product_that_overflows_in_float32_is_not_told_of_half_precision(tmp_path: Path) -> None:
    def write_weights(step: int, model: nn.Module) -> None:
        if step == 5:
            for parameter in model.parameters():
                parameter.data.fill_(1e30)

    event = event_of("nonfinite_loss", tmp_path, write_weights, 6)
    assert event.origin is not None and "addmm" in str(event.origin.op)
    assert event.advice[0].startswith("A product of finite numbers overflowed: look")
    assert not any("65,504" in sentence for sentence in event.advice)


def test_product_that_only_read_nan_is_not_told_of_an_overflow(tmp_path: Path) -> None:
    def spoil(step: int, model: nn.Module) -> None:
        if step == 5:
            next(model.parameters()).data[0, 0] = torch.nan

    event = event_of("nonfinite_loss", tmp_path, spoil, 6)
    assert not any("overflowed" in sentence for sentence in event.advice), event.message


@pytest.mark.parametrize("layer", [0, 2])
def test_layer_whose_weights_were_overwritten_is_named_as_what_changed_before(
    tmp_path: Path, layer: int
) -> None:
    def write_weights(step: int, model: nn.Module) -> None:
        if step == 45:
            torch.nn.init.constant_(model.get_parameter(f"{layer}.weight"), 3e38)

    event = event_of("nonfinite_loss", tmp_path, write_weights, 46)
    assert f"weights of `{layer}.weight` (norm" in event.message
    assert "now" in event.message and "at step 45" in event.message
    assert event.advice[0].startswith("The weights named have another size")
    assert not any("batch" in sentence or "targets" in sentence for sentence in event.advice)


def test_weights_that_grow_by_their_own_updates_are_not_said_to_be_written(tmp_path: Path) -> None:
    """The gradient moves first, and what it makes of the weights follows."""

    def raise_loss(step: int, model: nn.Module) -> None:
        if step == 45:
            model.get_parameter("2.weight").register_hook(lambda gradient: gradient * 1e25)

    event = event_of("nonfinite_loss", tmp_path, raise_loss, 48)
    assert "gradients at step 45" in event.message
    assert "weights of" not in event.message, event.message


def test_jump_of_data_sorted_by_class_is_not_told_to_be_one_batch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    labels = torch.arange(4).repeat_interleave(70 * 16)
    features = 2.0 * torch.randn(4, 10)[labels] + torch.randn(len(labels), 10)
    model = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    run = probe.watch(model, optimizer, spool=tmp_path, connect="", quiet=True)
    for x, y in zip(features.split(16), labels.split(16), strict=True):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    run.close()
    (journal,) = tmp_path.iterdir()
    events = [one for one in read_journal(journal).events if one.kind in ("loss_spike", "gradient_explosion")]
    assert events
    for event in events:
        assert event.advice[0].startswith("Each of the first batches has examples of one class alone")
        assert not any("clip" in one.lower() or "one batch" in one for one in event.advice)


class Odd(nn.Module):
    """Parameters that have no norm, or one that is not to be asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.count = nn.Parameter(torch.ones(3, dtype=torch.int64), requires_grad=False)
        self.nothing, self.phase = (
            nn.Parameter(torch.empty(0)),
            nn.Parameter(torch.ones(2, dtype=torch.complex64)),
        )
        self.halved = nn.Parameter(torch.full((4,), 3e4, dtype=torch.float16))
        self.large = nn.Parameter(torch.full((4,), 3e38))
        self.shard = Sharded(torch.ones(2))


class Sharded(nn.Parameter):
    """As a DTensor is: its norm would wait for other ranks."""

    @classmethod
    def __torch_function__(
        cls, func: object, types: object, args: object = (), kwargs: object = None
    ) -> object:
        assert getattr(func, "__name__", "") != "linalg_vector_norm", "a collective"
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[misc]


def test_weights_are_read_by_plain_parameters_alone() -> None:
    assert _norms(dict(Odd().named_parameters())) == {
        "nothing": 0.0,
        "halved": pytest.approx(6e4),
        "large": pytest.approx(3e38),
    }
