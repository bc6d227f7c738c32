"""Long series in few numbers, for a report: running summaries and curves of bounded size. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from .call_results import Result

BUCKETS: Final = 256
"""Points of a curve at most; from half as many on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesSummary(Result):
    """One scalar of the steps that were read; `first` and `last` as they are, the rest of finite values."""

    name: str
    count: int
    first: float | None
    last: float | None
    low: float | None
    high: float | None
    mean: float | None
    nonfinite: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint(Result):
    """Values of neighbouring steps, pooled."""

    first_step: int
    last_step: int
    mean: float | None
    """Of the finite values; None where there is none."""
    low: float | None
    high: float | None
    nonfinite: int


class RunningSummary:
    """Running summary of one scalar, of any length."""

    def __init__(self) -> None:
        self._count = self._nonfinite = 0
        self._sum = 0.0
        self._first: float | None = None
        self._last: float | None = None
        self._low, self._high = math.inf, -math.inf

    def add(self, value: float) -> None:
        """Take one value."""
        self._count += 1
        self._first = value if self._first is None else self._first
        self._last = value
        if not math.isfinite(value):
            self._nonfinite += 1
            return
        self._sum += value
        self._low, self._high = min(self._low, value), max(self._high, value)

    def summary(self, name: str) -> SeriesSummary:
        """What has been taken so far."""
        finite = self._count - self._nonfinite
        return SeriesSummary(
            name=name,
            count=self._count,
            first=self._first,
            last=self._last,
            low=self._low if finite else None,
            high=self._high if finite else None,
            mean=self._sum / finite if finite else None,
            nonfinite=self._nonfinite,
        )


class _Bucket:
    """What `CurvePoint` says, while it grows."""

    __slots__ = ("count", "first", "high", "last", "low", "nonfinite", "taken", "total")

    def __init__(self, step: int) -> None:
        self.first = self.last = step
        self.count = self.nonfinite = self.taken = 0
        self.total = 0.0
        self.low, self.high = math.inf, -math.inf

    def add(self, step: int, value: float) -> None:
        self.first, self.last = min(self.first, step), max(self.last, step)
        self.taken += 1
        if math.isfinite(value):
            self.count += 1
            self.total += value
            self.low, self.high = min(self.low, value), max(self.high, value)
        else:
            self.nonfinite += 1

    def merge(self, other: _Bucket) -> None:
        self.first, self.last = min(self.first, other.first), max(self.last, other.last)
        self.taken += other.taken
        self.count, self.nonfinite = self.count + other.count, self.nonfinite + other.nonfinite
        self.total += other.total
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)

    def point(self) -> CurvePoint:
        is_empty = not self.count
        return CurvePoint(
            first_step=self.first,
            last_step=self.last,
            mean=None if is_empty else self.total / self.count,
            low=None if is_empty else self.low,
            high=None if is_empty else self.high,
            nonfinite=self.nonfinite,
        )


class Curve:
    """A series pooled into at most `BUCKETS` points of equally many values: lows, highs and NaN are kept."""

    def __init__(self) -> None:
        self._buckets: list[_Bucket] = []
        self._width = 1

    def add(self, step: int, value: float) -> None:
        """Take the value of a step."""
        if not self._buckets or self._buckets[-1].taken >= self._width:
            if len(self._buckets) >= BUCKETS:
                self._halve()
            if not self._buckets or self._buckets[-1].taken >= self._width:
                self._buckets.append(_Bucket(step))
        self._buckets[-1].add(step, value)

    def _halve(self) -> None:
        """Pool neighbours."""
        merged = self._buckets[::2]
        for bucket, other in zip(merged, self._buckets[1::2], strict=False):
            bucket.merge(other)
        self._buckets, self._width = merged, 2 * self._width

    def points(self) -> tuple[CurvePoint, ...]:
        """In the order in which the values came."""
        return tuple(bucket.point() for bucket in self._buckets)
