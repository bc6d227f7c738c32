"""The row of numbers above the charts: step, loss, gradient norm, speed, memory, cost of the probe.

Pure: newest scalars in, short texts with units out. The live feed sends the texts; the layout asks `TILES`
which tiles there are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

RECENT_NAMES: Final = (
    "loss",
    "grad_norm",
    "grad_norm_clipped",
    "grad_norm_whole",
    "step_time_s",
    "probe_fraction",
    "step_time_added",
    "step_time_added_half_width",
)
"""Series that have a value at every step, that after clipping where there is any, that of a sharded model's
whole gradient once all ranks' parts are stored, the last two once they are known."""
SLOW_NAMES: Final = ("process_rss_bytes", "cuda_allocated_bytes")
"""Series read about once a second, so that most steps have none."""
RECENT_STEPS: Final = 32

TILES: Final = (("speed", "Speed"), ("memory", "Process memory"), ("probe", "Probe cost"))
"""(id, label) of those that are tiles; the others stand beside their track."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TileText:
    """What one tile says now."""

    id: str
    value: str
    unit: str = ""
    detail: str = ""
    """A second, smaller line."""
    is_bad: bool = False
    """The newest value is NaN or Inf."""
    hint: str = ""
    lines: Mapping[str, str] = field(default_factory=dict)
    """Of a track: series -> its newest value, so that all that stands beside it is of one moment."""


def tile_texts(recent: pd.DataFrame, slow: pd.DataFrame, *, last_step: int | None) -> list[TileText]:
    """Return the text of every tile.

    Args:
        recent: `Store.scalars` of `RECENT_NAMES` over the newest `RECENT_STEPS` steps, not pooled.
        slow: `Store.scalars` of `SLOW_NAMES` over a longer stretch.
        last_step: Newest step; None before the first.
    """
    step_time = _finite_mean(recent, "step_time_s")
    memory, memory_unit = _size(_newest(slow, "process_rss_bytes"))
    return [
        TileText(id="step", value=f"{last_step:,}" if last_step is not None else "\u2013"),
        _track_tile(recent, "loss"),
        _track_tile(recent, "grad_norm", "grad_norm_clipped", "grad_norm_whole"),
        TileText(
            id="speed",
            value=significant(1.0 / step_time, digits=3) if step_time else "\u2013",
            unit="steps/s" if step_time else "",
            hint=f"mean of the newest {RECENT_STEPS} steps",
        ),
        TileText(id="memory", value=memory, unit=memory_unit, hint="resident memory of the training process"),
        _probe_tile(recent),
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


_CALLS_HINT: Final = "The probe's own time on the training thread, by its own clock"
_ADDED_HINT: Final = (
    "Step time: what the probe really adds, from comparing steps with steps that are left nearly plain; 95 % "
    "interval, shown once it is narrower than the overhead limit"
)


def _probe_tile(recent: pd.DataFrame) -> TileText:
    """The probe's cost by its own clock and, once it is known, by comparison with plain steps."""
    calls = _finite_mean(recent, "probe_fraction")
    added = _newest(recent, "step_time_added")
    half_width = _newest(recent, "step_time_added_half_width")
    detail, hint = "", f"{_CALLS_HINT}; mean of the newest {RECENT_STEPS} steps."
    if added is not None and half_width is not None:
        detail = f"{_signed(added * 100)} % \u00b1 {half_width * 100:.1f} step time"
        hint = f"{hint} {_ADDED_HINT}."
    value = "\u2013" if calls is None else f"{calls * 100:.1f}" if calls >= 0.001 else "< 0.1"
    return TileText(
        id="probe",
        value=value,
        unit="" if calls is None else "% of step",
        detail=detail,
        hint=hint,
    )


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "\u2212")


def _track_tile(recent: pd.DataFrame, name: str, *others: str) -> TileText:
    """The newest value of a series, which names the track, and of the other lines of its chart."""
    lines = {each: text for each in (name, *others) if (text := _newest_text(recent, each)) is not None}
    value = lines.get(name, "\u2013")
    return TileText(id=name, value=value, is_bad=value in ("NaN", "Inf"), lines=lines)


def _newest_text(recent: pd.DataFrame, name: str) -> str | None:
    """The newest value of a series, NaN and Inf by name; None where it has none."""
    values = _values(recent, name)
    if not values.size:
        return None
    nan, inf = _values(recent, name, "nan")[-1], _values(recent, name, "inf")[-1]
    return "NaN" if nan > 0 else "Inf" if inf > 0 else significant(float(values[-1]))


def _values(data: pd.DataFrame, name: str, column: str = "mean") -> npt.NDArray[np.float64]:
    """(rows,) of one series. Through numpy: this runs for every status of a live page."""
    chosen: npt.NDArray[np.bool_] = data["name"].to_numpy(dtype=object) == name
    return data[column].to_numpy(dtype=np.float64)[chosen]


@np.errstate(over="ignore", invalid="ignore")  # what no float64 holds is Inf
def _finite_mean(data: pd.DataFrame, name: str) -> float | None:
    values = _values(data, name)
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else None


def _newest(data: pd.DataFrame, name: str) -> float | None:
    values = _values(data, name)
    finite = values[np.isfinite(values)]
    return float(finite[-1]) if finite.size else None


def _size(size_bytes: float | None) -> tuple[str, str]:
    """Return a size in MiB or GiB."""
    if size_bytes is None:
        return "\u2013", ""
    mib = size_bytes / 2**20
    return (f"{mib:,.0f}", "MiB") if mib < 4096 else (f"{mib / 1024:,.1f}", "GiB")
