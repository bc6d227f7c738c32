"""Has the labels of the first losses counted, until the model is seen to learn more than their frequencies.

Used by the early watch on the training thread. C follows no step meanwhile. That is none where labels cannot
be read, 32 steps where they are balanced or something has been learnt by then, and 700 at most.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim.optimizer import Optimizer

from ..actions.step_hooks import StepHooks
from ..detectors.label_frequencies import LabelFrequencyDetector
from ..guard import Guard
from .counted_labels import labels_in_loss


class LabelLooks:
    """Follows a model's first losses.

    Args:
        detector: is told of each.
        hooks: the callables go in here, and out again.
        on_news: called when the detector has found something.
        guard: runs all of it.
    """

    def __init__(
        self, detector: LabelFrequencyDetector, *, hooks: StepHooks, on_news: Callable[[], None], guard: Guard
    ) -> None:
        self._detector, self._hooks, self._on_news, self._guard = detector, hooks, on_news, guard
        hooks.before_backward.add(self.look_at_labels)
        hooks.after_step.add(self.end_step)

    def look_at_labels(self, tensors: Any, sizes: set[int]) -> None:
        """A backward of this model begins, of these."""
        self._end_unless(self._guard.run_brief("labels", self._note, tensors))

    def _note(self, tensors: Any) -> bool:
        self._detector.note(labels_in_loss(tensors))
        return not self._detector.is_over

    def end_step(self, optimizer: Optimizer, step: int | None) -> None:
        """An optimizer has updated, at a finished step."""
        self._end_unless(step is None or self._guard.run_brief("labels", self._end_step, step))

    def _end_step(self, step: int) -> bool:
        self._detector.end_step(step)
        if self._detector.has_news:
            self._on_news()
        return not self._detector.is_over

    def _end_unless(self, goes_on: bool | None) -> None:
        """Leave the hooks, also after a failure: C is to follow the steps."""
        if not goes_on:
            self._hooks.before_backward.remove(self.look_at_labels)
            self._hooks.after_step.remove(self.end_step)
