"""Several collectors share one ClickHouse: any of them may be killed, each record is there once.

What a fresh store reads at the end is compared with a DuckDB that was given each record once, in order.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import shared_streams
from clickhouse_server import ClickHouseServer, shards, url_of, what_is_missing
from forked_scripts import ForkedScript, ForkedScripts
from msgspec.structs import replace
from shared_streams import Helper, Streams, differences, everything
from store_reference import RUN, SMALL, begin, make_event, make_frame, stream_key

from dashboard.store.duck import DuckStore
from dashboard.store.protocol import Store
from probe.wire import RunEnd, RunStart, encode

pytestmark = pytest.mark.skipif(what_is_missing() is not None, reason=str(what_is_missing()))
SEEDS = [int(seed) for seed in os.environ.get("COLLECTOR_SEEDS", "1,3").split(",")]


class Collectors:
    """Stores of one database, each as a process of its own has it.

    Args:
        servers: That have it together.
        database: Its name.
    """

    def __init__(self, servers: Sequence[ClickHouseServer], database: str) -> None:
        self.servers, self.database = servers, database
        self._opened: list[Any] = []

    @property
    def url(self) -> str:
        return url_of(self.servers, self.database)

    def open(self) -> Any:
        from dashboard.store.clickhouse.store import ClickStore

        store = ClickStore(self.url, password=self.servers[0].password, clock=lambda: 0.0)
        self._opened.append(store)
        return store

    def lose(self, store: Any) -> None:
        """Have it end as a killed process does: nothing more is written."""
        store._end_following()
        store._closed = True
        for shard in store._places.shards:
            shard.database.close()
        self._opened.remove(store)

    def close(self) -> None:
        for store in list(self._opened):
            store.close()
        for server in self.servers:
            server.ask(f"DROP DATABASE IF EXISTS {self.database}")


_numbers = itertools.count()


@pytest.fixture
def collectors(clickhouse: ClickHouseServer) -> Iterator[Collectors]:
    """Of a database of the test's."""
    made = Collectors([clickhouse], f"shared_{os.getpid()}_{next(_numbers)}")
    yield made
    made.close()


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What is to be read at the end."""
    store = DuckStore(tmp_path_factory.mktemp("once"), clock=lambda: 0.0)
    Streams(0).ship_all(store)
    found = everything(store)
    store.close()
    assert sum(one.gaps for one in found["positions"]) == 10
    assert {one.last_step for run in found["runs"] for one in run.ranks} == {299, 499}
    return found


def assert_shown(store: Store, truth: dict[str, Any], *, within_s: float = 0.0) -> None:
    """Assert that a store shows what it should, now or soon."""
    deadline = time.monotonic() + within_s
    while found := differences(everything(store), truth):
        if time.monotonic() >= deadline:
            pytest.fail("\n".join(found))
        time.sleep(0.02)
    for one in store.positions(RUN):
        assert one.stored + one.gaps + one.dropped == one.next_seq


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = 2.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.01)


# ------------------------------------------------------------------------------------------ by chance


@pytest.mark.parametrize("seed", SEEDS)
def test_collectors_in_turns_store_each_record_once(
    collectors: Collectors, truth: dict[str, Any], seed: int
) -> None:
    stores = [collectors.open(), collectors.open()]
    helper = Helper(Streams(0), random.Random(seed), stores)
    for _ in range(150):
        helper.step()
    last = helper.chance.choice(stores)
    helper.finish(last)
    for store in stores:
        store.commit()  # what one of them still had, from before the helper left it
    assert helper.repeated > 300
    assert_shown(collectors.open(), truth)
    for store in stores:
        assert_shown(store, truth, within_s=2.0)


class GivenUpError(Exception):
    """The process would have been killed here."""


@pytest.mark.parametrize("seed", SEEDS[:1] if len(SEEDS) == 2 else SEEDS)
def test_commits_given_up_between_any_two_statements_lose_and_repeat_nothing(
    collectors: Collectors, truth: dict[str, Any], seed: int
) -> None:
    chance = random.Random(seed)
    stores = [mortal(collectors.open(), chance), mortal(collectors.open(), chance)]
    helper = Helper(Streams(0), chance, stores)
    given_up = 0
    for _ in range(400):
        try:
            helper.step()
        except GivenUpError:
            given_up += 1
            which = next(
                number for number, store in enumerate(stores) if store._places.shards[0].database.is_over
            )
            collectors.lose(stores[which])
            stores[which] = mortal(collectors.open(), chance)
            helper.leave()
    assert given_up >= 5
    for store in stores:
        collectors.lose(store)
    last = collectors.open()
    helper.finish(last)
    assert_shown(collectors.open(), truth)
    assert_shown(last, truth, within_s=2.0)


def mortal(store: Any, chance: random.Random) -> Any:
    """Have a store give up before or after one of the statements of one of its next commits."""
    database, left = store._places.shards[0].database, chance.randint(1, 60)
    database.is_over = False

    def counted(write: Callable[..., None]) -> Callable[..., None]:
        def written(*arguments: Any) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                database.is_over = True
                if chance.random() < 0.5:
                    write(*arguments)
            if left <= 0:
                raise GivenUpError
            write(*arguments)

        return written

    database.insert, database.run_rows = counted(database.insert), counted(database.run_rows)
    return store


@pytest.fixture
def writers(tmp_path: Path) -> Iterator[ForkedScripts]:
    """Forks processes that ship the streams."""
    with ForkedScripts("dashboard.store.clickhouse.store") as scripts:
        yield scripts


def test_killed_collectors_and_servers_lose_and_repeat_nothing(
    writers: ForkedScripts, truth: dict[str, Any], tmp_path: Path
) -> None:
    """Rank 0 lies on one server, rank 1 on the other."""
    chance = random.Random(SEEDS[0])
    running: list[ForkedScript] = []
    with shards(tmp_path) as servers, contextlib.closing(Collectors(servers, "shared")) as collectors:

        def start() -> None:
            script = [shared_streams.__file__, collectors.url, str(chance.randrange(10**6))]
            running.append(writers.start(script, tmp_path, {"NANSCOPE_STORE_PASSWORD": servers[0].password}))

        try:
            collectors.open()
            start()
            start()
            for kill in range(10):
                time.sleep(chance.uniform(0.1, 0.8))
                if kill % 4 == 3:
                    server = servers[kill // 4 % 2]
                    server.kill()
                    server.start()
                else:
                    victim = running.pop(chance.randrange(2))
                    assert victim.poll() is None, victim.said()
                    victim.kill()
                    victim.wait(30)
                    start()
            for script in running:
                script.kill()
                script.wait(30)
            last = collectors.open()
            Helper(Streams(0), chance, [last]).finish(last)
            assert_shown(collectors.open(), truth)
            for server in servers:
                assert server.ask("SELECT uniq(timeline) FROM shared.scalar_raw") == [(1,)]
        finally:
            for script in running:
                script.kill()
                script.wait(30)


# ---------------------------------------------------------------------------- what the other one shows


def test_page_of_one_collector_shows_what_the_other_has_taken(collectors: Collectors) -> None:
    one, other = collectors.open(), collectors.open()
    before = other.revision()
    key = begin(one)
    one.append(key, 0, [make_frame(0, {"grad_norm": [1, 2, 3]}, scalars={"loss": 1.0})])
    one.append(stream_key("events"), 2, [encode(make_event(1))])
    assert other.runs() == []
    one.commit()
    wait_until(lambda: [run.run for run in other.runs()] == [RUN], "the run")
    wait_until(lambda: other.scalar_names(RUN) == ["loss"], "the name")
    wait_until(lambda: other.scalars(RUN, 0, ["loss"])["mean"].tolist() == [1.0], "the value")
    wait_until(lambda: [event.id for event in other.events(RUN)] == [make_event(1).id], "the event")
    wait_until(lambda: other.heatmap(RUN, 0) is not None, "the heatmap")
    wait_until(lambda: other.revision() != before, "the revision")
    before = other.revision(RUN)
    one.append(key, 1, [make_frame(1, scalars={"loss": 2.0, "late": 5.0})])
    one.append(stream_key("events"), 3, [encode(make_event(1, message="a NaN again"))])
    one.commit()
    wait_until(lambda: other.revision(RUN) != before, "the revision")
    wait_until(lambda: other.scalars(RUN, 0, ["late"])["mean"].tolist() == [5.0], "the new name's value")
    wait_until(lambda: other.events(RUN)[0].message == "a NaN again", "the event's new state")
    assert other.position(key) == one.position(key)


def test_revision_changes_when_names_and_values_can_be_read(collectors: Collectors) -> None:
    """What comes between two reads of the follower is not shown by halves."""
    one, other = collectors.open(), collectors.open()
    key = begin(one)
    one.commit()
    wait_until(lambda: other.runs(), "the run")
    collectors.lose(other)
    other = collectors.open()
    other._end_following()
    before = other.revision(RUN)
    rows, asked = other._places.shards[0].database.rows, 0

    def interrupted(query: str, *values: Any) -> Any:
        nonlocal asked
        found = rows(query, *values)
        asked += 1
        if asked == 3:
            one.append(key, 0, [make_frame(0, scalars={"loss": 1.0})])
            one.commit()
        return found

    other._places.shards[0].database.rows = interrupted
    for _ in range(3):
        other._follow(other._places.shards[0])
        if other.revision(RUN) != before:
            break
    assert other.scalars(RUN, 0, ["loss"])["mean"].tolist() == [1.0]


# --------------------------------------------------------------------------- one that is behind the other


def restarted(rank_one: Store, rank_two: Store, *, finish: bool = True) -> None:
    """A start takes 0..299 through one collector; the next one 200..349 through the other."""
    for store, incarnation, steps in ((rank_one, 1000, range(300)), (rank_two, 2000, range(200, 350))):
        key = begin(store, incarnation=incarnation)
        for seq, step in enumerate(steps):
            scalars = {"loss": float(step + incarnation)} | ({"old": 1.0} if incarnation == 1000 else {})
            store.append(key, seq, [make_frame(step, {"grad_norm": [step, 1, 2]}, scalars=scalars)])
        store.commit()


def test_restart_through_the_other_collector_leaves_nothing_of_the_start_before(
    collectors: Collectors, tmp_path: Path
) -> None:
    once = DuckStore(tmp_path, clock=lambda: 0.0)
    restarted(once, once)
    restarted(collectors.open(), collectors.open())
    truth = everything(once)
    once.close()
    assert_shown(collectors.open(), truth)


def test_collector_that_its_helper_has_left_hides_nothing(collectors: Collectors, tmp_path: Path) -> None:
    """It commits what it had from before, after the other has taken all of it and more."""
    events = [make_event(1, message=f"{number}", step=5) for number in range(4)]
    start, end = (
        RunStart(run=RUN, rank=0, incarnation=1000, name="demo", time=1.0),
        RunEnd(time=90.0, step=29, outcome="finished"),
    )
    said = [encode(record) for record in (start, SMALL, *events, end)]
    frames = [make_frame(step, {"grad_norm": [1, 2, 3]}, scalars={"loss": 1.0}) for step in range(30)]
    names, key = stream_key("events"), stream_key()

    def take(store: Store, event: int, first: int, frame: int) -> None:
        store.append(names, 0, said[:event])
        store.append(key, 0, frames[:5])
        store.skip(key, 5, 8, "evicted")
        store.append(key, 8, frames[8:frame])

    once = DuckStore(tmp_path, clock=lambda: 0.0)
    take(once, len(said), 0, 30)
    once.commit()
    truth = everything(once)
    once.close()
    left, other = collectors.open(), collectors.open()
    take(left, 4, 0, 8)
    take(other, len(said), 0, 30)
    other.commit()
    left.commit()
    assert_shown(collectors.open(), truth)
    for store in (left, other):
        assert_shown(store, truth, within_s=2.0)
        assert store.position(key).next_seq == 30


def test_collector_that_follows_while_it_commits_forgets_nothing(collectors: Collectors) -> None:
    """What it reads is older than what it is just writing."""
    store = collectors.open()
    store._end_following()
    key = begin(store)
    store.append(key, 0, [make_frame(0, scalars={"loss": 1.0})])
    store.skip(key, 1, 3, "evicted")
    store.commit()
    store.skip(key, 3, 5, "evicted")
    store._follow(store._places.shards[0])
    store.append(key, 5, [make_frame(9, scalars={"loss": 1.0})])
    store.append(stream_key("events"), 2, [encode(RunEnd(time=9.0, step=9, outcome="finished"))])
    write = store._places.shards[0].writer._save_names

    def followed(saved: Any) -> None:
        store._follow(store._places.shards[0])
        write(saved)

    store._places.shards[0].writer._save_names = followed
    store.commit()
    store.append(key, 6, [make_frame(10, scalars={"loss": 1.0})])
    store.commit()
    for one in (store, collectors.open()):
        ((rank,),) = [run.ranks for run in one.runs()]
        assert (rank.state, rank.last_step) == ("finished", 10)
        assert [(gap.first_step, gap.last_step, gap.count) for gap in one.gaps(RUN)] == [(0, 9, 4)]


def test_commit_given_up_before_its_positions_makes_no_return(collectors: Collectors) -> None:
    """Its records come again: that the numbers of steps go back is not said of them."""
    lost = collectors.open()
    key = begin(lost)
    lost.commit()
    frames = [make_frame(step, scalars={"loss": 1.0}) for step in range(40)]
    lost.append(key, 0, frames)

    def given_up(saved: Any) -> None:
        raise GivenUpError

    lost._places.shards[0].writer._save_streams = given_up
    with pytest.raises(GivenUpError):
        lost.commit()
    collectors.lose(lost)
    other = collectors.open()
    assert other.position(key).next_seq == 0
    other.append(key, 0, frames)
    other.commit()
    (start,) = collectors.open().starts(RUN)
    assert (start.first_step, start.last_step, start.returns) == (0, 39, ())


@pytest.mark.parametrize("is_known", [True, False])
def test_two_collectors_that_know_of_different_streams_know_of_both_together(
    collectors: Collectors, is_known: bool
) -> None:
    """One has the end and not yet committed it, when the other commits the first frames."""
    one, other = collectors.open(), collectors.open()
    frames = [make_frame(step, scalars={"loss": 1.0}) for step in range(40)]
    key = begin(one)
    one.append(stream_key("events"), 2, [encode(RunEnd(time=99.0, step=39, outcome="finished"))])
    begin(other)
    other.append(key, 0, frames[:20])
    other.commit()
    if is_known:
        assert one.position(key).next_seq == 20
        one.append(key, 20, frames[20:])
    one.commit()
    (start,) = collectors.open().starts(RUN)
    assert (start.first_step, start.last_step) == (0, 39 if is_known else 19)
    ((rank,),) = [run.ranks for run in collectors.open().runs()]
    assert rank.state == "finished"


def test_event_of_several_starts_is_the_newest_one_s_though_it_comes_first(collectors: Collectors) -> None:
    """One collector still has an older start's records when the other has committed the newer one's."""
    left, other = collectors.open(), collectors.open()
    for store, incarnation, severity in ((left, 1000, "info"), (other, 2000, "critical")):
        begin(store, incarnation=incarnation)
        event = replace(make_event(7, severity=severity, message=f"{incarnation}"), incarnation=incarnation)
        store.append(stream_key("events", incarnation=incarnation), 2, [encode(event)])
    other.commit()
    left.commit()
    fresh = collectors.open()
    assert [event.message for event in fresh.events(RUN)] == ["2000"]
    (run,) = fresh.runs()
    assert (run.event_counts["critical"], run.event_counts["info"]) == (1, 0)
