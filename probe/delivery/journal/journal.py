"""Appends records to a run's segment files: the only thing that the probe does with its data.

`JournalWriter` is used by the recorder (in the training process) and by the helper (for its own stream).
No fsync and no mmap: a full disk is a clean error here, never a signal. Reading is in `journal_reader.py`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ...errors import JournalError
from ...guard import let_pass, suppressed
from ...own_files import OwnFile
from ...settings.places import is_folder_name, make_private_folder
from ...wire import Gap, StreamName, encode
from .account import NAME as ACCOUNT
from .account import AccountWriter, read_account
from .kept_room import KeptRoom
from .segment_files import ASIDE, list_segments, own_segments, run_folder_bytes, write_all
from .segments import VERSION, SegmentHeader, pack_header, record_prefix, segment_name

if TYPE_CHECKING:
    from .journal_reader import StreamTail

DEFAULT_CAP_BYTES: Final = 2 * 1024**3
SEGMENT_BYTES: Final = 16 * 1024**2
SLOW_S: Final = 0.05
"""A write that takes this long is one on a slow disk."""
_SEGMENTS_BELOW_CAP: Final = 4
_JOINED_BYTES: Final = 4096
"""Records up to about this length are copied into one buffer: a vector of hundreds takes longer than that."""
_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT


class _Stream:
    """One stream's open segment. Every field is guarded by `lock`."""

    __slots__ = ("file", "is_account_old", "lock", "name", "next_seq", "room", "size", "unsure")

    def __init__(self, name: StreamName) -> None:
        self.name: StreamName = name
        self.lock = threading.Lock()
        self.file: OwnFile | None = None
        self.next_seq = 0
        """The account says as much; less while `unsure` or `is_account_old`."""
        self.is_account_old = False
        self.size = 0
        self.unsure = False
        """The file may hold more than `size` and `next_seq` say: look before the next write."""
        self.room: KeptRoom | None = None
        """What is kept for urgent records, where that is asked for."""


class JournalWriter:
    """One writer's folder, `SPOOL/<run>/<writer>`; thread-safe, one process at a time.

    Opening a folder that has segments already continues their numbering, or that of its account where this
    goes further: what is missing between is a hole. A torn tail is cut off.

    Args:
        folder: the writer's folder; created with mode 0700, as are the run's folder and the spool.
        run: run id, the name of the parent folder.
        writer: name of the folder: ``<rank>-<incarnation>`` or ``host-<name>``.
        cap_bytes: size of the whole run's folder above which the oldest own metrics are evicted.
        segment_bytes: size at which a segment is closed and the next one begun; a quarter of the cap at most.
        keeps_room: the stream for whose urgent records some room is kept, should the disk become full.
        begins_account: else the caller calls `begin_account`.

    Raises:
        JournalError: the folder cannot be created or written.
    """

    def __init__(
        self,
        folder: Path,
        *,
        run: str,
        writer: str,
        cap_bytes: int = DEFAULT_CAP_BYTES,
        segment_bytes: int = SEGMENT_BYTES,
        keeps_room: StreamName | None = None,
        begins_account: bool = True,
    ) -> None:
        if not (is_folder_name(run) and is_folder_name(writer)):
            raise JournalError(f"{run!r} / {writer!r} cannot name a run's folder and a writer's in it")
        self.folder = folder
        self._run, self._writer, self._closed = run, writer, False
        self._account: AccountWriter | None = None
        self.evicted = 0
        """Metrics of this writer that were deleted to keep to the cap."""
        self.writes, self.write_s = 0, 0.0
        """How many writes there were, and how long the newest took."""
        self._cap_bytes = cap_bytes
        self._segment_bytes = min(segment_bytes, cap_bytes // _SEGMENTS_BELOW_CAP)  # the open one stays
        self._streams: dict[StreamName, _Stream] = {
            name: _Stream(name) for name in ("events", "metrics", "host")
        }
        if keeps_room is not None:
            self._streams[keeps_room].room = KeptRoom()
        try:
            for part in (folder.parent.parent, folder.parent, folder):
                make_private_folder(part)
            known = read_account(folder)
            for stream in self._streams.values():
                stream.next_seq = 0 if known is None else known.end(stream.name)
                self._resume(stream)
            if begins_account:
                self.begin_account()
        except OSError as error:
            self.close()
            let_pass(error)
            raise JournalError(f"cannot write the journal in {folder}: {error.strerror or error}") from error

    def append(self, stream: StreamName, record: bytes, *, is_urgent: bool = False) -> int:
        """Append one encoded record with one `os.write`; return its sequence number.

        Args:
            stream: which one.
            record: encoded.
            is_urgent: on a full disk it may take the room that is kept.

        Raises:
            JournalError: nothing was written (a full disk, a record that is too large, a closed journal).
        """
        return self._append(self._streams[stream], [record_prefix(record) + record], 1, is_urgent=is_urgent)

    def append_many(
        self, stream: StreamName, records: list[bytes], *, is_urgent: bool = False, is_brief: bool = False
    ) -> int:
        """Append encoded records with one `os.writev`; all or none. Return the first one's number.

        Args:
            stream: which one.
            records: encoded.
            is_urgent: on a full disk they may take the room that is kept.
            is_brief: nothing else is written; the account says less until `update_account`.

        Raises:
            JournalError: none was written.
        """
        buffers = [part for record in records for part in (record_prefix(record), record)]
        if records and len(records[0]) <= _JOINED_BYTES:
            buffers = [b"".join(buffers)]
        state = self._streams[stream]
        return self._append(state, buffers, len(records), is_urgent=is_urgent, is_brief=is_brief)

    def update_account(self, stream: StreamName) -> None:
        """Have the account say what was appended briefly. Nobody who appends waits for that."""
        state = self._streams[stream]
        if state.is_account_old and self._account is not None:
            state.is_account_old = False
            self._account.note(stream, state.next_seq)

    def next_seq(self, stream: StreamName) -> int:
        """Number of records written to the stream so far, evicted ones included."""
        return self._streams[stream].next_seq

    def close(self) -> None:
        """Close the files. Idempotent; a later append raises."""
        self._closed = True
        for stream in self._streams.values():
            with stream.lock:
                if stream.file is not None:
                    _close(stream)
        if self._account is not None:
            self._account.close()

    def begin_account(self) -> None:
        """Make the account anew. Other threads may append meanwhile."""
        self._account = account = AccountWriter(self.folder)
        for stream in self._streams.values():
            if stream.next_seq:  # else it says so
                account.note(stream.name, stream.next_seq)

    def is_there(self) -> bool:
        """Whether what is written can be found: nobody has removed the folder, or a file that is open."""
        return self.folder.is_dir() and not any(map(_is_removed, self._streams.values()))

    def begin_again(self) -> None:
        """Make anew what was removed; the numbers go on. What was in it is lost to who has not read it.

        Raises:
            JournalError: the folder cannot be made. Appends raise too, until a later call has made it.
        """
        is_whole = self.folder.is_dir()
        for stream in self._streams.values():
            with stream.lock:
                if stream.file is not None and (not is_whole or stream.file.is_removed()):
                    _close(stream)
        try:
            for part in (self.folder.parent.parent, self.folder.parent, self.folder):
                make_private_folder(part)
        except OSError as error:
            let_pass(error)
            raise JournalError(f"cannot write the journal in {self.folder}: {error.strerror}") from error
        if self._account is not None and not (self.folder / ACCOUNT).exists():
            self._account.close()
            self.begin_account()

    def go_on_at(self, name: StreamName, seq: int) -> None:
        """Give the next record of a stream a larger number: those below it were another journal's."""
        stream = self._streams[name]
        with stream.lock:
            if seq > stream.next_seq:
                if stream.file is not None:
                    _close(stream)
                stream.next_seq = seq

    def _append(
        self, stream: _Stream, buffers: list[bytes], records: int, *, is_urgent: bool, is_brief: bool = False
    ) -> int:
        rotated = False
        with stream.lock:
            if self._closed:
                raise JournalError(f"the journal in {self.folder} is closed")
            try:
                if stream.unsure:
                    self._resume(stream)
                is_full = stream.size >= self._segment_bytes and not is_brief
                if stream.file is None or is_full or _is_lost(stream.file):
                    rotated = self._rotate(stream)
                first_seq = self._write(stream, buffers, records, is_urgent=is_urgent)
                stream.is_account_old = is_brief
                if not is_brief and self._account is not None:
                    self._account.note(stream.name, stream.next_seq)
            except OSError as error:
                let_pass(error)
                raise JournalError(f"cannot write to {self.folder}: {error.strerror or error}") from error
        if rotated and stream.name == "metrics":
            self._evict()
        return first_seq

    def _rotate(self, stream: _Stream) -> bool:
        """Begin a segment; on a full disk go on with the one there is. Return whether another one is over."""
        try:
            return self._begin_segment(stream)
        except OSError as error:
            let_pass(error)
            if stream.file is None or stream.unsure:
                raise
            return False

    def _begin_segment(self, stream: _Stream) -> bool:
        """Open the file for the next number, with its header; return whether there was one before."""
        header = SegmentHeader(
            version=VERSION, run=self._run, writer=self._writer, stream=stream.name, first_seq=stream.next_seq
        )
        path = self.folder / segment_name(stream.name, stream.next_seq)
        data = pack_header(header)
        try:
            file = OwnFile(path, _FLAGS | os.O_EXCL)
        except FileExistsError:
            # A stray copy: readers pass it over, and tell of it under this name too.
            _set_aside(path)
            file = OwnFile(path, _FLAGS | os.O_EXCL)
        stream.unsure = True
        try:
            write_all(file.descriptor(), [data])
        except OSError:
            file.close()
            path.unlink(missing_ok=True)
            stream.unsure = False
            raise
        has_previous = stream.file is not None
        if has_previous:
            _close(stream)
        stream.file, stream.size, stream.unsure = file, len(data), False
        return has_previous

    def _write(self, stream: _Stream, buffers: list[bytes], records: int, *, is_urgent: bool) -> int:
        """Write all buffers or leave the file as it was; return the first record's number."""
        assert stream.file is not None
        descriptor = stream.file.descriptor()
        if stream.room is not None:
            stream.room.require(descriptor, stream.size, sum(map(len, buffers)), is_urgent=is_urgent)
        # Until the account below is updated an exception may come from anywhere, a Ctrl-C for instance.
        stream.unsure = True
        began_s = time.monotonic()
        try:
            written = write_all(descriptor, buffers)
        except OSError:
            with suppressed(OSError):
                # To cut off nothing would give back what is kept behind the end.
                descriptor = stream.file.descriptor()
                if os.fstat(descriptor).st_size != stream.size:
                    os.ftruncate(descriptor, stream.size)
                    if stream.room is not None:
                        stream.room.begin()
                stream.unsure = False
            raise
        first_seq = stream.next_seq
        stream.size, stream.next_seq = stream.size + written, first_seq + records
        stream.unsure = False
        self.writes, self.write_s = self.writes + 1, time.monotonic() - began_s
        return first_seq

    def _resume(self, stream: _Stream) -> None:
        """Continue after the last record that the folder holds, or has held; a torn tail is cut off."""
        if stream.file is not None:
            stream.file.close()
            stream.file = None
        tail = _find_tail(self.folder, stream.name)
        stream.unsure = False
        if tail is None:
            return
        is_whole = tail.next_seq >= stream.next_seq and not tail.damaged
        stream.next_seq = max(stream.next_seq, tail.next_seq)
        if tail.size == 0 and not tail.damaged:
            tail.path.unlink()
        elif is_whole:
            stream.file = OwnFile(tail.path, _FLAGS)
            os.ftruncate(stream.file.descriptor(), tail.size)
            stream.size = tail.size
            if stream.room is not None:
                stream.room.begin()

    def _evict(self) -> None:
        """Delete the oldest metrics of this rank while the run's folder is above its cap."""
        excess = run_folder_bytes(self.folder.parent) - self._cap_bytes
        for folder in self._folders_oldest_first():
            segments = own_segments(folder, "metrics")
            for segment, following in itertools.pairwise(segments):
                if excess <= 0:
                    return
                try:
                    size = segment.path.stat().st_size
                    segment.path.unlink()
                except OSError as error:
                    let_pass(error)
                    continue
                excess -= size
                self.evicted += following.first_seq - segment.first_seq
                if folder == self.folder:
                    self._record_gap(segment.first_seq, following.first_seq)

    def _folders_oldest_first(self) -> list[Path]:
        """Folders of the rank's earlier incarnations, then this one: nobody else writes there any more."""
        rank, dash, incarnation = self._writer.partition("-")
        if not (rank.isdecimal() and dash and incarnation.isdecimal()):
            return [self.folder]
        earlier = [
            folder
            for folder in self.folder.parent.glob(f"{rank}-*")
            if folder.name.partition("-")[2].isdecimal()
            and int(folder.name.partition("-")[2]) < int(incarnation)
        ]
        return [*sorted(earlier, key=lambda folder: int(folder.name.partition("-")[2])), self.folder]

    def _record_gap(self, first_seq: int, end_seq: int) -> None:
        reason = f"the journal reached its cap of {self._cap_bytes / 1024**2:,.4g} MiB"
        gap = Gap(stream="metrics", first_seq=first_seq, end_seq=end_seq, reason=reason, time=time.time())
        with contextlib.suppress(JournalError):
            self.append("events", encode(gap))


def _close(stream: _Stream) -> None:
    """Close a stream's open segment, and give back what is kept behind it."""
    file, stream.file = stream.file, None
    assert file is not None
    if stream.room is not None:
        with suppressed(OSError):
            stream.room.give_back(file.descriptor(), stream.size)
        stream.room.begin()
    file.close()


def _is_removed(stream: _Stream) -> bool:
    """Whether the open segment has no name any more."""
    with stream.lock:
        return stream.file is not None and stream.file.is_removed()


def _is_lost(file: OwnFile) -> bool:
    """Whether the script has closed an open segment, and its file is gone: another one is begun."""
    with suppressed(OSError):
        file.descriptor()
        return False
    return True


def _find_tail(folder: Path, name: StreamName) -> StreamTail | None:
    """Find where to go on; None in a folder without segments of the stream, as that of a new run is."""
    if not list_segments(folder, name):
        return None
    # Who begins a stream need not be able to read one.
    from .journal_reader import end_of_stream

    return end_of_stream(folder, name)


def _set_aside(path: Path) -> None:
    """Rename a file to the first free name that no segment has."""
    names = itertools.chain([f"{path.name}{ASIDE}"], (f"{path.name}{ASIDE}-{n}" for n in itertools.count(1)))
    path.rename(next(place for name in names if not os.path.lexists(place := path.with_name(name))))
