"""Connections to a ClickHouse server: where it is, who asks, and one pair of clients for each thread.

The driver's clients are not thread-safe, and one kind cannot read both: with numpy it cuts trailing zeros of
blobs, without it reads numbers ten times slower.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import threading
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import quote, unquote, urlsplit

import clickhouse_driver
import numpy as np
from clickhouse_driver import errors as driver_errors

from ...errors import DashboardError
from ..tensors import Columns

DEFAULT_PORT: Final = 9000
CONNECT_S: Final = 3.0
ANSWER_S: Final = 30.0
PASSWORD_VARIABLE: Final = "NANSCOPE_STORE_PASSWORD"
PASSWORD_FILE_VARIABLE: Final = "NANSCOPE_STORE_PASSWORD_FILE"
FAILURES: Final = (driver_errors.Error, OSError, EOFError)
"""What the driver raises where the server refuses, is away, or goes away."""
# It writes a traceback of each connection that fails; what is raised says as much.
logging.getLogger("clickhouse_driver").setLevel(logging.CRITICAL)


class NotLeadingError(EOFError):
    """No replica that answers may be asked, or another one leads now: a failure as if none answered."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where the database is, and who asks for it; never with a password."""

    host: str
    port: int
    user: str
    database: str
    is_secure: bool = False

    def __str__(self) -> str:
        scheme = "clickhouses" if self.is_secure else "clickhouse"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{quote(self.user, safe='')}@{host}:{self.port}/{self.database}"


def parse_shards(url: str) -> list[list[Address]]:
    """Take ``clickhouse://user@host:9000/database`` apart; ``clickhouses://`` is the same over TLS.

    Several shards, each with a part of the ranks, are ``host:9000,other:9000``, always in the same order.
    Several replicas of one, each with all of it, are ``host:9000|other:9000``.

    Raises:
        DashboardError: it is none, or has a password in it.
    """
    scheme, _, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    user, at, hosts = place.rpartition("@")
    shards = [
        [parse_address(f"{scheme}://{user}{at}{host}{slash}{path}") for host in replicas.split("|")]
        for replicas in hosts.split(",")
    ]
    everywhere = [(each.host, each.port) for replicas in shards for each in replicas]
    if len(set(everywhere)) < len(everywhere):
        raise DashboardError("--store names a server twice")
    return shards


def parse_address(url: str) -> Address:
    """Take ``clickhouse://user@host:9000/database`` apart; ``clickhouses://`` is the same over TLS.

    Raises:
        DashboardError: it is none, or has a password in it.
    """
    form = "clickhouse://user@host:9000/nanscope"
    try:
        parts = urlsplit(url)
        port = parts.port or DEFAULT_PORT
    except ValueError as error:
        raise DashboardError(f"--store is not an address ({error}); it looks like {form}") from None
    if parts.scheme not in ("clickhouse", "clickhouses") or not parts.hostname:
        raise DashboardError(f"--store knows addresses like {form}; without it the data is in a folder")
    if parts.password is not None:
        raise DashboardError(
            f"--store has a password in it, which every process list shows: leave it out, and put it into "
            f"{PASSWORD_VARIABLE} or a file of your own that {PASSWORD_FILE_VARIABLE} names"
        )
    database = parts.path.strip("/") or "nanscope"
    if not database.replace("_", "a").isalnum() or not database.isascii() or parts.query or parts.fragment:
        raise DashboardError(f"--store: {database!r} is not the name of a database; it looks like {form}")
    user = unquote(parts.username) if parts.username else "default"
    return Address(parts.hostname, port, user, database, parts.scheme == "clickhouses")


def read_password(environment: Mapping[str, str] = os.environ) -> str:
    """Return the password from the environment, or from a file that only its owner can read; empty: none.

    Raises:
        DashboardError: the file cannot be read, or others can read it.
    """
    name = environment.get(PASSWORD_FILE_VARIABLE)
    if not name:
        return environment.get(PASSWORD_VARIABLE, "")
    try:
        with Path(name).open(encoding="utf-8") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise DashboardError(f"others can read {name}, which has a password: chmod 600 {name}")
            return file.read().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise DashboardError(f"cannot read {PASSWORD_FILE_VARIABLE}={name}: {reason}") from None


@contextlib.contextmanager
def explained(address: Address, what: str) -> Iterator[None]:
    """Say in one sentence what the server has refused, or that it does not answer."""
    try:
        yield
    except FAILURES as error:
        raise DashboardError(f"the store at {address} {what}: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    """Return what a failure says, without traces."""
    if isinstance(error, driver_errors.ServerException):
        return str(error.message).split("Stack trace")[0].strip().removeprefix("DB::Exception: ").rstrip(". ")
    if isinstance(error, NotLeadingError):
        return str(error)
    if isinstance(error, driver_errors.NetworkError | EOFError):
        return "it does not answer"
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _as_bytes(value: Any) -> Any:
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value


def _leave(client: Any) -> None:
    with contextlib.suppress(*FAILURES):
        client.disconnect()


class Connections:
    """Clients of one database, a pair for each thread that asks.

    Args:
        address: Of the server.
        password: Of the user.
    """

    settings: ClassVar[Mapping[str, Any]] = {"max_threads": 2}
    answer_s: ClassVar[Mapping[str, float]] = {}
    """How long a kind of client waits for an answer, where that is not `ANSWER_S`."""
    is_replicated: ClassVar = False
    oldest_schema: ClassVar = 1
    """Of tables that do not say theirs."""
    moves = 0
    """How often another server has begun to answer in its place."""

    def __init__(self, address: Address, password: str) -> None:
        self._address = address
        self._password = password
        self._mine = threading.local()
        self._lock = threading.Lock()
        self._all: list[weakref.finalize[..., Any]] = []
        """Each has a client leave the server, at the latest when its thread is gone."""
        self._is_closed = False

    @property
    def address(self) -> Address:
        """Of the server."""
        return self._address

    def columns(self, query: str, names: Sequence[str]) -> Columns:
        """Return columns of numbers as arrays, in the order of the query."""
        found = self._client("numbers").execute(query, columnar=True)
        if not len(found):
            return {name: np.empty(0, np.int64) for name in names}
        return {name: np.asarray(column) for name, column in zip(names, found, strict=True)}

    def rows(self, query: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Return rows; strings are bytes."""
        found: list[tuple[Any, ...]] = self._client("blobs").execute(query, dict(values or {}) or None)
        return found

    def run(self, statement: str, values: Mapping[str, Any] | None = None) -> None:
        """Have a statement done that returns nothing."""
        self._client("blobs").execute(statement, dict(values or {}) or None)

    def insert(self, table: str, columns: Columns) -> None:
        """Append rows; returns when the server has written them."""
        if not len(next(iter(columns.values()))):
            return
        is_of_numbers = all(column.dtype != object for column in columns.values())
        data: list[Any] = list(columns.values())
        if not is_of_numbers:
            data = [[_as_bytes(value) for value in column.tolist()] for column in data]
        client = self._client("numbers" if is_of_numbers else "blobs")
        client.execute(f"INSERT INTO {table} ({', '.join(columns)}) VALUES", data, columnar=True)

    def run_rows(self, table: str, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Append a few rows of any types."""
        if rows:
            self._client("blobs").execute(
                f"INSERT INTO {table} ({', '.join(names)}) VALUES",
                [list(map(_as_bytes, row)) for row in rows],
            )

    def tables(self) -> set[str]:
        """Return the names of the tables; none, too, where there is no such database."""
        client = self._new("questions", database="default")
        try:
            query = "SELECT name FROM system.tables WHERE database = %(database)s"
            return {name.decode() for (name,) in client.execute(query, {"database": self.address.database})}
        finally:
            client.disconnect()

    def engine(self, table: str, plain: str) -> str:
        """Return the engine of a table, given that of one server alone."""
        return plain

    def create_database(self) -> None:
        """Make the database if it is not there."""
        client = self._new("blobs", database="default")
        try:
            client.execute(f"CREATE DATABASE IF NOT EXISTS {self.address.database}")
        finally:
            client.disconnect()

    # -- what differs where several servers have the same rows

    def prepare(self, place: int) -> None:
        """Have it known which server answers; see `Replicas`.

        Raises:
            DashboardError: it is one of several with the same rows, of which the others must be known.
        """
        client = self._new("blobs", database="default")
        try:
            query = "SELECT count() FROM system.replicas WHERE database = %(database)s"
            is_replica = client.execute(query, {"database": self.address.database})[0][0]
        finally:
            client.disconnect()
        if is_replica:
            raise DashboardError(
                f"the store at {self.address} has replicated tables: name all replicas, "
                "like host:9000|other:9000"
            )

    def choose(self) -> bool:
        """Have the right server answer, after a failure; whether that is another one now."""
        return False

    def keep(self) -> list[str]:
        """Look after other servers with the same rows; return what to say of those that do not keep up."""
        return []

    def turn(self) -> bool:
        """Have the server answer that `keep` has found best; whether that is another one now. Asks nobody."""
        return False

    def secure(self, tables: Collection[str] | None = None) -> None:
        """Return when what was written will outlive the loss of this server, as far as it can.

        Args:
            tables: That are waited for, whoever has written to them; None: those that were written to here.

        Raises:
            NotLeadingError: another one leads now.
        """

    def held(self) -> contextlib.AbstractContextManager[None]:
        """Fails at the end where the server that answers has changed since."""
        return contextlib.nullcontext()

    def close(self) -> None:
        """Leave the server. Idempotent."""
        with self._lock:
            self._is_closed = True
            leaving, self._all = self._all, []
        for leave in leaving:
            leave()

    def _client(self, kind: str) -> Any:
        client = getattr(self._mine, kind, None)
        if client is None:
            client = self._new(kind, database=self.address.database)
            with self._lock:
                if self._is_closed:
                    raise EOFError("the store is closed")
                self._all = [each for each in self._all if each.alive]
                self._all.append(weakref.finalize(threading.current_thread(), _leave, client))
            setattr(self._mine, kind, client)
        return client

    def _new(self, kind: str, *, database: str) -> Any:
        settings = {"use_numpy": True} if kind == "numbers" else {"strings_as_bytes": True}
        return clickhouse_driver.Client(
            self.address.host,
            port=self.address.port,
            user=self.address.user,
            password=self._password,
            database=database,
            secure=self.address.is_secure,
            connect_timeout=CONNECT_S,
            send_receive_timeout=self.answer_s.get(kind, ANSWER_S),
            settings={**settings, **self.settings},
            client_name="nanscope",
        )
