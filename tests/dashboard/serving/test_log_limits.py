"""What strangers can cause fills no log: the first line of a kind, then one a minute with the count."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import api_server
import pytest
import zmq

from dashboard.serving.log_limits import INTERVAL_S, LIMITED, LogLimits

NAME = "nanscope.test.limits"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def limits(clock: Clock) -> Iterator[LogLimits]:
    made = LogLimits(clock)
    remove = made.install([NAME])
    yield made
    remove()
    assert logging.getLogger(NAME).filters == []


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def warn(times: int, text: str = "odd bytes from %s") -> None:
    for number in range(times):
        logging.getLogger(NAME).warning(text, number)


def test_first_line_is_written_and_more_like_it_are_counted(
    limits: LogLimits, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    warn(1000)
    assert lines(caplog) == ["odd bytes from 0"]
    clock.now += INTERVAL_S
    limits.write_summaries()
    assert lines(caplog)[1:] == ["odd bytes from 999 (999 more like this, 60 s)"]


def test_summary_comes_once_a_minute_while_it_goes_on(
    limits: LogLimits, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(600):
        warn(10)
        clock.now += 1.0
    counts = [record.getMessage().split("(")[1] for record in caplog.records[1:]]
    assert len(counts) == 9
    assert set(counts) <= {
        "600 more like this, 60 s)",
        "599 more like this, 60 s)",
        "601 more like this, 60 s)",
    }


def test_quiet_minute_makes_the_next_line_a_first_one(
    limits: LogLimits, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    warn(1)
    clock.now += INTERVAL_S
    limits.write_summaries()
    warn(1)
    assert lines(caplog) == ["odd bytes from 0", "odd bytes from 0"]


def test_other_kinds_and_information_are_written(limits: LogLimits, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        warn(2)
        warn(2, "another %s")
        for _ in range(3):
            logging.getLogger(NAME).info("started")
    assert lines(caplog) == ["odd bytes from 0", "another 0", "started", "started", "started"]


def test_kinds_without_end_are_bounded(limits: LogLimits, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(10_000):
        logging.getLogger(NAME).warning(f"kind {number}")
    assert len(caplog.records) < 100
    assert len(limits._seen) < 100


def test_end_tells_what_was_left_out(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    remove = LogLimits(clock).install([NAME])
    warn(5)
    remove()
    assert lines(caplog) == ["odd bytes from 0", "odd bytes from 4 (4 more like this, 0 s)"]


def test_garbage_at_the_ingest_port_is_one_line_and_not_said_to_be_a_trainings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    with api_server.serving(tmp_path) as server:
        stranger.connect(server.ingest)
        for _ in range(300):
            stranger.send(b"\xff\xfe no message")
            assert stranger.poll(10_000)
            stranger.recv()
        (notice,) = server.notices()
    stranger.close(linger=0)
    context.term()
    assert notice == f"300 messages at {server.ingest} came from no training, and were refused."
    first, summary = lines(caplog)
    assert first == f"{server.ingest} was sent what no training's helper sends; it was refused"
    assert summary.startswith(f"{first} (299 more like this, ")


def test_garbage_at_the_page_writes_no_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with api_server.serving(tmp_path) as server:
        host, port = server.page.removeprefix("http://").strip("/").split(":")
        for _ in range(300):
            with socket.create_connection((host, int(port)), timeout=10) as stranger:
                stranger.sendall(b"\x16\x03\x01 no HTTP at all\r\n\r\n")
                while stranger.recv(1000):
                    pass
    assert lines(caplog) == []
    assert all(logging.getLogger(name).filters == [] for name in LIMITED)
