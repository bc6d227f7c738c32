"""The event table: one row per event, ids that a click can use, nothing from a CDN."""

from __future__ import annotations

import msgspec
from sample_events import nan_event, spike_event

from dashboard.page.views.event_table import consequences, event_list, event_rows


def test_event_rows_carry_the_id_and_the_whole_first_line() -> None:
    (row,) = event_rows([nan_event()])
    assert row["id"] == nan_event().id
    assert row["message"] == "NaN first at step 400 in `blocks.3`, model.py:26, forward"
    assert row["severity"] == "◆ critical"
    assert row["line"] == "▶ project/model.py:26 in forward"


def test_event_rows_are_by_step_and_the_severest_of_a_moment_first() -> None:
    together = [spike_event(9, time=1.0, severity="info"), spike_event(9, time=1.0), spike_event(3)]
    assert [(row["step"], row["severity_order"]) for row in event_rows(together)] == [(3, 1), (9, 1), (9, 2)]


def test_event_rows_of_what_says_nothing_of_the_training_come_last() -> None:
    rows = event_rows([spike_event(id="1" * 16, kind="throttled", step=1), nan_event(), spike_event()])
    assert [row["is_last"] for row in rows] == [False, False, True]


def test_event_rows_without_stack_have_an_empty_line() -> None:
    assert event_rows([spike_event()])[0]["line"] == ""


def test_consequences_name_the_event_that_began_each_fault() -> None:
    origin = nan_event()
    followed = msgspec.structs.replace(
        origin, id="2" * 16, kind="nonfinite_parameter", step=origin.step + 1, origin=None
    )
    assert consequences([followed, origin, spike_event(3)]) == {followed.id: origin.id}


def test_event_list_has_no_row_before_the_scripts_fill_it() -> None:
    found = {part.id: part for part in event_list()._traverse() if getattr(part, "id", None)}
    assert found["event-table"].children is None
