"""What is gathered of the step under way, seen by the training loop or taken over from C.

The base of `TrainingLoop`, which decides when a step begins and ends. On the training thread.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ..attach.hooks import is_only_listener
from ..attach.watched_model import WatchedModel
from ..forensics.capture import RootCapture
from ..forensics.loss.loss_terms import LossTerms
from ..measure.statistics.statistics import PendingStatistics, TensorStatistics
from ..step.late_values import LateValues
from ..step.losses import LossMeter, LossSite, StepLoss
from ..step.open_step import Clipping, FinishedStep, LogValue, OpenStep, RunningBackward, gradients_seen
from ..step.stages import Stage
from ..step.step_axis import trained_here
from ..step.step_counter import StepCounter
from .step_pipeline import StepPipeline


class GatheredStep:
    """The open step of one training loop.

    Args:
        model: the watched one.
        pipeline: takes finished steps.
        first_step: number of the first.

    Attributes:
        counter: numbers the steps.
        open: what has been gathered since the last frame.
        backward: the backward that is under way, or that raised.
        losses: the scalars of the step so far.
    """

    def __init__(self, model: WatchedModel, pipeline: StepPipeline, *, first_step: int) -> None:
        self.counter = StepCounter(first_step)
        self.open = OpenStep()
        self.backward: RunningBackward | None = None
        self.losses = LossMeter()
        self._model, self._pipeline = model, pipeline
        self._free_since_ns = 0
        """When the newest backward or step ended; 0 before the first."""
        self._has_called_root = self._is_trained_in_parts = False
        self._loses_gradients = False
        """Whether the script has dropped those of a bad step, and no hook told of it."""

    def log(self, values: Mapping[str, LogValue]) -> bool:
        """Give values to the open step; False where it has had no backward yet."""
        if self.open.backwards:
            self.open.logged |= values
        return bool(self.open.backwards)

    def forget(self) -> None:
        """Drop the open step."""
        self.open = OpenStep()

    def close_step(
        self,
        gradients: TensorStatistics | PendingStatistics,
        *,
        step: int,
        stage: Stage,
        is_early: bool = False,
        is_updated: bool = False,
    ) -> FinishedStep:
        """Return what was gathered as a finished step, and begin the next one."""
        opened, self.open = self.open, OpenStep()
        self.counter.end()
        was_scaled, late = self.losses.was_scaled, None
        if isinstance(gradients, PendingStatistics):
            late = LateValues(gradients, self.losses.start_read(forwards=opened.forwards))
            gradients, loss = self._model.unknown_gradients(), StepLoss(None, None)
        else:
            loss = self.losses.read(forwards=opened.forwards)
        self.losses.reset()
        return FinishedStep(opened, step, gradients, stage, loss, was_scaled, is_early, is_updated, late)

    def _is_news(self, *, loss: bool = False, gradients: bool = False) -> bool:
        """Whether a loss or gradients that are not finite are to be judged at once: the update may not come.

        Not where the step before was bad in the same way, and only counted in an event that is open: then
        this one ends as a healthy one does. What is trained beside others is numbered by its early verdict.
        """
        fault = self._pipeline.fault
        return (
            fault is None
            or self._loses_gradients
            or not is_only_listener()
            or fault.has_bad_loss < loss
            or fault.has_bad_gradients < gradients
        )

    def _are_news(self, gradients: TensorStatistics) -> bool:
        """The same of gradients that may be finite."""
        return not gradients.is_finite and self._is_news(gradients=True)

    def _take_back_backward(self) -> None:
        backward, self.backward = self.backward, None
        if backward is None:
            return
        self.losses.forget_after(backward.losses)
        del backward.opened.passes[backward.passes :]
        self.open.loss, self.open.measured = backward.loss, backward.measured

    @property
    def _others_updates(self) -> int:
        """Updates of other watched models on this thread."""
        return trained_here.updates - self.counter.updates

    def is_foreign_backward(self) -> bool:
        """Whether another model of the script is being trained: ours ran no forward since its last frame."""
        return self._has_called_root and not self.open.forwards

    @property
    def _step_of_others(self) -> int | None:
        """Of which number another model's frame is that the open step's backwards were meant for."""
        return trained_here.step_of([number for number, _ in self.open.passes])

    @property
    def is_untrained(self) -> bool:
        """Whether the model was never called, and no backward has reached it yet."""
        return not (self._has_called_root or self._is_trained_in_parts)

    def passes_by(self, tensors: Any) -> bool:
        """Whether a backward, about to run, reaches no watched parameter: it is another model's."""
        given = tensors if isinstance(tensors, list | tuple) else (tensors,)
        losses = [tensor for tensor in given if isinstance(tensor, Tensor)]
        self._is_trained_in_parts = self._model.is_below(losses)
        return not self._is_trained_in_parts

    # -- steps that were followed in C up to here

    def adopt_forward(self, capture: RootCapture, samples: int, *, is_reduced: bool) -> None:
        """The step under way has had this forward, as `begin_forward` would have noted it."""
        if not (self.open.forwards or self.open.backwards):
            self._pipeline.begin_step(self.counter.upcoming)
        self._has_called_root, self._model.is_reduced = True, is_reduced
        self.open.forwards += 1
        self.open.calls += 1
        self.open.samples += samples
        self.open.captures[capture] = samples
        self.counter.open(is_fed=False)

    def adopt_backward(
        self, loss: Tensor, *, unscaled: Tensor | None, terms: LossTerms, site: LossSite, is_over: bool
    ) -> None:
        """It has had a backward of `loss`, which has returned, or is still under way or has raised.

        Args:
            loss: what it was called on; its gradients are not given to the captures yet.
            unscaled: what a GradScaler made it of.
            terms: what its graph said.
            site: where it was called.
            is_over: whether it has returned.
        """
        opened = self.open
        self.backward = self._running_backward()
        self.losses.adopt(loss, unscaled, terms, site)
        opened.passes.append((trained_here.begin_backward(loss), site.line))
        opened.loss = loss.detach()
        if is_over:
            opened.number = self.counter.number
            trained_here.end_backward()
            self.backward = None
            opened.settle()
            self._model.note_backward()

    def _running_backward(self) -> RunningBackward:
        """How the open step is before the backward that begins now, on this thread."""
        opened = self.open
        return RunningBackward(
            opened,
            threading.get_ident(),
            self.losses.count,
            gradients_seen(opened.captures),
            opened.loss,
            opened.measured,
            len(opened.passes),
        )

    def adopt_clipping(self, measured: TensorStatistics, clipping: Clipping) -> None:
        """Its gradients were measured, then clipped."""
        self.open.measured, self.open.clipping = measured, clipping

    def resume_after(self, step: int) -> None:
        """Go on behind steps up to this one, which came another way."""
        self.counter.resume_after(step)
        self._pipeline.resume_after(step)

    def adopt_times(self, *, before_backward_ns: int, free_since_ns: int) -> None:
        """The step under way has waited so long before its backwards, and nothing has run since then."""
        self.open.before_backward_ns, self._free_since_ns = before_backward_ns, free_since_ns

    @property
    def free_since_ns(self) -> int:
        """When the newest backward or step ended; 0 before the first."""
        return self._free_since_ns
