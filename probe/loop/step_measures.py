"""What is measured of a step besides loss and gradients: when it is due, what it cost, and what it gave.

The step tracker's third part, on the training thread. Level, switches and overhead limit are applied here;
every part runs in the guard under its feature's name, so that one that fails is off alone.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any, Final, ParamSpec, TypeVar

import numpy as np
from torch import nn
from torch.optim.optimizer import Optimizer

from ..attach.observation.gradient_meters import FinishedGradients, GradientMeters
from ..attach.observation.observer import ModuleObserver
from ..attach.watched_model import WatchedModel
from ..compat import torch_private
from ..detectors.sample import InputSample
from ..guard import Guard
from ..incidents.incidents import IncidentReporter
from ..measure.input_sample import measure_inputs
from ..measure.optimizer_meters import LearningRates, LossScale
from ..measure.optimizer_state import moment_statistics
from ..measure.statistics.magnitudes import log2_histograms
from ..measure.statistics.masked import MaskedValues
from ..measure.statistics.statistics import TensorStatistics
from ..measure.update_meter import UpdateMeter, UpdatePlaces, UpdateRatios
from ..settings.levels import LEVEL_FEATURES, Features, Settings
from ..step.frames import Floats, MeasuredStep
from ..step.open_step import OpenStep
from ..step.step_meters import StepTime
from .budget import Budget
from .calibration import Calibration
from .closer_look import STEPS, CloserLook
from .control import Command, Mailbox, describe_change
from .throttle import Change

P = ParamSpec("P")
R = TypeVar("R")
_NOTHING: Final = LEVEL_FEATURES["off"]
_ACCOUNTED_TOGETHER: Final = 16
_GLANCED_ELEMENTS: Final = 16_384
"""Elements of an input that are measured in about ten microseconds."""
_OBSERVED: Final = ("activations", "activation_gradients", "module_times", "module_memory")


class StepMeasures:
    """Measures what is due, keeps to the limit, and follows the commands of the mailbox.

    Attributes:
        mailbox: commands, taken out at the end of a step.
        due: what is measured at the step under way: a feature's period where due, else 0.
        observed: the dearest feature that follows modules' calls and is due at the step under way, if any.
        is_plain: whether the step under way keeps the tripwire and what a replay needs, and nothing else, so
            that it can be compared with its neighbours.
    """

    def __init__(
        self, model: WatchedModel, settings: Settings, *, guard: Guard, incidents: IncidentReporter
    ) -> None:
        self.mailbox = Mailbox()
        self.due: Features = _NOTHING
        self.observed: str | None = None
        self.is_plain = False
        self._model, self._guard, self._incidents = model, guard, incidents
        self._settings = settings
        self._budget = Budget(settings.features, settings.limit)
        self._calibration = Calibration(settings.limit)
        self._closer = CloserLook()
        self._rates, self._scale, self._updates = LearningRates(), LossScale(), UpdateMeter()
        self._observer = ModuleObserver(model.root, guard=guard)
        self._observer.start()
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._turns = GradientMeters()
        self._has_scaler = self._accumulates = False
        self._norms: Floats | None = None
        self._inputs: InputSample | None = None
        self._has_seen_start = False
        self._replays = 0
        self._kept_fraction = 0.0
        self._observed_from_ns = 0
        self._unaccounted: list[tuple[int, StepTime, bool, bool]] = []
        """Of finished steps: number, time, whether it was plain, whether it had a replay."""
        self._has_charged = False
        self._added: dict[str, float] | None = None
        self.rate_names: tuple[str, ...] = ()
        """Names of the learning rates' series, as the newest step had them."""
        self._suspicion: str | None = None

    @property
    def settings(self) -> Settings:
        """What the user has asked for; a closer look measures more for a while."""
        return self._settings

    @property
    def is_basic(self) -> bool:
        """Whether nothing dearer is measured than level basic does, not even for a closer look."""
        return self._settings.level == "basic" and self._closer.until is None

    @property
    def is_off(self) -> bool:
        """Whether nothing is to be looked at, not even for NaN and Inf, until a command says otherwise."""
        return self._settings.level == "off"

    # -- the step tracker's calls, in the order of a step

    def begin_step(self, step: int) -> None:
        """The first forward or backward of a step begins; decides what is measured of it."""
        self.is_plain = self._calibration.is_plain(step)
        due = _NOTHING if self.is_plain else self._budget.due(step)
        if due is not self.due:
            self.due = due
            self.observed = next((name for name in _OBSERVED if getattr(due, name)), None)

    def begin_forward(self, called: nn.Module, args: Any, kwargs: Any) -> None:
        """A training forward begins at a step that is `observed`."""
        self._observed_from_ns = self._guard.spent_so_far_ns()
        if self.due.activations and self._inputs is None and not torch_private.in_transform():
            self._inputs = self._guard.run("inputs", measure_inputs, called, args, kwargs)
        due = [name for name, period in self.due.periods().items() if period]
        self._observer.begin_forward(due, called, args, kwargs)

    def glance_at_inputs(self, called: nn.Module, args: Any, kwargs: Any) -> None:
        """A training forward begins at a step that measures parameters: so are inputs that cost as little."""
        if self._inputs is None and not torch_private.in_transform():
            self._inputs = measure_inputs(called, args, kwargs, most_elements=_GLANCED_ELEMENTS)

    def inputs_of_call(self, called: nn.Module, args: Any, kwargs: Any) -> InputSample | None:
        """The same of a step that C follows; None where the inputs are too large for it."""
        return self._guard.run(
            "inputs", measure_inputs, called, args, kwargs, most_elements=_GLANCED_ELEMENTS
        )

    def end_forward(self, output: Any, *, raised: bool = False) -> None:
        """It has returned, or raised."""
        self._observer.end_forward(output, raised=raised)
        self._charge_observation(self.observed)

    def begin_backward(self) -> None:
        """A backward begins at a step that is `observed`."""
        self._observed_from_ns = self._guard.spent_so_far_ns()

    def end_backward(self) -> None:
        """It has ended."""
        if self._observer.is_observing:
            self._observer.end_backward()
            self._charge_observation(
                "activation_gradients" if self.due.activation_gradients else self.observed
            )

    @property
    def wants_first_norm(self) -> bool:
        """Whether the gradient after the first of several backwards is to be measured."""
        return self.due.gradient_noise > 0 and self._accumulates

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

    def collect(self, measured: MeasuredStep, opened: OpenStep) -> None:
        """Add what is due to a step whose gradients are measured.

        Args:
            measured: what is known of it.
            opened: what was gathered of it.
        """
        due = self.due
        # A few numbers, not worth leaving out: they are not charged, so that no limit takes them away.
        if due.learning_rates:
            rates = self._guard.run("learning_rates", self._rates.read, self._alive()) or {}
            self.rate_names = tuple(rates)
            measured.scalars |= rates
        if due.loss_scale and self._has_scaler:
            measured.scalars |= self._guard.run("loss_scale", self._scale.read) or {}
        if due.parameter_norms and not due.parameter_statistics and measured.late is not None:
            start = self._model.start_measuring_parameters
            measured.late.parameters = self._measure("parameter_norms", start)
        elif due.parameter_norms and not due.parameter_statistics:
            measured.parameter_norm = self._measure("parameter_norms", self._model.parameter_norms)
        if due.parameter_statistics:
            self._measure("parameter_statistics", self._collect_parameters, measured)
        if due.optimizer_state:
            self._measure("optimizer_state", self._collect_moments, measured)
        if due.histograms:
            self._measure("histograms", self._collect_histograms, measured)
        if due.gradient_noise or due.gradient_cosine:
            feature = "gradient_cosine" if due.gradient_cosine else "gradient_noise"
            self._measure(feature, self._collect_turn, measured, opened)
        self._accumulates = opened.backwards > 1
        self._norms = measured.parameter_norm
        measured.inputs, self._inputs = self._inputs, None
        if due.activations and not self._has_seen_start:
            self._has_seen_start = True
            self._measure("activations", self._collect_start, measured)
        if self._observer.is_observing:
            measured.modules = self._measure(self.observed or "activations", self._observer.collect)

    def before_update(self, optimizer: Optimizer) -> None:
        """The optimizer is about to update the parameters, and `due.update_ratios` is set."""
        updated = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        parameters = self._model.layout.parameters
        self._measure("update_ratios", self._updates.before, parameters, updated, norms=self._norms)

    def after_update(self, optimizer: Optimizer, step: int) -> UpdateRatios | None:
        """It has; returns the ratios of the newest update that is on the host."""
        found_inf = getattr(optimizer, "found_inf", None)
        parameters = self._model.layout.parameters
        self._measure("update_ratios", self._updates.after, parameters, step=step, found_inf=found_inf)
        return self._updates.read()

    def suspect(self, reason: str | None) -> None:
        """Have a closer look taken at the modules, where there is a reason."""
        self._suspicion = reason or self._suspicion

    def end_step(self, measured: MeasuredStep, taken: StepTime) -> None:
        """Account for a finished step, and write an event for everything that changes from now on.

        Steps of which only the usual was measured are accounted for a few at a time.
        """
        replays, self._replays = self._replays, self._incidents.replays
        self._unaccounted.append((measured.step, taken, self.is_plain, self._replays > replays))
        is_ordinary = not (self._has_charged or self.is_plain or self._replays > replays)
        if not is_ordinary or len(self._unaccounted) >= _ACCOUNTED_TOGETHER:
            self._account(measured.time)
            self._has_charged = False
            self._added = self._describe_added()
        if self._added is not None:
            measured.scalars |= self._added
        if self._suspicion is not None or self._closer.until is not None:
            self._look_closer(measured.step, measured.time)

    def account_followed(self, steps: int, *, last_step: int, step_ns: int, own_ns: int) -> None:
        """Account for steps that were followed in C, of which only the usual was measured.

        Args:
            steps: how many.
            last_step: number of the last of them.
            step_ns: what all of them took.
            own_ns: the probe's part of it.
        """
        self._account(time.time())
        for change in self._budget.end_steps(steps, step_ns=step_ns // steps, own_ns=own_ns // steps):
            self._note_change(change, last_step, time.time())

    def next_unusual_step(self, step: int, *, ahead: int) -> int:
        """The first step from `step` on at which more is due than gradients, parameter norms and scalars."""
        if self._budget.period("gradients") != 1:
            return step
        usual = _USUAL | {"update_ratios"} if self._updates.has_copy else _USUAL
        unusual = self._budget.next_due_besides(step, usual)
        return step + ahead if unusual is None else min(unusual, step + ahead)

    @property
    def norms_every(self) -> int:
        """Steps between two measurements of parameter norms alone; 0 for never."""
        return self._budget.period("parameter_norms")

    @property
    def ratios_every(self) -> int:
        """Steps between two looks at an update, as soon as there is memory for it; 0 for never."""
        return self._budget.period("update_ratios") if self._updates.has_copy else 0

    def update_places(self, optimizer: Optimizer) -> UpdatePlaces | None:
        """Where C may copy the parameters to that an optimizer updates; None where it cannot."""
        updated = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        return self._updates.places(self._model.layout.parameters, updated)

    def _look_closer(self, step: int, now: float) -> None:
        """Measure more for a few steps when a detector is suspicious, and say so."""
        suspicion, self._suspicion = self._suspicion, None
        if self._closer.is_over(step):
            self._configure(self._settings)
            message = f"Level {self._settings.level} again: the closer look is over"
            self._incidents.note("level_changed", self._settings.level, message, step=step, time=now)
        elif suspicion is None or self._budget.is_throttled:
            return
        elif (closer := self._closer.begin(step, self._settings)) is not None:
            self._configure(closer)
            message = f"Level {closer.level} for {STEPS} steps, for a closer look: {suspicion}"
            self._incidents.note("level_changed", closer.level, message, step=step, time=now)

    def _configure(self, settings: Settings) -> None:
        """Measure by these settings from the next step on."""
        self._account(time.time())
        self._budget.configure(settings.features, settings.limit)
        self._calibration.restart(settings.limit)
        if not settings.features.update_ratios:
            self._updates.release()
        if not settings.features.gradient_cosine:
            self._turns.release()

    def _describe_added(self) -> dict[str, float] | None:
        """What steps take longer than plain ones, where that is known closely enough."""
        interval = self._calibration.interval()
        if interval is None:
            return None
        # What is measured on some steps only is left out of the comparison, and so added to it.
        added = interval[0] + self._budget.sampled_fraction + self._kept_fraction
        return {"step_time_added": added, "step_time_added_half_width": interval[1]}

    def _account(self, now: float) -> None:
        """Give the budget and the calibration what has finished, in order."""
        finished, self._unaccounted = self._unaccounted, []
        for step, taken, is_plain, had_replay in finished:
            is_sampled = self._budget.is_sampled(step)
            if is_plain:
                # What a plain step keeps is no part of the comparison; the clock's word is taken for it.
                self._kept_fraction = taken.own_ns / taken.step_ns if taken.step_ns > 0 else 0.0
            else:
                changes = self._budget.end_step(
                    step_ns=taken.step_ns, own_ns=taken.own_ns, is_ordinary=not had_replay
                )
                for change in changes:
                    self._note_change(change, step, now)
            self._calibration.note(step, taken.step_ns, is_ordinary=not (had_replay or is_sampled))

    def _note_change(self, change: Change, step: int, now: float) -> None:
        self._calibration.restart(change.limit)
        self._incidents.note(
            "throttled",
            change.feature,
            change.message,
            step=step,
            time=now,
            value=change.fraction,
            threshold=change.limit,
        )

    def apply_commands(self, step: int) -> None:
        """Take the mailbox's commands, between two steps; what they change together makes one event."""
        self._guard.run("commands", self._apply, self.mailbox.drain(), step)

    def stop(self) -> None:
        """Remove everything that is installed, and let go of all memory; idempotent."""
        self._observer.stop()
        self._updates.release()
        self._turns.release()

    # -- parts

    def _measure(self, feature: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
        """Run one feature in the guard and charge the budget with its time."""
        started_ns = time.thread_time_ns()
        result = self._guard.run(feature, function, *args, **kwargs)
        self._charge(feature, time.thread_time_ns() - started_ns)
        return result

    def _charge(self, feature: str, ns: int) -> None:
        """Charge the step under way; those before it are none of it."""
        if self._unaccounted:
            self._account(time.time())
        self._has_charged = True
        self._budget.charge(feature, ns)

    def _charge_observation(self, feature: str | None) -> None:
        """What ran in modules' calls or in hooks of the graph counts for the feature that asked for it."""
        if feature is not None:
            self._charge(feature, self._guard.spent_so_far_ns() - self._observed_from_ns)

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
            divisor=value / raw if value and raw else 1.0,
            samples=measured.samples,
        )
        reading = self._turns.read(
            finished,
            noise_is_due=self.due.gradient_noise > 0,
            cosine_is_due=self.due.gradient_cosine > 0,
        )
        measured.scalars |= reading.scalars
        if reading.cosine is not None:
            measured.sampled["gradient_cosine"] = reading.cosine

    def _collect_moments(self, measured: MeasuredStep) -> None:
        measured.sampled |= moment_statistics(self._alive(), self._model.layout.parameters)

    def _apply(self, commands: list[Command], step: int) -> None:
        old = new = self._settings
        for command in commands:
            new = command.apply(new)
        message = describe_change(old, new, commands[-1].source)
        if message is None:
            return
        self._closer.until = None
        self._configure(new)
        self._settings = new
        self._incidents.note("level_changed", new.level, message, step=step, time=time.time())


_USUAL: Final = frozenset(
    {"gradients", "parameter_norms", "learning_rates", "clipping", "loss_scale", "memory"}
)
"""Measured by C too, or read by the recorder's thread."""
