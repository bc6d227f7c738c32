"""Series out of what is stored: steps and samples per second, those of memory and of the phases of a step.

Pure: rows in, rows out.

A series of its own would say nothing new: the step times and the samples of each step are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from .memory_series import CUDA_GROWTH, CUDA_UNUSED, PROCESS_GROWTH, cuda_growth, cuda_unused, process_growth
from .phases import NEEDED, PHASES, SOURCES, phase_rows

STEPS_PER_S: Final = "steps_per_s"
SAMPLES_PER_S: Final = "samples_per_s"
_VALUES: Final = ("min", "mean", "max")


def steps_per_s(data: pd.DataFrame) -> pd.DataFrame:
    """Return the steps per second of each row of `step_time_s`.

    A row that pools steps has their number over their time, not the mean of their speeds. Where steps are
    missing, at a stop or a stretch at level `off`, stands a row without a value.

    Args:
        data: Rows of `Store.scalars`; other names than `step_time_s` are passed over.
    """
    width = _width(data, ("step_time_s",))
    times = _rows(data, "step_time_s", width)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = {"min": 1.0 / times["max"], "mean": 1.0 / times["mean"], "max": 1.0 / times["min"]}
    return _finished(times, values, name=STEPS_PER_S, width=width)


def samples_per_s(data: pd.DataFrame) -> pd.DataFrame:
    """Return the samples per second where both `samples` and `step_time_s` have a row for the same steps.

    A row that pools steps has their samples over their time; its smallest and largest value are known where
    all its steps have as many samples, and are else the mean. Missing steps are as in `steps_per_s`.

    Args:
        data: Rows of `Store.scalars`; other names are passed over.
    """
    width = _width(data, ("step_time_s", "samples"))
    times, counts = _rows(data, "step_time_s", width), _rows(data, "samples", width)
    both = times.merge(counts[["bucket", *_VALUES]], on="bucket", suffixes=("", "_of_samples"))
    samples = both["mean_of_samples"]
    is_same = both["min_of_samples"] == both["max_of_samples"]
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = samples / both["mean"]
        low, high = samples / both["max"], samples / both["min"]
    values = {"min": low.where(is_same, mean), "mean": mean, "max": high.where(is_same, mean)}
    return _finished(both, values, name=SAMPLES_PER_S, width=width)


@dataclass(frozen=True, slots=True)
class Derived:
    """A series that is computed when it is drawn."""

    sources: tuple[str, ...]
    """Stored series that it is made of."""
    make: Callable[[pd.DataFrame], pd.DataFrame]
    """Gives the rows of all series that name it."""
    further: tuple[str, ...] = ()
    """Stored series that it takes in where a run has them."""


_OF_PHASES: Final = Derived(NEEDED, phase_rows, further=tuple(name for name in SOURCES if name not in NEEDED))
DERIVED: Final[Mapping[str, Derived]] = {
    STEPS_PER_S: Derived(("step_time_s",), steps_per_s),
    SAMPLES_PER_S: Derived(("step_time_s", "samples"), samples_per_s),
    CUDA_UNUSED: Derived(("cuda_reserved_bytes", "cuda_allocated_bytes"), cuda_unused),
    PROCESS_GROWTH: Derived(("process_rss_bytes",), process_growth),
    CUDA_GROWTH: Derived(("cuda_allocated_bytes",), cuda_growth),
    **dict.fromkeys(PHASES, _OF_PHASES),
}


def with_derived_names(stored: Iterable[str]) -> list[str]:
    """Return the names of a run's series, with those that can be computed from them."""
    known = list(stored)
    return [*known, *(name for name, one in DERIVED.items() if set(one.sources) <= set(known))]


def stored_names(names: Iterable[str]) -> list[str]:
    """Return which series are to be read for these, each once."""
    groups = (
        (*DERIVED[name].sources, *DERIVED[name].further) if name in DERIVED else (name,) for name in names
    )
    return list(dict.fromkeys(name for group in groups for name in group))


def with_derived(data: pd.DataFrame) -> pd.DataFrame:
    """Return rows of `Store.scalars`, with those of each series that can be computed from them."""
    names = with_derived_names(data["name"].unique())
    makers = dict.fromkeys(DERIVED[name].make for name in names if name in DERIVED)
    made = [make(data) for make in makers]
    return pd.concat([data, *made], ignore_index=True) if made else data


def _width(data: pd.DataFrame, names: Iterable[str]) -> int:
    """How many steps a row stands for: buckets are powers of two, and few are not full."""
    pooled = data.loc[data["name"].isin(list(names)), "pooled"]
    return 1 << (int(pooled.max()) - 1).bit_length() if len(pooled) else 1


def _rows(data: pd.DataFrame, name: str, width: int) -> pd.DataFrame:
    """Rows of one name, each with the number of its bucket."""
    rows: pd.DataFrame = data[data["name"].to_numpy(dtype=object) == name]
    if not rows["step"].is_monotonic_increasing:
        rows = rows.sort_values("step", ignore_index=True)
    return rows.assign(bucket=rows["step"] // width)


def _finished(
    rows: pd.DataFrame, values: Mapping[str, pd.Series[Any]], *, name: str, width: int
) -> pd.DataFrame:
    """Name the rows, take out what is not finite, and put a row without a value where a bucket is missing."""
    steps = rows["step"].to_numpy(dtype=np.int64)
    before = np.flatnonzero(np.diff(steps) >= 2 * width)
    at = before + 1
    count = len(steps) + len(at)
    columns: dict[str, npt.NDArray[Any]] = {
        "name": np.full(count, name, dtype=object),
        "step": np.insert(steps, at, steps[before] + width),
        "time": np.insert(rows["time"].to_numpy(dtype=np.float64), at, rows["time"].to_numpy()[before]),
    }
    for key in _VALUES:
        finite = values[key].to_numpy(dtype=np.float64)
        columns[key] = np.insert(np.where(np.isfinite(finite), finite, np.nan), at, np.nan)
    columns |= {key: np.zeros(count, np.int64) for key in ("nan", "inf")}
    columns["pooled"] = np.insert(rows["pooled"].to_numpy(dtype=np.int64), at, 1)
    return pd.DataFrame(columns)
