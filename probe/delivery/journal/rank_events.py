"""Reads what the journals beside a rank's own tell of the same training on this host.

Called by `run_words.py` on the thread that closes a session; and for what other ranks wait in by the
recorder's thread while training stands still, and by who writes the event of an exception. Asks no other
process, and waits for the end of the other ranks' journals no longer than it is allowed to.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from ...detectors.ranks.waits import RankState, compare_waits
from ...threads.user_lines import at_line
from ...wire import Event, RunEnd, StreamName
from ...wire.collective_waits import CollectiveWait, wait_in
from .journal_reader import Chunk, StreamFollower
from .rank_journals import events_of_ranks, generations, rank_of
from .run_folders import list_writers
from .segment_files import run_folder_bytes

_MOST_BYTES: Final = 8 * 1024**2
"""What is read of one journal at most."""
_COMPARED_BYTES: Final = 1024**2
"""Journals up to this size are compared here; longer ones the helper has compared before."""
_LOOK_S: Final = 0.02
_ERRORS: Final = frozenset({"exception", "out_of_memory"})

_records = msgspec.msgpack.Decoder(Event | RunEnd)


def events_beside(
    folder: Path, *, patience_s: float, clock: Callable[[], float] = time.monotonic
) -> list[Event]:
    """Return the newest states of the events of the other ranks that run with one, and of their helper.

    Args:
        folder: of the rank that ends, `SPOOL/<run>/<rank>-<incarnation>`.
        patience_s: how long to wait for ranks that have yet to write their end.
        clock: seconds.
    """
    deadline = clock() + patience_s
    journals: dict[Path, _Journal] = {}
    while True:
        ranks = _together(folder)
        for other in ranks:
            if other != folder:
                journals.setdefault(other, _Journal(other, "events")).read()
        beside = [journals[other] for other in ranks if other != folder]
        if clock() >= deadline or all(journal.has_ended for journal in beside):
            return _of_training(folder.parent, ranks, beside)
        time.sleep(_LOOK_S)


def explain_wait(folder: Path, wait: CollectiveWait, *, world_size: int) -> str | None:
    """Return which rank waits in which collective, in one sentence; None where nothing is known of others.

    Args:
        folder: of the rank that asks, `SPOOL/<run>/<rank>-<incarnation>`.
        wait: what it is in.
        world_size: how many ranks there are.
    """
    ranks = _together(folder)
    helpers = _events_of_helpers(folder.parent)
    states = [RankState(rank=_rank(folder), wait=wait)]
    for other in ranks:
        if other != folder:
            journal = _Journal(other, "events")
            journal.read()
            killed = [one for one in helpers.values() if one.kind == "killed" and _writer(one) == other.name]
            states += _state_of(_rank(other), journal, killed)
    return compare_waits(states, world_size)


def _state_of(rank: int, journal: _Journal, killed: list[Event]) -> list[RankState]:
    """What a rank does or how it has ended, as far as its journal tells of it."""
    events = journal.events.values()
    ends = [event for event in events if event.kind in _ERRORS and event.severity == "critical"]
    hangs = [event for event in events if event.kind == "hang" and not event.ended]
    for event in [*ends[-1:], *hangs[-1:]]:
        if (wait := wait_in(event.message)) is not None:
            return [RankState(rank=rank, wait=wait)]
        place = at_line(event.stacks.training_loop).replace(", ", " at ", 1)
        done = "has stood still" if event.kind == "hang" else f"has raised `{event.subject}`"
        return [RankState(rank=rank, otherwise=f"{done} in step {event.step}{place}")]
    if killed:
        last = killed[-1]
        return [RankState(rank=rank, otherwise=f"was killed ({last.subject}) after step {last.step}")]
    if journal.end is not None:
        after = "" if journal.end.step is None else f" after step {journal.end.step}"
        return [RankState(rank=rank, otherwise=f"has ended{after}")]
    return []


class _Journal:
    """One writer's events, as far as they are read."""

    def __init__(self, folder: Path, stream: StreamName) -> None:
        self._follower = StreamFollower(folder, stream)
        self._left = _MOST_BYTES
        self.events: dict[str, Event] = {}
        self.has_ended = False
        self.end: RunEnd | None = None

    def read(self) -> None:
        """Take what has come since."""
        while self._left > 0 and (found := self._follower.poll()) is not None:
            for data in found.records if isinstance(found, Chunk) else ():
                self._left -= len(data)
                self._take(data)
        self.has_ended = self.has_ended or self._left <= 0

    def _take(self, data: bytes) -> None:
        try:
            record = _records.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return
        if isinstance(record, Event):
            self.events[record.id] = record
        else:
            self.has_ended, self.end = True, record


def _together(folder: Path) -> list[Path]:
    """The newest incarnations of all ranks that run with one, its own among them."""
    ranks = [other for other in list_writers(folder.parent) if rank_of(other) is not None]
    own = next((together for together in generations(ranks) if folder in together), [folder])
    newest = {rank_of(other): other for other in sorted(own, key=_incarnation)}
    return list(newest.values())


def _of_training(run_folder: Path, ranks: list[Path], journals: list[_Journal]) -> list[Event]:
    """What the ranks, their helpers, and the comparison of their journals tell of these incarnations."""
    if not journals:
        return []
    known: dict[str, Event] = {}
    for journal in journals:
        known |= journal.events
    known |= _events_of_helpers(run_folder)
    is_over = all(journal.has_ended for journal in journals)
    if is_over and run_folder_bytes(run_folder) <= _COMPARED_BYTES:
        known |= {event.id: event for event in events_of_ranks(run_folder, known.values())}
    names = {other.name for other in ranks}
    return [event for event in known.values() if _writer(event) in names]


def _events_of_helpers(run_folder: Path) -> dict[str, Event]:
    known: dict[str, Event] = {}
    for writer in list_writers(run_folder):
        if rank_of(writer) is None:
            helper = _Journal(writer, "host")
            helper.read()
            known |= helper.events
    return known


def _writer(event: Event) -> str:
    """Name of the folder of the incarnation that an event is about."""
    return f"{event.rank}-{event.incarnation}"


def _rank(folder: Path) -> int:
    return int(folder.name.partition("-")[0])


def _incarnation(folder: Path) -> int:
    return int(folder.name.rpartition("-")[2])
