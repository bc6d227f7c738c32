"""What nodes of a loss receive and send back in its backward, and which made the first bad gradient.

A finite loss says nothing of its derivatives, which are gone after the backward: small ones are kept until
the next step, of large ones the extremes. Called by the capture, and by the backward on whatever thread.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor

from ...compat import torch_engine, torch_memory, torch_modes
from ...compat.torch_memory import version
from ...guard import let_pass
from ..nonfinite_kinds import Kinds
from ..tensor_facts import classify, is_checkable

MAX_WATCHED: Final = 32
"""A loss with more nodes to look at is not watched: each costs about 4 microseconds."""
_KEPT_BYTES: Final = 1 << 16
"""Of a gradient with more memory only the extremes are kept, so that a loss keeps some MiB at most."""

_ROOM: Final = 1e-3
"""Gradients below this share of what their type can hold do not overflow when some hundreds are added."""

_Held: TypeAlias = tuple[Tensor, int] | tuple[Tensor, Tensor] | None
"""A gradient with its version, or its (smallest, largest) element; None for one of an odd kind."""


class _Note(NamedTuple):
    """One node's turn in the backward."""

    name: str
    received: Sequence[_Held]
    sent: Sequence[_Held]


class BadGradient(NamedTuple):
    """Which nodes made bad gradients of good ones."""

    makers: tuple[str, ...]
    """Their names, in the order of the backward."""
    value_kind: str
    """What the first of them made."""


class LossGradients:
    """The notes of one backward through a loss."""

    __slots__ = ("__weakref__", "_handles", "_is_whole", "_notes", "task")

    def __init__(self) -> None:
        self.task = -1
        """Of the backward that was noted."""
        self._notes: list[_Note] = []
        self._handles: list[Any] = []
        self._is_whole = True

    @classmethod
    def watch(cls, nodes: Sequence[tuple[str, Any]]) -> LossGradients | None:
        """Note what nodes, given by name, do in the backward that follows; None where they are too many."""
        if len(nodes) > MAX_WATCHED:
            return None
        noted = cls()
        reference = weakref.ref(noted)
        noted._handles = [node.register_hook(_hook(reference, name)) for name, node in nodes]
        return noted

    def release(self) -> None:
        """Take the hooks off: the graph may be sent back once more."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def bad_gradient(self, following: Iterable[Tensor]) -> BadGradient | None:
        """Return who made the first bad gradient; None where it is not known. Synchronises.

        Args:
            following: the gradients of the forward's outputs, which the backward came to next.
        """
        makers: list[tuple[str, Kinds]] = []
        if not self._is_whole or self._may_have_overflowed(following):
            return None
        for note in self._notes:
            received, sent = _kinds(note.received), _kinds(note.sent)
            if received is None or sent is None or (received and not makers):
                return None
            if sent and not received:
                makers.append((note.name, sent))
        if not makers:
            return None
        return BadGradient(tuple(name for name, _ in makers), makers[0][1].words)

    def _may_have_overflowed(self, following: Iterable[Tensor]) -> bool:
        """Whether gradients are so large that a node that was not noted can have made an infinity of them."""
        held = [one for note in self._notes for one in (*note.received, *note.sent) if one is not None]
        dtypes = {gradient.dtype for gradient, _ in held} | {gradient.dtype for gradient in following}
        limit = min((torch.finfo(dtype).max for dtype in dtypes), default=math.inf)
        return any(_largest_finite(one) > limit * _ROOM for one in held)

    def _take(self, name: str, received: Iterable[Tensor | None], sent: Iterable[Tensor | None]) -> None:
        task = torch_engine.graph_task_id()
        if not self._notes:
            self.task = task
        if task == self.task:
            self._notes.append(_Note(name, _hold(received), _hold(sent)))


def _hook(reference: weakref.ref[LossGradients], name: str) -> Callable[[Any, Any], None]:
    # The hook lives as long as the graph, what is noted no longer than the capture.
    def note(sent: Any, received: Any) -> None:
        noted = reference()
        if noted is None:
            return
        # Runs inside the user's backward: an odd kind of tensor must not stop it.
        try:
            noted._take(name, received, sent)
        except (RuntimeError, TypeError, AttributeError) as error:
            let_pass(error)
            noted._is_whole = False

    return note


def _hold(gradients: Iterable[Tensor | None]) -> list[_Held]:
    return [_held(gradient) for gradient in gradients if gradient is not None]


def _held(gradient: Tensor) -> _Held:
    if type(gradient) is not Tensor or gradient.layout is not torch.strided:
        return None
    # A small view may be one of a large gradient.
    is_small = gradient.nbytes <= _KEPT_BYTES and not torch_memory.is_view(gradient)
    if is_small or torch_memory.storage_bytes(gradient) <= _KEPT_BYTES:
        return gradient.detach() if gradient.requires_grad else gradient, version(gradient)
    if not is_checkable(gradient) or gradient.is_complex():
        return None
    with torch_modes.own_operations():
        smallest, largest = torch.aminmax(gradient)
    return smallest, largest


def _kinds(gradients: Iterable[_Held]) -> Kinds | None:
    """What gradients hold; None where that is not known."""
    kinds = Kinds.NONE
    for held in gradients:
        if held is None:
            return None
        tensor, version_or_largest = held
        if isinstance(version_or_largest, Tensor):
            kinds |= _kinds_between(tensor.item(), version_or_largest.item())
        elif version(tensor) == version_or_largest and (tensor.numel() == 0 or is_checkable(tensor)):
            kinds |= classify(tensor)
        else:
            return None
    return kinds


def _largest_finite(held: tuple[Tensor, int] | tuple[Tensor, Tensor]) -> float:
    """The largest magnitude of the finite elements, as far as it is known; 0 where there are none."""
    tensor, version_or_largest = held
    both = (tensor, version_or_largest) if isinstance(version_or_largest, Tensor) else (tensor,)
    finite = torch.cat([values[torch.isfinite(values)].abs().reshape(-1) for values in both])
    return float(finite.max()) if finite.numel() else 0.0


def _kinds_between(smallest: float, largest: float) -> Kinds:
    if math.isnan(smallest) or math.isnan(largest):
        # Infinities beside a NaN do not show.
        return Kinds.NAN | Kinds.POSITIVE_INFINITY | Kinds.NEGATIVE_INFINITY
    kinds = Kinds.POSITIVE_INFINITY if largest == math.inf else Kinds.NONE
    return kinds | (Kinds.NEGATIVE_INFINITY if smallest == -math.inf else Kinds.NONE)
