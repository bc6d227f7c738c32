"""The heatmap for exports and the bare axes for the page."""

from __future__ import annotations

import numpy as np
import pytest

from dashboard.page.views.heatmap import (
    INF,
    MAX_TICK_LABELS,
    MEASURED,
    NAN,
    heatmap_axes_figure,
    heatmap_figure,
    log_values,
    pooling_note,
    sampling_period,
    widened,
)
from dashboard.page.views.heatmap_statistics import STATISTICS, statistic_of
from dashboard.page.views.theme import THEMES, colours
from dashboard.store.protocol import Heatmap, StepRange

NOT = float("nan")


def sample(*, rows: int = 3, pooled: int = 1) -> Heatmap:
    values = np.array([[1e-3, 1.0, NOT], [NOT, 10.0, 0.0], [NOT, NOT, NOT]], dtype=np.float32)
    flags = np.array([[1, 1, MEASURED | NAN], [MEASURED | INF, 1, 1], [0, 0, 0]], dtype=np.uint8)
    values, flags = np.tile(values, (rows // 3, 1)), np.tile(flags, (rows // 3, 1))
    return Heatmap(
        rows=tuple(f"blocks.{i}.a_rather_long_name" for i in range(rows)),
        row_kinds=("layer",) * rows,
        steps=np.arange(3) * pooled,
        steps_per_column=pooled,
        values=values,
        flags=flags,
    )


def test_log_values_zero_takes_the_darkest_colour() -> None:
    assert log_values(sample())[1, 2] == pytest.approx(-3.0)


def test_log_values_bad_and_unmeasured_cells_have_none() -> None:
    assert np.isnan(log_values(sample())[[0, 1, 2], [2, 0, 0]]).all()


@pytest.mark.parametrize("theme", THEMES)
def test_heatmap_figure_bad_cells_have_own_colour_and_mark(theme: str) -> None:
    figure = heatmap_figure(sample(), theme=theme)
    fills = {trace.colorscale[0][1]: np.argwhere(trace.z == 1).tolist() for trace in figure.data[1::2]}
    assert fills == {colours(theme).nan: [[0, 2]], colours(theme).inf: [[1, 0]]}
    assert [trace.marker.symbol for trace in figure.data[2::2]] == ["cross-thin", "x-thin"]


def test_heatmap_figure_hover_has_name_and_value() -> None:
    trace = heatmap_figure(sample(), theme="dark").data[0]
    assert trace.text[0, 0] == "blocks.0.a_rather_long_name"
    assert trace.customdata[0, 1] == 1.0
    assert "max" not in trace.hovertemplate


def test_heatmap_figure_pooled_says_max_of_steps() -> None:
    figure = heatmap_figure(sample(pooled=16), theme="dark")
    assert "16 steps" in figure.data[0].hovertemplate
    assert "16 steps" in figure.layout.annotations[1].text
    assert figure.data[0].x.tolist() == [7.5, 23.5, 39.5]


def test_heatmap_figure_many_rows_have_few_short_labels() -> None:
    axis = heatmap_figure(sample(rows=300), theme="dark").layout.yaxis
    assert len(axis.tickvals) <= MAX_TICK_LABELS
    assert max(len(text) for text in axis.ticktext) <= 22


@pytest.mark.parametrize("heatmap", [None, sample(rows=0)])
def test_heatmap_figure_without_rows_is_bare_axes(heatmap: Heatmap | None) -> None:
    figure = heatmap_figure(heatmap, theme="light", steps=StepRange(first=0, end=20))
    assert [trace.type for trace in figure.data] == ["scatter"]
    assert tuple(figure.layout.xaxis.range) == (-0.5, 19.5)


def test_heatmap_axes_first_row_is_on_top() -> None:
    assert tuple(heatmap_axes_figure(theme="dark", rows=5).layout.yaxis.range) == (4.5, -0.5)


def sampled(measured: list[int], columns: int, *, pooled: int = 1) -> Heatmap:
    """A row whose value is the step, at the measured columns."""
    flags = np.isin(np.arange(columns), measured)[None, :].astype(np.uint8)
    values = np.where(flags > 0, np.arange(columns, dtype=np.float32), np.float32(NOT))
    return Heatmap(
        rows=("a",),
        row_kinds=("module",),
        steps=np.arange(columns) * pooled,
        steps_per_column=pooled,
        values=values,
        flags=flags,
    )


@pytest.mark.parametrize(
    ("measured", "period"),
    [
        ([], (1, 1)),
        ([5], (1, 1)),
        (list(range(50)), (1, 1)),
        (list(range(0, 200, 20)), (20, 20)),
        ([*range(100), *range(100, 200, 10)], (10, 10)),
        ([*range(50), *range(3000, 3050)], (1, 1)),
        ([*range(0, 100, 10), 400, *range(410, 500, 10)], (10, 10)),
        ([0, 3, 9], (1, 1)),
        ([0, 12, 25, 37, 50], (13, 12.5)),
    ],
)
def test_sampling_period_is_what_recurs_over_a_good_part(
    measured: list[int], period: tuple[int, float]
) -> None:
    assert sampling_period(np.array(measured, dtype=np.intp)) == period


@pytest.mark.parametrize("period", [2, 3, 10, 16, 50])
@pytest.mark.parametrize("phase", [0, 7])
def test_widened_regular_samples_leave_no_gap(period: int, phase: int) -> None:
    measured = list(range(phase % period, 1000, period))
    wide, every = widened(sampled(measured, 1000))
    assert every == period
    assert (wide.flags[:, 1:-1] > 0).all()
    assert wide.steps_per_column < 2 * period and (wide.steps % wide.steps_per_column == 0).all()
    for column, start in enumerate(wide.steps[:-1].tolist()):
        inside = [s for s in measured if start <= s < start + wide.steps_per_column]
        assert wide.values[0, column] == max(inside)


def test_widened_pooled_picture_says_the_period_in_steps() -> None:
    wide, every = widened(sampled(list(range(0, 100, 4)), 100, pooled=8))
    assert (every, wide.steps_per_column) == (32, 32)
    assert (
        pooling_note(wide.steps_per_column, every=every) == "1 step in 32 measured, max of 32 steps a column"
    )


def test_widened_every_step_measured_changes_nothing() -> None:
    picture = sampled(list(range(60)), 60)
    assert widened(picture) == (picture, 1)


def test_heatmap_figure_says_what_it_shows() -> None:
    figure = heatmap_figure(sample(), theme="dark", statistic=statistic_of("forward_time_s"), every=5)
    assert figure.layout.annotations[0].text == "Forward time per module (s, log colour)"


def test_statistic_of_an_unknown_name_is_the_default() -> None:
    assert statistic_of("nonsense") is STATISTICS[0]


def test_pooling_note_tells_what_came_pooled() -> None:
    assert (
        pooling_note(16, came_pooled=True)
        == "max of 16 steps a column: sent so while nobody watched this rank"
    )


def test_pooling_note_of_single_steps_is_empty() -> None:
    assert pooling_note(1) == ""


def test_log_values_of_counts_tell_zero_from_the_smallest() -> None:
    figure = heatmap_figure(sample(), theme="dark", statistic=statistic_of("activation_nan_count"))
    assert figure.data[0].z[1, 2] == pytest.approx(-1.0)
    assert heatmap_figure(sample(), theme="dark").data[0].z[1, 2] == pytest.approx(-3.0)
