"""Counts, history and samplings of the denoising steps that were monitored in this process."""

from __future__ import annotations

import math
import threading
from collections import deque
from dataclasses import replace
from typing import Any, Final

from ...compat.weak_tables import WeakTable
from ...wire.denoising import MAX_ROWS, DenoisingBody, DenoisingRow
from .diffusion_results import DiffusionCounts, DiffusionStep
from .monitoring import StepFinding

HISTORY: Final = 1000
_MOST_SENTENCES: Final = 16


def _row(seen: DiffusionStep) -> DenoisingRow:
    numbers = {name: getattr(seen, name) for name in ("timestep", "norm", "mean", "std", "min", "max")}
    return DenoisingRow(
        step=max(0, seen.step),
        nan=seen.nan_count,
        inf=seen.inf_count,
        expected_std=seen.expected_std,
        found=next((one.kind for one in seen.findings), ""),
        **{name: value for name, value in numbers.items() if value is not None and math.isfinite(value)},
    )


class DiffusionMonitor:
    """What is known of the samplings of this process; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = DiffusionCounts()
        self._made = 0
        """Samplings ever: their numbers stay different when counts begin anew."""
        self._history: deque[DiffusionStep] = deque(maxlen=HISTORY)
        self._samplings: WeakTable[Any, Sampling] = WeakTable()
        self._others: dict[str, Sampling] = {}
        """Of pipelines that cannot be referred to weakly, by class."""

    @property
    def counts(self) -> DiffusionCounts:
        """What has been counted so far."""
        with self._lock:
            return replace(self._counts, debug_history_length=len(self._history))

    @property
    def history(self) -> tuple[DiffusionStep, ...]:
        """The newest steps, the oldest first."""
        with self._lock:
            return tuple(self._history)

    def clear(self) -> None:
        """Forget steps and counts; samplings that are under way go on."""
        with self._lock:
            self._counts = DiffusionCounts()
            self._history.clear()

    def take(self, pipeline: Any, seen: DiffusionStep) -> Sampling:
        """Count a step, and return the sampling that it belongs to."""
        with self._lock:
            sampling = self._sampling_of(pipeline)
            counts = self._counts
            if sampling is None or seen.step <= sampling.last_step:
                sampling = Sampling(self._made, pipeline)
                self._made += 1
                self._keep(pipeline, sampling)
                counts = replace(counts, samplings=counts.samplings + 1)
            sampling.add(seen)
            self._history.append(seen)
            is_nonfinite = seen.has_nan or seen.has_inf
            self._counts = replace(
                counts,
                total_steps=counts.total_steps + 1,
                total_anomalies=counts.total_anomalies + (not seen.ok),
                nonfinite_steps=counts.nonfinite_steps + is_nonfinite,
                drift_steps=counts.drift_steps + (not seen.ok and not is_nonfinite),
            )
            return sampling

    def _sampling_of(self, pipeline: Any) -> Sampling | None:
        return self._samplings.get(pipeline, self._others.get(type(pipeline).__qualname__))

    def _keep(self, pipeline: Any, sampling: Sampling) -> None:
        try:
            self._samplings[pipeline] = sampling
        except TypeError:
            self._others[type(pipeline).__qualname__] = sampling


class Sampling:
    """One pass over the timesteps."""

    def __init__(self, number: int, pipeline: Any) -> None:
        self.number, self.last_step = number, -1
        self._pipeline = type(pipeline).__name__
        scheduler = getattr(pipeline, "scheduler", None)
        self._scheduler = "" if scheduler is None else type(scheduler).__name__
        self._rows: deque[DenoisingRow] = deque(maxlen=MAX_ROWS)
        self._sentences: list[str] = []
        self._told: set[str] = set()
        self._added = 0

    def add(self, seen: DiffusionStep) -> None:
        """Take the next step."""
        self.last_step = seen.step
        self._added += 1
        self._rows.append(_row(seen))

    def news(self, seen: DiffusionStep) -> list[StepFinding]:
        """What is wrong for the first time in this sampling: what follows from it is no event of its own."""
        new = [one for one in seen.findings if one.kind not in self._told]
        self._told |= {one.kind for one in new}
        self._sentences += [one.message for one in new]
        return new

    def is_due(self) -> bool:
        """Whether the document is written now: after 1, 2, 4, 8 ... steps."""
        return self._added & (self._added - 1) == 0

    def body(self) -> DenoisingBody:
        """Return the document of what there is so far."""
        return DenoisingBody(
            pipeline=self._pipeline[:512],
            scheduler=self._scheduler[:512],
            steps=list(self._rows),
            found=[text[:2048] for text in self._sentences[:_MOST_SENTENCES]],
        )


monitor: Final = DiffusionMonitor()
"""Of this process."""
