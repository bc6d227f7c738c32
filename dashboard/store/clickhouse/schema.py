"""Tables of a ClickHouse database, and the numbers that all collectors give alike.

Everything may be written again: rows of one key are one row, that which knows most: a collector that is
behind may write last. One run is one
partition, of raw rows one for each `BLOCK_STEPS` steps: what is old, or deleted, goes with its partition.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from typing import Final

from clickhouse_driver.errors import ServerException

from ...errors import DashboardError
from .connection import Connections

SCHEMA_VERSION: Final = 2
BLOCK_STEPS = 8192
"""Of the tables of this release; tests make tables of smaller blocks."""
GONE: Final = 9
"""Kind of a noted range that is none any more; see `rows.WHOLE` for the others."""
_KEY: Final = "run Int64, timeline Int64"
_RAW_TENSOR: Final = (
    f"{_KEY}, series Int64, step Int64, incarnation Int64, seq Int64, data String, flags String",
    "ReplacingMergeTree(seq) PARTITION BY (run, intDiv(step, BLOCK_STEPS)) "
    "ORDER BY (timeline, series, step, incarnation) SETTINGS index_granularity = 64",
)
_KEPT_TENSOR: Final = (
    _RAW_TENSOR[0],
    "ReplacingMergeTree(seq) PARTITION BY run ORDER BY (timeline, series, step, incarnation) "
    "SETTINGS index_granularity = 64",
)
_RAW_SCALAR: Final = (
    f"{_KEY}, series Int64, step Int64, incarnation Int64, seq Int64, time Float64, value Float64"
)
_POOLED_TENSOR: Final = (
    f"{_KEY}, level Int64, series Int64, step Int64, version Int64, data String, flags String",
    "ReplacingMergeTree(version) PARTITION BY run ORDER BY (timeline, series, level, step) "
    "SETTINGS index_granularity = 64",
)
_NAMED: Final = "version Int64, at DateTime DEFAULT now()"
"""Of tables of names: when a row was written, by the writer's clock in ns, and by the server's in seconds."""
TABLES: Final[dict[str, tuple[str, str]]] = {
    "meta": ("name String, value Int64, version Int64", "ReplacingMergeTree(version) ORDER BY name"),
    "streams": (
        """run String, writer String, stream String, next_seq Int64, stored Int64, gaps Int64, dropped Int64,
        written Int64, at DateTime DEFAULT now()""",
        "ReplacingMergeTree(next_seq) ORDER BY (run, writer, stream)",
    ),
    "incarnations": (
        f"run String, rank Int64, incarnation Int64, start String, state String, part String, "
        f"known Int64, {_NAMED}",
        "ReplacingMergeTree(known) ORDER BY (run, rank, incarnation, part)",
    ),
    "layouts": (
        f"run String, rank Int64, incarnation Int64, number Int64, timeline Int64, data String, {_NAMED}",
        "ReplacingMergeTree(version) ORDER BY (run, rank, incarnation, number) "
        "SETTINGS index_granularity = 64",
    ),
    "timelines": (
        f"timeline Int64, run String, rank Int64, digest String, {_NAMED}",
        "ReplacingMergeTree(version) ORDER BY (run, timeline)",
    ),
    "series": (
        f"run String, series Int64, timeline Int64, kind String, name String, {_NAMED}",
        "ReplacingMergeTree(version) ORDER BY (run, timeline, series)",
    ),
    "gaps": (
        f"""run String, writer String, source String, first_seq Int64, end_seq Int64, reason String,
        first_step Int64, last_step Int64, known Int64, {_NAMED}""",
        "ReplacingMergeTree(known) ORDER BY (run, writer, source, first_seq)",
    ),
    "gone_runs": (f"run String, {_NAMED}", "ReplacingMergeTree(version) ORDER BY run"),
    "events": (
        f"""run String, id String, writer String, seq Int64, rank Int64, incarnation Int64, step Int64,
        severity String, data String, {_NAMED}""",
        "ReplacingMergeTree(seq) ORDER BY (run, id, writer) SETTINGS index_granularity = 64",
    ),
    "documents": (
        f"""run String, rank Int64, incarnation Int64, kind String, key String, step Int64, time Float64,
        data String, seq Int64, {_NAMED}""",
        "ReplacingMergeTree(seq) ORDER BY (run, kind, rank, incarnation, key) "
        "SETTINGS index_granularity = 64",
    ),
    "host_samples": (
        f"run String, rank Int64, incarnation Int64, time Float64, data String, {_NAMED}",
        "ReplacingMergeTree(version) ORDER BY (run, rank, incarnation, time)",
    ),
    "marks": (
        f"run String, note String, starred UInt8, {_NAMED}",
        "ReplacingMergeTree(version) ORDER BY run",
    ),
    "notes": (
        f"run String, id String, step Int64, text String, time Float64, gone UInt8, {_NAMED}",
        "ReplacingMergeTree(version) ORDER BY (run, id)",
    ),
    "looks": (
        "run String, rank Int64, at DateTime DEFAULT now()",
        "ReplacingMergeTree(at) ORDER BY (run, rank)",
    ),
    "frames": (
        f"{_KEY}, step Int64, incarnation Int64, seq Int64",
        "ReplacingMergeTree() PARTITION BY run ORDER BY (timeline, step, incarnation, seq)",
    ),
    "progress": (
        f"{_KEY}, first_step Int64, max_step Int64",
        "ReplacingMergeTree(max_step) PARTITION BY run ORDER BY timeline",
    ),
    "floors": (
        f"{_KEY}, raw_floor Int64",
        "ReplacingMergeTree(raw_floor) PARTITION BY run ORDER BY timeline",
    ),
    "kept": (
        f"{_KEY}, first_step Int64, end_step Int64, kind Int64, version Int64",
        "ReplacingMergeTree(version) PARTITION BY run ORDER BY (timeline, first_step, end_step)",
    ),
    "scalar_raw": (
        _RAW_SCALAR,
        "ReplacingMergeTree(seq) PARTITION BY (run, intDiv(step, BLOCK_STEPS)) "
        "ORDER BY (timeline, step, series, incarnation)",
    ),
    "scalar_pooled": (
        f"""{_KEY}, level Int64, series Int64, step Int64, version Int64, first Int64, time Float64,
        least Float64, mean Float64, most Float64, finite Int64, nans Int64, infs Int64, pooled Int64""",
        "ReplacingMergeTree(version) PARTITION BY run ORDER BY (timeline, level, series, step)",
    ),
    "layer_raw": _RAW_TENSOR,
    "parameter_raw": _RAW_TENSOR,
    "module_raw": _RAW_TENSOR,
    "scalar_kept": (
        _RAW_SCALAR,
        "ReplacingMergeTree(seq) PARTITION BY run ORDER BY (timeline, step, series, incarnation)",
    ),
    "layer_kept": _KEPT_TENSOR,
    "parameter_kept": _KEPT_TENSOR,
    "module_kept": _KEPT_TENSOR,
    "layer_pooled": _POOLED_TENSOR,
    "parameter_pooled": _POOLED_TENSOR,
    "module_pooled": _POOLED_TENSOR,
    "histograms": (
        f"{_KEY}, series Int64, step Int64, incarnation Int64, seq Int64, data String",
        "ReplacingMergeTree() PARTITION BY run ORDER BY (series, incarnation, seq) "
        "SETTINGS index_granularity = 64",
    ),
}
"""Table -> columns, and how it is kept. A *timeline* is one rank's scalars, or one layout's tensors."""
OF_RUNS: Final = tuple(name for name, (columns, _) in TABLES.items() if columns.startswith(_KEY))
"""Tables whose rows go with their partition."""


@dataclass(frozen=True, slots=True)
class Added:
    """A column that a later version has: 18.16 has no ADD COLUMN IF NOT EXISTS."""

    table: str
    name: str
    form: str
    """Type, and default."""


MIGRATIONS: Final[dict[int, tuple[Added | str, ...]]] = {1: ()}
"""Version -> steps that make its tables those of the next version; each may be repeated, by several processes
at once.

1: A run was whole on the server that its id chooses; since 2 its ranks lie on all of them in turns. What is
there stays where it is (`shards.Places`); a release that looks for it there alone must not write any more.
"""


def create_tables(database: Connections, *, place: int = 0) -> int | None:
    """Make what is missing, and bring tables of an earlier release to this version.

    Args:
        database: On one of the servers of a store.
        place: Which of them it is.

    Returns:
        What `note_servers` has noted; None where nothing has, as where all tables are new.

    Raises:
        DashboardError: they are of a later release, or were another server's.
    """
    there = database.tables()
    known = _read_notes(database) if "meta" in there else {}
    # Without a version it is being made just now, or a process of any release has ended while it was.
    version = known.get("schema", database.oldest_schema if there else SCHEMA_VERSION)
    if version > SCHEMA_VERSION or any(step not in MIGRATIONS for step in range(version, SCHEMA_VERSION)):
        raise DashboardError(
            f"the store at {database.address} has tables of schema {version}, this release knows "
            f"{SCHEMA_VERSION}: use the release that made them, or another database"
        )
    if known.get("place", place) != place:
        raise DashboardError(
            f"the store at {database.address} was number {known['place'] + 1} in the list of servers, and is "
            f"{place + 1} now: keep their order, and add new ones at the end"
        )
    create_missing(database)
    for number in range(version, SCHEMA_VERSION):
        for step in MIGRATIONS[number]:
            _migrate(database, step)
        _note(database, "schema", number + 1)
    if "schema" not in known:
        _note(database, "schema", SCHEMA_VERSION)
    if "place" not in known:
        _note(database, "place", place)
    is_new = not there or (database.is_replicated and not known)
    return known.get("servers", None if is_new else 0)


def create_missing(database: Connections) -> None:
    """Make what tables are missing, and the database."""
    missing = TABLES.keys() - database.tables()
    if missing:
        database.create_database()
    for name, (columns, engine) in TABLES.items():
        if name in missing:
            engine = database.engine(name, engine.replace("BLOCK_STEPS", str(BLOCK_STEPS)))
            database.run(f"CREATE TABLE IF NOT EXISTS {name} ({columns}) ENGINE = {engine}")


def note_servers(database: Connections, number: int) -> None:
    """Note how many servers the store has had since it was made; 0 where that has changed.

    Until it does, each rank lies where its number says, and nobody has to ask all servers where that is.
    """
    row = ("servers", number, now_ns())
    database.run_rows("meta", ("name", "value", "version"), [row])


def _read_notes(database: Connections) -> dict[str, int]:
    found = database.rows("SELECT name, value FROM meta ORDER BY version")
    return {name.decode(): value for name, value in found}


def _migrate(database: Connections, step: Added | str) -> None:
    if isinstance(step, str):
        database.run(step)
    elif not _has(database, step):
        try:
            database.run(f"ALTER TABLE {step.table} ADD COLUMN {step.name} {step.form}")
        except ServerException:
            if not _has(database, step):  # another process has added it meanwhile
                raise


def _has(database: Connections, column: Added) -> bool:
    query = """SELECT count() FROM system.columns WHERE database = %(database)s AND table = %(table)s
        AND name = %(name)s"""
    values = {"database": database.address.database, "table": column.table, "name": column.name}
    return bool(database.rows(query, values)[0][0])


def _note(database: Connections, name: str, value: int) -> None:
    database.run_rows("meta", ("name", "value", "version"), [(name, value, value)])


def number_of(*parts: object) -> int:
    """Return 63 bits of a hash: the same in every process, so that collectors share no counter."""
    text = "\0".join(part.hex() if isinstance(part, bytes) else str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


class HashedNumbers:
    """Numbers of timelines and series; see `catalog.Numbers`."""

    def of_timeline(self, run: str, rank: int, digest: bytes) -> int:
        """See `Numbers.of_timeline`."""
        return number_of("timeline", run, rank, digest)

    def of_series(self, timeline: int, kind: str, name: str) -> int:
        """See `Numbers.of_series`."""
        return number_of("series", timeline, kind, name)


def now_ns() -> int:
    """Return a version for a row that is written now."""
    return time.time_ns()
