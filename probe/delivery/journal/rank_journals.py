"""Reads the journals of all ranks of a run side by side, for what only several ranks together show.

Used by the helper while they are written, and by `dashboard events` for those that nobody has watched. Reads
a piece of each journal in turn, so that the ranks stay together, and of a frame only what is compared.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from ...detectors.ranks.rank_watch import RankFrame, RankWatch
from ...wire import Event, HostSample, Layout, RunEnd, RunStart
from .journal_reader import Chunk, StreamFollower, read_stream
from .run_folders import list_writers

PIECE_BYTES: Final = 64 * 1024
"""What is read of one journal before the next one has its turn."""
_PIECES_A_LOOK: Final = 128
"""Pieces of each journal that a look takes at most: the helper has other things to do, too."""

_COUNTED_ON_S: Final = 1e-3
"""A start's number is its time, to less than a microsecond."""

_events = msgspec.msgpack.Decoder(RunStart | Layout | Event | RunEnd | HostSample)
_frames = msgspec.msgpack.Decoder(RankFrame)


class _Rank:
    """One incarnation's journal."""

    def __init__(self, folder: Path) -> None:
        self.events = StreamFollower(folder, "events")
        self.metrics = StreamFollower(folder, "metrics", to_end=True)
        self.start: RunStart | None = None
        self.has_ended = False


class RankJournals:
    """Follows the journals of one run and gives them to a `RankWatch`.

    Args:
        run_folder: `SPOOL/<run>`.
        known: events that somebody has made of these ranks before.
    """

    def __init__(self, run_folder: Path, known: Iterable[Event] = ()) -> None:
        self._watch = RankWatch(run_folder.name)
        self._ranks: dict[Path, _Rank] = {}
        for event in known:
            self._watch.event(event)

    def look(self, folders: Iterable[Path], over: Iterable[Path] = ()) -> list[Event]:
        """Read what is new; return the events that are new or have changed.

        Args:
            folders: the writers' folders, `SPOOL/<run>/<rank>-<incarnation>`.
            over: those whose processes are gone.
        """
        for folder in folders:
            if folder not in self._ranks:
                self._ranks[folder] = _Rank(folder)
        gone = [self._ranks[folder] for folder in over if folder in self._ranks]
        for rank in self._ranks.values():
            self._read_events(rank)
        events, has_more = self._read_frames()
        for rank in self._ranks.values():
            if rank.start is not None and (rank.has_ended or rank in gone) and not has_more:
                self._watch.over(rank.start.rank, rank.start.incarnation)
        return _latest([*events, *self._watch.take()])

    def read_all(self) -> list[Event]:
        """Read journals to their end and say what is left to be said."""
        events: list[Event] = []
        has_more = True
        while has_more:
            found, has_more = self._read_frames()
            events += found
        return _latest([*events, *self._watch.take(everything=True)])

    def _read_events(self, rank: _Rank) -> None:
        while (found := rank.events.poll()) is not None:
            for data in found.records if isinstance(found, Chunk) else ():
                try:
                    record = _events.decode(data)
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                    continue
                self._take(rank, record)

    def _take(self, rank: _Rank, record: RunStart | Layout | Event | RunEnd | HostSample) -> None:
        if isinstance(record, RunStart):
            rank.start = record
            self._watch.start(record)
        elif isinstance(record, Layout) and rank.start is not None:
            self._watch.layout(rank.start.rank, rank.start.incarnation, record)
        elif isinstance(record, Event):
            self._watch.event(record)
        elif isinstance(record, RunEnd):
            rank.has_ended = True

    def _read_frames(self) -> tuple[list[Event], bool]:
        """Read pieces of each journal in turn; return what they show, and whether there may be more.

        Judged after each round, so that steps of one round alone wait: of long journals that nobody has
        read a look takes 8 MiB a rank, which as objects would be several times that.
        """
        events: list[Event] = []
        followed = [
            rank
            for rank in self._ranks.values()
            if rank.start is not None and self._watch.follows(rank.start.rank, rank.start.incarnation)
        ]
        for _ in range(_PIECES_A_LOOK):
            followed = [rank for rank in followed if self._read_piece(rank)]
            if not followed:
                return events, False
            events = _latest([*events, *self._watch.take()])
        return events, True

    def _read_piece(self, rank: _Rank) -> bool:
        found = rank.metrics.poll(PIECE_BYTES)
        if found is None or rank.start is None:
            return False
        for data in found.records if isinstance(found, Chunk) else ():
            try:
                frame = _frames.decode(data)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                continue
            self._watch.frame(rank.start.rank, rank.start.incarnation, frame)
        return True


def events_of_ranks(run_folder: Path, known: Iterable[Event] = ()) -> list[Event]:
    """Return what all journals of a run together show, each event in its latest state.

    Args:
        run_folder: `SPOOL/<run>`.
        known: events of the same journals that are known already.
    """
    folders = [folder for folder in list_writers(run_folder) if rank_of(folder) is not None]
    if len({rank_of(folder) for folder in folders}) < 2:
        return []
    journals = RankJournals(run_folder, known)
    events = []
    for together in generations(folders):
        events += journals.look(together)
        events += journals.read_all()
    return _latest(events)


def _latest(events: Iterable[Event]) -> list[Event]:
    """Each event in its latest state."""
    return list({event.id: event for event in events}.values())


def generations(folders: Iterable[Path]) -> list[list[Path]]:
    """Split incarnations, in the order of their beginnings, where a rank begins again after its end."""
    began = _beginnings(folders)
    found: list[list[Path]] = []
    for folder in sorted(began, key=lambda folder: (began[folder], folder.name)):
        newest = found[-1] if found else []
        again = [other for other in newest if rank_of(other) == rank_of(folder)]
        if not found or any(max(last_written_s(other), began[other]) < began[folder] for other in again):
            found.append([folder])
        else:
            newest.append(folder)
    return found


def _beginnings(folders: Iterable[Path]) -> dict[Path, float]:
    """When each start began, in seconds; what was counted on from another one began at the end of that."""
    began: dict[Path, float] = {}
    newest: dict[str, Path] = {}
    for folder in sorted(filter(rank_of, folders), key=_number):
        rank, at_s = rank_of(folder) or "", _number(folder) / 1e9
        if (before := newest.get(rank)) is not None and _has_counted_on(folder):
            at_s = math.nextafter(max(last_written_s(before), began[before]), math.inf)
        began[folder], newest[rank] = at_s, folder
    return began


def rank_of(folder: Path) -> str | None:
    """Return the rank whose folder it is; None of a helper's."""
    rank, _, incarnation = folder.name.rpartition("-")
    return rank if rank.isdecimal() and incarnation.isdecimal() else None


def _number(folder: Path) -> int:
    return int(folder.name.rpartition("-")[2])


def _has_counted_on(folder: Path) -> bool:
    """Whether its number was counted on from an earlier start's: the clock went back, and no time tells."""
    for _, data in read_stream(folder, "events"):
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            record = _events.decode(data)
            return isinstance(record, RunStart) and 0 < record.time < _number(folder) / 1e9 - _COUNTED_ON_S
        return False
    return False


def last_written_s(folder: Path) -> float:
    """When its journal was last written to."""
    times = [0.0]
    for segment in folder.glob("*.seg"):
        with contextlib.suppress(OSError):
            times.append(segment.stat().st_mtime)
    return max(times)
