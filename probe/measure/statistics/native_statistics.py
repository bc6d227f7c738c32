"""Statistics by the native kernel: which tensors it may read, and what it says of them.

Called by `statistics` and, to gather tensors, by the other measures on the same kernel.

The kernel reads plain strided CPU tensors whose elements fill one piece of memory. It looks at every tensor's
address, type, strides and device at every step, so that a gradient of another kind is never read by pointer.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from typing import Final

import numpy as np
from torch import Tensor
from torch.nn import Parameter

from ...compat.torch_memory import local_shard
from ..kernels.binding import COMPLEX, KNOWN_SPECIAL, MISSING, Batch, Kernel
from .torch_statistics import ROWS, Floats, Summary, measure_by_torch, plan_by_torch, summarise

_LOOK_AGAIN_EVERY: Final = 256
"""Calls between two looks for lazily negated tensors (on which only the sign of the mean depends; 40 ns each)
and for tensors that may be read by pointer again."""

_MAX_BLOCKS: Final = 64
_MAX_BLOCKS_BYTES: Final = 1024**2
"""Results kept for reuse: as many as there are steps that wait for the detectors and for the recorder."""


def _references_of_a_free_block() -> int:
    """Count as `_take_block` does: interpreters differ in which references they count."""
    blocks = [(np.zeros(1), 0)]
    block, _ = blocks[0]
    return sys.getrefcount(block)


_REFERENCES_OF_A_FREE_BLOCK: Final = _references_of_a_free_block()


class NativeMeasurement:
    """Measures lists of one length again and again; one call at a time.

    Args:
        kernel: the loaded kernel.
        count: number of tensors.
    """

    def __init__(self, kernel: Kernel, count: int) -> None:
        self.lock = threading.Lock()
        """Held while something is measured."""
        self._kernel, self._batch = kernel, Batch(count)
        self._calls = 0
        self._blocks: list[tuple[Floats, int]] = []
        self._turn = 0
        self._none_missing = np.zeros(count, dtype=np.bool_)
        self._none_missing.flags.writeable = False

    def measure(self, tensors: list[Tensor | None]) -> Summary:
        """Measure all tensors; the list keeps them alive while Python's lock is given away."""
        batch, kernel = self._batch, self._kernel
        job = batch.job
        if self._calls % _LOOK_AGAIN_EVERY == 0:
            batch.kinds[:] = MISSING
            set_aside_lazy(batch, tensors, range(len(tensors)))
        self._calls += 1
        block = self._take_block()
        if not kernel.measure_list(batch, tensors):
            gather(kernel, batch, tensors)
            kernel.measure(batch)
        if job.special:
            return _with_special(batch, tensors, block)
        missing = batch.kinds == MISSING if job.missing else self._none_missing
        total = job.total_norm if job.missing < job.count else None
        return block, missing, not job.nonfinite, total

    def release(self) -> None:
        """Let go of the kept results but one: those in use stay until nobody refers to them."""
        del self._blocks[1:]
        self._turn = 0

    def _take_block(self) -> Floats:
        """Have the results written where no earlier result is still in use; fresh memory is dear."""
        blocks = self._blocks
        if blocks:
            # They are taken in turn, so the next one is the oldest.
            self._turn = turn = (self._turn + 1) % len(blocks)
            block, address = blocks[turn]
            # Nobody else refers to it, and no view does.
            if sys.getrefcount(block) == _REFERENCES_OF_A_FREE_BLOCK:
                self._batch.job.block = address
                return block
        block = np.zeros((ROWS, self._batch.job.count))
        self._batch.job.block = address = block.ctypes.data
        if len(blocks) < _MAX_BLOCKS and (len(blocks) + 1) * block.nbytes <= _MAX_BLOCKS_BYTES:
            blocks.insert(self._turn, (block, address))
        return block


def gather(kernel: Kernel, batch: Batch, tensors: list[Tensor | None]) -> None:
    """Look up the memory of all tensors; those that cannot be read as they lie there are set aside."""
    kernel.gather(batch, tensors)
    if batch.job.complex_count:
        complex_ones = np.flatnonzero((batch.kinds & COMPLEX != 0) & (batch.kinds < KNOWN_SPECIAL))
        if set_aside_lazy(batch, tensors, complex_ones.tolist()):
            kernel.gather(batch, tensors)


def gathered(kernel: Kernel, tensors: list[Tensor | None]) -> Batch:
    """Return a batch of its own with the memory of all tensors looked up."""
    batch = Batch(len(tensors))
    set_aside_lazy(batch, tensors, range(len(tensors)))
    gather(kernel, batch, tensors)
    return batch


def set_aside_lazy(batch: Batch, tensors: list[Tensor | None], indices: Iterable[int]) -> bool:
    """Keep the kernel from tensors whose memory holds negated or conjugated values; return whether any is."""
    lazy = [index for index in indices if _is_lazy(tensors[index])]
    batch.kinds[lazy] = KNOWN_SPECIAL
    return bool(lazy)


def _is_lazy(tensor: Tensor | None) -> bool:
    return (
        type(tensor) in (Tensor, Parameter) and tensor is not None and (tensor.is_neg() or tensor.is_conj())
    )


def _with_special(batch: Batch, tensors: list[Tensor | None], block: Floats) -> Summary:
    """Complete a measured batch by what must not be read by pointer."""
    special = batch.special
    chosen = [tensors[index] for index in special.tolist()]
    chosen = [None if tensor is None else local_shard(tensor) for tensor in chosen]
    missing = batch.kinds == MISSING
    block[:, special], missing[special], _, _ = measure_by_torch(chosen, plan_by_torch(chosen))
    # An error is dear, and what was sparse once will be again.
    batch.kinds[special] = KNOWN_SPECIAL
    return summarise(block, missing)
