"""The journal against a model: whatever happens to it, what is read is right, and what is not is told.

After every step the records that a reader gives are those that were written under these numbers, all intact
records of the segments are among them, and records and holes together are what was written, each once. What
is shipped, acknowledged and lost on the way is in the store once, and its account balances.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from memory_store import MemoryStore
from written_journal import header_of, record_places, segments_of

from probe.delivery.helper.shipper import Lane
from probe.delivery.journal import account
from probe.delivery.journal.journal import JournalWriter
from probe.delivery.journal.journal_reader import Skipped, StreamFollower, read_stream
from probe.wire import Batch, Frame, Skip, StreamKey, StreamName, encode

STREAMS: tuple[StreamName, ...] = ("events", "metrics")
streams = st.sampled_from(STREAMS)
places = st.integers(0, 10**6)


class Wire:
    """Takes what a lane sends straight to the store."""

    is_full = False

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def send(self, message: object) -> bool:
        if isinstance(message, Batch):
            self._store.append(message.key, message.first_seq, message.records)
        elif isinstance(message, Skip):
            self._store.skip(message.key, message.first_seq, message.end_seq, message.reason)
        return True


class JournalMachine(RuleBasedStateMachine):
    """One writer's folder, and what was written to it."""

    def __init__(self) -> None:
        super().__init__()
        self._root = tempfile.TemporaryDirectory()
        self.folder = Path(self._root.name) / "run" / "0-1"
        self.records: dict[StreamName, dict[int, bytes]] = {name: {} for name in STREAMS}
        self.written = dict.fromkeys(STREAMS, 0)
        self.unaccounted: StreamName | None = None
        """Whose newest append the account does not have: the writer was killed in between."""
        self.store = MemoryStore()
        self._is_alive, account.is_alive = account.is_alive, lambda owner, silent_s: self.journal is not None
        self.journal: JournalWriter | None = None
        self._count = 0
        self.start()

    def teardown(self) -> None:
        if self.journal is not None:
            self.close()
        self.ship()
        self.ack()
        for name in STREAMS:
            position = self.store.position(self._key(name))
            assert position.next_seq == self._read(name)[1]
        account.is_alive = self._is_alive
        self._root.cleanup()

    def _key(self, name: StreamName) -> StreamKey:
        return StreamKey(run="run", writer="0-1", stream=name)

    # -- the writer

    @rule()
    @precondition(lambda self: self.journal is None)
    def start(self) -> None:
        """Somebody writes to the folder again, as the helper does that takes a ring."""
        self.journal = JournalWriter(self.folder, run="run", writer="0-1", segment_bytes=300, cap_bytes=6000)
        for name in STREAMS:
            begun = self.journal.next_seq(name)
            if self.unaccounted is None:
                # What is damaged behind the last record may have been one.
                assert self.written[name] <= begun <= self.written[name] + 1
            self.written[name] = begun
            # An append that its account does not have, in a segment that cannot be read, has left no trace.
            self.records[name] = {seq: data for seq, data in self.records[name].items() if seq < begun}
        self.unaccounted = None
        self.lanes = {name: Lane(self._key(name), StreamFollower(self.folder, name)) for name in STREAMS}
        for name, lane in self.lanes.items():
            lane.acknowledge(self.store.position(self._key(name)).next_seq)

    @rule(name=streams, many=st.integers(1, 6), padding=st.sampled_from([0, 60, 900]))
    @precondition(lambda self: self.journal is not None)
    def write(self, name: StreamName, many: int, padding: int) -> None:
        """Append; now and then it rotates and evicts, which writes to the events."""
        assert self.journal is not None
        new = []
        for _ in range(many):
            self._count += 1
            new.append(encode(Frame(step=self._count, time=0.0, scalars={"x" * padding: 1.0})))
        first = self.journal.append_many(name, new)
        assert first == self.written[name]
        self.records[name] |= dict(enumerate(new, first))
        self.written = {one: self.journal.next_seq(one) for one in STREAMS}

    @rule()
    @precondition(lambda self: self.journal is not None)
    def close(self) -> None:
        """It ends in an orderly way."""
        assert self.journal is not None
        self.journal.close()
        self.journal = None
        self._tell_lanes()

    @rule(name=streams, torn=st.integers(0, 40))
    @precondition(lambda self: self.journal is not None)
    def crash(self, name: StreamName, torn: int) -> None:
        """It is killed: between an append and its account, or within one."""
        journal = self.journal
        assert journal is not None
        if torn:
            paths = segments_of(self.folder, name)
            with contextlib.suppress(ValueError, IndexError, OSError):
                header_of(paths[-1].read_bytes())
                if (file := journal._streams[name].file) is not None:
                    os.write(file.descriptor(), (b"\x50\0\0\0\1\2\3\4" + bytes(90))[:torn])
        else:
            journal._account, kept = None, journal._account
            self.write(name, 1, 0)
            journal._account = kept
            self.unaccounted = name
        self._drop(journal)

    def _drop(self, journal: JournalWriter) -> None:
        """Let go of its files as the kernel does."""
        for stream in journal._streams.values():
            if stream.file is not None:
                stream.file.close()
        assert journal._account is not None and journal._account._file is not None
        journal._account._file.close()
        self.journal = None
        self._tell_lanes()

    def _tell_lanes(self) -> None:
        for lane in self.lanes.values():
            lane.follower.writer_is_over()

    # -- damage

    def _files(self, name: StreamName) -> list[Path]:
        return [path for path in segments_of(self.folder, name) if path.is_file()]

    @rule(name=streams, which=places, where=places, bit=st.integers(0, 7))
    @precondition(lambda self: self.unaccounted is None)
    def flip(self, name: StreamName, which: int, where: int, bit: int) -> None:
        """Change a bit, of headers and lengths too."""
        if (files := self._files(name)) and (data := bytearray(files[which % len(files)].read_bytes())):
            data[where % len(data)] ^= 1 << bit
            _overwrite(files[which % len(files)], data)

    @rule(name=streams, which=places, where=places)
    @precondition(lambda self: self.unaccounted is None and self.journal is None)
    def cut(self, name: StreamName, which: int, where: int) -> None:
        """Cut a segment that nobody writes to."""
        if (files := self._files(name)) and (size := files[which % len(files)].stat().st_size):
            os.truncate(files[which % len(files)], where % size)

    @rule(name=streams, which=places)
    @precondition(lambda self: self.unaccounted is None)
    def delete(self, name: StreamName, which: int) -> None:
        """Delete a segment, though it be written to."""
        if files := self._files(name):
            files[which % len(files)].unlink()

    @rule(name=streams, which=places, number=st.integers(0, 400) | st.sampled_from([2**62, 10**20 - 1]))
    @precondition(lambda self: self.unaccounted is None)
    def copy(self, name: StreamName, which: int, number: int) -> None:
        """Copy a segment to some number, where none is."""
        target = self.folder / f"{name}-{number:020d}.seg"
        if (files := self._files(name)) and not target.exists():
            shutil.copyfile(files[which % len(files)], target)

    @rule(name=streams, one=places, other=places)
    @precondition(lambda self: self.unaccounted is None)
    def swap(self, name: StreamName, one: int, other: int) -> None:
        """Let two segments change their names."""
        if files := self._files(name):
            first, second, aside = files[one % len(files)], files[other % len(files)], self.folder / "aside"
            first.rename(aside)
            if first != second:
                second.rename(first)
            aside.rename(second)

    # -- the way to the store

    @rule()
    def ship(self) -> None:
        """Send all that there is."""
        for lane in self.lanes.values():
            while lane.fill(Wire(self.store)):  # type: ignore[arg-type]
                pass

    @rule()
    def ack(self) -> None:
        """The store commits, and says so."""
        self.store.commit()
        for name, lane in self.lanes.items():
            lane.acknowledge(self.store.position(self._key(name)).next_seq)

    @rule()
    def lose(self) -> None:
        """The dashboard is killed before it commits: the next connection asks where to start."""
        for name, lane in self.lanes.items():
            key = self._key(name)
            durable = self.store.queued[key] = self.store.durable.get(key, 0)
            kept = {seq: data for seq, data in self.store.records[key].items() if seq < durable}
            self.store.gaps[key] = durable - len(kept)
            self.store.records[key] = kept
            lane.restart()
            lane.acknowledge(durable)

    # -- what holds after every step

    def _read(self, name: StreamName) -> tuple[dict[int, bytes], int]:
        """What a new reader gives, and where it ends; records and holes leave nothing out."""
        holes: list[Skipped] = []
        read = dict(read_stream(self.folder, name, on_skip=holes.append))
        covered = [*read, *(seq for hole in holes for seq in range(hole.first_seq, hole.end_seq))]
        assert sorted(covered) == list(range(len(covered)))
        return read, len(covered)

    @invariant()
    def reads_are_right(self) -> None:
        for name in STREAMS:
            read, end = self._read(name)
            known = self.records[name]
            assert all(known.get(seq, data) == data for seq, data in read.items())
            assert self._intact(name).items() <= read.items()
            if self.journal is None:
                at_least = self.written[name] - (self.unaccounted == name)
                assert at_least <= end <= self.written[name] + 1
            else:
                assert end <= self.written[name] + 1

    def _intact(self, name: StreamName) -> dict[int, bytes]:
        """The records of segments that lie where their headers say, up to the first damaged one."""
        found: dict[int, bytes] = {}
        for path in self._files(name):
            with contextlib.suppress(Exception):
                data = path.read_bytes()
                said = header_of(data)[0]
                if (said["run"], said["writer"], said["stream"]) == ("run", "0-1", name) and path.name == (
                    f"{name}-{said['first_seq']:020d}.seg"
                ):
                    found |= {
                        said["first_seq"] + index: one for index, (_, one) in enumerate(record_places(data))
                    }
        return found

    @invariant()
    def account_balances(self) -> None:
        for name in STREAMS:
            key = self._key(name)
            stored, known = self.store.records[key], self.records[name]
            assert (
                self.store.queued.get(key, 0) == len(stored) + self.store.gaps[key] + self.store.dropped[key]
            )
            assert all(known.get(seq, data) == data for seq, data in stored.items())


def _overwrite(path: Path, data: bytes) -> None:
    """Change a file in its place: who has it open goes on with it."""
    with path.open("r+b") as file:
        file.write(data)


def check(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        JournalMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
        ),
    )


def test_journal_like_its_model_whatever_happens() -> None:
    check(40, 30)


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_journal_like_its_model_two_thousand_times() -> None:
    check(2000, 60)
