"""A data file that is damaged while a helper ships: it sends everything again."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from damaged_file import damage_table
from delivery import assert_delivered
from delivery_processes import RUN, SECRET, Site, wait_until
from forked_scripts import ForkedScripts

from dashboard.errors import DashboardError
from dashboard.ingest.collector import Collector
from dashboard.store.duck import DuckStore
from dashboard.store.schema import FILE_NAME
from probe.settings.places import ServeState, write_serve_state


@pytest.fixture
def site(tmp_path: Path, forked_dashboard: ForkedScripts, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.delenv("NANSCOPE_CONNECT")  # a helper is to come
    site = Site(tmp_path, forked_dashboard)
    yield site
    site.close()


def collect(site: Site) -> tuple[DuckStore, Collector]:
    store = DuckStore(site.data)
    collector = Collector(
        store, endpoint="tcp://127.0.0.1:0", secret=bytes.fromhex(SECRET), on_change=lambda: None
    )
    endpoint = collector.start()
    state = ServeState(page="", ingest=endpoint, pid=os.getpid(), secret=SECRET)
    write_serve_state(state, site.environment)
    return store, collector


def stored(store: DuckStore) -> int:
    return sum(each.stored for each in store.positions(RUN))


def test_helper_ships_all_again_to_a_store_whose_file_was_damaged(site: Site) -> None:
    trainer = site.start_trainer(steps=900)
    store, collector = collect(site)
    wait_until(lambda: stored(store) > 200, "nothing arrived")
    collector.stop()
    store.close()
    assert damage_table(site.data / FILE_NAME, "scalar_raw")
    store, collector = collect(site)
    try:
        before = stored(store)
        wait_until(lambda: stored(store) > before, "the helper has not come back")
        with contextlib.suppress(DashboardError):  # a commit may have met it before
            store.scalars(RUN, 0, ["loss"], max_points=10**6)
        assert store.generation() == 1
        assert trainer.wait(60) == 0
        site.wait_for_helper_to_leave()
        journals = assert_delivered(site.spool, RUN, store)
        assert not journals.missing.total()
        assert sum(account.gaps + account.dropped for account in store.positions(RUN)) == 0
        store.note_journals([RUN])
        assert "Of 1 run, 1 came back from its journals." in (store.notice or "")
    finally:
        collector.stop()
        store.close()
