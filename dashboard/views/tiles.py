"""The row of numbers above the charts: step, loss, gradient norm, speed, memory, cost of the probe.

Pure: newest scalars in, short texts with units out. The live feed sends the texts; the layout asks `TILES`
which tiles there are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

RECENT_NAMES: Final = ("loss", "grad_norm", "step_time_s", "probe_fraction")
"""Series that have a value at every step."""
SLOW_NAMES: Final = ("process_rss_bytes", "cuda_allocated_bytes")
"""Series read about once a second, so that most steps have none."""
RECENT_STEPS: Final = 32

TILES: Final = (
    ("step", "Step", None),
    ("loss", "Loss", "loss"),
    ("grad_norm", "Gradient norm", "grad_norm"),
    ("speed", "Speed", None),
    ("memory", "Process memory", "process_rss_bytes"),
    ("probe", "Probe cost", None),
)
"""(id, label, series of its sparkline)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TileText:
    """What one tile says now."""

    id: str
    value: str
    unit: str = ""
    is_bad: bool = False
    """The newest value is NaN or Inf."""
    hint: str = ""


def tile_texts(recent: pd.DataFrame, slow: pd.DataFrame, *, last_step: int | None) -> list[TileText]:
    """Return the text of every tile.

    Args:
        recent: `Store.scalars` of `RECENT_NAMES` over the newest `RECENT_STEPS` steps, not pooled.
        slow: `Store.scalars` of `SLOW_NAMES` over a longer stretch.
        last_step: Newest step; None before the first.
    """
    step_time = _finite_mean(recent, "step_time_s")
    share = _finite_mean(recent, "probe_fraction")
    memory, memory_unit = _size(_newest(slow, "process_rss_bytes"))
    return [
        TileText(id="step", value=f"{last_step:,}" if last_step is not None else "\u2013"),
        _number_tile(recent, "loss"),
        _number_tile(recent, "grad_norm"),
        TileText(
            id="speed",
            value=significant(1.0 / step_time, digits=3) if step_time else "\u2013",
            unit="steps/s",
            hint=f"mean of the newest {RECENT_STEPS} steps",
        ),
        TileText(id="memory", value=memory, unit=memory_unit, hint="resident memory of the training process"),
        TileText(
            id="probe",
            value=significant(share * 100, digits=2) if share is not None else "\u2013",
            unit="% of the step",
            hint="the probe's own time on the training thread",
        ),
    ]


def significant(value: float, *, digits: int = 4) -> str:
    """Return a number with so many significant digits, without an exponent where that stays short."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Inf" if value > 0 else "\u2212Inf"
    if value != 0 and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.{digits - 2}e}"
    return f"{value:.{digits}g}" if abs(value) < 10**digits else f"{value:,.0f}"


def _number_tile(recent: pd.DataFrame, name: str) -> TileText:
    """The newest value of a series; NaN and Inf by name."""
    rows = recent[recent["name"] == name]
    if rows.empty:
        return TileText(id=name, value="\u2013")
    last = rows.iloc[-1]
    if last["nan"] > 0 or last["inf"] > 0:
        return TileText(id=name, value="NaN" if last["nan"] > 0 else "Inf", is_bad=True)
    return TileText(id=name, value=significant(float(last["mean"])))


def _finite_mean(data: pd.DataFrame, name: str) -> float | None:
    values = data.loc[data["name"] == name, "mean"].to_numpy(dtype=np.float64)
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else None


def _newest(data: pd.DataFrame, name: str) -> float | None:
    values = data.loc[data["name"] == name, "mean"].to_numpy(dtype=np.float64)
    finite = values[np.isfinite(values)]
    return float(finite[-1]) if finite.size else None


def _size(size_bytes: float | None) -> tuple[str, str]:
    """Return a size in MiB or GiB."""
    if size_bytes is None:
        return "\u2013", "MiB"
    mib = size_bytes / 2**20
    return (f"{mib:,.0f}", "MiB") if mib < 4096 else (f"{mib / 1024:,.1f}", "GiB")
