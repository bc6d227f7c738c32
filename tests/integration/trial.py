"""A trial of the whole line: real trainings, their helpers and `dashboard serve`, and what happens to them.

`Trial` starts and kills them; `Trial.check` is the one judgement for all: what the trainings have noted, what
an independent reader finds in the journals, and what the store holds at the end are the same.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from forked_scripts import ForkedScript, ForkedScripts
from written_journal import Stream, read_raw

from dashboard.client import Client
from dashboard.errors import DashboardError
from dashboard.store.duck import DuckStore
from dashboard.store.protocol import Store
from probe.delivery.helper.helper import host_folder, lock_owner, lock_path
from probe.delivery.journal.ring_rest import read_rest

HERE = Path(__file__).resolve().parent
TRAINING = HERE / "scripts" / "noted_training.py"
FAILING_SERVE = HERE / "scripts" / "serve_with_failpoint.py"
_DISTURBING = ("NOTED_AT_STEP", "NOTED_WRITES")
Process = ForkedScript | subprocess.Popen[bytes]


def wait_for(condition: Callable[[], object], what: str, timeout_s: float = 90.0) -> None:
    """Poll until it holds: nothing in a trial may hang, and what does is named."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"hangs: {what}"
        time.sleep(0.02)


def free_port() -> int:
    with socket.socket() as probing:
        probing.bind(("127.0.0.1", 0))
        return int(probing.getsockname()[1])


@dataclass(frozen=True, kw_only=True)
class Notes:
    """What the trainings of one run have noted."""

    steps: dict[int, dict[int, float]]
    """Rank -> step -> loss."""
    events: list[str]
    weights: list[str]
    failed_writes: int


@dataclass(kw_only=True)
class Account:
    """What a check has counted, over all runs."""

    steps: int = 0
    """Finished ones; each was found in the store, with its value."""
    events: int = 0
    records: int = 0
    """In the journals, and in rings that a reader takes."""
    missing: int = 0
    """Finished steps and noted events that are not stored, where a loss is allowed."""
    told: int = 0
    """Losses that are counted: gaps, refused records, and what `RunEnd` says was never written."""
    faults: dict[str, int] = field(default_factory=dict)

    def line(self, name: str, seed: int) -> str:
        """A row of the table of figures."""
        faults = ", ".join(f"{count} {what}" for what, count in self.faults.items())
        return (
            f"| {name} | {seed} | {faults or '-'} | {self.steps:,} | {self.events:,} | {self.records:,} "
            f"| {self.missing:,} | {self.told:,} |"
        )


class Trial:
    """Everything of one trial lies under one folder.

    Args:
        root: where.
        seed: of what happens by chance; printed.
        torch: forks trainings.
        dashboard: forks servers; None starts Python for them.
    """

    def __init__(self, root: Path, seed: int, torch: ForkedScripts, dashboard: ForkedScripts) -> None:
        self.chance = random.Random(seed)
        self.seed = seed
        self.root, self.spool, self.data = root, root / "spool", root / "data"
        self._torch, self._dashboard = torch, dashboard
        self.environment = {"XDG_STATE_HOME": str(root / "state"), "NANSCOPE_SPOOL": str(self.spool)}
        self.environment |= {"NANSCOPE_QUIET": "1", "NANSCOPE_LINGER_S": "60"}
        self.connect: str | None = None
        """Where helpers ship to, if it is not what `serve.json` says."""
        self.ingest_port, self.page_port = free_port(), free_port()
        self.server: Process | None = None
        self.trainers: dict[str, Process] = {}
        self._asked: dict[str, dict[str, str]] = {}
        self._alone: dict[tuple[tuple[str, str], ...], str] = {}
        self.account = Account()
        self.in_namespace: list[str] = []
        """Begin of commands that run in another network namespace."""
        self.undo = contextlib.ExitStack()
        """What is done once nothing runs any more."""

    # -- processes

    def start_server(self, *, dies: str = "", is_awaited: bool = True) -> None:
        """Start `dashboard serve` on the trial's ports."""
        command = ["serve", "--port", str(self.page_port), "--no-browser", "--data", str(self.data)]
        command += ["--spool", str(self.spool), "--ingest", f"tcp://127.0.0.1:{self.ingest_port}"]
        script = [str(FAILING_SERVE)] if dies else ["-m", "dashboard"]
        self.server = self._start(self._dashboard, [*script, *command], {"SERVE_DIES": dies})
        if is_awaited:
            wait_for(self.answers, "serve does not answer")

    def answers(self) -> bool:
        """Whether the server answers, and not one that is about to die."""
        assert self.server is not None
        try:
            self.client().health()
        except DashboardError:
            return False
        return True

    def client(self) -> Client:
        """A client of the page's API."""
        return Client(f"http://127.0.0.1:{self.page_port}/", self.token(), timeout_s=20)

    def token(self) -> str:
        found = re.search(r"token=(\S+)", self._said())
        return found[1] if found else "none"

    def _said(self) -> str:
        if isinstance(self.server, ForkedScript):
            return self.server.said()
        return (self.root / "serve.log").read_text() if (self.root / "serve.log").exists() else ""

    def move_server(self) -> None:
        """Have the next server listen elsewhere."""
        self.ingest_port, self.page_port = free_port(), free_port()

    def start_training(self, run: str, *, rank: int | None = None, **asked: object) -> Process:
        """Start a training that goes on after the last step that the run, or its rank, has noted."""
        first = 100 + max(self.notes(run).steps.get(rank or 0, {-100: 0.0}))
        environment = {"NANSCOPE_RUN": run, "NOTED_LOG": str(self.log_path(run)), "NOTED_FIRST": str(first)}
        environment |= {f"NOTED_{name.upper()}": str(value) for name, value in asked.items()}
        self._asked[run] = environment
        if rank is not None:
            environment["RANK"] = str(rank)  # of a world of its own: nobody compares it with others
        if self.connect is not None:
            environment["NANSCOPE_CONNECT"] = self.connect
        self.root.mkdir(exist_ok=True, parents=True)
        process = self._start(self._torch, [str(TRAINING)], environment)
        self.trainers[run if rank is None else f"{run} {rank}"] = process
        return process

    def _start(self, scripts: ForkedScripts, command: list[str], environment: dict[str, str]) -> Process:
        asked = {"PYTHONPATH": str(HERE.parents[1]), **self.environment, **environment}
        if not self.in_namespace:
            with without_ours():
                return scripts.start(command, self.root, asked)
        with without_ours():
            inherited = dict(os.environ)
        name = "serve.log" if "serve" in command else "training.log"
        with (self.root / name).open("ab") as log:
            return subprocess.Popen(
                [*self.in_namespace, sys.executable, *command],
                env={**inherited, **asked},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=HERE.parents[1],
            )  # fmt: skip

    def helper_pid(self, run: str) -> int | None:
        """The process id of a run's helper, if one is alive."""
        return lock_owner(lock_path(host_folder(self.spool / run)))

    # -- what happens to them

    def count(self, what: str) -> None:
        """Note that a fault was made."""
        self.account.faults[what] = self.account.faults.get(what, 0) + 1

    def kill_server(self) -> None:
        """Kill -9, and wait for its end."""
        assert self.server is not None
        self.server.kill()
        self.server.wait(30)
        self.count("serve killed")

    def kill_training(self, run: str) -> None:
        """Kill -9, and wait for its end."""
        self.trainers[run].kill()
        self.trainers[run].wait(30)
        self.count("trainer killed")

    def kill_helper(self, run: str) -> None:
        """Kill -9 the run's helper, if it has one at the moment."""
        if (pid := self.helper_pid(run)) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.count("helper killed")

    # -- the end

    def settle(self, timeout_s: float = 90.0) -> None:
        """Wait until everything is stored, whoever brings it; start a server if there is none."""
        if self.server is None or self.server.poll() is not None:
            self.start_server()
        for run in self.runs():
            wait_for(
                lambda run=run: self.helper_pid(run) is None, f"the helper of {run} does not leave", timeout_s
            )
        wait_for(lambda: all(map(self._is_stored, self.runs())), "not everything gets stored", timeout_s)

    def _is_stored(self, run: str) -> bool:
        """Whether the server has taken every record that the journals have."""
        try:
            delivery = self.client()._json("GET", f"api/v1/runs/{run}/delivery")
        except DashboardError:
            return False
        reached = {(one["writer"], one["stream"]): one["next_seq"] for one in delivery["positions"]}
        return all(reached.get(key, 0) >= end for key, end in ends_of(self.spool / run).items())

    def stored_to(self, run: str, stream: str) -> int:
        """Up to which record the server has such a stream of the run; 0 while there is none."""
        try:
            positions = self.client()._json("GET", f"api/v1/runs/{run}/delivery")["positions"]
        except DashboardError:
            return 0
        return max((one["next_seq"] for one in positions if one["stream"] == stream), default=0)

    def runs(self) -> list[str]:
        """Runs that have begun."""
        return sorted(path.name for path in self.spool.iterdir() if path.is_dir())

    def log_path(self, run: str) -> Path:
        return self.root / f"{run}.noted"

    def notes(self, run: str) -> Notes:
        """What the trainings of a run have noted until now; a line that is being written is left out."""
        steps: dict[int, dict[int, float]] = {}
        events: list[str] = []
        weights: list[str] = []
        failed = 0
        text = self.log_path(run).read_text() if self.log_path(run).exists() else ""
        for line in text.splitlines():
            kind, _, rest = line.partition(" ")
            if kind == "step":
                rank, step, loss = rest.split()
                steps.setdefault(int(rank), {})[int(step)] = float(loss)
            elif kind == "failed":
                failed += int(rest)
            else:
                (events if kind == "event" else weights).append(rest)
        return Notes(steps=steps, events=events, weights=weights, failed_writes=failed)

    def wait_for_steps(self, run: str, count: int) -> None:
        """Wait until a run has finished so many steps more."""
        begun = self._finished(run)
        wait_for(lambda: self._finished(run) >= begun + count, f"the training {run} does not get on")

    def _finished(self, run: str) -> int:
        return sum(map(len, self.notes(run).steps.values()))

    def weights_without_probe(self, run: str) -> str:
        """Train once more as a run did, with the probe switched off and nothing that disturbs it."""
        asked = {key: value for key, value in self._asked[run].items() if key not in _DISTURBING}
        unlike = ("NOTED_LOG", "NANSCOPE_RUN")
        alike = tuple(sorted((key, value) for key, value in asked.items() if key not in unlike))
        if alike not in self._alone:
            log = self.root / "alone.noted"
            log.unlink(missing_ok=True)
            script = self._start(
                self._torch, [str(TRAINING)], {**asked, "NANSCOPE_OFF": "1", "NOTED_LOG": str(log)}
            )
            assert script.wait(120) == 0
            self._alone[alike] = self.notes("alone").weights[0]
        return self._alone[alike]

    def stop_server(self) -> None:
        """End the server in an orderly way."""
        assert self.server is not None
        self.server.send_signal(signal.SIGTERM)
        assert self.server.wait(60) == 0, self._said()

    def check(self, *, may_lose: bool = False) -> Account:
        """Stop the server; assert that all is stored once and right, or counted; return the account."""
        self.stop_server()
        store = DuckStore(self.data)
        try:
            for run in self.runs():
                check_run(store, self.spool / run, self.notes(run), self.account, may_lose=may_lose)
        finally:
            store.close()
        return self.account

    def close(self) -> None:
        """Kill what is left."""
        for process in [*self.trainers.values(), self.server]:
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait(30)
        for run in self.runs() if self.spool.is_dir() else ():
            while (pid := self.helper_pid(run)) is not None:
                with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
                    os.kill(pid, signal.SIGKILL)
                    psutil.Process(pid).wait(10)
        self.undo.close()


@contextlib.contextmanager
def without_ours() -> Iterator[None]:
    """What tests set for everybody is not inherited: here a helper is to find the dashboard by itself."""
    kept = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("NANSCOPE_")}
    try:
        yield
    finally:
        os.environ.update(kept)


def ends_of(run_folder: Path) -> dict[Stream, int]:
    """The number after the last record of each stream; of a dead writer with what its ring holds."""
    ends = {key: max(records, default=-1) + 1 for key, records in read_raw(run_folder).items()}
    for folder in run_folder.iterdir():
        if folder.is_dir() and any(folder.glob("ring*")):
            written = ends.get((folder.name, "metrics"), 0)
            ends[folder.name, "metrics"] = written + len(read_rest(folder, metrics_end=written))
    return {key: end for key, end in ends.items() if end}


def check_run(store: Store, folder: Path, notes: Notes, account: Account, *, may_lose: bool = False) -> None:
    """Assert the invariant for one run: noted, written and stored are the same, each once."""
    run, raw = folder.name, read_raw(folder)
    missing = 0
    for rank, noted in notes.steps.items():
        shown = store.scalars(run, rank, ["loss"], max_points=10**7)
        assert (shown["pooled"] == 1).all()
        stored = dict(zip(shown["step"].tolist(), shown["mean"].tolist(), strict=True))
        assert len(stored) == len(shown), "a step is stored twice"
        wrong = {step for step, loss in noted.items() if step in stored and stored[step] != loss}
        assert not wrong, f"{run}: wrong values at {sorted(wrong)[:5]}"
        absent = sorted(noted.keys() - stored.keys())
        assert may_lose or not absent, f"{run}: {len(absent)} finished steps are not stored: {absent[:5]}"
        missing += len(absent)
        # What was finished and could not be noted any more; an interrupted one has no update.
        assert len(stored.keys() - noted.keys()) <= len(incarnations(raw, rank)), run
        account.steps += len(noted)
    messages = [event.message for event in store.events(run) if event.kind == "custom"]
    assert len(messages) == len(set(messages)), "an event is stored twice"
    absent_events = set(notes.events) - set(messages)
    assert may_lose or not absent_events, f"{run}: events are not stored: {sorted(absent_events)[:5]}"
    account.events += len(notes.events)
    check_written(store, run, raw)
    told = check_positions(store, run, ends_of(folder), may_lose=may_lose)
    told += sum(record["lost_before_write"] for record in records_of(raw, "run_end"))
    account.records += sum(ends_of(folder).values())
    account.missing += missing + len(absent_events)
    account.told += told
    assert told >= missing + len(absent_events), f"{run}: {missing} steps are lost, {told} are told"


def check_written(store: Store, run: str, raw: dict[Stream, dict[int, Any]]) -> None:
    """Every whole record in the journals is what the store shows."""
    # What ranks and starts say of one event: the newest start's last word counts.
    said = sorted(records_of(raw, "event"), key=lambda record: record["incarnation"])
    events = {record["id"]: record for record in said}
    stored = {event.id: event for event in store.events(run)}
    assert events.keys() <= stored.keys(), "events of the journal are not stored"
    for name, record in events.items():
        found = stored[name]
        shown, written = (
            (found.message, found.step, found.kind),
            tuple(map(record.get, ("message", "step", "kind"))),
        )
        assert shown == written, (run, name, shown, written)


def check_positions(store: Store, run: str, ends: dict[Stream, int], *, may_lose: bool) -> int:
    """Assert that each stream's account balances; return how many records are counted as lost."""
    positions = {(one.key.writer, one.key.stream): one for one in store.positions(run)}
    assert len(positions) == len(store.positions(run))
    lost = 0
    for key, end in ends.items():
        one = positions[key]
        assert one.stored + one.gaps + one.dropped == one.next_seq >= end, (run, key, one, end)
        assert may_lose or not one.gaps + one.dropped, (run, key, one)
        lost += one.gaps + one.dropped
    return lost


def records_of(raw: dict[Stream, dict[int, Any]], kind: str) -> list[Any]:
    """All records of one kind."""
    return [record for records in raw.values() for record in records.values() if record["t"] == kind]


def incarnations(raw: dict[Stream, dict[int, Any]], rank: int) -> set[str]:
    """Writers of a rank."""
    return {writer for writer, _ in raw if writer.startswith(f"{rank}-")}
