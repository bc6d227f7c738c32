"""Revisions, views under one snapshot, and that who writes waits for no queue of readers."""

from __future__ import annotations

import threading
from pathlib import Path

import page_runs
import pytest
from page_store import PageStore
from store_engines import ENGINES

from dashboard.errors import DashboardError
from dashboard.store.protocol import Store

RUN = "demo-run"
TIMEOUT_S = 20.0


@pytest.fixture
def store(engine: str, request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if engine == "page":
        opened: Store = PageStore()
    else:
        opened = request.getfixturevalue("open_store")(tmp_path)
    page_runs.fill(opened, steps=range(10))
    return opened


with_page_store = pytest.mark.parametrize("engine", [*ENGINES, "page"], indirect=True)
"""The stand-in for tests of pages does alike."""


def losses(store: Store) -> int:
    return len(store.scalars(RUN, 0, ["loss"]))


@with_page_store
def test_revision_changes_with_data_and_events_of_the_run(store: Store) -> None:
    seen = [store.revision(RUN)]
    page_runs.fill(store, steps=range(10, 11))
    seen.append(store.revision(RUN))
    page_runs.add_event(store, page_runs.event(5))
    seen.append(store.revision(RUN))
    assert len(set(seen)) == 3


@with_page_store
def test_revision_of_a_run_stays_with_news_of_another_and_that_of_all_changes(store: Store) -> None:
    mine, everyone = store.revision(RUN), store.revision()
    page_runs.fill(store, steps=range(3), run="other")
    assert store.revision(RUN) == mine
    assert store.revision() != everyone


@with_page_store
def test_revision_stays_without_news(store: Store) -> None:
    before = store.revision(RUN)
    losses(store)
    store.append(page_runs.key("metrics"), 0, [b"a resend"])
    store.commit()
    assert store.revision(RUN) == before


def test_revision_changes_with_a_hole_and_with_the_end_of_a_run(store: Store) -> None:
    before = store.revision(RUN)
    store.skip(page_runs.key("metrics"), 10, 12, "evicted")
    after_skip = store.revision(RUN)
    store.remove_run(RUN)
    assert len({before, after_skip, store.revision(RUN)}) == 3


def test_view_shows_one_state_while_steps_arrive(store: Store) -> None:
    with store.view():
        page_runs.fill(store, steps=range(10, 20))
        heatmap = store.heatmap(RUN, 0)
        assert heatmap is not None
        seen = (losses(store), len(heatmap.steps), store.runs()[0].ranks[0].last_step)
        assert seen == (10, 10, 9)
    assert (losses(store), store.runs()[0].ranks[0].last_step) == (20, 19)


def test_view_counts_the_events_of_its_state(store: Store) -> None:
    page_runs.add_event(store, page_runs.event(5))
    with store.view():
        page_runs.add_event(store, page_runs.event(6))
        assert store.runs()[0].event_counts["critical"] == 1
    assert store.runs()[0].event_counts["critical"] == 2


def test_view_inside_a_view_is_the_same(store: Store) -> None:
    with store.view():
        page_runs.fill(store, steps=range(10, 20))
        with store.view():
            assert losses(store) == 10
        assert losses(store) == 10


def test_view_that_fails_gives_the_next_read_its_turn(store: Store) -> None:
    with pytest.raises(ZeroDivisionError), store.view():
        losses(store)
        _ = 1 / 0
    assert losses(store) == 10


def test_view_of_a_closed_store_is_refused(store: Store) -> None:
    store.close()
    with pytest.raises(DashboardError, match="closed"), store.view():
        pass


def test_append_and_commit_go_on_while_readers_queue(store: Store) -> None:
    is_reading, may_end = threading.Event(), threading.Event()

    def look() -> None:
        with store.view():
            is_reading.set()
            assert may_end.wait(TIMEOUT_S)

    readers = [threading.Thread(target=look), *(threading.Thread(target=losses, args=[store]) for _ in "abc")]
    for each in readers:
        each.start()
    assert is_reading.wait(TIMEOUT_S)
    # A run that was not followed before: taking its first records reads its events.
    writer = threading.Thread(target=page_runs.fill, args=[store], kwargs={"steps": range(3), "run": "other"})
    writer.start()
    writer.join(TIMEOUT_S)
    is_stuck = writer.is_alive()
    may_end.set()
    for each in [*readers, writer]:
        each.join(TIMEOUT_S)
    assert not is_stuck
    assert len(store.scalars("other", 0, ["loss"])) == 3
