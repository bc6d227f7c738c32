"""Autocast and GradScaler with its real logic on the CPU: scales, overflows, unscaling, fused optimizers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from reference import Scene, layer, recorded
from small_training import batches, small_model
from torch import Tensor, nn
from torch.nn import functional as F

MAKERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, foreach=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, fused=True),
    "SGD fused": lambda p: torch.optim.SGD(p, lr=0.1, fused=True),
}


def is_fused(optimizer: str) -> bool:
    return optimizer.endswith("fused")


@pytest.mark.parametrize("cache", [True, False])
def test_autocast_to_bfloat16_changes_no_number(tmp_path: Path, cache: bool) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = small_model()
        optimizer = torch.optim.AdamW(model.parameters())
        with scene.watch(model, optimizer):
            for inputs, targets in batches(4):
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.bfloat16, cache_enabled=cache):
                    loss = F.cross_entropy(model(inputs), targets)
                scene.backward(loss, samples=8)
                scene.note(model)
                optimizer.step()
        return model

    assert recorded(loop, tmp_path).differences(frames=4) == []


@pytest.mark.parametrize("optimizer_name", list(MAKERS))
@pytest.mark.parametrize("autocast", [False, True])
def test_scaled_step_says_which_gradient_it_has(tmp_path: Path, optimizer_name: str, autocast: bool) -> None:
    """A fused optimizer unscales inside its own kernel: its gradients are still the scaled ones."""

    def loop(scene: Scene) -> nn.Module:
        model = small_model()
        optimizer = MAKERS[optimizer_name](model.parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
        with scene.watch(model, optimizer):
            for inputs, targets in batches(5):
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    loss = F.cross_entropy(model(inputs), targets)
                scene.backward(loss, raw=scaler.scale(loss), samples=8)
                if is_fused(optimizer_name):
                    scene.note(model, stage="scaled")
                else:
                    note_unscaled(scene, model, scaler)
                scaler.step(optimizer)
                scaler.update()
        return model

    assert recorded(loop, tmp_path).differences(frames=5) == []


def note_unscaled(scene: Scene, model: nn.Module, scaler: Any) -> None:
    """What the optimizer is about to be given: the scaler will divide by its scale in `step`."""
    scene.note(model, stage="unscaled")
    inverse = 1.0 / scaler.get_scale()
    gradients = scene.steps[-1].gradients
    for name, gradient in gradients.items():
        gradients[name] = None if gradient is None else gradient * inverse


@pytest.mark.parametrize("optimizer_name", list(MAKERS))
def test_unscaled_and_clipped_step_has_the_unscaled_gradients_before_clipping(
    tmp_path: Path, optimizer_name: str
) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = small_model()
        optimizer = MAKERS[optimizer_name](model.parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        with scene.watch(model, optimizer):
            for inputs, targets in batches(4):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(inputs), targets)
                scene.backward(loss, raw=scaler.scale(loss), samples=8)
                scaler.unscale_(optimizer)
                scene.note(model, stage="unscaled")
                nn.utils.clip_grad_norm_(model.parameters(), 0.05)
                scaler.step(optimizer)
                scaler.update()
        return model

    assert recorded(loop, tmp_path).differences(frames=4) == []


@pytest.mark.parametrize("divisor", [1, 2])
def test_scaled_accumulation_undoes_scale_and_divisor(tmp_path: Path, divisor: int) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
        with scene.watch(model, optimizer):
            for index, (inputs, targets) in enumerate(batches(6)):
                loss = F.cross_entropy(model(inputs), targets)
                raw = scaler.scale(loss / divisor if divisor > 1 else loss)
                scene.backward(loss, raw=raw, samples=8)
                if index % 2:
                    scaler.unscale_(optimizer)
                    scene.note(model, stage="unscaled")
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()
        return model

    assert recorded(loop, tmp_path).differences(frames=3) == []


@pytest.mark.parametrize("optimizer_name", list(MAKERS))
@pytest.mark.parametrize("unscale", [False, True])
def test_overflow_is_a_counted_step_without_an_update(
    tmp_path: Path, optimizer_name: str, unscale: bool
) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = small_model()
        optimizer = MAKERS[optimizer_name](model.parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        with scene.watch(model, optimizer):
            for index, (inputs, targets) in enumerate(batches(5)):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(inputs), targets)
                scene.backward(loss, raw=scaler.scale(loss), samples=8)
                if index in (1, 2):
                    layer(model, 4).weight.grad[0, 0] = torch.inf
                    layer(model, 0).bias.grad[3] = torch.nan
                before = [p.detach().clone() for p in model.parameters()]
                if unscale:
                    scaler.unscale_(optimizer)
                    scene.note(model, stage="unscaled")
                elif is_fused(optimizer_name):
                    scene.note(model, stage="scaled")
                else:
                    note_unscaled(scene, model, scaler)
                scaler.step(optimizer)
                scaler.update()
                same = all(map(torch.equal, before, model.parameters()))
                assert same == (index in (1, 2))
        return model

    recording = recorded(loop, tmp_path)
    assert recording.differences(frames=5) == []
    (event,) = recording.journal.latest_events
    assert (event.kind, event.severity, event.step, event.count) == ("amp_overflow", "info", 1, 2)


def test_disabled_scaler_is_as_if_there_were_none(tmp_path: Path) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        with scene.watch(model, optimizer):
            for inputs, targets in batches(3):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(inputs), targets)
                scene.backward(loss, raw=scaler.scale(loss), samples=8)
                scaler.unscale_(optimizer)
                scene.note(model)
                scaler.step(optimizer)
                scaler.update()
        return model

    assert recorded(loop, tmp_path).differences(frames=3) == []


def test_scaler_of_two_losses_gives_their_unscaled_sum(tmp_path: Path) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        with scene.watch(model, optimizer):
            for inputs, targets in batches(3):
                optimizer.zero_grad()
                output = model(inputs)
                losses = [F.cross_entropy(output, targets), output.square().mean()]
                scaled = scaler.scale(losses)
                scene.losses(*losses, raw=scaled)
                torch.autograd.backward(list(scaled))
                note_unscaled(scene, model, scaler)
                scaler.step(optimizer)
                scaler.update()
        return model

    assert recorded(loop, tmp_path).differences(frames=3) == []


def test_forward_that_casts_by_itself_is_measured_as_it_is(tmp_path: Path) -> None:
    class Casting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = small_model()

        @torch.autocast("cpu", torch.bfloat16)
        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.inner(x)
            return result

    def loop(scene: Scene) -> nn.Module:
        model = Casting()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with scene.watch(model, optimizer):
            for inputs, targets in batches(3):
                optimizer.zero_grad()
                scene.backward(F.cross_entropy(model(inputs).float(), targets), samples=8)
                scene.note(model)
                optimizer.step()
        return model

    assert recorded(loop, tmp_path).differences(frames=3) == []
