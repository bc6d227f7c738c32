"""Sees that parameters were updated though no optimizer hook has told of it, by looking at a few of them.

Used by the watched model, on the training thread, after every backward and before what may follow an update.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Final, TypeAlias

import torch
from torch import Tensor, nn

from ..compat import torch_memory
from ..compat.torch_memory import version
from ..measure.kernels.hot_binding import MARK_BYTES

_READABLE_BYTES: Final = 4096
"""Of parameters up to this size the bytes are compared too: a change through `.data` makes no new version."""
_COMPARED_BYTES: Final = MARK_BYTES
"""How many of their bytes: what Python takes from its own pool. More would come from malloc, which at that
moment tidies up after everything that the backward has freed (0.2 ms for 2,000 tensors)."""

State: TypeAlias = tuple[int | None, int, bytes]


class MarkedParameter:
    """One parameter that is looked at again and again."""

    __slots__ = ("_address", "_is_plain", "_size", "parameter")

    def __init__(self, parameter: nn.Parameter) -> None:
        self.parameter = parameter
        is_strided = type(parameter) is nn.Parameter and parameter.layout is torch.strided
        self._is_plain = is_strided and not parameter.is_inference()
        self._address, self._size = 0, 0

    @property
    def is_readable(self) -> bool:
        """Whether its bytes are compared too."""
        return self._is_plain and _readable_size(self.parameter) > 0

    @property
    def place(self) -> tuple[int, int] | None:
        """Where it lies, and how many of its bytes are compared; None where that cannot be said."""
        self.state()
        return (self._address, self._size) if self._address else None

    def state(self) -> State:
        """Return what changes when the parameter is changed in place, or given other data."""
        parameter = self.parameter
        if not self._is_plain:
            return torch_memory.version_of(parameter), torch_memory.storage_key(parameter), b""
        address = parameter.data_ptr()
        if address != self._address:
            # A storage that is freed or replaced is at another address.
            self._address, self._size = address, _readable_size(parameter)
        # Not through numpy: a storage that numpy has seen cannot be resized any more.
        return version(parameter), address, ctypes.string_at(address, self._size) if self._size else b""


class UnseenUpdates:
    """Remembers what a few parameters were after a backward."""

    def __init__(self) -> None:
        self._parameters: Sequence[nn.Parameter] = ()
        self._one: list[MarkedParameter] = []
        self._several: list[MarkedParameter] = []
        self._marks: list[tuple[MarkedParameter, State]] = []

    def note_some(self, parameters: Sequence[nn.Parameter]) -> None:
        """The same for parameters whose gradients the script has asked for, and keeps to itself."""
        chosen = (parameters[0], parameters[len(parameters) // 2], parameters[-1])
        marks = [MarkedParameter(each) for each in (*chosen, min(parameters, key=lambda each: each.nbytes))]
        self._marks = [(mark, mark.state()) for mark in marks]

    def note(self, parameters: Sequence[nn.Parameter], *, has_hooks: bool) -> None:
        """Remember the parameters as they are now, after a backward.

        Args:
            parameters: of the model, the same object as long as they are the same.
            has_hooks: whether hooks tell of updates; then this is but for the first of two passes, which
                changes every parameter.
        """
        self._marks = [(mark, mark.state()) for mark in self._marked(parameters, has_hooks=has_hooks)]

    def marked(self, parameters: Sequence[nn.Parameter]) -> MarkedParameter | None:
        """Return the parameter that is looked at where hooks tell of updates, and that has a gradient now."""
        return next(iter(self._marked(parameters, has_hooks=True)), None)

    def adopt(self, mark: MarkedParameter, state: State) -> None:
        """Somebody else has remembered what a parameter was after a backward."""
        self._marks = [(mark, state)]

    def were_made(self) -> bool:
        """Whether parameters were changed since `note`, and nobody called `forget`.

        Of what is changed through `.data` only small parameters on the CPU can be seen.
        """
        return any(mark.state() != before for mark, before in self._marks)

    def forget(self) -> None:
        """An update was told of."""
        self._marks = []

    def _marked(self, parameters: Sequence[nn.Parameter], *, has_hooks: bool) -> list[MarkedParameter]:
        if parameters is not self._parameters:
            self._choose(parameters)
        chosen = self._one if has_hooks else self._several
        marked = [mark for mark in chosen if mark.parameter.grad is not None]
        return marked or [MarkedParameter(each) for each in parameters if each.grad is not None][:1]

    def _choose(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = parameters
        first = MarkedParameter(parameters[0])
        plain = (each for each in parameters if type(each) is nn.Parameter and each.layout is torch.strided)
        by_size = map(MarkedParameter, sorted(plain, key=lambda parameter: parameter.nbytes))
        small = next((mark for mark in by_size if mark.is_readable), first)
        # A script may update only some by hand.
        spread = [MarkedParameter(parameters[len(parameters) // 2]), MarkedParameter(parameters[-1])]
        self._one, self._several = [small], [small, first, *spread]


def _readable_size(parameter: Tensor) -> int:
    """How many bytes to compare of a plain strided parameter: 0 unless small, in one piece and on the CPU."""
    if not parameter.is_cpu or parameter.nbytes > _READABLE_BYTES or not parameter.is_contiguous():
        return 0
    # A script may free the storage of a parameter that it keeps.
    used = parameter.storage_offset() * parameter.element_size() + parameter.nbytes
    return min(parameter.nbytes, _COMPARED_BYTES) if torch_memory.storage_bytes(parameter) >= used else 0
