"""Delivery when something is wrong from the start: no dashboard, damaged files, a full disk, a secret."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from delivery import Journals, assert_delivered
from delivery_processes import RUN, SECRET, Site, wait_until
from forked_scripts import ForkedScripts
from small_disk import disk_of, fill

from dashboard.ingest.spool import ingest_spool
from dashboard.store.duck import DuckStore
from probe.delivery.helper.helper import start_helper
from probe.delivery.journal.journal import JournalWriter
from probe.delivery.journal.segment_files import list_segments
from probe.settings.places import ServeState, write_serve_state
from probe.wire import (
    VERSION,
    Challenge,
    Event,
    Frame,
    Hello,
    Layout,
    RunEnd,
    RunStart,
    decode_message,
    encode,
    event_id,
    handshake_proof,
)


@pytest.fixture
def site(tmp_path: Path, forked_dashboard: ForkedScripts, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.delenv("NANSCOPE_CONNECT")  # a helper is to come
    site = Site(tmp_path, forked_dashboard)
    yield site
    site.close()


def check(site: Site) -> Journals:
    """Assert the invariant on the store as it lies on disk."""
    store = DuckStore(site.data)
    try:
        return assert_delivered(site.spool, RUN, store)
    finally:
        store.close()


def write_run(site: Site, *, frames: int = 300, cap_bytes: int = 2**31) -> JournalWriter:
    """The journal of a trainer that ended, in small segments."""
    journal = JournalWriter(
        site.spool / RUN / "0-1", run=RUN, writer="0-1", segment_bytes=2000, cap_bytes=cap_bytes
    )
    journal.append("events", encode(RunStart(run=RUN, rank=0, incarnation=1, pid=1, time=1.0)))
    journal.append("events", encode(Layout(layout=0, model="net", parameters=[], layers=[])))
    for step in range(frames):
        journal.append("metrics", encode(Frame(step=step, time=1.0, scalars={"loss": float(step)})))
        if step % 10 == 0:
            journal.append("events", encode(make_event(step)))
    journal.append("events", encode(RunEnd(time=time.time(), step=frames - 1, outcome="finished")))
    journal.close()
    return journal


def make_event(step: int) -> Event:
    name = event_id(run=RUN, rank=0, incarnation=1, model="", kind="custom", subject="", step=step)
    return Event(
        id=name,
        run=RUN,
        rank=0,
        incarnation=1,
        step=step,
        time=1.0,
        kind="custom",
        severity="info",
        message="x",
    )


def ship(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a helper ship what lies in the spool to a dashboard, until it has nothing left to do."""
    monkeypatch.setenv("XDG_STATE_HOME", site.environment["XDG_STATE_HOME"])
    dashboard = site.start_dashboard()
    assert start_helper(site.spool / RUN, None) is None
    wait_until(lambda: site.helper_pid() is not None, "no helper came")
    site.wait_for_helper_to_leave()
    site.stop(dashboard)


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0xFF
    path.write_bytes(data)


def test_delivery_without_faults_is_complete(site: Site) -> None:
    dashboard = site.start_dashboard()
    assert site.start_trainer(steps=300).wait(60) == 0, site.logs()
    site.wait_for_helper_to_leave()
    site.stop(dashboard)
    assert len(check(site).frames(0)) == 300


def test_delivery_to_a_dashboard_that_comes_later_is_complete(site: Site) -> None:
    trainer = site.start_trainer(steps=300)
    wait_until(lambda: site.helper_pid() is not None, "no helper came")
    assert trainer.wait(60) == 0, site.logs()
    dashboard = site.start_dashboard()
    site.wait_for_helper_to_leave()
    site.stop(dashboard)
    assert len(check(site).frames(0)) == 300


def test_delivery_without_any_dashboard_can_be_ingested_later(site: Site) -> None:
    site.environment["NANSCOPE_LINGER_S"] = "0"
    assert site.start_trainer(steps=300).wait(60) == 0, site.logs()
    site.wait_for_helper_to_leave()
    store = DuckStore(site.data)
    report = ingest_spool(store, site.spool)
    store.close()
    assert (report.missing, len(check(site).frames(0))) == (0, 300)


def test_delivery_by_helper_and_ingest_at_once_stores_nothing_twice(site: Site) -> None:
    trainer = site.start_trainer(steps=300)
    dashboard = site.start_dashboard(ingest=True)
    assert trainer.wait(60) == 0, site.logs()
    site.wait_for_helper_to_leave()
    site.stop(dashboard)
    assert len(check(site).frames(0)) == 300


@pytest.mark.parametrize("by_helper", [True, False])
def test_delivery_of_damaged_segments_counts_what_is_lost(
    site: Site, monkeypatch: pytest.MonkeyPatch, by_helper: bool
) -> None:
    folder = write_run(site).folder
    metrics = list_segments(folder, "metrics")
    flip(metrics[1].path, metrics[1].path.stat().st_size - 3)
    flip(metrics[2].path, 200)
    metrics[4].path.unlink()
    metrics[5].path.write_bytes(b"")
    flip(list_segments(folder, "events")[0].path, 500)
    deliver(site, monkeypatch, by_helper=by_helper)
    journals = check(site)
    assert journals.missing.total() > 20
    assert accounts(site)["events"] >= 1


@pytest.mark.parametrize("by_helper", [True, False])
def test_delivery_of_an_evicted_beginning_is_a_gap(
    site: Site, monkeypatch: pytest.MonkeyPatch, by_helper: bool
) -> None:
    write_run(site, frames=600, cap_bytes=30_000)
    deliver(site, monkeypatch, by_helper=by_helper)
    missing = check(site).missing.total()
    assert missing > 100
    assert accounts(site)["metrics"] == missing


def deliver(site: Site, monkeypatch: pytest.MonkeyPatch, *, by_helper: bool) -> None:
    if by_helper:
        ship(site, monkeypatch)
    else:
        store = DuckStore(site.data)
        ingest_spool(store, site.spool)
        store.close()


def accounts(site: Site) -> dict[str, int]:
    """Stream -> gaps that the store knows, of the trainer's journal."""
    store = DuckStore(site.data)
    try:
        return {p.key.stream: p.gaps for p in store.positions(RUN) if p.key.writer == "0-1"}
    finally:
        store.close()


def test_delivery_of_records_that_do_not_decode_counts_them(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = JournalWriter(write_run(site).folder, run=RUN, writer="0-1")
    for garbage in (b"\xc1", b"\x81\xa1t\xa5nobody", os.urandom(100)):
        journal.append("metrics", garbage)
    journal.close()
    ship(site, monkeypatch)
    assert check(site).undecodable.total() == 3


class Impostor:
    """Listens where a dashboard should, and keeps what it is told."""

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.endpoint = f"tcp://127.0.0.1:{self.socket.bind_to_random_port('tcp://127.0.0.1')}"
        self.heard: list[object] = []

    def answer_hellos(self, count: int) -> None:
        """Challenge helpers as a dashboard does, but without the secret."""
        hellos = 0
        while hellos < count:
            assert self.socket.poll(20_000), "nobody came"
            identity, data = self.socket.recv_multipart()
            message = decode_message(data)
            self.heard.append(message)
            if isinstance(message, Hello):
                hellos += 1
                nonce = os.urandom(32)
                proof = handshake_proof(b"not the secret", "collector", nonce, message.nonce)
                reply = Challenge(version=VERSION, nonce=nonce, proof=proof)
                self.socket.send_multipart([identity, encode(reply)])

    def close(self) -> None:
        self.socket.close()
        self.context.term()


def test_delivery_to_an_impostor_says_nothing_but_hello(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", site.environment["XDG_STATE_HOME"])
    impostor = Impostor()
    write_serve_state(ServeState(page="", ingest=impostor.endpoint, pid=1, secret=SECRET))
    site.start_trainer()
    impostor.answer_hellos(3)
    time.sleep(0.2)
    while impostor.socket.poll(0):
        impostor.heard.append(decode_message(impostor.socket.recv_multipart()[1]))
    impostor.close()
    assert {type(message) for message in impostor.heard} == {Hello}


def test_delivery_with_the_wrong_secret_stores_nothing_and_the_right_one_everything(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", site.environment["XDG_STATE_HOME"])
    dashboard = site.start_dashboard()
    path = tmp_path / "state" / "nanscope" / "serve.json"
    wait_until(path.exists, "no serve.json")
    right = path.read_bytes()
    path.write_bytes(right.replace(SECRET.encode(), b"ba" * 16))
    trainer = site.start_trainer(steps=200)
    assert trainer.wait(60) == 0, site.logs()
    wait_until(lambda: site.helper_pid() is not None, "no helper came")
    path.write_bytes(right)
    site.wait_for_helper_to_leave()
    site.stop(dashboard)
    assert len(check(site).frames(0)) == 200


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one MiB."""
    with disk_of(tmp_path / "disk", kib=1024) as place:
        yield place


def test_delivery_from_a_full_disk_counts_what_was_not_written(site: Site, small_disk: Path) -> None:
    """The disk is full for a while: training goes on, and what came before and after arrives."""
    site.spool = small_disk / "spool"
    site.environment["DELIVERY_STEP_S"] = "0.0005"
    dashboard = site.start_dashboard()
    trainer = site.start_trainer(steps=7000)
    wait_until(lambda: bool(list(site.spool.glob("*/*/metrics-*"))), "nothing was written")
    ballast = fill(small_disk)
    time.sleep(1.0)
    ballast.unlink()
    assert trainer.wait(60) == 0, site.logs()
    site.wait_for_helper_to_leave()
    site.stop(dashboard)
    journals = check(site)
    ends = [r for records in journals.records.values() for r in records.values() if isinstance(r, RunEnd)]
    # An event comes with every tenth frame; when too many wait for room on the disk, events are lost as well.
    written = len(journals.frames(0)) + len(journals.events())
    assert written + ends[0].lost_before_write == 7000 + 700
