"""Throughput out of step times and samples, against sums over the steps themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import page_runs
import pandas as pd
import pytest

from dashboard.page.views.chart_specs import CHARTS
from dashboard.page.views.charts import line_parts, series_figure
from dashboard.page.views.throughput import samples_per_s, steps_per_s, stored_names, with_derived
from dashboard.store.duck import DuckStore
from dashboard.store.protocol import StepRange
from probe.wire import Frame, encode

NAMES = ["step_time_s", "samples", "loss"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DuckStore]:
    opened = DuckStore(tmp_path)
    page_runs.fill(opened, steps=range(0))
    yield opened
    opened.close()


def put(store: DuckStore, scalars: Mapping[int, dict[str, float]]) -> None:
    key = page_runs.key("metrics")
    frames = [Frame(step=step, time=1e9 + step, scalars=values) for step, values in scalars.items()]
    store.append(key, store.position(key).next_seq, [encode(frame) for frame in frames])
    store.commit()


def timed(steps: range, *, first: bool = True) -> dict[int, dict[str, float]]:
    """Steps that take 1, 2, ... 5 tenths of a second, with 8 samples, 6 at every third; the first untimed."""
    scalars = {
        step: {"step_time_s": 0.1 * (1 + step % 5), "samples": 8.0 - 2 * (step % 3 == 0)} for step in steps
    }
    if first:
        del scalars[steps[0]]["step_time_s"]
    return scalars


def read(store: DuckStore, points: int = 1000, steps: StepRange = StepRange()) -> pd.DataFrame:  # noqa: B008
    return store.scalars("demo-run", 0, NAMES, steps, points)


def test_each_step_has_its_own_speed(store: DuckStore) -> None:
    put(store, timed(range(20)))
    data = read(store)
    steps, samples = steps_per_s(data), samples_per_s(data)
    assert steps["step"].tolist() == samples["step"].tolist() == list(range(1, 20))
    for row in (*steps.itertuples(), *samples.itertuples()):
        of_step = timed(range(20))[row.step]
        work = of_step["samples"] if row.name == "samples_per_s" else 1.0
        assert row.min == row.mean == row.max == pytest.approx(work / of_step["step_time_s"], rel=1e-6)


def test_pooled_steps_have_their_sum_over_their_time(store: DuckStore) -> None:
    scalars = timed(range(640), first=False)
    put(store, scalars)
    data = read(store, points=40)
    assert set(data["pooled"]) == {16}
    for row in (*steps_per_s(data).itertuples(), *samples_per_s(data).itertuples()):
        inside = [scalars[step] for step in range(row.step, row.step + 16)]
        work = sum(each["samples"] for each in inside) if row.name == "samples_per_s" else 16.0
        assert row.mean == pytest.approx(work / sum(each["step_time_s"] for each in inside), rel=1e-5)
    fastest = steps_per_s(data)
    assert fastest["max"].to_numpy() == pytest.approx(10.0) and fastest["min"].to_numpy() == pytest.approx(
        2.0
    )


def test_stop_and_level_off_are_gaps(store: DuckStore) -> None:
    """A restart leaves one step without a time, level off many."""
    put(store, timed(range(10)) | timed(range(10, 20)) | timed(range(60, 70)))
    for series in (steps_per_s(read(store)), samples_per_s(read(store))):
        line = line_parts(series)["line"]
        missing = line.x[np.isnan(line.y)]
        assert len(missing) == 2 and missing[0] == 10 and 19 < missing[1] < 61
        assert not series[["nan", "inf"]].to_numpy().any(), "a gap is no NaN of the training's"


def test_gap_of_whole_buckets_stays_when_steps_are_pooled(store: DuckStore) -> None:
    put(store, timed(range(320)) | timed(range(960, 1280)))
    series = steps_per_s(read(store, points=90))
    assert int(series["pooled"].max()) == 16
    (missing,) = series[series["mean"].isna()]["step"]
    assert 320 <= missing < 960


def test_single_missing_step_makes_no_gap_when_steps_are_pooled(store: DuckStore) -> None:
    put(store, timed(range(400)) | timed(range(400, 640)))
    assert steps_per_s(read(store, points=40))["mean"].notna().all()


def test_steps_without_samples_have_no_samples_per_second(store: DuckStore) -> None:
    put(store, {step: {"step_time_s": 0.5} for step in range(5)} | timed(range(5, 10), first=False))
    assert samples_per_s(read(store))["step"].tolist() == list(range(5, 10))
    assert steps_per_s(read(store))["step"].tolist() == list(range(10))


def test_step_that_took_no_time_has_no_speed(store: DuckStore) -> None:
    put(store, {0: {"step_time_s": 0.0, "samples": 4.0}, 1: {"step_time_s": 0.5, "samples": 4.0}})
    assert samples_per_s(read(store))["mean"].tolist()[1:] == [8.0]
    assert np.isnan(steps_per_s(read(store))["mean"][0])


def test_run_without_times_has_no_throughput(store: DuckStore) -> None:
    put(store, {step: {"loss": 1.0, "samples": 4.0} for step in range(5)})
    assert set(with_derived(read(store))["name"]) == {"loss", "samples"}
    assert steps_per_s(read(store)).empty and samples_per_s(read(store)).empty


def test_series_to_read_are_named_once() -> None:
    assert stored_names(["steps_per_s", "loss", "samples_per_s"]) == ["step_time_s", "loss", "samples"]


@pytest.mark.parametrize("id_", ["steps_per_s", "samples_per_s"])
def test_figure_of_throughput_shows_its_line_with_the_gap(store: DuckStore, id_: str) -> None:
    put(store, timed(range(10)) | timed(range(30, 40)))
    (spec,) = (spec for spec in CHARTS if spec.id == id_)
    data = with_derived(read(store))
    figure = series_figure(
        data[data["name"] == id_], title=spec.title, unit=spec.unit, theme="dark", names=spec.labels
    )
    line = max(figure.data, key=lambda trace: len(trace.x))
    assert np.isnan(line.y).sum() == 1 and len(line.x) == 9 + 1 + 9
    assert spec.unit in figure.layout.annotations[0].text
