"""What is known of a measured step, and the frame, observation or batch that is made of it. Numbers only.

The training thread fills a `MeasuredStep` and has its frame built when the step ends; what waits for the
detectors is made into a batch on the recorder's thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from ..attach.layout import ModelLayout
from ..attach.observation.module_statistics import ModuleStatistics
from ..detectors.base import Observation, ObservationBatch
from ..detectors.sample import InputSample, ModuleSample, Sample
from ..measure.statistics.masked import MaskedValues
from ..measure.statistics.statistics import TensorStatistics
from ..wire import Column, Frame, Histogram, ModuleColumn
from ..wire.columns import pack_block, pack_column
from ..wire.module_frames import pack_histogram, pack_module_columns, pack_module_rows
from .clipping import late_clipping_scalars
from .late_values import LateValues
from .log_values import is_at_hand
from .losses import StepLoss
from .step_meters import StepTime

Floats = npt.NDArray[np.float64]
_GRADIENT_COLUMNS = ("grad_norm", "grad_max_abs", "grad_mean", "grad_std")


class MeasuredStep(msgspec.Struct, kw_only=True):
    """Everything that is known of a step once its gradients are on the host; a recorder's `FrameSource`."""

    step: int
    time: float
    """UNIX seconds."""
    layout: ModelLayout
    stage: str
    gradients: TensorStatistics
    total_norm: float | None
    """Global L2 norm of the gradients; None when no parameter has one."""
    parameter_norm: Floats | None
    """(parameters,); None where it was not measured."""
    gradient_shares: Floats | None = None
    """See `WatchedModel.gradient_shares`."""
    loss: StepLoss
    samples: int
    """First dimension of the first input, summed over the micro-steps; 0 when unknown."""
    input_elements: int = 0
    """Of the first input, summed over the micro-steps; 0 when unknown."""
    scalars: dict[str, float] = msgspec.field(default_factory=dict)
    """Time, memory and what else has one value per step, under the names of `wire.SCALARS`."""
    taken: StepTime | None = None
    """What the step took; None at the first."""
    has_statistics: bool = True
    """Whether the gradients' columns are written and judged, or were only looked at for NaN and Inf."""
    sampled: dict[str, MaskedValues] = msgspec.field(default_factory=dict)
    """Further statistics of parameters, under the names of `wire.PARAMETER_COLUMNS`."""
    histograms: dict[str, npt.NDArray[np.int64]] = msgspec.field(default_factory=dict)
    """(parameters, BINS) counts of elements by magnitude, under the names of `module_frames.HISTOGRAMS`."""
    modules: ModuleStatistics | None = None
    """What the modules returned and took, where it was observed."""
    inputs: InputSample | None = None
    """What the model was called with first, where it was looked at."""
    calls_without_backward: int = 0
    """How many calls of the model more than backwards there were: of a loss that the script skipped, say."""
    parameter_std: Floats | None = None
    """(parameters,) standard deviations as they were at the start; at the first step alone."""
    is_matrix: npt.NDArray[np.bool_] | None = None
    """(parameters,) which have at least two dimensions longer than 1; with `parameter_std`."""
    logged: dict[str, Callable[[], float]] = msgspec.field(default_factory=dict)
    """What the user logged; read when the frame is built, for it may still be on its way from a device."""

    late: LateValues | None = None
    """What brings gradients, norms and loss, where they are still on their way from a device; until `arrive`
    they are unknown, and neither is the frame to be built nor the step to be judged."""

    def arrive(self) -> None:
        """Take what was on its way; waits for it."""
        late, self.late = self.late, None
        if late is None:
            return
        self.gradients, self.loss = late.gradients.read(), late.loss()
        self.total_norm = self.gradients.total_norm
        if late.parameters is not None:
            self.parameter_norm = late.parameters.read().norm
        self.scalars |= late_clipping_scalars(self.total_norm, late.clipping)

    def build(self) -> Frame:
        """Pack the step; the count columns are left out while every count is zero.

        What was logged and is still on its way from a device is left out, too.
        """
        missing = self.gradients.missing
        logged = {name: read() for name, read in self.logged.items() if is_at_hand(read)}
        return Frame(
            step=self.step,
            time=self.time,
            layout=self.layout.record.layout,
            stage=self.stage,
            scalars={**self._own_scalars(), **self.scalars, **logged},
            columns=self._own_columns(),
            missing=np.packbits(missing).tobytes() if missing.any() else b"",
            parameter_columns=pack_sampled(self.sampled),
            histograms=self._own_histograms(),
            **_module_fields(self.modules),
        )

    def build_columns(self) -> Frame:
        """Pack the gradients' columns alone: they are wanted after the step was packed without them."""
        missing = self.gradients.missing
        return Frame(
            step=self.step,
            time=self.time,
            layout=self.layout.record.layout,
            stage=self.stage,
            columns=self._own_columns(),
            missing=np.packbits(missing).tobytes() if missing.any() else b"",
        )

    def _own_histograms(self) -> list[Histogram]:
        packed = [pack_histogram(name, "parameters", counts) for name, counts in self.histograms.items()]
        if self.modules is not None and self.modules.activation_histogram is not None:
            packed.append(pack_histogram("activation", "modules", self.modules.activation_histogram))
        return packed

    def _own_scalars(self) -> dict[str, float]:
        """Loss, gradient norm and samples, each only where it is known."""
        scalars: dict[str, float] = {}
        if self.loss.value is not None and self.loss.raw is not None:
            scalars |= {"loss": self.loss.value, "loss_raw": self.loss.raw}
        if self.total_norm is not None:
            scalars["grad_norm"] = self.total_norm
        if self.gradient_shares is not None:
            # What has no elements here is missing, and 0.
            with np.errstate(over="ignore"):
                scalars["grad_square_part"] = float(self.gradient_shares @ np.square(self.gradients.norm))
        if self.samples:
            scalars["samples"] = float(self.samples)
        if self.taken is not None:
            scalars |= self.taken.scalars()
        return scalars

    def _own_columns(self) -> list[Column]:
        gradients = self.gradients
        if not self.has_statistics and gradients.is_finite:
            return []
        columns = pack_block(_GRADIENT_COLUMNS, gradients.block[: len(_GRADIENT_COLUMNS)])
        if gradients.has_counts and not gradients.is_finite:
            counts = (("grad_nan_count", gradients.nan_count), ("grad_inf_count", gradients.inf_count))
            columns += [pack_column(name, count) for name, count in counts if count.any()]
        if self.parameter_norm is not None:
            columns.append(pack_column("parameter_norm", self.parameter_norm))
        return columns

    @property
    def is_quiet(self) -> bool:
        """Whether loss, gradients and parameters are finite, as far as they were measured."""
        loss, norms = self.loss.value, self.parameter_norm
        if not self.gradients.is_finite or not (loss is None or math.isfinite(loss)):
            return False
        if not (self.total_norm is None or math.isfinite(self.total_norm)):
            return False
        return norms is None or bool(np.isfinite(norms).all())


def modules_frame(
    modules: ModuleStatistics | None, *, step: int, time: float, layout: int, scalars: dict[str, float]
) -> Frame:
    """Pack what modules returned in a step that has a frame already, and what else was read beside them."""
    return Frame(step=step, time=time, layout=layout, scalars=scalars, **_module_fields(modules))


def pack_sampled(sampled: Mapping[str, MaskedValues]) -> list[ModuleColumn]:
    """Pack statistics of parameters, each with its own gaps."""
    values = {name: one.values for name, one in sampled.items()}
    return pack_module_columns(values, {name: one.missing for name, one in sampled.items()})


def _module_fields(modules: ModuleStatistics | None) -> dict[str, Any]:
    """The fields of a frame that are about modules."""
    if modules is None:
        return {}
    fields: dict[str, Any] = {"module_columns": modules.packed()}
    if modules.rows is not None:
        fields["module_rows"] = pack_module_rows(modules.rows)
    if modules.states.any():
        fields["module_states"] = modules.states.tobytes()
    return fields


def build_observation(measured: MeasuredStep) -> Observation:
    """Arrange one step for the detectors."""
    gradients, layout = measured.gradients, measured.layout
    lowest, highest = _rates(measured.scalars)
    return Observation(
        step=measured.step,
        loss=measured.loss.value,
        total_grad_norm=measured.total_norm,
        grad_norm=gradients.norm,
        grad_max_abs=gradients.max_abs,
        grad_nan_count=gradients.nan_count if gradients.has_counts else None,
        grad_inf_count=gradients.inf_count if gradients.has_counts else None,
        missing=gradients.missing,
        parameter_norm=measured.parameter_norm,
        parameter_names=layout.names,
        layer_names=layout.layer_names,
        layer_of=layout.layer_of,
        lowest_rate=lowest,
        highest_rate=highest,
        input_elements=measured.input_elements,
    )


def _rates(scalars: Mapping[str, float]) -> tuple[float | None, float | None]:
    """The lowest and the highest learning rate of all groups; None where none is known."""
    rate = scalars.get("lr")
    if rate is not None:
        return rate, rate
    rates = [value for name, value in scalars.items() if name.startswith("lr/")]
    return (min(rates), max(rates)) if rates else (None, None)


def batch_rates(
    names: Sequence[str], values: Sequence[Sequence[float]]
) -> tuple[Sequence[float | None], Sequence[float | None]]:
    """The lowest and the highest learning rate of each step.

    Args:
        names: of the scalars.
        values: of each step; NaN where one is absent.
    """
    if "lr" in names:
        at = names.index("lr")
        rates = [row[at] for row in values]
        if all(rate == rate for rate in rates):
            return rates, rates
    rows = [{name: one for name, one in zip(names, row, strict=False) if one == one} for row in values]
    lowest, highest = zip(*map(_rates, rows), strict=True)
    return lowest, highest


def build_batch(steps: Sequence[MeasuredStep]) -> ObservationBatch:
    """Arrange successive quiet steps of one layout for the detectors."""
    layout = steps[0].layout
    missing = np.array([step.gradients.missing for step in steps])
    lowest, highest = zip(*[_rates(step.scalars) for step in steps], strict=True)
    return ObservationBatch(
        steps=[step.step for step in steps],
        losses=[step.loss.value for step in steps],
        total_grad_norms=[step.total_norm for step in steps],
        grad_norm=np.array([step.gradients.norm for step in steps]),
        grad_max_abs=np.array([step.gradients.max_abs for step in steps]),
        missing=missing if missing.any() else None,
        parameter_norms=[step.parameter_norm for step in steps],
        parameter_names=layout.names,
        layer_names=layout.layer_names,
        layer_of=layout.layer_of,
        lowest_rates=lowest,
        highest_rates=highest,
        input_elements=[step.input_elements for step in steps],
    )


def build_sample(measured: MeasuredStep, *, processor_share: float, own_s: float = 0.0) -> Sample:
    """Arrange one finished step for the detectors of sampled numbers; reads what was logged.

    Args:
        measured: the step.
        processor_share: see `Sample.processor_share`.
        own_s: see `Sample.own_s`.
    """
    gradients, layout = measured.gradients, measured.layout
    ratio = measured.sampled.get("update_ratio")
    has_gradients = measured.has_statistics and gradients.is_finite
    loss = measured.loss.value
    return Sample(
        step=measured.step,
        time=measured.time,
        processor_share=processor_share,
        own_s=own_s,
        loss=loss if loss is not None and math.isfinite(loss) else None,
        total_grad_norm=measured.total_norm if has_gradients else None,
        grad_norm=gradients.norm if has_gradients else None,
        missing=gradients.missing if has_gradients else None,
        parameter_norm=measured.parameter_norm,
        update_ratio=None if ratio is None else np.where(ratio.missing, np.nan, ratio.values),
        scalars={
            **measured._own_scalars(),
            **measured.scalars,
            **{name: read() for name, read in measured.logged.items()},
        },
        modules=None if measured.modules is None else module_sample(measured.modules),
        inputs=measured.inputs,
        calls_without_backward=measured.calls_without_backward,
        input_elements=measured.input_elements,
        parameter_std=measured.parameter_std,
        is_matrix=measured.is_matrix,
        parameter_names=layout.names,
        layer_names=layout.layer_names,
        layer_of=layout.layer_of,
    )


def module_sample(modules: ModuleStatistics) -> ModuleSample:
    """Return one value per module; where a column has several calls of one, their maximum."""
    count = len(modules.modules)
    columns: dict[str, Floats] = {}
    for name, values in modules.columns.items():
        present = np.where(modules.missing[name], np.nan, values)
        if modules.rows is None:
            columns[name] = present
        else:
            columns[name] = np.full(count, np.nan)
            np.fmax.at(columns[name], modules.rows, present)
    return ModuleSample(
        names=tuple(info.name for info in modules.modules),
        types=tuple(info.type for info in modules.modules),
        columns=columns,
    )
