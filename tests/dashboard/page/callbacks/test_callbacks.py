"""The event callbacks as functions: what they return, and that odd input changes nothing."""

from __future__ import annotations

import msgspec
import page_runs
import pytest
from dash import no_update
from page_store import PageStore

from dashboard.page.callbacks.events import rows_part, selected_panel
from dashboard.page.event_feed import EventFeed
from dashboard.page.views.event_panel import panel_state


@pytest.fixture
def store() -> PageStore:
    filled = PageStore()
    page_runs.fill(filled, steps=range(50))
    page_runs.add_event(filled, page_runs.event(10))
    page_runs.add_event(filled, page_runs.event(40, severity="warning"))
    return filled


def test_rows_part_gives_rows_once_and_then_only_what_changed(store: PageStore) -> None:
    feed = EventFeed()
    first = rows_part(store, feed, {"run": "demo-run"})
    assert [row["step"] for row in first["rows"]] == [10, 40]
    assert (first["clear"], first["low"], first["high"] == first["newest"], first["total"]) == (
        True,
        0,
        True,
        2,
    )
    held = {key: first[key] for key in ("run", "epoch", "low", "high")}
    assert rows_part(store, feed, held)["rows"] == []
    page_runs.add_event(store, msgspec.structs.replace(page_runs.event(10), count=7, last_step=16))
    (row,) = rows_part(store, feed, held)["rows"]
    assert (row["step"], row["count"]) == (10, 7)


@pytest.mark.parametrize("data", [None, 3, {}, {"run": 5}, {"run": "demo-run", "low": -1}])
def test_rows_part_malformed_scope_changes_nothing(store: PageStore, data: object) -> None:
    assert rows_part(store, EventFeed(), data) is no_update


def test_selected_panel_shows_the_event(store: PageStore) -> None:
    event = page_runs.event(10)
    panel = selected_panel(store, {"run": "demo-run", "event": event.id})
    assert event.message in repr(panel)


def test_selected_panel_that_says_it_all_already_stays(store: PageStore) -> None:
    event = page_runs.event(10)
    asked = {"run": "demo-run", "event": event.id, "seen": panel_state(event)}
    assert selected_panel(store, asked) is no_update
    page_runs.add_event(store, msgspec.structs.replace(event, count=7, last_step=16))
    assert "7 times, last at step 16" in repr(selected_panel(store, asked))


@pytest.mark.parametrize("data", [{"run": "demo-run", "event": "0" * 16}, {"run": None, "event": None}])
def test_selected_panel_without_event_says_how_to_choose(store: PageStore, data: object) -> None:
    assert "marker" in repr(selected_panel(store, data))


def test_selected_panel_unknown_event_is_named(store: PageStore) -> None:
    assert "no-such-event is not in this run" in repr(
        selected_panel(store, {"run": "demo-run", "event": "no-such-event"})
    )
    assert "not in this run" not in repr(selected_panel(store, {"run": "demo-run", "event": None}))
