"""The event table: one row per event, ids that a click can use, nothing from a CDN."""

from __future__ import annotations

import json

import plotly
from sample_events import nan_event, spike_event

from dashboard.page.views.event_table import event_rows, event_table


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


def test_event_table_of_no_events_has_no_rows_and_an_explanation() -> None:
    table = event_table([])
    assert table.rowData == []
    assert "No events" in table.dashGridOptions["localeText"]["noRowsToShow"]


def test_event_table_columns_are_fields_of_the_rows() -> None:
    (row,) = event_rows([nan_event()])
    assert {column["field"] for column in event_table().columnDefs} <= set(row)


def test_event_table_uses_the_theming_api_and_no_address() -> None:
    table = event_table([nan_event()])
    assert table.dashGridOptions["theme"]["function"].startswith("themeQuartz")
    assert "ag-theme" not in table.className
    assert "http" not in json.dumps(table.to_plotly_json(), cls=plotly.utils.PlotlyJSONEncoder)
