"""Databases of other releases: one of the first schema is upgraded in place, and reads the same.

`clickhouse_schema_1.sql` is what that release executed.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from clickhouse_server import ClickHouseServer, url_of, what_is_missing
from shared_streams import Streams, differences, everything
from store_reference import RUN, make_frame, stream_key

from dashboard.errors import DashboardError
from dashboard.store.clickhouse import schema
from dashboard.store.clickhouse.connection import FAILURES, Connections, parse_address
from dashboard.store.clickhouse.schema import Added, create_tables, number_of
from dashboard.store.clickhouse.store import ClickStore
from dashboard.store.duck import DuckStore

pytestmark = pytest.mark.skipif(what_is_missing() is not None, reason=str(what_is_missing()))
FIRST_SCHEMA = (Path(__file__).parent / "clickhouse_schema_1.sql").read_text()
LATER: dict[int, tuple[Added | str, ...]] = {
    1: (),
    2: (
        Added("marks", "colour", "String DEFAULT 'red'"),
        "INSERT INTO marks (run, note, starred, version, colour) SELECT 'said', 'later', 1, 9, 'blue'",
        Added("notes", "author", "String"),
    ),
    3: (Added("notes", "place", "Int64 DEFAULT 7"),),
}
"""What two releases after this one might do."""
_numbers = itertools.count()


class Databases:
    """Of one test, on the servers of a worker.

    Args:
        servers: All of them.
    """

    def __init__(self, servers: Sequence[ClickHouseServer]) -> None:
        self.servers = servers
        self.names: list[str] = []
        self.opened: list[Any] = []

    def make(self, sql: str = "") -> str:
        """Make one on each server, with these tables; return its name."""
        self.names.append(f"version_{os.getpid()}_{next(_numbers)}")
        for server in self.servers if sql else ():
            server.ask(f"CREATE DATABASE {self.names[-1]}")
            self.connection(
                server, self.names[-1], lambda database: [database.run(one) for one in split(sql)]
            )
        return self.names[-1]

    def connection(self, server: ClickHouseServer, name: str, use: Callable[[Connections], Any]) -> Any:
        database = Connections(parse_address(server.url(name)), server.password)
        try:
            return use(database)
        finally:
            database.close()

    def open(self, name: str, servers: Sequence[ClickHouseServer]) -> ClickStore:
        store = ClickStore(url_of(servers, name), password=servers[0].password, clock=lambda: 0.0)
        self.opened.append(store)
        return store

    def close(self) -> None:
        for store in self.opened:
            store.close()
        for name, server in itertools.product(self.names, self.servers):
            server.ask(f"DROP DATABASE IF EXISTS {name}")


def split(sql: str) -> list[str]:
    lines = [line for line in sql.splitlines() if not line.startswith("--")]
    return [statement for statement in "\n".join(lines).split(";") if statement.strip()]


@pytest.fixture
def databases(clickhouse: ClickHouseServer, second_clickhouse: ClickHouseServer) -> Iterator[Databases]:
    made = Databases([clickhouse, second_clickhouse])
    yield made
    made.close()


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    store = DuckStore(tmp_path_factory.mktemp("once"), clock=lambda: 0.0)
    Streams(0, steps=140).ship_all(store)
    found = everything(store)
    store.close()
    return found


def first_release(databases: Databases, server: ClickHouseServer) -> str:
    """A run in tables of the first schema on one server, and empty ones on the other."""
    filled, old = databases.make(), databases.make(FIRST_SCHEMA)
    store = databases.open(filled, [server])
    Streams(0, steps=140).ship_all(store)
    databases.opened.remove(store)
    store.close()
    # It had no table of what pages show.
    for table in schema.TABLES.keys() - {"meta", "looks"}:
        server.ask(f"INSERT INTO {old}.{table} SELECT * FROM {filled}.{table}")
    return old


def notes(server: ClickHouseServer, name: str) -> dict[str, int]:
    return dict(server.ask(f"SELECT name, value FROM {name}.meta ORDER BY version"))


def test_database_of_the_first_release_is_upgraded_and_shows_what_it_has(
    databases: Databases, truth: dict[str, Any]
) -> None:
    server = databases.servers[0]
    name = first_release(databases, server)
    assert notes(server, name) == {"schema": 1}
    assert differences(everything(databases.open(name, [server])), truth) == []
    assert notes(server, name) == {"schema": schema.SCHEMA_VERSION, "place": 0, "servers": 1}


def test_run_that_the_first_release_has_put_on_one_server_of_two_goes_on(
    databases: Databases, truth: dict[str, Any]
) -> None:
    home = databases.servers[number_of("run", RUN) % 2]
    name = first_release(databases, home)
    store = databases.open(name, databases.servers)
    assert differences(everything(store), truth) == []
    key = stream_key(rank=1)
    first = store.position(key).next_seq
    store.append(key, first, [make_frame(step, scalars={"loss": 1.0}) for step in range(first, first + 9)])
    store.commit()
    again = databases.open(name, databases.servers)
    assert again.scalars(RUN, 1, ["loss"], max_points=10**6)["step"].tolist()[-1] == first + 8
    assert [notes(server, name)["servers"] for server in databases.servers] == [0, 0]
    assert home.ask(f"SELECT uniq(timeline) FROM {name}.scalar_raw") == [(2,)]


class GivenUpError(Exception):
    """The process would have been killed here."""


def test_upgrade_given_up_between_any_two_statements_is_ended_by_the_next(
    databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "SCHEMA_VERSION", 4)
    monkeypatch.setattr(schema, "MIGRATIONS", LATER)
    server, name = databases.servers[0], databases.make(FIRST_SCHEMA)
    given_up = 0

    def upgrade(database: Connections, left: int) -> None:
        def counted(work: Callable[..., None]) -> Callable[..., None]:
            def once(*arguments: Any) -> None:
                nonlocal left
                if left == 0:
                    raise GivenUpError
                left -= 1
                work(*arguments)

            return once

        database.run, database.run_rows = counted(database.run), counted(database.run_rows)  # type: ignore[method-assign]
        create_tables(database)

    for left in itertools.count():
        try:
            databases.connection(server, name, lambda database, left=left: upgrade(database, left))
            break
        except GivenUpError:
            given_up += 1
    assert given_up >= 4
    assert notes(server, name)["schema"] == 4
    assert server.ask(f"SELECT note, colour FROM {name}.marks FINAL") == [("later", "blue")]
    columns = "SELECT name FROM system.columns WHERE database = %(name)s AND table = 'notes'"
    assert {"author", "place"} <= {row[0] for row in server.ask(columns, {"name": name})}


def test_column_that_another_process_adds_at_the_last_moment_is_no_failure(
    databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "SCHEMA_VERSION", 4)
    monkeypatch.setattr(schema, "MIGRATIONS", LATER)
    server, name = databases.servers[0], databases.make(FIRST_SCHEMA)

    def upgrade(database: Connections) -> None:
        run = database.run

        def second(statement: str) -> None:
            for _ in range(2 if statement.startswith("ALTER") else 1):
                run(statement)

        database.run = second  # type: ignore[assignment]
        create_tables(database)

    databases.connection(server, name, upgrade)
    assert notes(server, name)["schema"] == 4


@pytest.mark.parametrize("is_new", [True, False])
def test_processes_that_begin_at_once_upgrade_one_database_together(
    databases: Databases, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    monkeypatch.setattr(schema, "SCHEMA_VERSION", 4)
    monkeypatch.setattr(schema, "MIGRATIONS", LATER)
    server, name = databases.servers[0], databases.make("" if is_new else FIRST_SCHEMA)
    failures: list[Exception] = []
    gate = threading.Barrier(4)

    def begin(database: Connections) -> None:
        gate.wait(20)
        try:
            create_tables(database)
        except (*FAILURES, DashboardError) as error:
            failures.append(error)

    threads = [threading.Thread(target=databases.connection, args=(server, name, begin)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == [] and notes(server, name)["schema"] == 4
    if not is_new:
        assert server.ask(f"SELECT note, colour FROM {name}.marks FINAL") == [("later", "blue")]


def test_database_of_a_later_release_is_refused_and_left_alone(databases: Databases) -> None:
    server, name = databases.servers[0], databases.make(FIRST_SCHEMA)
    server.ask(f"INSERT INTO {name}.meta (name, value, version) VALUES", [("schema", 99, 99)])
    server.ask(f"DROP TABLE {name}.marks")
    with pytest.raises(DashboardError, match="tables of schema 99, this release knows 2"):
        databases.open(name, [server])
    assert server.ask(f"EXISTS TABLE {name}.marks") == [(0,)]
