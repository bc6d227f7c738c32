"""Makes one captured forward, and the backward passes through it, once more under a dispatch mode.

Called by `replay.py` on the training thread, inside `module_state.preserved`. Nothing accumulates into
`p.grad`, and no post-accumulate hook, optimizer or DDP reducer runs.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..compat import torch_dynamo, torch_engine, torch_nodes
from ..compat.torch_engine import unwatched_grad
from ..errors import ReplayError
from .arguments import find_outputs
from .capture import CallState, OutputGradients, RootCapture
from .dispatch import GuardedMode
from .module_state import set_numpy_state
from .running_modules import ModuleTracker


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardRun:
    """A forward made again."""

    outputs: list[Tensor]
    """Differentiable outputs, as `find_outputs` orders them."""
    inputs: dict[str, Tensor]
    """The tensor arguments, by name."""


def run_forward(
    capture: RootCapture, mode: GuardedMode, *, tracker: ModuleTracker, inputs_known: Any = None
) -> ForwardRun:
    """Call the captured root again, from the same state.

    Args:
        capture: a finished capture.
        mode: the dispatch mode that watches.
        tracker: is told which module runs.
        inputs_known: called with the tensor arguments by name, before the forward.

    Raises:
        ReplayError: the inputs changed, or the forward returned something else this time.
    """
    if capture.arguments is None or capture.state is None:
        raise ReplayError(capture.declined or "the capture was never finished")
    args, kwargs, tensors = capture.arguments.again()
    if inputs_known is not None:
        inputs_known(tensors)
    with ExitStack() as stack:
        stack.enter_context(ambient(capture.state))
        stack.enter_context(tracker.running(capture.root))
        stack.enter_context(mode)
        output = capture.root(*args, **kwargs)
    outputs = find_outputs(output)
    if len(outputs) != capture.output_count:
        raise ReplayError(
            f"the forward returned {len(outputs)} differentiable tensors, {capture.output_count} in the step"
        )
    return ForwardRun(outputs=outputs, inputs=tensors)


def run_backward(
    run: ForwardRun,
    gradients: OutputGradients,
    mode: GuardedMode,
    *,
    parameters: Sequence[nn.Parameter],
    tracker: ModuleTracker,
    keep_graph: bool,
) -> tuple[list[Tensor | None], dict[str, Tensor]]:
    """Send the captured dL/d(outputs) back; outside autocast, as `loss.backward()` usually runs.

    Returns:
        The gradients of `parameters`, in order, and those of the inputs that require one, by name.
    """
    inputs = {name: tensor for name, tensor in run.inputs.items() if tensor.requires_grad}
    targets = [*parameters, *inputs.values()]
    with autocast_off(), torch.enable_grad(), torch.autograd.set_detect_anomaly(False):
        sent = _outer_gradients(run.outputs, gradients.by_output)
        if not sent or not targets:
            return [None] * len(parameters), {}
        outputs = [run.outputs[position] for position in sent]
        for output, gradient in zip(outputs, sent.values(), strict=True):
            if output.shape != gradient.shape:
                raise ReplayError("an output has another shape than in the step")
        mode.take_gradients(sent.values())
        with tracker.running(), mode:
            found: Sequence[Tensor | None]
            if _has_reentrant_checkpoint(outputs):
                found = accumulate(outputs, list(sent.values()), targets, keep_graph=keep_graph)
            else:
                found = gradients_of(outputs, list(sent.values()), targets, keep_graph=keep_graph)
    of_inputs = zip(inputs, found[len(parameters) :], strict=True)
    return list(found[: len(parameters)]), {name: grad for name, grad in of_inputs if grad is not None}


def gradients_of(
    outputs: Sequence[Tensor],
    sent: Sequence[Tensor],
    targets: Sequence[Tensor],
    *,
    keep_graph: bool = False,
) -> list[Tensor | None]:
    """Return the gradient of each target; None of those that have none, or were frozen meanwhile."""
    needed = [target for target in targets if target.requires_grad]
    if not needed:
        return [None] * len(targets)
    found = iter(unwatched_grad()(outputs, needed, sent, allow_unused=True, retain_graph=keep_graph))
    return [next(found) if target.requires_grad else None for target in targets]


def _outer_gradients(outputs: list[Tensor], captured: dict[int, Tensor]) -> dict[int, Tensor]:
    """Return what reached each output from outside the root, by position.

    A tensor hook delivers the total gradient, with what a later output (a loss computed from the logits)
    sends back inside the root. That part comes again by itself and is taken out here.
    """
    outer: dict[int, Tensor] = {}
    later_first = sorted(captured, key=lambda position: -_number(outputs[position]))
    for position in later_first:
        gradient, inner = captured[position], None
        if outer:
            inner = unwatched_grad()(
                [outputs[other] for other in outer],
                outputs[position],
                list(outer.values()),
                allow_unused=True,
                retain_graph=True,
            )[0]
        if inner is None:
            outer[position] = gradient
            continue
        same = (inner == gradient) | (torch.isnan(inner) & torch.isnan(gradient))
        if not bool(same.all()):
            outer[position] = torch.where(same, 0, gradient - inner)
    return outer


def _number(output: Tensor) -> int:
    node = output.grad_fn
    return -1 if node is None else torch_nodes.node_sequence_number(node) or -1


def _has_reentrant_checkpoint(outputs: Sequence[Tensor]) -> bool:
    pending: list[Any] = [output.grad_fn for output in outputs]
    seen: set[Any] = set()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if torch_nodes.node_name(node).startswith("CheckpointFunction"):
            return True
        pending.extend(child for child, _ in node.next_functions)
    return False


def accumulate(
    outputs: list[Tensor], sent: list[Tensor], targets: Sequence[Tensor], *, keep_graph: bool
) -> list[Tensor | None]:
    """Reentrant checkpoints work with `.backward()` only: lend it empty `.grad` fields, then put back."""
    if any(torch_engine.has_post_accumulate_hooks(target) for target in targets):
        raise ReplayError("reentrant checkpointing together with post-accumulate hooks cannot be replayed")
    before = [target.grad for target in targets]
    try:
        for target in targets:
            target.grad = None
        torch.autograd.backward(outputs, sent, retain_graph=keep_graph)
        return [target.grad for target in targets]
    finally:
        for target, gradient in zip(targets, before, strict=True):
            target.grad = gradient


@contextmanager
def ambient(state: CallState) -> Iterator[None]:
    """The generators, autocast and grad mode of the captured call."""
    set_generators(state)
    # Weight casts cached by an autocast region of the user's still hang on the real graph.
    torch.clear_autocast_cache()
    try:
        with ExitStack() as stack:
            stack.enter_context(autocast_off())
            for kind, dtype in state.autocast:
                stack.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=state.autocast_cache))
            stack.enter_context(torch.enable_grad())
            stack.enter_context(torch_dynamo.compilation_off())
            yield
    finally:
        torch.clear_autocast_cache()


def set_generators(state: CallState) -> None:
    """Put the random generators where they were at the captured call."""
    torch.set_rng_state(state.rng_cpu)
    if state.rng_cuda is not None:
        torch.cuda.set_rng_state(state.rng_cuda[1], state.rng_cuda[0])
    if state.rng_python is not None:
        random.setstate(state.rng_python)
    set_numpy_state(state.rng_numpy)


@contextmanager
def autocast_off() -> Iterator[None]:
    """No autocast on any device, as `loss.backward()` usually runs."""
    with ExitStack() as stack:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield
