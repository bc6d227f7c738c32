"""Updates without an optimizer's call in the loop: by hand, and by optimizers inside the backward."""

from pathlib import Path

import numpy as np
import pytest
import torch
from reference import Scene, recorded
from small_training import batches, small_model
from torch import Tensor, nn
from torch.nn import functional as F

from probe.wire.columns import unpack_column


@pytest.mark.parametrize("update", ["data.add_", "no_grad -=", "no_grad foreach"])
def test_update_by_hand_ends_a_step_at_the_next_forward(tmp_path: Path, update: str) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = small_model()
        parameters = list(model.parameters())
        with scene.watch(model):
            for inputs, targets in batches(5):
                scene.backward(F.cross_entropy(model(inputs), targets), samples=8)
                scene.note(model)
                gradients = [parameter.grad for parameter in parameters]
                with torch.no_grad():
                    if update == "no_grad foreach":
                        torch._foreach_add_(parameters, gradients, alpha=-0.1)
                    for parameter, gradient in zip(parameters, gradients, strict=True):
                        assert gradient is not None
                        if update == "data.add_":
                            parameter.data.add_(gradient, alpha=-0.1)
                        elif update == "no_grad -=":
                            parameter -= 0.1 * gradient
                        parameter.grad = None
            # The last step ends with the forward that follows it.
            model(inputs)
        return model

    assert recorded(loop, tmp_path).differences(frames=5) == []


def test_update_by_hand_with_accumulation_is_followed_by_its_backwards(tmp_path: Path) -> None:
    """Nothing tells two micro-steps from two steps of which the update is invisible: each is a step."""

    def loop(scene: Scene) -> nn.Module:
        model = small_model()
        with scene.watch(model):
            for index, (inputs, targets) in enumerate(batches(6)):
                scene.backward(F.cross_entropy(model(inputs), targets), samples=8)
                scene.note(model)
                if index % 2:
                    for parameter in model.parameters():
                        assert parameter.grad is not None
                        parameter.data.add_(parameter.grad, alpha=-0.1)
                        parameter.grad.zero_()
            model(inputs)
        return model

    assert recorded(loop, tmp_path).differences(frames=6) == []


def test_optimizer_in_backward_leaves_a_frame_of_every_backward(tmp_path: Path) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = small_model()
        optimizers = {p: torch.optim.SGD([p], lr=0.1, momentum=0.9) for p in model.parameters()}

        def update(parameter: Tensor) -> None:
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(update)
        with scene.watch(model):
            for inputs, targets in batches(4):
                F.cross_entropy(model(inputs), targets).backward()
        return model

    recording = recorded(loop, tmp_path)
    assert recording.disturbances == []
    assert sorted({frame.step for frame in recording.journal.frames}) == [0, 1, 2, 3]


def test_optimizer_in_backward_gives_every_parameter_its_own_gradient(tmp_path: Path) -> None:
    seen: list[dict[str, float]] = []

    def loop(scene: Scene) -> nn.Module:
        model = small_model()
        names = {p: name for name, p in model.named_parameters()}
        optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

        def update(parameter: Tensor) -> None:
            assert parameter.grad is not None
            seen[-1][names[parameter]] = parameter.grad.double().norm().item()
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(update)
        seen.clear()
        with scene.watch(model):
            for inputs, targets in batches(3):
                seen.append({})
                F.cross_entropy(model(inputs), targets).backward()
        return model

    recording = recorded(loop, tmp_path)
    assert recording.disturbances == []
    names = [parameter.name for parameter in recording.journal.layouts[0].parameters]
    found: list[dict[str, float]] = [{} for _ in seen]
    for frame in recording.journal.frames:
        missing = np.unpackbits(np.frombuffer(frame.missing, dtype=np.uint8))[: len(names)]
        norms = unpack_column(next(c for c in frame.columns if c.name == "grad_norm"))
        for index, name in enumerate(names):
            if not len(missing) or not missing[index]:
                found[frame.step][name] = float(norms[index])
    assert [sorted(row) for row in found] == [sorted(row) for row in seen]
    for row, expected in zip(found, seen, strict=True):
        assert row == pytest.approx(expected, rel=1e-5)
