"""What the commands print of a training: no character that hides, turns text or is obeyed by a terminal."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path

import msgspec
import pytest
from sample_events import nan_event
from sample_runs import write_run

from dashboard.cli import main
from probe.delivery.stderr import say
from probe.wire import Event, Origin

import hostile_run  # isort: skip

TEXTS = [text for text in hostile_run.CORPUS if len(text) < 100]
OBEYED = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def hidden(printed: str) -> set[str]:
    """Characters that a terminal must not get; a line ends where the command ends it."""
    return {f"U+{ord(sign):04X}" for sign in printed if sign != "\n" and unicodedata.category(sign) in OBEYED}


def hostile_event(number: int, text: str) -> Event:
    event = nan_event(
        id=f"{number:016x}",
        step=number,
        kind=text,
        subject=text,
        message=f"{text} at `{text}`\nLine not known: {text}",
        origin=Origin(phase="forward", op=text, module=text),
        model=text[:64],
    )
    frame = msgspec.structs.replace(event.stacks.training_loop[0], file=f"/x/{text}.py", function=text)
    stacks = msgspec.structs.replace(event.stacks, forward=[frame], training_loop=[frame])
    return msgspec.structs.replace(event, stacks=stacks)


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "spool"
    monkeypatch.setenv("NANSCOPE_SPOOL", str(folder))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    events = [hostile_event(number, text) for number, text in enumerate(TEXTS)]
    name = "a\u202e\n\x1b[31m\u200b.py"
    write_run(folder, "one", name=name, model="\u2066net", steps=5, events=events)
    write_run(folder, "other", name=name, model="net\r", steps=5, layers=("a\u202eb", "\x1b[2Jc", "d\ne"))
    for path in folder.rglob("*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))  # nobody writes them any more
    return folder


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["events", "one"], 0),
        (["events", "SPOOL"], 0),
        (["events", "nosuch"], 2),
        (["diff", "one", "other"], 1),
        (["diff", "one", "nosuch"], 2),
        (["export", "SPOOL", "-o", "-"], 2),
        (["resume", "one"], 2),
        (["clean", "--keep", "0"], 2),
    ],
)
def test_commands_print_nothing_that_a_terminal_obeys(
    spool: Path, capsys: pytest.CaptureFixture[str], command: list[str], code: int
) -> None:
    assert main([str(spool) if part == "SPOOL" else part for part in command]) == code
    captured = capsys.readouterr()
    assert hidden(captured.out + captured.err) == set()
    if command[0] != "resume":
        assert "[U+202E]" in captured.out + captured.err


def test_events_are_one_line_each_however_many_they_pretend_to_be(
    spool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["events", "one"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 * len(TEXTS) + 1
    assert "line[U+000A]feed[U+0009]tab[U+000D]return[U+2028]separator" in "\n".join(lines)


def test_events_as_json_keep_the_text_as_it_is(spool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["events", "one", "--json"])
    printed = capsys.readouterr().out
    assert hidden(printed) == set()
    assert "rtl\\u202egnp.exe" in printed


def test_lines_on_the_trainings_own_stderr_are_visible(capsys: pytest.CaptureFixture[str]) -> None:
    say("recording run a of b\x1b[2J\u202ec\nnanscope: all is well")
    assert capsys.readouterr().err == (
        "nanscope: recording run a of b[U+001B][2J[U+202E]c[U+000A]nanscope: all is well\n"
    )
