"""When a container that has grown is a leak, whatever comes: how it has grown in looks at the heap so far.

Used by the leak watch on the training thread. Keeps numbers and identities.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final

from .object_watch import ASKED_BYTES, LEAST_BYTES_PER_STEP, LEAST_PER_STEP, ObjectWatch

if TYPE_CHECKING:
    from ..detectors.memory import Growth
    from .leaks import Leak

_MIB: Final = 2**20
HELD_BYTES: Final = 32 * _MIB
HELD_FRACTION: Final = 0.05
"""A container of tensors without graphs is a leak when it holds so much, absolutely and of the process's
memory."""
PLAIN_BYTES: Final = 8 * _MIB
"""One without tensors, where as many objects come to it in a step as `LEAST_PER_STEP` says, or as many bytes
as `LEAST_BYTES_PER_STEP`. What gets less is a history: 20 numbers of each step are 640 bytes, a gigabyte
after 1.7 million steps; a dict of each step's metrics is 300."""
_SUPPORT: Final = 0.5
"""Of what a container gets in a step, so much must come to the heap: else it holds what is there anyway."""


class Certainty:
    """Which containers have grown, and which of those that had have been emptied since.

    Args:
        objects: says whether the number of objects grows.
    """

    def __init__(self, objects: ObjectWatch) -> None:
        self._objects = objects
        self._grown_before: set[int] = set()
        self._lengths: dict[int, int] = {}
        self._emptied: set[int] = set()

    def tables(self) -> list[Collection[int]]:
        """Return what it keeps; most of its memory is theirs."""
        return [self._lengths, self._grown_before, self._emptied]

    def remember(self, grown: Mapping[int, int], sizes: Mapping[int, int]) -> None:
        """Take a comparison.

        Args:
            grown: length of each container that has grown, by identity.
            sizes: of all there are.
        """
        for identity, length in self._lengths.items():
            if sizes.get(identity, 0) < length:
                self._emptied.add(identity)
        self._grown_before |= grown.keys()
        self._lengths |= grown

    @staticmethod
    def are_large(heap: Growth | None) -> bool:
        """Whether the bytes in use grow so much that plain objects may be behind it."""
        return heap is not None and heap.bytes_per_step >= _SUPPORT * LEAST_BYTES_PER_STEP

    def of_now(
        self, reported: Collection[str], least_bytes: float, heap: Growth | None
    ) -> Callable[[Leak], bool]:
        """Return what says whether something is a leak: it keeps graphs, or holds much and grows.

        Args:
            reported: subjects of which an event has been written.
            least_bytes: that a container of tensors holds.
            heap: growth of the bytes in use, if they grow.
        """
        heap_per_step = 0.0 if heap is None else heap.bytes_per_step
        grown_before, emptied = frozenset(self._grown_before), frozenset(self._emptied)

        def is_certain(leak: Leak) -> bool:
            if leak.subject in reported:
                return False
            if leak.has_graph:
                return True
            if leak.is_dataset or leak.identity in emptied or leak.identity not in grown_before:
                return False
            if leak.held_bytes >= least_bytes:
                return True
            are_many = leak.objects_per_step >= LEAST_PER_STEP
            are_large = LEAST_BYTES_PER_STEP <= leak.bytes_per_step <= heap_per_step / _SUPPORT
            return leak.plain_bytes >= PLAIN_BYTES and (
                are_large or (are_many and self._objects.supports(leak.objects_per_step))
            )

        return is_certain


def bytes_left(leak: Leak, least_bytes: float) -> float:
    """Return how many bytes more make a container that grows a leak; infinite: it is none.

    Args:
        leak: what is known of it.
        least_bytes: that a container of tensors holds.
    """
    if not leak.is_plain:
        return least_bytes - leak.held_bytes
    # What holds more than the first was taken for a cache.
    bar = next((bar for bar in (PLAIN_BYTES, ASKED_BYTES) if leak.plain_bytes < bar), math.inf)
    return bar - leak.plain_bytes
