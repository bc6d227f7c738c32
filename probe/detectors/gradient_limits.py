"""Gradient norms outside of absolute limits, which somebody has asked for. Numbers in, rows out.

Called by the analysis calls, which say it in words. A watched run judges against its own history instead
(`gradients.py`). NaN is above every limit.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from .base import Floats

Rows: TypeAlias = npt.NDArray[np.intp]


def rows_above(norms: Floats, limit: float) -> Rows:
    """Return which norms are above a limit, NaN first, then the largest first."""
    rows = np.flatnonzero(~(norms <= limit))
    found = norms[rows]
    return rows[np.lexsort((-found, ~np.isnan(found)))]


def rows_below(norms: Floats, limit: float) -> Rows:
    """Return which norms are below a limit, the smallest first."""
    rows = np.flatnonzero(norms < limit)
    return rows[np.argsort(norms[rows], kind="stable")]


class OutsideLimit(NamedTuple):
    """Norms that are outside of one limit."""

    kind: Literal["gradient_explosion", "gradient_vanishing"]
    limit: float
    rows: Rows
    """Worst first; at least one."""


def outside_limits(norms: Floats, *, explosion: float | None, vanishing: float | None) -> list[OutsideLimit]:
    """Return what is above the one limit and what is below the other.

    Args:
        norms: (parameters,) L2 norms of gradients.
        explosion: limit above; None: none.
        vanishing: limit below; None: none.
    """
    found = []
    if explosion is not None:
        found.append(OutsideLimit("gradient_explosion", explosion, rows_above(norms, explosion)))
    if vanishing is not None:
        found.append(OutsideLimit("gradient_vanishing", vanishing, rows_below(norms, vanishing)))
    return [outside for outside in found if len(outside.rows)]
