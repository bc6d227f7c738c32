"""Checks of a model's gradients as they are now: after a backward, before the update. Wait for the device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, overload

import numpy as np
from torch import nn

from ...attach.layout import ModelLayout, describe_model, unwrap
from ...compat.torch_memory import local_shard
from ...detectors.gradient_limits import rows_above, rows_below
from ...measure.statistics.statistics import Floats, tensor_statistics
from . import tables
from .call_results import Result
from .default_limits import DEFAULT_EXPLOSION_NORM, DEFAULT_VANISHING_NORM


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterGradient(Result):
    """The gradient of one parameter. Statistics are None where there is no gradient."""

    name: str
    layer: str
    """Qualified name of the module that owns the parameter."""
    shape: tuple[int, ...]
    norm: float | None = None
    """L2 norm."""
    rms: float | None = None
    """Root mean square of the elements: comparable between parameters of different size."""
    max_abs: float | None = None
    mean: float | None = None
    std: float | None = None
    """Population standard deviation (divisor n)."""
    nan_count: int = 0
    inf_count: int = 0

    @property
    def is_finite(self) -> bool:
        """Neither NaN nor Inf among the elements; True of a missing gradient."""
        return not self.nan_count and not self.inf_count


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientReport(Result):
    """Gradients of all trainable parameters of a model, in model order."""

    _derived = ("ok", "nonfinite", "zero", "missing")

    model: str
    """Class of the model; empty where there was none to look at."""
    total_norm: float | None
    """Global L2 norm; None when no parameter has a gradient."""
    threshold: float | None
    """Limit of the total norm that the caller gave; None is no limit."""
    parameters: tuple[ParameterGradient, ...]
    note: str = ""

    @property
    def nonfinite(self) -> tuple[str, ...]:
        """Names of parameters whose gradient has NaN or Inf."""
        return tuple(p.name for p in self.parameters if not p.is_finite)

    @property
    def zero(self) -> tuple[str, ...]:
        """Names of parameters whose gradient is exactly 0."""
        return tuple(p.name for p in self.parameters if p.norm == 0)

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of trainable parameters without a gradient: the last backward did not reach them."""
        return tuple(p.name for p in self.parameters if p.norm is None)

    @property
    def exceeds_threshold(self) -> bool:
        """Whether the total norm is above the caller's limit; NaN is."""
        return self.threshold is not None and self.total_norm is not None and not self._is_below()

    @property
    def ok(self) -> bool:
        """All gradients are finite and the total norm is within the limit, if one was given."""
        return not self.nonfinite and not self.exceeds_threshold

    def _is_below(self) -> bool:
        return (
            self.total_norm is not None and self.threshold is not None and self.total_norm <= self.threshold
        )

    def __str__(self) -> str:
        """One line of verdict, then a row for each parameter."""
        if not self.parameters:
            return f"gradients: {self.note or 'no problem found'}"
        limit = f", limit {tables.number(self.threshold)}" if self.threshold is not None else ""
        lines = [
            f"gradients of {self.model}: {'ok' if self.ok else 'NOT OK'}, "
            f"total norm {tables.number(self.total_norm)}{limit}, {len(self.parameters)} parameters"
        ]
        for what, found in (
            ("NaN or Inf in", self.nonfinite),
            ("exactly 0 in", self.zero),
            ("no gradient for", self.missing),
        ):
            if found:
                lines.append(f"  {what} {tables.names(found)}")
        if self.note:
            lines.append(f"  {self.note}")
        header = ("parameter", "shape", "norm", "rms", "max |g|", "mean", "std", "NaN", "Inf")
        return "\n".join([*lines, *tables.table(header, [_row(p) for p in self.parameters], left=2)])


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientViolation(Result):
    """One parameter whose gradient is over or under the limit."""

    name: str
    norm: float
    """L2 norm of the gradient; NaN or Inf where its elements are."""
    rms: float
    nan_count: int
    inf_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientViolations(Result, Sequence[GradientViolation]):
    """The parameters over (or under) a limit, worst first: empty, and so false, when there is none."""

    _derived = ("ok",)

    kind: Literal["explosion", "vanishing"]
    threshold: float
    """Limit of a parameter's L2 norm."""
    offenders: tuple[GradientViolation, ...]
    checked: int
    """How many parameters had a gradient."""
    missing: tuple[str, ...]
    """Trainable parameters without a gradient, which count as neither."""
    note: str = ""

    @property
    def ok(self) -> bool:
        """No parameter is over (or under) the limit."""
        return not self.offenders

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the offending parameters."""
        return tuple(offender.name for offender in self.offenders)

    @overload
    def __getitem__(self, index: int) -> GradientViolation: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[GradientViolation, ...]: ...
    def __getitem__(self, index: int | slice) -> GradientViolation | tuple[GradientViolation, ...]:
        return self.offenders[index]

    def __len__(self) -> int:
        return len(self.offenders)

    def __iter__(self) -> Iterator[GradientViolation]:
        return iter(self.offenders)

    def __str__(self) -> str:
        """One line of verdict, then a row for each offending parameter."""
        side = "above" if self.kind == "explosion" else "below"
        head = (
            f"gradient {self.kind}: {len(self)} of {self.checked} parameters with a norm {side} "
            f"{tables.number(self.threshold)}"
        )
        lines = [head, f"  {self.note}"] if self.note else [head]
        if self.missing:
            lines.append(f"  no gradient for {tables.names(self.missing)}")
        if not self.offenders:
            return "\n".join(lines)
        rows = [
            (o.name, tables.number(o.norm), tables.number(o.rms), str(o.nan_count), str(o.inf_count))
            for o in self.offenders
        ]
        return "\n".join([*lines, *tables.table(("parameter", "norm", "rms", "NaN", "Inf"), rows)])


def check_gradients(
    model: nn.Module, threshold: float | None = None, *, loss_scale: float = 1.0
) -> GradientReport:
    """Measure the gradients that all trainable parameters have now. Waits for the device.

    Args:
        model: call this after its backward and before `zero_grad`.
        threshold: limit of the global L2 norm, as for gradient clipping; None is no limit.
        loss_scale: the gradients are divided by this: `scaler.get_scale()` before `scaler.unscale_`.

    Raises:
        ValueError: no module, nothing trainable in it, no gradient at all, or a limit out of range.
    """
    _require_positive("threshold", threshold)
    report = measure_gradients(model, threshold, loss_scale=loss_scale)
    if report.total_norm is None:
        raise ValueError(
            f"no parameter of {report.model} has a gradient: call this after loss.backward() and before "
            "optimizer.zero_grad()"
        )
    return report


def check_gradient_explosion(
    model: nn.Module, threshold: float = DEFAULT_EXPLOSION_NORM, *, loss_scale: float = 1.0
) -> GradientViolations:
    """Return the parameters whose gradient has an L2 norm above `threshold`, or NaN or Inf in it.

    The limit is absolute; the default is a convention (see `DEFAULT_EXPLOSION_NORM`). Waits for the device.

    Raises:
        ValueError: as `check_gradients`.
    """
    return explosions(check_gradients(model, loss_scale=loss_scale), threshold)


def check_gradient_vanishing(
    model: nn.Module, threshold: float = DEFAULT_VANISHING_NORM, *, loss_scale: float = 1.0
) -> GradientViolations:
    """Return the parameters whose gradient has an L2 norm below `threshold`, exact zeros included.

    A parameter without any gradient is listed in `missing`, not as vanishing. The limit is absolute; the
    default is a convention (see `DEFAULT_VANISHING_NORM`). Waits for the device.

    Raises:
        ValueError: as `check_gradients`.
    """
    return vanishings(check_gradients(model, loss_scale=loss_scale), threshold)


def explosions(report: GradientReport, threshold: float) -> GradientViolations:
    """Select what is above a limit from gradients measured before; NaN stands first."""
    _require_positive("threshold", threshold)
    there = [p for p in report.parameters if p.norm is not None]
    found = [there[row] for row in rows_above(_norms(there), threshold)]
    return _violations("explosion", report, threshold, found)


def vanishings(report: GradientReport, threshold: float) -> GradientViolations:
    """Select what is below a limit from gradients measured before."""
    _require_positive("threshold", threshold)
    there = [p for p in report.parameters if p.norm is not None]
    found = [there[row] for row in rows_below(_norms(there), threshold)]
    return _violations("vanishing", report, threshold, found)


def _norms(parameters: Sequence[ParameterGradient]) -> Floats:
    return np.array([p.norm for p in parameters], dtype=np.float64)


def measure_gradients(
    model: nn.Module, threshold: float | None = None, *, loss_scale: float = 1.0
) -> GradientReport:
    """Like `check_gradients`, but where no parameter has a gradient the report says so."""
    layout = require_layout(model)
    _require_positive("loss_scale", loss_scale)
    gradients = [parameter.grad for parameter in layout.parameters]
    statistics = tensor_statistics(gradients)
    total = statistics.total_norm
    return GradientReport(
        model=layout.record.model,
        total_norm=None if total is None else total / loss_scale,
        threshold=threshold,
        parameters=tuple(
            ParameterGradient(name=name, layer=layer_name(layout, index), shape=tuple(parameter.shape))
            if statistics.missing[index]
            else ParameterGradient(
                name=name,
                layer=layer_name(layout, index),
                shape=tuple(parameter.shape),
                norm=float(statistics.norm[index]) / loss_scale,
                rms=float(statistics.norm[index]) / loss_scale / math.sqrt(parameter.numel()),
                max_abs=float(statistics.max_abs[index]) / loss_scale,
                mean=float(statistics.mean[index]) / loss_scale,
                std=float(statistics.std[index]) / loss_scale,
                nan_count=int(statistics.nan_count[index]),
                inf_count=int(statistics.inf_count[index]),
            )
            for index, (name, parameter) in enumerate(zip(layout.names, layout.parameters, strict=True))
        ),
        note=_sharding_note(layout) or ("no parameter has a gradient" if total is None else ""),
    )


def require_layout(model: object) -> ModelLayout:
    """Name a model's trainable parameters.

    Raises:
        ValueError: it is no module, or has no trainable parameter.
    """
    return describe_model(require_module(model))


def require_module(model: object) -> nn.Module:
    """Return the model itself, without DistributedDataParallel and torch.compile around it.

    Raises:
        ValueError: it is no module, or a lazy one without parameters as yet.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"this takes the model, a torch.nn.Module, got {type(model).__name__}")
    for name, parameter in model.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise ValueError(f"parameter {name} of a lazy module has no shape yet: run one forward first")
    return unwrap(model)


def layer_name(layout: ModelLayout, index: int) -> str:
    """Qualified name of the layer that owns the parameter at `index`."""
    return layout.layer_names[int(layout.layer_of[index])]


def _require_positive(option: str, value: float | None) -> None:
    if value is not None and not (isinstance(value, int | float) and 0 < value < math.inf):
        raise ValueError(f"{option}={value!r} must be a finite number above 0")


def _sharding_note(layout: ModelLayout) -> str:
    if any(local_shard(parameter) is not parameter for parameter in layout.parameters):
        return "some parameters are sharded (DTensor): norms are of this rank's shards, a part of the whole"
    return ""


def _violations(
    kind: Literal["explosion", "vanishing"],
    report: GradientReport,
    threshold: float,
    found: list[ParameterGradient],
) -> GradientViolations:
    return GradientViolations(
        kind=kind,
        threshold=threshold,
        offenders=tuple(
            GradientViolation(
                name=p.name,
                norm=p.norm or 0.0,
                rms=p.rms or 0.0,
                nan_count=p.nan_count,
                inf_count=p.inf_count,
            )
            for p in found
        ),
        checked=sum(p.norm is not None for p in report.parameters),
        missing=report.missing,
        note=report.note,
    )


def _row(p: ParameterGradient) -> tuple[str, ...]:
    values = [tables.number(value) for value in (p.norm, p.rms, p.max_abs, p.mean, p.std)]
    return (p.name, tables.shape(p.shape), *values, str(p.nan_count), str(p.inf_count))
