"""A real ZooKeeper in a folder of its own, on loopback, for replicas of ClickHouse.

keeper = ZooKeeper(folder)
keeper.start()
server = ClickHouseServer(folder / "one", keeper=keeper.port)
keeper.kill(), keeper.start()  # the same folder and port
keeper.stop()
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Final

from clickhouse_server import HOST, free_port

JAR: Final = Path("/usr/share/java/zookeeper.jar")
START_S: Final = 60.0
CONFIG = """tickTime=500
dataDir={folder}/data
clientPort={port}
clientPortAddress={host}
admin.enableServer=false
maxClientCnxns=0
"""


def what_is_missing() -> str | None:
    """Why there can be no ZooKeeper here and how to have one; None where there can."""
    if shutil.which("java") is None or not JAR.exists():
        packages = "libzookeeper-java default-jre-headless"
        return f"ZooKeeper is missing: apt-get install --no-install-recommends {packages}, or make replicas"
    return None


class ZooKeeper:
    """One server: a process of ours, which ends with us.

    Args:
        folder: Its configuration, data and logs; made if it does not exist.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the process, which must run."""
        assert self._process is not None, "ZooKeeper does not run"
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it answers; what was in its folder is there again."""
        (self.folder / "data").mkdir(parents=True, exist_ok=True)
        config = self.folder / "zoo.cfg"
        config.write_text(CONFIG.format(folder=self.folder, port=self.port, host=HOST))
        dying = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        # Half the start is the second compiler's, which a small server does not need.
        java = ["java", "-Xmx96m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", str(JAR)]
        with open(self.folder / "output.log", "wb") as output:
            self._process = subprocess.Popen(
                [*dying, *java, "org.apache.zookeeper.server.ZooKeeperServerMain", str(config)],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + START_S
        while not self._answers():
            assert self._process.poll() is None and time.monotonic() < deadline, self.log()
            time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Have it end as an operator does; nothing where it does not run."""
        self._end(signal.SIGTERM)

    def log(self) -> str:
        """What it has said."""
        return (self.folder / "output.log").read_text(errors="replace")[-4000:]

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((HOST, self.port), timeout=1) as one:
            one.sendall(b"srvr")
            return one.recv(64).startswith(b"Zookeeper version")
        return False

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()
            self._process = None
