"""A real ClickHouse in a folder of its own, on loopback, for tests of the store in it.

    server = ClickHouseServer(folder)
    server.start()
    store = ClickStore(server.url("mine"), password=server.password)
    server.kill(), server.start()  # the same folder and port: what was acknowledged is there
    server.stop()

What Debian's 18.16 needs to know, and how it ends: docs/clickhouse.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
CLUSTER = "shards"
"""Name of the cluster that servers of `shards` know each other by."""
START_S = 60.0
STOP_S = 20.0

shared_pids: set[int] = set()
"""Servers of a whole worker: no test has left them behind."""

CONFIG = """<yandex>
  <logger><level>warning</level><log>{folder}/server.log</log><errorlog>{folder}/errors.log</errorlog></logger>
  <core_dump><size_limit>0</size_limit></core_dump>
  <users_config>users.xml</users_config>
  <mark_cache_size>16777216</mark_cache_size>
  <path>{folder}/data/</path>
  <tmp_path>{folder}/tmp/</tmp_path>
  <tcp_port>{port}</tcp_port>
  <listen_host>127.0.0.1</listen_host>
  <max_connections>200</max_connections>
  <default_profile>default</default_profile>
  <default_database>default</default_database>
  {keeper}
  {remote_servers}
</yandex>
"""
USERS = """<yandex>
  <profiles><default>
    <poll_interval>1</poll_interval>
    <max_threads>2</max_threads>
    <background_pool_size>2</background_pool_size>
    <max_memory_usage>1000000000</max_memory_usage>
  </default></profiles>
  <users><{user}>
    <password_sha256_hex>{digest}</password_sha256_hex>
    <networks><ip>127.0.0.1</ip></networks>
    <profile>default</profile>
    <quota>default</quota>
  </{user}></users>
  <quotas><default></default></quotas>
</yandex>
"""
SHARD = """<shard><internal_replication>true</internal_replication><replica>
    <host>127.0.0.1</host><port>{port}</port><user>{user}</user><password>{password}</password>
  </replica></shard>"""


KEEPER = """<interserver_http_port>{interserver}</interserver_http_port>
  <interserver_http_host>127.0.0.1</interserver_http_host>
  <zookeeper>
    <node index="1"><host>127.0.0.1</host><port>{port}</port></node>
    <session_timeout_ms>4000</session_timeout_ms>
  </zookeeper>"""


def binary() -> str | None:
    """The server's program; a user's PATH need not have Debian's folder of it."""
    return shutil.which("clickhouse-server") or shutil.which("clickhouse-server", path="/usr/sbin")


def what_is_missing() -> str | None:
    """Why there can be no server here and how to have one; None where there can."""
    if binary() is None:
        return "ClickHouse is missing: apt-get install --no-install-recommends clickhouse-server"
    if importlib.util.find_spec("clickhouse_driver") is None:
        return "clickhouse-driver is missing: pip install 'clickhouse-driver>=0.2.9'"
    return None


def free_port() -> int:
    """A port that nobody listens at; another program may take it meanwhile."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


class ClickHouseServer:
    """One server: a process of ours, which ends with us (and with the thread that has started it).

    Args:
        folder: Its configuration, data and logs; made if it does not exist.
        port: To listen at; one that is free, if none is given.
        password: Of its only user; made up, if none is given.
        cluster: Ports of all shards, this one's too; none for a server alone.
        keeper: Port of a ZooKeeper, for replicated tables.
    """

    user = "tester"

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        password: str | None = None,
        cluster: Sequence[int] = (),
        keeper: int | None = None,
    ) -> None:
        self.folder = folder
        self.password = password or secrets.token_hex(16)
        self.port = port or free_port()
        self._is_port_fixed = port is not None
        self._cluster = cluster
        self._keeper = keeper
        self._interserver = free_port() if keeper else 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the process, which must run."""
        assert self._process is not None, "the server does not run"
        return self._process.pid

    def url(self, database: str) -> str:
        """What `ClickStore` takes; the password goes beside it."""
        return f"clickhouse://{self.user}@{HOST}:{self.port}/{database}"

    def start(self) -> None:
        """Start it and wait until it takes connections; what was in its folder is there again."""
        assert self._process is None, "the server runs"
        for is_last in (False, False, True):
            self._write_configuration()
            self._process = self._launch()
            if self._is_up():
                self._is_port_fixed = True
                return
            self.kill()
            if is_last or self._is_port_fixed:
                raise AssertionError(f"ClickHouse does not start:\n{self.log()[-4000:]}")
            self.port = free_port()  # another worker may have taken it in the meantime

    def kill(self) -> None:
        """SIGKILL, as if the power of its machine were cut."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Have it do nothing, until `go_on`: its connections stay."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """After `pause`."""
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        """Have it end as an operator does; nothing where it does not run."""
        self._end(signal.SIGTERM)

    def ask(self, *statement: Any, password: str | None = None) -> Any:
        """Execute a statement on a connection of its own and return its rows."""
        from clickhouse_driver import Client

        known = password or self.password
        client = Client(HOST, port=self.port, user=self.user, password=known, connect_timeout=10)
        try:
            return client.execute(*statement)
        finally:
            client.disconnect()

    def log(self) -> str:
        """What it has complained of."""
        texts = [self.folder / name for name in ("output.log", "errors.log")]
        return "\n".join(text.read_text(errors="replace") for text in texts if text.exists())

    def _write_configuration(self) -> None:
        for name in ("data", "tmp"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        shards = [SHARD.format(port=port, user=self.user, password=self.password) for port in self._cluster]
        remote = f"<remote_servers><{CLUSTER}>{''.join(shards)}</{CLUSTER}></remote_servers>"
        alone = "<!-- alone -->"
        keeper = KEEPER.format(port=self._keeper, interserver=self._interserver) if self._keeper else alone
        config = CONFIG.format(
            folder=self.folder, port=self.port, remote_servers=remote if shards else alone, keeper=keeper
        )
        digest = hashlib.sha256(self.password.encode()).hexdigest()
        (self.folder / "config.xml").write_text(config)
        (self.folder / "users.xml").write_text(USERS.format(user=self.user, digest=digest))

    def _launch(self) -> subprocess.Popen[bytes]:
        program = binary()
        assert program is not None, what_is_missing()
        # A worker that is killed cannot stop it.
        dying = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        with open(self.folder / "output.log", "wb") as output:
            return subprocess.Popen(
                [*dying, program, f"--config-file={self.folder / 'config.xml'}"],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def _is_up(self) -> bool:
        """Wait until it listens; False where it has ended, or takes too long."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process is not None and self._process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection((HOST, self.port), timeout=1):
                # Where the port is another program's, ours ends a moment later.
                return self._greets()
            time.sleep(0.02)
        return False

    def _greets(self) -> bool:
        from clickhouse_driver.errors import Error

        try:
            return bool(self.ask("SELECT 1") == [(1,)])
        except (Error, OSError, EOFError):
            return False

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


def url_of(servers: Sequence[ClickHouseServer], database: str) -> str:
    """What `ClickStore` takes for a database on several servers."""
    places = ",".join(f"{HOST}:{server.port}" for server in servers)
    return f"clickhouse://{servers[0].user}@{places}/{database}"


def replicas_url(servers: Sequence[ClickHouseServer], database: str) -> str:
    """What `ClickStore` takes for a database of which each server has all."""
    places = "|".join(f"{HOST}:{server.port}" for server in servers)
    return f"clickhouse://{servers[0].user}@{places}/{database}"


@contextlib.contextmanager
def shards(folder: Path, count: int = 2) -> Iterator[list[ClickHouseServer]]:
    """Servers that know each other as the shards of `CLUSTER`, with one password; stopped at the end."""
    ports = [free_port() for _ in range(count)]
    password = secrets.token_hex(16)
    servers = [
        ClickHouseServer(folder / f"shard-{number}", port=port, password=password, cluster=ports)
        for number, port in enumerate(ports)
    ]
    try:
        for server in servers:
            server.start()
        yield servers
    finally:
        for server in servers:
            server.stop()
