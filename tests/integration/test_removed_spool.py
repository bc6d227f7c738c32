"""A spool that is removed while training runs: a new one is made, and what was lost is counted and told."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from delivery_processes import RUN, SECRET, Site, wait_until

from dashboard.ingest.collector import Collector
from dashboard.store.duck import DuckStore
from probe.settings.places import ServeState, write_serve_state


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path, NANSCOPE_LINGER_S="1")
    yield site
    site.close()


@pytest.fixture
def store(site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[DuckStore]:
    """Of a dashboard that listens."""
    monkeypatch.setenv("XDG_STATE_HOME", site.environment["XDG_STATE_HOME"])
    store = DuckStore(site.data)
    collector = Collector(
        store, endpoint="tcp://127.0.0.1:0", secret=bytes.fromhex(SECRET), on_change=lambda: None
    )
    with contextlib.ExitStack() as listening:
        listening.callback(store.close)
        endpoint = collector.start()
        listening.callback(collector.stop)
        write_serve_state(ServeState(page="", ingest=endpoint, pid=os.getpid(), secret=SECRET))
        yield store


def newest_step(store: DuckStore) -> int:
    steps = [rank.last_step for run in store.runs() for rank in run.ranks]
    return max((step for step in steps if step is not None), default=-1)


def helpers_of(site: Site) -> list[psutil.Process]:
    folder = str(site.spool / RUN)
    return [one for one in psutil.process_iter(["cmdline"]) if folder in (one.info["cmdline"] or ())]


def test_removed_spool_is_made_anew_and_the_run_goes_on_to_its_end(site: Site, store: DuckStore) -> None:
    site.start_trainer()
    wait_until(lambda: newest_step(store) > 100, "nothing arrives")
    (old,) = helpers_of(site)
    shutil.rmtree(site.spool)
    at = newest_step(store)
    wait_until(lambda: newest_step(store) > at + 500, "nothing arrives after it")
    wait_until(lambda: [one.pid for one in helpers_of(site)] not in ([], [old.pid]), "no helper comes")
    wait_until(lambda: not old.is_running() or old.status() == "zombie", "the old helper does not leave")
    os.kill(site.trainer.pid, signal.SIGKILL)
    site.trainer.wait(30)
    # The new helper's own records are not taken for those of the old one.
    wait_until(lambda: "killed" in {event.kind for event in store.events(RUN)}, "the end is not told")
    assert [rank.state for rank in store.runs()[0].ranks] == ["killed"]
    for position in store.positions(RUN):
        account = (position.stored, position.gaps, position.dropped)
        assert sum(account) == position.next_seq, (position, account)
        # A helper that was shut out may have had the last second.
        assert position.gaps <= 300
