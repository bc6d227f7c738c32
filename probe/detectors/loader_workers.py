"""What a DataLoader's worker processes show: that they start anew at each step, or that their memory grows.

Numbers in, findings out. Called on the training thread, once a pass over a DataLoader.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from ..wire.findings import size_text
from .base import Finding

RESTARTS: Final = 10
"""Iterators in a row that are dropped after one step or less before that is said. A loop that takes one batch
for a picture, or breaks off its first epochs, does not do so at ten steps one after the other."""
LEAST_GROWN: Final = 256.0 * 2**20
"""Bytes by which all workers together must have grown since the first pass began."""
PACE: Final = 0.8
"""The newest pass adds this share of what the first one did, else the growth dies down: a cache fills."""
CACHE_LEFT: Final = 0.6
"""A cache in each worker is no leak while it may be filling: with W workers and shuffled samples a worker has
seen 1 - ((W - 1) / W)^n of them after n passes, so that pass n + 1 adds ((W - 1) / W)^n of what the first
did. Nothing is said before that is at most this share."""
KEPT: Final = 32
_RESTART_ADVICE: Final = (
    "Keep the iterator: `batches = iter(loader)` before the loop and `next(batches)` in it, made anew where "
    "it raises StopIteration; or loop over the loader itself.",
    "If one batch at a time is what is wanted, `num_workers=0` is faster, or `persistent_workers=True`.",
)
_GROWTH_ADVICE: Final = (
    "What `__getitem__` appends to or keeps in the dataset stays in each worker for as long as it lives: "
    "bound it, or leave it out.",
    "`persistent_workers=False` frees it at the end of each pass.",
)


class RestartedWorkers:
    """Finds iterators with worker processes that are made at each step; says so once."""

    def __init__(self) -> None:
        self._row = 0
        self._begun_at: int | None = None
        self._took_ns = 0
        self._is_said = False

    def begin(self, step: int | None, *, workers: int, took_ns: int) -> Finding | None:
        """An iterator was made.

        Args:
            step: the newest finished one.
            workers: processes that were started for it.
            took_ns: to make it.
        """
        made, self._begun_at = self._begun_at, -1 if step is None else step
        goes_on = made is not None and 0 < self._begun_at - made <= 1
        self._row = self._row + 1 if goes_on else 0
        self._took_ns = self._took_ns + took_ns if goes_on else 0
        if self._row < RESTARTS or self._is_said:
            return None
        self._is_said = True
        mean_ms = self._took_ns / self._row / 1e6
        processes = "its worker process is" if workers == 1 else f"its {workers} worker processes are"
        return Finding(
            kind="performance_degradation",
            severity="info",
            subject="DataLoader",
            message=f"The DataLoader's iterator is made anew at each of the last {self._row} steps: "
            f"{processes} started and stopped each time, which takes {mean_ms:.0f} ms per step and more",
            value=mean_ms / 1e3,
            threshold=None,
            baseline={"iterators": float(self._row)},
            advice=_RESTART_ADVICE,
        )

    def end(self) -> None:
        """An iterator has given all it has."""
        self._begun_at = None


class GrowingWorkers:
    """Finds memory of one loader's persistent workers that grows from pass to pass; says so once."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._levels: deque[tuple[int, float]] = deque(maxlen=KEPT)
        self._lowest = self._highest = 0.0
        """Bytes when the first pass began, and at most up to now: what is freed in between is no growth."""
        self._first: float | None = None
        """Bytes that the first pass has added."""
        self._passes = 0
        self._is_said = False

    def note(self, step: int, total: float, *, samples: int | None) -> Finding | None:
        """A pass has begun or ended.

        Args:
            step: the newest finished one.
            total: bytes of all workers.
            samples: of a pass; None where not known.
        """
        self._levels.append((step, total))
        if len(self._levels) < 2:
            self._lowest = self._highest = total
            return None
        grown, self._highest = total - self._highest, max(total, self._highest)
        self._passes += 1
        if self._first is None:
            self._first = grown
            return None
        since_first = total - self._lowest
        may_be_a_cache = ((self._workers - 1) / self._workers) ** (self._passes - 1) > CACHE_LEFT
        if self._is_said or may_be_a_cache or since_first < LEAST_GROWN or grown < PACE * self._first:
            return None
        self._is_said = True
        return self._finding(grown, since_first, samples)

    def _finding(self, grown: float, since_first: float, samples: int | None) -> Finding:
        processes = "the worker process" if self._workers == 1 else f"the {self._workers} worker processes"
        each = f" ({size_text(grown / samples)} per sample)" if samples else ""
        return Finding(
            kind="memory_leak",
            severity="warning",
            subject="DataLoader workers",
            message=f"Memory of {processes} of a DataLoader grows by {size_text(grown)} in each pass{each}, "
            f"{size_text(since_first)} so far",
            value=grown,
            threshold=LEAST_GROWN,
            baseline={"passes": float(self._passes), "grown_bytes": since_first},
            neighbours=tuple(self._levels),
            advice=_GROWTH_ADVICE,
        )
