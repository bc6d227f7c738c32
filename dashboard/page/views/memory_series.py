"""Series of memory that are computed when they are drawn. Pure: rows in, rows of the same form out."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

CUDA_UNUSED: Final = "cuda_unused_bytes"
PROCESS_GROWTH: Final = "process_growth_bytes"
CUDA_GROWTH: Final = "cuda_growth_bytes"
GROWTH: Final = (PROCESS_GROWTH, CUDA_GROWTH)
WINDOW: Final = 16
"""Points that growth is judged over; it is the slope between the medians of their first and last quarter."""
_QUARTER: Final = WINDOW // 4
_PER_STEPS: Final = 1000


@np.errstate(over="ignore", invalid="ignore")  # what no float64 holds is Inf
def cuda_unused(data: pd.DataFrame) -> pd.DataFrame:
    """Return what is reserved and in no tensor, where both series have a row for the same steps."""
    reserved, allocated = _rows(data, "cuda_reserved_bytes"), _rows(data, "cuda_allocated_bytes")
    _, mine, other = np.intersect1d(
        reserved["step"].to_numpy(), allocated["step"].to_numpy(), assume_unique=True, return_indices=True
    )
    both = reserved.iloc[mine]
    is_same = both["pooled"].to_numpy() == allocated["pooled"].to_numpy()[other]
    unused = both["mean"].to_numpy(np.float64) - allocated["mean"].to_numpy(np.float64)[other]
    return _series(both[is_same], unused[is_same], name=CUDA_UNUSED)


def process_growth(data: pd.DataFrame) -> pd.DataFrame:
    """Return the growth of the process's memory, see `growth_rows`."""
    return growth_rows(_rows(data, "process_rss_bytes"), name=PROCESS_GROWTH)


def cuda_growth(data: pd.DataFrame) -> pd.DataFrame:
    """Return the growth of what CUDA's allocator has given out, see `growth_rows`."""
    return growth_rows(_rows(data, "cuda_allocated_bytes"), name=CUDA_GROWTH)


def growth_rows(rows: pd.DataFrame, *, name: str) -> pd.DataFrame:
    """Return bytes per 1,000 steps over the `WINDOW` points that end at each; the first ones have none.

    Args:
        rows: of `Store.scalars`, of one name, by step.
        name: of the new series.
    """
    if len(rows) < WINDOW:
        return _series(rows.iloc[:0], np.zeros(0), name=name)
    middle = rows["step"].to_numpy(np.float64) + (rows["pooled"].to_numpy(np.float64) - 1.0) / 2.0
    values = _medians(rows["mean"].to_numpy(np.float64))
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        slopes = _PER_STEPS * values / _means(middle)
    return _series(rows.iloc[WINDOW - 1 :], np.where(np.isfinite(slopes), slopes, np.nan), name=name)


def _rows(data: pd.DataFrame, name: str) -> pd.DataFrame:
    """The rows of one name, by step."""
    rows: pd.DataFrame = data[data["name"].to_numpy(dtype=object) == name]
    return rows if rows["step"].is_monotonic_increasing else rows.sort_values("step", ignore_index=True)


def _series(rows: pd.DataFrame, values: npt.NDArray[np.float64], *, name: str) -> pd.DataFrame:
    """Rows of a new series at the steps of these."""
    count = len(rows)
    return pd.DataFrame(
        {
            "name": np.full(count, name, dtype=object),
            "step": rows["step"].to_numpy(np.int64),
            "time": rows["time"].to_numpy(np.float64),
            "min": values,
            "mean": values,
            "max": values,
            "nan": np.zeros(count, np.int64),
            "inf": np.zeros(count, np.int64),
            "pooled": rows["pooled"].to_numpy(np.int64),
        }
    )


def _medians(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """(points - WINDOW + 1,) median of a window's last quarter, that of its first taken off."""
    quarters = np.median(np.lib.stride_tricks.sliding_window_view(values, _QUARTER), axis=1)
    return np.asarray(quarters[WINDOW - _QUARTER :] - quarters[: -(WINDOW - _QUARTER)])


def _means(places: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The same of the mean places."""
    quarters = np.lib.stride_tricks.sliding_window_view(places, _QUARTER).mean(axis=1)
    return np.asarray(quarters[WINDOW - _QUARTER :] - quarters[: -(WINDOW - _QUARTER)])
