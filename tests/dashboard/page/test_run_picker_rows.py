"""What the run picker says of the runs in view, and where a verdict's line stands."""

from __future__ import annotations

import page_runs
import pytest
from dash import no_update
from page_store import PageStore

from dashboard.page.callbacks.run_picker import MOST_ROWS, picker_view
from dashboard.page.views.source_buttons import source_buttons
from dashboard.page.views.verdict import verdict
from probe.wire import StackFrame


@pytest.fixture
def store() -> PageStore:
    filled = PageStore()
    page_runs.fill(filled, steps=range(7), run="a", start_time=1.7e9)
    page_runs.fill(filled, steps=range(12), run="a", rank=1, start_time=1.7e9)
    page_runs.fill(filled, steps=range(0), run="b", start_time=1.8e9)
    page_runs.add_event(
        filled,
        page_runs.event(3, run="a"),
        page_runs.event(4, run="a", kind="loss_spike", severity="warning"),
        page_runs.event(5, run="a", kind="loss_spike", severity="warning", subject="x"),
    )
    page_runs.end_run(filled, run="b")
    return filled


def test_rows_have_the_newest_step_of_any_rank_and_the_faults(store: PageStore) -> None:
    (row,) = picker_view(store, {"runs": ["a", "gone"]})
    assert row == {
        "run": "a",
        "state": "running",
        "step": 11,
        "written": 1.7e9 + 1.1,
        "critical": 1,
        "warnings": 2,
    }


def test_row_of_a_run_without_a_step_has_none(store: PageStore) -> None:
    (row,) = picker_view(store, {"runs": ["b"]})
    assert (row["state"], row["step"], row["written"], row["critical"]) == ("finished", None, 1.8e9, 0)


@pytest.mark.parametrize(
    "data", [None, [], {}, {"runs": None}, {"runs": [3]}, {"runs": ["x" * 129]}, {"runs": ["x"] * 129}]
)
def test_malformed_asking_changes_nothing(store: PageStore, data: object) -> None:
    assert MOST_ROWS == 128
    assert picker_view(store, data) is no_update


def test_verdict_has_file_and_line_of_its_event(store: PageStore) -> None:
    assert verdict(store.events("a"), last_step=6)["source"] == ("/home/ann/train.py", 26)
    assert verdict([], last_step=6)["source"] is None


def test_copied_place_has_no_hidden_characters() -> None:
    frame = StackFrame(file="/a\nrm -rf \u202e.py", line=3, function="f", code="", code_first_line=0)
    button = source_buttons(frame).children
    assert button.to_plotly_json()["props"]["data-text"] == "/a[U+000A]rm -rf [U+202E].py:3"
