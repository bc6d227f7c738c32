"""What one training step has in common with the next, as far as C has to know it to follow them.

Read off a step that has gone the slow way; two equal shapes are two equal steps. Pure; training thread.
"""

from __future__ import annotations

from types import CodeType, FrameType
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from ..attach.call_wrappers import is_own_frame
from ..forensics.adopted_capture import UsualCall
from ..forensics.capture import RootCapture
from ..measure.kernels.hot_binding import MAX_ARGUMENTS, MAX_GROUPS
from ..step.open_step import Clipping, FinishedStep

CodeSite = tuple[tuple[CodeType, int], ...]


class LoopShape(NamedTuple):
    """A step: a forward of one root, a backward of one loss, perhaps clipping, an update by one optimizer."""

    root: int
    """Identity of the module that was called, as are the others."""
    optimizer: int
    groups: tuple[int, ...]
    layout: int
    arguments: int
    keywords: int
    tensors: int
    loss_node: type[Any]
    """Of the loss's `grad_fn`."""
    clips: bool
    stage: str
    rates: tuple[str, ...]
    """Names of the learning rates' series."""
    autocast: tuple[Any, ...]
    forward_site: CodeSite
    """Where the forward was called from."""
    backward_site: CodeSite


class SeenCall(NamedTuple):
    """What the slow way has seen of the calls of a step, beside what the finished step holds."""

    root: nn.Module
    is_plain_output: bool
    """Whether the forward returned one tensor, with a graph."""
    draws: bool
    """Whether the forward has drawn from torch's generator."""
    loss: Tensor | None
    """What backward was called on; None where that was not one plain scalar."""
    loss_node: type[Any]
    forward_site: CodeSite
    backward_site: CodeSite


def site_of_call(frame: FrameType | None, *, frames: int) -> CodeSite:
    """Return code and instruction of the innermost frames outside of the probe that lead to `frame`."""
    while frame is not None and is_own_frame(frame):
        frame = frame.f_back
    site: list[tuple[CodeType, int]] = []
    while frame is not None and len(site) < frames:
        site.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(site)


def shape_of(
    finished: FinishedStep, seen: SeenCall, optimizer: Optimizer, *, layout: int, rates: tuple[str, ...]
) -> LoopShape | None:
    """Return the shape of a healthy step that C could have followed; None for any other.

    Args:
        finished: the step, judged.
        seen: its calls.
        optimizer: that has made its update.
        layout: number of the model's layout.
        rates: names of its learning rates.
    """
    opened = finished.opened
    if not _is_simple(finished) or len(opened.captures) != 1 or len(optimizer.param_groups) > MAX_GROUPS:
        return None
    capture = next(iter(opened.captures))
    counts = _plain_counts(capture)
    if counts is None or not (seen.is_plain_output and seen.loss is not None) or not rates:
        return None
    assert capture.state is not None
    return LoopShape(
        root=id(seen.root),
        optimizer=id(optimizer),
        groups=tuple(map(id, optimizer.param_groups)),
        layout=layout,
        arguments=counts[0],
        keywords=counts[1],
        tensors=counts[2],
        loss_node=seen.loss_node,
        clips=opened.clipping is not None,
        stage=finished.stage,
        rates=rates,
        autocast=(capture.state.autocast, capture.state.autocast_cache),
        forward_site=seen.forward_site,
        backward_site=seen.backward_site,
    )


def usual_call(capture: RootCapture, *, size_cap_bytes: int) -> UsualCall:
    """Return what the calls of equal steps have in common with this one."""
    assert capture.state is not None
    return UsualCall(
        autocast=capture.state.autocast,
        autocast_cache=capture.state.autocast_cache,
        forward_site=capture._call_site,
        backward_site=capture._backward_site,
        size_cap_bytes=size_cap_bytes,
    )


def _is_simple(finished: FinishedStep) -> bool:
    """Whether it was one forward, one backward and one update, with finite and plainly read values."""
    opened, loss = finished.opened, finished.loss
    is_one = (opened.forwards, opened.backwards) == (1, 1)
    has_usual_end = not (finished.is_early or finished.is_updated or finished.was_scaled or finished.late)
    has_usual_clipping = opened.clipping is None or (
        isinstance(opened.clipping, Clipping) and opened.clipping.after is not None
    )
    return (
        is_one
        and has_usual_end
        and has_usual_clipping
        and finished.gradients.is_finite
        and finished.stage == "local"
        and loss.value is not None
        and loss.value == loss.raw
        and not opened.before_backward_ns
    )


def _plain_counts(capture: RootCapture) -> tuple[int, int, int] | None:
    """Counts of arguments, keywords and tensors of a call that C can hold; None where it cannot."""
    state, graph = capture.state, capture.loss_graph
    if capture.declined or capture.arguments is None or state is None or capture.is_compiled:
        return None
    has_other_state = (
        state.rng_cuda is not None or state.rng_python is not None or state.rng_numpy is not None
    )
    # What a node that is not ordinary sends back has to be noted in the backward itself.
    if has_other_state or capture.state_copies or graph.gradients is not None or not state.training:
        return None
    if capture.output_count != 1 or len(capture.outputs) != 1 or len(capture.passes) != 1:
        return None
    counts = capture.arguments.plain_counts
    return None if counts is None or not 0 < counts[2] <= MAX_ARGUMENTS else counts
