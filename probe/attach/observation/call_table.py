"""What one step's module calls have told, as arrays: the same from Python and the kernel. Numbers only."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from .measured_rows import Floats

Indices = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]


class CallTable(msgspec.Struct, frozen=True, kw_only=True):
    """The calls in the order in which they began, and the outputs that were measured."""

    rows: Indices
    """(calls,) module of each."""
    outputs: Indices
    """(calls,) number of its output, -1 for none."""
    is_done: Mask
    """(calls,) whether it returned."""
    measured: Floats
    """(outputs, WIDTH) statistics."""
    elements: Floats
    """(outputs,)."""
    units: Indices
    """(outputs,) how many units it has, 0 where they are not looked at."""
    activity: Mapping[int, Mask]
    """(units,) by number, of outputs with units that gave nothing but zeros; in all others all are active."""
    compiled_rows: Collection[int]
    """Modules that ran as a compiled graph."""

    @property
    def done(self) -> Indices:
        """(done,) indices of the calls that returned."""
        return np.flatnonzero(self.is_done)
