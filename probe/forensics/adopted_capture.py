"""A capture made afterwards, of a call that C has followed: what it has held of the forward and the backward.

Called by the loop's fast path on the training thread, when a step can no longer be followed in C.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..errors import ReplayError
from ..threads.stacks import RawFrame
from .arguments import HeldArguments
from .capture import CallState, OutputGradients, RootCapture, called_module, generator_states
from .loss.loss_graph import LossGraph
from .loss.loss_terms import LossTerms


class FollowedOutput(NamedTuple):
    """What C has held of one tensor that a forward returned."""

    held: Tensor | weakref.ref[Tensor]
    """Itself or a reference, as `held_outputs.py` has it, but for the graph."""
    version: int
    number: int
    """Sequence number of the node that made it."""
    life: weakref.ref[Any] | None
    """Of what lives as long as the graph behind it."""
    is_droppable: bool
    """Whether a gradient of it that is too large may be left out."""
    gradient: Tensor | None
    """dL/d(output), once the backward has come by."""


class FollowedCall(NamedTuple):
    """What C has held of one forward and its backward."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    versions: Sequence[int]
    """Of the tensors among the arguments, before the call, in their order."""
    samples: int
    generators: tuple[Tensor, tuple[int, Tensor] | None] | None
    """As `generator_states` has them, before the call; None where the forward was seen to draw nothing."""
    outputs: Sequence[FollowedOutput]
    boundary: int | None
    """Sequence number of the first node after the forward; None before it has returned."""
    loss: Tensor | None
    """What backward was called on; None before."""
    is_finite: bool
    """Whether that is known to be."""
    unscaled: Tensor | None
    """What a GradScaler made it of."""
    terms: LossTerms
    """What its graph said of its scale."""
    graph: LossGraph | None
    """Of the loss, where it was looked at."""
    task: int
    """Number of its backward."""


class UsualCall(NamedTuple):
    """What all calls of the loop have in common, as the newest one that went the slow way had it."""

    autocast: tuple[tuple[str, torch.dtype], ...]
    autocast_cache: bool
    forward_site: Sequence[RawFrame]
    backward_site: Sequence[RawFrame]
    size_cap_bytes: int


def hold_arguments(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], versions: Sequence[int]
) -> HeldArguments:
    """Hold arguments as they were when their tensors had these versions.

    Raises:
        ReplayError: one is of a kind that cannot be held.
    """
    held = HeldArguments(args, kwargs)
    held.set_versions(versions)
    return held


def adopt_forward(root: nn.Module, followed: FollowedCall, usual: UsualCall) -> RootCapture:
    """Return the capture that the slow way would have made of the call; declined where that cannot be."""
    capture = RootCapture(called_module(root), size_cap_bytes=usual.size_cap_bytes, parameter_stamp=None)
    try:
        capture.arguments = hold_arguments(followed.args, followed.kwargs, followed.versions)
    except ReplayError as error:
        capture._decline(str(error))
        return capture
    capture._limit_bytes -= capture.arguments.nbytes
    rng_cpu, rng_cuda = followed.generators or generator_states()
    capture.state = CallState(
        rng_cpu=rng_cpu,
        rng_cuda=rng_cuda,
        rng_python=None,
        rng_numpy=None,
        autocast=usual.autocast,
        autocast_cache=usual.autocast_cache,
        training=True,
    )
    capture._call_site = usual.forward_site
    return capture


def adopt_outputs(capture: RootCapture, followed: FollowedCall) -> list[Callable[[Tensor], None]]:
    """Take over the outputs of an adopted call; returns what each is to be given dL/d(output) from now on."""
    capture.output_count = len(followed.outputs)
    capture.outputs = [
        (one.held.detach() if isinstance(one.held, Tensor) else one.held, one.version, one.number)
        for one in followed.outputs
    ]
    capture._loss_boundary = followed.boundary
    capture._hooks = [output.life for output in followed.outputs if output.life is not None]
    return [
        capture._hook(position, droppable=output.is_droppable)
        for position, output in enumerate(followed.outputs)
    ]


def adopt_loss(capture: RootCapture, followed: FollowedCall, usual: UsualCall) -> None:
    """Take over what a backward was called on, without gradients of the script's."""
    assert followed.loss is not None
    capture.note_backward([followed.loss], are_finite=followed.is_finite, graph=followed.graph)
    capture._backward_site = usual.backward_site


def adopt_gradients(capture: RootCapture, followed: FollowedCall) -> None:
    """Take over dL/d(output) of a backward, as far as it has come."""
    gradients = {
        position: output.gradient.detach()
        for position, output in enumerate(followed.outputs)
        if output.gradient is not None
    }
    if gradients and not capture.declined:
        one = OutputGradients(followed.task)
        one.by_output |= gradients
        capture.passes.append(one)
        capture._limit_bytes -= sum(gradient.nbytes for gradient in gradients.values())
