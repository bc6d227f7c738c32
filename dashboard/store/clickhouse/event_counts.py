"""How many events each run has, of several servers: counted there, but for those that others speak of.

A rank's own words lie on its server alone, and no other start has the same event: its id is made of rank and
start. A helper, or a dashboard that sees several ranks, may speak of it elsewhere: these words are fetched,
and with them what the ranks' servers know of those events. In a store that servers were added to a rank's
own words may lie on two; there all words are fetched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from .connection import Connections
from .said_rows import of_all_runs, text

MOST_IDS: Final = 8000
"""Of events in a statement, whose text may have 256 KiB; of more, all words are fetched."""
_OWN: Final = "writer = concat(toString(rank), '-', toString(incarnation))"
"""The row is of the rank's own stream."""
_COLUMNS: Final = "id, incarnation, severity, rank, writer"


class Said(NamedTuple):
    """What was said of an event: that of the newest start, of it the newest, counts."""

    incarnation: int
    version: int
    severity: str


Words = tuple[str, str, Said]
"""Run, id, and what was said."""
Count = tuple[str, str, int]
"""Run, severity, and how many."""


def all_words(database: Connections) -> list[Words]:
    """Return all that was said of events."""
    return _words(database, "1")


def words_of_others(database: Connections) -> list[Words]:
    """Return what was said of events by others than their ranks."""
    return _words(database, f"NOT ({_OWN})")


def count_own(database: Connections, ids: Collection[str]) -> tuple[list[Count], list[Words]]:
    """Count the events that ranks here have spoken of; return words instead of those of some ids."""
    named = "id IN %(ids)s" if ids else "0"
    query = f"""SELECT run, if({named}, id, '') AS which, severity, count(), max(incarnation), max(version)
        FROM {of_all_runs("events", _COLUMNS)} AND {_OWN} GROUP BY run, which, severity"""
    counts: list[Count] = []
    words: list[Words] = []
    for run, number, severity, count, incarnation, version in database.rows(
        query, {"ids": tuple(ids)} if ids else None
    ):
        if number:
            words.append((text(run), text(number), Said(incarnation, version, text(severity))))
        else:
            counts.append((text(run), text(severity), count))
    return counts, words


def _words(database: Connections, condition: str) -> list[Words]:
    query = f"""SELECT run, id, incarnation, version, severity FROM {of_all_runs("events", _COLUMNS)}
        AND {condition}"""
    return [
        (text(run), text(number), Said(incarnation, version, text(severity)))
        for run, number, incarnation, version, severity in database.rows(query)
    ]


def add_up(counts: Iterable[Count], words: Iterable[Words]) -> list[Count]:
    """Return the counts of all events: those counted before, and each that there are words of once."""
    newest: dict[tuple[str, str], Said] = {}
    for run, number, said in words:
        newest[run, number] = max(newest.get((run, number), said), said)
    found = Counter((run, said.severity) for (run, _), said in newest.items())
    for run, severity, count in counts:
        found[run, severity] += count
    return [(run, severity, count) for (run, severity), count in found.items()]
