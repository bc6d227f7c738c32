"""Remembers what the model was given in the last few steps, by reference, until a bundle asks for it.

Used by the measures on the training thread, at the end of every step: some microseconds, no copy. What is
held is bounded in steps and in bytes; the failing step's own inputs are held by its captures.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from ...compat import torch_memory, torch_modes
from ...detectors.changes import Change, size_change
from ...detectors.why import Move
from ...errors import ReplayError
from ..arguments import HeldArguments
from ..capture import RootCapture

_LEAST_USUAL: Final = 3
_FACTOR: Final = 8.0
"""The largest element of an input is unusual above so many times that of all batches before, of so many."""


class PastBatch(NamedTuple):
    """What one step's forwards were called with, in their order."""

    step: int
    arguments: tuple[HeldArguments, ...]
    nbytes: int
    """What is in memory for its sake."""


class BlackBox:
    """The inputs of the newest steps.

    Args:
        steps: how many are held; 0 holds none.
        limit_bytes: of all of them together; the oldest go first, and a step with more is not held at all.
    """

    def __init__(self, *, steps: int, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._small_bytes = limit_bytes // steps if steps else 0
        """So many steps of this size are within the limit, and nothing has to be counted."""
        self._batches: deque[PastBatch] = deque(maxlen=steps)
        self._has_large = False
        """Whether one of those that are held is larger."""
        self._memory: list[object] = []
        """What the inputs of the newest step were parts of, by references that keep nothing."""

    def keep(self, step: int, captures: Collection[RootCapture]) -> None:
        """A step has ended: hold what its forwards were called with, as far as that was captured."""
        if len(captures) == 1 and not self._has_large:
            for capture in captures:
                held = capture.arguments
                if held is not None and held.nbytes <= self._small_bytes and not held.parts:
                    self._batches.append(PastBatch(step, (held,), held.nbytes))
                    return
        if captures:
            self._keep_within(step, [held for each in captures if (held := each.arguments) is not None])

    def keep_held(self, step: int, arguments: Sequence[HeldArguments]) -> None:
        """The same of a finished step, given what each of its forwards was called with."""
        nbytes = sum(held.nbytes for held in arguments)
        has_parts = any(held.parts for held in arguments)
        if nbytes <= self._small_bytes and not has_parts and not self._has_large:
            self._batches.append(PastBatch(step, tuple(arguments), nbytes))
        else:
            self._keep_within(step, arguments)

    def _keep_within(self, step: int, arguments: Sequence[HeldArguments]) -> None:
        """Count the bytes of all."""
        batches = self._batches
        if not batches.maxlen:
            return
        batch = PastBatch(step, tuple(arguments), self._bytes_for(arguments))
        if not batch.arguments or batch.nbytes > self._limit_bytes:
            return
        batches.append(batch)
        while sum(each.nbytes for each in batches) > self._limit_bytes:
            batches.popleft()
        self._has_large = any(each.nbytes > self._small_bytes for each in batches)

    def _bytes_for(self, arguments: Iterable[HeldArguments]) -> int:
        """Bytes of the inputs, and of what else they keep: all that an output was cut from, say.

        What they are parts of for the second time is a data set that stays in memory anyway.
        """
        nbytes, before, now = 0, self._memory, list[object]()
        for held in arguments:
            nbytes += held.nbytes
            for part in held.parts:
                memory = torch_memory.storage_reference(part)
                if memory not in before:
                    nbytes += (0 if memory in now else torch_memory.storage_bytes(part)) - part.nbytes
                now.append(memory)
        self._memory = now
        return nbytes

    def before(self, step: int) -> list[PastBatch]:
        """The batches of the steps before `step`, the oldest first."""
        return [batch for batch in self._batches if batch.step < step]

    def forget(self) -> None:
        """Let go of all."""
        self._batches.clear()
        self._memory, self._has_large = [], False

    def size_change(self, step: int, newest: Sequence[HeldArguments] = ()) -> Change | None:
        """Say which step up to `step` had the first batch of another size.

        Args:
            step: number of the step that is judged.
            newest: what its own forwards were called with, while it is not among those held.
        """
        held = [(batch.step, batch.arguments) for batch in list(self._batches) if batch.step <= step]
        if newest and not any(number == step for number, _ in held):
            held.append((step, tuple(newest)))
        with torch_modes.own_operations():
            sizes = [_batch_size(arguments) for _, arguments in held]
        return size_change([number for number, _ in held], sizes)

    def moves(self, step: int) -> list[Move]:
        """Say which inputs were far larger than in the batches before, in the steps up to `step`.

        Waits for a device that holds them; to be asked only when an event begins.
        """
        with torch_modes.own_operations():
            held = [
                (batch.step, largest_elements(batch.arguments))
                for batch in list(self._batches)  # on the recorder's thread, while training goes on
                if batch.step <= step
            ]
        found: dict[str, Move] = {}
        for index in range(_LEAST_USUAL, len(held)):
            number, now = held[index]
            for name, value in now.items():
                before = [values[name] for _, values in held[:index] if name in values]
                usual = sorted(filter(math.isfinite, before))
                if len(usual) < _LEAST_USUAL or name in found:
                    continue
                middle = usual[len(usual) // 2]
                if middle > 0.0 and not value <= _FACTOR * usual[-1]:
                    found[name] = Move(name, number, value / middle, what="input")
        return list(found.values())


def _batch_size(arguments: Iterable[HeldArguments]) -> int | None:
    """First dimension of the first input of the first call; None where there is none."""
    for held in arguments:
        try:
            _, _, tensors = held.again()
        except ReplayError:
            return None
        return next((tensor.shape[0] for tensor in tensors.values() if tensor.dim()), None)
    return None


def largest_elements(arguments: Iterable[HeldArguments]) -> dict[str, float]:
    """The largest absolute value of each floating-point input, by its name; of several calls the largest."""
    largest: dict[str, float] = {}
    for held in arguments:
        try:
            _, _, tensors = held.again()
        except ReplayError:
            continue
        for name, tensor in tensors.items():
            if _is_measurable(tensor):
                value = float(torch.linalg.vector_norm(tensor.detach(), float("inf")))
                if not value <= largest.get(name, 0.0):  # a NaN is above everything
                    largest[name] = value
    return largest


def _is_measurable(tensor: Any) -> bool:
    plain = type(tensor) is Tensor and tensor.layout is torch.strided
    return plain and tensor.is_floating_point() and tensor.numel() > 0
