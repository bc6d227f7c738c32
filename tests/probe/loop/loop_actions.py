"""What a script may do between its steps and in the middle of them; random loops are lists of it."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import math
import threading
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import probe


class Loop:
    """A seeded training of a small model. `run` is None where nothing watches it.

    Args:
        watch: makes the run.
        usual: what most steps are.
    """

    def __init__(
        self,
        watch: Callable[[nn.Module, torch.optim.Optimizer], Any],
        usual: Callable[[Loop], None] = lambda loop: loop.step(),
    ) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)
        )
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.other = nn.Linear(6, 3)
        self.others_optimizer = torch.optim.SGD(self.other.parameters(), lr=0.1)
        self.handles: list[Any] = []
        self.size, self.usual = 8, usual
        self.run = watch(self.model, self.optimizer)

    def batch(self) -> tuple[Tensor, Tensor]:
        return torch.randn(self.size, 6), torch.randint(3, (self.size,))

    def loss(self) -> Tensor:
        inputs, targets = self.batch()
        return F.cross_entropy(self.model(inputs), targets)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()

    def weights(self) -> list[Tensor]:
        return [value.detach().clone() for value in self.model.state_dict().values()]


def accumulated(loop: Loop) -> None:
    loop.optimizer.zero_grad()
    for _ in range(2):
        (loop.loss() / 2).backward()
    loop.optimizer.step()


def not_cleared(loop: Loop) -> None:
    loop.loss().backward()
    loop.optimizer.step()


def cleared_to_zero(loop: Loop) -> None:
    loop.optimizer.zero_grad(set_to_none=False)
    loop.loss().backward()
    loop.optimizer.step()


def evaluated(loop: Loop) -> None:
    loop.model.eval()
    with torch.no_grad():
        loop.loss()
    loop.model.train()


def inferred(loop: Loop) -> None:
    with torch.inference_mode():
        loop.model(loop.batch()[0])


def forward_alone(loop: Loop) -> None:
    loop.loss()


def evaluated_between(loop: Loop) -> None:
    loop.optimizer.zero_grad()
    loss = loop.loss()
    evaluated(loop)
    loss.backward()
    evaluated(loop)
    loop.optimizer.step()


def two_forwards(loop: Loop) -> None:
    loop.optimizer.zero_grad()
    (loop.loss() + loop.loss()).backward()
    loop.optimizer.step()


def backward_twice(loop: Loop) -> None:
    loop.optimizer.zero_grad()
    loss = loop.loss()
    loss.backward(retain_graph=True)
    loss.backward()
    loop.optimizer.step()


def updated_twice(loop: Loop) -> None:
    loop.step()
    loop.optimizer.step()


def updated_by_closure(loop: Loop) -> None:
    def closure() -> float:
        loop.optimizer.zero_grad()
        loss = loop.loss()
        loss.backward()
        return loss.item()

    loop.optimizer.step(closure)


def clipped(loop: Loop) -> None:
    loop.optimizer.zero_grad()
    loop.loss().backward()
    nn.utils.clip_grad_norm_(loop.model.parameters(), 0.1)
    loop.optimizer.step()


def clipped_by_value(loop: Loop) -> None:
    loop.optimizer.zero_grad()
    loop.loss().backward()
    nn.utils.clip_grad_value_(loop.model.parameters(), 0.01)
    loop.optimizer.step()


def gradient_lost(loop: Loop) -> None:
    loop.optimizer.zero_grad()
    loop.loss().backward()
    loop.model[4].weight.grad = None
    loop.optimizer.step()


def gradient_replaced(loop: Loop) -> None:
    loop.optimizer.zero_grad()
    loop.loss().backward()
    loop.model[0].weight.grad = torch.ones_like(loop.model[0].weight)
    loop.optimizer.step()


def gradient_penalty(loop: Loop) -> None:
    loop.optimizer.zero_grad()
    inputs, targets = loop.batch()
    inputs.requires_grad_()
    loss = F.cross_entropy(loop.model(inputs), targets)
    (slope,) = torch.autograd.grad(loss, inputs, create_graph=True)
    (loss + slope.square().sum()).backward()
    loop.optimizer.step()


def vector_backward(loop: Loop) -> None:
    loop.optimizer.zero_grad()
    inputs, targets = loop.batch()
    losses = F.cross_entropy(loop.model(inputs), targets, reduction="none")
    losses.backward(torch.ones_like(losses))
    loop.optimizer.step()


def autocast(loop: Loop) -> None:
    loop.optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = loop.loss()
    loss.backward()
    loop.optimizer.step()


def in_anomaly_mode(loop: Loop) -> None:
    with torch.autograd.set_detect_anomaly(True):
        loop.step()


def forward_raises(loop: Loop) -> None:
    loop.optimizer.zero_grad()
    with contextlib.suppress(RuntimeError):
        loop.model(torch.randn(4, 5))


def backward_raises(loop: Loop) -> None:
    def fail(gradient: Tensor) -> Tensor:
        raise ZeroDivisionError

    inputs, targets = loop.batch()
    output = loop.model(inputs)
    output.register_hook(fail)
    with contextlib.suppress(ZeroDivisionError):
        F.cross_entropy(output, targets).backward()


def frozen(loop: Loop) -> None:
    loop.model[0].bias.requires_grad_(False)


def unfrozen(loop: Loop) -> None:
    loop.model[0].bias.requires_grad_(True)


def parameter_replaced(loop: Loop) -> None:
    loop.model[4].bias = nn.Parameter(torch.zeros(3))
    loop.optimizer.add_param_group({"params": [loop.model[4].bias]})


def values_put_in(loop: Loop) -> None:
    loop.model[4].weight.data = loop.model[4].weight.data * 0.5


def values_changed(loop: Loop) -> None:
    with torch.no_grad():
        loop.model[4].weight.mul_(0.9)


def state_loaded(loop: Loop) -> None:
    loop.model.load_state_dict(copy.deepcopy(loop.model.state_dict()))
    loop.optimizer.load_state_dict(copy.deepcopy(loop.optimizer.state_dict()))


def saved(loop: Loop) -> None:
    torch.save(loop.model.state_dict(), io.BytesIO())


def copied(loop: Loop) -> None:
    twin = copy.deepcopy(loop.model)
    twin(loop.batch()[0]).sum().backward()


def rate_changed(loop: Loop) -> None:
    loop.optimizer.param_groups[0]["lr"] *= 0.5


def size_changed(loop: Loop) -> None:
    loop.size = 5 if loop.size == 8 else 8


def hooked(loop: Loop) -> None:
    loop.handles.append(loop.model[1].register_forward_hook(lambda module, inputs, output: output * 1.5))


def hooked_backward(loop: Loop) -> None:
    def doubled(gradient: Tensor) -> Tensor:
        return gradient * 2

    loop.handles.append(loop.model[0].weight.register_hook(doubled))


def hooked_update(loop: Loop) -> None:
    loop.handles.append(loop.optimizer.register_step_pre_hook(lambda *given: None))


def unhooked(loop: Loop) -> None:
    while loop.handles:
        loop.handles.pop().remove()


def another_model(loop: Loop) -> None:
    loop.others_optimizer.zero_grad()
    loop.other(torch.randn(4, 6)).square().mean().backward()
    loop.others_optimizer.step()


def another_model_in_between(loop: Loop) -> None:
    loop.optimizer.zero_grad()
    loss = loop.loss()
    another_model(loop)
    loss.backward()
    another_model(loop)
    loop.optimizer.step()


def both_models_at_once(loop: Loop) -> None:
    loop.optimizer.zero_grad()
    loop.others_optimizer.zero_grad()
    inputs, targets = loop.batch()
    F.cross_entropy(loop.model(inputs) + loop.other(inputs), targets).backward()
    loop.optimizer.step()
    loop.others_optimizer.step()


def logged(loop: Loop) -> None:
    if loop.run is not None:
        loop.run.log(accuracy=0.5)


def loss_logged(loop: Loop) -> None:
    loop.optimizer.zero_grad()
    loss = loop.loss()
    loss.backward()
    if loop.run is not None:
        loop.run.log(loss=loss * 2)
    loop.optimizer.step()


def logged_between_micro_steps(loop: Loop) -> None:
    loop.optimizer.zero_grad()
    (loop.loss() / 2).backward()
    loss = loop.loss() / 2
    if loop.run is not None:
        loop.run.log(loss=7.0, between=1.0)
    loss.backward()
    loop.optimizer.step()


def loss_logged_after_the_update(loop: Loop) -> None:
    loop.step()
    if loop.run is not None:
        loop.run.log(loss=3.0)


def logged_in_between(loop: Loop) -> None:
    loop.optimizer.zero_grad()
    loss = loop.loss()
    if loop.run is not None:
        loop.run.log(before=1.0)
    loss.backward()
    if loop.run is not None:
        loop.run.log(between=loss.detach(), factor=2.0)
    loop.optimizer.step()


def collected(loop: Loop) -> None:
    gc.collect()


def bad_batch(loop: Loop) -> None:
    """The update is left out: the training goes on."""
    loop.optimizer.zero_grad()
    inputs, targets = loop.batch()
    inputs[0, 0] = math.nan
    F.cross_entropy(loop.model(inputs), targets).backward()


def bad_loss(loop: Loop) -> None:
    loop.optimizer.zero_grad()
    (loop.loss() * math.inf).backward()


def gradients_asked_for(loop: Loop) -> None:
    trained = [parameter for parameter in loop.model.parameters() if parameter.requires_grad]
    torch.autograd.grad(loop.loss(), trained, allow_unused=True)


def functional(loop: Loop) -> None:
    inputs, _ = loop.batch()
    torch.func.functional_call(loop.model, dict(loop.model.named_parameters()), (inputs,)).sum().backward()


def second_session(loop: Loop) -> None:
    if loop.run is not None:
        probe.watch(loop.other, loop.others_optimizer, run="second").close()


def level_raised(loop: Loop) -> None:
    if loop.run is not None:
        loop.run.set_level("advanced")
    loop.step()
    loop.step()
    if loop.run is not None:
        loop.run.set_level("basic")


def switched_off(loop: Loop) -> None:
    if loop.run is not None:
        loop.run.set_level("off")
    loop.step()
    loop.step()
    if loop.run is not None:
        loop.run.set_level("basic")


def interrupted(loop: Loop, place: Callable[[Callable[..., None]], Any]) -> None:
    """A Ctrl-C in the middle of a step, which the script survives."""

    def interrupt(*given: Any) -> None:
        raise KeyboardInterrupt

    handle = place(interrupt)
    with contextlib.suppress(KeyboardInterrupt):
        loop.step()
    handle.remove()


def interrupted_forward(loop: Loop) -> None:
    interrupted(loop, loop.model[2].register_forward_pre_hook)


def interrupted_backward(loop: Loop) -> None:
    interrupted(loop, loop.model[0].weight.register_hook)


def interrupted_before_update(loop: Loop) -> None:
    interrupted(loop, loop.optimizer.register_step_pre_hook)


def interrupted_after_update(loop: Loop) -> None:
    interrupted(loop, loop.optimizer.register_step_post_hook)


def on_another_thread(loop: Loop) -> None:
    thread = threading.Thread(target=loop.step)
    thread.start()
    thread.join()


def optimizer_replaced(loop: Loop) -> None:
    loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.01)


def trained_in_evaluation_mode(loop: Loop) -> None:
    loop.model.eval()
    loop.step()
    loop.model.train()


def output_retained(loop: Loop) -> None:
    loop.optimizer.zero_grad()
    inputs, targets = loop.batch()
    output = loop.model(inputs)
    output.retain_grad()
    F.cross_entropy(output, targets).backward()
    loop.optimizer.step()


def checkpointed(loop: Loop) -> None:
    loop.optimizer.zero_grad()
    inputs, targets = loop.batch()
    F.cross_entropy(checkpoint(loop.model, inputs, use_reentrant=False), targets).backward()
    loop.optimizer.step()


def module_replaced(loop: Loop) -> None:
    known, loop.model[2] = loop.model[2], nn.Tanh()
    loop.step()
    loop.model[2] = known


def seeded_anew(loop: Loop) -> None:
    torch.manual_seed(3)


def steps(loop: Loop) -> None:
    """So many equal ones that C follows some, whatever has come before."""
    for _ in range(4):
        loop.usual(loop)


ACTIONS: Final[tuple[Callable[[Loop], None], ...]] = (
    steps,
    accumulated,
    not_cleared,
    cleared_to_zero,
    evaluated,
    inferred,
    forward_alone,
    evaluated_between,
    two_forwards,
    backward_twice,
    updated_twice,
    updated_by_closure,
    clipped,
    clipped_by_value,
    gradient_lost,
    gradient_replaced,
    gradient_penalty,
    vector_backward,
    autocast,
    in_anomaly_mode,
    forward_raises,
    backward_raises,
    frozen,
    unfrozen,
    parameter_replaced,
    values_put_in,
    values_changed,
    state_loaded,
    saved,
    copied,
    rate_changed,
    size_changed,
    hooked,
    hooked_backward,
    hooked_update,
    unhooked,
    another_model,
    another_model_in_between,
    both_models_at_once,
    logged,
    loss_logged,
    logged_between_micro_steps,
    loss_logged_after_the_update,
    logged_in_between,
    collected,
    bad_batch,
    bad_loss,
    gradients_asked_for,
    functional,
    second_session,
    level_raised,
    switched_off,
    interrupted_forward,
    interrupted_backward,
    interrupted_before_update,
    interrupted_after_update,
    on_another_thread,
    optimizer_replaced,
    trained_in_evaluation_mode,
    output_retained,
    checkpointed,
    module_replaced,
    seeded_anew,
)
