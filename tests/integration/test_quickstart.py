"""`dashboard quickstart`: what is planted is found in the journals; nothing else is said.

It is run as users have it: from an installed wheel, in a folder that is not the checkout.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from built_wheel import install, shared_wheel, without_checkout
from sample_runs import write_run

from dashboard.cli import main
from dashboard.commands import quickstart

ROOT = Path(__file__).resolve().parents[2]
FOUND = {
    "autograd": ["in the loss, quickstart_train.py:", "(SqrtBackward0)", "in distance"],
    "gradient": ["gradient vanishing", "gradient explosion", "`second`: gradient norm"],
    "memory": ["Memory leak: `kept` (a list in ", "in keep_loss"],
    "training": ["no warnings"],
}


@pytest.fixture(scope="module")
def comprehensive(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """All scenarios, as a user starts them with output into a file."""
    folder = tmp_path_factory.mktemp("quickstart")
    places = {"XDG_STATE_HOME": str(folder / "state"), "NANSCOPE_CONNECT": ""}
    command = [
        str(install(shared_wheel(tmp_path_factory), folder / "venv")),
        "-m",
        "dashboard",
        "quickstart",
        "comprehensive",
        "--spool",
        str(folder / "a b"),
    ]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env=without_checkout() | places, timeout=170
    )
    assert done.returncode == 0, done.stderr
    parts = re.split(r"^(\w+): (?=[\d,]+ steps)", done.stdout, flags=re.MULTILINE)[1:]
    return SimpleNamespace(
        parts=dict(zip(parts[::2], parts[1::2], strict=True)),
        out=done.stdout,
        err=done.stderr,
        spool=folder / "a b",
    )


@pytest.mark.slow
@pytest.mark.capability(68)
@pytest.mark.parametrize("scenario", FOUND)
def test_quickstart_finds_what_is_planted_and_nothing_where_nothing_is(
    scenario: str, comprehensive: SimpleNamespace
) -> None:
    part = comprehensive.parts[scenario]
    assert [text for text in FOUND[scenario] if text not in part] == []
    assert ("warning" in part.partition("no warnings")[0] or "critical" in part) == (scenario != "training")


@pytest.mark.slow
@pytest.mark.capability(68)
def test_quickstart_names_each_run_and_the_command_of_its_page(comprehensive: SimpleNamespace) -> None:
    runs = sorted(folder.name for folder in comprehensive.spool.iterdir() if folder.is_dir())
    assert [run.split("-")[1] for run in runs] == sorted(FOUND)
    for run in runs:
        assert f"dashboard events '{comprehensive.spool / run}'" in comprehensive.out
    assert comprehensive.out.endswith(
        f"the charts: open with: dashboard serve --spool '{comprehensive.spool}'\n"
    )


@pytest.mark.slow
def test_quickstart_that_is_piped_shows_no_progress(comprehensive: SimpleNamespace) -> None:
    assert comprehensive.err == ""
    assert "\r" not in comprehensive.out


@pytest.mark.slow
def test_quickstart_training_shows_its_progress_on_a_terminal() -> None:
    ours, theirs = pty.openpty()
    try:
        command = [sys.executable, str(ROOT / "quickstart_train.py"), "training", "--steps", "20"]
        subprocess.run(command, stderr=theirs, check=True, timeout=100)
    finally:
        os.close(theirs)
    shown = "".join(_read_all(ours))
    assert "step 10 of 20, loss " in shown
    assert shown.endswith("\r\n")


def _read_all(terminal: int) -> Iterator[str]:
    with contextlib.suppress(OSError):  # what a closed terminal gives at its end
        while chunk := os.read(terminal, 4096):
            yield chunk.decode()
    os.close(terminal)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A training that ends at once; `sample` writes a run in its place."""
    chosen = SimpleNamespace(code=0, writes=False)

    def run(command: list[str], *, env: dict[str, str], check: bool) -> SimpleNamespace:
        if chosen.writes:
            write_run(Path(env["NANSCOPE_SPOOL"]), env["NANSCOPE_RUN"])
        return SimpleNamespace(returncode=chosen.code)

    monkeypatch.setattr(quickstart.subprocess, "run", run)
    return chosen


def test_quickstart_says_what_the_journal_holds_whatever_the_scenario(
    stand_in: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in.writes = True
    assert main(["quickstart", "training", "--spool", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "NaN first at step 400 in `blocks.3`" in out
    assert "no warnings" not in out


@pytest.mark.parametrize(("code", "said"), [(3, "failed with exit code 3"), (0, "Nothing was recorded in")])
def test_quickstart_that_records_nothing_is_one_sentence_and_exit_2(
    code: int, said: str, stand_in: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in.code = code
    assert main(["quickstart", "memory", "--spool", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_quickstart_scenario_that_is_none_is_told_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["quickstart", "nonsense"])
    assert exit_info.value.code == 2
    assert "comprehensive" in capsys.readouterr().err
