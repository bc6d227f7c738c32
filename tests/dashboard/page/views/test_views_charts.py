"""Line charts: figures compared as trees, with empty, gap, pooled and non-finite cases."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from dashboard.page.views.chart_specs import CHARTS
from dashboard.page.views.charts import PARTS, line_parts, off_steps, pooling_note, series_figure
from dashboard.page.views.theme import THEMES, colours
from dashboard.store.protocol import GapRange, StepRange
from probe.wire import Event

NAN = float("nan")
COLUMNS = ["name", "step", "time", "min", "mean", "max", "nan", "inf", "pooled"]


def frame(*rows: tuple[object, ...], name: str = "loss") -> pd.DataFrame:
    """Rows of (step, min, mean, max, nan, inf, pooled)."""
    return pd.DataFrame([(name, row[0], 0.0, *row[1:]) for row in rows], columns=COLUMNS)


RAW = frame((0, 3.0, 3.0, 3.0, 0, 0, 1), (1, NAN, NAN, NAN, 1, 0, 1), (2, 2.0, 2.0, 2.0, 0, 0, 1))


def test_line_parts_raw_series_has_no_band() -> None:
    parts = line_parts(RAW)
    assert tuple(parts) == PARTS
    assert len(parts["low"].x) == len(parts["high"].x) == 0
    np.testing.assert_array_equal(parts["line"].y, [3.0, NAN, 2.0])


def test_line_parts_pooled_point_stands_in_the_middle_with_its_range() -> None:
    parts = line_parts(frame((0, 1.0, 2.0, 9.0, 0, 0, 16), (16, 1.0, 2.0, 3.0, 0, 0, 16)))
    assert parts["line"].x.tolist() == [7.5, 23.5]
    assert parts["low"].y.tolist() == [1.0, 1.0]
    assert parts["high"].y.tolist() == [9.0, 3.0]


@pytest.mark.parametrize(("flag", "counts"), [("nan", (1, 0)), ("inf", (0, 1))])
def test_line_parts_bad_step_is_a_mark_even_inside_a_pooled_point(flag: str, counts: tuple[int, int]) -> None:
    parts = line_parts(frame((0, 1.0, 2.0, 3.0, *counts, 4)))
    assert {name: parts[name].x.tolist() for name in ("nan", "inf")} == {"nan": [], "inf": [], flag: [1.5]}


def test_line_parts_memory_is_in_gib() -> None:
    parts = line_parts(frame((0, 2.0**30, 2.0**31, 2.0**31, 0, 0, 1)), unit="GiB")
    assert parts["line"].y.tolist() == [2.0]


@pytest.mark.parametrize("theme", THEMES)
def test_series_figure_nan_is_drawn_outside_the_scale(theme: str) -> None:
    figure = series_figure(RAW, title="Loss", unit="", theme=theme)
    marks = next(trace for trace in figure.data if trace.name == "loss NaN")
    assert (marks.yaxis, list(marks.x), marks.marker.color) == ("y2", [1.0], colours(theme).nan)
    assert figure.layout.yaxis.domain[1] < figure.layout.yaxis2.domain[0]


def test_series_figure_x_axis_covers_the_asked_range() -> None:
    figure = series_figure(RAW, title="Loss", unit="", theme="dark", steps=StepRange(first=0, end=100))
    assert tuple(figure.layout.xaxis.range) == (-0.5, 99.5)


def test_series_figure_without_data_has_title_and_no_traces() -> None:
    figure = series_figure(RAW.iloc[:0], title="Loss", unit="nats", theme="dark")
    assert len(figure.data) == 0
    assert figure.layout.annotations[0].text == "Loss (nats)"


def test_series_figure_gaps_become_bands_to_the_ends() -> None:
    gaps = [
        GapRange(rank=0, first_step=None, last_step=0, count=1, reason="evicted"),
        GapRange(rank=0, first_step=2, last_step=None, count=1, reason="evicted"),
    ]
    figure = series_figure(RAW, title="Loss", unit="", theme="dark", gaps=gaps)
    assert [(shape.x0, shape.x1) for shape in figure.layout.shapes] == [(-0.5, 0.5), (1.5, 2.5)]


def test_series_figure_pooled_values_say_so() -> None:
    figure = series_figure(frame((0, 1.0, 2.0, 9.0, 0, 0, 16)), title="Loss", unit="", theme="dark")
    assert "16 steps" in figure.layout.annotations[1].text


def test_series_figure_draws_only_named_series_in_the_order_of_names() -> None:
    data = pd.concat([frame((0, 1, 1, 1, 0, 0, 1), name=name) for name in ("a", "b", "c")])
    figure = series_figure(
        data, title="", unit="", theme="dark", names={"c": "Sea", "a": "Eh", "x": "absent"}
    )
    assert [
        trace.name for trace in figure.data if trace.name in ("Sea", "Eh", "absent") and trace.y.size
    ] == [
        "Sea",
        "Eh",
    ]


def test_series_figure_hostile_title_is_escaped() -> None:
    figure = series_figure(RAW, title="<a href=x>", unit="", theme="dark")
    assert figure.layout.annotations[0].text == "&lt;a href=x&gt;"


def test_pooling_note_of_raw_values_is_empty() -> None:
    assert pooling_note(RAW) == ""


def test_charts_every_name_has_a_label() -> None:
    assert all(set(spec.labels) == set(spec.names) for spec in CHARTS)


@pytest.mark.parametrize(("largest", "axis"), [(3.0, "linear"), (300.0, "log")])
def test_series_figure_log_axis_only_for_values_that_differ_much(largest: float, axis: str) -> None:
    data = frame((0, 1.0, 1.0, 1.0, 0, 0, 1), (1, largest, largest, largest, 0, 0, 1))
    assert series_figure(data, title="", unit="", theme="dark", log=True).layout.yaxis.type == axis


def test_series_figure_constant_stands_in_the_middle() -> None:
    data = frame((0, 0.1, 0.1, 0.1, 0, 0, 1), (1, 0.1, 0.1, 0.1, 0, 0, 1))
    assert tuple(series_figure(data, title="", unit="", theme="dark").layout.yaxis.range) == (0.0, 0.2)


def test_series_figure_label_is_neither_markup_nor_a_placeholder() -> None:
    data = frame((0, 1.0, 1.0, 1.0, 0, 0, 1), name="log/<i>%{y}</i>")
    figure = series_figure(data, title="", unit="", theme="dark", names={"log/<i>%{y}</i>": "<i>%{y}</i>"})
    assert all("<i>" not in trace.name and "<i>" not in (trace.hovertemplate or "") for trace in figure.data)
    assert all((trace.hovertemplate or "").count("%{y") <= 1 for trace in figure.data)


def points(*steps: int, pooled: int = 1) -> pd.DataFrame:
    return frame(*((step, 1.0, 1.0, 1.0, 0, 0, pooled) for step in steps))


@pytest.mark.parametrize(
    ("steps", "breaks", "broken_before"),
    [
        ((39, 40, 101, 102), [40], [101]),
        ((39, 40, 101, 102, 300), [40, 102], [101, 300]),
        ((0, 20, 40, 120), [50], [120]),
        ((39, 40, 41), [40], []),  # written again by a later start
        ((39, 40), [40], []),  # still off
        ((101, 102), [40], []),
        ((), [40], []),
        ((0, 10, 20), [], []),
    ],
)
def test_line_breaks_over_a_stretch_at_level_off(
    steps: tuple[int, ...], breaks: list[int], broken_before: list[int]
) -> None:
    line = line_parts(points(*steps), breaks=breaks)["line"]
    holes = np.flatnonzero(np.isnan(line.y))
    assert line.x[holes + 1].tolist() == broken_before
    assert np.delete(line.x, holes).tolist() == list(steps)
    assert (np.diff(line.x) > 0).all()


def test_pooled_line_and_band_break_together() -> None:
    parts = line_parts(points(0, 16, 96, pooled=16), breaks=[31])
    assert [np.isnan(parts[part].y).tolist() for part in ("low", "high", "line")] == [
        [False, False, True, False]
    ] * 3


def test_off_steps_are_those_of_the_rank() -> None:
    def change(level: str, step: int, rank: int = 0) -> Event:
        return Event(
            id="0" * 16,
            run="a",
            rank=rank,
            incarnation=1,
            step=step,
            time=0.0,
            kind="level_changed",
            severity="info",
            subject=level,
            message="",
        )

    assert off_steps([change("off", 40), change("basic", 100), change("off", 7, rank=1)], 0) == [40]
