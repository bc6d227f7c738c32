"""Reads a run's journal as it grows, for a card in a notebook: files alone, nothing of the training."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ...delivery.journal.journal_reader import StreamFollower
from ...delivery.journal.run_folders import list_writers, read_run_json
from ...errors import WireError
from ...wire import RunEnd, StreamName, decode_record
from ..analysis.report_contents import Contents, beginning

_STREAMS: Final[tuple[StreamName, ...]] = ("events", "metrics")
POLL_BYTES: Final = 1 << 20
MOST_POLLS: Final = 8
"""Reads of a stream at a time; the rest comes at the next look."""


class RunFollower:
    """One rank of a run, its newest start. Not thread-safe.

    Args:
        folder: `SPOOL/<run>`.
        rank: whose journal; None takes the lowest.
    """

    def __init__(self, folder: Path, *, rank: int | None = None) -> None:
        self.folder = folder
        self.contents = Contents()
        self.outcome: str | None = None
        """How it has ended; None while it goes on, or has ended without a word."""
        self._rank = rank
        self._writer: Path | None = None
        self._followers: list[StreamFollower] = []
        described = read_run_json(folder)
        self.name = (described.name if described else "") or folder.name

    def look(self) -> bool:
        """Take what is new; whether there was anything."""
        writer = self._newest_writer()
        if writer is None:
            return False
        is_new = writer != self._writer
        if is_new:
            self._begin(writer)
        for follower in self._followers:
            is_new = self._read(follower) or is_new
        return is_new

    def _newest_writer(self) -> Path | None:
        """The newest start of the rank."""
        found = [
            (rank, int(start), path)
            for path in list_writers(self.folder)
            for rank, start in [_numbers(path.name)]
            if rank is not None and start.isdigit() and self._rank in (None, rank)
        ]
        lowest = min((rank for rank, _, _ in found), default=None)
        return max((each for each in found if each[0] == lowest), default=(0, 0, None))[2]

    def _begin(self, writer: Path) -> None:
        self._writer, self.contents, self.outcome = writer, Contents(), None
        first, _ = beginning(writer)
        self._followers = [
            StreamFollower(writer, stream, from_seq=first if stream == "metrics" else 0)
            for stream in _STREAMS
        ]

    def _read(self, follower: StreamFollower) -> bool:
        is_new = False
        for _ in range(MOST_POLLS):
            chunk = follower.poll(POLL_BYTES)
            if chunk is None:
                break
            for data in getattr(chunk, "records", ()):
                is_new = True
                self._take(data)
        return is_new

    def _take(self, data: bytes) -> None:
        try:
            record = decode_record(data)
        except WireError:
            return
        if isinstance(record, RunEnd):
            self.outcome = record.outcome
        else:
            self.contents.add(record)


def _numbers(writer: str) -> tuple[int | None, str]:
    """Rank and start of a trainer's folder."""
    rank, _, start = writer.partition("-")
    return (int(rank) if rank.isdigit() else None), start
