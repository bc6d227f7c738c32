"""A relative `NANSCOPE_SPOOL` is the same folder in every process of a training, wherever that began."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dashboard.commands.run import run_script

SCRIPT = """
import multiprocessing, os, probe
from probe.settings.places import default_spool

def say(how):
    print(how, default_spool(), flush=True)

if __name__ == "__main__":
    os.chdir("elsewhere")
    for how in ("fork", "spawn", "forkserver"):
        process = multiprocessing.get_context(how).Process(target=say, args=(how,))
        process.start()
        process.join()
    print("given", os.environ["NANSCOPE_SPOOL"])
"""


def test_processes_of_multiprocessing_take_it_from_where_their_parent_began(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "NANSCOPE_SPOOL": "runs", "PYTHONPATH": str(Path(__file__).parents[2])}
    said = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    expected = [f"{how} {tmp_path / 'runs'}" for how in ("fork", "spawn", "forkserver")]
    assert said.splitlines() == [*expected, "given runs"]


@pytest.mark.parametrize(
    ("option", "set_to", "expected"),
    [(None, "runs", "runs"), ("here", "runs", "here"), (None, "/runs", "/runs"), (None, "", None)],
)
def test_run_hands_an_absolute_folder_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    option: str | None,
    set_to: str,
    expected: str | None,
) -> None:
    given: dict[str, str] = {}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NANSCOPE_SPOOL", set_to)
    monkeypatch.setattr("os.execve", lambda program, arguments, environment: given.update(environment))
    run_script(["script.py"], spool=None if option is None else Path(option))
    assert given["NANSCOPE_SPOOL"] == ("" if expected is None else str(tmp_path / expected))
