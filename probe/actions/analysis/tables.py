"""Numbers, sizes and tables as text, the way every result of this package prints them. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

MAX_ROWS: Final = 200
"""A longer table is cut, and says so: it is meant for a terminal. `to_dict` is never cut."""
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def number(value: float | None) -> str:
    """Four significant digits; "-" for a missing value, "NaN" and "Inf" for those."""
    if value is None:
        return "-"
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    if isinstance(value, int) or (value == int(value) and abs(value) < 1e6):
        return f"{int(value):,}"
    return f"{value:.4g}"


def size(count_bytes: float | None) -> str:
    """Bytes with a binary unit."""
    if count_bytes is None:
        return "-"
    value = float(count_bytes)
    for unit in _UNITS:
        if abs(value) < 1024 or unit == _UNITS[-1]:
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def signed_size(count_bytes: float) -> str:
    """A change in bytes, with its sign."""
    return ("+" if count_bytes >= 0 else "-") + size(abs(count_bytes))


def duration(seconds: float | None) -> str:
    """Seconds with the unit that reads best."""
    if seconds is None:
        return "-"
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "us")):
        if abs(seconds) * factor >= 1 or unit == "us":
            return f"{seconds * factor:.3g} {unit}"
    raise AssertionError  # the loop returns at the last unit


def shape(dimensions: Sequence[int | None]) -> str:
    """``2x3x4``; a tensor without dimensions is "scalar", an unknown length "?"."""
    return "x".join("?" if length is None else str(length) for length in dimensions) or "scalar"


def shapes(many: Sequence[Sequence[int | None]]) -> str:
    """Shapes of several tensors on one line; the fourth and later are counted only."""
    shown = ", ".join(shape(one) for one in many[:3])
    return f"{shown}, +{len(many) - 3}" if len(many) > 3 else shown or "-"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> list[str]:
    """Lines of a table with aligned columns, the first `left` of them to the left."""
    shown = [list(header), *(list(row) for row in rows[:MAX_ROWS])]
    widths = [max(len(row[column]) for row in shown) for column in range(len(header))]
    lines = [
        "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in shown
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    if len(rows) > MAX_ROWS:
        lines.append(f"... and {len(rows) - MAX_ROWS:,} more rows (to_dict() has them all)")
    return lines


def root_or(name: str) -> str:
    """A module's qualified name; the root's own is empty."""
    return name or "(root)"


def names(many: Sequence[str], limit: int = 8) -> str:
    """Join names for a sentence; what is over the limit is counted only."""
    shown = ", ".join(root_or(name) for name in many[:limit])
    return f"{shown} and {len(many) - limit} more" if len(many) > limit else shown
