"""`Shard`: one of the servers of a store, and whether it answers; and which of them a rank lies on.

All that a stream says is written to one server, so that another that is away holds up nothing of it: a
rank's streams to the rank's server, a helper's to one that its name chooses.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from clickhouse_driver import errors as driver_errors

from probe.wire import StreamKey

from ...errors import DashboardError
from ..ingest import writer_of
from .connection import Connections, NotLeadingError, explained
from .schema import number_of
from .writer import Writer

CANNOT_READ: Final = "cannot be read"


class Shard:
    """A server; see the module.

    Args:
        number: Its place in the list of all.
        database: On it.
        writer: Writes there.
        is_alone: It is the only one, without replicas: it is asked each time, whether it has answered before
            or not.
    """

    def __init__(self, number: int, database: Connections, writer: Writer, *, is_alone: bool) -> None:
        self.number, self.database, self.writer = number, database, writer
        self._is_alone = is_alone
        self.seen_at = self.names_at = 0
        """Newest time, by the server's clock, of what was taken in: positions, and names."""
        self.following = threading.Lock()
        """While it is asked for names, and these are taken in; after the lock of commits."""
        self.owed: dict[str, int] = {}
        """Runs that are to be deleted there, too, and when that was: it did not answer."""
        self.away: str | None = None
        """What was said when it did not answer. It is left alone until the thread that follows it has had an
        answer: others would wait for seconds each time."""
        self.refused: str | None = None
        """Why its last commit failed."""
        self.behind: list[str] = []
        """What is to be said of its replicas."""
        self.commits = 0
        self.is_prepared = False
        """Its tables are there, and of this release."""

    @contextlib.contextmanager
    def asked(self, what: str = CANNOT_READ, *, is_tried: bool = False) -> Iterator[None]:
        """Say in one sentence what it has refused, or that it does not answer.

        Args:
            what: Of the store at its address.
            is_tried: It is asked though it was away.
        """
        if self.away is not None and not is_tried:
            raise DashboardError(self.away)
        try:
            with explained(self.database.address, what):
                yield
        except DashboardError as error:
            if not self._is_alone and _is_away(error):
                is_told = isinstance(error.__cause__, NotLeadingError)
                self.away = str(error) if is_told else f"the store at {self.database.address} does not answer"
            raise


def _is_away(error: DashboardError) -> bool:
    cause = error.__cause__
    return isinstance(cause, driver_errors.NetworkError | OSError | EOFError)


class Places:
    """Knows which server has what.

    A rank that a server has names of lies there, another where run and rank say: so servers may be added, and
    runs that an earlier release has put on one server as a whole are found there.

    Args:
        shards: All servers.
        rank_of: Returns run and rank of a timeline; None where there is none of that number.
    """

    def __init__(self, shards: Sequence[Shard], rank_of: Callable[[int], tuple[str, int] | None]) -> None:
        self.shards = tuple(shards)
        self._rank_of = rank_of
        self._known: dict[tuple[str, int], int] = {}
        self.is_even = False
        """Each rank lies where its number says: no server was added since the store was made."""

    def learn(self, run: str, rank: int, shard: Shard) -> None:
        """A server has a timeline of a rank."""
        self._known.setdefault((run, rank), shard.number)

    def forget(self, run: str) -> None:
        """A run was deleted."""
        self._known = {key: number for key, number in self._known.items() if key[0] != run}

    def of_rank(self, run: str, rank: int) -> Shard:
        """Return where a rank's timelines lie; ranks in turns, rank 0 where the run's id says."""
        known = self._known.get((run, rank))
        return self.shards[(number_of("run", run) + rank) % len(self.shards) if known is None else known]

    def of_stream(self, key: StreamKey) -> Shard:
        """Return where a stream is written."""
        writer = writer_of(key)
        if writer is not None:
            return self.of_rank(key.run, writer[0])
        return self.shards[number_of("writer", key.run, key.writer) % len(self.shards)]

    def of_run(self, run: str) -> Shard:
        """Return where it is written what people say of a run."""
        return self.shards[number_of("run", run) % len(self.shards)]

    def of_timeline(self, timeline: int) -> Shard:
        """Return where a timeline lies; any, of a run that is deleted."""
        owner = self._rank_of(timeline)
        return self.shards[0] if owner is None else self.of_rank(*owner)

    def split(self, timelines: Sequence[int]) -> dict[Shard, list[int]]:
        """Return which timelines each server has."""
        found: dict[Shard, list[int]] = {}
        for timeline in timelines:
            found.setdefault(self.of_timeline(timeline), []).append(timeline)
        return found
