"""Has finished steps judged by the detectors of sampled numbers, where there is something new for them.

Used by the judge on the training thread, when a step's frame is complete: after its update, and with
what the script logged. Nothing can be replayed any more; these faults are slow ones.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol

from ..detectors.base import Finding
from ..detectors.performance import AnomalyRateDetector
from ..detectors.sample import Sample
from ..incidents.incidents import IncidentReporter
from ..incidents.verdict import Verdict
from ..step.frames import MeasuredStep, build_sample
from ..threads.stacks import RawFrame, is_own_thread, raw_stack

_AT_LEAST_EVERY_S: Final = 0.5
"""A step on which nothing was sampled is still looked at when so much time has passed: for its loss."""
_STACK_FRAMES: Final = 64


class SampleBank(Protocol):
    """The detectors of one model."""

    @property
    def anomaly_rate(self) -> AnomalyRateDetector:
        """Is told of the steps with a warning of the detectors that see every step."""
        ...

    @property
    def has_news(self) -> bool:
        """Whether there is something to say though nothing new was measured."""
        ...

    def observe(self, sample: Sample) -> list[Finding]:
        """Return what is wrong at this step, at most one finding of a kind."""
        ...


class SampleJudge:
    """Judges one model's finished steps.

    Args:
        bank: the detectors.
        incidents: is told what they find.
        processor_share: see `Sample.processor_share`; of the last so many seconds.

    Attributes:
        unjudged_from: returns the oldest step that the detectors that see every step have not seen yet;
            None: there is none. Called under the lock of `incidents`.
    """

    def __init__(
        self, bank: SampleBank, incidents: IncidentReporter, processor_share: Callable[[float], float]
    ) -> None:
        self._bank, self._incidents, self._processor_share = bank, incidents, processor_share
        self.unjudged_from: Callable[[], int | None] = lambda: None
        self._judged_at = self._taken_at = self._own_s = 0.0
        self._has_news = False
        self._stack: Sequence[RawFrame] = ()
        """Of the training loop, as it was last seen."""

    def look_for_news(self) -> None:
        """The detectors were told something; what they make of it is not to wait for a measurement."""
        self._has_news = self._bank.has_news

    def wants(self, measured: MeasuredStep) -> bool:
        """Whether a step has anything that steps usually have not, or none was judged for long.

        To be asked of each step once.
        """
        if measured.taken is not None:
            self.note_own((measured.taken.own_ns + measured.taken.waited_ns) / 1e9)
        if measured.modules is not None or measured.sampled or measured.parameter_norm is not None:
            return True
        return bool(measured.logged) or self.is_due(measured.time)

    def note_own(self, seconds: float) -> None:
        """The probe has taken so long of a step: that is no part of what the step takes."""
        self._own_s += seconds

    def is_due(self, time: float) -> bool:
        """Whether a step that ended then is wanted even if it has nothing that steps usually have not."""
        # A clock that was set back is no reason to wait.
        return self._has_news or not 0.0 <= time - self._judged_at < _AT_LEAST_EVERY_S

    def claim(self, measured: MeasuredStep) -> bool:
        """Like `wants`, for who gives the step to `take` later on."""
        if not self.wants(measured):
            return False
        self._judged_at, self._has_news = measured.time, False
        return True

    def note_alarms(self, steps: Collection[int]) -> None:
        """The detectors that see every step have found something at these; under the lock of `incidents`.

        They may come to them after the samples of the same steps: the rate may be too high since then.
        """
        rate = self._bank.anomaly_rate
        rate.unjudged_from = self.unjudged_from()
        for step in steps:
            rate.note(step)
        if found := rate.again():
            self._note_stack(raw_stack(sys._getframe(1), limit=_STACK_FRAMES))
            self._incidents.report_sampled(
                found, rate.newest, self._taken_at, stack=self._stack, is_whole=False
            )

    def take(self, measured: MeasuredStep, stack: Sequence[RawFrame] | None = None) -> Verdict:
        """Judge a finished step.

        Args:
            measured: the step.
            stack: of the training loop, where another thread judges; None: that of the calling thread.
        """
        self._note_stack(raw_stack(sys._getframe(1), limit=_STACK_FRAMES) if stack is None else stack)
        passed_s, self._taken_at = measured.time - self._taken_at, measured.time
        self._judged_at, self._has_news = measured.time, False
        own_s, self._own_s = self._own_s, 0.0
        sample = build_sample(measured, processor_share=self._processor_share(passed_s), own_s=own_s)
        # Steps that C has followed come on the recorder's thread.
        with self._incidents.lock:
            self._bank.anomaly_rate.unjudged_from = self.unjudged_from()
            findings = self._bank.observe(sample)
            return self._incidents.report_sampled(
                findings,
                sample.step,
                sample.time,
                stack=self._stack,
                is_bad=not measured.is_quiet,
            )

    def _note_stack(self, stack: Sequence[RawFrame]) -> None:
        """Keep the newest stack that is the training loop's: the recorder's thread judges, too."""
        if not is_own_thread(stack):
            self._stack = stack
