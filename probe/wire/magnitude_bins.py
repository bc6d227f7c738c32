"""The bins of log2-magnitude histograms, and what a narrower number format does to the values in them.

Numbers only, without torch: the probe counts into these bins (`magnitudes.py`), the dashboard draws them. The
bins are the same for every tensor, run and version of a layout, so that histograms can be added and compared
over time. Their edges fall exactly where fp16, bf16 and the two fp8 formats begin to lose values.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]

_E4M3_OVERFLOW: Final = 464.0
_E5M2_OVERFLOW: Final = 61440.0
_FP16_OVERFLOW: Final = 65520.0
_BF16_OVERFLOW: Final = (2 - 2**-8) * 2.0**127

BIN_EDGES: Final[tuple[float, ...]] = (
    2.0**-1074,
    *(2.0**exponent for exponent in (-134, -126, -96, -64, -48, -40, -32, -28)),
    *(2.0**exponent for exponent in range(-25, 9)),
    _E4M3_OVERFLOW,
    *(2.0**exponent for exponent in range(9, 16)),
    _E5M2_OVERFLOW,
    _FP16_OVERFLOW,
    *(2.0**exponent for exponent in (16, 20, 24, 32, 48, 64, 96)),
    _BF16_OVERFLOW,
    float("inf"),
)
"""Bin 0 holds exact zeros; bin k holds BIN_EDGES[k - 1] <= |x| < BIN_EDGES[k]; the last two Inf and NaN."""
ZERO_BIN: Final = 0
INF_BIN: Final = len(BIN_EDGES)
NAN_BIN: Final = INF_BIN + 1
BINS: Final = NAN_BIN + 1


class FloatFormat(msgspec.Struct, frozen=True):
    """Where a number format loses values, rounding to nearest (IEEE 754; OCP 8-bit floating point 1.0)."""

    name: str
    underflow: float
    """Half of the smallest subnormal: below, a value becomes 0."""
    smallest_normal: float
    """Below, a value keeps fewer significant bits."""
    overflow: float
    """From here on a value becomes Inf or NaN (or is clamped to the largest finite one)."""


FORMATS: Final[dict[str, FloatFormat]] = {
    "fp16": FloatFormat("fp16", 2.0**-25, 2.0**-14, _FP16_OVERFLOW),
    "bf16": FloatFormat("bf16", 2.0**-134, 2.0**-126, _BF16_OVERFLOW),
    "fp8_e4m3": FloatFormat("fp8_e4m3", 2.0**-10, 2.0**-6, _E4M3_OVERFLOW),
    "fp8_e5m2": FloatFormat("fp8_e5m2", 2.0**-17, 2.0**-14, _E5M2_OVERFLOW),
}


class HeadRoom(msgspec.Struct, frozen=True):
    """Shares of a tensor's elements, in 0-1; each has the shape of the histograms without their last axis."""

    underflow_fraction: npt.NDArray[np.float64]
    """Not zero, but would become so."""
    subnormal_fraction: npt.NDArray[np.float64]
    """Would keep fewer significant bits."""
    overflow_fraction: npt.NDArray[np.float64]
    """Finite, but would not stay so."""


def head_room(counts: Counts, name: str) -> HeadRoom:
    """Return what a cast to a format would lose.

    Args:
        counts: (..., BINS) histograms.
        name: a key of `FORMATS`. Of an empty histogram all shares are 0.
    """
    chosen = FORMATS[name]
    total = np.maximum(counts.sum(axis=-1), 1)
    low, normal, high = (BIN_EDGES.index(edge) + 1 for edge in _edges_of(chosen))
    return HeadRoom(
        counts[..., ZERO_BIN + 1 : low].sum(axis=-1) / total,
        counts[..., low:normal].sum(axis=-1) / total,
        counts[..., high:INF_BIN].sum(axis=-1) / total,
    )


def _edges_of(chosen: FloatFormat) -> tuple[float, float, float]:
    return chosen.underflow, chosen.smallest_normal, chosen.overflow
