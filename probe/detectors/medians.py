"""The median, as NumPy computes it but without `numpy.ma`, which its own loads at the first call. Pure.

That import took 8 to 60 ms in the middle of a training step, and 2 MiB for as long as the process lives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


def median_of(values: npt.ArrayLike | Sequence[npt.ArrayLike], axis: int | None = None) -> Any:
    """Return what `np.median(values, axis)` returns: NaN where there is a NaN, or no value at all.

    Args:
        values: numbers of any shape.
        axis: along which; all values make one median by default.
    """
    array = np.asarray(values)
    if axis is None and array.dtype == np.float64 and array.size:
        return _median_of_all(array)
    if axis is None:
        array, axis = array.reshape(-1), 0
    count = array.shape[axis]
    if not count:
        return np.full(np.delete(array.shape, axis), np.nan)[()]
    # Of an odd count one value, as it is: twice the largest number would overflow in a mean.
    middle = sorted({(count - 1) // 2, count // 2})
    # NaN is sorted to the end: the last one tells whether there is any.
    ordered = np.partition(array, [*middle, count - 1], axis=axis)
    found = np.take(ordered, middle, axis=axis).mean(axis=axis)
    last = np.take(ordered, count - 1, axis=axis)
    return np.where(np.isnan(last), last, found)[()]


def _median_of_all(array: npt.NDArray[np.float64]) -> np.float64:
    """The same of all values, not none, by few of NumPy's functions: met cold, each takes 20 us and more."""
    ordered = np.sort(array, axis=None)
    count = len(ordered)
    low, high, last = ordered[(count - 1) // 2], ordered[count // 2], ordered[-1]
    if last != last:
        return np.float64(np.nan)
    if count % 2:
        return np.float64(low)
    # As with NumPy the mean of the largest numbers is Inf; nobody is to be warned of that.
    with np.errstate(over="ignore"):
        return np.float64((low + high) / 2.0)


def median_of_known(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return what `np.nanmedian(values, axis=0)` returns: NaN where nothing is known.

    Args:
        values: (steps, series), NaN where there is none.
    """
    ordered, known = np.sort(values, axis=0), (~np.isnan(values)).sum(axis=0)
    ordered = np.concatenate([ordered, np.full((1, *values.shape[1:]), np.nan)])
    # NaN is sorted to the end; with nothing known both are NaN.
    low, high = np.maximum(known - 1, 0) // 2, known // 2
    middle: npt.NDArray[np.float64] = np.take_along_axis(ordered, np.stack([low, high]), axis=0)
    result: npt.NDArray[np.float64] = middle[0] / 2 + middle[1] / 2
    return result
