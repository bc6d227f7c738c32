"""Which events are news: each episode once, nothing that was known, nothing of long ago."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import page_runs
import pytest

from dashboard.outlets.news import OLDEST_S, NewsReader
from dashboard.store.duck import DuckStore

NOW = 1_700_000_000.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DuckStore]:
    opened = DuckStore(tmp_path / "data", clock=lambda: NOW)
    page_runs.fill(opened, steps=range(1))
    yield opened
    opened.close()


def reader(store: DuckStore) -> NewsReader:
    return NewsReader(store, clock=lambda: NOW)


def steps(reader: NewsReader) -> list[int]:
    return [news.event.step for news in reader.take()]


def test_news_are_what_came_since_the_last_look_oldest_first(store: DuckStore) -> None:
    page_runs.add_event(store, page_runs.event(1, time=NOW - 9))
    looking = reader(store)
    page_runs.add_event(store, page_runs.event(3, time=NOW - 1), page_runs.event(2, time=NOW - 2))
    assert steps(looking) == [2, 3]
    assert steps(looking) == []


def test_news_of_an_episode_come_once_however_often_it_is_brought_up_to_date(store: DuckStore) -> None:
    looking = reader(store)
    first = page_runs.event(1, time=NOW)
    page_runs.add_event(store, first)
    assert steps(looking) == [1]
    page_runs.add_event(store, msgspec.structs.replace(first, count=8, last_step=9))
    page_runs.add_event(store, page_runs.event(5, time=NOW))
    assert steps(looking) == [5]


def test_news_of_an_episode_that_becomes_more_severe_come_again(store: DuckStore) -> None:
    looking = reader(store)
    first = page_runs.event(1, time=NOW, severity="warning")
    page_runs.add_event(store, first)
    looking.take()
    page_runs.add_event(store, msgspec.structs.replace(first, severity="critical"))
    assert [news.event.severity for news in looking.take()] == ["critical"]


def test_news_are_not_the_history_of_a_run_that_is_read_in(store: DuckStore) -> None:
    looking = reader(store)
    old = page_runs.event(1, time=NOW - OLDEST_S - 1)
    page_runs.add_event(store, old, page_runs.event(2, time=NOW - OLDEST_S + 1))
    assert steps(looking) == [2]


def test_news_keep_no_ids_of_runs_that_are_gone(store: DuckStore) -> None:
    looking = reader(store)
    page_runs.add_event(store, page_runs.event(1, time=NOW))
    looking.take()
    store.remove_run("demo-run")
    looking.take()
    assert not looking._seen
