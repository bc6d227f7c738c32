"""A model that is called with gradients disabled alone though it is trained, and others that are fine."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from run_numbers import run_of
from torch import Tensor, nn
from torch.nn import functional as F

import probe

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.usefixtures("nothing_switched_off")]
STEPS = 45
Step = Callable[[nn.Module, Tensor], None]
"""All of an iteration but the clearing and the update."""


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))


def train(
    model: nn.Module, step: Step, *more: Tensor, options: type[torch.optim.Optimizer] | None = None
) -> None:
    optimizer = (options or torch.optim.SGD)([*model.parameters(), *more], lr=0.05)  # type: ignore[call-arg]
    with probe.watch(model, optimizer):
        for _ in range(STEPS):
            optimizer.zero_grad()
            step(model, torch.randn(16, 4))
            optimizer.step()


def events(spool: Path) -> list[Any]:
    return [event for event in run_of(spool).latest_events if event.kind == "parameter_not_updated"]


# ------------------------------------------------------------------------------------------------ faults


def in_a_block(model: nn.Module, x: Tensor) -> None:
    with torch.no_grad():
        loss = model(x).square().mean()
    loss.requires_grad_(True)
    loss.backward()


def in_inference_mode(model: nn.Module, x: Tensor) -> None:
    with torch.inference_mode():
        loss = model(x).square().mean()
    torch.tensor(loss.item(), requires_grad=True).backward()


@torch.no_grad()
def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().mean()


def in_a_decorated_function(model: nn.Module, x: Tensor) -> None:
    loss_of(model, x).requires_grad_().backward()


def plain_loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().mean()


def around_a_function(model: nn.Module, x: Tensor) -> None:
    with torch.autograd.no_grad():
        loss = plain_loss_of(model, x)
    loss.requires_grad_().backward()


def with_an_output_that_is_made_a_leaf(model: nn.Module, x: Tensor) -> None:
    with torch.no_grad():
        out = model(x)
    F.mse_loss(out.requires_grad_(), torch.ones(16, 4)).backward()


def after_a_switch(model: nn.Module, x: Tensor) -> None:
    torch.set_grad_enabled(False)
    loss = model(x).square().mean()
    torch.set_grad_enabled(True)
    (loss.requires_grad_() * 2).backward()


FAULTS: dict[str, tuple[Step, str]] = {
    "block": (in_a_block, "with torch.no_grad()"),
    "inference mode": (in_inference_mode, "with torch.inference_mode()"),
    "decorator": (in_a_decorated_function, "@torch.no_grad()"),
    "around a function": (around_a_function, "with torch.autograd.no_grad()"),
    "output made a leaf": (with_an_output_that_is_made_a_leaf, "with torch.no_grad()"),
    "switch": (after_a_switch, "torch.set_grad_enabled(False)"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_model_that_is_called_without_gradients_alone_is_told_with_the_line(name: str, spool: Path) -> None:
    step, text = FAULTS[name]
    train(net(), step)
    (event,) = events(spool)
    assert event.severity == "warning" and event.step < 20
    assert "the model is called with gradients switched off" in event.message
    place = event.message.split("switched off (")[1].split(", so the loss")[0]
    file, line, shown = place.removesuffix(")").split(":", 2)
    assert file == Path(__file__).name and text in shown
    assert text in Path(__file__).read_text().splitlines()[int(line) - 1]


def test_mode_that_a_value_chooses_is_told_with_the_line_of_the_call(spool: Path) -> None:
    def step(model: nn.Module, x: Tensor) -> None:
        with torch.set_grad_enabled(x.shape[0] > 99):
            loss = model(x).square().mean()
        loss.requires_grad_().backward()

    train(net(), step)
    (event,) = events(spool)
    assert f"({Path(__file__).name}:{step.__code__.co_firstlineno + 2} in step)" in event.message


def test_call_with_gradients_before_the_training_hides_nothing(spool: Path) -> None:
    model, calls = net(), []

    def step(model: nn.Module, x: Tensor) -> None:
        calls.append(None if calls else model(x).shape)
        in_a_block(model, x)

    train(model, step)
    (event,) = events(spool)
    assert event.step < 20 and "gradients switched off" in event.message


# ----------------------------------------------------------------------------------------------- healthy


def behind_a_frozen_one(head: nn.Module) -> Step:
    def step(model: nn.Module, x: Tensor) -> None:
        with torch.no_grad():
            features = model(x)
        head(features).square().mean().backward()

    return step


def test_extractor_whose_head_is_trained_by_the_same_optimizer_is_silent(spool: Path) -> None:
    head = nn.Linear(4, 1)
    train(net(), behind_a_frozen_one(head), *head.parameters())
    assert events(spool) == []


def test_plain_tensor_that_is_trained_behind_it_is_silent(spool: Path) -> None:
    prompt = torch.zeros(4, requires_grad=True)

    def step(model: nn.Module, x: Tensor) -> None:
        with torch.no_grad():
            out = model(x)
        (out * prompt).square().mean().backward()

    train(net(), step, prompt)
    assert events(spool) == []


def test_plain_tensor_that_is_updated_by_hand_is_silent(spool: Path) -> None:
    prompt = torch.zeros(4, requires_grad=True)

    def step(model: nn.Module, x: Tensor) -> None:
        with torch.no_grad():
            out = model(x)
        (out + prompt).square().mean().backward()
        with torch.no_grad():
            prompt.sub_(prompt.grad if prompt.grad is not None else 0.0)

    train(net(), step)
    assert events(spool) == []


def test_plain_tensors_that_take_turns_are_silent(spool: Path) -> None:
    prompts = [torch.zeros(4, requires_grad=True) for _ in range(2)]

    def step(model: nn.Module, x: Tensor) -> None:
        prompts.reverse()
        with torch.no_grad():
            out = model(x)
        (out * prompts[0]).square().mean().backward()

    train(net(), step, *prompts)
    assert events(spool) == []


def test_heads_of_other_optimizers_that_take_turns_are_silent(spool: Path) -> None:
    heads = [nn.Linear(4, 1) for _ in range(2)]

    def step(model: nn.Module, x: Tensor) -> None:
        heads.reverse()
        behind_a_frozen_one(heads[0])(model, x)

    train(net(), step)
    assert events(spool) == []


def test_generator_that_waits_for_its_critic_is_silent(spool: Path) -> None:
    """One optimizer has both; the critic alone is trained at first."""
    critic, steps = nn.Linear(4, 1), []

    def step(model: nn.Module, x: Tensor) -> None:
        steps.append(x)
        if len(steps) < 30:
            with torch.no_grad():
                made = model(x)
            critic(made).mean().backward()
        else:
            (-critic(model(x)).mean()).backward()

    train(net(), step, *critic.parameters())
    assert events(spool) == []


def test_evaluation_before_and_between_training_steps_is_silent(spool: Path) -> None:
    def step(model: nn.Module, x: Tensor) -> None:
        for _ in range(3):
            loss_of(model, x)
        model(x).square().mean().backward()
        loss_of(model, x)

    train(net(), step)
    assert events(spool) == []


def test_teacher_that_follows_its_student_is_silent(spool: Path) -> None:
    student = net()
    teacher = copy.deepcopy(student)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.05)
    with probe.watch(teacher):
        for _ in range(STEPS):
            x = torch.randn(16, 4)
            with torch.no_grad():
                wanted = teacher(x)
            optimizer.zero_grad()
            F.mse_loss(student(x + 0.1), wanted).backward()
            optimizer.step()
            with torch.no_grad():
                for mean, new in zip(teacher.parameters(), student.parameters(), strict=True):
                    mean.lerp_(new, 0.01)
    assert events(spool) == []


def test_input_that_is_attacked_is_silent(spool: Path) -> None:
    """The model is frozen and called with gradients; what is updated is its input."""
    model = net().requires_grad_(False)
    model[2].requires_grad_(True)  # type: ignore[index]
    x = torch.randn(16, 4, requires_grad=True)
    optimizer = torch.optim.SGD([x], lr=0.1)
    with probe.watch(model):
        for _ in range(STEPS):
            optimizer.zero_grad()
            (-model(x).square().mean()).backward()
            optimizer.step()
            with torch.no_grad():
                model(x)
    assert events(spool) == []


def test_evolution_strategy_beside_a_backward_is_silent(spool: Path) -> None:
    class Evolution(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            with torch.no_grad():
                for group in self.param_groups:
                    for parameter in group["params"]:
                        parameter += 0.01 * torch.randn_like(parameter)

    train(net(), in_a_block, options=Evolution)
    assert events(spool) == []
