"""Performance: steps that take much longer than they did, and steps too many of which go wrong."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from ..wire import Severity
from .base import Finding
from .medians import median_of
from .nonfinite import NEIGHBOURS
from .sample import Floats, Sample
from .sampled_thresholds import SampledThresholds

MOST_OWN: Final = 0.95
"""Share of the time between two samples that can be the probe's own: the rest of more says nothing."""
SKIPPED_INTERVALS: Final = 2
"""The first steps compile, tune and allocate."""
EARLY: Final = 32
"""Intervals that tell how long a step takes at first ..."""
EARLY_S: Final = 5.0
"""... and the time that they must cover."""
RECENT: Final = 64
SLOW_SHARE: Final = 0.8
"""Of the recent intervals that must be slow: an evaluation now and then is none of it."""
MADS: Final = 8.0
WARNING_FACTOR: Final = 2.0
"""Of the rise over the usual: from twice the rise that is allowed on, it is a warning."""
MIN_RECENT: Final = 5
KEPT: Final = 256
"""Step times of the whole run that are kept, evenly spread."""
PARTS: Final = 8
"""Equal parts of the run whose medians rise one after the other where steps take longer and longer ..."""
MOST_FALLS: Final = 3
"""... but for so many of their 28 pairs: the first steps take longer, and other programs disturb. By chance
that happens in 111 of 8! = 40,320 runs, and then not to twice the time."""
MIN_IN_PART: Final = 3
STEPS_IN_PART: Final = 20
"""One time in a part is enough where it is the mean of so many: samples of short steps lie that far apart."""
JUDGED_EVERY: Final = 4
"""Samples."""
GROWING_S: Final = 1.0
"""Seconds that such growth must have gone on for."""
MIN_STEPS: Final = 50
EXPLAINED_FOR: Final = 16
"""Steps for which what an event explains is not looked at again."""
BUSY_SHARE: Final = 0.95
"""Where the training has processors for less of its time, a message tells of it ..."""
SHARED_FACTOR: Final = 1.4
"""... and so many times as much of its own time is what makes a warning: who runs in between empties the
caches, and at `nice 19` steps of 0.8 ms took 1.6 without their waits."""


class _Interval(NamedTuple):
    """From one sample to the next."""

    step: int
    steps: int
    seconds: float
    own_s: float
    """Without those for which the training waited for a processor that other programs had."""
    size: float
    """Elements of the step's inputs, else its samples; 0 where neither is known."""

    @property
    def step_s(self) -> float:
        return self.seconds / self.steps


class SlowdownDetector:
    """Emits `performance_degradation`: information, or a warning where it is grave.

    Judged by the time from one sample to the next, divided by the steps in between; where the step has grown
    (a larger batch, an episode of more moves), by the time that an element of its inputs takes. For a warning
    steps must be as slow without the time in which the training waited for a processor that others had.
    """

    def __init__(self, thresholds: SampledThresholds) -> None:
        self._thresholds = thresholds
        self._reset()

    def _reset(self) -> None:
        self._last: tuple[int, float] | None = None
        self._intervals = 0
        self._early: list[_Interval] = []
        self._early_s = 0.0
        self._level: tuple[float, float, float] | None = None
        self._recent: deque[_Interval] = deque(maxlen=RECENT)
        self._slow = 0
        """Of the recent ones: so few that they cannot be the share that is looked for, as a rule."""
        self._whole = _WholeRun()
        self._longer: list[Finding] = []

    def observe(self, sample: Sample) -> list[Finding]:
        """Return a finding while steps are slow."""
        last = self._last
        if "profiled" in sample.scalars:
            # A profiler has made the step longer, and so the time since the one before.
            self._last = None
            return []
        self._last = (sample.step, sample.time)
        if last is None or sample.step <= last[0] or sample.time <= last[1]:
            if last is not None and sample.step < last[0]:
                self._reset()
            return []
        steps, passed = sample.step - last[0], sample.time - last[1]
        # What the probe itself takes (of a NaN, for a replay) is no slowness of the training.
        seconds = passed - sample.own_s
        if seconds < (1.0 - MOST_OWN) * passed:
            return []
        self._intervals += 1
        if self._intervals <= SKIPPED_INTERVALS:
            return []
        own_s = seconds * sample.processor_share
        size = float(sample.input_elements or sample.scalars.get("samples", 0.0))
        interval = _Interval(sample.step, steps, seconds, own_s, size)
        self._whole.add(interval)
        if self._early_s < EARLY_S or len(self._early) < EARLY:
            self._early_s += seconds
            self._early.append(interval)
            if len(self._early) >= 4 * EARLY:
                del self._early[1::2]
            return self._growing(sample)
        if self._level is None:
            self._level = _level(self._early)
        self._remember(interval)
        return self._judge(sample) or self._growing(sample)

    def _remember(self, interval: _Interval) -> None:
        recent = self._recent
        if len(recent) == recent.maxlen:
            self._slow -= self._is_slow(recent[0])
        recent.append(interval)
        self._slow += self._is_slow(interval)

    def _is_slow(self, interval: _Interval) -> bool:
        """Whether it is above the limit for a batch that has not grown."""
        assert self._level is not None
        usual, mad, _ = self._level
        return interval.step_s > max(self._thresholds.slowdown_factor * usual, usual + MADS * mad)

    def _judge(self, sample: Sample) -> list[Finding]:
        assert self._level is not None
        options, (usual, mad, samples) = self._thresholds, self._level
        if self._slow < SLOW_SHARE * MIN_RECENT:
            return []
        chosen = self._last_stretch()
        if chosen is None:
            return []
        times = np.array([interval.step_s for interval in chosen])
        own_s = np.array([interval.own_s / interval.steps for interval in chosen])
        sizes = np.array([interval.size for interval in chosen])
        # A larger batch may take longer in proportion.
        grown = max(float(median_of(sizes)) / samples, 1.0) if samples > 0.0 else 1.0
        limit = max(options.slowdown_factor * usual, usual + MADS * mad) * grown
        if (times > limit).mean() < SLOW_SHARE:
            return []
        now, own = float(median_of(times)), float(median_of(own_s))
        grave = 1.0 + WARNING_FACTOR * (options.slowdown_factor - 1.0)
        severity: Severity = "warning" if own > grave * usual * grown * _margin(now, own) else "info"
        return [
            Finding(
                kind="performance_degradation",
                severity=severity,
                subject="step_time",
                message=f"A step takes {_seconds(now)} at step {sample.step}, {now / usual:.2g} times as "
                f"long as at first ({_seconds(usual)}), in the last {sum(one.steps for one in chosen)} steps"
                f"{_why_busy(now, own, is_own=own > limit)}",
                value=now,
                threshold=limit,
                baseline={"median": usual, "mad": mad, "least_without_waits": own},
                neighbours=tuple((item.step, item.step_s) for item in list(self._recent)[-NEIGHBOURS:]),
            )
        ]

    def _growing(self, sample: Sample) -> list[Finding]:
        """Steps that take longer and longer, from the first one on."""
        if self._intervals % JUDGED_EVERY == 0:
            self._longer = self._judge_whole(sample)
        return self._longer

    def _judge_whole(self, sample: Sample) -> list[Finding]:
        medians = self._whole.medians()
        if medians is None or sample.step - self._whole.first < 2 * self._thresholds.slowdown_steps:
            return []
        times, own_s = medians
        grave = 1.0 + WARNING_FACTOR * (self._thresholds.slowdown_factor - 1.0)
        # What other programs take comes and goes: without it the rise of the steps' own is seen.
        own_limit = grave * own_s[0] * _margin(times[-1], own_s[-1])
        is_own = _falls(own_s) <= MOST_FALLS and bool(own_s[-1] >= own_limit)
        if times[-1] < grave * times[0] or not (is_own or _falls(times) <= MOST_FALLS):
            return []
        return [
            Finding(
                kind="performance_degradation",
                severity="warning" if is_own else "info",
                subject="step_time",
                message=f"Steps take longer and longer: {_seconds(times[-1])} at step {sample.step}, "
                f"{times[-1] / times[0]:.2g} times as long as at first ({_seconds(times[0])})"
                f"{_why_busy(times[-1], own_s[-1], is_own=is_own)}",
                value=float(times[-1]),
                threshold=float(grave * times[0]),
                baseline={"median": float(times[0]), "least_without_waits": float(own_s[-1])},
            )
        ]

    def _last_stretch(self) -> list[_Interval] | None:
        """The newest intervals that cover enough steps and seconds; None where there are not so many."""
        chosen: list[_Interval] = []
        steps, seconds = 0, 0.0
        for interval in reversed(self._recent):
            chosen.append(interval)
            steps, seconds = steps + interval.steps, seconds + interval.seconds
            is_long = steps >= self._thresholds.slowdown_steps and seconds >= self._thresholds.slowdown_s
            if is_long and len(chosen) >= MIN_RECENT:
                return chosen
        return None


class _WholeRun:
    """Step times of a whole run, by the size of the batch where it grows."""

    def __init__(self) -> None:
        self.first = 0
        self._seconds = 0.0
        self._steps = 0
        self._times: list[tuple[float, float]] = []
        self._size = 0.0
        self._every, self._offered = 1, 0

    def add(self, interval: _Interval) -> None:
        if not self._offered:
            self.first, self._size = interval.step, interval.size
        self._seconds += interval.seconds
        self._steps += interval.steps
        if self._offered % self._every == 0:
            grown = max(interval.size / self._size, 1.0) if self._size > 0.0 else 1.0
            steps = interval.steps * grown
            self._times.append((interval.seconds / steps, interval.own_s / steps))
        self._offered += 1
        if len(self._times) >= KEPT:
            del self._times[1::2]
            self._every *= 2

    def medians(self) -> tuple[Floats, Floats] | None:
        """Median times of equal parts of the run, whole and without waits; None while it is too short."""
        least = PARTS * MIN_IN_PART if self._steps < PARTS * STEPS_IN_PART else PARTS
        if self._seconds < GROWING_S or len(self._times) < least:
            return None
        whole, own = (
            np.array([median_of(part) for part in np.array_split(times, PARTS)])
            for times in np.array(self._times).T
        )
        return whole, own


class AnomalyRateDetector:
    """Emits `high_anomaly_rate`, a warning: told which steps had a warning or worse by `note`.

    Only where no event explains it: many short ones are an unhealthy run, one that lasts speaks for itself.

    Attributes:
        are_explained: says of a first and a last step whether one event has most of the steps with a warning.
        newest: number of the step that was observed last; -1: none yet.
        unjudged_from: the oldest step of which it is not known yet whether it had a warning; None: there is
            none. It and later ones are not counted, neither among those with a warning nor among all.
    """

    def __init__(self, thresholds: SampledThresholds) -> None:
        self._rate, self._window = thresholds.anomaly_rate, thresholds.anomaly_window
        self._steps: set[int] = set()
        """Noted, in whatever order: a verdict may come after those of later steps, or before its sample."""
        self._first: int | None = None
        self.newest = -1
        self.unjudged_from: int | None = None
        self.are_explained: Callable[[int, int], bool] = lambda first, last: False
        self._explained_until = 0

    def note(self, step: int) -> None:
        """Some detector has found a warning or worse at this step; several at one step count once."""
        self._steps.add(step)
        if len(self._steps) > 2 * self._window:
            self._steps = set(sorted(self._steps)[-self._window :])

    def clear(self) -> None:
        """Begin anew at the next step."""
        self._steps.clear()
        self._first = None

    def observe(self, sample: Sample) -> list[Finding]:
        """Return a finding while too many of the recent steps had one."""
        if self._first is None or sample.step < self.newest:
            self._first = sample.step
            if sample.step < self.newest:
                self._steps.clear()
                self._explained_until = 0
        self.newest = sample.step
        return self.again()

    def again(self) -> list[Finding]:
        """Return the same of the newest step that was observed, by what has been noted since, too."""
        if self._first is None:
            return []
        newest = self.newest if self.unjudged_from is None else min(self.newest, self.unjudged_from - 1)
        seen = min(newest - self._first + 1, self._window)
        if seen < min(MIN_STEPS, self._window):
            return []
        self._steps = {step for step in self._steps if step > newest - self._window}
        count = sum(newest - seen < step <= newest for step in self._steps)
        share = count / seen
        if share <= self._rate or newest < self._explained_until:
            return []
        if self.are_explained(newest - seen + 1, newest):
            self._explained_until = newest + EXPLAINED_FOR
            return []
        return [
            Finding(
                kind="high_anomaly_rate",
                severity="warning",
                subject="run",
                message=f"{count} of the last {seen} steps up to step {newest} had a warning, "
                "in events that repeat",
                value=share,
                threshold=self._rate,
            )
        ]


def _falls(values: Floats) -> int:
    """Count the pairs of which the later one is not above the earlier one."""
    return int(np.triu(values[None, :] <= values[:, None], 1).sum())


def _level(intervals: list[_Interval]) -> tuple[float, float, float]:
    """Median and MAD of the seconds of a step, and the median batch size."""
    times = np.array([interval.step_s for interval in intervals])
    median = float(median_of(times))
    sizes = float(median_of([interval.size for interval in intervals]))
    return median, float(median_of(np.abs(times - median))), sizes


def _margin(whole_s: float, own_s: float) -> float:
    """How many times as long a step's own time may be where others had its processor meanwhile."""
    return 1.0 if own_s >= BUSY_SHARE * whole_s else SHARED_FACTOR


def _why_busy(whole_s: float, own_s: float, *, is_own: bool) -> str:
    """What a message says of the time for which the training waited for a processor."""
    if own_s >= BUSY_SHARE * whole_s:
        return ""
    if is_own:
        return "; its threads also wait for processors, but it is slower even without these waits"
    return ". Other programs have the processors: the training waits for them"


def _seconds(value: float) -> str:
    return f"{value * 1e3:.3g} ms" if value < 1.0 else f"{value:.3g} s"
