"""What the nodes of an armed loss send back, and which of its lines made the first bad gradient.

The hooks sit on the nodes of one backward, which may run on autograd's threads; `armed_loss.py` asks
afterwards, on the training thread. What the hooks note is a few words for nodes that sent something bad.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from torch import Tensor

from ...compat import torch_private
from ...compat.torch_memory import is_wrapper_class
from ..op_recorder import OpNote, of_the_call
from ..origin import Kinds
from ..tensor_facts import classify, summarise
from .loss_values import leaf_of
from .loss_watch import LossWatch

_MAX_NODES: Final = 512


class _Sent(NamedTuple):
    """A node's turn, where what it sent back was bad."""

    order: int
    is_maker: bool
    """Whether all that it received was finite."""
    kinds: Kinds
    targets: tuple[Any, ...]
    """What received something bad: numbers of nodes, or a leaf."""
    operands: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BadNode:
    """The node that made the first bad gradient."""

    note: OpNote
    value_kind: str


class LossBackward:
    """One backward through a loss that was watched."""

    def __init__(self, watch: LossWatch, parameters: Iterable[Tensor]) -> None:
        self._watch = watch
        self._parameters = {id(parameter) for parameter in parameters}
        self._nodes: dict[int, Any] = {}
        self._handles: list[Any] = []
        self._sent: dict[int, _Sent] = {}
        self._task: int | None = None
        self._order = itertools.count()
        self._is_whole = True

    def follow(self, losses: Iterable[Tensor]) -> None:
        """Note what the nodes of some losses send back in the backward that begins."""
        boundary = self._watch.boundary
        pending: list[Any] = [loss.grad_fn for loss in losses]
        while pending:
            node = pending.pop()
            number = None if node is None else torch_private.node_sequence_number(node)
            if number is None or boundary is None or number < boundary or number in self._nodes:
                continue
            if self._watch.place_of(number) is None:
                self._is_whole = self._is_whole and self._watch.is_of_a_forward(number)
                continue
            if len(self._nodes) >= _MAX_NODES:
                self._is_whole = False
                return
            self._nodes[number] = node
            pending += [child for child, _ in node.next_functions]
        reference = weakref.ref(self)
        self._handles = [node.register_hook(_hook(reference, number)) for number, node in self._nodes.items()]

    def release(self) -> None:
        """Take the hooks off, and let go of the graph."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._nodes = {}

    def bad_node(self) -> BadNode | None:
        """Return who made the first bad gradient that reached the model; None where that is not one node.

        To be called before `release`.
        """
        makers = self._makers()
        if not makers:
            return None
        number = min(makers, key=lambda maker: self._sent[maker].order)
        place, node = self._watch.place_of(number), self._nodes[number]
        place = of_the_call(node, place)
        if place is None or not place.frames:
            return None
        sent = self._sent[number]
        note = OpNote(
            place=place,
            backward=True,
            node=torch_private.node_name(node),
            frames=(),
            operands=sent.operands,
        )
        return BadNode(note=note, value_kind=sent.kinds.words)

    def _makers(self) -> set[int]:
        """The nodes that all bad gradients which left the loss come from; none where that is not known."""
        pending = [number for number, sent in self._sent.items() if any(map(self._is_model, sent.targets))]
        makers: set[int] = set()
        seen: set[int] = set()
        while pending:
            number = pending.pop()
            if number in seen:
                continue
            seen.add(number)
            if self._sent[number].is_maker:
                makers.add(number)
                continue
            senders = [other for other, sent in self._sent.items() if number in sent.targets]
            if not senders:
                # A sum of good gradients overflowed, or a hook of the script's own made it.
                return set()
            pending += senders
        return makers if self._is_whole else set()

    def _is_model(self, target: Any) -> bool:
        """Whether what received a gradient lies outside of the loss, and may be a part of the model."""
        if isinstance(target, Tensor):
            return id(target) in self._parameters
        return target is not None and target not in self._nodes

    def _take(self, number: int, sent: Sequence[Tensor | None], received: Sequence[Tensor | None]) -> None:
        task = torch_private.graph_task_id()
        if self._task is None:
            self._task = task
        if task != self._task:
            return
        with torch_private.own_operations():
            bad = [(position, kinds) for position, one in enumerate(sent) if (kinds := _kinds(one))]
            if not bad:
                return
            came = [one for one in received if one is not None]
            node, kinds = self._nodes[number], Kinds.NONE
            for _, more in bad:
                kinds |= more
            is_maker = not any(_kinds(one) for one in came)
            operands: list[str] = []
            if is_maker:
                kept = torch_private.saved_tensors(node)
                operands += [f"kept of the forward {i}: {summarise(one)}" for i, one in enumerate(kept)]
                operands += [f"gradient received {i}: {summarise(one)}" for i, one in enumerate(came)]
                operands += [f"gradient sent back {i}: {summarise(sent[i])}" for i, _ in bad]  # type: ignore[arg-type]
        targets = tuple(_target(node.next_functions[position][0]) for position, _ in bad)
        self._sent[number] = _Sent(next(self._order), is_maker, kinds, targets, tuple(operands))


def _hook(reference: weakref.ref[LossBackward], number: int) -> Callable[[Any, Any], None]:
    def note(sent: Any, received: Any) -> None:
        backward = reference()
        if backward is None:
            return
        # Runs inside the user's backward: an odd kind of tensor must not stop it.
        try:
            backward._take(number, sent, received)
        except (RuntimeError, TypeError, AttributeError, KeyError):
            backward._is_whole = False

    return note


def _kinds(gradient: Tensor | None) -> Kinds:
    if gradient is None:
        return Kinds.NONE
    if torch_private.is_functorch_wrapped(gradient) or is_wrapper_class(type(gradient)):
        raise TypeError("a gradient whose values cannot be read")
    return classify(gradient)


def _target(child: Any) -> Any:
    """What tells a node from others: its number; of a leaf, the leaf."""
    if child is None:
        return None
    leaf = leaf_of(child)
    return torch_private.node_sequence_number(child) if leaf is None else leaf
