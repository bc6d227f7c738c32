"""Runs the store on today's ClickHouse, embedded as `chdb`, beside one on DuckDB; compares what both read.

A program of its own, started by `test_clickhouse_dialect.py`: chdb takes 340 MiB, and keeps threads. Prints
`same` and the engine's version.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import chdb.session
import numpy as np
import page_runs
from clickhouse_driver.util.escape import escape_params

from dashboard.store.clickhouse import leftovers, numbers
from dashboard.store.clickhouse import store as clickhouse_store
from dashboard.store.clickhouse.connection import Address, Connections
from dashboard.store.clickhouse.event_counts import add_up, count_own, words_of_others
from dashboard.store.clickhouse.rows import ClickRows
from dashboard.store.clickhouse.schema import OF_RUNS, now_ns, number_of
from dashboard.store.duck import DuckStore
from dashboard.store.protocol import StepNote, StepRange, Store
from dashboard.store.tensors import Columns

NUMBERS = {"Int64": "<i8", "UInt64": "<u8", "UInt32": "<u4", "Int32": "<i4", "UInt8": "u1", "Float64": "<f8"}
DATABASE = "nanscope"
EMPTY = ("gaps", "host_samples")
"""Tables of names of which the run that stays has nothing."""


class EmbeddedConnections(Connections):
    """The same statements to an engine in this process; blocks go in and out in the native format."""

    def __init__(self, address: Address, password: str) -> None:
        self._address = address
        self._folder = Path(tempfile.mkdtemp())
        self._session = chdb.session.Session(str(self._folder / "data"))
        self._turn = threading.Lock()

    def _ask(self, statement: str, values: Mapping[str, Any] | None = None) -> bytes:
        if values:
            statement = statement % escape_params(dict(values), None)
        with self._turn:
            return bytes(self._session.query(statement, "Native").bytes() or b"")

    def columns(self, query: str, names: Sequence[str]) -> Columns:
        blocks = read_blocks(self._ask(query))
        if not blocks:
            return {name: np.empty(0, np.int64) for name in names}
        parts = zip(*blocks, strict=True)
        return {name: np.concatenate(column) for name, column in zip(names, parts, strict=True)}

    def rows(self, query: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        blocks = read_blocks(self._ask(query, values))
        return [row for block in blocks for row in zip(*(column.tolist() for column in block), strict=True)]

    def run(self, statement: str, values: Mapping[str, Any] | None = None) -> None:
        self._ask(statement, values)

    def insert(self, table: str, columns: Columns) -> None:
        if len(next(iter(columns.values()))):
            file = self._folder / "block"
            with self._turn:
                file.write_bytes(written_block(columns))
                chosen = ", ".join(columns)
                self._session.query(f"INSERT INTO {table} ({chosen}) FROM INFILE '{file}' FORMAT Native")

    def run_rows(self, table: str, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        if rows:
            parts = zip(names, zip(*rows, strict=True), strict=True)
            self.insert(table, {name: np.array(column, object) for name, column in parts})

    def tables(self) -> set[str]:
        query = f"SELECT name FROM system.tables WHERE database = '{DATABASE}'"
        return {name.decode() for (name,) in self.rows(query)}

    def prepare(self, place: int) -> None:
        """There is no other server with the same rows."""

    def create_database(self) -> None:
        self.run(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
        self.run(f"USE {DATABASE}")

    def close(self) -> None:
        self._session.close()


def read_blocks(data: bytes) -> list[list[np.ndarray]]:
    """Take native blocks apart, which have neither block information nor compression."""
    at, blocks = 0, []

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def text() -> bytes:
        nonlocal at
        size = number()
        at += size
        return data[at - size : at]

    while at < len(data):
        columns, count = number(), number()
        block = []
        for _ in range(columns):
            _, kind = text(), text().decode()
            if kind == "String":
                column = np.empty(count, object)
                column[:] = [text() for _ in range(count)]
            else:
                column = np.frombuffer(data, NUMBERS[kind], count, at)
                at += column.nbytes
            block.append(column)
        blocks.append(block)
    return [block for block in blocks if len(block[0])]


def varint(number: int) -> bytes:
    parts = bytearray()
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


def counted(value: bytes | str) -> bytes:
    value = value.encode() if isinstance(value, str) else value
    return varint(len(value)) + value


def written_block(columns: Columns) -> bytes:
    parts = [varint(len(columns)), varint(len(next(iter(columns.values()))))]
    for name, column in columns.items():
        first = column[0]
        is_text = isinstance(first, str | bytes)
        kind = "String" if is_text else "Float64" if isinstance(first, float | np.floating) else "Int64"
        parts += [counted(name), counted(kind)]
        values = column.tolist()
        parts += (
            [counted(value) for value in values] if is_text else [np.array(values, NUMBERS[kind]).tobytes()]
        )
    return b"".join(parts)


def write(store: Store) -> None:
    """Runs with restarts, faults, ranks, events, documents and notes; one of them deleted."""
    for run in ("gone", "demo-run"):
        page_runs.fill(store, steps=range(40), run=run, bad={7: "nan", 33: "inf"}, is_full=True)
        page_runs.fill(store, steps=range(40, 300), run=run)
        page_runs.fill(store, steps=range(20), run=run, rank=1)
    page_runs.add_event(store, page_runs.event(7), page_runs.event(12))
    page_runs.add_records(store, page_runs.memory_snapshot(30))
    page_runs.fill(store, steps=range(100, 140))
    store.mark_run("demo-run", note="it's 100 % \\ 'quoted'", starred=True)
    store.write_note("demo-run", StepNote(id="a", step=3, text="here\n\t'", time=1.0))
    store.write_note("demo-run", StepNote(id="b", step=2, text="there", time=2.0))
    store.remove_note("demo-run", "b")
    store.remove_run("gone")


def reads(store: Store) -> dict[str, Any]:
    """What it answers, in a form that can be compared."""
    run, found = "demo-run", {}
    for rank in (0, 1):
        names = store.scalar_names(run, rank)
        for points in (3, 17, 1000):
            frame = store.scalars(run, rank, names, max_points=points)
            found[f"scalars {rank} {points}"] = [frame[name].to_numpy() for name in frame.columns]
        for statistic in store.statistic_names(run, rank):
            for columns in (3, 1000):
                picture = store.heatmap(run, rank, statistic, StepRange(first=1), columns)
                assert picture is not None
                found[f"{statistic} {rank} {columns}"] = [picture.steps, picture.values, picture.flags]
        found[f"names {rank}"] = names
        found[f"histograms {rank}"] = [
            (one.name, one.step, one.counts.tolist())
            for subject in store.histogram_subjects(run, rank)
            for one in store.histograms(run, rank, subject)
        ]
    ranks = store.rank_scalars(run, ["loss", "grad_norm"], max_columns=9)
    for name, series in ranks.series.items():
        found[f"ranks {name}"] = [series.mean, series.largest, series.flags]
    found["runs"] = [(one.run, one.name, one.event_counts) for one in store.runs()]
    # NaN is in the evidence, which is not equal to itself.
    found["events"] = [repr(one) for one in store.events(run)]
    found["event"] = [store.run_of_event(one.id) for one in store.events(run)]
    found["documents"] = [one.document for one in store.documents(run, "memory")]
    found["kinds"], found["notes"], found["marks"] = (
        store.document_kinds(run),
        store.notes(run),
        store.marks(),
    )
    found["gaps"], found["positions"] = store.gaps(run), store.positions(run)
    return found


def compare(expected: dict[str, Any], found: dict[str, Any]) -> None:
    assert expected.keys() == found.keys()
    for name, wanted in expected.items():
        if isinstance(wanted, list) and wanted and isinstance(wanted[0], np.ndarray):
            for one, other in zip(wanted, found[name], strict=True):
                if one.dtype.kind in "fc":
                    np.testing.assert_allclose(other, one, rtol=1e-12, err_msg=name)
                else:
                    assert one.tolist() == other.tolist(), name
        else:
            assert found[name] == wanted, (name, wanted, found[name])


def check_leftovers(database: Connections) -> None:
    """Of the deleted run only its tombstone stays, of series and looks only the newest."""
    number = number_of("run", "gone")
    for table in {*leftovers.NAMED, *OF_RUNS}:
        run = number if table in OF_RUNS else "gone"
        until_true(lambda t=table, r=run: count(database, t, f"run = {r!r}") == 0, table)
        assert table in {*EMPTY, *OF_RUNS} or count(database, table, "run = 'demo-run'") > 0, table
    gone = leftovers.gone_runs(database)
    assert gone.keys() == {"gone"} and leftovers.gone_runs(database, before_s=1000) == {}
    late = [(run, 1, 2, "scalar", "x", gone["gone"] + 1 - at) for run, at in (("gone", 1), ("gone", 0))]
    database.run_rows("series", ("run", "timeline", "series", "kind", "name", "version"), late)
    database.run_rows("frames", ("run", "timeline", "step", "incarnation", "seq"), [(number, 1, 2, 3, 4)])
    leftovers.remove_deleted(database, gone | {"another": 1})
    until_true(lambda: count(database, "series", f"version <= {gone['gone']} AND run = 'gone'") == 0, "late")
    assert (count(database, "series", "run = 'gone'"), count(database, "frames", f"run = {number}")) == (1, 0)
    columns = ("run", "timeline", "series", "step", "incarnation", "seq", "data")
    rows = [(5, 6, series, seq, 1 + seq // 90, seq, b"") for series in (8, 9) for seq in range(60 * series)]
    database.run_rows("histograms", columns, rows)
    leftovers.remove_histograms(database)
    until_true(lambda: count(database, "histograms", "run = 5") == 160, "old histograms")
    assert count(database, "histograms", "run = 5 AND seq >= 60 * series - 80") == 160
    database.run("INSERT INTO looks (run, rank, at) SELECT 'a', number, now() - 130 FROM numbers(1001)")
    database.run_rows("looks", ("run", "rank"), [("a", 2000)])
    leftovers.remove_looks(database)
    until_true(lambda: count(database, "looks", "1") == 1, "old looks")


def check_event_counts(database: Connections) -> None:
    """As of several servers, and of one: two events of a rank, of one of which a helper speaks, too."""
    run = page_runs.event(7).run
    ids = [page_runs.event(step).id for step in (7, 12)]
    rows = database.rows(f"SELECT rank, incarnation, severity FROM events FINAL WHERE id = '{ids[0]}'")
    ((rank, incarnation, severity),) = rows
    columns = ("run", "id", "writer", "seq", "rank", "incarnation", "step", "severity", "data", "version")
    word = (run, ids[0], "host", 0, rank, incarnation, 7, "info", b"", now_ns())
    assert (severity, len(ClickRows(database).event_counts())) == (b"critical", 1)
    database.run_rows("events", columns, [word])
    words = words_of_others(database)
    assert [(one[1], one[2].severity) for one in words] == [(ids[0], "info")]
    for chosen, known in ((ids[:1], 1), (ids, 2), ((), 0)):
        counts, own = count_own(database, chosen)
        assert (sum(number for *_, number in counts), len(own)) == (2 - known, known)
        if chosen:
            found = add_up(counts, [*words, *own])
            assert sorted(found) == sorted(ClickRows(database).event_counts())
            assert sorted(found) == [(run, "critical", 1), (run, "info", 1)]


def count(database: Connections, table: str, condition: str) -> int:
    ((found,),) = database.rows(f"SELECT count() FROM {table} FINAL WHERE {condition}")
    return int(found)


def until_true(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.05)


def main() -> None:
    clickhouse_store.Connections = EmbeddedConnections  # type: ignore[misc]
    numbers.FEW = 1  # type: ignore[misc]  # two ranks have the form of many, too
    duck = DuckStore(Path(tempfile.mkdtemp()))
    modern = clickhouse_store.ClickStore(f"clickhouse://embedded/{DATABASE}", password="")
    try:
        for store in (duck, modern):
            write(store)
        compare(reads(duck), reads(modern))
        check_leftovers(modern._places.shards[0].database)
        check_event_counts(modern._places.shards[0].database)
        ((version,),) = modern._places.shards[0].database.rows("SELECT version()")
        print("same", version.decode())
    finally:
        duck.close()
        modern.close()


if __name__ == "__main__":
    main()
