"""Two `dashboard serve` on two ClickHouse servers, behind a balancer: any may be killed, all is stored once.

The ranks of a run lie on both servers. The collectors have no spool and no data of their own. What the
trainings have noted, what the journals hold and what a fresh store reads at the end are the same.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clickhouse_server import ClickHouseServer, shards, url_of, what_is_missing
from delivery import assert_delivered
from forked_scripts import ForkedScripts
from trial import Account, Process, Trial, check_run, free_port, wait_for
from trial_fixtures import HEAD
from trial_scenarios import scaled

from dashboard.client import Client
from dashboard.errors import DashboardError
from dashboard.serving.credentials import load_credentials

pytestmark = pytest.mark.skipif(what_is_missing() is not None, reason=str(what_is_missing()))
NAMES = ("one", "other")
SERVERS = ("first server", "second server")
RANKS = (0, 1)


class Balancer(threading.Thread):
    """Gives each connection to one of the collectors that listen, in turns.

    Args:
        ports: Of the collectors.
    """

    def __init__(self, ports: list[int]) -> None:
        super().__init__(daemon=True)
        self._ports = ports
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._stopping, self._cutting = threading.Event(), threading.Event()
        self.given = dict.fromkeys(ports, 0)

    def cut(self) -> None:
        """Have all connections end: the collectors live on, and helpers may come to the other."""
        self._cutting.set()

    def stop(self) -> None:
        self._stopping.set()
        self.join(20)

    def run(self) -> None:
        while not self._stopping.is_set():
            for key, _ in self._selector.select(0.05):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj.fileno() >= 0:  # type: ignore[union-attr]
                    self._forward(key.fileobj, key.data)
            if self._cutting.is_set():
                self._cutting.clear()
                self._close(*(key.fileobj for key in self._connections()))
        self._close(*(key.fileobj for key in self._connections()))
        self._listener.close()
        self._selector.close()

    def _connections(self) -> list[selectors.SelectorKey]:
        return [key for key in self._selector.get_map().values() if key.fileobj is not self._listener]

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        for port in list(self._ports):
            self._ports.append(self._ports.pop(0))
            with contextlib.suppress(OSError):
                far = socket.create_connection(("127.0.0.1", port), timeout=5)
                self.given[port] += 1
                for one, end in ((near, far), (far, near)):
                    one.settimeout(5)
                    self._selector.register(one, selectors.EVENT_READ, end)
                return
        near.close()

    def _forward(self, source: Any, sink: Any) -> None:
        try:
            data = source.recv(65_536)
            if not data:
                raise ConnectionError
            sink.sendall(data)
        except OSError:
            self._close(source, sink)

    def _close(self, *ends: Any) -> None:
        for end in ends:
            self._selector.unregister(end)
            end.close()


class SharedDatabase:
    """A trial whose trainings ship to two collectors, which share a database on two servers.

    Args:
        trial: Has the trainings.
        forked: Forks the collectors.
    """

    def __init__(self, trial: Trial, forked: ForkedScripts) -> None:
        self.trial, self._forked = trial, forked
        self._undo = contextlib.ExitStack()
        self.servers: list[ClickHouseServer] = []
        self.ports = {name: free_port() for name in NAMES}
        self._pages = {name: free_port() for name in NAMES}
        self._running: dict[str, Process] = {}
        self.balancer = Balancer([*self.ports.values()])
        trial.connect = f"tcp://127.0.0.1:{self.balancer.port}"
        self._credentials = load_credentials(trial.environment)
        trial.environment["NANSCOPE_SECRET"] = self._credentials.secret

    def start(self) -> None:
        self.servers = self._undo.enter_context(shards(self.trial.root / "clickhouse"))
        self.balancer.start()
        for name in NAMES:
            self.start_collector(name)

    def start_collector(self, name: str, *, is_awaited: bool = True) -> None:
        folder = self.trial.root / name
        command = ["-m", "dashboard", "serve", "--port", str(self._pages[name]), "--no-browser"]
        command += ["--data", str(folder / "data"), "--spool", str(folder / "spool")]
        command += ["--ingest", f"tcp://127.0.0.1:{self.ports[name]}"]
        command += ["--store", url_of(self.servers, "shared")]
        asked = {**self.trial.environment, "NANSCOPE_STORE_PASSWORD": self.servers[0].password}
        self._running[name] = self.trial._start(self._forked, command, asked)
        if is_awaited:
            wait_for(lambda: self.answers(name), f"the collector {name} does not answer")

    def answers(self, name: str) -> bool:
        assert self._running[name].poll() is None, getattr(self._running[name], "said", str)()
        try:
            self.page(name).health()
        except DashboardError:
            return False
        return True

    def page(self, name: str) -> Client:
        return Client(f"http://127.0.0.1:{self._pages[name]}/", self._credentials.token, timeout_s=20)

    def kill_collector(self, name: str) -> None:
        self._running[name].kill()
        self._running[name].wait(30)
        self.trial.count("collector killed")

    def kill_server(self, number: int) -> None:
        self.servers[number].kill()
        self.trial.count("ClickHouse killed")
        time.sleep(self.trial.chance.uniform(0.0, 0.5))
        self.servers[number].start()

    def cut(self) -> None:
        self.balancer.cut()
        self.trial.count("connections cut")

    def check(self) -> Account:
        """Wait until all is acknowledged, kill everything, assert that all is stored once."""
        from dashboard.store.clickhouse.store import ClickStore

        for run in self.trial.runs():
            wait_for(
                lambda run=run: self.trial.helper_pid(run) is None, f"the helper of {run} does not leave"
            )
        for name in NAMES:
            self._running[name].kill()
            self._running[name].wait(30)
        for server in self.servers:
            server.kill()
            server.start()
        store = ClickStore(url_of(self.servers, "shared"), password=self.servers[0].password)
        try:
            for run in self.trial.runs():
                folder = self.trial.spool / run
                check_run(store, folder, self.trial.notes(run), self.trial.account)
                assert_delivered(self.trial.spool, run, store)
                assert [event for event in store.events(run) if event.kind == "data_gap"] == []
                assert store.gaps(run) == []
                assert all(start.returns == () for start in store.starts(run))
        finally:
            store.close()
        return self.trial.account

    def close(self) -> None:
        for process in self._running.values():
            if process.poll() is None:
                process.kill()
                process.wait(30)
        self.trial.close()
        if self.balancer.is_alive():
            self.balancer.stop()
        self._undo.close()


@pytest.fixture
def shared(
    tmp_path: Path, forked: ForkedScripts, forked_dashboard: ForkedScripts
) -> Iterator[SharedDatabase]:
    """One that has begun nothing; `TRIAL_SEED` repeats one."""
    seed = int(os.environ.get("TRIAL_SEED", time.time_ns() % 10**6))
    print("TRIAL_SEED", seed)
    made = SharedDatabase(Trial(tmp_path, seed, forked, forked_dashboard), forked_dashboard)
    yield made
    made.close()


def test_training_is_stored_once_though_collectors_and_servers_are_killed(shared: SharedDatabase) -> None:
    shared.start()
    trial = shared.trial
    for rank in RANKS:
        trial.start_training("a", rank=rank, pause_s=0.01)
    trial.wait_for_steps("a", 50)
    first, second = trial.chance.sample(NAMES, 2)
    for fault in trial.chance.sample([first, second, *SERVERS, "cut"], 5):
        trial.wait_for_steps("a", trial.chance.randint(1, 150))
        if fault in SERVERS:
            shared.kill_server(SERVERS.index(fault))
        elif fault == "cut":
            shared.cut()
        else:
            shared.kill_collector(fault)
            trial.wait_for_steps("a", trial.chance.randint(1, 150))
            shared.start_collector(fault, is_awaited=False)
    trial.wait_for_steps("a", 50)
    for name in NAMES:
        wait_for(lambda name=name: shows_more_than(shared, name, 100), f"the page of {name} shows no steps")
    for rank in RANKS:
        trial.kill_training(f"a {rank}")
    account = shared.check()
    assert (account.missing, account.told) == (0, 0)
    assert (
        account.steps >= 150
        and account.faults["collector killed"] == account.faults["ClickHouse killed"] == 2
    )
    for server in shared.servers:
        assert server.ask("SELECT uniq(timeline) FROM shared.scalar_raw") == [(1,)], "a rank on each server"


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_trainings_are_stored_once_through_many_kills(shared: SharedDatabase) -> None:
    """Kill -9 of everything at random moments, one alone or several at once; `TRIAL_SCALE` times 60."""
    shared.start()
    trial, running = shared.trial, set(NAMES)
    ranks = {f"{run} {rank}": (run, rank) for run in "ab" for rank in RANKS}
    for run, rank in ranks.values():
        trial.start_training(run, rank=rank, pause_s=0.01)
        trial.wait_for_steps(run, 10)
    while sum(trial.account.faults.values()) < scaled(60):
        name = trial.chance.choice([*ranks])
        run, rank = ranks[name]
        trial.wait_for_steps(run, trial.chance.randint(1, 150))
        victims = trial.chance.sample(
            ["trainer", "helper", *NAMES, *SERVERS, "cut"], k=trial.chance.randint(1, 3)
        )
        if "trainer" in victims:
            trial.kill_training(name)
        if "helper" in victims:
            trial.kill_helper(run)
        for collector in running.intersection(victims):
            shared.kill_collector(collector)
            running.remove(collector)
        for server in SERVERS:
            if server in victims:
                shared.kill_server(SERVERS.index(server))
        if "cut" in victims:
            shared.cut()
        if "trainer" in victims:
            trial.start_training(run, rank=rank, pause_s=0.01)
        for collector in set(NAMES) - running:
            if trial.chance.random() < 0.7:
                shared.start_collector(collector, is_awaited=False)
                running.add(collector)
    for collector in set(NAMES) - running:
        shared.start_collector(collector, is_awaited=False)
    for run in "ab":
        trial.wait_for_steps(run, 5)
        # Where both were killed, nobody ships until the run goes on.
        wait_for(lambda run=run: trial.helper_pid(run) is not None, f"no helper of {run} comes")
    for name in ranks:
        trial.kill_training(name)
    account = shared.check()
    print("\n" + HEAD + "\n" + account.line("kills of all, two collectors on two servers", trial.seed))
    assert (account.missing, account.told) == (0, 0)


def shows_more_than(shared: SharedDatabase, name: str, step: int) -> bool:
    """Whether a collector's page has the run so far, also what the other one has taken."""
    try:
        delivery = shared.page(name)._json("GET", "api/v1/runs/a/delivery")
    except DashboardError:
        return False
    return any(one["next_seq"] > step for one in delivery["positions"] if one["stream"] == "metrics")
