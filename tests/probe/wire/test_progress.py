"""The bar of long work: silent where nobody sees it, and gone when the work is done."""

from __future__ import annotations

import io
import threading
import time

import pytest

from probe.wire.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(terminal: io.StringIO, text: str) -> bool:
    deadline = time.monotonic() + 10
    while text not in terminal.getvalue() and time.monotonic() < deadline:
        time.sleep(0.02)
    return text in terminal.getvalue()


@pytest.fixture(autouse=True)
def terminal_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probe.wire.progress._AFTER_S", 0.01)
    monkeypatch.setattr("probe.wire.progress._EVERY_S", 0.01)


@pytest.mark.usefixtures("quick")
def test_bar_shows_what_is_left_and_is_wiped() -> None:
    terminal = Terminal()
    with Progress("Reading", 10, stream=terminal) as progress:
        progress.advance(5)
        assert shown(terminal, "\rReading [############............] 50%, 5 of 10, ")
    assert terminal.getvalue().endswith(" \r")


@pytest.mark.usefixtures("quick")
def test_work_of_unknown_size_shows_its_label_and_time() -> None:
    terminal = Terminal()
    with Progress("Reading", stream=terminal) as progress:
        progress.advance(label="Comparing")
        assert shown(terminal, "\rComparing (0 s)")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("kind", ["pipe", "dumb", "closed"])
def test_nothing_is_written_where_nobody_sees_it(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO() if kind == "pipe" else Terminal()
    if kind == "dumb":
        monkeypatch.setenv("TERM", "dumb")
    if kind == "closed":
        stream.close()
    with Progress("Reading", 10, stream=stream) as progress:
        progress.advance(10)
        time.sleep(0.05)
        assert "nanscope-progress" not in {thread.name for thread in threading.enumerate()}
    assert kind == "closed" or stream.getvalue() == ""


def test_short_work_shows_nothing() -> None:
    terminal = Terminal()
    with Progress("Reading", 10, stream=terminal) as progress:
        progress.advance(10)
    assert terminal.getvalue() == ""


@pytest.mark.parametrize(
    ("done", "passed", "text"),
    [
        (0, 5.0, "0%, 0 of 8"),
        (2, 30.0, "25%, 2 of 8, 1 min 30 s left"),
        (8, 9.0, "100%, 8 of 8"),
        (9, 9.0, "100%"),
    ],
)
def test_line_estimates_the_rest(done: int, passed: float, text: str) -> None:
    progress = Progress("Reading", 8, stream=io.StringIO(), clock=lambda: 100.0)
    progress.advance(done)
    assert text in progress.line(100.0 + passed)


@pytest.mark.usefixtures("quick")
def test_bar_of_an_error_is_wiped_too() -> None:
    terminal = Terminal()
    with pytest.raises(ValueError, match="bad"), Progress("Reading", 10, stream=terminal) as progress:
        progress.advance(1)
        assert shown(terminal, "Reading [")
        raise ValueError("bad")
    assert terminal.getvalue().endswith("\r")
