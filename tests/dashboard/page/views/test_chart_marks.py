"""Series that mark steps, and which charts a run has: flags as bars, counts as points, names by prefix."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.page.views.chart_marks import mark_note, mark_part, mark_trace
from dashboard.page.views.chart_specs import CHARTS, MarkSpec, logged_chart, logged_names
from dashboard.page.views.charts import log_tick
from dashboard.page.views.theme import THEMES, colours

FLAG, COUNT = MarkSpec(label="clipped"), MarkSpec(label="skipped updates", is_count=True)
BY_ID = {spec.id: spec for spec in CHARTS}


def rows(values: list[tuple[float, float, float]], *, pooled: int = 1, steps: list[int] | None = None):
    """A series of (min, mean, max)."""
    at = [index * pooled for index in range(len(values))] if steps is None else steps
    return pd.DataFrame(
        [(step, *value, pooled) for step, value in zip(at, values, strict=True)],
        columns=["step", "min", "mean", "max", "pooled"],
    )


def flags(*values: float) -> pd.DataFrame:
    return rows([(value, value, value) for value in values])


def bars(data: pd.DataFrame) -> list[tuple[float, float]]:
    x = mark_part(data, FLAG).x
    assert np.isnan(x[2::3]).all()
    return list(zip(x[0::3].tolist(), x[1::3].tolist(), strict=True))


def test_mark_part_flag_is_one_bar_over_neighbouring_steps() -> None:
    assert bars(flags(1, 1, 0, 1, 0)) == [(-0.5, 1.5), (2.5, 3.5)]


def test_mark_part_flag_of_pooled_steps_covers_all_of_them() -> None:
    assert bars(rows([(0, 0.1, 1), (0, 0, 0), (1, 1, 1)], pooled=16)) == [(-0.5, 15.5), (31.5, 47.5)]


def test_mark_part_steps_between_which_some_are_missing_are_not_joined() -> None:
    assert bars(rows([(1, 1, 1), (1, 1, 1)], steps=[3, 5])) == [(2.5, 3.5), (4.5, 5.5)]


@given(st.lists(st.booleans(), max_size=40))
def test_mark_part_any_flags_cover_exactly_the_steps_that_fired(fired: list[bool]) -> None:
    covered = {
        step
        for low, high in bars(flags(*map(float, fired)))
        for step in range(round(low + 0.5), round(high + 0.5))
    }
    assert covered == {step for step, is_fired in enumerate(fired) if is_fired}


def test_mark_part_count_marks_where_it_rises() -> None:
    assert mark_part(flags(2, 2, 3, 3, 5), COUNT).x.tolist() == [2.0, 4.0]
    assert mark_part(rows([(0, 0.5, 1), (1, 1, 1), (2, 2, 2)], pooled=4), COUNT).x.tolist() == [1.5, 9.5]


def test_mark_part_of_nothing_is_nothing() -> None:
    for mark in (FLAG, COUNT):
        assert len(mark_part(flags(), mark).x) == len(mark_part(flags(0, 0), mark).x) == 0
        assert mark_note(flags(), mark) == ""


@pytest.mark.parametrize(
    ("data", "mark", "note"),
    [
        (flags(1, 0, 0, 0), FLAG, "clipped in 25 % of the steps"),
        (rows([(0, 0.001, 1)], pooled=1000), FLAG, "clipped in < 1 % of the steps"),
        (flags(0, 0), FLAG, "never clipped"),
        (flags(0, 1, 4), COUNT, "skipped updates: 4"),
    ],
)
def test_mark_note_says_how_often(data: pd.DataFrame, mark: MarkSpec, note: str) -> None:
    assert mark_note(data, mark) == note


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("mark", [FLAG, COUNT])
def test_mark_trace_stands_in_the_band_in_the_themes_colour(theme: str, mark: MarkSpec) -> None:
    trace = mark_trace(mark, theme=theme)
    assert trace["yaxis"] == "y2"
    assert colours(theme).series[1] in (
        trace.get("line", {}).get("color"),
        trace.get("marker", {}).get("color"),
    )


def test_lines_learning_rates_of_groups_are_labelled_by_group() -> None:
    known = ["loss", "lr/no_decay", "lr/decay", "lr"]
    assert BY_ID["lr"].lines(known) == {"lr": "learning rate", "lr/decay": "decay", "lr/no_decay": "no_decay"}


def test_lines_of_what_a_run_does_not_measure_are_none() -> None:
    assert [spec.id for spec in CHARTS if spec.lines(["loss", "grad_norm"])] == ["loss", "grad_norm"]


def test_logged_names_are_sorted_and_have_a_chart_each() -> None:
    names = logged_names(["log/b", "loss", "log/a/x"])
    assert [logged_chart(name).title for name in names] == ["a/x", "b"]


@pytest.mark.parametrize(("decades", "tick"), [(1.4, 1), (3, 1), (6, 2), (12, 4)])
def test_log_tick_leaves_few_ticks(decades: float, tick: int) -> None:
    assert log_tick(np.array([0.0, np.nan, 1e-3, 1e-3 * 10**decades])) == tick
