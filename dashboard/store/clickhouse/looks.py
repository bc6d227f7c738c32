"""Which ranks pages show, of all dashboards that share a database: each writes its own and reads all.

A helper is connected to one dashboard, which asks it for a rank step by step; the page that shows the
rank may be another's. A row says when a rank was shown, by the server's clock.
"""

from __future__ import annotations

import time
from typing import Final

from ..protocol import Looks
from .said_rows import text
from .shards import Places, Shard

EVERY_S: Final = 2.0
"""Between two exchanges with a server: a read of a few rows."""
RENEWED_S: Final = 30.0
"""A rank that is shown all the time is written again after so long."""
KEPT_S: Final = 120
"""Older rows say nothing any more."""


class SharedLooks:
    """Exchanges them with each server, on the thread that follows it.

    Args:
        looks: Of this dashboard.
        places: A run's rows lie where it is written what people say of it.
    """

    def __init__(self, looks: Looks, places: Places) -> None:
        self._looks, self._places = looks, places
        self._next_s: dict[int, float] = {}
        """Server -> when it is its turn."""
        self._written_s: dict[int, dict[tuple[str, int], float]] = {}
        """Server -> what was written there, and when."""

    def exchange(self, shard: Shard) -> None:
        """Write what is new here, and take in what others have written, where it is time for that."""
        now = time.monotonic()
        if now < self._next_s.get(shard.number, now):
            return
        self._next_s[shard.number] = now + EVERY_S
        before = self._written_s.get(shard.number, {})
        known = {each: at for each, at in before.items() if now - at < RENEWED_S}
        shown = [each for each in self._looks.here(RENEWED_S) if self._places.of_run(each[0]) is shard]
        fresh = [each for each in shown if each not in known]
        shard.database.run_rows("looks", ("run", "rank"), fresh)
        self._written_s[shard.number] = known | dict.fromkeys(fresh, now)
        query = f"""SELECT run, rank, toUInt32(now()) - toUInt32(max(at)) FROM looks
            WHERE at >= now() - {KEPT_S} GROUP BY run, rank"""
        for run, rank, ago_s in shard.database.rows(query):
            self._looks.note_elsewhere(text(run), rank, float(ago_s))
