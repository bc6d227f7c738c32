"""The session's side of the fast path: when C may follow its steps, and how the slow way goes on after them.

Used on the training thread.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from ..attach.hooks import is_only_listener
from ..attach.root_calls import root_calls
from ..attach.watched_model import WatchedModel
from ..compat import torch_memory, torch_ranks
from ..delivery.recorder.recorder import Recorder
from ..delivery.recorder.ring_format import Template
from ..errors import ReplayError
from ..forensics.adopted_capture import FollowedCall, hold_arguments
from ..forensics.bundle.black_box import BlackBox
from ..forensics.capture import RootCapture
from ..forensics.loss.loss_graph import read_loss_graph
from ..forensics.loss.loss_terms import NotedLoss, read_terms
from ..guard import Guard
from ..measure.kernels import hot_binding
from ..measure.kernels.hot_binding import OWN_SCALARS
from ..measure.statistics.statistics import TensorStatistics
from ..measure.statistics.torch_statistics import ROWS
from ..step.backward_time import time_own_backward
from ..step.losses import LossSite
from ..step.open_step import Clipping, LogValue
from ..step.step_meters import StepMeters
from ..threads.call_sites import rejoined
from ..threads.stacks import RawFrame, raw_stack
from ..wire import MEMBERS_IN_FULL, member_number
from .armed_loop import ArmedLoop, FollowedSteps, Plan
from .failed_forward import FailedForward
from .followed_modules import FollowedModules
from .followed_records import FollowedRecords, Following
from .loop_shape import LoopShape
from .measure_schedule import MeasureSchedule
from .news_watch import Lookout
from .step_measures import GLANCED_ELEMENTS, StepMeasures
from .step_pipeline import StepPipeline
from .training_loop import TrainingLoop
from .verdict_timing import VerdictTiming

if TYPE_CHECKING:
    from .followed_late import LateFollowing

_STACK_FRAMES: Final = 64
_AHEAD: Final = 256
"""So far ahead is looked for a step on which more is due; what was followed is accounted for there."""
_FAR_AHEAD: Final = 2048
"""The same where it is accounted for at the steps at which modules are observed."""


class Account(NamedTuple):
    """What C has followed since it was armed."""

    steps: int
    own_ns: int
    ended_ns: int
    """When the newest of them ended; with no steps, when the one before them did."""


class FollowedTraining:
    """One session's parts, as the fast path needs them.

    Args:
        modules: measures what modules return in steps that C follows.
        records: has what C writes judged.
        wants_every_step: whether somebody has to be told of every step as it is made.
        lookout: looks about at the end of a backward, where there is news.
        failed: remembers a forward that has raised.
        timing: says whether the verdict of a step may come after its update.
        measure_late: makes what measures such steps.
        input_limit_bytes: inputs of a step that are larger are not held.
        output_limit_bytes: the same of dL/d(output).
    """

    def __init__(
        self,
        model: WatchedModel,
        measures: StepMeasures,
        schedule: MeasureSchedule,
        meters: StepMeters,
        loop: TrainingLoop,
        pipeline: StepPipeline,
        *,
        recorder: Recorder,
        guard: Guard,
        black_box: BlackBox,
        modules: FollowedModules,
        records: FollowedRecords,
        wants_every_step: Callable[[], bool],
        lookout: Lookout,
        failed: FailedForward,
        timing: VerdictTiming,
        measure_late: Callable[[], LateFollowing],
        input_limit_bytes: int,
        output_limit_bytes: int,
    ) -> None:
        self._model, self._measures, self._schedule, self._meters = model, measures, schedule, meters
        self._loop, self._pipeline, self._recorder, self._guard = loop, pipeline, recorder, guard
        self._black_box, self._records, self._modules = black_box, records, modules
        self._wants_every_step, self._failed = wants_every_step, failed
        self._lookout, self._timing, self._measure_late = lookout, timing, measure_late
        self._late: LateFollowing | None = None
        """Made for the first of them."""
        self._input_limit_bytes, self._output_limit_bytes = input_limit_bytes, output_limit_bytes
        self._accounted = Account(0, 0, 0)
        self._is_timed = False
        """Whether what a backward waits for other ranks is measured."""
        self._is_following_late = False
        self._armed_stack: list[RawFrame] = []
        """Of the training loop, when C was armed."""
        self._logged: dict[str, LogValue] = {}
        """Of the step under way."""

    # -- arming

    def plan_for(
        self,
        shape: LoopShape,
        root: nn.Module,
        optimizer: Optimizer,
        *,
        draws: bool,
        take_over: Callable[[], object],
    ) -> Plan | None:
        """Return what C has to know of such steps; None where somebody has to be told of every step."""
        if self._wants_every_step() or not self._is_alone(root, is_late=shape.is_late):
            return None
        self._is_following_late = shape.is_late
        ratios_every = 0 if shape.is_late or shape.has_no_update else self._measures.ratios_every
        places = self._measures.update_places(optimizer) if ratios_every else None
        if ratios_every and places is None:
            return None
        if shape.is_scaled != bool(self._measures.loss_scale()):
            return None
        ring, is_distributed = self._recorder.ring, torch_ranks.is_distributed()
        read = tuple(self._measures.loss_scale())
        self._is_timed = is_distributed
        further = (*read, *(("own_backward_s", "before_backward_s") if is_distributed else ()))
        layout = self._model.layout.record
        member = member_number(layout.member)
        described = Template(
            layout=layout.layout,
            stage=shape.stage,
            scalars=[*OWN_SCALARS, *shape.rates, *further],
            has_columns=member < MEMBERS_IN_FULL,
            member=member,
        )
        template = ring.write_template(described)
        if template is None:
            return None
        self._armed_stack = stack = raw_stack(sys._getframe(1), limit=_STACK_FRAMES)
        self._records.begin(ring, template, Following(described, self._model.layout, stack, shape.fault))
        plan = Plan(
            root=root,
            optimizer=optimizer,
            parameters=self._model.layout.parameters,
            draws=draws,
            note_stack=self._note_stack,
            glance=self._glance,
            glanced_elements=GLANCED_ELEMENTS,
            on_news=self._on_news,
            norms_every=self._measures.norms_every,
            ratios_every=ratios_every,
            observed_every=self._measures.observed_every,
            observe=self._observe,
            end_observation=self.end_forward,
            collect=lambda: self._modules.collect(_step_in_c()),
            add_more=self._add_more,
            places=places,
            input_limit_bytes=self._input_limit_bytes,
            output_limit_bytes=self._output_limit_bytes,
            ring=ring,
            template=template,
            frozen=self._model.frozen_parameters(),
            marked=self._model.marked_parameter(),
            scaler=self._measures.scaler,
            scalars=self._read_scalars if further else None,
            scalar_count=len(further) - is_distributed,
            look_at_loss=self._look_at_loss,
            take_over=take_over,
            accumulation=self._loop.losses.accumulation,
            replica=root if isinstance(root, nn.parallel.DistributedDataParallel) else None,
            free_since_ns=self._loop.free_since_ns,
            is_distributed=is_distributed,
            phases=self._meters.phases,
        )
        return self._late_plan(plan, shape) if shape.is_late else plan

    def _late_plan(self, plan: Plan, shape: LoopShape) -> Plan | None:
        """The same where Python measures and finishes the steps; None where it may not."""
        calls = hot_binding.status().calls
        if calls is None:
            return None
        self._late = self._late or self._measure_late()
        if not self._late.follow(calls, shape):
            return None
        return plan._replace(
            late=self._late,
            reads_losses=not self._model.is_on_cuda,
            observed_every=0,
            scalars=None,
            scalar_count=0,
        )

    def _look_at_loss(self, loss: Tensor, unscaled: Tensor | None, boundary: int, *outputs: int) -> NotedLoss:
        """What the slow way notes of a loss, but for its value."""
        if self._is_timed:
            time_own_backward(loss, self._loop.open)
        terms = read_terms(loss if unscaled is None else unscaled)
        graph = read_loss_graph([loss], boundary=boundary, outputs=outputs)
        divisor, share = (math.nan if one is None else one for one in (terms.divisor, terms.share))
        return divisor, share, terms.node, terms, graph

    def _read_scalars(self) -> tuple[float, ...]:
        """What a record says besides gradients, loss and learning rates: the names are those of the plan."""
        read = tuple(self._measures.loss_scale().values())
        if not self._is_timed:
            return read
        own_ns, self._loop.open.own_backward_ns = self._loop.open.own_backward_ns, 0
        return (*read, own_ns / 1e9 if own_ns else math.nan)

    def _note_stack(self) -> None:
        """Other lines lead to the step under way than to those before."""
        self._lookout.note_other_lines()
        now = raw_stack(sys._getframe(1), limit=_STACK_FRAMES)
        self._records.note_stack(_step_in_c(), rejoined(self._armed_stack, now))

    def _glance(self, root: nn.Module, args: Any, kwargs: Any) -> None:
        """Look at the inputs of a step whose parameters are measured."""
        if self._is_following_late:
            self._measures.glance_at_inputs(root, args, kwargs)
            return
        self._records.note_inputs(_step_in_c(), self._measures.inputs_of_call(root, args, kwargs))

    def _observe(self, root: nn.Module, args: Any, kwargs: Any) -> None:
        """Have the modules of a forward observed; what was followed up to here is accounted for before."""
        state = _state_of_c()
        so_far = Account(int(state.steps), int(state.own_ns), int(state.last_end_ns))
        if self._guard.run("measures", self._account, so_far, int(state.step) - 1):
            # Something else is due from now on, and at other steps.
            state.attention = 1
        self._modules.begin_forward(int(state.step), root, args, kwargs)

    def log(self, values: dict[str, LogValue]) -> None:
        """Keep what was logged of the step under way, which has had a backward: it follows its record."""
        self._logged |= values
        # Before the record is there: the recorder's thread may judge it at once.
        self._records.note_logged(_step_in_c(), values)

    def _add_more(self) -> None:
        """A step is recorded: what else there is of it follows."""
        self._modules.add_collected()
        if self._logged:
            logged, self._logged = self._logged, {}
            self._guard.run("step", self._pipeline.add, _step_in_c() - 1, logged)

    def end_forward(self, output: Any = None, *, raised: bool = False) -> None:
        """A forward that C has followed up to now has returned, or raised."""
        self._modules.end_forward(output, raised=raised)

    def _on_news(self) -> int:
        return self._lookout.look_about(_step_in_c())

    def end_phase(self) -> None:
        """A forward or backward that was taken back from C has returned."""
        self._meters.phases.end_forward()
        self._meters.phases.end_backward()

    @property
    def has_news(self) -> bool:
        """Whether the training thread has something to do at the end of the next backward."""
        return self._lookout.has_news

    @property
    def next_look_ns(self) -> int:
        """When it has something to do though there is no news, ns of `time.monotonic_ns`; 0 for never."""
        return self._lookout.next_ns

    def _is_alone(self, root: nn.Module, *, is_late: bool) -> bool:
        """Whether no other session or module call has a part in these steps, nor a device."""
        may_use_cuda = is_late or not torch_memory.cuda_is_initialised()
        return is_only_listener() and root_calls.is_settled_on(root) and may_use_cuda

    @property
    def is_late(self) -> bool:
        """Whether the newest step was allowed to be judged after its update."""
        return self._timing.is_late

    def next_unusual_step(self, step: int) -> int:
        """The first step from `step` on at which more is measured than C does."""
        ahead = _FAR_AHEAD if self._measures.observed_every else _AHEAD
        return self._measures.next_unusual_step(step, ahead=ahead, is_late=self.is_late)

    def rate_names(self) -> tuple[str, ...]:
        """Names of the learning rates' series; empty where they are of several optimizers: C reads one."""
        return self._measures.rate_names if len(self._measures.optimizers) == 1 else ()

    def begin(self) -> int:
        """Steps are about to be followed; returns when the newest one ended, in ns."""
        # The recorder's thread judges those that follow: this one is to be judged before them.
        self._pipeline.complete_newest()
        self._loop.forget_early_verdict()
        self._model.rest()
        self._accounted = Account(0, 0, self._meters.read_ns)
        return self._accounted.ended_ns

    # -- taking back

    def take_back(self, account: FollowedSteps) -> None:
        """Steps were followed; the slow way goes on."""
        own_ns = account.own_ns
        if self._is_following_late and self._late is not None:
            own_ns = self._late.uncounted(own_ns)
        self._guard.spent_ns += own_ns
        self._records.end()
        if not self._is_following_late:
            self._pipeline.complete_newest()
        if not account.finished:
            return
        last = account.next_step - 1
        self._loop.resume_after(last)
        newest = self._records.take_newest(last)
        if newest is not None:
            self._pipeline.reopen(newest)
        self._model.note_steps(account.finished)
        if self._is_following_late:
            # Each of them was accounted for, and its inputs were kept, as in the slow way.
            return
        self._meters.resume(account.ended_ns)
        self._account(Account(account.finished, account.own_ns, account.ended_ns), last)
        for one in account.held:
            with suppress(ReplayError):
                self._black_box.keep_held(one.step, [hold_arguments(*call) for call in one.calls])

    def _account(self, so_far: Account, last_step: int) -> bool:
        """Account for the steps since the last time; whether something else is measured from now on."""
        before, self._accounted = self._accounted, so_far
        if so_far.steps <= before.steps:
            return False
        return self._schedule.account_followed(
            so_far.steps - before.steps,
            last_step=last_step,
            step_ns=so_far.ended_ns - before.ended_ns,
            own_ns=so_far.own_ns - before.own_ns,
        )

    def count_up_to(self, step: int) -> None:
        """Steps up to this one were counted, and nothing of them was looked at."""
        self._loop.resume_after(step)

    def adopt_forward(self, capture: RootCapture, samples: int, *, is_reduced: bool) -> None:
        """The step under way has had this forward; whether its backward averages gradients over the ranks."""
        self._loop.adopt_forward(capture, samples, is_reduced=is_reduced)

    def adopt_backward(self, call: FollowedCall, site: LossSite, *, is_over: bool) -> None:
        """It has had a backward of this call's loss from this line, which has returned or is under way."""
        assert call.loss is not None
        # One that is late has been open for `run.log` until this backward began, as in the slow way.
        self._pipeline.complete_newest()
        self._loop.adopt_backward(
            call.loss, unscaled=call.unscaled, terms=call.terms, site=site, is_over=is_over
        )

    def adopt_rest(self, loop: ArmedLoop) -> None:
        """What else was noted since the newest step ended."""
        state, losses = loop.state, self._loop.losses
        self._loop.open.logged |= self._logged
        self._logged = {}
        losses.accumulation = None if math.isnan(state.accumulation) else state.accumulation
        if loop.scaling is not None:
            losses.note_scaling(*loop.scaling)
        self._measures.adopt_inputs(self._records.take_inputs(int(state.step)))
        self._meters.phases.adopt()
        if loop.mark is not None:
            self._model.adopt_mark(*loop.mark)
        if self._is_timed:
            self._loop.adopt_times(
                before_backward_ns=int(state.before_backward_ns), free_since_ns=int(state.free_since_ns)
            )

    def end_backward(self, tensors: Any) -> None:
        """The backward that was adopted has returned."""
        if self._loop.backward is not None and self._loop.end_backward(tensors):
            self._meters.phases.take_back_backward()

    def adopt_clipping(self, before: float, after: float) -> None:
        """Its gradients were measured, and have been clipped."""
        if self._is_following_late:
            return  # the open step has them
        block, missing = _hot_calls().measured(ROWS, len(self._model.layout.parameters))
        is_finite = math.isfinite(block.sum())
        total = None if is_finite and before != before else before
        measured = TensorStatistics(block, missing, is_finite, total)
        clipped = after if after == after else self._model.measure_gradients().total_norm
        self._loop.adopt_clipping(measured, Clipping(before, clipped))

    def forget_forward(self, capture: RootCapture, error: BaseException) -> None:
        """Its forward has raised."""
        self._loop.open.forget(capture)
        self._failed.note(error, capture)


def _step_in_c() -> int:
    """Number of the step that C follows, which is calling."""
    return int(_state_of_c().step)


def _state_of_c() -> hot_binding.HotState:
    return _hot_calls().state


def _hot_calls() -> hot_binding.HotCalls:
    """C, which has followed steps."""
    calls = hot_binding.status().calls
    assert calls is not None
    return calls
