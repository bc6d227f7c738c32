"""Series of memory that are computed when they are drawn, against plain loops."""

from __future__ import annotations

from statistics import fmean, median

import numpy as np
import pandas as pd
import pytest

from dashboard.page.views.chart_specs import CHARTS
from dashboard.page.views.charts import series_figure
from dashboard.page.views.memory_series import WINDOW, cuda_growth, cuda_unused, process_growth
from dashboard.page.views.theme import colours
from dashboard.page.views.throughput import with_derived, with_derived_names


def rows(name: str, values: list[float], *, pooled: int = 1, first: int = 0) -> pd.DataFrame:
    count = len(values)
    return pd.DataFrame(
        {
            "name": name,
            "step": first + pooled * np.arange(count),
            "time": 100.0 + np.arange(count),
            **dict.fromkeys(("min", "mean", "max"), np.array(values, dtype=np.float64)),
            **dict.fromkeys(("nan", "inf"), np.zeros(count, np.int64)),
            "pooled": pooled,
        }
    )


@pytest.mark.parametrize("pooled", [1, 16])
def test_growth_is_the_slope_between_the_medians_of_a_windows_ends(pooled: int) -> None:
    values = (1e9 + np.random.default_rng(1).standard_normal(50).cumsum() * 1e6).tolist()
    found = process_growth(rows("process_rss_bytes", values, pooled=pooled))
    quarter, expected = WINDOW // 4, []
    for end in range(WINDOW, len(values) + 1):
        window = list(range(end - WINDOW, end))
        low, high = window[:quarter], window[-quarter:]
        grown = median(values[at] for at in high) - median(values[at] for at in low)
        expected.append(1000 * grown / (pooled * (fmean(high) - fmean(low))))
    assert found["mean"].tolist() == pytest.approx(expected)
    assert found["step"].tolist() == [pooled * at for at in range(WINDOW - 1, len(values))]
    assert (found["pooled"] == pooled).all() and set(found["name"]) == {"process_growth_bytes"}


def test_growth_of_a_steady_leak_is_its_pace() -> None:
    found = cuda_growth(rows("cuda_allocated_bytes", [5e9 + 800.0 * step for step in range(40)]))
    assert found["mean"].tolist() == pytest.approx([800_000.0] * 25)


def test_growth_has_a_gap_where_a_reading_has_no_value() -> None:
    values = [1e9] * 40
    values[20] = np.nan
    found = process_growth(rows("process_rss_bytes", values))
    is_known = np.isfinite(found["mean"].to_numpy())
    assert not is_known.all() and is_known[0] and is_known[-1]


def test_too_few_readings_have_no_growth() -> None:
    assert process_growth(rows("process_rss_bytes", [1e9] * (WINDOW - 1))).empty
    assert process_growth(rows("loss", [1e9] * 100)).empty


def test_unused_is_what_is_reserved_and_in_no_tensor() -> None:
    reserved = rows("cuda_reserved_bytes", [12.0, 12.0, 16.0])
    allocated = rows("cuda_allocated_bytes", [9.0, 10.0], first=1)
    found = cuda_unused(pd.concat([reserved, allocated], ignore_index=True))
    assert list(zip(found["step"], found["mean"], strict=True)) == [(1, 3.0), (2, 6.0)]


def test_unused_of_points_that_pool_other_steps_is_unknown() -> None:
    data = [rows("cuda_reserved_bytes", [12.0, 12.0], pooled=16), rows("cuda_allocated_bytes", [9.0])]
    assert cuda_unused(pd.concat(data, ignore_index=True)).empty


def test_they_are_there_where_their_sources_are() -> None:
    assert with_derived_names(["process_rss_bytes"]) == ["process_rss_bytes", "process_growth_bytes"]
    both = [rows("cuda_reserved_bytes", [12.0] * 20), rows("cuda_allocated_bytes", [9.0] * 20)]
    names = set(with_derived(pd.concat(both, ignore_index=True))["name"])
    assert names == {"cuda_reserved_bytes", "cuda_allocated_bytes", "cuda_unused_bytes", "cuda_growth_bytes"}


def test_stacked_chart_is_areas_in_the_colours_of_kinds() -> None:
    spec = next(one for one in CHARTS if one.id == "memory_kinds")
    data = [rows(name, [float(2**30 * (at + 1))] * 5, pooled=16) for at, name in enumerate(spec.names)]
    figure = series_figure(
        pd.concat(data, ignore_index=True),
        title="",
        unit="GiB",
        theme="dark",
        names=spec.labels,
        stacked=True,
    )
    areas = [trace for trace in figure.data if trace.stackgroup]
    assert [(trace.name, float(trace.y[0]), trace.line.color) for trace in areas] == [
        (label, at + 1.0, colours("dark").kinds[at]) for at, label in enumerate(spec.labels.values())
    ]
    # Bands of the pooled steps would lie at the parts' own heights, not at those of the sum.
    assert len([trace for trace in figure.data if len(trace.x)]) == len(spec.names)


def test_only_parts_of_a_whole_are_stacked() -> None:
    stacked = [spec for spec in CHARTS if spec.stacked]
    assert [spec.id for spec in stacked] == ["memory_kinds", "step_phases"]
    assert max(len(spec.names) for spec in stacked) <= len(colours("dark").kinds)
