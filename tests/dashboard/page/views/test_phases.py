"""The step time by phase out of stored series, against sums over the steps themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import page_runs
import pytest

from dashboard.page.views.chart_specs import CHARTS
from dashboard.page.views.phases import PHASES, phase_rows
from dashboard.page.views.throughput import stored_names, with_derived, with_derived_names
from dashboard.store.duck import DuckStore
from dashboard.store.protocol import StepRange
from probe.wire import Frame, encode

ALL = StepRange()
STEPS = 640


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DuckStore]:
    opened = DuckStore(tmp_path)
    page_runs.fill(opened, steps=range(0))
    yield opened
    opened.close()


def put(store: DuckStore, scalars: list[dict[str, float]]) -> None:
    key = page_runs.key("metrics")
    frames = [Frame(step=step, time=1e9 + step, scalars=values) for step, values in enumerate(scalars)]
    store.append(key, store.position(key).next_seq, [encode(frame) for frame in frames])
    store.commit()


def varied() -> list[dict[str, float]]:
    """Steps of which the first has no phase; data at every fourth, one update in ten skipped."""
    random = np.random.default_rng(0)
    steps: list[dict[str, float]] = [{"loss": 1.0}]
    for step in range(1, STEPS):
        data, forward, backward, update, rest = random.uniform(0.001, 0.1, 5).tolist()
        whole = data + forward + backward + update + rest
        scalars = {"step_time_s": whole, "probe_fraction": 0.01, "forward_s": forward, "backward_s": backward}
        if step % 4 == 0:
            scalars["data_wait_s"] = data
        if step % 10:
            scalars["optimizer_s"] = update
        steps.append(scalars)
    return steps


def read(store: DuckStore, points: int = 1000) -> dict[str, dict[int, float]]:
    """Each part's values by step."""
    data = with_derived(store.scalars("demo-run", 0, stored_names(PHASES), ALL, points))
    return {
        name: dict(zip(rows["step"].tolist(), rows["mean"].tolist(), strict=True))
        for name, rows in data.groupby("name")
    }


def test_parts_of_a_step_are_what_it_has_and_what_is_left(store: DuckStore) -> None:
    steps = varied()
    put(store, steps)
    found = read(store)
    for step in (1, 4, 10, 40):
        scalars = steps[step]
        own = scalars["probe_fraction"] * scalars["step_time_s"]
        known = {
            "phase_data_s": scalars.get("data_wait_s"),
            "phase_forward_s": scalars["forward_s"],
            "phase_backward_s": scalars["backward_s"],
            "phase_optimizer_s": scalars.get("optimizer_s"),
            "phase_probe_s": own,
        }
        left = scalars["step_time_s"] - sum(one or 0.0 for one in known.values())
        for name, value in {**known, "phase_other_s": left}.items():
            expected = (
                pytest.approx(value, abs=1e-6) if value is not None else pytest.approx(np.nan, nan_ok=True)
            )
            assert found[name][step] == expected, (name, step)
    assert 0 not in found["phase_forward_s"]


def test_parts_of_pooled_steps_add_up_to_their_mean_step_time(store: DuckStore) -> None:
    """Data is waited for at every fourth step alone: its part is a fourth of what these take."""
    steps = varied()
    put(store, steps)
    found = read(store, points=40)
    assert len(found["step_time_s"]) <= 40
    width = min(np.diff(sorted(found["step_time_s"])[1:]))
    for first in sorted(found["step_time_s"])[1:-1]:
        of_bucket = steps[first : first + width]
        parts = {name: found[name][first] for name in PHASES}
        assert sum(parts.values()) == pytest.approx(
            np.mean([one["step_time_s"] for one in of_bucket]), rel=1e-5
        )
        for part, stored in (("phase_data_s", "data_wait_s"), ("phase_optimizer_s", "optimizer_s")):
            mean = sum(one.get(stored, 0.0) for one in of_bucket) / width
            assert parts[part] == pytest.approx(mean, rel=1e-5)


def test_parts_never_take_more_than_the_step(store: DuckStore) -> None:
    put(store, [{"step_time_s": 0.1, "forward_s": 0.04, "backward_s": 0.06, "probe_fraction": 0.5}])
    found = read(store)
    assert found["phase_probe_s"] == {0: 0.0} and found["phase_other_s"] == {0: 0.0}


def test_steps_of_an_older_probe_have_no_parts(store: DuckStore) -> None:
    assert "phase_other_s" not in with_derived_names(["step_time_s", "probe_fraction"])
    old = {"step_time_s": 0.1, "probe_fraction": 0.01}
    put(store, [old, {**old, "forward_s": 0.02}, old])
    assert [step for step, value in read(store)["phase_other_s"].items() if value == value] == [1]


def test_series_without_any_step_has_no_rows(store: DuckStore) -> None:
    assert phase_rows(store.scalars("demo-run", 0, ["loss"], ALL, 100)).empty


def test_chart_has_them_from_the_bottom_up_in_the_order_of_a_step() -> None:
    spec = next(one for one in CHARTS if one.id == "step_phases")
    assert spec.stacked and "host" in spec.remark
    labels = list(spec.lines(with_derived_names(["step_time_s", "forward_s", "probe_fraction"])).values())
    assert labels == ["data", "forward", "backward", "optimizer", "probe", "other"]
