"""Packs and unpacks the statistics of a frame, one column at a time. Pure numpy; both ends use it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..errors import WireError
from .records import Column, Frame


def pack_column(name: str, values: npt.NDArray[np.float64]) -> Column:
    """Pack a (parameters,) float64 array; float32 unless that would turn a finite value into Inf or zero."""
    with np.errstate(over="ignore", under="ignore"):
        narrow = values.astype("<f4")
    lossless_range = np.isfinite(values) == np.isfinite(narrow)
    if bool(np.all(lossless_range & ((values == 0) == (narrow == 0)))):
        return Column(name=name, dtype="f4", data=narrow.tobytes())
    return Column(name=name, dtype="f8", data=values.astype("<f8").tobytes())


def pack_block(names: Sequence[str], block: npt.NDArray[np.float64]) -> list[Column]:
    """Pack a (names, parameters) float64 block, one column per row, each as by `pack_column`."""
    with np.errstate(over="ignore", under="ignore"):
        narrow = np.ascontiguousarray(block, dtype="<f4")
    if _is_plain(narrow) or (np.isfinite(narrow).all() and np.array_equal(narrow == 0, block == 0)):
        return [
            Column(name=name, dtype="f4", data=row.tobytes()) for name, row in zip(names, narrow, strict=True)
        ]
    # Not finite, or not so in float32, is rare: then each column decides for itself.
    return [pack_column(name, row) for name, row in zip(names, block, strict=True)]


def _is_plain(values: npt.NDArray[np.float32]) -> bool:
    """Whether every value is finite and none is zero, as nearly always: quick to see."""
    magnitudes = np.abs(values)
    return not values.size or bool(magnitudes.min() > 0 and magnitudes.max() < np.inf)


def unpack_column(column: Column) -> npt.NDArray[np.float64]:
    """Return the (parameters,) float64 values of a column.

    Raises:
        WireError: the byte length is no whole number of elements.
    """
    width = 4 if column.dtype == "f4" else 8
    if len(column.data) % width:
        raise WireError(f"column {column.name!r} holds {len(column.data)} bytes, no multiple of {width}")
    return np.frombuffer(column.data, dtype=f"<{column.dtype}").astype(np.float64)


def unpack_missing(frame: Frame, parameter_count: int) -> npt.NDArray[np.bool_]:
    """Return a (parameters,) mask that is True where the parameter had no gradient at this step.

    Raises:
        WireError: the mask is shorter than the layout.
    """
    if not frame.missing:
        return np.zeros(parameter_count, dtype=np.bool_)
    bits = np.unpackbits(np.frombuffer(frame.missing, dtype=np.uint8))
    if len(bits) < parameter_count:
        raise WireError(f"missing mask covers {len(bits)} of {parameter_count} parameters")
    return bits[:parameter_count].astype(np.bool_)
