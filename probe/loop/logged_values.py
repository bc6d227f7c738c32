"""Where the values of `run.log` go: to the backward that was the newest, and so to the frame of its step.

On the training thread; used by the session, and by what logs by itself (epochs, evaluations).
"""

from __future__ import annotations

from ..actions.step_hooks import StepHooks
from ..delivery.recorder.series_names import SeriesNames
from ..detectors.overfitting import LOGGED_NAMES
from ..step.open_step import LogValue
from .fast_path import FastPath
from .step_pipeline import StepPipeline
from .training_loop import TrainingLoop


class LoggedValues:
    """Takes values for one training loop.

    Args:
        loop: has the step that is open.
        pipeline: has the one that was finished last.
        fast: has neither, where C follows the steps.
        hooks: what logs by itself what a script may log is called.

    Attributes:
        names: under which values were given so far.
    """

    def __init__(self, loop: TrainingLoop, pipeline: StepPipeline, fast: FastPath, hooks: StepHooks) -> None:
        self._loop, self._pipeline, self._fast, self._hooks = loop, pipeline, fast, hooks
        self.names = SeriesNames()

    def log(self, values: dict[str, LogValue]) -> None:
        """Give values to the most recent backward; too late for its frame, they get one of their own."""
        values = self.names.fit(values)
        followed = self._fast.step_of_newest_backward
        if followed is not None and LOGGED_NAMES.isdisjoint(values):
            if self._fast.late is not None and not self._fast.is_counting:
                self._fast.late.log(followed, values)
            elif not self._fast.log(values):
                self._pipeline.add(followed, values)
            return
        self._fast.leave()
        for call in self._hooks.logged.calls:
            call(set(values))
        if not self._loop.log(values):
            self._pipeline.log(values)
