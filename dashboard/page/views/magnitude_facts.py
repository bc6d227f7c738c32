"""What a log2-magnitude histogram says in words and numbers: bins, shares, what a narrower format would lose.

Pure; the canvas and the panel of a row are made of this.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from probe.wire.magnitude_bins import (
    BIN_EDGES,
    BINS,
    FORMATS,
    INF_BIN,
    NAN_BIN,
    ZERO_BIN,
    FloatFormat,
    head_room,
)

from ...store.protocol import MagnitudeHistogram
from .quantities import share_text

TITLES: Final = {"gradient": "Gradient", "parameter": "Parameter values", "activation": "Output"}
_SUPERSCRIPTS: Final = str.maketrans(
    "-0123456789", "\u207b\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatFacts:
    """What a cast of one tensor to one format would do, as short texts."""

    format: FloatFormat
    underflow: str
    subnormal: str
    overflow: str
    room: str
    """How far everything may grow before the first element overflows."""
    is_bad: bool
    """Something would overflow."""


def power(exponent: int) -> str:
    """Return a power of two."""
    return "2" + str(exponent).translate(_SUPERSCRIPTS)


def edge_text(edge: float) -> str:
    """Return a bin's edge: a power of two, or the number itself where it is none."""
    mantissa, exponent = math.frexp(edge)
    if mantissa == 0.5:
        return power(exponent - 1)
    return f"{edge:,.0f}" if edge < 1e6 else f"{edge:.4g}"


def bin_text(number: int) -> str:
    """Say which elements a bin counts."""
    if number in (ZERO_BIN, INF_BIN, NAN_BIN):
        return {ZERO_BIN: "exactly 0", INF_BIN: "Inf", NAN_BIN: "NaN"}[number]
    if number == 1:
        return f"below {edge_text(BIN_EDGES[1])}, not 0"
    if number == INF_BIN - 1:
        return f"{edge_text(BIN_EDGES[-2])} and more"
    return f"{edge_text(BIN_EDGES[number - 1])} to {edge_text(BIN_EDGES[number])}"


TICKS: Final = (-64, -32, -16, -8, 0, 8, 16, 64)
"""Exponents of two that get a label on the axis of magnitudes."""


def magnitude_axis() -> dict[str, Any]:
    """Return what the scripts draw histograms with: texts of the bins, and where formats begin and end.

    A format keeps all bits of the bins `[normal, high)`, fewer of `[low, normal)`; it has nothing below `low`
    but zero and nothing from `high` on.
    """
    return {
        "bins": [bin_text(number) for number in range(BINS)],
        "zero": ZERO_BIN,
        "inf": INF_BIN,
        "nan": NAN_BIN,
        "ticks": [[power(exponent), BIN_EDGES.index(2.0**exponent) + 1] for exponent in TICKS],
        "formats": [
            {
                "name": chosen.name.replace("fp8_", "fp8 "),
                "low": BIN_EDGES.index(chosen.underflow) + 1,
                "normal": BIN_EDGES.index(chosen.smallest_normal) + 1,
                "high": BIN_EDGES.index(chosen.overflow) + 1,
                "range": f"{edge_text(chosen.underflow)} to {edge_text(chosen.overflow)}",
            }
            for chosen in FORMATS.values()
        ],
    }


def elements(histogram: MagnitudeHistogram) -> int:
    """Return how many elements were counted."""
    return int(histogram.counts.sum())


def format_facts(histogram: MagnitudeHistogram) -> list[FormatFacts]:
    """Return what each format would do to the tensor."""
    facts = []
    for name, chosen in FORMATS.items():
        loss = head_room(histogram.counts, name)
        overflow = float(loss.overflow_fraction)
        facts.append(
            FormatFacts(
                format=chosen,
                underflow=share_text(float(loss.underflow_fraction)),
                subnormal=share_text(float(loss.subnormal_fraction)),
                overflow=share_text(overflow),
                room=_room(histogram, chosen),
                is_bad=overflow > 0,
            )
        )
    return facts


def _room(histogram: MagnitudeHistogram, chosen: FloatFormat) -> str:
    """Return the power of two by which all finite elements may be multiplied; a lower bound."""
    filled = np.flatnonzero(histogram.counts[ZERO_BIN + 1 : INF_BIN])
    if not len(filled):
        return "\u2013"
    largest = BIN_EDGES[int(filled[-1]) + 1]
    if largest > chosen.overflow:
        return "none"
    return f"\u00d7 {power(math.floor(math.log2(chosen.overflow) - math.log2(largest)))}"


def special_texts(histogram: MagnitudeHistogram) -> list[str]:
    """Say how many elements are exactly 0, Inf or NaN; nothing of what there is none of."""
    total = max(1, elements(histogram))
    return [
        f"{label} {share_text(int(histogram.counts[number]) / total)}"
        for number, label in ((ZERO_BIN, "zero"), (INF_BIN, "Inf"), (NAN_BIN, "NaN"))
        if histogram.counts[number]
    ]
