"""Has the kernel look whether steps in a ring keep within limits, without Python's lock.

Mirrors the structure of `calm.h`. Used on the recorder's thread; nothing happens at import.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from . import binding
from .hot_binding import OWN_SCALARS

Floats = npt.NDArray[np.float64]
_Pointer, _Int, _Double = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
KEPT_HEIGHTS: Final = 21


class _Calm(ctypes.Structure):
    """Mirrors `Calm`."""

    _fields_ = [
        *[(name, _Int) for name in ("template_id", "parameters", "rows", "first_rate", "rate_count")],
        *[(name, _Double) for name in ("loss_low", "loss_high", "rate_low", "expected")],
        *[(name, _Double) for name in ("common_low", "common_high")],
        ("middle", _Double * 2),
        ("scale", _Double * 2),
        *[(name, _Pointer) for name in ("starts", "low", "high", "median", "mad", "gate", "heights")],
        ("seen", _Int),
    ]


class CalmGlance:
    """Limits, and the newest steps' heights, in the memory that C reads.

    Args:
        template: number of the only records that may be calm.
        rates: how many learning rates these have.
        starts: (rows + 1,) the first parameter of each layer, and how many there are.
        layers: (4, rows) lowest and highest logarithm of a layer's norm, its median, and its MAD.
        numbers: the other members of `Calm`, by name.
        heights: middle and scale of loss and whole gradient, (2, 2).
        gate: (2 + rows,) what no sum of five heights may be above.
        newest: (KEPT_HEIGHTS - 1, 2 + rows) heights of the steps before.
    """

    def __init__(
        self,
        template: int,
        rates: int,
        *,
        starts: npt.NDArray[np.int64],
        layers: Floats,
        numbers: dict[str, float],
        heights: Floats,
        gate: Floats,
        newest: Floats,
    ) -> None:
        self._look: Any = _function()
        kept = np.empty((KEPT_HEIGHTS, len(gate)))
        kept[1:] = newest
        self._alive = starts, layers, gate, kept
        self._calm = _Calm(
            template_id=template,
            parameters=int(starts[-1]),
            rows=len(starts) - 1,
            first_rate=len(OWN_SCALARS),
            rate_count=rates,
            starts=starts.ctypes.data,
            gate=gate.ctypes.data,
            heights=kept.ctypes.data,
            **numbers,
        )
        self._calm.middle[:], self._calm.scale[:] = heights.tolist()
        first = layers.ctypes.data
        for at, name in enumerate(("low", "high", "median", "mad")):
            setattr(self._calm, name, first + at * layers.strides[0])
        self._address = ctypes.addressof(self._calm)

    def steps_of(self, ring: int, start: int, end: int) -> int | None:
        """How many steps lie in `[start, end)`, total bytes of the ring at this address; None: not all calm.

        Heights go on from one call to the next: successive parts of the ring are to be asked for.
        """
        steps: int = self._look(self._address, ring, start, end)
        return None if steps < 0 else steps


@cache
def is_there() -> bool:
    """Whether the kernel can do it."""
    if binding.kernel() is None:
        return False
    library = ctypes.CDLL(str(binding.LIBRARY))
    library.nanscope_calm_size.restype = _Int
    return bool(library.nanscope_calm_size() == ctypes.sizeof(_Calm))


@cache
def _function() -> Any:
    look = ctypes.CDLL(str(binding.LIBRARY)).nanscope_calm_steps
    look.restype, look.argtypes = _Int, (_Pointer, _Pointer, _Int, _Int)
    return look
