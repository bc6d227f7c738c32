"""Numbers as text: sensible digits and a unit. Pure; the views of events and the export call it."""

from __future__ import annotations

import math
from typing import Final

_BYTE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def number_text(value: float) -> str:
    """Four significant digits; NaN and infinities by name."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:.4g}"
    if abs(value) < 1e6 and value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3e}"


def percent_text(share: float) -> str:
    """A share as ``24.7 %``; below a thousandth of a percent in powers of ten."""
    if not math.isfinite(share):
        return number_text(share)
    pct = 100 * share
    return f"{pct:.3g} %" if pct == 0 or 1e-3 <= abs(pct) < 1000 else f"{number_text(pct)} %"


def share_text(share: float) -> str:
    """A share of a count, for a column: two digits at least, 0 only for none at all, 100 only for all."""
    if share in (0.0, 1.0):
        return f"{share * 100:.0f} %"
    if share > 0.9999:
        return "> 99.99 %"
    return f"{share * 100:.{max(2, math.ceil(-math.log10(share * 100)))}f} %"


def bytes_text(value: float) -> str:
    """Bytes in binary units, for instance ``1.5 GiB``."""
    if not math.isfinite(value):
        return number_text(value)
    size, unit = float(value), 0
    while abs(size) >= 1024 and unit < len(_BYTE_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.4g} {_BYTE_UNITS[unit]}"


def duration_text(seconds: float) -> str:
    """``17.6 ms``, ``12.3 s``, ``4 min 05 s``, ``3 h 12 min``."""
    if not math.isfinite(seconds):
        return number_text(seconds)
    size = abs(seconds)
    if size < 0.9995e-3:
        return "0 s" if seconds == 0 else f"{1e6 * seconds:.3g} µs"
    if size < 0.9995:
        return f"{1e3 * seconds:.3g} ms"
    if size < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60:,} h {minutes % 60:02d} min"
