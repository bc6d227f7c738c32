"""Measures and finishes the steps that C follows without reading their values, with the slow way's own parts.

They lie on a device, where reading them would wait, or their verdict may come after the update. C asks before
clipping and before the update, on the training thread; what is measured arrives as it does in the slow way.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import numpy as np
from torch import Tensor

from ..attach.watched_model import WatchedModel
from ..compat.host_copy import is_capturing, waiting_is_an_error
from ..errors import ReplayError
from ..forensics.adopted_capture import hold_arguments
from ..forensics.arguments import HeldArguments
from ..forensics.bundle.black_box import BlackBox
from ..forensics.loss.loss_terms import LossTerms, NotedLoss
from ..guard import Guard
from ..measure.kernels.hot_binding import CLIPPED, HotCalls, KeptInputs
from ..measure.statistics.late_check import difference
from ..measure.statistics.statistics import PendingStatistics, TensorStatistics
from ..step.clipping import note_clipping
from ..step.open_step import FinishedStep, LogValue, OpenStep
from ..step.stages import Stage
from .loop_shape import CallShape, LoopShape
from .measure_schedule import MeasureSchedule
from .step_pipeline import StepPipeline
from .training_loop import TrainingLoop
from .verdict_timing import VerdictTiming

_logger = logging.getLogger(__name__)
_PART: Final = "followed steps"
_GIVEN: Final = 5
_CHECKED_STEPS: Final = 3
"""So many of the first steps on a device are measured by waiting, too: both have to find the same."""
_distrusted: set[str] = set()
"""Devices of this process on which they have not."""


class _Call(NamedTuple):
    """What C gives of one forward and its backward."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    loss: Tensor
    unscaled: Tensor | None
    noted: NotedLoss | None
    """What it was found to be, where it was looked at."""


class LateFollowing:
    """The `LateSteps` of one session.

    Args:
        model, schedule, timing, loop, pipeline: of the slow way.
        black_box: keeps what the steps were called with.
        guard: of the training thread.
    """

    def __init__(
        self,
        model: WatchedModel,
        schedule: MeasureSchedule,
        timing: VerdictTiming,
        loop: TrainingLoop,
        pipeline: StepPipeline,
        *,
        black_box: BlackBox,
        guard: Guard,
    ) -> None:
        self._model, self._schedule, self._timing = model, schedule, timing
        self._loop, self._pipeline = loop, pipeline
        self._black_box, self._guard = black_box, guard
        self._calls: HotCalls | None = None
        self._stage: Stage = "local"
        self._micro_steps: Sequence[CallShape] = ()
        self._is_scaled = self._has_failed = False
        self._unchecked = _CHECKED_STEPS
        self._spent_ns = 0
        """What the guard had counted when the newest step ended."""

    def follow(self, calls: HotCalls, shape: LoopShape) -> bool:
        """C is about to follow steps of this shape; whether it may."""
        self._calls, self._stage, self._is_scaled = calls, shape.stage, shape.is_scaled
        self._micro_steps = shape.calls
        self._loop.open.measured, self._spent_ns = None, self._guard.spent_ns
        return not (self._has_failed or self._device() in _distrusted)

    def uncounted(self, own_ns: int) -> int:
        """What of the time that C has taken since the newest step the guard has not counted.

        C times its callbacks as a whole, with the Python that they call.
        """
        return max(own_ns - (self._guard.spent_ns - self._spent_ns), 0)

    # -- LateSteps

    def measure(self) -> bool:
        """Start to measure the gradients, which are about to be clipped; False for the slow way."""
        return self._run(self._measure)

    def finish(self, *calls: Any) -> bool:
        """Measure and finish the step that is about to be updated; False for the slow way."""
        given = [_Call(*calls[at : at + _GIVEN]) for at in range(0, len(calls), _GIVEN)]
        is_finished = self._run(self._finish, given)
        self._spent_ns = self._guard.spent_ns
        return is_finished

    def note_clipping(self, total_norm: Any, max_norm: Any) -> None:
        """Note what torch's clipping has returned, and its limit."""
        self._guard.run(_PART, note_clipping, self._loop.open, total_norm, max_norm)

    def log(self, step: int, values: dict[str, LogValue]) -> None:
        """Give values to the step of the newest backward."""
        if step == self._pipeline.last_step:
            self._pipeline.log(values)
        else:
            self._loop.open.logged |= values

    # -- parts

    def _run(self, function: Any, *args: Any) -> bool:
        done = self._guard.run(_PART, function, *args)
        self._has_failed |= done is None
        return bool(done)

    def _measure(self) -> bool:
        """Do what the slow way does from the beginning of a step on, until its gradients are measured."""
        loop, schedule = self._loop, self._schedule
        loop.open.measured = None
        if is_capturing():
            return False
        self._pipeline.begin_step()
        self._pipeline.complete_newest()
        if schedule.observed is not None or schedule.features.update_ratios or not self._timing.is_late:
            return False
        gradients = loop.measure_gradients()
        if isinstance(gradients, TensorStatistics):
            is_good = gradients.is_finite
        else:
            is_good = self._is_measured_right(gradients)
        # What was started is not started again by the slow way.
        loop.open.measured = gradients if is_good else None
        return is_good

    def _finish(self, given: Sequence[_Call]) -> bool:
        assert self._calls is not None
        loop, state = self._loop, self._calls.state
        self._guard.spent_ns += self.uncounted(int(state.step_own_ns))
        state.step_own_ns = 0
        if state.state != CLIPPED and not self._measure():
            return False
        gradients = loop.open.measured
        assert gradients is not None
        # A bad step has this one judged before its update, and perhaps replayed.
        self._pipeline.settle()
        if not self._timing.is_late:
            return False
        finished = self._closed(given, gradients)
        if finished is None:
            return False
        held = list(self._held(given))
        finished.opened.followed_elements = sum(one.first_elements for one in held)
        self._black_box.keep_held(finished.step, held)
        self._pipeline.finish(finished)
        if not self._schedule.is_basic:
            state.attention = 1
        return True

    def _closed(
        self, given: Sequence[_Call], gradients: TensorStatistics | PendingStatistics
    ) -> FinishedStep | None:
        """The step as the slow way has it; None, and still open, where it is known to be a bad one."""
        assert self._calls is not None
        loop, state = self._loop, self._calls.state
        for call, learned in zip(given, self._micro_steps, strict=True):
            terms = LossTerms(node=learned.loss_core) if call.noted is None else call.noted[3]
            loop.losses.adopt(call.loss, call.unscaled, terms, learned.loss_site)
        try:
            finished = loop.close_step(gradients, step=int(state.step), stage=self._stage)
            accumulation = loop.losses.accumulation
            state.accumulation = math.nan if accumulation is None else accumulation
            if self._has_waited(finished) and not self._is_good(finished):
                loop.open = finished.opened  # with its gradients
                return None
        finally:
            loop.losses.reset()
        _note_calls(finished.opened, given)
        finished.opened.samples = int(state.samples)
        finished.opened.before_backward_ns = int(state.before_backward_ns)
        return finished

    def _has_waited(self, finished: FinishedStep) -> bool:
        """Whether the values are here, or will be waited for: an update that a scaler makes has waited."""
        return finished.late is None or self._is_scaled

    def _is_good(self, finished: FinishedStep) -> bool:
        gradients, loss, late = finished.gradients, finished.loss, finished.late
        if late is not None:
            gradients, loss = late.gradients.read(), late.loss()
        if not gradients.is_finite or loss.value is None or not math.isfinite(loss.value):
            return False
        return not self._schedule.features.parameter_norms or bool(
            np.isfinite(self._model.parameter_norms()).all()
        )

    def _held(self, given: Sequence[_Call]) -> Iterator[HeldArguments]:
        """What the forwards were called with."""
        assert self._calls is not None
        for call, of_call in zip(given, self._calls.open_calls, strict=False):
            versions = list(KeptInputs.from_address(of_call.inputs).versions)
            with suppress(ReplayError):
                yield hold_arguments(call.args, call.kwargs, versions)

    # -- on a device that has not shown yet that it does as expected

    def _device(self) -> str:
        return str(self._model.layout.parameters[0].device)

    def _is_measured_right(self, gradients: PendingStatistics) -> bool:
        """Whether what arrives is what is found by waiting; of the first steps on a device alone."""
        if not self._unchecked or not self._model.is_on_cuda or waiting_is_an_error():
            return True
        self._unchecked -= 1
        problem = difference(gradients.read(), self._model.measure_gradients())
        if problem is None:
            return True
        device = self._device()
        _distrusted.add(device)
        _logger.warning(
            "nanscope: what arrives from %s is not what is measured by waiting for it (%s): its steps are "
            "not followed in C any more",
            device,
            problem,
        )
        return False


def _note_calls(opened: OpenStep, given: Sequence[_Call]) -> None:
    """Note what the slow way would have counted of a step's forwards and backwards."""
    opened.forwards = opened.settled_forwards = opened.backwards = len(given)
    opened.loss = given[-1].loss.detach()
