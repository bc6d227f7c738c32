"""What a session makes of its regions: documents for the page, events where one is slow, gradient anomalies.

Told of every run through a region, on any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from ...delivery.recorder.tally import GradientAnomaly
from ...detectors.base import Finding
from ...detectors.cause_advice import SLOW_REGION
from ...detectors.episodes import EpisodeTracker
from ...incidents.event_writer import EventWriter
from ...threads.stacks import capture_stack
from ...wire import Event
from ...wire.region_times import REGION_KIND, RegionBody
from .regions import RegionReport, RegionStatistics, slow_message

WRITE_S: Final = 1.0
"""A region's document is written again at the earliest after so long, and
seldom as the run grows: after an eighth of the time since its first run."""
_SHARE: Final = 1 / 8
MOST_WRITTEN: Final = 1500
"""Documents of all regions while the run goes on; each has one more at the end."""
_STRETCHES: Final = 256
"""Stretches of steps that are kept of a region."""
_SHOWN: Final = 10
_PATIENCE: Final = 1


class _Region:
    """What is known of one path beyond its statistics."""

    def __init__(self, now: float) -> None:
        self.began = now
        self.written_at: float | None = None
        self.row: RegionStatistics | None = None
        self.limit_s: float | None = None
        self.stretches: list[tuple[int, int]] = []
        """Steps that it was a part of, neighbours joined."""
        self.episodes: EpisodeTracker | None = None

    def add_steps(self, steps: tuple[int, int]) -> None:
        first, last = steps
        if self.stretches and self.stretches[-1][0] <= first <= self.stretches[-1][1] + 1:
            self.stretches[-1] = (self.stretches[-1][0], max(last, self.stretches[-1][1]))
        else:
            self.stretches = [*self.stretches[-_STRETCHES + 1 :], steps]

    def had(self, anomaly: GradientAnomaly) -> bool:
        """Whether it was a part of a step of an event's."""
        return any(first <= anomaly.last_step and last >= anomaly.step for first, last in self.stretches)


class RegionRecords:
    """The regions of one session.

    Args:
        events: writes its events.
        anomalies: the gradient anomalies so far.
        write: writes a document; called with body, kind and key.
    """

    def __init__(
        self,
        events: EventWriter,
        anomalies: Callable[[], list[GradientAnomaly]],
        write: Callable[[RegionBody, str, str], None],
    ) -> None:
        self._events, self._anomalies, self._write = events, anomalies, write
        self._regions: dict[str, _Region] = {}
        self._written = 0
        self._lock = threading.RLock()

    def take(
        self, report: RegionReport, row: RegionStatistics, limit_s: float | None, *, step: int, now: float
    ) -> None:
        """Account for one run through a region.

        Args:
            report: of the run.
            row: what its path has come to.
            limit_s: of the running average.
            step: under way.
            now: UNIX seconds.
        """
        with self._lock:
            region = self._regions.setdefault(row.path, _Region(now))
            region.row, region.limit_s = row, limit_s if limit_s is not None else region.limit_s
            if report.steps is not None:
                region.add_steps(report.steps)
            if limit_s is not None:
                self._judge(region, row, limit_s, step=step, now=now)
            due = region.written_at is None or self._is_due(region.began, region.written_at, now)
            if due and self._written < MOST_WRITTEN:
                self._written += 1
                self._write_row(region, now)

    def anomalies_at(self, steps: tuple[int, int] | None) -> tuple[str, ...]:
        """Gradient anomalies at these steps, a line each."""
        if steps is None:
            return ()
        return tuple(
            str(one) for one in self._anomalies() if steps[0] <= one.last_step and steps[1] >= one.step
        )

    def completed(self, row: RegionStatistics) -> RegionStatistics:
        """A region's statistics with the number of its gradient anomalies."""
        with self._lock:
            region = self._regions.get(row.path)
            found = 0 if region is None else sum(map(region.had, self._anomalies()))
        return replace(row, gradient_anomalies=found)

    def close(self, *, step: int, now: float) -> None:
        """Write what is not written yet; what is slow now stays so to the end."""
        with self._lock:
            for region in self._regions.values():
                if region.episodes is not None:
                    self._tell(region.episodes.close(step, now), begun=[])
                self._write_row(region, now)

    def clear(self) -> None:
        """Forget the regions; slow ones are told anew."""
        with self._lock:
            self._regions.clear()

    def _is_due(self, began: float, written_at: float, now: float) -> bool:
        # A clock that was set back is no reason to wait.
        return not 0 <= now - written_at < max(WRITE_S, _SHARE * (now - began))

    def _judge(
        self, region: _Region, row: RegionStatistics, limit_s: float, *, step: int, now: float
    ) -> None:
        """One event as long as the running average is above its limit."""
        if region.episodes is None:
            region.episodes = EpisodeTracker(patience=_PATIENCE)
        findings = [_slow(row, limit_s)] if row.running_mean_s > limit_s else []
        begun: list[Event] = []

        def make_event(finding: Finding) -> Event:
            begun.append(self._events.make(finding, step, now, stack=capture_stack(), ended=False))
            return begun[-1]

        states = region.episodes.update(step, now, findings, model=self._events.model, make_event=make_event)
        self._tell(states, begun)

    def _tell(self, states: list[Event], begun: list[Event]) -> None:
        new = {event.id for event in begun}
        for event in states:
            self._events.write(event, is_new=event.id in new)

    def _write_row(self, region: _Region, now: float) -> None:
        row = region.row
        if row is None:
            return
        region.written_at = now
        found = [one for one in self._anomalies() if region.had(one)]
        body = RegionBody(
            path=row.path[:4096],
            count=row.count,
            errors=row.errors,
            total_s=row.total_s,
            mean_s=row.mean_s,
            running_mean_s=row.running_mean_s,
            max_s=row.max_s,
            last_s=row.last_s,
            slow_above_s=region.limit_s,
            rss_delta_bytes=row.rss_delta_bytes,
            max_rss_delta_bytes=row.max_rss_delta_bytes,
            cuda_bytes=row.cuda_bytes,
            max_cuda_delta_bytes=row.max_cuda_delta_bytes,
            gradient_anomalies=len(found),
            newest_anomalies=[str(one)[:512] for one in found[-_SHOWN:]],
        )
        self._write(body, REGION_KIND, row.path)


def _slow(row: RegionStatistics, limit_s: float) -> Finding:
    return Finding(
        kind="performance_degradation",
        severity="warning",
        subject=row.path,
        message=slow_message(row, limit_s),
        value=row.running_mean_s,
        threshold=limit_s,
        advice=SLOW_REGION,
    )
