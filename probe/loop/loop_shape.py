"""What one training step has in common with the next, as far as C has to know it to follow them.

Read off a step that has gone the slow way; two equal shapes are two equal steps. Pure; training thread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from ..attach.call_wrappers import is_own_frame
from ..forensics.adopted_capture import UsualCall
from ..forensics.capture import RootCapture
from ..forensics.loss.loss_terms import LOOKED_THROUGH, read_terms
from ..incidents.lasting import LastingFault
from ..measure.kernels.hot_binding import MAX_ARGUMENTS, MAX_GROUPS, MAX_MICRO_STEPS, MAX_OUTPUTS
from ..step.late_values import LateClipping
from ..step.losses import LossSite
from ..step.open_step import Clipping, FinishedStep
from ..step.stages import Stage

CodeSite = tuple[tuple[CodeType, int], ...]
_READ_BY_TYPE: Final = 2
"""A loss of so few nodes is known by the type of the last."""
_STAGES: Final = ("local", "reduced", "unscaled")


class CallShape(NamedTuple):
    """One forward and its backward: a micro-step."""

    arguments: int
    keywords: int
    tensors: int
    outputs: int
    loss_node: type[Any]
    """Of the loss's `grad_fn`."""
    loss_core: type[Any] | None
    """Of the operation under its constant factors, see `LossTerms`."""
    looks_at_loss: bool
    """Whether the graph of the loss says more than the type of its last node."""
    synchronises: bool
    """Whether DistributedDataParallel was to average gradients after it."""
    forward_site: CodeSite
    """Where the forward was called from."""
    backward_site: CodeSite

    @property
    def loss_site(self) -> LossSite:
        """Where its backward was called, as `LossMeter` has it."""
        return LossSite(self.backward_site, self.synchronises)


class LoopShape(NamedTuple):
    """A step: forwards of one root, a backward of one loss after each, maybe clipping, one update or none."""

    root: int
    """Identity of the module that was called, as are the others."""
    optimizer: int
    groups: tuple[int, ...]
    layout: int
    calls: tuple[CallShape, ...]
    clips: bool
    has_no_update: bool
    """Whether the script, or a GradScaler, leaves the update of every step out."""
    is_scaled: bool
    """Whether a GradScaler scaled the losses."""
    is_late: bool
    """Whether its verdict may come after its update."""
    fault: LastingFault | None
    """What is bad of every step; None: all values are finite."""
    stage: Stage
    rates: tuple[str, ...]
    """Names of the learning rates' series."""
    autocast: tuple[Any, ...]

    @property
    def has_bad_gradients(self) -> bool:
        """Whether the gradients of every step are not finite."""
        return self.fault is not None and self.fault.has_bad_gradients


class _SeenLoss(NamedTuple):
    """What a backward was called on, and where."""

    node: type[Any] | None
    """Of the loss's `grad_fn`; None where it is no plain loss."""
    core: type[Any] | None
    site: CodeSite


class SeenCalls:
    """What the slow way has seen of the forwards and backwards of a step, beside what the step holds."""

    def __init__(self) -> None:
        self._forwards: dict[int, tuple[CodeSite, bool]] = {}
        """By the order of their captures: some are taken back before the step ends."""
        self._losses: dict[int, _SeenLoss] = {}
        """By the newest capture at their backward."""

    def note_forward(self, order: int, site: CodeSite, *, synchronises: bool) -> None:
        """A training forward has returned, whose capture is of this order."""
        if len(self._forwards) > 2 * MAX_MICRO_STEPS:
            self._forwards.clear()
        self._forwards[order] = site, synchronises

    def note_loss(self, order: int, tensors: Any, grad_tensors: Any, site: CodeSite) -> None:
        """A backward is about to begin; the newest capture is of this order."""
        given = tensors if isinstance(tensors, list | tuple) else (tensors,)
        loss = given[0] if len(given) == 1 and grad_tensors is None else None
        is_plain = type(loss) is Tensor and loss.numel() == 1 and loss.grad_fn is not None
        if len(self._losses) > 2 * MAX_MICRO_STEPS:
            self._losses.clear()
        if is_plain and loss is not None:
            self._losses[order] = _SeenLoss(type(loss.grad_fn), read_terms(loss).node, site)
        else:
            self._losses[order] = _SeenLoss(None, None, site)

    def take(self, captures: Sequence[RootCapture], *, looks: bool) -> tuple[CallShape, ...] | None:
        """Return the shapes of a step's calls, and begin the next one; None where C cannot follow them.

        Args:
            captures: of the step's forwards.
            looks: whether every loss has to be looked at.
        """
        forwards = [self._forwards[one.order] for one in captures if one.order in self._forwards]
        losses = [self._losses[one.order] for one in captures if one.order in self._losses]
        self._forwards, self._losses = {}, {}
        if not len(captures) == len(forwards) == len(losses) <= MAX_MICRO_STEPS:
            return None
        shapes = [
            _call_shape(*of_one, looks=looks) for of_one in zip(captures, forwards, losses, strict=True)
        ]
        known = [shape for shape in shapes if shape is not None]
        return tuple(known) if known and len(known) == len(shapes) else None


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
    finished: FinishedStep,
    seen: SeenCalls,
    root: nn.Module,
    optimizer: Optimizer,
    *,
    rates: tuple[str, ...],
    is_late: bool,
    fault: LastingFault | None = None,
    has_no_update: bool = False,
) -> LoopShape | None:
    """Return the shape of a step that C could have followed; None for any other.

    Args:
        finished: the step, judged.
        seen: its calls; those of the next step are noted anew.
        root: the module that was called.
        optimizer: that has made its update, or was to make it.
        rates: names of its learning rates.
        is_late: whether its verdict was allowed to come after its update.
        fault: what was bad of it, where that only counted in open events; None: it is healthy, or news.
        has_no_update: whether no update was made of it.
    """
    opened = finished.opened
    captures = list(opened.captures)
    looks = finished.was_scaled or opened.before_backward_ns > 0
    calls = seen.take(captures, looks=looks)
    if calls is None or not rates or len(optimizer.param_groups) > MAX_GROUPS:
        return None
    if is_late if has_no_update else finished.is_early:
        return None
    if not _is_simple(finished, is_late=is_late, fault=fault) or (opened.forwards, opened.backwards) != (
        len(calls),
        len(calls),
    ):
        return None
    if finished.stage == "reduced" and not calls[-1].synchronises:
        # What averages the gradients is not the root that was called.
        return None
    state = captures[-1].state
    assert state is not None
    return LoopShape(
        root=id(root),
        optimizer=id(optimizer),
        groups=tuple(map(id, optimizer.param_groups)),
        layout=-1,
        calls=calls,
        clips=opened.clipping is not None,
        has_no_update=has_no_update,
        is_scaled=finished.was_scaled,
        is_late=is_late,
        fault=fault,
        stage=finished.stage,
        rates=rates,
        autocast=(state.autocast, state.autocast_cache),
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


def _is_simple(finished: FinishedStep, *, is_late: bool, fault: LastingFault | None) -> bool:
    """Whether it ended as usual, with values that are no news, or on their way if they may be late."""
    opened = finished.opened
    has_usual_end = not (finished.is_updated or opened.is_first_pass)
    loss = finished.loss.value
    has_values = loss is not None and (
        fault is not None or (finished.gradients.is_finite and math.isfinite(loss))
    )
    return (
        has_usual_end
        and _has_usual_clipping(opened.clipping)
        and opened.first_norm is None
        and finished.stage in _STAGES
        and (has_values if finished.late is None else is_late)
    )


def _has_usual_clipping(clipping: Clipping | LateClipping | None) -> bool:
    """Whether what clipping has left follows from what torch's function returned."""
    if isinstance(clipping, LateClipping):
        return clipping.says_what_is_left
    return clipping is None or clipping.after is not None


def _call_shape(
    capture: RootCapture,
    forward: tuple[CodeSite, bool],
    loss: _SeenLoss,
    *,
    looks: bool,
) -> CallShape | None:
    counts, node, graph = _plain_counts(capture), loss.node, capture.loss_graph
    if counts is None or node is None or capture.loss_finding is not None:
        return None
    says_little = node.__name__ in LOOKED_THROUGH or len(graph.nodes) > _READ_BY_TYPE
    return CallShape(
        arguments=counts[0],
        keywords=counts[1],
        tensors=counts[2],
        outputs=capture.output_count,
        loss_node=node,
        loss_core=loss.core,
        looks_at_loss=looks or says_little or graph.gradients is not None,
        synchronises=forward[1],
        forward_site=forward[0],
        backward_site=loss.site,
    )


def _plain_counts(capture: RootCapture) -> tuple[int, int, int] | None:
    """Counts of arguments, keywords and tensors of a call that C can hold; None where it cannot."""
    state = capture.state
    if capture.declined or capture.arguments is None or state is None or capture.is_compiled:
        return None
    has_other_state = state.rng_python is not None or state.rng_numpy is not None
    if has_other_state or capture.state_copies or not state.training:
        return None
    has_usual_outputs = capture.output_count == len(capture.outputs) == len(capture._hooks) <= MAX_OUTPUTS
    if not has_usual_outputs or len(capture.passes) != 1 or capture.backwards != 1:
        return None
    counts = capture.arguments.plain_counts
    return None if counts is None or not 0 < counts[2] <= MAX_ARGUMENTS else counts
