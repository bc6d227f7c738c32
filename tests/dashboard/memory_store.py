"""The receiving half of the `Store` protocol in memory, record by record: what collector tests look into."""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Collection

from dashboard.errors import DashboardError
from dashboard.store.protocol import StreamPosition
from probe.errors import WireError
from probe.wire import StreamKey, decode_record


class MemoryStore:
    """Keeps the bytes of every record; `lose_uncommitted` is what a kill does, `refuse` a full disk."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.records: dict[StreamKey, dict[int, bytes]] = defaultdict(dict)
        self.gaps: dict[StreamKey, int] = defaultdict(int)
        self.dropped: dict[StreamKey, int] = defaultdict(int)
        self.queued: dict[StreamKey, int] = {}
        self.durable: dict[StreamKey, int] = {}
        self.commits = 0
        self.refuse = False
        self.away: set[StreamKey] = set()
        """Streams of a server that does not answer."""
        self.put_off = 0
        """Commits that do nothing, as those of a store that spares its server."""
        self.most_bytes = math.inf
        """What may wait for a commit; more is not taken, as by a real store."""
        self.waiting_bytes = 0
        self.may_commit = threading.Event()
        """Until then a commit waits, as for a server that is slow."""
        self.may_commit.set()

    def refuses(self, key: StreamKey) -> str | None:
        return None

    def position(self, key: StreamKey) -> StreamPosition:
        if key in self.away:
            raise DashboardError("the server of this stream does not answer")
        with self.lock:
            return StreamPosition(
                key=key,
                next_seq=self.durable.get(key, 0),
                stored=len(self.records[key]),
                gaps=self.gaps[key],
                dropped=self.dropped[key],
            )

    def next_seqs(self, keys: Collection[StreamKey]) -> dict[StreamKey, int]:
        return {key: self.position(key).next_seq for key in keys if key not in self.away}

    def positions(self, run: str) -> list[StreamPosition]:
        return [self.position(key) for key in list(self.durable) if key.run == run]

    def generation(self) -> int:
        return 0

    def append(
        self, key: StreamKey, first_seq: int, records: list[bytes], *, generation: int | None = None
    ) -> int:
        with self.lock:
            expected = self.queued.get(key, 0)
            size = sum(map(len, records))
            if first_seq > expected or self.waiting_bytes + size > self.most_bytes:
                return expected
            self.waiting_bytes += size
            for seq, record in enumerate(records, start=first_seq):
                if seq >= expected:
                    try:
                        decode_record(record)
                        self.records[key][seq] = record
                    except WireError:
                        self.dropped[key] += 1
            self.queued[key] = max(expected, first_seq + len(records))
            return self.queued[key]

    def skip(self, key: StreamKey, first_seq: int, end_seq: int, reason: str) -> int:
        with self.lock:
            expected = self.queued.get(key, 0)
            if first_seq <= expected < end_seq:
                self.gaps[key] += end_seq - expected
                self.queued[key] = end_seq
            return self.queued.get(key, 0)

    def commit(self) -> dict[StreamKey, int]:
        if self.refuse:
            raise DashboardError("the disk is full")
        if self.put_off:
            self.put_off -= 1
            return {}
        with self.lock:
            self.waiting_bytes = 0
        assert self.may_commit.wait(20)
        with self.lock:
            self.commits += 1
            moved = {
                key: seq
                for key, seq in self.queued.items()
                if self.durable.get(key, 0) != seq and key not in self.away
            }
            self.durable.update(moved)
            return moved
