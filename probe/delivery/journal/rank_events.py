"""Reads, when a rank ends, what the journals beside its own tell of the same training on this host.

Called by `run_words.py` on the thread that closes a session. Asks no other process, and waits for the end of
the other ranks' journals no longer than it is allowed to.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from ...wire import Event, RunEnd, StreamName
from .journal_reader import Chunk, StreamFollower
from .rank_journals import events_of_ranks, generations, rank_of
from .run_folders import list_writers
from .segment_files import run_folder_bytes

_MOST_BYTES: Final = 8 * 1024**2
"""What is read of one journal at most."""
_COMPARED_BYTES: Final = 1024**2
"""Journals up to this size are compared here; longer ones the helper has compared before."""
_LOOK_S: Final = 0.02

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


class _Journal:
    """One writer's events, as far as they are read."""

    def __init__(self, folder: Path, stream: StreamName) -> None:
        self._follower = StreamFollower(folder, stream)
        self._left = _MOST_BYTES
        self.events: dict[str, Event] = {}
        self.has_ended = False

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
            self.has_ended = True


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
    helpers = [_Journal(writer, "host") for writer in list_writers(run_folder) if rank_of(writer) is None]
    for helper in helpers:
        helper.read()
    known: dict[str, Event] = {}
    for journal in (*journals, *helpers):
        known |= journal.events
    is_over = all(journal.has_ended for journal in journals)
    if is_over and run_folder_bytes(run_folder) <= _COMPARED_BYTES:
        known |= {event.id: event for event in events_of_ranks(run_folder, known.values())}
    names = {other.name for other in ranks}
    return [event for event in known.values() if f"{event.rank}-{event.incarnation}" in names]


def _incarnation(folder: Path) -> int:
    return int(folder.name.rpartition("-")[2])
