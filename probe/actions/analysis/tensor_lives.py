"""`clear_memory`, and `track_tensor`: how long a named tensor lives, and its size. Waits for no device."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from ...compat import torch_memory
from ...delivery.host_memory import resident_bytes
from ...wire.tracked_tensors import MOST, TensorRow, TrackedBody
from . import tables
from .call_results import Result
from .tensor import occupied_bytes

MOST_TRACKED: Final = 1000
"""Tensors that are remembered; the oldest are forgotten first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLife(Result):
    """One tracked tensor, as it was when it was asked for."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    device: str
    bytes: int
    """What its elements occupy."""
    is_alive: bool
    """Whether the tensor object lives; what a graph has saved of it may keep its memory longer."""
    lifetime_s: float
    """Seconds from the call of `track_tensor` until it was freed, or until now."""

    def __str__(self) -> str:
        """One line."""
        state = "alive" if self.is_alive else "freed"
        size, time_held = tables.size(self.bytes), tables.duration(self.lifetime_s)
        return f"{self.name}: {self.dtype} {self.shape} on {self.device}, {size}, {state} after {time_held}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedTensors(Result):
    """All that is tracked, the oldest first."""

    _derived = ("alive_bytes", "alive_count")

    tensors: tuple[TensorLife, ...]

    @property
    def alive_bytes(self) -> int:
        """Bytes of those that still live; views of one memory count each."""
        return sum(life.bytes for life in self.tensors if life.is_alive)

    @property
    def alive_count(self) -> int:
        """How many still live."""
        return sum(life.is_alive for life in self.tensors)

    def __str__(self) -> str:
        """Totals, then one line each."""
        total = (
            f"{self.alive_count} of {len(self.tensors)} tracked tensors live, {tables.size(self.alive_bytes)}"
        )
        return "\n".join([total, *(f"  {life}" for life in self.tensors)])


class TrackedTensor:
    """What `track_tensor` returns; does not keep the tensor alive."""

    def __init__(self, tensor: Tensor, name: str) -> None:
        self._name = name
        self._shape, self._dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
        self._device, self._bytes = str(tensor.device), occupied_bytes(tensor)
        self._since_s = time.monotonic()
        # To ask it for a key notes the time, without Python code in which a signal's handler could raise.
        self._noted: defaultdict[object, float] = defaultdict(time.monotonic)
        self._reference = weakref.ref(tensor, self._noted.__getitem__)
        # Taken now: of a reference to what is gone there is none.
        hash(self._reference)

    @property
    def _freed_s(self) -> float | None:
        return next(iter(self._noted.values()), None)

    def life(self) -> TensorLife:
        """Return what is known of it now."""
        freed_s = self._freed_s
        until_s = time.monotonic() if freed_s is None else freed_s
        return TensorLife(
            name=self._name,
            shape=self._shape,
            dtype=self._dtype,
            device=self._device,
            bytes=self._bytes,
            is_alive=self._reference() is not None,
            lifetime_s=until_s - self._since_s,
        )

    def row(self, *, monotonic_s: float, unix_s: float) -> TensorRow:
        """Return what a document says of it, given two clocks at the same moment."""
        is_alive, ahead_s = self._reference() is not None, unix_s - monotonic_s
        noted_s = self._freed_s
        freed_s = None if is_alive else monotonic_s if noted_s is None else noted_s
        return TensorRow(
            name=self._name[:512],
            dtype=self._dtype,
            shape=self._shape,
            device=self._device,
            bytes=self._bytes,
            since=round(self._since_s + ahead_s, 3),
            freed=None if freed_s is None else round(freed_s + ahead_s, 3),
        )


_tracked: deque[TrackedTensor] = deque(maxlen=MOST_TRACKED)
_lock = threading.Lock()


def track_tensor(tensor: Tensor, name: str) -> TrackedTensor:
    """Follow a tensor until it is freed; the newest 1000 are remembered, see `tracked_tensors`.

    Raises:
        ValueError: it is no tensor, or a nested one, which has no single shape.
    """
    if not isinstance(tensor, Tensor) or tensor.is_nested:
        raise ValueError(f"track_tensor needs a tensor with one shape, not {type(tensor).__name__}")
    tracked = TrackedTensor(tensor, name)
    with _lock:
        _tracked.append(tracked)
    return tracked


def tracked_tensors() -> TrackedTensors:
    """Return the size and lifetime of everything that `track_tensor` was called with."""
    with _lock:
        tracked = list(_tracked)
    return TrackedTensors(tensors=tuple(one.life() for one in tracked))


def tracked_body() -> TrackedBody:
    """Return what a document says of all of them: the largest of those that live, then those freed last."""
    with _lock:
        tracked = list(_tracked)
    monotonic_s, unix_s = time.monotonic(), time.time()
    rows = [one.row(monotonic_s=monotonic_s, unix_s=unix_s) for one in tracked]
    alive = [row for row in rows if row.freed is None]
    rows.sort(key=lambda row: (row.freed is not None, -row.bytes if row.freed is None else -row.freed))
    return TrackedBody(
        tensors=tuple(rows[:MOST]),
        alive=len(alive),
        alive_bytes=sum(row.bytes for row in alive),
        tracked=len(rows),
    )


def alive_now() -> tuple[int, int]:
    """Return number and bytes of the tracked tensors that live."""
    known = tracked_tensors()
    return known.alive_count, known.alive_bytes


def tracked_count() -> int:
    """How many tensors are remembered, freed ones too."""
    return len(_tracked)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearedMemory(Result):
    """What `clear_memory` has given back."""

    collected: int
    """Objects of reference cycles that were found unreachable."""
    rss_before_bytes: int
    rss_after_bytes: int
    """Resident memory of the process; the allocator may keep what is free."""
    cuda_reserved_before_bytes: int | None
    cuda_reserved_after_bytes: int | None
    """Of the current device; None where CUDA is not in use."""

    def __str__(self) -> str:
        """One line."""
        freed = tables.size(max(self.rss_before_bytes - self.rss_after_bytes, 0))
        before, after, device = self.cuda_reserved_before_bytes, self.cuda_reserved_after_bytes, ""
        if before is not None and after is not None:
            device = f", CUDA cache {tables.size(max(before - after, 0))}"
        return f"{self.collected} objects collected; given back: process {freed}{device}"


def clear_memory() -> ClearedMemory:
    """Collect garbage and give CUDA's cached blocks back; no tensor that is in use is touched."""
    before, reserved = resident_bytes(), _cuda_reserved()
    collected = gc.collect()
    if reserved is not None:
        torch.cuda.empty_cache()
    return ClearedMemory(
        collected=collected,
        rss_before_bytes=before,
        rss_after_bytes=resident_bytes(),
        cuda_reserved_before_bytes=reserved,
        cuda_reserved_after_bytes=_cuda_reserved(),
    )


def _cuda_reserved() -> int | None:
    return torch.cuda.memory_reserved() if torch_memory.cuda_is_initialised() else None
