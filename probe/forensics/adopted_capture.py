"""A capture made afterwards, of a call that C has followed: what it has held of the forward and the backward.

Called by the loop's fast path on the training thread, when a step can no longer be followed in C.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..compat import torch_private
from ..errors import ReplayError
from ..threads.stacks import RawFrame
from .arguments import HeldArguments
from .capture import CallState, OutputGradients, RootCapture


class FollowedForward(NamedTuple):
    """What C has held of one forward."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    versions: Sequence[int]
    """Of the tensors among the arguments, before the call, in their order."""
    rng_cpu: Tensor | None
    """State of torch's generator before the call; None where the forward was seen to draw nothing."""
    output: Tensor | None
    """None where it is gone."""
    is_held: bool
    """Whether the output itself was held, not a weak reference to it."""
    output_version: int
    output_number: int
    """Sequence number of the node that made the output."""
    boundary: int
    """Sequence number of the first node after the forward."""
    life: weakref.ref[Any] | None
    """Of what lives as long as the graph behind the output."""


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


def adopt_forward(root: nn.Module, followed: FollowedForward, usual: UsualCall) -> RootCapture:
    """Return the capture that the slow way would have made of the call; declined where that cannot be."""
    capture = RootCapture(root, size_cap_bytes=usual.size_cap_bytes, parameter_stamp=None)
    try:
        capture.arguments = hold_arguments(followed.args, followed.kwargs, followed.versions)
    except ReplayError as error:
        capture._decline(str(error))
        return capture
    capture._limit_bytes -= capture.arguments.nbytes
    capture.state = CallState(
        rng_cpu=torch.default_generator.get_state() if followed.rng_cpu is None else followed.rng_cpu,
        rng_cuda=None,
        rng_python=None,
        rng_numpy=None,
        autocast=usual.autocast,
        autocast_cache=usual.autocast_cache,
        training=True,
    )
    capture._call_site = usual.forward_site
    return capture


def adopt_output(capture: RootCapture, followed: FollowedForward) -> Callable[[Tensor], None]:
    """Take over the output of an adopted call; returns what is to be given dL/d(output) from now on."""
    capture.output_count = 1
    output = followed.output
    if output is not None:
        held = output.detach() if followed.is_held else weakref.ref(output)
        capture.outputs = [(held, followed.output_version, followed.output_number)]
    capture._loss_boundary = followed.boundary
    if followed.life is not None:
        capture._hooks = [followed.life]
    return capture._hook(0, droppable=False)


def adopt_gradient(capture: RootCapture, gradient: Tensor) -> None:
    """Take over dL/d(output) of a backward that has ended."""
    if not capture.declined:
        one = OutputGradients(torch_private.graph_task_id())
        one.by_output[0] = gradient.detach()
        capture.passes.append(one)


def adopt_loss(capture: RootCapture, loss: Tensor, usual: UsualCall) -> None:
    """Take over what a backward was called on, which was finite and without gradients of the script's."""
    capture.note_backward([loss], are_finite=True)
    capture._backward_site = usual.backward_site
