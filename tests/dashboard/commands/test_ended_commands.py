"""A command that a signal ends says one line, has the shell's exit code, and leaves nothing unfinished."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sample_events import nan_event
from sample_runs import write_run

from dashboard.cli import main
from dashboard.commands import export as export_command

RUN = "20260101-000000-abcdef12"
LINE = "dashboard: ended by {}; nothing unfinished is left.\n"
FORMS = ("html", "json", "csv", "parquet")
SEED = 15


@pytest.fixture(autouse=True)
def signals_end_as_by_default() -> Iterator[None]:
    """Whatever the parent of the tests ignores: the commands leave an ignored signal ignored."""
    defaults = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in defaults.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spool with a run; temporary folders come beside it."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    write_run(tmp_path / "spool", RUN, events=[nan_event(run=RUN)], steps=3)
    return tmp_path / "spool"


def kill(number: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


def halved(body: bytes) -> bytes:
    return body[: len(body) // 2]


def exports(spool: Path, form: str) -> int:
    return main(["export", str(spool), "--format", form, "-o", str(spool.parent / "out" / "file")])


def left(spool: Path) -> list[str]:
    """What lies where the export has written: its own folder, and that of temporary files."""
    out = spool.parent / "out"
    return sorted(str(path) for place in (out, spool.parent / "temporary") for path in place.rglob("*"))


def during_write(monkeypatch: pytest.MonkeyPatch) -> None:
    write = Path.write_bytes

    def half(self: Path, body: bytes) -> int:
        if self.parent.name == "out":
            write(self, halved(body))
            kill()
        return write(self, body)

    monkeypatch.setattr(Path, "write_bytes", half)


def in_the_middle(name: str) -> Callable[[pytest.MonkeyPatch], None]:
    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        work = getattr(export_command, name)

        def ended(*arguments: Any, **named: Any) -> Any:
            result = work(*arguments, **named)
            kill()
            return result

        monkeypatch.setattr(export_command, name, ended)

    return plant


MOMENTS = {
    "of reading": in_the_middle("read_runs"),
    "of finding the run": in_the_middle("resolve_run"),
    "of making the file's content": in_the_middle("_exported"),
    "of writing the file": during_write,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("moment", MOMENTS)
def test_export_ended_in_the_middle_is_one_line_and_no_file(
    spool: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    moment: str,
    form: str,
) -> None:
    (spool.parent / "out").mkdir()
    MOMENTS[moment](monkeypatch)
    assert exports(spool, form) == 143
    assert left(spool) == []
    assert capsys.readouterr() == ("", LINE.format("SIGTERM"))


def test_export_ended_in_the_middle_keeps_the_file_that_was_there(
    spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (spool.parent / "out").mkdir()
    (spool.parent / "out" / "file").write_text("before")
    during_write(monkeypatch)
    assert exports(spool, "csv") == 143
    assert (spool.parent / "out" / "file").read_text() == "before"
    assert len(left(spool)) == 1


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGTERM, 143, LINE.format("SIGTERM")),
        (signal.SIGHUP, 129, LINE.format("SIGHUP")),
        (signal.SIGINT, 130, ""),
    ],
)
def test_query_that_a_signal_interrupts_ends_as_any_other_work(
    spool: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: signal.Signals,
    code: int,
    said: str,
) -> None:
    """DuckDB makes an error of its own out of what a handler raises while a query runs."""

    def interrupted(*arguments: Any, **named: Any) -> bytes:
        with contextlib.suppress(BaseException):
            kill(number)
        raise RuntimeError("Query interrupted")

    (spool.parent / "out").mkdir()
    monkeypatch.setattr(export_command, "_exported", interrupted)
    assert exports(spool, "csv") == code
    assert (left(spool), capsys.readouterr().err) == ([], said)


@pytest.mark.parametrize("command", [["events", "{}", "--json"], ["diff", RUN, RUN], ["open", "{}"]])
def test_other_commands_end_likewise(
    spool: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    monkeypatch.setenv("NANSCOPE_SPOOL", str(spool))
    read = os.open

    def ended(*arguments: Any, **named: Any) -> Any:
        kill()
        return read(*arguments, **named)

    monkeypatch.setattr(os, "open", ended)
    monkeypatch.setattr(Path, "iterdir", ended)
    assert main([part.format(spool) for part in command]) == 143
    assert capsys.readouterr().err == LINE.format("SIGTERM")


def test_handlers_are_as_before_and_a_command_with_its_own_has_none(
    spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("dashboard.cli._HANDLERS", dict.fromkeys(("serve", "url"), lambda _: note()))

    def note() -> int:
        seen.append(signal.getsignal(signal.SIGTERM))
        return 0

    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    assert (main(["serve"]), main(["url"])) == (0, 0)
    after = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    assert after == before
    assert seen[0] == before[0]
    assert seen[1] != before[0]


def killed_export(spool: Path, form: str, wait_s: float, out: Path) -> tuple[int, str]:
    command = [sys.executable, "-m", "dashboard", "export", str(spool), "--format", form, "-o", str(out)]
    temporary = {**os.environ, "TMPDIR": str(spool.parent / "temporary")}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env=temporary, text=True)
    threading.Timer(wait_s, process.terminate).start()
    return process.wait(), process.communicate()[1]


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_export_killed_at_any_moment_leaves_a_whole_file_or_none(spool: Path) -> None:
    """In a process of its own; before it has read its arguments the system ends it, without a line."""
    chance = random.Random(SEED)
    print(f"seed {SEED}")
    for number in range(60):
        form = FORMS[number % len(FORMS)]
        out = spool.parent / f"out-{number}"
        code, said = killed_export(spool, form, chance.uniform(0.05, 3.0), out)
        assert (code, said) in {(143, LINE.format("SIGTERM")), (0, ""), (-15, "")}, (code, said)
        assert out.exists() or code != 0
        assert code != 143 or left(spool) == []
        assert [path.name for path in spool.parent.glob(".out*")] == []
