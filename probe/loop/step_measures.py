"""Measures a finished step: its loss and gradients are known, everything else that is due is added here.

The first of the three that take a step in turn: measure, judge, write. On the training thread; what is due
when, and what it cost, is `measure_schedule.py`'s.
"""

from __future__ import annotations

import time
import weakref
from typing import Any, Final

import numpy as np
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from ..actions.step_hooks import StepHooks
from ..attach.observation.gradient_meters import FinishedGradients, GradientMeters
from ..attach.observation.module_statistics import ModuleStatistics
from ..attach.observation.observer import ModuleObserver
from ..attach.watched_model import WatchedModel
from ..compat import torch_modes
from ..detectors.sample import InputSample
from ..forensics.bundle.black_box import BlackBox
from ..guard import Guard
from ..measure.input_sample import measure_inputs
from ..measure.optimizer_meters import LearningRates, LossScale
from ..measure.statistics.masked import MaskedValues
from ..measure.statistics.statistics import TensorStatistics
from ..measure.update_meter import UpdateMeter, UpdatePlaces, UpdateRatios
from ..step.clipping import clipping_scalars
from ..step.frames import Floats, MeasuredStep
from ..step.late_values import LateClipping, LateValues
from ..step.memory_meter import MemoryMeter
from ..step.open_step import FinishedStep, OpenStep
from ..step.step_meters import StepMeters
from ..wire import ModuleInfo
from .measure_schedule import MeasureSchedule
from .own_gradients import measure_own_gradients

GLANCED_ELEMENTS: Final = 16_384
"""Elements of an input that are measured in about ten microseconds."""


_USUAL: Final = frozenset(
    {"gradients", "parameter_norms", "learning_rates", "clipping", "loss_scale", "memory", "activations"}
)
"""Measured by C too, or read by the recorder's thread, or while C goes on following the step."""


class StepMeasures:
    """Measures what is due of one model's steps.

    Args:
        model: the watched one.
        schedule: says what is measured at this step.
        meters: read memory.
        updates: measures updates.
        turns: compares gradients with each other.
        hooks: what looks at a step that is measured is called.
        black_box: keeps what a step was called with.
        guard: runs what may fail.
    """

    def __init__(
        self,
        model: WatchedModel,
        schedule: MeasureSchedule,
        meters: StepMeters,
        *,
        updates: UpdateMeter,
        turns: GradientMeters,
        hooks: StepHooks,
        black_box: BlackBox,
        guard: Guard,
    ) -> None:
        self._model, self._schedule = model, schedule
        self.memory = MemoryMeter(model, meters, guard=guard, optimizers=self._alive)
        self._hooks, self._black_box, self._guard = hooks, black_box, guard
        self._updates, self._turns = updates, turns
        self._rates, self._scale = LearningRates(), LossScale()
        self._observer = ModuleObserver(model.root, guard=guard)
        self._observer.start()
        self._observes_call = False
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._has_scaler = self._accumulates = False
        self._norms: Floats | None = None
        self._inputs: InputSample | None = None
        self._collected: ModuleStatistics | None = None
        """What the modules of the step under way have returned, before it is a part of the step."""
        self._has_seen_start = False
        self._observed_from_ns = 0
        self.rate_names: tuple[str, ...] = ()
        """Names of the learning rates' series, as the newest step had them."""

    # -- in the order of a step

    def begin_forward(self, called: nn.Module, args: Any, kwargs: Any, *, is_settled: bool = False) -> None:
        """A training forward begins: follow its modules' calls, or glance at its inputs, if due.

        Args:
            called: the outermost module; with its arguments.
            is_settled: C follows the step.
        """
        schedule = self._schedule
        self._observes_call = schedule.observed is not None
        if self._observes_call:
            self._guard.run("measures", self._observe, called, args, kwargs, is_settled)
        elif schedule.features.parameter_norms:
            self.glance_at_inputs(called, args, kwargs)

    def _observe(self, called: nn.Module, args: Any, kwargs: Any, is_settled: bool) -> None:
        self._observed_from_ns = self._guard.spent_so_far_ns()
        features = self._schedule.features
        if features.activations and self._inputs is None and not torch_modes.in_transform():
            self._inputs = self._guard.run("inputs", measure_inputs, called, args, kwargs)
        names = [name for name, period in features.periods().items() if period]
        self._observer.begin_forward(names, called, args, kwargs, is_settled=is_settled)

    def glance_at_inputs(self, called: nn.Module, args: Any, kwargs: Any) -> None:
        """On a step that measures parameters, inputs that cost as little are measured too."""
        if self._inputs is None and not torch_modes.in_transform():
            self._inputs = self.inputs_of_call(called, args, kwargs)

    def inputs_of_call(self, called: nn.Module, args: Any, kwargs: Any) -> InputSample | None:
        """Measure what costs little; None where the inputs are too large for it."""
        return self._guard.run("inputs", measure_inputs, called, args, kwargs, most_elements=GLANCED_ELEMENTS)

    def adopt_inputs(self, inputs: InputSample | None) -> None:
        """What was seen of the inputs of the step under way, while C followed it."""
        self._inputs = self._inputs or inputs

    def end_forward(self, output: Any = None, *, raised: bool = False) -> None:
        """It has returned `output`, or raised."""
        if self._observes_call:
            self._guard.run("measures", self._end_observation, output, raised=raised)
            self._observes_call = False

    def _end_observation(self, output: Any, *, raised: bool) -> None:
        self._observer.end_forward(output, raised=raised)
        self._charge_observation(self._schedule.observed)

    def begin_backward(self) -> None:
        """A backward begins."""
        if self._schedule.observed is not None:
            self._observed_from_ns = self._guard.spent_so_far_ns()

    def begin_own_gradients(self, loss: Tensor, opened: OpenStep) -> None:
        """It begins at `loss`; its gradients may be averaged over the ranks at its end."""
        measure_own_gradients(loss, opened, model=self._model, schedule=self._schedule)

    def end_backward(self) -> None:
        """It has ended."""
        schedule = self._schedule
        if schedule.observed is not None and self._observer.is_observing:
            self._observer.end_backward()
            of_gradients = schedule.features.activation_gradients
            self._charge_observation("activation_gradients" if of_gradients else schedule.observed)

    @property
    def wants_first_norm(self) -> bool:
        """Whether the gradient after the first of several backwards is to be measured."""
        return self._schedule.features.gradient_noise > 0 and self._accumulates

    def note_scaler(self, scaler: Any) -> None:
        """A GradScaler scales the loss."""
        self._has_scaler = True
        self._scale.note(scaler)

    @property
    def scaler(self) -> Any:
        """The GradScaler that was used last; None where there is none."""
        return self._scale.scaler if self._has_scaler else None

    def loss_scale(self) -> dict[str, float]:
        """What a step says of a GradScaler; nothing where none scales."""
        return self._scale.read() if self._has_scaler else {}

    def note_optimizer(self, optimizer: Optimizer) -> None:
        """An optimizer that updates the watched model is about to step."""
        if not any(known() is optimizer for known in self._optimizers):
            alive = [known for known in self._optimizers if known() is not None]
            self._optimizers = [*alive, weakref.ref(optimizer)]

    def measure(self, finished: FinishedStep, *, waits: bool) -> MeasuredStep:
        """Measure what is due of a finished step.

        Args:
            finished: the step.
            waits: whether what is still on its way from a device is to be waited for.
        """
        measured, features = self._known_of(finished), self._schedule.features
        if waits or finished.was_scaled or features.gradient_noise or features.gradient_cosine:
            measured.arrive()
        for call in self._hooks.measured.calls:
            call(finished, measured)
        self._black_box.keep(measured.step, finished.opened.captures)
        self._guard.run("measures", self._collect, measured, finished.opened)
        return measured

    def _known_of(self, finished: FinishedStep) -> MeasuredStep:
        features, opened = self._schedule.features, finished.opened
        scalars = self._clip_scalars(opened, finished.late) if features.clipping else {}
        if features.memory:
            scalars |= self.memory.read()
        if opened.before_backward_ns:
            scalars["before_backward_s"] = opened.before_backward_ns / 1e9
        if opened.own_backward_ns:
            scalars["own_backward_s"] = opened.own_backward_ns / 1e9
        if opened.own_grad_norm is not None and not finished.was_scaled:
            scalars["own_grad_norm"] = opened.own_grad_norm
        return MeasuredStep(
            step=finished.step,
            time=time.time(),
            layout=self._model.layout,
            stage=finished.stage,
            gradients=finished.gradients,
            has_statistics=features.gradients > 0,
            total_norm=finished.gradients.total_norm,
            parameter_norm=None,
            gradient_shares=None if finished.was_scaled else self._model.gradient_shares(),
            loss=finished.loss,
            samples=opened.samples,
            input_elements=opened.input_elements,
            scalars=scalars,
            logged=opened.logged,
            late=finished.late,
        )

    def _clip_scalars(self, opened: OpenStep, late: LateValues | None) -> dict[str, float]:
        """What clipping did, measured anew where torch's own numbers do not tell."""
        clipping = opened.clipping
        if isinstance(clipping, LateClipping):
            if late is not None:
                late.clipping = clipping
                if not clipping.says_what_is_left:
                    clipping.after = self._model.start_measuring_gradients()
            return {}
        if clipping is None:
            return {}
        after = clipping.after
        if after is None:
            after = self._model.measure_gradients().total_norm
        return {} if after is None else clipping_scalars(clipping.before, after)

    def _collect(self, measured: MeasuredStep, opened: OpenStep) -> None:
        """Add what is due to a step whose gradients are known."""
        features, run = self._schedule.features, self._schedule.run
        # A few numbers, not worth leaving out: they are not charged, so that no limit takes them away.
        if features.learning_rates:
            rates = self._guard.run("learning_rates", self._rates.read, self._alive()) or {}
            self.rate_names = tuple(rates)
            measured.scalars |= rates
        if features.loss_scale and self._has_scaler:
            measured.scalars |= self._guard.run("loss_scale", self._scale.read) or {}
        if features.parameter_norms and not features.parameter_statistics and measured.late is not None:
            start = self._model.start_measuring_parameters
            measured.late.parameters = run("parameter_norms", start)
        elif features.parameter_norms and not features.parameter_statistics:
            measured.parameter_norm = run("parameter_norms", self._model.parameter_norms)
        if features.parameter_statistics:
            run("parameter_statistics", self._collect_parameters, measured)
        if features.optimizer_state:
            run("optimizer_state", self._collect_moments, measured)
        if features.histograms:
            run("histograms", self._collect_histograms, measured)
        if features.gradient_noise or features.gradient_cosine:
            feature = "gradient_cosine" if features.gradient_cosine else "gradient_noise"
            run(feature, self._collect_turn, measured, opened)
        self._accumulates, self._norms = opened.backwards > 1, measured.parameter_norm
        measured.calls_without_backward = opened.calls - opened.backwards
        measured.inputs, self._inputs = self._inputs, None
        if features.activations and not self._has_seen_start:
            self._has_seen_start = True
            run("activations", self._collect_start, measured)
        if self._observer.is_observing:
            self.collect_modules()
        measured.modules, self._collected = self._collected, None
        if features.module_memory:
            self.memory.note_modules(measured.modules, micro_steps=opened.backwards)

    def before_update(self, optimizer: Optimizer) -> None:
        """The optimizer is about to update the parameters, and `due.update_ratios` is set."""
        updated = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        parameters = self._model.layout.parameters
        self._schedule.run("update_ratios", self._updates.before, parameters, updated, norms=self._norms)

    def after_update(self, optimizer: Optimizer, step: int) -> UpdateRatios | None:
        """It has; returns the ratios of the newest update that is on the host."""
        found_inf = getattr(optimizer, "found_inf", None)
        parameters = self._model.layout.parameters
        self._schedule.run("update_ratios", self._updates.after, parameters, step=step, found_inf=found_inf)
        return self._updates.read()

    def late_ratios(self, *, wait: bool = False) -> UpdateRatios | None:
        """Return the ratios of an earlier update that a device has worked out meanwhile; None without any."""
        return self._updates.read(wait=wait)

    def stop(self) -> None:
        """Remove everything that is installed, and let go of all memory; idempotent."""
        self._observer.stop()
        self._updates.release()
        self._turns.release()

    # -- what C measures by itself, while it follows the steps

    def next_unusual_step(self, step: int, *, ahead: int, is_late: bool = False) -> int:
        """The first step from `step` on at which more is due than C measures.

        Args:
            step: a step.
            ahead: how far to look.
            is_late: whether Python measures for C: then updates and modules are looked at in the slow way.
        """
        if self._schedule.period("gradients") != 1:
            return step
        usual = _USUAL | {"update_ratios"} if self._updates.has_copy else _USUAL
        if is_late:
            usual = _USUAL - {"activations"}
        return self._schedule.next_due_besides(step, usual, ahead=ahead)

    def collect_modules(self) -> tuple[ModuleStatistics | None, InputSample | None]:
        """Return what the modules of the step under way have returned, and its inputs; both stay here."""
        if self._observer.is_observing:
            feature = self._schedule.observed or "activations"
            self._collected = self._schedule.run(feature, self._observer.collect)
        return self._collected, self._inputs

    def forget_collected(self) -> None:
        """These have become a part of a step that C has followed."""
        self._collected = self._inputs = None

    @property
    def is_observing(self) -> bool:
        """Whether modules of the step under way are observed."""
        return self._observer.is_observing

    @property
    def modules(self) -> tuple[ModuleInfo, ...]:
        """What the rows of the next statistics of modules stand for."""
        return self._observer.modules

    @property
    def observed_every(self) -> int:
        """Steps between two measurements of what modules return; 0 for never."""
        return self._schedule.period("activations")

    @property
    def norms_every(self) -> int:
        """Steps between two measurements of parameter norms alone; 0 for never."""
        return self._schedule.period("parameter_norms")

    @property
    def ratios_every(self) -> int:
        """Steps between two looks at an update, as soon as there is memory for it; 0 for never."""
        return self._schedule.period("update_ratios") if self._updates.has_copy else 0

    def update_places(self, optimizer: Optimizer) -> UpdatePlaces | None:
        """Where C may copy the parameters to that an optimizer updates; None where it cannot."""
        updated = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        return self._updates.places(self._model.layout.parameters, updated)

    # -- parts

    def _charge_observation(self, feature: str | None) -> None:
        """What ran in modules' calls or in hooks of the graph counts for the feature that asked for it."""
        if feature is not None:
            self._schedule.charge(feature, self._guard.spent_so_far_ns() - self._observed_from_ns)

    @property
    def optimizers(self) -> list[Optimizer]:
        """Those that were seen to update the watched model, and are still there."""
        return self._alive()

    def _alive(self) -> list[Optimizer]:
        return [optimizer for known in self._optimizers if (optimizer := known()) is not None]

    def _collect_parameters(self, measured: MeasuredStep) -> None:
        parameters: TensorStatistics = self._model.measure_parameters()
        measured.parameter_norm = parameters.norm
        columns = {"max_abs": parameters.max_abs, "mean": parameters.mean, "std": parameters.std}
        for name, values in columns.items():
            measured.sampled[f"parameter_{name}"] = MaskedValues(values, parameters.missing)

    def _collect_start(self, measured: MeasuredStep) -> None:
        """How the parameters were initialised."""
        shapes = [parameter.shape for parameter in self._model.layout.parameters]
        measured.is_matrix = np.array(
            [sum(size > 1 for size in shape) > 1 for shape in shapes], dtype=np.bool_
        )
        measured.parameter_std = self._model.measure_parameters().std

    def _collect_histograms(self, measured: MeasuredStep) -> None:
        from ..measure.statistics.magnitudes import log2_histograms

        parameters = self._model.layout.parameters
        measured.histograms["gradient"] = log2_histograms([parameter.grad for parameter in parameters])
        measured.histograms["parameter"] = log2_histograms(parameters)

    def _collect_turn(self, measured: MeasuredStep, opened: OpenStep) -> None:
        value, raw = measured.loss.value, measured.loss.raw
        finished = FinishedGradients(
            step=measured.step,
            gradients=[parameter.grad for parameter in self._model.layout.parameters],
            total_norm=measured.total_norm,
            first_norm=opened.first_norm if measured.stage in ("local", "reduced") else None,
            micro_steps=opened.backwards,
            divisor=value * opened.backwards / raw if value and raw else 1.0,
            samples=measured.samples,
        )
        reading = self._turns.read(
            finished,
            has_noise=self._schedule.features.gradient_noise > 0,
            has_cosine=self._schedule.features.gradient_cosine > 0,
        )
        measured.scalars |= reading.scalars
        if reading.cosine is not None:
            measured.sampled["gradient_cosine"] = reading.cosine

    def _collect_moments(self, measured: MeasuredStep) -> None:
        from ..measure.optimizer_state import moment_statistics

        measured.sampled |= moment_statistics(self._alive(), self._model.layout.parameters)
