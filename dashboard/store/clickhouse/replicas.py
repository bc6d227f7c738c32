"""`Replicas`: servers that each have all rows of one shard, as if they were one server.

What is written to one of them, the *leader*, reaches the others through ZooKeeper (or ClickHouse Keeper). A
commit counts when every replica that is *in sync* has it. One that does not keep up is put out of sync first,
by a row of the table `replicas`; so it knows, or ZooKeeper's log tells it, that there may be rows which it
lacks, and it does not lead until it has caught up. One of two replicas may thus be lost, and none of what was
acknowledged with it. An insert with a quorum would have dashboards wait for one another: 18.16 takes one at a
time for each table.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, ClassVar, Final

from ...errors import DashboardError
from .connection import FAILURES, Address, Connections, NotLeadingError, first_line
from .schema import create_missing, now_ns

WAIT_S: Final = 10.0
"""A replica that lacks for so long what it should have is put out of sync."""
_FIRST_LOOK_S: Final = 0.002
_LAST_LOOK_S: Final = 0.05
"""Between two looks at whether a replica has caught up; each is twice as long after the one before."""
TABLE: Final = "replicas"
_COLUMNS: Final = "name String, state Int64, version Int64"
_ENGINE: Final = "ReplacingMergeTree(version) PARTITION BY state ORDER BY name"
"""A part's name says which state it has: also of one that cannot be fetched."""


class State(IntEnum):
    """Of a replica."""

    OUT = 0
    """It may lack rows that count."""
    JOINING = 1
    """It may, but whoever writes waits for it again."""
    IN = 2
    """It has all rows that count."""


class Replica(Connections):
    """One server of several with the same rows.

    Args:
        address: Of the server.
        password: Of the user.
    """

    settings: ClassVar = {**Connections.settings, "insert_deduplicate": 0}
    """What was dropped may come again, and counts."""
    answer_s: ClassVar = {"questions": WAIT_S}

    def __init__(self, address: Address, password: str) -> None:
        super().__init__(address, password)
        self.name = ""
        """Its own among the replicas: a server that has lost its disk has another."""
        self._prefix = ""

    def engine(self, table: str, plain: str) -> str:
        """See `Connections.engine`."""
        kind, _, rest = plain.partition("(")
        comma = "" if rest.startswith(")") else ", "
        return f"Replicated{kind}('{self._prefix}/{table}', '{self.name}'{comma}{rest}"

    def prefix(self) -> str:
        """Return where ZooKeeper has the tables that this server knows; empty: it knows none.

        Raises:
            DashboardError: they are not replicated.
        """
        found = self.tables()
        if found and TABLE not in found:
            raise DashboardError(
                f"the store at {self.address} has tables that are not replicated: name a new database, "
                "or leave out the other replicas"
            )
        path, name = "", ""
        if found:
            query = """SELECT zookeeper_path, replica_name FROM system.replicas
                WHERE database = %(database)s AND table = %(table)s"""
            rows = self._ask(query, {"database": self.address.database, "table": TABLE})
            path, name = (part.decode() for part in rows[0])
        self._prefix, self.name = path.rpartition("/")[0], name
        return self._prefix

    def create(self, prefix: str) -> None:
        """Have all tables there, under a prefix; where others have them, with what these have."""
        if not self.prefix():
            self._prefix = prefix
            self.name = f"{self.address.host}-{self.address.port}-{secrets.token_hex(4)}"
            self.create_database()
            self.run(
                f"CREATE TABLE IF NOT EXISTS {TABLE} ({_COLUMNS}) ENGINE = {self.engine(TABLE, _ENGINE)}"
            )
        if self.prefix() != prefix:  # another process may have been the first
            raise DashboardError(
                f"the store at {self.address} belongs to another one: its tables are {self._prefix} in "
                f"ZooKeeper, those of the other replicas {prefix}; name a new database"
            )
        create_missing(self)

    def states(self) -> dict[str, tuple[State, int]]:
        """Return replica -> its state and when it was said, as far as this one knows."""
        query = f"SELECT name, argMax(state, version), max(version) FROM {TABLE} GROUP BY name"
        return {name.decode(): (State(state), version) for name, state, version in self._ask(query)}

    def put_state(self, name: str, state: State, version: int) -> None:
        """Say the state of a replica."""
        self.run_rows(TABLE, ("name", "state", "version"), [(name, int(state), version)])

    def log_ends(self, tables: Collection[str]) -> dict[str, int]:
        """Return table -> the newest entry of its log, as ZooKeeper has it."""
        return {table: int(end) for table, end, _ in self._logs(tables)}

    def has_all(self, ends: dict[str, int], *, within_s: float) -> bool:
        """Whether it has what the logs say to these ends, or has it in time. Merges it need not have done."""
        until, pause = time.monotonic() + within_s, _FIRST_LOOK_S
        missing: set[tuple[bytes, bytes]] | None = None
        while True:
            if missing is None:
                if all(int(read) > ends[table] for table, _, read in self._logs(ends)):
                    missing = self._fetching(ends)
            else:
                missing &= self._fetching(ends)  # what comes later is not waited for
            if missing is not None and not missing:
                return True
            if time.monotonic() >= until:
                return False
            time.sleep(pause)
            pause = min(2 * pause, _LAST_LOOK_S)

    def has_caught_up(self) -> bool:
        """Whether it has all, or nearly: it is worth waiting for."""
        tables = self.tables()
        logs = self._logs(tables)
        return all(read > end for _, end, read in logs) and not self._fetching(tables)

    def knows_states(self) -> bool:
        """Whether it knows of all that were ever put out, as far as ZooKeeper does.

        Raises:
            NotLeadingError: ZooKeeper does not answer.
        """
        ((_, end, read),) = self._logs([TABLE])
        return read > end and not self._fetching([TABLE])

    def _logs(self, tables: Collection[str]) -> list[tuple[str, int, int]]:
        """Return each table, the newest entry of its log (-1: none), and which entry is read next here."""
        query = f"""SELECT table, log_max_index, log_pointer, is_readonly, is_session_expired
            FROM system.replicas WHERE database = %(database)s AND table IN ({_listed(tables)})"""
        rows = self._ask(query, {"database": self.address.database})
        if len(rows) < len(tables) or any(row[3] or row[4] for row in rows):
            raise NotLeadingError(f"{_place(self)} has no connection to ZooKeeper")
        found = [(row[0].decode(), int(row[1]), int(row[2])) for row in rows]
        return [
            (table, -1 if end == read == 0 and not self.has_log(table) else end, read)
            for table, end, read in found
        ]

    def _ask(self, query: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Return rows; strings are bytes. One that hangs is not waited for as long as for what writes."""
        found: list[tuple[Any, ...]] = self._client("questions").execute(query, dict(values or {}) or None)
        return found

    def has_log(self, table: str) -> bool:
        """Whether anything was ever written: an empty log looks like one whose first entry was not read."""
        query = "SELECT count() FROM system.zookeeper WHERE path = %(path)s"
        return bool(self._ask(query, {"path": f"{self._prefix}/{table}/log"})[0][0])

    def _fetching(self, tables: Collection[str]) -> set[tuple[bytes, bytes]]:
        """Return the parts that it still has to fetch: table, and name.

        Its own inserts stand in its queue for a while, too. Of states only those that put a replica out
        matter: without others it knows less, and nothing wrong.
        """
        query = f"""SELECT table, new_part_name FROM system.replication_queue
            WHERE database = %(database)s AND type = 'GET_PART' AND table IN ({_listed(tables)})
            AND (table != '{TABLE}' OR substring(new_part_name, 1, 2) = '{State.OUT:d}_')
            AND source_replica != %(name)s"""
        return set(self._ask(query, {"database": self.address.database, "name": self.name}))


class Replicas(Connections):
    """See the module; thread-safe, as what it is used like.

    Args:
        addresses: Of all of them; the first that is in sync leads.
        password: Of the user.
    """

    is_replicated: ClassVar = True
    oldest_schema: ClassVar = 2

    def __init__(self, addresses: Sequence[Address], password: str) -> None:
        super().__init__(addresses[0], password)
        self._each = [Replica(address, password) for address in addresses]
        self._leader = self._each[0]
        self._best: Replica | None = None
        self._prefix = ""
        self.moves = 0

    @property
    def address(self) -> Address:
        """Of the one that leads."""
        return self._leader.address

    # -- as one server

    def insert(self, table: str, columns: Any) -> None:
        """See `Connections.insert`."""
        self._note(table)
        super().insert(table, columns)

    def run_rows(self, table: str, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """See `Connections.run_rows`."""
        if rows:
            self._note(table)
            super().run_rows(table, names, rows)

    def run(self, statement: str, values: Any = None) -> None:
        """See `Connections.run`."""
        words = statement.split(maxsplit=3)
        if words[:2] == ["INSERT", "INTO"]:
            self._note(words[2])
        super().run(statement, values)

    def tables(self) -> set[str]:
        """See `Connections.tables`."""
        return self._leader.tables()

    def create_database(self) -> None:
        """It is there when one leads."""

    def engine(self, table: str, plain: str) -> str:
        """See `Connections.engine`."""
        return self._leader.engine(table, plain)

    def close(self) -> None:
        """Leave all of them. Idempotent."""
        for replica in self._each:
            replica.close()

    def _client(self, kind: str) -> Any:
        return self._leader._client(kind)

    def _note(self, table: str) -> None:
        vars(self._mine).setdefault("written", set()).add(table)

    # -- what counts

    def secure(self, tables: Collection[str] | None = None) -> None:
        """See `Connections.secure`. Every replica that is in sync has it then, and at least the leader is."""
        # Of this thread alone: another one's wait is no answer to ours.
        written: set[str] = vars(self._mine).setdefault("written", set())
        chosen = written if tables is None else tables
        if chosen:
            self._secure(self._leader, chosen)
        if tables is None:
            written.clear()

    def _secure(self, leader: Replica, tables: Collection[str]) -> None:
        # After the rows: who lets a replica join says so before it looks at the logs.
        states = leader.states()
        if states.get(leader.name, (State.OUT, 0))[0] is not State.IN:
            raise NotLeadingError(f"{_place(leader)} was put out of sync by another dashboard")
        waited_for = [
            name for name, (state, _) in states.items() if state is not State.OUT and name != leader.name
        ]
        if not waited_for:
            return
        ends = leader.log_ends(tables)
        for name in waited_for:
            replica = next((each for each in self._each if each.name == name), None)
            try:
                has_all = replica is not None and replica.has_all(ends, within_s=WAIT_S)
            except FAILURES:
                has_all = False
            if not has_all:
                _put_out(leader, name)
        # As of now: another one may lead, and count what it writes without this one.
        is_told = leader.has_all(leader.log_ends([TABLE]), within_s=3 * WAIT_S)
        if not is_told or leader.states()[leader.name][0] is not State.IN:
            raise NotLeadingError(f"{_place(leader)} may have been put out of sync")

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """See `Connections.held`."""
        moves = self.moves
        yield
        if moves != self.moves:
            raise NotLeadingError("another replica leads now")

    # -- which one leads

    def prepare(self, place: int) -> None:
        """Have the tables on all that answer, and one of them lead.

        Args:
            place: Of the shard.

        Raises:
            DashboardError: the tables are others', or some do not answer and none has ever been there.
        """
        said: list[str] = []
        answering: list[Replica] = []
        for replica in self._each:
            try:
                self._prefix = replica.prefix() or self._prefix
                answering.append(replica)
            except FAILURES as error:
                said.append(f"{_place(replica)}: {first_line(error)}")
        if not self._prefix:
            if said:  # somebody may have rows of it
                raise NotLeadingError(f"{', '.join(said)}; the first start needs all replicas")
            first = self._each[0]
            first.create(f"/nanscope/{first.address.database}-{secrets.token_hex(4)}/{place}")
            self._prefix = first.prefix()
        for replica in answering:
            replica.create(self._prefix)
        self.choose()

    def choose(self) -> bool:
        """Have the first that may lead do so; whether that is another one than before.

        Raises:
            NotLeadingError: there is none.
        """
        said: list[str] = []
        for replica in self._each:
            try:
                if self._may_lead(replica):
                    return self._lead(replica)
                said.append(f"{_place(replica)}: it may lack what only others have")
            except FAILURES as error:
                said.append(f"{_place(replica)}: {first_line(error)}")
        if self._have_all_the_same():
            return self._lead(self._each[0])
        raise NotLeadingError(", ".join(said))

    def _have_all_the_same(self) -> bool:
        """Whether all answer and have caught up, though none is in sync; the first one is then."""
        first = self._each[0]
        with contextlib.suppress(*FAILURES):
            known = {name for each in self._each for name in each.states()}
            if known <= {each.name for each in self._each} and all(
                each.has_caught_up() for each in self._each
            ):
                version = max(version for _, version in first.states().values())
                first.put_state(first.name, State.IN, max(now_ns(), version + 1))
                return True
        return False

    def _lead(self, replica: Replica) -> bool:
        if replica is self._leader:
            return False
        self._leader, self.moves = replica, self.moves + 1
        return True

    def _may_lead(self, replica: Replica) -> bool:
        if not self._prefix or replica.prefix() != self._prefix or not replica.knows_states():
            return False
        states = replica.states()
        if not states and not replica.has_log(TABLE):  # all of it is new
            replica.put_state(replica.name, State.IN, now_ns())
            return True
        if (
            not states
        ):  # another dashboard has just begun; or its disk is empty, and it has fetched nothing yet
            states = replica.states()
        return states.get(replica.name, (State.OUT, 0))[0] is State.IN

    def keep(self) -> list[str]:
        """Have those join that have caught up, and find out which one is to lead.

        Returns:
            What to say of those that are not in sync.
        """
        said: list[str] = []
        best: Replica | None = None
        for replica in self._each:
            try:
                if problem := self._problem_of(replica):
                    said.append(f"the replica {_place(replica)} {problem}")
                elif best is None and self._may_lead(replica):
                    best = replica
            except FAILURES as error:
                said.append(f"the replica {_place(replica)}: {first_line(error)}")
            except DashboardError as error:
                said.append(str(error))
        self._best = best
        return said

    def turn(self) -> bool:
        """See `Connections.turn`."""
        return self._best is not None and self._lead(self._best)

    def _problem_of(self, replica: Replica) -> str | None:
        """Have one join that may; return why it is not in sync, and None of one that is."""
        leader = self._leader
        if replica is leader:
            return None
        replica.create(self._prefix)
        if leader.states().get(replica.name, (State.OUT, 0))[0] is State.IN:
            return None
        if not replica.has_caught_up():
            return "is catching up"
        return None if _join(leader, replica) else "does not keep up"


def _put_out(leader: Replica, name: str) -> None:
    """Have it known that a replica may lack what counts, in the order that `_join` depends on."""
    while (known := leader.states()[name])[0] is not State.OUT:
        leader.put_state(name, State.OUT, max(now_ns(), known[1] + 2))


def _join(leader: Replica, replica: Replica) -> bool:
    """Let a replica that has caught up count; whether it does.

    From the first row on whoever writes waits for it, so that it lacks nothing written after the look at the
    logs. The second row counts only where nobody has put it out meanwhile: that has a greater version.
    """
    state, known = leader.states().get(replica.name, (State.OUT, 0))
    if state is State.IN or (state is State.JOINING and now_ns() - known < 2 * WAIT_S * 1e9):
        return state is State.IN  # another dashboard is at it
    version = max(now_ns(), known + 1)
    leader.put_state(replica.name, State.JOINING, version)
    ends = leader.log_ends(leader.tables())
    if not replica.has_all(ends, within_s=WAIT_S):
        _put_out(leader, replica.name)
        return False
    leader.put_state(replica.name, State.IN, version + 1)
    return True


def _place(replica: Replica) -> str:
    return f"{replica.address.host}:{replica.address.port}"


def _listed(tables: Collection[str]) -> str:
    return ", ".join(f"'{table}'" for table in tables)
