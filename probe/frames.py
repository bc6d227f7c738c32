"""Builds a step's frame and a detector's observation from what was measured. Pure numpy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .columns import pack_column
from .detectors.base import Observation
from .layout import ModelLayout
from .losses import StepLoss
from .statistics import TensorStatistics
from .wire import Column, Frame


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """Everything that is known of a step once its gradients are on the host."""

    step: int
    time: float
    """UNIX seconds."""
    layout: ModelLayout
    stage: str
    gradients: TensorStatistics
    total_norm: float | None
    """Global L2 norm of the gradients; None when no parameter has one."""
    parameter_norm: npt.NDArray[np.float64] | None
    """(parameters,); None where it was not measured."""
    loss: StepLoss
    samples: int
    """First dimension of the first input, summed over the micro-steps; 0 when unknown."""


def build_frame(measured: MeasuredStep, *, meters: Mapping[str, float]) -> Frame:
    """Pack one step; the count columns are left out while every count is zero.

    Args:
        measured: the step.
        meters: scalars of time and memory.
    """
    missing = measured.gradients.missing
    return Frame(
        step=measured.step,
        time=measured.time,
        layout=measured.layout.record.layout,
        stage=measured.stage,
        scalars={**_scalars(measured), **meters},
        columns=_columns(measured.gradients, measured.parameter_norm),
        missing=np.packbits(missing).tobytes() if missing.any() else b"",
    )


def build_observation(measured: MeasuredStep) -> Observation:
    """Arrange one step for the detectors."""
    gradients, layout = measured.gradients, measured.layout
    return Observation(
        step=measured.step,
        loss=measured.loss.value,
        total_grad_norm=measured.total_norm,
        grad_norm=gradients.norm,
        grad_max_abs=gradients.max_abs,
        grad_nan_count=gradients.nan_count,
        grad_inf_count=gradients.inf_count,
        missing=gradients.missing,
        parameter_norm=measured.parameter_norm,
        parameter_names=layout.names,
        layer_names=layout.layer_names,
        layer_of=layout.layer_of,
    )


def _scalars(measured: MeasuredStep) -> dict[str, float]:
    """Loss, gradient norm and samples, each only where it is known."""
    scalars: dict[str, float] = {}
    if measured.loss.value is not None and measured.loss.raw is not None:
        scalars |= {"loss": measured.loss.value, "loss_raw": measured.loss.raw}
    if measured.total_norm is not None:
        scalars["grad_norm"] = measured.total_norm
    if measured.samples:
        scalars["samples"] = float(measured.samples)
    return scalars


def _columns(gradients: TensorStatistics, parameter_norm: npt.NDArray[np.float64] | None) -> list[Column]:
    columns = [
        pack_column("grad_norm", gradients.norm),
        pack_column("grad_max_abs", gradients.max_abs),
        pack_column("grad_mean", gradients.mean),
        pack_column("grad_std", gradients.std),
    ]
    if gradients.nan_count.any():
        columns.append(pack_column("grad_nan_count", gradients.nan_count))
    if gradients.inf_count.any():
        columns.append(pack_column("grad_inf_count", gradients.inf_count))
    if parameter_norm is not None:
        columns.append(pack_column("parameter_norm", parameter_norm))
    return columns
