"""The delivery invariant: the one function that every delivery test asserts with, and its parts.

`written = stored + gaps + counted drops` for every stream, the same contents, nothing twice. *Written* is
what the journals say, read here by the public reader.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from dashboard.store.protocol import Store, StreamPosition
from probe.delivery.journal.journal_reader import Skipped, read_stream
from probe.delivery.journal.run_folders import list_writers
from probe.errors import WireError
from probe.wire import Event, Frame, HostSample, Record, RunStart, StreamKey, StreamName, decode_record

STREAMS: tuple[StreamName, ...] = ("events", "metrics", "host")


class Journals:
    """Everything that the journals of one run hold."""

    def __init__(self, spool: Path, run: str) -> None:
        self.records: dict[StreamKey, dict[int, Record]] = {}
        self.written: dict[StreamKey, int] = {}
        self.undecodable: Counter[StreamKey] = Counter()
        self.missing: Counter[StreamKey] = Counter()
        for folder in list_writers(spool / run):
            for stream in STREAMS:
                self._read(StreamKey(run=run, writer=folder.name, stream=stream), folder)

    def _read(self, key: StreamKey, folder: Path) -> None:
        holes: list[Skipped] = []
        records: dict[int, Record] = {}
        numbers = [0]
        for seq, data in read_stream(folder, key.stream, on_skip=holes.append):
            numbers.append(seq + 1)
            try:
                records[seq] = decode_record(data)
            except WireError:
                self.undecodable[key] += 1
        self.written[key] = max(numbers + [hole.end_seq for hole in holes])
        self.missing[key] = sum(hole.end_seq - hole.first_seq for hole in holes)
        self.records[key] = records

    def frames(self, rank: int) -> list[Frame]:
        """All frames of a rank, incarnation by incarnation."""
        return [
            record
            for key, records in self.records.items()
            if key.writer.startswith(f"{rank}-")
            for record in records.values()
            if isinstance(record, Frame)
        ]

    def events(self) -> dict[str, Event]:
        """The latest state of every event."""
        said = [
            record
            for records in self.records.values()
            for record in records.values()
            if isinstance(record, Event)
        ]
        # Of what ranks say of one event, the newest start's last word counts.
        said.sort(key=lambda event: event.incarnation)
        return {event.id: event for event in said}

    def ranks(self) -> set[int]:
        """Ranks that began."""
        return {
            record.rank
            for records in self.records.values()
            for record in records.values()
            if isinstance(record, RunStart)
        }

    def host_samples(self) -> list[HostSample]:
        """What the helpers observed."""
        return [r for records in self.records.values() for r in records.values() if isinstance(r, HostSample)]


def assert_accounts_balance(journals: Journals, positions: Sequence[StreamPosition]) -> None:
    """Per stream: all that was written is stored, a gap, or a counted drop; and each once."""
    accounts = {position.key: position for position in positions}
    assert len(accounts) == len(positions)
    for key, written in journals.written.items():
        if written == 0:
            continue
        account = accounts[key]
        assert account.stored + account.gaps + account.dropped == account.next_seq == written, key
        # What was stored before it was evicted is no gap, so the journal may miss more than the store.
        assert account.gaps <= journals.missing[key], key
        assert account.dropped >= journals.undecodable[key], key


def assert_delivered(spool: Path, run: str, store: Store) -> Journals:
    """Assert the invariant for a whole run, and that what the journals still hold is what the store shows.

    Frames of one rank must have distinct steps, and a `loss`.
    """
    journals = Journals(spool, run)
    assert journals.written
    assert_accounts_balance(journals, store.positions(run))
    assert {event.id: event for event in store.events(run)} == journals.events()
    for rank in journals.ranks():
        shown = store.scalars(run, rank, ["loss"], max_points=10**6)
        rows = list(zip(shown["step"].tolist(), shown["mean"].tolist(), strict=True))
        assert (shown["pooled"] == 1).all()
        assert len({step for step, _ in rows}) == len(rows)
        held = {frame.step: frame.scalars["loss"] for frame in journals.frames(rank)}
        stored = dict(rows)
        assert {step: stored.get(step) for step in held} == held
        if not journals.missing.total():
            assert stored.keys() == held.keys()
    return journals
