"""Where the values shown change hands: against a dictionary of who wrote each step last."""

from __future__ import annotations

import msgspec
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_events import spike_event

from dashboard.page.views.breaks import Break, break_fields, break_shapes, extent, line_breaks, restarts
from dashboard.page.views.charts import line_parts
from dashboard.store.protocol import RankStart


def start(number: int, first: int, last: int, *returns: tuple[int, int]) -> RankStart:
    return RankStart(
        incarnation=number, time=float(number), first_step=first, last_step=last, returns=returns
    )


def places(*starts: RankStart) -> list[int]:
    return sorted(each.step for each in restarts(starts))


def test_one_start_has_no_break() -> None:
    assert places() == places(start(1, 0, 40)) == []


def test_restart_at_zero_is_marked_there_and_where_older_values_remain() -> None:
    found = restarts([start(1, 0, 40), start(2, 0, 4)])
    assert [(each.step, each.text) for each in found] == [
        (0, "restarted here, at step 0; it had come to step 40"),
        (5, "from step 5 on: values from before the restart"),
    ]


def test_restart_that_has_passed_the_older_one_leaves_its_own_mark() -> None:
    assert places(start(1, 0, 40), start(2, 0, 41)) == [0]


def test_resumed_from_an_earlier_step_and_after_a_hole() -> None:
    assert places(start(1, 0, 650), start(2, 600, 620)) == [600, 621]
    assert places(start(1, 0, 650), start(2, 700, 720)) == [700]


def test_loop_that_goes_back_within_a_start() -> None:
    assert places(start(1, 0, 12, (5, 30), (8, 20))) == [5, 8, 13, 21]


def test_mark_that_a_later_start_has_written_over_is_gone() -> None:
    assert places(start(1, 0, 40), start(2, 10, 20), start(3, 0, 50)) == [0]


def test_start_without_a_step_is_none() -> None:
    empty = RankStart(incarnation=2, time=2.0, first_step=None, last_step=None)
    assert places(start(1, 0, 9), empty) == [] and extent([empty]) is None
    assert extent([start(1, 3, 9), start(2, 0, 4)]) == (0, 10)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), min_size=1, max_size=5))
def test_any_starts_agree_with_who_wrote_each_step_last(spans: list[tuple[int, int]]) -> None:
    owner: dict[int, int] = {}
    for number, (first, length) in enumerate(spans):
        owner |= dict.fromkeys(range(first, first + length + 1), number)
    changes = {step for step in owner if step - 1 in owner and owner[step - 1] != owner[step]}
    found = set(places(*(start(i, first, first + length) for i, (first, length) in enumerate(spans))))
    assert changes <= found
    assert found <= changes | {first for first, _ in spans}, "elsewhere only a start's own first step"


def test_level_off_and_restarts_stand_together_by_step() -> None:
    off = msgspec.structs.replace(
        spike_event(), kind="level_changed", subject="off", step=3, last_step=3, rank=0
    )
    found = line_breaks([start(1, 0, 40), start(2, 0, 4)], [off], 0)
    assert [(each.step, each.kind) for each in found] == [(0, "restart"), (3, "off"), (5, "restart")]
    assert break_fields(found)[1] == {"step": 3, "kind": "off", "text": "recording was off after step 3"}
    assert [shape["x0"] for shape in break_shapes(found, theme="dark")] == [-0.5, 3.5, 4.5]


def points(*steps: int) -> pd.DataFrame:
    columns = {
        "name": "loss",
        "step": list(steps),
        "mean": [1.0] * len(steps),
        "pooled": 1,
        "nan": 0,
        "inf": 0,
    }
    return pd.DataFrame(columns | {"min": 1.0, "max": 1.0})


@pytest.mark.parametrize(
    ("restart", "xs"),
    [(2, [0, 1, 1.5, 2, 3]), (0, [0, 1, 2, 3]), (4, [0, 1, 2, 3]), (3, [0, 1, 2, 2.5, 3])],
)
def test_line_breaks_before_a_restart_though_the_points_touch(restart: int, xs: list[float]) -> None:
    line = line_parts(points(0, 1, 2, 3), restarts=[restart])["line"]
    assert line.x.tolist() == xs
    assert [x for x, y in zip(line.x, line.y, strict=True) if y != y] == [x for x in xs if x != int(x)]


def test_break_of_both_kinds_at_one_place_is_one_hole() -> None:
    line = line_parts(points(0, 1, 8, 9), breaks=[1], restarts=[8])["line"]
    assert line.x.tolist() == [0, 1, 4.5, 8, 9]


def test_break_fields_are_plain() -> None:
    assert break_fields([Break(step=1, kind="restart", text="t")]) == [
        {"step": 1, "kind": "restart", "text": "t"}
    ]
