"""Compares a step's gradients with those of the step measured before: cosine, product. Bounded memory.

Called on the training thread with finished gradients; waits for the device. Draws no number of the script's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import torch
from torch import Tensor

from ...compat import torch_modes
from ...measure.statistics.masked import MaskedValues
from ...measure.statistics.tensor_pairs import KeptTensors, Mask
from .measured_rows import Floats
from .outputs import measurable

COPY_LIMIT_BYTES: Final = 256 * 1024 * 1024
_INDEX_BYTES: Final = 8
_WHOLE_ELEMENTS: Final = 1024
"""Tensors up to this size are kept whole, also where there is room for a sample of the others only."""


class GradientTurn(msgspec.Struct, frozen=True, kw_only=True):
    """How the gradients have turned since the step measured before."""

    cosine: float | None
    """Between both gradients as one long vector; None where one of them is zero or no parameter has both."""
    dot: float
    """Their product, over the parameters that have both; an estimate where elements are sampled."""
    norm: float
    """L2 norm of the new one, over the same."""
    previous_norm: float
    by_parameter: MaskedValues
    """(parameters,) cosine of each; missing where it has no gradient in one of the two, or a zero one."""
    kept_fraction: float
    """Share (0-1) of the elements that take part: below 1 it is a random sample, drawn once."""


class GradientHistory:
    """Keeps a copy of the last gradients, or of a fixed random sample of their elements.

    Args:
        limit_bytes: room for the copy, with the sample's indices. Each tensor's share of a sample is that of
            its elements; its cosine is then an estimate with a standard error of about 1 / sqrt(kept).
    """

    def __init__(self, limit_bytes: int = COPY_LIMIT_BYTES) -> None:
        self._limit = limit_bytes
        self._kept = KeptTensors(0)
        self._norms: Floats = np.zeros(0)
        self._samples: dict[int, Tensor] = {}
        self._shapes: list[tuple[object, ...]] = []

    @property
    def memory_bytes(self) -> int:
        """Size of what is kept."""
        return self._kept.memory_bytes + sum(indices.nbytes for indices in self._samples.values())

    def release(self) -> None:
        """Let go of everything."""
        self._kept, self._samples, self._shapes = KeptTensors(0), {}, []

    def compare(self, gradients: Sequence[Tensor | None]) -> GradientTurn | None:
        """Compare with the gradients of the last call, and keep these; None at the first.

        Args:
            gradients: of all parameters, in the same order each time; None where there is none. Sparse ones
                count as None, a DTensor by its local shard.
        """
        dense = [None if gradient is None else measurable(gradient) for gradient in gradients]
        has_earlier = 0 < len(dense) == len(self._kept)
        with torch_modes.own_operations():
            self._plan(dense)
            chosen = [self._elements(index, gradient) for index, gradient in enumerate(dense)]
            weights = self._weights(dense)
            has_both = np.array(
                [new is not None and self._kept.has(index) for index, new in enumerate(chosen)],
                dtype=np.bool_,
            )
            squares, products = self._kept.renew(chosen)
            norms = np.sqrt(weights * squares)
            result = None
            if has_earlier:
                result = self._turn(dense, chosen, has_both, norms, weights * products)
        self._norms = norms
        return result

    def _turn(
        self,
        dense: Sequence[Tensor | None],
        chosen: Sequence[Tensor | None],
        has_both: Mask,
        norms: Floats,
        dots: Floats,
    ) -> GradientTurn:
        lengths = norms * self._norms
        missing = ~has_both | (lengths == 0)
        with np.errstate(all="ignore"):
            cosines = np.where(missing, 0.0, dots / np.where(missing, 1.0, lengths))
            norm, previous = (float(np.sqrt(np.sum(np.square(n[has_both])))) for n in (norms, self._norms))
        whole = sum(tensor.numel() for tensor in dense if tensor is not None)
        kept = sum(tensor.numel() for tensor in chosen if tensor is not None)
        dot = float(dots.sum())
        return GradientTurn(
            cosine=dot / (norm * previous) if norm * previous != 0 else None,
            dot=dot,
            norm=norm,
            previous_norm=previous,
            by_parameter=MaskedValues(cosines, missing),
            kept_fraction=kept / whole if whole else 1.0,
        )

    def _plan(self, gradients: Sequence[Tensor | None]) -> None:
        """Forget what does not fit any more, and draw a sample where there is no room for all."""
        if len(self._kept) != len(gradients):
            self.release()
            self._kept = KeptTensors(len(gradients))
            self._shapes = [()] * len(gradients)
        total = None
        for index, gradient in enumerate(gradients):
            if gradient is None:
                continue
            shape = (gradient.shape, gradient.dtype, gradient.device)
            if shape != self._shapes[index]:
                self._shapes[index] = shape
                self._kept.drop(index)
                self._samples.pop(index, None)
                if total is None:
                    total = sum(tensor.nbytes for tensor in gradients if tensor is not None)
                self._draw(index, gradient, total)

    def _draw(self, index: int, gradient: Tensor, total: int) -> None:
        if total <= self._limit or gradient.numel() <= _WHOLE_ELEMENTS:
            return
        room = self._limit * gradient.nbytes / total
        count = max(int(room / (gradient.element_size() + _INDEX_BYTES)), 1)
        # A generator of our own: the script's must not notice.
        drawn = np.random.default_rng(index).integers(0, gradient.numel(), size=count)
        self._samples[index] = torch.from_numpy(np.sort(drawn)).to(gradient.device)

    def _weights(self, gradients: Sequence[Tensor | None]) -> Floats:
        """Return (parameters,) how many elements each kept one stands for."""
        weights = np.ones(len(gradients))
        for index, sample in self._samples.items():
            gradient = gradients[index]
            weights[index] = 1.0 if gradient is None else gradient.numel() / sample.numel()
        return weights

    def _elements(self, index: int, gradient: Tensor | None) -> Tensor | None:
        if gradient is None:
            return None
        sample = self._samples.get(index)
        return gradient if sample is None else gradient.reshape(-1).index_select(0, sample)
