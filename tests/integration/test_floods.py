"""Strangers by the thousand at both ports of a real `serve`, beside a real training: nobody else notices."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq
from delivery import Journals
from delivery_processes import wait_until
from told_training import told_training

from probe.wire import MAX_MESSAGE_BYTES

TOKEN = "token-for-tests"
SEED = 15
SLACK_FDS = 12
SLACK_MIB = 96
"""What threads, caches and the allocator take more after the first hundreds of requests."""


@dataclass
class Serving:
    """A `dashboard serve` in a process of its own."""

    process: psutil.Process
    page: tuple[str, int]
    ingest: tuple[str, int]

    def ask(self, path: str) -> Any:
        connection = http.client.HTTPConnection(*self.page, timeout=60)
        try:
            connection.request("GET", path, headers={"authorization": f"Bearer {TOKEN}"})
            answer = connection.getresponse()
            body = answer.read()
            assert answer.status == 200, body
            return json.loads(body)
        finally:
            connection.close()

    def descriptors(self) -> int:
        return self.process.num_fds()

    def mib(self) -> float:
        return float(self.process.memory_info().rss) / 2**20


@contextmanager
def serving(folder: Path) -> Iterator[Serving]:
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "NANSCOPE_TOKEN": TOKEN}
    command = [sys.executable, "-m", "dashboard", "serve", "--port", "0", "--ingest", "tcp://127.0.0.1:0"]
    command += ["--no-browser", "--data", str(folder / "data"), "--spool", str(folder / "spool")]
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    with (folder / "serve.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log)
    try:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        host = line.split("//")[1].split("/")[0]
        note = json.loads((folder / "state" / "nanscope" / "serve.json").read_text())
        yield Serving(psutil.Process(process.pid), address(host), address(note["ingest"]))
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def address(text: str) -> tuple[str, int]:
    host, _, port = text.removeprefix("tcp://").partition(":")
    return host, int(port)


def garbage(random_: random.Random) -> bytes:
    """What port scanners, browsers, other ZeroMQ programs and broken ones send."""
    return random_.choice(
        [
            b"",
            random_.randbytes(random_.randrange(1, 2000)),
            b"GET / HTTP/1.1\r\nhost: evil.example\r\n\r\n",
            b"POST / HTTP/1.1\r\ncontent-length: 99999999999\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00",  # TLS
            b"\xff" + bytes(8) + b"\x7f\x03",  # half of ZeroMQ's greeting
            b"\xff" + bytes(8) + b"\x7f\x03\0NULL" + bytes(48) + b"\x04\xff" + random_.randbytes(100),
            b"\x03" + random_.randbytes(9),
        ]
    )


def throw_garbage(at: tuple[str, int], random_: random.Random) -> None:
    with contextlib.suppress(OSError), socket.create_connection(at, timeout=10) as stream:
        stream.sendall(garbage(random_))


@contextmanager
def slow_senders(served: Serving, count: int) -> Iterator[list[socket.socket]]:
    """Connections that begin and never end, and ZeroMQ peers that connect and say nothing."""
    with contextlib.ExitStack() as opened:
        streams = []
        for number in range(count):
            stream = opened.enter_context(
                socket.create_connection(served.page if number % 2 else served.ingest, timeout=10)
            )
            stream.sendall(b"GET / HTTP/1.1\r\nx" if number % 2 else b"\xff")
            streams.append(stream)
        context = opened.enter_context(zmq.Context())
        for _ in range(count // 4):
            silent = opened.enter_context(context.socket(zmq.DEALER))
            silent.linger = 0
            silent.connect("tcp://{}:{}".format(*served.ingest))
        yield streams


def send_oversized(served: Serving) -> None:
    """One frame that is too large, and one body that is."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect("tcp://{}:{}".format(*served.ingest))
        dealer.send(bytes(MAX_MESSAGE_BYTES + 1))
        dealer.poll(200)
    connection = http.client.HTTPConnection(*served.page, timeout=60)
    headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
    with contextlib.suppress(OSError):
        connection.request("POST", "/api/v1/runs/remove", body=bytes(8 << 20), headers=headers)
        assert connection.getresponse().status == 413
    connection.close()


def flood(served: Serving, count: int, random_: random.Random) -> int:
    """Throw it, and ask for a page in between; return how many answers came."""
    answers = 0
    with slow_senders(served, 40) as streams:
        for number in range(count):
            throw_garbage(served.page if number % 2 else served.ingest, random_)
            if number % 20 == 0:
                assert served.ask("/health")["status"] == "ok"
                answers += 1
                for stream in streams:
                    with contextlib.suppress(OSError):
                        stream.send(b"x")
        for _ in range(3):
            send_oversized(served)
    return answers


@pytest.mark.parametrize("count", [300, pytest.param(6000, marks=pytest.mark.faults)])
def test_flood_of_strangers_beside_a_training_takes_nothing(tmp_path: Path, count: int) -> None:
    random_ = random.Random(SEED)
    with serving(tmp_path) as served:
        with told_training(tmp_path, "basic", "0.005") as training:
            wait_until(lambda: served.ask("/api/v1/runs")["runs"], "the training does not arrive")
            flood(served, 100, random_)  # what is made once is there now
            wait_until(lambda: served.descriptors() < 400, "descriptors stay")
            before = served.descriptors(), served.mib()
            began = time.monotonic()
            answers = flood(served, count, random_)
            took = time.monotonic() - began
            training.end()
        wait_for_delivery(served, tmp_path / "spool", training.run)
        wait_until(lambda: served.descriptors() <= before[0] + SLACK_FDS, "descriptors stay")
        after = served.descriptors(), served.mib()
        print(
            f"\nseed {SEED}: {count:,} garbage connections in {took:.0f} s, {answers} answers meanwhile;"
            f" descriptors {before[0]} -> {after[0]}, memory {before[1]:.0f} -> {after[1]:.0f} MiB"
        )
        assert after[1] <= before[1] + SLACK_MIB
    assert len((tmp_path / "serve.log").read_text().splitlines()) < 20


def wait_for_delivery(served: Serving, spool: Path, run: str) -> None:
    """All that the journals hold is stored: nothing missing, nothing refused."""

    def accounts() -> dict[tuple[str, str], tuple[int, int, int]]:
        found = served.ask(f"/api/v1/runs/{run}/delivery")["positions"]
        return {(one["writer"], one["stream"]): (one["stored"], one["gaps"], one["dropped"]) for one in found}

    def is_delivered() -> bool:
        journals = Journals(spool, run)
        written = {(key.writer, key.stream): count for key, count in journals.written.items() if count}
        return accounts() == {key: (count, 0, 0) for key, count in written.items()}

    wait_until(is_delivered, f"not all is stored: {accounts()}", timeout_s=120)
    assert sum(stored for (_, stream), (stored, _, _) in accounts().items() if stream == "metrics") > 100
