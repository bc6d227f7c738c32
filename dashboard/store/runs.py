"""Runs, ranks, events and gaps: the small reads.

Called by `DuckStore`, on any thread: with a snapshot, or under the store's lock where a catalogue is given.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Final

from probe.errors import WireError
from probe.wire import SEVERITIES, Event, StreamKey, decode_record, member_number

from .catalog import Catalog
from .edge import GapRow
from .incarnation import Incarnation
from .ingest import writer_of
from .odd_rows import OddRows
from .protocol import GapRange, RankStart, RunSummary
from .pyramid import Ranges, join_ranges, uncovered
from .queries import Snapshot

LATEST_S: Final = 1e10
"""Year 2286: a later time, or none that is a number, would turn the order of all runs around."""


def read_events(snapshot: Snapshot, run: str, *, odd: OddRows, event_id: str | None = None) -> list[Event]:
    """Return a run's events in their latest state, by step, then time; only the one of an id if given.

    What does not decode is left out, and noted.
    """
    latest: dict[str, Event] = {}
    for number, data in snapshot.rows.events(run, event_id):
        try:
            record = decode_record(data or b"")
        except WireError:
            record = None
        if isinstance(record, Event):
            latest[number] = record
        else:
            odd.add("events", str(number))
    for item in snapshot.edge:
        for event, _ in item.events:
            if event.run == run and event_id in (None, event.id):
                latest[event.id] = event
    return sorted(latest.values(), key=lambda event: (event.step, event.time, event.id))


def run_of_event(snapshot: Snapshot, event_id: str) -> str | None:
    """Return the run of an event by its id alone, which no two runs share."""
    edge = (event.run for item in snapshot.edge for event, _ in item.events if event.id == event_id)
    found = snapshot.rows.run_of_event(event_id)
    return next(edge, None) if found is None else found


class EventCounts:
    """Counts events again only where there are others than at the last time."""

    def __init__(self) -> None:
        self._kept: tuple[int, dict[str, dict[str, int]]] = (-1, {})

    def read(self, snapshot: Snapshot) -> dict[str, dict[str, int]]:
        """Return what `count_events` does, not to be changed; on any thread."""
        mark, counts = self._kept
        if mark != snapshot.events_mark:
            counts = count_events(snapshot)
            self._kept = (snapshot.events_mark, counts)
        return counts


def count_events(snapshot: Snapshot) -> dict[str, dict[str, int]]:
    """Return run -> severity -> number of events."""
    pending = {(event.run, event.id): event.severity for item in snapshot.edge for event, _ in item.events}
    counts: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(SEVERITIES, 0))
    for run, severity, count in snapshot.rows.event_counts():
        counts[run][severity] += count
    for (run, number), severity in pending.items():
        for old in snapshot.rows.severities(run, number):
            counts[run][old] -= 1
        counts[run][severity] += 1
    return counts


def with_counts(listed: list[RunSummary], counts: dict[str, dict[str, int]]) -> list[RunSummary]:
    """Return the runs with their numbers of events."""
    return [
        replace(each, event_counts=dict(counts[each.run])) if each.run in counts else each for each in listed
    ]


def summarise(catalog: Catalog, now: float) -> list[RunSummary]:
    """Return all runs, newest first, as if they had no events."""
    newest: dict[str, dict[int, Incarnation]] = defaultdict(dict)
    first_start: dict[str, float] = {}
    for entry in catalog.incarnations.values():
        started = _started(entry)
        first_start[entry.run] = min(started, first_start.get(entry.run, started))
        known = newest[entry.run].get(entry.rank)
        if known is None or entry.number > known.number:
            newest[entry.run][entry.rank] = entry
    result = []
    starts = {run: ranks[min(ranks)].description() for run, ranks in newest.items()}
    shared = {start.run for start in starts.values() if start.member}
    for run, ranks in newest.items():
        start = starts[run]
        member = member_number(start.member) if start.run in shared else None
        name = start.name or start.run
        result.append(
            RunSummary(
                run=run,
                name=name if member is None else f"{name} (model {member + 1})",
                member=member,
                start=start,
                started=first_start[run],
                ranks=tuple(ranks[rank].summary(now) for rank in sorted(ranks)),
                event_counts=dict.fromkeys(SEVERITIES, 0),
            )
        )
    return sorted(result, key=lambda summary: (summary.started, summary.run), reverse=True)


def _started(entry: Incarnation) -> float:
    """Return when it started, UNIX seconds: what the record says, unless no clock has such a time."""
    said = entry.description().time
    return said if 0 <= said < LATEST_S else entry.number / 1e9


def list_starts(catalog: Catalog, run: str, rank: int) -> list[RankStart]:
    """Return the incarnations of a rank that have a step, oldest first."""
    return [
        RankStart(
            incarnation=entry.number,
            time=entry.description().time,
            first_step=entry.state.first_step,
            last_step=entry.state.last_step,
            returns=tuple(entry.state.returns),
        )
        for entry in sorted(catalog.starts_of(run, rank), key=lambda entry: entry.number)
        if entry.state.last_step is not None
    ]


def note_skip(catalog: Catalog, key: StreamKey, *, first_seq: int, end_seq: int, reason: str) -> None:
    """Remember a hole of a trainer's metrics, or of their detail, with the step before it."""
    writer = writer_of(key)
    if key.stream not in ("metrics", "detail") or writer is None:
        return
    # Detail is told of the run, whichever of its models it is of.
    entry = catalog.incarnations.get((key.run, *writer))
    if entry is not None and key.stream == "metrics":
        entry = catalog.newest_framed(entry)
    reached = entry.state.last_step if entry else None
    row = GapRow(
        run=entry.run if entry else key.run,
        writer=key.writer,
        source="skip" if key.stream == "metrics" else "detail",
        first_seq=first_seq,
        end_seq=end_seq,
        reason=reason,
        # Detail comes later than the metrics: where its hole begins is not known.
        first_step=reached if key.stream == "metrics" else None,
        last_step=None if key.stream == "metrics" else reached,
    )
    catalog.gaps.add(row)


def list_gaps(catalog: Catalog, run: str, *, rank: int | None) -> list[GapRange]:
    """Return the holes that the streams have skipped, and those announced and not yet reached."""
    result = []
    for row in catalog.gaps.rows():
        key = StreamKey(run=row.run, writer=row.writer, stream="metrics")
        writer = writer_of(key)
        if row.run != run or writer is None or rank not in (None, writer[0]):
            continue
        first = row.first_seq
        if row.source == "journal":
            stream = catalog.streams.get(key)
            first = max(first, stream.next_seq if stream else 0)
        if row.source == "layout":
            result.append(_partial(row, writer[0], _UNNAMED))
        elif row.source == "detail":
            # What is missing of the metrics, too, has a gap of its own.
            for low, end in uncovered(_skipped(catalog, row), row.first_seq, row.end_seq):
                part = replace(row, first_seq=low, end_seq=end)
                result.append(_partial(part, writer[0], f"without detail ({row.reason}). {_IS_THERE}"))
        elif first < row.end_seq:
            reason = _announced(catalog, row) or row.reason
            result.append(
                GapRange(
                    rank=writer[0],
                    first_step=row.first_step,
                    last_step=row.last_step,
                    count=row.end_seq - first,
                    reason=reason,
                )
            )
    return sorted(result, key=lambda gap: (gap.rank, gap.first_step or 0))


def _skipped(catalog: Catalog, row: GapRow) -> Ranges:
    """Return the numbers of a writer's metrics that have been skipped."""
    gaps = catalog.gaps.rows()
    return join_ranges(
        sorted(
            (one.first_seq, one.end_seq)
            for one in gaps
            if (one.run, one.writer, one.source) == (row.run, row.writer, "skip")
        )
    )


_IS_THERE: Final = "Loss, norms and times are there, what was measured of each parameter is not"
_UNNAMED: Final = f"without the names of their parameters: the record that names them is missing. {_IS_THERE}"


def _partial(row: GapRow, rank: int, what: str) -> GapRange:
    count = row.end_seq - row.first_seq
    steps = "1 step" if count == 1 else f"{count:,} steps"
    return GapRange(
        rank=rank,
        first_step=row.first_step,
        last_step=row.last_step,
        count=count,
        reason=f"{steps} {what}",
        is_partial=True,
    )


def _announced(catalog: Catalog, row: GapRow) -> str | None:
    """Return the journal's own reason for a skipped hole."""
    for other in catalog.gaps.rows():
        same = (other.run, other.writer, other.source) == (row.run, row.writer, "journal")
        if same and other.first_seq < row.end_seq and row.first_seq < other.end_seq:
            return other.reason
    return None
