"""Replicas: what is acknowledged outlives the loss of one of two servers; none that lacks some of it leads.

A real ZooKeeper and real servers, which are killed. What a fresh store reads is compared with a DuckDB that
was given each record once.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zookeeper_server
from clickhouse_server import HOST, ClickHouseServer, free_port, replicas_url, what_is_missing
from shared_streams import Helper, Streams, differences, everything, patient
from store_reference import RUN, begin, make_event, make_frame, stream_key
from zookeeper_server import ZooKeeper

from dashboard.errors import DashboardError
from dashboard.store.clickhouse import following, replicas
from dashboard.store.clickhouse.connection import parse_shards
from dashboard.store.clickhouse.replicas import State
from dashboard.store.clickhouse.store import ClickStore
from dashboard.store.duck import DuckStore
from dashboard.store.protocol import StepNote
from probe.wire import StreamKey, encode

MISSING = what_is_missing() or zookeeper_server.what_is_missing()
pytestmark = [pytest.mark.faults, pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]
SEEDS = [int(seed) for seed in os.environ.get("COLLECTOR_SEEDS", "1,2").split(",")]
SOON_S = 60.0
_numbers = itertools.count()


def soon(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.02)


class Site:
    """Two servers with the same rows, and stores of them.

    Args:
        folder: Of the servers.
        keeper: Their ZooKeeper.
    """

    def __init__(self, folder: Path, keeper: ZooKeeper) -> None:
        self.keeper = keeper
        self.servers = [
            ClickHouseServer(folder / f"server-{number}", password="hush", keeper=keeper.port)
            for number in (0, 1)
        ]
        self.database = f"runs{next(_numbers)}"
        self._opened: list[ClickStore] = []
        for server in self.servers:
            server.start()

    @property
    def url(self) -> str:
        return replicas_url(self.servers, self.database)

    def open(self, url: str = "", **options: Any) -> ClickStore:
        store = ClickStore(url or self.url, password="hush", clock=lambda: 0.0, **options)
        self._opened.append(store)
        return store

    def open_soon(self) -> ClickStore:
        """Open one, and try again where a replica that has just begun does not know yet that it may lead."""
        opened: list[ClickStore] = []
        patient(lambda: opened.append(self.open()))
        return opened[0]

    def lose(self, store: ClickStore) -> None:
        """Have it end as a killed process does."""
        store._end_following()
        store._closed = True
        for shard in store._places.shards:
            shard.database.close()
        self._opened.remove(store)

    def in_sync(self, store: ClickStore) -> list[bool]:
        """Of each server, as the one that leads knows it."""
        states = replicas_of(store)._leader.states()
        return [states.get(each.name, (State.OUT, 0))[0] is State.IN for each in replicas_of(store)._each]

    def joined(self, store: ClickStore) -> None:
        """Wait until both are in sync and each knows it."""
        soon(lambda: all_in_sync(store, 0), "both are in sync")

    def close(self) -> None:
        for store in list(self._opened):
            with contextlib.suppress(DashboardError):
                store.close()
        for server in self.servers:
            server.stop()


def replicas_of(store: ClickStore) -> replicas.Replicas:
    found = store._places.shards[0].database
    assert isinstance(found, replicas.Replicas)
    return found


def leader(store: ClickStore) -> int:
    found = replicas_of(store)
    return found._each.index(found._leader)


@pytest.fixture(scope="module")
def keeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    server = ZooKeeper(tmp_path_factory.mktemp("keeper"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def site(tmp_path: Path, keeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(following, "KEEP_S", 0.2)
    monkeypatch.setattr(replicas, "WAIT_S", 3.0)
    made = Site(tmp_path, keeper)
    yield made
    made.close()


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What is to be read of `Streams(0)`."""
    store = DuckStore(tmp_path_factory.mktemp("once"), clock=lambda: 0.0)
    Streams(0).ship_all(store)
    found = everything(store)
    store.close()
    return found


def assert_shown(store: ClickStore, truth: dict[str, Any]) -> None:
    found: list[str] = []
    deadline = time.monotonic() + 10
    while found := differences(everything(store), truth):
        assert time.monotonic() < deadline, "\n".join(found)
        time.sleep(0.05)


def feed(store: ClickStore, steps: range, *, incarnation: int = 1000) -> StreamKey:
    key = stream_key(incarnation=incarnation)
    frames = [make_frame(step, scalars={"loss": float(step)}) for step in steps]
    patient(lambda: store.append(key, steps.start, frames))
    return key


def commit_all(store: ClickStore, key: StreamKey, end: int) -> None:
    """Commit, again and again, until so much is acknowledged."""

    def is_acknowledged() -> bool:
        with contextlib.suppress(DashboardError):
            store.commit()
            return store.next_seqs([key])[key] == end
        return False

    soon(is_acknowledged, f"{end} are acknowledged")


def taken(store: ClickStore, key: StreamKey, end: int) -> None:
    """Wait until a store knows that so much of a stream is acknowledged, by whichever dashboard."""

    def is_known() -> bool:
        with contextlib.suppress(DashboardError):
            return store.position(key).next_seq == end
        return False

    soon(is_known, f"{end} are taken")


def losses(store: ClickStore) -> list[float]:
    found: list[float] = store.scalars(RUN, 0, ["loss"])["mean"].tolist()
    return found


# ------------------------------------------------------------------------------------------ both are there


def test_each_replica_alone_has_all_that_was_acknowledged(site: Site, truth: dict[str, Any]) -> None:
    store = site.open()
    site.joined(store)
    Streams(0).ship_all(store)
    store.write_note(RUN, StepNote(id="n", step=3, text="halved", time=1.0))
    assert_shown(store, truth)
    for kept, lost in ((0, 1), (1, 0)):
        site.servers[lost].kill()
        fresh = site.open()
        assert leader(fresh) == kept
        assert_shown(fresh, truth)
        assert [note.text for note in fresh.notes(RUN)] == ["halved"]
        site.servers[lost].start()
        site.joined(fresh)


def test_reader_of_one_dashboard_sees_what_another_writes(site: Site) -> None:
    one, other = site.open(), site.open()
    begin(one)
    key = feed(one, range(20))
    commit_all(one, key, 20)
    taken(other, key, 20)
    assert losses(other) == list(range(20))
    other.remove_run(RUN)
    soon(lambda: one.runs() == [], "the run is deleted")
    begin(one, incarnation=2000)
    commit_all(one, feed(one, range(20), incarnation=2000), 20)
    soon(lambda: losses(one) == list(range(20)), "a run that is there again")


def test_shards_of_replicas_lose_one_server_each(tmp_path: Path, keeper: ZooKeeper, site: Site) -> None:
    """Rank 0 lies on one pair, rank 1 on the other; of each pair another one is lost."""
    other = Site(tmp_path / "other", keeper)
    try:
        pairs = ["|".join(f"{HOST}:{server.port}" for server in each.servers) for each in (site, other)]
        url = f"clickhouse://tester@{','.join(pairs)}/{site.database}"
        store = site.open(url)
        for shard in (0, 1):
            soon(lambda shard=shard: all_in_sync(store, shard), f"shard {shard} is in sync")
        for rank in (0, 1):
            begin(store, rank=rank)
            frames = [make_frame(step, scalars={"loss": float(step + rank)}) for step in range(20)]
            store.append(stream_key(rank=rank), 0, frames)
        for rank in (0, 1):
            commit_all(store, stream_key(rank=rank), 20)
        site.lose(store)
        site.servers[0].kill()
        other.servers[1].kill()
        fresh = site.open(url)
        for rank in (0, 1):
            found = fresh.scalars(RUN, rank, ["loss"])["mean"].tolist()
            assert found == [float(step + rank) for step in range(20)]
    finally:
        for store in list(site._opened):
            site.lose(store)
        other.close()


def all_in_sync(store: ClickStore, shard: int) -> bool:
    """Whether all replicas of a shard are, and each knows it; one that has just begun knows nothing."""
    each = store._places.shards[shard].database._each  # type: ignore[attr-defined]
    with contextlib.suppress(Exception):
        return all(one.states()[name.name][0] is State.IN for one in each for name in each)
    return False


def test_addresses_in_another_order_are_the_same_replicas(site: Site) -> None:
    store = site.open()
    site.joined(store)
    begin(store)
    commit_all(store, feed(store, range(5)), 5)
    turned = site.open(replicas_url(site.servers[::-1], site.database))
    site.joined(turned)
    assert losses(turned) == list(range(5))


# ------------------------------------------------------------------------------------------ one is lost


def test_leader_is_killed_and_the_other_goes_on_with_all_that_counts(site: Site) -> None:
    store = site.open()
    site.joined(store)
    begin(store)
    key = feed(store, range(30))
    commit_all(store, key, 30)
    site.servers[0].kill()
    feed(store, range(30, 60))
    commit_all(store, key, 60)
    assert leader(store) == 1 and losses(store) == list(range(60))
    said = f"{HOST}:{site.servers[0].port}: it does not answer"
    soon(lambda: said in (store.notice or ""), "the page says which one is lost")
    site.servers[0].start()
    soon(lambda: site.in_sync(store) == [True, True] and leader(store) == 0, "it leads again")
    soon(lambda: store.notice is None, "nothing is said any more")
    assert losses(store) == list(range(60))
    feed(store, range(60, 70))
    commit_all(store, key, 70)
    site.servers[0].kill()
    assert losses(site.open()) == list(range(70))


def test_replica_that_was_away_does_not_lead_with_less(site: Site) -> None:
    """It has none of the rows that were acknowledged without it, and only ZooKeeper's log says so."""
    store = site.open()
    site.joined(store)
    begin(store)
    key = feed(store, range(30))
    commit_all(store, key, 30)
    site.servers[1].kill()
    feed(store, range(30, 60))
    commit_all(store, key, 60)
    site.lose(store)
    site.servers[0].kill()
    site.servers[1].start()
    with pytest.raises(
        DashboardError,
        match=r"may lack what only others have, .* does not answer|does not answer, .* may lack",
    ):
        site.open()
    site.servers[0].start()
    fresh = site.open()
    assert losses(fresh) == list(range(60)) and fresh.position(key).next_seq == 60
    site.joined(fresh)
    site.servers[0].kill()
    soon(lambda: site.servers[1].ask(f"SELECT uniq(step) FROM {site.database}.scalar_raw") == [(60,)], "all")
    assert losses(site.open()) == list(range(60))


def test_store_that_runs_does_not_turn_to_one_that_lacks_rows(site: Site) -> None:
    store = site.open()
    site.joined(store)
    begin(store)
    key = feed(store, range(30))
    commit_all(store, key, 30)
    site.servers[1].kill()
    feed(store, range(30, 60))
    commit_all(store, key, 60)
    site.servers[0].kill()
    site.servers[1].start()
    feed(store, range(60, 70))
    until = time.monotonic() + 3
    while time.monotonic() < until:
        with contextlib.suppress(DashboardError):
            store.commit()
        assert leader(store) == 0
        time.sleep(0.1)
    assert store.notice is not None and "does not answer" in store.notice
    site.servers[0].start()
    commit_all(store, key, 70)
    assert losses(store) == list(range(70))


def test_replica_whose_disk_is_lost_gets_all_again(site: Site, truth: dict[str, Any]) -> None:
    store = site.open()
    site.joined(store)
    Streams(0).ship_all(store)
    site.servers[1].kill()
    shutil.rmtree(site.servers[1].folder / "data")
    site.servers[1].start()
    site.joined(store)
    site.servers[0].kill()
    fresh = site.open()
    assert leader(fresh) == 1
    assert_shown(fresh, truth)


def test_replica_with_an_empty_disk_does_not_lead_because_it_knows_nothing(site: Site) -> None:
    """It has its tables again and no row of them, not even of who is in sync, when the other one is lost."""
    store = site.open()
    site.joined(store)
    begin(store)
    key = feed(store, range(30))
    commit_all(store, key, 30)
    prefix = replicas_of(store)._prefix
    site.lose(store)
    for server in site.servers:
        server.kill()
    shutil.rmtree(site.servers[1].folder / "data")
    site.servers[1].start()
    address = parse_shards(site.url)[0][1]
    empty = replicas.Replica(address, "hush")
    empty.create(prefix)
    empty.close()
    with pytest.raises(DashboardError, match="may lack what only others have"):
        site.open()
    site.servers[0].start()
    assert losses(site.open_soon()) == list(range(30))


def test_replica_that_hangs_is_put_out_and_holds_up_nothing_for_long(site: Site) -> None:
    store = site.open()
    site.joined(store)
    begin(store)
    key = feed(store, range(10))
    commit_all(store, key, 10)
    site.servers[1].pause()
    try:
        feed(store, range(10, 20))
        commit_all(store, key, 20)
        assert site.in_sync(store) == [True, False]
    finally:
        site.servers[1].go_on()
    site.joined(store)


def test_zookeeper_that_is_killed_holds_up_commits_and_no_reads(tmp_path: Path, site: Site) -> None:
    own = ZooKeeper(tmp_path / "keeper")
    own.start()
    mine = Site(tmp_path / "mine", own)
    try:
        store = mine.open()
        mine.joined(store)
        begin(store)
        key = feed(store, range(30))
        commit_all(store, key, 30)
        own.kill()
        feed(store, range(30, 40))
        until = time.monotonic() + 6
        while time.monotonic() < until:
            with contextlib.suppress(DashboardError):
                assert key not in store.commit()
            assert losses(store)[:30] == list(range(30))
            time.sleep(0.1)
        assert store.next_seqs([key]) == {key: 30} or store.notice
        assert store.notice
        own.start()
        commit_all(store, key, 40)
        assert losses(store) == list(range(40))
    finally:
        mine.close()
        own.stop()


# ------------------------------------------------------------------------------------ networks that are cut


class Way(threading.Thread):
    """A way to a server that can be cut: to the dashboard it is as if the server were away."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._to, self.port, self.is_cut = port, free_port(), False
        self._listening = socket.create_server((HOST, self.port))
        self._open: list[socket.socket] = []
        self.start()

    def run(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            if self.is_cut:
                near.close()
                continue
            far = socket.create_connection((HOST, self._to))
            self._open += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
        for each in (one, other):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        self.is_cut = True
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self.is_cut = False

    def close(self) -> None:
        self.cut()
        self._listening.shutdown(socket.SHUT_RDWR)
        self.join()
        for each in [self._listening, *self._open]:
            each.close()


@pytest.fixture
def ways(site: Site) -> Iterator[list[Way]]:
    made = [Way(server.port) for server in site.servers]
    yield made
    for way in made:
        way.close()


def over(site: Site, *ports: int) -> str:
    return f"clickhouse://tester@{'|'.join(f'{HOST}:{port}' for port in ports)}/{site.database}"


def test_dashboard_that_cannot_reach_the_leader_takes_the_others_along(site: Site, ways: list[Way]) -> None:
    near = site.open()
    site.joined(near)
    far = site.open(over(site, ways[0].port, site.servers[1].port))
    begin(near)
    key = feed(near, range(10))
    commit_all(near, key, 10)
    taken(far, key, 10)
    ways[0].cut()
    feed(far, range(10, 20))
    commit_all(far, key, 20)
    assert leader(far) == 1
    taken(near, key, 20)
    feed(near, range(20, 30))
    commit_all(near, key, 30)
    assert losses(near) == list(range(30))
    ways[0].mend()
    soon(lambda: (leader(far), leader(near)) == (0, 0), "the first leads again")
    commit_all(far, feed(far, range(30, 40)), 40)
    assert losses(far) == losses(site.open()) == list(range(40))


def test_two_dashboards_that_reach_one_replica_each_do_not_both_go_on(site: Site, ways: list[Way]) -> None:
    """Each would put the other's out: what is written without the other must count in one place alone."""
    other = [Way(server.port) for server in site.servers]
    one, two = (
        site.open(over(site, ways[0].port, ways[1].port)),
        site.open(over(site, other[0].port, other[1].port)),
    )
    try:
        site.joined(one)
        begin(one)
        key = feed(one, range(10))
        commit_all(one, key, 10)
        taken(two, key, 10)
        ways[1].cut()
        other[0].cut()
        for store in (one, two):
            feed(store, range(10, 20))
        going: set[int] = set()
        until = time.monotonic() + 8
        while time.monotonic() < until:
            for number, store in enumerate((one, two)):
                with contextlib.suppress(DashboardError):
                    if store.commit():
                        going.add(number)
            time.sleep(0.05)
        assert len(going) == 1, "the rows reach the other replica, which one of the two can read and write"
        for way in (ways[1], other[0]):
            way.mend()
        for store in (one, two):
            commit_all(store, key, 20)
        assert losses(one) == losses(two) == losses(site.open()) == list(range(20))
    finally:
        for way in other:
            way.close()


# ------------------------------------------------------------------------------------------ by chance


@pytest.mark.parametrize("seed", SEEDS)
def test_replicas_that_are_killed_by_chance_lose_and_repeat_nothing(
    site: Site, truth: dict[str, Any], seed: int
) -> None:
    chance = random.Random(seed)
    stores = [site.open(), site.open()]
    site.joined(stores[0])
    helper = Helper(Streams(0), chance, list(stores))
    down: int | None = None
    kills = 0
    acknowledged: dict[StreamKey, int] = {}
    for number in range(260):
        try:
            helper.step()
            acknowledged |= stores[0].next_seqs(list(helper.streams.records))
        except DashboardError:
            helper.leave()
            time.sleep(0.02)
        if number % 20 == 10:
            if down is None:
                site.joined(stores[0])  # then any may be lost
                down = chance.randrange(2)
                site.servers[down].kill()
                kills += 1
            else:
                site.servers[down].start()
                down = None
    if down is not None:
        site.servers[down].start()
    assert kills >= 5
    for store in stores:
        site.lose(store)
    last = site.open_soon()
    assert acknowledged and all(last.position(key).next_seq >= end for key, end in acknowledged.items())
    patient(lambda: helper.finish(last))
    assert_shown(site.open_soon(), truth)
    site.joined(last)
    for lost in (0, 1):
        site.servers[lost].kill()
        assert_shown(site.open_soon(), truth)
        site.servers[lost].start()
        site.joined(last)


# ------------------------------------------------------------------------------------------ what is refused


def test_first_start_needs_all_replicas(site: Site) -> None:
    site.servers[1].kill()
    with pytest.raises(DashboardError, match=f"{site.servers[1].port}.* does not answer"):
        site.open()
    site.servers[1].start()
    site.open()


def test_replicas_are_named_all_or_not_at_all(site: Site) -> None:
    site.open().close()
    alone = f"clickhouse://tester@{HOST}:{site.servers[0].port}/{site.database}"
    with pytest.raises(DashboardError, match=r"has replicated tables: name all replicas"):
        site.open(alone)
    plain = f"clickhouse://tester@{HOST}:{site.servers[0].port}/plain"
    site.open(plain).close()
    with pytest.raises(DashboardError, match=r"has tables that are not replicated"):
        site.open(replicas_url(site.servers, "plain"))


def test_servers_without_zookeeper_are_refused(tmp_path: Path) -> None:
    servers = [ClickHouseServer(tmp_path / name, password="hush") for name in ("one", "two")]
    try:
        for server in servers:
            server.start()
        with pytest.raises(DashboardError, match=r"ZooKeeper"):
            ClickStore(replicas_url(servers, "runs"), password="hush")
    finally:
        for server in servers:
            server.stop()


def test_events_documents_and_resumed_blocks_age_alike_on_both(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is old is dropped on both, and what is kept of it is on both before."""
    from dashboard.store.clickhouse import schema

    monkeypatch.setattr(schema, "BLOCK_STEPS", 64)
    store = site.open(raw_steps=64)
    site.joined(store)
    begin(store)
    store.append(stream_key("events"), 2, [encode(make_event(1, step=70))])
    key = feed(store, range(700))
    commit_all(store, key, 700)
    store._remove_old_rows(store._places.shards[0])
    shown = store.scalars(RUN, 0, ["loss"], max_points=10**6)
    counts = [
        f"SELECT count(), min(step), max(step) FROM {site.database}.scalar_{kind}" for kind in ("raw", "kept")
    ]
    soon(lambda: len({str([server.ask(each) for each in counts]) for server in site.servers}) == 1, "alike")
    assert site.servers[1].ask(counts[0])[0][0] < 700 and site.servers[1].ask(counts[1])[0][0] > 0
    site.servers[0].kill()
    again = site.open(raw_steps=64).scalars(RUN, 0, ["loss"], max_points=10**6)
    assert again.equals(shown)
