"""The step time by phase, out of what is stored: parts that add up to it. Pure: rows in, rows out.

What a step has of a phase is stored; the probe's share of the step is, and the rest is what is left. Where
rows pool steps, each part is its sum over all of them divided by their number, so that the parts of a row are
those of its mean step time.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

_STEP_TIME: Final = "step_time_s"
_PROBE: Final = "probe_fraction"
_STORED: Final = {
    "phase_data_s": "data_wait_s",
    "phase_forward_s": "forward_s",
    "phase_backward_s": "backward_s",
    "phase_optimizer_s": "optimizer_s",
}
PHASES: Final = (*_STORED, "phase_probe_s", "phase_other_s")
"""Names of the parts, in the order of a step."""
SOURCES: Final = (_STEP_TIME, _PROBE, *_STORED.values())
NEEDED: Final = (_STEP_TIME, "forward_s")
"""Without these there are no parts: a run of an older probe has the step time alone."""

Floats = npt.NDArray[np.float64]


@np.errstate(over="ignore", invalid="ignore")  # what no float64 holds is Inf
def phase_rows(data: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of all of `PHASES`, one for each row of `step_time_s`; no value where it has none.

    Args:
        data: Rows of `Store.scalars`; names that are not in `SOURCES` are passed over.
    """
    names = data["name"].to_numpy(dtype=object)
    times = data[names == _STEP_TIME].sort_values("step", ignore_index=True)
    count = times["pooled"].to_numpy(dtype=np.float64)
    width = 1 << (int(count.max()) - 1).bit_length() if len(count) else 1
    buckets = times["step"].to_numpy(dtype=np.int64) // width
    whole = times["mean"].to_numpy(dtype=np.float64)
    parts: dict[str, Floats] = {}
    for part, stored in _STORED.items():
        mean, pooled = _at(data[names == stored], buckets, width)
        parts[part] = mean * np.minimum(pooled / count, 1.0)
    known = np.nansum(np.stack(list(parts.values())), axis=0)
    is_known = ~np.isnan(parts["phase_forward_s"]) | ~np.isnan(parts["phase_backward_s"])
    share = np.nan_to_num(_at(data[names == _PROBE], buckets, width)[0])
    left = np.maximum(whole - known, 0.0)
    parts["phase_probe_s"] = np.minimum(share * whole, left)
    parts["phase_other_s"] = left - parts["phase_probe_s"]
    return pd.concat([_rows(times, name, np.where(is_known, parts[name], np.nan)) for name in PHASES])


def _at(rows: pd.DataFrame, buckets: npt.NDArray[np.int64], width: int) -> tuple[Floats, Floats]:
    """Mean and number of steps of a series in these buckets; NaN and 0 where it has none."""
    mean, pooled = np.full(len(buckets), np.nan), np.zeros(len(buckets))
    own = rows["step"].to_numpy(dtype=np.int64) // width
    at = np.searchsorted(buckets, own)
    is_there = at < len(buckets)
    is_there[is_there] = buckets[at[is_there]] == own[is_there]
    mean[at[is_there]] = rows["mean"].to_numpy(dtype=np.float64)[is_there]
    pooled[at[is_there]] = rows["pooled"].to_numpy(dtype=np.float64)[is_there]
    return mean, pooled


def _rows(times: pd.DataFrame, name: str, values: Floats) -> pd.DataFrame:
    values = np.where(np.isfinite(values), values, np.nan)
    none = np.zeros(len(times), np.int64)
    return times.assign(name=name, min=values, mean=values, max=values, nan=none, inf=none)
