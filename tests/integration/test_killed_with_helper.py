"""A run that is killed together with its helper: whoever reads it says so, though nobody has written it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from delivery_processes import RUN, SECRET, Site, wait_until

from dashboard.commands.events import load_events
from dashboard.ingest.collector import Collector
from dashboard.ingest.spool import SpoolIngest, ingest_spool
from dashboard.store.duck import DuckStore
from probe.settings.places import ServeState, write_serve_state

SOON_S = 15.0
"""Far below the half minute after which a run is silent."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.close()


@pytest.fixture
def store(site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[DuckStore]:
    monkeypatch.setattr("dashboard.store.incarnation.GONE_AFTER_S", 1.0)
    store = DuckStore(site.data)
    yield store
    store.close()


def kill_both(site: Site) -> None:
    """Neither has a moment in which it could look at the other."""
    os.kill(site.trainer.pid, signal.SIGSTOP)
    # One may wait for the other's lock.
    helpers = [
        one
        for one in psutil.process_iter(["cmdline"])
        if str(site.spool / RUN) in (one.info["cmdline"] or ())
    ]
    assert helpers
    for helper in helpers:
        helper.send_signal(signal.SIGSTOP)
    for pid in (*(helper.pid for helper in helpers), site.trainer.pid):
        os.kill(pid, signal.SIGKILL)
    site.trainer.wait(30)
    psutil.wait_procs(helpers, timeout=30)


def states(store: DuckStore) -> list[str]:
    return [rank.state for run in store.runs() for rank in run.ranks]


def test_killed_with_its_helper_is_told_by_a_dashboard_that_comes_later(site: Site, store: DuckStore) -> None:
    site.start_trainer()
    wait_until(lambda: site.helper_pid() is not None and site.confirmed.exists(), "it does not begin")
    kill_both(site)
    ingest_spool(store, site.spool)
    wait_until(lambda: states(store) == ["killed"], "it is not told", SOON_S)
    (event,) = [event for event in load_events(str(site.spool)).events if event.kind == "killed"]
    assert (event.run, event.subject, event.severity) == (RUN, "unknown", "critical")
    assert event.step > 0


def test_killed_with_its_helper_is_told_by_a_dashboard_that_has_listened(
    site: Site, store: DuckStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", site.environment["XDG_STATE_HOME"])
    collector = Collector(
        store, endpoint="tcp://127.0.0.1:0", secret=bytes.fromhex(SECRET), on_change=lambda: None
    )
    with contextlib.ExitStack() as listening:
        endpoint = collector.start()
        listening.callback(collector.stop)
        write_serve_state(ServeState(page="", ingest=endpoint, pid=os.getpid(), secret=SECRET))
        site.start_trainer()
        wait_until(lambda: states(store) == ["running"], "nothing arrives")
        kill_both(site)
        # What they had not sent is read by the thread that looks after the spool.
        SpoolIngest(store, site.spool).run()
        wait_until(lambda: states(store) == ["killed"], "it is not told", SOON_S)


def test_trainer_whose_helper_alone_is_killed_is_not_called_killed(site: Site) -> None:
    site.start_trainer()
    wait_until(lambda: site.helper_pid() is not None and site.confirmed.exists(), "it does not begin")
    os.kill(site.helper_pid() or 0, signal.SIGKILL)
    assert [event for event in load_events(str(site.spool)).events if event.kind == "killed"] == []
