"""The newest points of the tracks, which go with the status until the next picture has them.

A picture is read once a second; the status, which reads the newest steps for its values anyway, five times.
Pure computation, on the hub's reader threads; `assets/ns_41_newest.js` puts the points onto the lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

LINES: Final = ("loss", "grad_norm", "grad_norm_clipped")
"""All lines of the tracks: they show values as they are stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """Where the newest points of a rank begin or end."""

    incarnation: int
    end: int
    """First step that is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestPoints:
    """Points of the newest steps, none of which is left out."""

    edge: Edge
    first: int
    """First step that was looked at."""
    lines: dict[str, tuple[list[int], list[float]]]
    """Name -> ascending steps and their values, NaN and Inf as they are."""


def newest_points(recent: pd.DataFrame, *, edge: Edge, first: int) -> NewestPoints:
    """Return the points of what the status has read.

    Args:
        recent: `Store.scalars` of steps [first, edge.end), not pooled.
        edge: What follows these steps.
        first: First step that was asked for.
    """
    names, steps = recent["name"].to_numpy(dtype=object), recent["step"].to_numpy()
    has_nan, has_inf = recent["nan"].to_numpy() > 0, recent["inf"].to_numpy() > 0
    values = np.where(has_nan, np.nan, np.where(has_inf, np.inf, recent["mean"].to_numpy(dtype=np.float64)))
    lines = {}
    for name in LINES:
        rows = np.flatnonzero(names == name)
        rows = rows[np.argsort(steps[rows])]
        lines[name] = (steps[rows].tolist(), values[rows].tolist())
    return NewestPoints(edge=edge, first=first, lines=lines)


def points_after(drawn: Edge, newest: NewestPoints) -> dict[str, tuple[list[int], list[float]]]:
    """Return what a page lacks that has drawn all steps before an edge, by line.

    {} where steps of another start, or some that were not read, come between: the next picture has them.
    """
    if drawn.incarnation != newest.edge.incarnation or newest.first > drawn.end:
        return {}
    found = {}
    for name, (steps, values) in newest.lines.items():
        at = int(np.searchsorted(steps, drawn.end))
        if at < len(steps):
            found[name] = (steps[at:], values[at:])
    return found
