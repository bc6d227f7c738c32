"""Builds a step's frame and a detector's observation from what was measured. Pure numpy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from .columns import pack_column
from .detectors.base import Observation
from .layout import ModelLayout
from .losses import StepLoss
from .recorder import MemorySample
from .statistics import TensorStatistics
from .wire import Column, Frame


def build_frame(
    step: int,
    time: float,
    *,
    layout: ModelLayout,
    stage: str,
    gradients: TensorStatistics,
    parameter_norm: npt.NDArray[np.float64] | None,
    scalars: Mapping[str, float],
) -> Frame:
    """Pack one step; the count columns are left out while every count is zero."""
    missing = gradients.missing
    return Frame(
        step=step,
        time=time,
        layout=layout.record.layout,
        stage=stage,
        scalars=dict(scalars),
        columns=_columns(gradients, parameter_norm),
        missing=np.packbits(missing).tobytes() if missing.any() else b"",
    )


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


def build_observation(
    step: int,
    *,
    layout: ModelLayout,
    loss: float | None,
    gradients: TensorStatistics,
    total_norm: float | None,
    parameter_norm: npt.NDArray[np.float64] | None,
) -> Observation:
    """Arrange one step for the detectors."""
    return Observation(
        step=step,
        loss=loss,
        total_grad_norm=total_norm,
        grad_norm=gradients.norm,
        grad_max_abs=gradients.max_abs,
        grad_nan_count=gradients.nan_count,
        grad_inf_count=gradients.inf_count,
        missing=gradients.missing,
        parameter_norm=parameter_norm,
        parameter_names=layout.names,
        layer_names=layout.layer_names,
        layer_of=layout.layer_of,
    )


def loss_scalars(loss: StepLoss) -> dict[str, float]:
    """Return `loss` and `loss_raw`; nothing for a step without a scalar loss."""
    if loss.value is None or loss.raw is None:
        return {}
    return {"loss": loss.value, "loss_raw": loss.raw}


def memory_scalars(memory: MemorySample) -> dict[str, float]:
    """Return the host's memory in bytes, under the names of `wire.SCALARS`."""
    return {
        "process_rss_bytes": float(memory.rss_bytes),
        "system_used_bytes": float(memory.system_used_bytes),
        "system_total_bytes": float(memory.system_total_bytes),
    }
