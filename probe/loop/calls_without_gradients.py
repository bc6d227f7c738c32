"""Sees a model that is called with gradients disabled alone, while backward reaches nothing that is trained.

Used by the wiring watch on the training thread, until the first gradient reaches the model.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Final

from torch import Tensor, nn

from ..compat.torch_nodes import leaves_of
from ..threads.stacks import RawFrame, inner_torch_removed, raw_stack

_MOST_LEAVES: Final = 64
"""A loss of more depends on a network."""
_MOST_OF_OTHERS: Final = 50
"""Backwards that train something else, before this one is asked no more."""
_STACK_FRAMES: Final = 64


class CallsWithoutGradients:
    """Follows the calls without gradients and the backwards of others between two updates.

    What proves the fault: a backward is called on a loss of which no leaf is trained. A loss made anew from a
    number is such a leaf itself. A head behind a frozen model, a critic behind a generator, an input that is
    optimised: each is a leaf that an optimizer has, a parameter, or the same tensor as at the update before.

    Args:
        is_trained: whether an optimizer that steps has a tensor.

    Attributes:
        wants_stack: whether the stack of the next call is to be kept.
    """

    def __init__(self, is_trained: Callable[[Tensor], bool]) -> None:
        self._is_trained = is_trained
        self.wants_stack = False
        self._stack: list[RawFrame] = []
        self._was_called = self._is_rootless = False
        self._leaves: list[weakref.ref[Tensor]] = []
        """Of the backwards before."""
        self._others = 0

    @property
    def is_over(self) -> bool:
        """Whether so many backwards were another model's that these calls are meant to be so."""
        return self._others >= _MOST_OF_OTHERS

    def note_call(self, with_gradients: bool) -> None:
        """The model is called to be evaluated, as it seems."""
        if with_gradients:
            return
        self._was_called = True
        if self.wants_stack and not self._is_rootless:
            self._stack = inner_torch_removed(raw_stack(sys._getframe(1), limit=_STACK_FRAMES))

    def note_backward(self, tensors: Any) -> None:
        """A backward begins that is not known to be one of this model."""
        if not self._was_called:
            return
        given = tensors if isinstance(tensors, list | tuple) else (tensors,)
        losses = [tensor for tensor in given if isinstance(tensor, Tensor)]
        leaves = _first([*(loss for loss in losses if loss.is_leaf), *leaves_of(losses)])
        before = {id(leaf) for reference in self._leaves if (leaf := reference()) is not None}
        is_rootless = (
            bool(losses)
            and len(leaves) < _MOST_LEAVES
            and not any(
                isinstance(leaf, nn.Parameter) or id(leaf) in before or self._is_trained(leaf)
                for leaf in leaves
            )
        )
        self._others += not is_rootless
        self._is_rootless = is_rootless
        self._leaves = [weakref.ref(leaf) for leaf in leaves]

    def take(self) -> bool:
        """Return whether the newest backward before the update that is about to be made was such a one."""
        is_cut_off = self._was_called and self._is_rootless
        self._was_called = self._is_rootless = False
        return is_cut_off

    def take_stack(self) -> list[RawFrame]:
        """Return that of the newest call that was wanted, once."""
        stack, self._stack = self._stack, []
        return stack


def _first(leaves: Iterable[Tensor]) -> list[Tensor]:
    return [leaf for leaf, _ in zip(leaves, range(_MOST_LEAVES), strict=False)]
