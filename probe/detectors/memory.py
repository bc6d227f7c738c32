"""Growth of memory that goes on, under saw-teeth, scatter and plateaus. Numbers in, verdicts out.

Used by the leak watch on the training thread, with a reading now and then: of the heap, of a device's
allocator or of the process. Streaming; what is kept is some hundred numbers, however long the run.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from itertools import accumulate, pairwise
from statistics import median
from typing import Final, NamedTuple

import msgspec

WINDOW: Final = 16
"""Blocks that are judged together. A block is one reading, or 4, 16, 64 ... of them."""
BLOCK: Final = 4
_SCALES: Final = 9
_WARMUP_STEPS: Final = 5
"""The first steps make the optimizer's state, gradients and scratch space: their growth is none."""
_SIGNAL: Final = 8.0
"""Growth over a window is this many times the scatter round its line (median absolute deviation)."""
_QUARTER_SHARE: Final = 0.35
"""Every quarter of the window has this share of the mean growth of one: no jump, and no growth that ended."""
_KEPT_PACE: Final = 0.75
"""A window grows this many times as fast as everything since the warm-up, else the growth is dying down."""
_NEWEST_SHARE: Final = 0.5
"""Its last quarter grows at this share of the window's pace, else it is dying down, too."""
_JUMPS: Final = 3
"""So many jumps in a window are no growth that goes on: a cache that is made, C that begins to follow the
steps, a thread's first turn. On a busy machine several of them fall into one window ..."""
_LEAST_JUMP: Final = 16.0 * 2**20
"""Bytes from one reading to the next, from which on a rise since the baseline is one allocation: a table that
is loaded says nothing of how fast memory grows beside it."""
_FLOOR_BESIDE_JUMPS: Final = 0.5
_SHARE_BESIDE_JUMPS: Final = 0.25
"""... so the rest has to be this share of the floor, and of all growth."""
_MIB: Final = 2**20


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that has grown over a whole window of readings, and still does."""

    bytes_per_step: float
    bytes_per_second: float
    recent_per_step: float
    """Bytes per step over the newer three quarters of the window."""
    newest_per_step: float
    """Bytes per step from its third quarter to the last: readings come ever more rarely, and the older
    quarters may be of a few steps."""
    value: float
    """Bytes at the lowest of the newest readings."""
    baseline: float
    """Bytes at the lowest of the first readings after the warm-up."""
    steps: int
    """Steps from the first to the last reading of the window."""
    seconds: float
    scale: int
    """0: of single readings; each further one: of blocks of four times as many."""
    total_steps: int
    """Since the warm-up."""
    total_seconds: float
    jumped: float = 0.0
    """Bytes of the largest jumps since the baseline that have not been given back: of one allocation each."""
    readings: tuple[tuple[int, float], ...]
    """(step, bytes) of the window's blocks: the lowest reading of each."""

    @property
    def grown(self) -> float:
        """Bytes since the baseline."""
        return self.value - self.baseline

    @property
    def keeps_pace(self) -> bool:
        """Whether it has not slowed down: a cache that fills, or the logarithm of something, does."""
        if self.newest_per_step < _NEWEST_SHARE * self.bytes_per_step:
            return False
        return self.recent_per_step * self.total_steps >= _KEPT_PACE * (self.grown - self.jumped)


class GrowthDetector:
    """Finds growth that goes on in a series of bytes, fast or slow, under saw-teeth and scatter.

    Judges the lowest reading of each block (what is freed again is no growth), for blocks of 1, 4, 16 ...
    readings, by the medians of the quarters of a window, and their scatter by the median absolute deviation.

    Attributes:
        floor: growth of less than this many bytes over a window is none.
    """

    def __init__(self, *, floor: float = 16 * 1024.0) -> None:
        self.floor = floor
        self.reset()

    def reset(self) -> None:
        """Forget everything: steps have restarted."""
        self._scales = [_Scale() for _ in range(_SCALES)]
        self._first_step: int | None = None
        self._last_step = -1
        self._baseline: _Block | None = None
        self._newest: float | None = None
        self._jumps: list[tuple[float, float]] = []
        """(bytes, level half way up) of the largest rises from one reading to the next, smallest first."""

    def add(self, step: int, time: float, value: float, *, judge: bool = True) -> Growth | None:
        """Take a reading.

        Args:
            step: number of the step at whose end it was taken.
            time: seconds, of any clock that goes forward.
            value: bytes.
            judge: False keeps the reading for later ones, and judges nothing.

        Returns:
            The growth, where a window that this reading completes has grown from its beginning to its end;
            that of the longest such window.
        """
        if step < self._last_step:
            self.reset()
        self._last_step = step
        if self._first_step is None:
            self._first_step = step
        if step < self._first_step + _WARMUP_STEPS or not math.isfinite(value):
            return None
        if self._baseline is not None:
            self._note_jump(value)
        found = None
        block: _Block | None = _Block(step, time, value)
        if self._baseline is None and len(first := self._scales[0].window) == WINDOW // 4:
            self._baseline = min(first, key=lambda item: item.value)
        for number, scale in enumerate(self._scales):
            if block is None:
                break
            block = scale.add(block)
            if judge:
                found = self._judge(number) or found
        return found

    def _note_jump(self, value: float) -> None:
        """Remember a large rise for as long as it is not given back."""
        before, self._newest = self._newest, value
        if before is None:
            return
        kept = [jump for jump in self._jumps if value >= jump[1]]
        if (rise := value - before) >= _LEAST_JUMP:
            kept.append((rise, before + rise / 2))
        self._jumps = sorted(kept)[-_JUMPS:] if kept else kept

    def _judge(self, number: int) -> Growth | None:
        blocks, start = self._scales[number].window, self._baseline
        if start is None or len(blocks) < WINDOW or blocks[-1].value - blocks[0].value < self.floor:
            return None
        window = list(blocks)
        quarters = sustained_growth(window, floor=self.floor)
        if quarters is None:
            return None
        first, last = window[0], window[-1]
        steps, seconds = last.step - first.step, last.time - first.time
        slope = _slope(quarters[0], quarters[3])
        return Growth(
            bytes_per_step=slope,
            bytes_per_second=slope * steps / seconds if seconds > 0 else 0.0,
            recent_per_step=_slope(quarters[1], quarters[3]),
            newest_per_step=_slope(quarters[2], quarters[3]),
            value=last.value,
            baseline=min(start.value, last.value),
            steps=steps,
            seconds=seconds,
            scale=number,
            total_steps=last.step - start.step,
            total_seconds=last.time - start.time,
            jumped=sum([rise for rise, _ in self._jumps]),
            readings=tuple((block.step, block.value) for block in window),
        )


class _Block(msgspec.Struct, frozen=True):
    """The lowest of some readings in a row, where it was read."""

    step: int
    time: float
    value: float


class _Scale:
    """The newest blocks of one length, and those that are to make one of the next."""

    def __init__(self) -> None:
        self.window: deque[_Block] = deque(maxlen=WINDOW)
        self._open: list[_Block] = []

    def add(self, block: _Block) -> _Block | None:
        """Take a block; every fourth time return the four as one."""
        self.window.append(block)
        self._open.append(block)
        if len(self._open) < BLOCK:
            return None
        lowest = min(self._open, key=lambda item: item.value)
        self._open.clear()
        return lowest


class _Quarter(NamedTuple):
    """A quarter of a window."""

    step: float
    """Mean step."""
    value: float
    """Median."""


def sustained_growth(window: Sequence[_Block], *, floor: float) -> list[_Quarter] | None:
    """Return a window's quarters where it has grown all along, by more than scatter and jumps; else None.

    Args:
        window: `WINDOW` blocks, oldest first.
        floor: least growth over the window, bytes.
    """
    size = WINDOW // 4
    quarters = [_quarter(window[start : start + size]) for start in range(0, WINDOW, size)]
    slope = _slope(quarters[0], quarters[3])
    first, last = window[0], window[-1]
    grown = slope * (last.step - first.step)
    if not grown >= floor:
        return None
    least = _QUARTER_SHARE * grown / 4
    if any(later.value - earlier.value < least for earlier, later in pairwise(quarters)):
        return None
    if _grown_beside_jumps(window) < max(_FLOOR_BESIDE_JUMPS * floor, _SHARE_BESIDE_JUMPS * grown):
        return None
    off = [block.value - slope * (block.step - first.step) for block in window]
    middle = median(off)
    scatter = median([abs(value - middle) for value in off])
    return quarters if grown >= _SIGNAL * scatter else None


def _grown_beside_jumps(window: Sequence[_Block]) -> float:
    """Bytes that a window has grown by without its largest jumps; what is freed again later is no growth."""
    kept = list(accumulate([block.value for block in reversed(window)], min))[::-1]
    rises = sorted([later - earlier for earlier, later in pairwise(kept)])
    return sum(rises[:-_JUMPS])


def _quarter(blocks: Sequence[_Block]) -> _Quarter:
    return _Quarter(
        sum([block.step for block in blocks]) / len(blocks), median([block.value for block in blocks])
    )


def _slope(earlier: _Quarter, later: _Quarter) -> float:
    """Bytes per step; 0 where no step lies between."""
    apart = later.step - earlier.step
    return (later.value - earlier.value) / apart if apart > 0 else 0.0


class LeakLimits(msgspec.Struct, frozen=True, kw_only=True):
    """When growth of which nothing is known but its size is a leak. All of them must hold."""

    grown_bytes: float = 512.0 * _MIB
    grown_fraction: float = 0.5
    """Of the baseline."""
    seconds: float = 300.0
    """It has gone on for so long, and at nearly the same pace ..."""
    windows: int = 3
    """... as this many windows in a row say."""
    fills_within_s: float = 24 * 3600.0
    """At this rate the memory that is free is used up within this time, or the process has doubled."""


class LeakJudge:
    """Says when growth that nobody could attribute is a leak all the same."""

    def __init__(self, limits: LeakLimits | None = None) -> None:
        self._limits = limits or LeakLimits()
        self._windows = 0
        self._last_step = -1

    def is_leak(self, growth: Growth | None, *, step: int, free_bytes: float | None) -> bool:
        """Judge a reading's growth.

        Args:
            growth: of this reading; None ends a row of windows once four windows have passed without one.
            step: of this reading.
            free_bytes: memory that is left; None: not known.
        """
        if growth is None:
            return False
        if self._windows and step - self._last_step > 2 * growth.steps:
            self._windows = 0
        if not self._is_large(growth, free_bytes):
            return False
        self._windows += 1
        self._last_step = step
        return self._windows >= self._limits.windows

    def _is_large(self, growth: Growth, free_bytes: float | None) -> bool:
        limits = self._limits
        if growth.scale == 0 or growth.total_seconds < limits.seconds or not growth.keeps_pace:
            return False
        if growth.grown < max(limits.grown_bytes, limits.grown_fraction * growth.baseline):
            return False
        if growth.grown >= growth.baseline or free_bytes is None:
            return True
        return growth.bytes_per_second * limits.fills_within_s >= free_bytes
