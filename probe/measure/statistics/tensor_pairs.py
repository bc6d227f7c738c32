"""Measures of two lists of tensors that read each element once: the turn of gradients, Adam's moments.

By the kernel where it may; the callers know the other way. On the training thread. Called by what keeps
gradients (`observation.gradient_history`) and by `optimizer_state`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..kernels import binding
from ..kernels.binding import COMPLEX, F64, KNOWN_SPECIAL, MARKED, MISSING, Batch, Kernel
from .native_statistics import gathered
from .tensor_measures import dot_products, lie_alike
from .torch_statistics import Floats

Mask: TypeAlias = npt.NDArray[np.bool_]
Marks: TypeAlias = npt.NDArray[np.uint8]

_LEAST_PARTS: Final = 64
"""Smaller tensors are read whole."""


class KeptTensors:
    """Copies of tensors, compared with and replaced by newer ones in one pass.

    Of large ones it is noted which parts are all zeros, as most of an embedding's gradient is: where the
    newer one is zero there too, nothing is read of the copy.

    Attributes:
        tensors: the copies; None where there is none.
    """

    def __init__(self, count: int) -> None:
        self.tensors: list[Tensor | None] = [None] * count
        self._marks: list[Marks | None] = [None] * count

    def __len__(self) -> int:
        return len(self.tensors)

    @property
    def memory_bytes(self) -> int:
        """Size of all copies."""
        copies = sum(tensor.nbytes for tensor in self.tensors if tensor is not None)
        return copies + sum(marks.nbytes for marks in self._marks if marks is not None)

    def has(self, index: int) -> bool:
        """Whether there is a copy."""
        return self.tensors[index] is not None

    def drop(self, index: int) -> None:
        """Forget a copy."""
        self.tensors[index] = self._marks[index] = None

    def renew(self, new: Sequence[Tensor | None]) -> tuple[Floats, Floats]:
        """Measure new tensors with the copies, which then hold the new values; where there is none, make one.

        The numbers are those of `dot_products`.

        Args:
            new: as many as there are copies, strided, of the same shapes; of None no copy is left.

        Returns:
            (tensors,) sums of new * new, and of new * copy; 0 for None, the second also without a copy.

        Raises:
            ValueError: the lists differ in length, or a pair in shape.
        """
        news, olds = list(new), self.tensors
        if len(news) != len(olds):
            raise ValueError(f"{len(news)} tensors cannot be compared with {len(olds)} copies")
        sums, done = self._renew_by_kernel(news)
        left = np.flatnonzero(~done).tolist()
        rest, before = [news[index] for index in left], [olds[index] for index in left]
        sums[:, left] = dot_products(rest, rest), dot_products(rest, before)
        for index in left:
            self._replace(index, news[index])
        return sums[0], sums[1]

    def _renew_by_kernel(self, new: list[Tensor | None]) -> tuple[Floats, Mask]:
        kernel = binding.kernel()
        if kernel is None or not new:
            return np.zeros((2, len(new))), np.zeros(len(new), dtype=np.bool_)
        one, other, done = _alike(kernel, new, self.tensors)
        # Products of extreme float64 overflow or vanish: `dot_products` does these another way.
        done &= (one.kinds != F64) & (one.kinds != F64 | COMPLEX)
        one.sizes[~done] = 0
        addresses = [0 if marks is None else marks.ctypes.data for marks in self._marks]
        return kernel.renew(one, other, np.array(addresses, dtype=np.uint64)), done

    def _replace(self, index: int, new: Tensor | None) -> None:
        old = self.tensors[index]
        if new is None:
            self.drop(index)
            return
        with torch.no_grad():
            if old is None:
                self.tensors[index] = old = new.detach().clone()
                parts = old.numel() * (2 if old.is_complex() else 1) // MARKED
                self._marks[index] = np.ones(parts, dtype=np.uint8) if parts >= _LEAST_PARTS else None
            else:
                old.copy_(new)
        marks = self._marks[index]
        if marks is not None:
            marks[:] = 1


def moment_norms(
    first: Sequence[Tensor | None], second: Sequence[Tensor | None], eps: Floats
) -> tuple[Floats, Mask]:
    """Measure pairs of an optimizer's moments.

    Args:
        first: means of the gradients.
        second: means of their squares.
        eps: (tensors,) what is added to the root of the second.

    Returns:
        (3, tensors) L2 norms of the first, of the second and of first / (sqrt(second) + eps), the quotient in
        float32; and for which tensors, for float64 and what the kernel may not read are left out.
    """
    kernel = binding.kernel()
    if kernel is None or not first:
        return np.zeros((3, len(first))), np.zeros(len(first), dtype=np.bool_)
    one, other, done = _alike(kernel, list(first), list(second))
    done &= (one.kinds & COMPLEX == 0) & (one.kinds != F64)
    one.sizes[~done] = 0
    return kernel.moments(one, other, eps), done


def _alike(
    kernel: Kernel, first: list[Tensor | None], second: list[Tensor | None]
) -> tuple[Batch, Batch, Mask]:
    """Look up both lists, and which pairs the kernel may read and have their elements in the same order."""
    one, other = gathered(kernel, first), gathered(kernel, second)
    alike = (one.kinds == other.kinds) & (one.sizes == other.sizes)
    alike &= (one.kinds != MISSING) & (one.kinds < KNOWN_SPECIAL)
    for index in np.flatnonzero(alike).tolist():
        alike[index] = lie_alike(first[index], second[index])
    return one, other, alike
