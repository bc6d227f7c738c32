"""What the modules returned at a step that went wrong, in words, for the event. Numbers in, lines out."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from ...wire import ModuleInfo
from .module_statistics import ModuleStatistics

_SHOWN: Final = 8


def describe_outputs(statistics: ModuleStatistics) -> list[str]:
    """Return a heading and a line for each of the outputs that stand out, in the order of the calls.

    Those with NaN or Inf come first of all; where there are none, those with the largest elements.

    Args:
        statistics: of the step; without activations there are no lines.
    """
    largest = statistics.columns.get("activation_max_abs")
    if largest is None:
        return []
    missing = statistics.missing["activation_max_abs"]
    bad = np.zeros(len(largest))
    for name in ("activation_nan_count", "activation_inf_count"):
        if name in statistics.columns:
            bad += np.where(statistics.missing[name], 0.0, statistics.columns[name])
    worst = np.flatnonzero(bad > 0)
    if len(worst):
        count = len(largest) - int(missing.sum())
        heading = f"{len(worst)} of {count} outputs of modules were not finite, first:"
        rows = _innermost(statistics, worst)[:_SHOWN]
    else:
        heading = "Outputs of modules with the largest elements, in the order of the calls:"
        order = np.argsort(np.where(missing, -1.0, largest))[::-1]
        rows = np.sort([row for row in order[:_SHOWN] if not missing[row]])
    return [heading, *(_line(statistics, int(row), int(bad[row])) for row in rows)] if len(rows) else []


def _innermost(statistics: ModuleStatistics, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """Leave out rows of modules that contain the module of another one: they return what that one gave."""
    names = [_module(statistics, int(row)).name for row in rows]
    inside = [any(other != name and _contains(name, other) for other in names) for name in names]
    kept: npt.NDArray[np.intp] = rows[~np.array(inside)]
    return kept


def _contains(module: str, other: str) -> bool:
    return not module or other.startswith(f"{module}.")


def _module(statistics: ModuleStatistics, row: int) -> ModuleInfo:
    return statistics.modules[row if statistics.rows is None else int(statistics.rows[row])]


def _line(statistics: ModuleStatistics, row: int, bad: int) -> str:
    info = _module(statistics, row)
    rms, largest = (statistics.columns[f"activation_{name}"][row] for name in ("rms", "max_abs"))
    what = f"{bad:,} elements not finite" if bad else f"rms {rms:.4g}, largest {largest:.4g}"
    return f"  {info.name or 'the root module'} ({info.type}): {what}"
