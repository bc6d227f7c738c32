"""Removes what nobody sees any more: all that is left of deleted runs, old histograms, and old looks.

A rule that any process applies again and again: who deletes a run does it for that run at once, and each
process looks now and then for what others have left, for they were killed, or a server has parts again that
were dropped shortly before. Partitions are dropped, single rows go by `ALTER TABLE ... DELETE`, which the
server does later, by itself. Only rows go that no read has shown before, so a repetition changes nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from clickhouse_driver.errors import ServerException

from ..histograms import KEPT
from .connection import Connections, first_line
from .looks import KEPT_S
from .said_rows import text
from .schema import OF_RUNS, number_of

FIRST_S = 30.0
"""After its start a process looks for what is left over for the first time."""
EVERY_S = 300.0
"""Between two looks at a server."""
GRACE_S = 60
"""A run that was deleted since is left to who has deleted it: others may still be taking in its names."""
NAMED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("incarnations", "layouts", "timelines", "series", "gaps", "events"), "version"),
    **dict.fromkeys(("documents", "host_samples", "marks", "notes"), "version"),
    "streams": "written",
}
"""Table of names -> its column that says when a row was written, by the writer's clock in ns."""
SPARE: Final = 16
"""Histograms beyond the newest `KEPT` that stay: a read may have chosen them just before newer ones came."""
MOST_LOOKS = 1000
"""Old rows of `looks` that are not worth a statement yet."""
_MOST_RUNS: Final = 50
"""In the condition of a statement: of 1,000 ORs 18.16 takes seconds to understand them."""
_MOST_SERIES: Final = 1000
"""In a statement, whose text may have 256 KiB."""
_log = logging.getLogger(__name__)


class Leftovers:
    """Looks for them on one server, on the thread that follows it.

    Args:
        database: On the server.
    """

    def __init__(self, database: Connections) -> None:
        self._database = database
        self._next_s = time.monotonic() + FIRST_S

    def remove(self) -> None:
        """Remove what there is, where it is time for that; what the server refuses is tried again."""
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + EVERY_S
        try:
            gone = gone_runs(self._database, before_s=GRACE_S)
            remove_deleted(self._database, gone)
            remove_histograms(self._database)
            remove_looks(self._database)
        except ServerException as error:
            _log.warning(
                "The store at %s has not removed what is left over: %s",
                self._database.address,
                first_line(error),
            )


def gone_runs(database: Connections, *, before_s: int = 0) -> dict[str, int]:
    """Return the runs that were deleted, by anybody, so many seconds ago or more, and when."""
    query = f"""SELECT run, max(version) FROM gone_runs GROUP BY run
        HAVING max(at) <= toDateTime(toUInt32(now()) - {before_s})"""
    return {text(run): version for run, version in database.rows(query)}


def remove_deleted(database: Connections, gone: Mapping[str, int], *, is_new: bool = False) -> None:
    """Remove all rows of deleted runs that were written before.

    Names go at once, too: a stream's row that counts more would hide what its writer sends from the start.

    Args:
        database: On a server that knows of the deletions.
        gone: Runs, and when they were deleted.
        is_new: Nobody else can be at it already.
    """
    if not gone:
        return
    database.secure(("gone_runs",))
    drop_partitions(database, gone)
    busy = set() if is_new else _being_changed(database)
    for table in NAMED.keys() - busy:
        for condition, values in _conditions(_with_names(database, table, gone), NAMED[table], "<="):
            database.run(f"ALTER TABLE {table} DELETE WHERE {condition}", values)


def drop_partitions(database: Connections, gone: Mapping[str, int]) -> None:
    """Drop the partitions of deleted runs.

    Not of those that have come back, whose timelines are written before their rows: these would go, too.
    """
    numbers = {number_of("run", run): run for run in gone}
    query = "SELECT DISTINCT table, partition FROM system.parts WHERE active AND database = %(database)s"
    found: list[tuple[str, str, str]] = []
    for name, partition in database.rows(query, {"database": database.address.database}):
        table, place = text(name), text(partition)
        if table in OF_RUNS and (run := numbers.get(int(place.strip("()").split(",")[0]))) is not None:
            found.append((run, table, place))
    back = _come_back(database, {run: gone[run] for run, _, _ in found})
    for run, table, place in found:
        if run not in back:
            database.run(f"ALTER TABLE {table} DROP PARTITION {place}")


def _come_back(database: Connections, gone: Mapping[str, int]) -> set[str]:
    """Return the runs that have timelines of a start after their deletion."""
    return {
        text(run)
        for condition, values in _conditions(gone, "version", ">")
        for (run,) in database.rows(f"SELECT DISTINCT run FROM timelines WHERE {condition}", values)
    }


def _with_names(database: Connections, table: str, gone: Mapping[str, int]) -> dict[str, int]:
    """Return those of the runs that have rows in a table of names from before their deletion."""
    written = NAMED[table]
    if len(gone) == 1:  # by the key; with hundreds of runs in a condition 18.16 takes 0.2 s for it
        ((condition, values),) = _conditions(gone, written, "<=")
        return dict(gone) if database.rows(f"SELECT 1 FROM {table} WHERE {condition} LIMIT 1", values) else {}
    found = database.rows(f"SELECT run, min({written}) FROM {table} GROUP BY run")
    oldest = {text(run): version for run, version in found}
    return {run: at for run, at in gone.items() if oldest.get(run, at + 1) <= at}


def _conditions(gone: Mapping[str, int], written: str, relation: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield conditions for rows of runs before or after their deletion, and the values in them."""
    runs = list(gone.items())
    for start in range(0, len(runs), _MOST_RUNS):
        chosen = runs[start : start + _MOST_RUNS]
        parts = [
            f"(run = %(run{number})s AND {written} {relation} {at})" for number, (_, at) in enumerate(chosen)
        ]
        yield " OR ".join(parts), {f"run{number}": run for number, (run, _) in enumerate(chosen)}


def _being_changed(database: Connections) -> set[str]:
    """Return the tables in which an earlier deletion is not done yet, by whichever process."""
    query = "SELECT DISTINCT table FROM system.mutations WHERE database = %(database)s AND NOT is_done"
    return {text(row[0]) for row in database.rows(query, {"database": database.address.database})}


def remove_histograms(database: Connections) -> None:
    """Remove those that newer ones hide, of runs in which a series has twice as many as are shown."""
    query = f"""SELECT DISTINCT run FROM (SELECT run, series FROM histograms GROUP BY run, series
        HAVING uniqExact(incarnation, seq) > {2 * KEPT}) AS full_series"""
    runs = [row[0] for row in database.rows(query)]
    if not runs or "histograms" in _being_changed(database):
        return
    database.secure(("histograms",))
    for run in runs:
        for condition in _older_histograms(_last_kept(database, run)):
            database.run(f"ALTER TABLE histograms DELETE WHERE run = {run} AND {condition}")


def _last_kept(database: Connections, run: int) -> list[tuple[int, int, int]]:
    """Return series, and start and number of the oldest histogram that stays of it."""
    stay = KEPT + SPARE
    query = f"""SELECT series, argMin(incarnation, (incarnation, seq)), argMin(seq, (incarnation, seq)) FROM
        (SELECT series, incarnation, seq FROM histograms WHERE run = {run} GROUP BY series, incarnation, seq
        ORDER BY incarnation DESC, seq DESC LIMIT {stay} BY series) AS newest
        GROUP BY series HAVING count() = {stay}"""
    return [(series, incarnation, seq) for series, incarnation, seq in database.rows(query)]


def _older_histograms(last: Sequence[tuple[int, int, int]]) -> Iterator[str]:
    for start in range(0, len(last), _MOST_SERIES):
        chosen = last[start : start + _MOST_SERIES]
        lists = [", ".join(map(str, column)) for column in zip(*chosen, strict=True)]
        series, incarnation, seq = (f"CAST([{numbers}] AS Array(Int64))" for numbers in lists)
        newest = f"transform(series, {series}, {incarnation}, toInt64(0))"
        number = f"transform(series, {series}, {seq}, toInt64(0))"
        older = f"incarnation < {newest} OR (incarnation = {newest} AND seq < {number})"
        yield f"series IN ({lists[0]}) AND ({older})"


def remove_looks(database: Connections) -> None:
    """Remove rows of `looks` that say nothing any more, where there are many."""
    ((limit,),) = database.rows(f"SELECT toUInt32(now()) - {KEPT_S}")
    old = f"at < toDateTime({limit})"
    if database.rows(f"SELECT count() FROM looks WHERE {old}")[0][0] > MOST_LOOKS and (
        "looks" not in _being_changed(database)
    ):
        database.run(f"ALTER TABLE looks DELETE WHERE {old}")
