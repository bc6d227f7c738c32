"""Opens the database file: settings, tables, version, and what happens to a file that cannot be used.

Called once by `DuckStore`, on the thread that makes it, or to look into a file that none has open. Nothing
here reads or writes a run's data.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, Literal, TypeVar

import duckdb

from ..errors import DashboardError
from .damage import Said, first_line, is_about_room, is_suspicious, read_everything, read_said

FILE_NAME: Final = "nanscope.duckdb"
SCHEMA_VERSION: Final = 1
MEMORY_LIMIT: Final = "64MB"
"""DuckDB's buffers: blocks that were read or written stay there until this is full, whether anybody wants
them again or not; the kernel has the pages of the file besides."""
THREADS: Final = 2
DATABASE: Final = "nanscope"
ROW_GROUP: Final = 8192
"""Rows that a checkpoint writes as one. It rewrites every row group that is not full, and joins small ones
unless `max_vacuum_tasks` is 0. Measured with rows of 8 kB, 100 MB on a busy machine: 3 to 15 s with DuckDB's
122,880 and automatic compression, 0.5 s with 8,192 and none; random floats do not compress."""
WAL_CHECKPOINT: Final = "16MB"
"""A checkpoint merges the write-ahead log into the file. Until then the rows are in memory too: with 64 MB
that was a part of the sawtooth of the server's memory. Measured with 480 layers, 120 steps/s and three pages:
all commits of a minute take 5.5 to 6.4 s, and took 4.9 s with 64 MB."""

_RAW_TENSOR: Final = """timeline INTEGER, series INTEGER, step BIGINT, incarnation BIGINT, seq BIGINT,
    superseded BOOLEAN, data BLOB USING COMPRESSION uncompressed, flags BLOB"""
_POOLED_TENSOR: Final = """timeline INTEGER, series INTEGER, level BIGINT, step BIGINT,
    data BLOB USING COMPRESSION uncompressed, flags BLOB"""
TABLES: Final[dict[str, str]] = {
    "meta": "version INTEGER, epoch BIGINT",
    "streams": """run VARCHAR, writer VARCHAR, stream VARCHAR, next_seq BIGINT, stored BIGINT, gaps BIGINT,
        dropped BIGINT""",
    "incarnations": "run VARCHAR, rank BIGINT, incarnation BIGINT, start BLOB, state BLOB",
    "layouts": "run VARCHAR, rank BIGINT, incarnation BIGINT, number BIGINT, timeline INTEGER, data BLOB",
    "timelines": "timeline INTEGER, run VARCHAR, rank BIGINT, digest BLOB",
    "progress": "timeline INTEGER, first_step BIGINT, max_step BIGINT, raw_floor BIGINT",
    "kept": "timeline INTEGER, first_step BIGINT, end_step BIGINT, rewritten BOOLEAN",
    "series": "series INTEGER, timeline INTEGER, kind VARCHAR, name VARCHAR",
    "events": """run VARCHAR, id VARCHAR, rank BIGINT, incarnation BIGINT, step BIGINT, severity VARCHAR,
        data BLOB""",
    "documents": """run VARCHAR, rank BIGINT, incarnation BIGINT, kind VARCHAR, key VARCHAR, step BIGINT,
        time DOUBLE, data BLOB""",
    "marks": "run VARCHAR, note VARCHAR, starred BOOLEAN",
    "notes": "run VARCHAR, id VARCHAR, step BIGINT, text VARCHAR, time DOUBLE",
    "gaps": """run VARCHAR, writer VARCHAR, source VARCHAR, first_seq BIGINT, end_seq BIGINT, reason VARCHAR,
        first_step BIGINT, last_step BIGINT""",
    "host_samples": "run VARCHAR, rank BIGINT, incarnation BIGINT, time DOUBLE, data BLOB",
    "scalar_raw": """timeline INTEGER, series INTEGER, step BIGINT, incarnation BIGINT, seq BIGINT,
        superseded BOOLEAN, time DOUBLE, value DOUBLE""",
    "scalar_pooled": """timeline INTEGER, series INTEGER, level BIGINT, step BIGINT, time DOUBLE, min DOUBLE,
        mean DOUBLE, max DOUBLE, finite BIGINT, nan BIGINT, inf BIGINT, pooled BIGINT""",
    "layer_raw": _RAW_TENSOR,
    "layer_pooled": _POOLED_TENSOR,
    "parameter_raw": _RAW_TENSOR,
    "parameter_pooled": _POOLED_TENSOR,
    "module_raw": _RAW_TENSOR,
    "module_pooled": _POOLED_TENSOR,
    "histograms": """timeline INTEGER, series INTEGER, step BIGINT, incarnation BIGINT, seq BIGINT,
        data BLOB USING COMPRESSION uncompressed""",
}
"""Table -> columns. Rows of raw tables keep the order of arrival; a *timeline* is one rank's scalars or one
layout's tensors, and the unit in which steps advance, close buckets and age."""


def column_names(table: str) -> list[str]:
    """Return the names of a table's columns, in their order."""
    return [column.split()[0] for column in TABLES[table].split(",")]


MIGRATIONS: Final[dict[int, tuple[str, ...]]] = {}
"""Version -> statements that make its tables those of the next version. A version that has none here is set
aside, and read in again from the journals."""

Loaded = TypeVar("Loaded")


class _UnusableError(Exception):
    """A file that cannot be opened, or not be read whole."""

    def __init__(self, error: duckdb.Error, said: Said) -> None:
        super().__init__(str(error))
        self.error, self.said = error, said


@dataclass(frozen=True, slots=True)
class Opened(Generic[Loaded]):
    """A usable database."""

    connection: duckdb.DuckDBPyConnection
    loaded: Loaded
    """What `load` returned."""
    problem: str | None
    """Why the file that was there is not used any more, and where it is now; a sentence or two."""
    said: Said
    """What people had written into that file, as far as it could be read."""
    is_new: bool
    """Whether the database has just been made."""


def open_database(
    folder: Path,
    load: Callable[[duckdb.DuckDBPyConnection], Loaded],
    *,
    suspicion: str | None = None,
    is_certain: bool = False,
) -> Opened[Loaded]:
    """Open or create `folder/nanscope.duckdb`; a file that cannot be used is renamed, never deleted.

    Args:
        folder: Made if it does not exist, mode 0700.
        load: Reads what the store needs first; damage that it meets counts as damage of the file.
        suspicion: An error that the file has given: all of it is read, to see whether it is damaged.
        is_certain: It is damaged, whatever that reading finds.

    Raises:
        DashboardError: another process has the file open, or the folder cannot be used.
    """
    path = folder / FILE_NAME
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise DashboardError(
            f"cannot use the data folder {folder}: {error.strerror}; choose another with --data"
        ) from error
    try:
        if suspicion is not None:
            _examine(path, suspicion if is_certain else None)
        return _open(path, load)
    except _UnusableError as found:
        _raise_unless_damaged(path, found.error)
        problem, said = f"The data file could not be read ({first_line(found.error)}).", found.said
    aside = _set_aside(path, "damaged", numbered=True)
    try:
        opened = _open(path, load)
    except _UnusableError as found:
        _raise_unless_damaged(path, found.error)
        raise DashboardError(
            f"cannot make {path}: {first_line(found.error)}; choose another --data"
        ) from found
    problem = f"{problem} It was kept as {aside.name} and a new one was started."
    return Opened(opened.connection, opened.loaded, problem, said, is_new=True)


def _open(path: Path, load: Callable[[duckdb.DuckDBPyConnection], Loaded]) -> Opened[Loaded]:
    """Open, create, upgrade or, where its schema is another one, replace the file."""
    problem, said = None, Said()
    try:
        connection = _connect(path)
    except duckdb.Error as error:
        raise _UnusableError(error, Said(None, None)) from error
    try:
        version = _version(connection)
        if version is not None and version != SCHEMA_VERSION and not _upgraded(connection, version):
            said = read_said(connection)
            connection.close()
            aside = _set_aside(path, f"schema-{version}", numbered=False)
            problem = (
                f"The data file has another layout than this version of nanscope uses (schema {version}, not "
                f"{SCHEMA_VERSION}). It was kept as {aside.name} and a new one was started."
            )
            connection, version = _connect(path), None
        _create_missing(connection, is_new=version is None)
        return Opened(connection, load(connection), problem, said, is_new=version is None)
    except duckdb.Error as error:
        with contextlib.suppress(duckdb.Error):
            connection.execute("ROLLBACK")
        said = read_said(connection)
        connection.close()
        raise _UnusableError(error, said) from error


def _upgraded(connection: duckdb.DuckDBPyConnection, version: int) -> bool:
    """Bring an older file to this version, in one transaction; False where that cannot be done."""
    if version > SCHEMA_VERSION or any(step not in MIGRATIONS for step in range(version, SCHEMA_VERSION)):
        return False
    connection.execute("BEGIN")
    try:
        for step in range(version, SCHEMA_VERSION):
            for statement in MIGRATIONS[step]:
                connection.execute(statement)
        connection.execute("UPDATE meta SET version = ?", [SCHEMA_VERSION])
        connection.execute("COMMIT")
    except duckdb.Error as error:
        with contextlib.suppress(duckdb.Error):
            connection.execute("ROLLBACK")
        if is_about_room(error):
            raise  # the file stays as it is
        return False
    return True


def _examine(path: Path, certain: str | None) -> None:
    """Read every row of a file that nobody has open.

    Args:
        path: The file.
        certain: Why it is damaged, where that is known.

    Raises:
        _UnusableError: it is damaged.
    """
    try:
        connection = _connect(path)
    except duckdb.Error as error:
        raise _UnusableError(error, Said(None, None)) from error
    try:
        if certain is not None:
            raise _UnusableError(duckdb.IOException(certain), read_said(connection))
        read_everything(connection)
    except duckdb.Error as error:
        if not is_about_room(error):
            raise _UnusableError(error, read_said(connection)) from error
    finally:
        with contextlib.suppress(duckdb.Error):
            connection.close()


@contextlib.contextmanager
def opened_to_read(folder: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a store's file that nobody serves, changing nothing of it.

    Raises:
        DashboardError: it is open elsewhere, cannot be read, or has another layout.
    """
    path = folder / FILE_NAME
    try:
        connection = _connect(path, mode="READ_ONLY")
        try:
            if _version(connection) != SCHEMA_VERSION:
                raise DashboardError(f"{path} has another layout than this version of nanscope uses")
            yield connection
        finally:
            connection.close()
    except duckdb.Error as error:
        _raise_unless_damaged(path, error)
        raise DashboardError(
            f"{path} cannot be read: {first_line(error)}; `dashboard serve` sets a damaged file aside and "
            "reads in again what the journals still hold"
        ) from error


def _raise_unless_damaged(path: Path, error: duckdb.Error) -> None:
    """Raise for a lock, missing access or too little memory: they say nothing about the content."""
    text = str(error)
    if "lock on file" in text.lower():
        holder = re.search(r"PID (\d+)", text)
        who = f"process {holder.group(1)}" if holder else "another process"
        raise DashboardError(
            f"{path} is in use by {who}, probably another `dashboard serve`; stop that one, or choose "
            "another folder with --data"
        )
    if is_about_room(error):
        raise DashboardError(f"cannot use {path}: {first_line(error)}; free it or choose --data")


def _connect(
    path: Path, *, mode: Literal["READ_WRITE", "READ_ONLY"] = "READ_WRITE"
) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(
        ":memory:",
        config={
            "memory_limit": MEMORY_LIMIT,
            "threads": str(THREADS),
            "checkpoint_threshold": WAL_CHECKPOINT,
            "temp_directory": str(path.with_suffix(".tmp")),
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "max_vacuum_tasks": "0",
        },
    )
    quoted = str(path).replace("'", "''")
    try:
        connection.execute(f"ATTACH '{quoted}' AS {DATABASE} ({mode}, ROW_GROUP_SIZE {ROW_GROUP})")
        connection.execute(f"USE {DATABASE}")
    except duckdb.Error:
        connection.close()
        raise
    return connection


def open_cursor(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    """Return a connection of its own to the same database."""
    cursor = connection.cursor()
    cursor.execute(f"USE {DATABASE}")
    return cursor


def _version(connection: duckdb.DuckDBPyConnection) -> int | None:
    """Return the file's schema version: None when it is new, 0 when it is somebody else's database."""
    names = {
        row[0]
        for row in connection.execute(
            "SELECT table_name FROM duckdb_tables() WHERE database_name = current_database()"
        ).fetchall()
    }
    if not names:
        return None
    if "meta" not in names:
        return 0
    row = connection.execute("SELECT version FROM meta").fetchone()
    return int(row[0]) if row else 0


def _create_missing(connection: duckdb.DuckDBPyConnection, *, is_new: bool) -> None:
    """Make the tables that are not there: all in a new file, later additions in one of an earlier release."""
    connection.execute("BEGIN")
    for name, columns in TABLES.items():
        connection.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns})")
    if is_new:
        connection.execute("INSERT INTO meta VALUES (?, 0)", [SCHEMA_VERSION])
    connection.execute("COMMIT")


def _set_aside(path: Path, reason: str, *, numbered: bool) -> Path:
    """Rename the file and its write-ahead log to the first free name; return the file's."""
    plain = f"{path.name}.{reason}"
    names = ([] if numbered else [plain]) + [f"{plain}-{number}" for number in range(1, 10_000)]
    target = next(place for name in names if not (place := path.with_name(name)).exists())
    wal = path.with_name(path.name + ".wal")
    path.rename(target)
    if wal.exists():
        wal.rename(target.with_name(target.name + ".wal"))
    return target


def read_epoch(database: duckdb.DuckDBPyConnection) -> int:
    """Return the number of the last commit that this connection's transaction sees."""
    row = database.execute("SELECT epoch FROM meta").fetchone()
    return int(row[0]) if row else 0


def explain(what: str, error: Exception) -> str:
    """Return one sentence for a failed read or commit, with what happens where the file may be damaged."""
    then = (
        "; the data file seems to be damaged: it is examined, and replaced where that is so"
        if isinstance(error, duckdb.Error) and is_suspicious(error)
        else ""
    )
    return f"the store {what}: {first_line(error)}{then}"
