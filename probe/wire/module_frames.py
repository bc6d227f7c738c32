"""Packs and unpacks what a frame says of modules, and histograms; the tables of their names. Pure numpy.

The probe packs on the training thread; the dashboard unpacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from ..errors import WireError
from .columns import pack_block, unpack_column
from .records import Column, Frame, Histogram, ModuleColumn

MODULE_COLUMNS: Final[dict[str, str]] = {
    "calls": "how often the module was called in the step",
    "activation_rms": "root of the mean square of the module's output, over all calls of the step",
    "activation_max_abs": "largest absolute element of the output",
    "activation_mean": "mean of the output's elements",
    "activation_std": "population standard deviation of the output's elements",
    "activation_zero_fraction": "share (0-1) of the output's elements that are exactly 0",
    "activation_saturated_fraction": "share (0-1) at the limits of the activation or the dtype",
    "activation_nan_count": "NaN elements of the output; the column is left out when all are zero",
    "activation_inf_count": "infinite elements of the output; the column is left out when all are zero",
    "units": "neurons or channels of the output; missing where that is a single number",
    "dead_units": "units that were 0 in every element throughout the window of sampled steps",
    "activation_gradient_norm": "L2 norm of the loss's gradient with respect to the output, over all calls",
    "activation_gradient_max_abs": "largest absolute element of that gradient",
    "activation_gradient_mean": "mean of its elements",
    "activation_gradient_std": "population standard deviation of its elements",
    "activation_gradient_nan_count": "NaN elements; the column is left out when all are zero",
    "activation_gradient_inf_count": "infinite elements; the column is left out when all are zero",
    "forward_time_s": "seconds in the module's forward and its children's, without the probe's own",
    "forward_self_time_s": "the same without its children's",
    "backward_time_s": "seconds in the backward of what the module and its children computed",
    "backward_self_time_s": "the same without its children's",
    "output_bytes": "bytes of the output where its memory is new, neither an input's nor a child's",
    "saved_bytes": "bytes that the module's own operations keep for backward, parameters left out",
    "parameter_bytes": "bytes of the parameters and buffers that the module owns directly",
    "allocated_bytes": "growth of the CUDA allocator during the forward, without its children's",
}
MODULE_STATES: Final[tuple[str, ...]] = ("observed", "not called", "inside a compiled graph", "no tensor")
"""Why a module has no row values; `module_states` holds indices into this."""
HISTOGRAMS: Final[dict[str, str]] = {
    "gradient": "elements of each parameter's gradient, as it is at the update",
    "parameter": "elements of each parameter",
    "activation": "elements of each module's output",
}


def pack_module_columns(
    columns: Mapping[str, npt.NDArray[np.float64]], missing: Mapping[str, npt.NDArray[np.bool_]]
) -> list[ModuleColumn]:
    """Pack (rows,) float64 statistics; what is missing is sent as 0 and marked.

    Count columns that hold nothing but zeros, and columns without any value, are left out.

    Args:
        columns: values by name (see `MODULE_COLUMNS`).
        missing: masks by name, for those that have gaps.
    """
    named: list[tuple[str, bytes]] = []
    kept = []
    # Most columns have the same mask, which is looked into once.
    marks_of: dict[int, bytes | None] = {}
    for name, values in columns.items():
        gaps = missing.get(name)
        if id(gaps) not in marks_of:
            marks_of[id(gaps)] = _marks(gaps)
        marks = marks_of[id(gaps)]
        if marks is None:
            continue
        present = np.where(gaps, 0.0, values) if marks else values  # type: ignore[arg-type]
        if name.endswith(("_nan_count", "_inf_count")) and not present.any():
            continue
        named.append((name, marks))
        kept.append(present)
    if not kept:
        return []
    packed = pack_block([name for name, _ in named], np.stack(kept))
    return [
        ModuleColumn(name=name, dtype=column.dtype, data=column.data, missing=marks)
        for (name, marks), column in zip(named, packed, strict=True)
    ]


def _marks(gaps: npt.NDArray[np.bool_] | None) -> bytes | None:
    """Return one bit for each value that is missing; b"" where none is, None where all are."""
    if gaps is not None and gaps.all():
        return None
    return b"" if gaps is None or not gaps.any() else np.packbits(gaps).tobytes()


def unpack_module_column(
    column: ModuleColumn, rows: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Return the (rows,) float64 values of a column and where it has none (the values are 0 there).

    Raises:
        WireError: there are more or fewer than `rows` of them.
    """
    values = unpack_column(Column(name=column.name, dtype=column.dtype, data=column.data))
    if len(values) != rows:
        raise WireError(f"module column {column.name!r} holds {len(values)} values for {rows} rows")
    if not column.missing:
        return values, np.zeros(rows, dtype=np.bool_)
    gaps = np.unpackbits(np.frombuffer(column.missing, dtype=np.uint8))
    if len(gaps) < rows:
        raise WireError(f"the mask of module column {column.name!r} covers {len(gaps)} of {rows} rows")
    return values, gaps[:rows].astype(np.bool_)


def pack_module_rows(rows: npt.NDArray[np.intp]) -> bytes:
    """Pack the (rows,) module index of each row."""
    return rows.astype("<u4").tobytes()


def unpack_module_rows(frame: Frame, modules: int) -> npt.NDArray[np.intp]:
    """Return the (rows,) module index of each module row of a frame.

    Raises:
        WireError: an index beyond the layout's modules, or a cut-off number.
    """
    if not frame.module_rows:
        return np.arange(modules)
    if len(frame.module_rows) % 4:
        raise WireError(f"module rows hold {len(frame.module_rows)} bytes, no multiple of 4")
    rows = np.frombuffer(frame.module_rows, dtype="<u4").astype(np.intp)
    if rows.max() >= modules:
        raise WireError(f"a row is of module {rows.max()}; the layout has {modules}")
    return rows


def pack_histogram(
    name: str, rows: Literal["parameters", "modules"], counts: npt.NDArray[np.int64]
) -> Histogram:
    """Pack (rows, bins) counts."""
    limited = np.minimum(counts, 2**32 - 1).astype("<u4")
    return Histogram(name=name, rows=rows, bins=counts.shape[1], data=limited.tobytes())


def unpack_histogram(histogram: Histogram) -> npt.NDArray[np.int64]:
    """Return the (rows, bins) counts.

    Raises:
        WireError: the data is no whole number of rows.
    """
    if len(histogram.data) % (4 * histogram.bins):
        size = len(histogram.data)
        raise WireError(f"histogram {histogram.name!r} holds {size} bytes, no whole rows of {histogram.bins}")
    counts = np.frombuffer(histogram.data, dtype="<u4").astype(np.int64)
    return counts.reshape(-1, histogram.bins)
