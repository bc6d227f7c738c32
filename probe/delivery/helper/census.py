"""Watches a run's trainers from outside: which are alive, how much memory they take, which were killed.

Called by the helper about once a second; writes `HostSample` records, `hang` events of what only an outsider
sees, and events of what only several ranks together show, into the helper's own `host` stream.
"""

from __future__ import annotations

import contextlib
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from ...errors import JournalError, WireError
from ...wire import Event, HostSample, Layout, Record, RunEnd, RunStart, decode_record, encode, encode_record
from ..host_memory import machine_bytes
from ..journal.journal import JournalWriter
from ..journal.journal_reader import Chunk, StreamFollower, read_stream
from ..journal.run_folders import WriterList
from ..recorder.process_identity import is_gone
from .helper import host_folder
from .oom_record import Death, kernel_log, memory_events_of, oom_kills, oom_record
from .process_end import ProcessEnd
from .ring_taker import take_ring
from .trainer_watch import TrainerWatch, memory_sentence

if TYPE_CHECKING:
    from ..journal.rank_journals import RankJournals

_BEGINNING_S = 5.0
"""A folder without a `RunStart` is this long taken for a trainer that is about to write it."""


class Trainer:
    """One rank's incarnation, as its journal and the process table show it."""

    def __init__(self, folder: Path, known_hang: Event | None = None) -> None:
        self.folder = folder
        self._known_hang = known_hang
        """What an earlier helper has written last of it."""
        self.start: RunStart | None = None
        self.over_at: float | None = None
        """UNIX seconds at which it ended or was found dead; None while it lives."""
        self.watch: TrainerWatch | None = None
        """From the `RunStart` on."""
        self.news: list[Event] = []
        """Events of the last look."""
        self.is_taken = False
        """Whether what its ring held at its end is in its journal."""
        self._events = StreamFollower(folder, "events")
        self._process: psutil.Process | None = None
        self._open_hangs: dict[str, Event] = {}
        self._end: ProcessEnd | None = None
        self._last: HostSample | None = None
        self._oom_files = memory_events_of(0)
        self._oom_kills = oom_kills(self._oom_files)

    def observe(self) -> HostSample | None:
        """Look once; None while its journal does not yet say who it is."""
        status = self._status()
        # The journal is read after the process table: an orderly end is written before the process goes.
        end = self._read_events()
        if self.start is None:
            return None
        if self._process is None:
            status = self._status()
        alive = status is not None
        if not alive and end is None:
            self.is_taken = take_ring(self.folder)
        self.news = self._watch_over(status, has_ended=end is not None)
        now = time.time()
        if end is not None or not alive:
            self.over_at = min(end.time, now) if end is not None else now
            self.close()
        total_bytes, available_bytes = machine_bytes()
        self._last = HostSample(
            time=now,
            rank=self.start.rank,
            incarnation=self.start.incarnation,
            state="ended" if end is not None else "running" if alive else "killed",
            rss_bytes=self._rss_bytes() if alive else None,
            system_used_bytes=total_bytes - available_bytes,
            system_total_bytes=total_bytes,
        )
        return self._last

    def _watch_over(self, status: str | None, *, has_ended: bool) -> list[Event]:
        if self.watch is None:
            return []
        if has_ended:
            return self.watch.finish()
        if status is not None and self._process is not None:
            return self.watch.look(self._process, status)
        return self.watch.die(
            self._end.status() if self._end else None, self._death(), self._open_hangs.values()
        )

    def close(self) -> None:
        """Give back what is held of the process. Idempotent."""
        if self._end is not None:
            self._end.close()

    def _death(self) -> Death:
        """What the kernel and the last look say of a trainer that is gone."""
        sample, start = self._last, self.start
        memory = (
            ""
            if sample is None
            else memory_sentence(sample.rss_bytes, sample.system_used_bytes, sample.system_total_bytes)
        )
        has_struck = oom_kills(self._oom_files) > self._oom_kills
        record = oom_record(start.pid, kernel_log()) if has_struck and start is not None else ""
        if has_struck and not record:
            memory = f"The kernel's out-of-memory killer has struck on this machine meanwhile. {memory}"
        return Death(memory=memory.strip(), oom_record=record, is_memory=has_struck)

    def _read_events(self) -> RunEnd | None:
        end = None
        while (found := self._events.poll()) is not None:
            for data in found.records if isinstance(found, Chunk) else ():
                with contextlib.suppress(WireError):
                    record = decode_record(data)
                    self._note(record)
                    if isinstance(record, RunEnd):
                        end = record
        return end

    def _note(self, record: Record) -> None:
        """Take in what the journal says of who it is, and of hangs that it sees itself."""
        if isinstance(record, RunStart):
            if self.start is not None and self.watch is not None:
                self.watch.train_next(record)
                return
            self.start = record
            self.watch = TrainerWatch(self.folder, record)
            if self._known_hang is not None and not self._known_hang.ended:
                self.watch.adopt(self._known_hang)
        elif isinstance(record, Layout) and self.watch is not None and not self.watch.model:
            self.watch.model = record.model
        elif isinstance(record, Event) and record.kind == "hang":
            self._open_hangs.pop(record.id, None)
            if not record.ended:
                self._open_hangs[record.id] = record

    def _status(self) -> str | None:
        """What the process table says of it; None when it is gone."""
        try:
            if self._process is None:
                if self.start is None or self.start.pid == 0:
                    return None
                process = psutil.Process(self.start.pid)
                if is_gone(self.start, is_local=True):
                    return None
                self._process, self._end = process, ProcessEnd(process.pid)
                self._oom_files = memory_events_of(process.pid)
                self._oom_kills = oom_kills(self._oom_files)
            if not self._process.is_running():
                return None
            status = self._process.status()
            return None if status == psutil.STATUS_ZOMBIE else str(status)
        except psutil.Error:
            return None

    def _rss_bytes(self) -> int | None:
        try:
            return int(self._process.memory_info().rss) if self._process else None
        except psutil.Error:
            return None


def _is_beginning(trainer: Trainer) -> bool:
    """Whether a folder has just been made and its trainer has yet to write who it is."""
    if trainer.start is not None:
        return False
    try:
        return time.time() - trainer.folder.stat().st_mtime < _BEGINNING_S
    except OSError:
        return False


class Census:
    """All trainers of one run on this host."""

    def __init__(self, run_folder: Path) -> None:
        self._run_folder = run_folder
        self._own_folder = host_folder(run_folder)
        self._host = socket.gethostname()
        self._writers = WriterList(run_folder)
        self._journal = JournalWriter(
            self._own_folder, run=run_folder.name, writer=self._own_folder.name, keeps_room="host"
        )
        self._trainers: dict[str, Trainer] = {}
        self._unwritten: list[Event] = []
        self._known_hangs: dict[str, Event] = {}
        """By the trainer's folder: the newest event of an earlier helper."""
        self._known_of_ranks: list[Event] = []
        self._ranks: RankJournals | None = None
        """From the first trainer on that is one of several ranks."""
        self._known_over = self._read_over()
        self._began = time.time()

    @property
    def writers(self) -> list[Path]:
        """Folders to ship: those of this host's trainers, and the helper's own."""
        return [trainer.folder for trainer in self._trainers.values() if self._is_local(trainer)] + [
            self._own_folder
        ]

    def world_size(self, folder: Path) -> int:
        """How many ranks the run of one of these folders has; 0 of the helper's own, which is no rank's."""
        trainer = self._trainers.get(folder.name)
        return trainer.start.world_size if trainer is not None and trainer.start is not None else 0

    @property
    def living(self) -> list[Path]:
        """Folders of this host's trainers that have not ended."""
        trainers = self._trainers.values()
        return [one.folder for one in trainers if one.over_at is None and self._is_local(one)]

    @property
    def over(self) -> list[Path]:
        """Folders of this host's trainers to which nobody will write any more: what a ring held is there."""
        trainers = self._trainers.values()
        return [one.folder for one in trainers if one.is_taken and one.over_at and self._is_local(one)]

    @property
    def over_since(self) -> float | None:
        """UNIX seconds at which the last trainer ended; None while one lives."""
        local = [trainer for trainer in self._trainers.values() if self._is_local(trainer)]
        if any(trainer.over_at is None for trainer in local) or any(
            map(_is_beginning, self._trainers.values())
        ):
            return None
        return max((trainer.over_at or 0.0 for trainer in local), default=self._began)

    def take(self) -> None:
        """Look at every trainer that is not over and write what was seen."""
        for folder in self._writers.look():
            if folder.name not in self._trainers and not folder.name.startswith("host-"):
                self._trainers[folder.name] = Trainer(folder, self._known_hangs.get(folder.name))
        samples = []
        for trainer in self._trainers.values():
            if trainer.over_at is None and (sample := trainer.observe()) and self._is_local(trainer):
                known = self._known_over.get((sample.rank, sample.incarnation))
                if known is None:
                    samples.append(encode(sample))
                    self._unwritten += trainer.news
                elif trainer.over_at is not None:
                    trainer.over_at = known
        for trainer in self._trainers.values():
            if trainer.over_at is not None and not trainer.is_taken and self._is_local(trainer):
                # An earlier helper may have been killed in the middle of it; a full disk may have room again.
                trainer.is_taken = take_ring(trainer.folder)
        self._unwritten += self._compare_ranks()
        if samples or self._unwritten:
            # On a full disk: the next second's sample says the same, and events have room that is kept.
            with contextlib.suppress(JournalError):
                if self._unwritten:
                    events = [encode_record(event) for event in self._unwritten]
                    self._journal.append_many("host", events, is_urgent=True)
                    self._unwritten.clear()
                if samples:
                    is_over = any(trainer.over_at is not None for trainer in self._trainers.values())
                    self._journal.append_many("host", samples, is_urgent=is_over)

    def _compare_ranks(self) -> list[Event]:
        """What the local ranks' journals show together, but for those that an earlier helper has seen end."""
        local = [
            trainer
            for trainer in self._trainers.values()
            if trainer.start is not None
            and self._is_local(trainer)
            and (trainer.start.rank, trainer.start.incarnation) not in self._known_over
        ]
        if self._ranks is None:
            if not any(trainer.start and trainer.start.world_size > 1 for trainer in local):
                return []
            # numpy is a quarter of the helper's memory: it is not for runs of one rank.
            from ..journal.rank_journals import RankJournals

            self._ranks = RankJournals(self._run_folder, self._known_of_ranks)
        over = [trainer.folder for trainer in local if trainer.over_at is not None]
        return self._ranks.look([trainer.folder for trainer in local], over)

    def go_on_at(self, writer: str, seq: int) -> None:
        """Write again what a dashboard takes for records that it has: those were another journal's.

        Somebody has removed the folder, and the numbers of this one have begun anew.

        Args:
            writer: whose host stream it is.
            seq: the number of the next record that the dashboard expects of the own stream.
        """
        if writer != self._own_folder.name or seq <= self._journal.next_seq("host"):
            return
        records = [data for _, data in read_stream(self._own_folder, "host")]
        self._journal.go_on_at("host", seq)
        if records:
            with contextlib.suppress(JournalError):
                self._journal.append_many("host", records, is_urgent=True)

    def close(self) -> None:
        """Close the helper's own journal, and what is held of the trainers."""
        for trainer in self._trainers.values():
            trainer.close()
        self._journal.close()

    def _is_local(self, trainer: Trainer) -> bool:
        """A spool on shared storage has trainers of other hosts: their own helper ships those."""
        return trainer.start is not None and trainer.start.host in ("", self._host)

    def _read_over(self) -> dict[tuple[int, int], float]:
        """What an earlier helper has already reported as over, and when."""
        over: dict[tuple[int, int], float] = {}
        for _, data in read_stream(self._own_folder, "host"):
            with contextlib.suppress(WireError):
                record = decode_record(data)
                if isinstance(record, HostSample) and record.state != "running":
                    over[(record.rank, record.incarnation)] = record.time
                elif isinstance(record, Event) and record.kind not in ("hang", "killed"):
                    self._known_of_ranks.append(record)
                elif isinstance(record, Event) and record.kind == "hang":
                    self._known_hangs[f"{record.rank}-{record.incarnation}"] = record
        return over
