"""What a session says of real models that are wired wrongly, and that it is silent on those that are not."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from run_numbers import run_of
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import probe
from probe.detectors.sampled_thresholds import SampledThresholds

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.usefixtures("nothing_switched_off")]
STEPS = 45
OPTIONS = SampledThresholds(stuck_steps=8)
"""What is certain is said after 4 steps, what is not after 40."""
PLAIN_CALL = nn.Module.__call__
Forward = Callable[["Net", Tensor], Tensor]


def block() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh())


class Net(nn.Module):
    """Three blocks in a row, unless `how` says otherwise."""

    def __init__(self, how: Forward) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.middle, self.head = block(), block(), nn.Linear(4, 1)
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        return self.how(self, x)


def straight(net: Net, x: Tensor) -> Tensor:
    return net.head(net.middle(net.encoder(x)))


def train(model: nn.Module, *optimizers: torch.optim.Optimizer, each: Callable[[int], Any] = id) -> None:
    """Train on noise; `each` is called after every update."""
    with probe.watch(model, sampled_thresholds=OPTIONS):
        for step in range(STEPS):
            loss = model(torch.randn(8, 4)).square().mean()
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            each(step)


def sgd(*modules: nn.Module, **options: Any) -> torch.optim.Optimizer:
    parameters = itertools.chain.from_iterable(module.parameters() for module in modules)
    return torch.optim.SGD(parameters, lr=0.01, **options)


def events(spool: Path) -> list[Any]:
    return [event for event in run_of(spool).latest_events if event.kind == "parameter_not_updated"]


def told(spool: Path) -> tuple[int, str, str]:
    """(step, subject, message) of the only event."""
    (event,) = events(spool)
    assert event.severity == "warning"
    return event.step, event.subject, event.message


# ----------------------------------------------------------------------------------------------- faults


def detached(net: Net, x: Tensor) -> Tensor:
    return net.head(net.middle(net.encoder(x).detach()))


def without_grad(net: Net, x: Tensor) -> Tensor:
    with torch.no_grad():
        code = net.encoder(x)
    return net.head(net.middle(code))


def unused(net: Net, x: Tensor) -> Tensor:
    net.encoder(x)
    return net.head(net.middle(x))


def branch_without_use(net: Net, x: Tensor) -> Tensor:
    net.middle(net.encoder(x))
    return net.head(x)


def never_called(net: Net, x: Tensor) -> Tensor:
    return net.head(net.middle(x))


def through_numbers(net: Net, x: Tensor) -> Tensor:
    return net.head(net.middle(torch.tensor(net.encoder(x).tolist())))


def reentrant(net: Net, x: Tensor) -> Tensor:
    return net.head(net.middle(checkpoint(net.encoder, x, use_reentrant=True)))


FAULTS: dict[str, tuple[Forward, int, str]] = {
    "detached": (detached, 4, "in detached goes into `middle` without its graph"),
    "without_grad": (without_grad, 4, "in without_grad with gradients switched off"),
    "unused": (unused, 39, "in unused, but what it returns does not reach the loss"),
    "never_called": (never_called, 39, "it was not called in a forward with gradients"),
    "through_numbers": (through_numbers, 39, "what it returns does not reach the loss"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_module_that_gradients_do_not_reach_is_named_with_the_reason(name: str, spool: Path) -> None:
    how, first, text = FAULTS[name]
    model = Net(how)
    train(model, sgd(model))
    step, subject, message = told(spool)
    assert subject == "encoder"
    assert first - 1 <= step <= first + 1
    assert text in message


def test_branch_whose_end_is_unused_is_not_said_to_be_detached(spool: Path) -> None:
    model = Net(branch_without_use)
    train(model, sgd(model))
    _, subject, message = told(spool)
    assert subject == "encoder"
    assert "what it returns does not reach the loss" in message
    assert message.endswith("; the same of `middle`")


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_reentrant_checkpoint_of_the_first_block_is_named(spool: Path) -> None:
    model = Net(reentrant)
    train(model, sgd(model))
    assert "a reentrant checkpoint whose inputs need none" in told(spool)[2]


def test_line_of_the_call_is_named(spool: Path) -> None:
    model = Net(detached)
    train(model, sgd(model))
    line = detached.__code__.co_firstlineno + 1
    assert f"at {Path(__file__).name}:{line} in detached" in told(spool)[2]


def test_calls_are_seen_where_every_forward_is_measured_and_the_measurements_stay_whole(spool: Path) -> None:
    model = Net(detached)
    optimizer = sgd(model)
    with probe.watch(model, sampled_thresholds=OPTIONS, features={"activations": 1}, overhead_limit=0.0):
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    assert "goes into `middle` without its graph" in told(spool)[2]
    columns = [frame.module_columns for frame in run_of(spool).frames]
    rows = [{column.name: len(column.data) for column in found} for found in columns]
    assert len(rows) == 6
    assert rows == rows[:1] * 6


def test_forward_that_raises_while_it_is_followed_changes_nothing(spool: Path) -> None:
    """The calls of the fourth step are looked at; its first forward fails, and is made again."""
    calls = itertools.count()

    def fails(net: Net, x: Tensor) -> Tensor:
        code = net.encoder(x).detach()
        if next(calls) == 3:
            raise ValueError("a bad sample")
        return net.head(net.middle(code))

    model = Net(fails)
    optimizer = sgd(model)
    with probe.watch(model, sampled_thresholds=OPTIONS):
        for step in range(8):
            if step == 3:
                with pytest.raises(ValueError, match="a bad sample"):
                    model(torch.randn(8, 4))
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    assert nn.Module.__call__ is PLAIN_CALL
    assert "goes into `middle` without its graph" in told(spool)[2]


def test_module_that_detaches_inside_is_named(spool: Path) -> None:
    class Cut(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).detach()

    model = Net(straight)
    model.encoder = Cut(4, 4)
    train(model, sgd(model))
    assert "what it returns carries no graph" in told(spool)[2]


def test_parameter_that_is_used_nowhere_is_named_by_itself(spool: Path) -> None:
    model = Net(straight)
    model.scale = nn.Parameter(torch.ones(4))
    train(model, sgd(model))
    _, subject, message = told(spool)
    assert subject == "scale"
    assert "the loss does not depend on it" in message


def test_module_in_no_optimizer_is_named(spool: Path) -> None:
    model = Net(straight)
    train(model, sgd(model.encoder, model.head))
    step, subject, message = told(spool)
    assert (step, subject) == (7, "middle")
    assert "gets gradients, but no optimizer has it: 2 parameters did not change" in message


class Listed(nn.Module):
    """Some of its layers are in a plain list, which `parameters()` does not look into."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.layers, self.last = nn.Linear(4, 4), [block() for _ in range(2)], nn.Linear(4, 1)
        self.has_graph = True

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            with torch.set_grad_enabled(self.has_graph):
                change = layer(x)
            x = x + change
        return self.last(x)


def test_layers_in_a_plain_list_are_named_with_the_line_of_their_call(spool: Path) -> None:
    model = Listed()
    train(model, sgd(model))
    _, subject, message = told(spool)
    assert subject == "Linear"
    assert "`Linear` and 1 more, called at test_wiring_watch.py:" in message and "4 parameters" in message
    (event,) = events(spool)
    assert event.step == OPTIONS.stuck_steps - 1


def test_optimizer_that_is_never_stepped_is_said(spool: Path) -> None:
    model = Net(straight)
    optimizer = sgd(model)
    with probe.watch(model, sampled_thresholds=OPTIONS):
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
    step, _, message = told(spool)
    assert step == 7
    assert "the optimizer's step() is never called" in message


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_that_are_cleared_before_the_step_are_said(to_none: bool, spool: Path) -> None:
    model = Net(straight)
    optimizer = sgd(model)
    with probe.watch(model, sampled_thresholds=OPTIONS):
        for _ in range(STEPS):
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.zero_grad(set_to_none=to_none)
            optimizer.step()
    step, _, message = told(spool)
    assert step <= 8
    assert "cleared between backward() and step()" in message


# -------------------------------------------------------------------------------------------- no faults


def silent(spool: Path) -> None:
    assert [event.message for event in events(spool)] == []


def test_sound_model_is_silent_and_soon_left_alone(spool: Path) -> None:
    model = Net(straight)
    train(model, sgd(model))
    silent(spool)


def test_teacher_inside_the_model_is_silent(spool: Path) -> None:
    """It runs without gradients, has parameters that could be trained, and no optimizer has them."""
    model = Net(without_grad)
    train(model, sgd(model.middle, model.head))
    silent(spool)


@pytest.mark.parametrize("how", ["frozen", "without a graph", "in the optimizer", "in a later optimizer"])
def test_layers_in_a_plain_list_that_are_meant_so_are_silent(how: str, spool: Path) -> None:
    model = Listed()
    optimizers = [sgd(model)]
    if how == "frozen":
        for layer in model.layers:
            layer.requires_grad_(False)
    elif how == "without a graph":
        model.has_graph = False
    elif how == "in the optimizer":
        optimizers = [sgd(model, *model.layers)]
    else:
        waiting = sgd(*model.layers)
        assert waiting is not None
    train(model, *optimizers)
    silent(spool)


def test_layers_in_a_plain_list_that_are_updated_by_hand_are_silent(spool: Path) -> None:
    model = Listed()

    def update(step: int) -> None:
        with torch.no_grad():
            for layer in model.layers:
                for parameter in layer.parameters():
                    assert parameter.grad is not None
                    parameter -= 0.01 * parameter.grad

    train(model, sgd(model), each=update)
    silent(spool)


def test_average_that_is_updated_by_hand_is_silent(spool: Path) -> None:
    model = Net(straight)

    def by_hand(step: int) -> None:
        for parameter in model.middle.parameters():
            parameter.data.add_(parameter.grad, alpha=-0.01)

    train(model, sgd(model.encoder, model.head), each=by_hand)
    silent(spool)


def test_second_optimizer_that_waits_for_its_turn_is_silent(spool: Path) -> None:
    model = Net(straight)
    first, second = sgd(model.encoder, model.head), sgd(model.middle)
    train(model, first, each=lambda step: second.step() if step % 30 == 29 else None)
    silent(spool)


def test_heads_of_which_each_batch_has_one_are_silent(spool: Path) -> None:
    """One of them has no batch before step 42."""
    steps = itertools.count()

    def by_task(net: Net, x: Tensor) -> Tensor:
        step = next(steps)
        chosen = net.encoder if step % 2 else net.middle
        return net.head(chosen(x)) if step < 42 else net.rare(x)

    model = Net(by_task)
    model.rare = nn.Linear(4, 1)
    train(model, sgd(model))
    silent(spool)


def test_frozen_part_and_its_unfreezing_are_silent(spool: Path) -> None:
    model = Net(straight)
    model.encoder.requires_grad_(False)
    train(model, sgd(model), each=lambda step: model.encoder.requires_grad_(step > 30))
    silent(spool)


def test_part_frozen_after_the_start_is_silent(spool: Path) -> None:
    model = Net(straight)
    with probe.watch(model, sampled_thresholds=OPTIONS):
        model.encoder.requires_grad_(False)
        optimizer = sgd(model)
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    silent(spool)


def test_adversaries_in_one_model_are_silent(spool: Path) -> None:
    """The generator is updated at every fifth iteration only, with a detach in the others."""
    steps = itertools.count()

    def game(net: Net, x: Tensor) -> Tensor:
        made = net.encoder(x)
        return net.head(net.middle(made if next(steps) % 5 == 4 else made.detach()))

    model = Net(game)
    generator, critic = sgd(model.encoder), sgd(model.middle, model.head)
    with probe.watch(model, sampled_thresholds=OPTIONS):
        for step in range(STEPS):
            optimizer = generator if step % 5 == 4 else critic
            generator.zero_grad()
            critic.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    silent(spool)


def test_accumulation_over_many_micro_steps_is_silent(spool: Path) -> None:
    model = Net(straight)
    optimizer = sgd(model)
    with probe.watch(model, sampled_thresholds=OPTIONS):
        for micro_step in range(120):
            model(torch.randn(8, 4)).square().mean().backward()
            if micro_step % 30 == 29:
                optimizer.step()
                optimizer.zero_grad()
    silent(spool)


@pytest.mark.parametrize("is_cleared", ["before the forward", "after the forward", "never"])
def test_evaluation_with_gradients_and_a_copy_is_silent(spool: Path, is_cleared: str) -> None:
    """Saliency maps: backward through a frozen copy, no optimizer anywhere."""
    model = copy.deepcopy(Net(straight))
    # Without a limit the norms of the parameters are measured every 10 steps, however long a step takes.
    with probe.watch(model, sampled_thresholds=OPTIONS, overhead_limit=0.0):
        for _ in range(STEPS):
            if is_cleared == "before the forward":
                model.zero_grad()
            loss = model(torch.randn(8, 4)).square().mean()
            if is_cleared == "after the forward":
                model.zero_grad()
            loss.backward()
    silent(spool)


def test_updates_without_a_backward_are_silent(spool: Path) -> None:
    model = Net(straight)
    optimizer = sgd(model)
    train(model, optimizer, each=lambda step: (optimizer.zero_grad(), optimizer.step()))
    silent(spool)


# ------------------------------------------------------- a loss that reaches no parameter of the model


def by_detach(net: nn.Module, x: Tensor) -> Tensor:
    return net(x).detach().requires_grad_().square().mean()


def by_number(net: nn.Module, x: Tensor) -> Tensor:
    return torch.tensor(net(x).square().mean().item(), requires_grad=True)


def by_data(net: nn.Module, x: Tensor) -> Tensor:
    free = net(x).data
    return free.requires_grad_().square().mean()


def by_no_grad_later(net: nn.Module, x: Tensor) -> Tensor:
    out = net(x)
    with torch.no_grad():
        loss = out.square().mean()
    return loss.requires_grad_()


@pytest.mark.parametrize("compute_loss", [by_detach, by_number, by_data, by_no_grad_later])
def test_loss_that_reaches_no_parameter_is_told_with_the_line_of_the_cut(
    compute_loss: Callable[[nn.Module, Tensor], Tensor], spool: Path
) -> None:
    model = Net(straight)
    optimizer = sgd(model)
    with probe.watch(model, optimizer, sampled_thresholds=OPTIONS):
        for _ in range(STEPS):
            optimizer.zero_grad()
            compute_loss(model, torch.randn(8, 4)).backward()
            optimizer.step()
    step, _, message = told(spool)
    assert step <= 6
    assert "No gradient has reached any parameter" in message
    code = compute_loss.__code__
    assert f"the graph is cut at {Path(__file__).name}:" in message
    line = int(message.split(f"{Path(__file__).name}:")[1].split(":")[0])
    assert code.co_firstlineno < line <= code.co_firstlineno + 3


def test_updates_without_any_backward_are_told(spool: Path) -> None:
    model = Net(straight)
    optimizer = sgd(model)
    with probe.watch(model, optimizer, sampled_thresholds=OPTIONS):
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean()
            optimizer.step()
    step, _, message = told(spool)
    assert step <= 6 and "the graph is cut at" not in message


def test_model_that_is_trained_without_gradients_is_healthy(spool: Path) -> None:
    """An evolution strategy behind the interface of an optimizer."""

    class Evolution(torch.optim.Optimizer):
        def step(self, closure: Any = None) -> None:
            with torch.no_grad():
                for group in self.param_groups:
                    for parameter in group["params"]:
                        parameter += 0.01 * torch.randn_like(parameter)

    model = Net(straight)
    optimizer = Evolution(model.parameters(), {})
    with probe.watch(model, optimizer, sampled_thresholds=OPTIONS):
        for _ in range(STEPS):
            model(torch.randn(8, 4)).square().mean()
            optimizer.step()
    assert events(spool) == []


def test_optimizer_that_steps_while_the_model_is_not_called_is_healthy(spool: Path) -> None:
    """The rates of a schedule are looked at before the training."""
    model = Net(straight)
    optimizer = sgd(model)
    with probe.watch(model, optimizer, sampled_thresholds=OPTIONS):
        for _ in range(STEPS):
            optimizer.step()
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    assert events(spool) == []


# ----------------------------------------------------------- an optimizer that has none of the parameters


def test_optimizer_of_another_model_is_told_at_once_and_by_an_event(
    spool: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = Net(straight)
    optimizer = sgd(copy.deepcopy(model))
    with probe.watch(model, optimizer, sampled_thresholds=OPTIONS):
        assert (
            "SGD holds 0 of Net's 6 trainable parameters; it holds 6 that are not the model's" in caplog.text
        )
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    step, _, message = told(spool)
    assert step <= 9 and "no optimizer has it" in message


def test_optimizer_of_the_frozen_part_names_it(spool: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = Net(straight)
    model.encoder.requires_grad_(False)
    with probe.watch(model, sgd(model.encoder), sampled_thresholds=OPTIONS):
        pass
    assert "SGD holds 0 of Net's 4 trainable parameters; it holds 2 frozen ones, of `encoder`" in caplog.text


def test_optimizer_of_copies_that_are_copied_back_gives_no_event(spool: Path) -> None:
    model = Net(straight)
    masters = [parameter.detach().clone().requires_grad_() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(masters, lr=0.01)
    with probe.watch(model, optimizer, sampled_thresholds=OPTIONS):
        for _ in range(STEPS):
            model.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            for master, parameter in zip(masters, model.parameters(), strict=True):
                master.grad = parameter.grad
            optimizer.step()
            with torch.no_grad():
                for master, parameter in zip(masters, model.parameters(), strict=True):
                    parameter.copy_(master)
    assert events(spool) == []


@pytest.mark.parametrize("held", ["head", "all"])
def test_optimizer_that_has_a_part_of_the_model_is_not_remarked_on(
    held: str, spool: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = Net(straight)
    with probe.watch(model, sgd(model.head if held == "head" else model), sampled_thresholds=OPTIONS):
        pass
    assert "holds 0 of" not in caplog.text


def gradients_alone(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Train what no optimizer has, beside an optimizer that steps."""
    with probe.watch(model, sampled_thresholds=OPTIONS):
        for _ in range(STEPS):
            optimizer.zero_grad()
            model.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()


def test_model_that_was_made_anew_after_its_optimizer_is_told(spool: Path) -> None:
    optimizer = sgd(Net(straight))
    gradients_alone(Net(straight), optimizer)
    assert "no optimizer has it" in told(spool)[2]


def test_model_whose_gradients_alone_are_wanted_is_silent(spool: Path) -> None:
    gradients_alone(Net(straight), sgd(nn.Linear(4, 4)))
    assert events(spool) == []
