"""Runs one script of the fault bank as its user would, and reads what was recorded of it.

Processes and files only; `detection_verdicts.py` judges what is read here.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe import wire
from probe.delivery.journal.journal_reader import read_stream
from probe.delivery.journal.run_folders import list_runs, list_writers

ROOT = Path(__file__).resolve().parents[2]
RUNNER = Path(__file__).with_name("detection_rival_runner.py")
KILLING_S = 1.0
"""Events of the last second before a script's end by our hand may be its effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a script ended and what was recorded."""

    ending: str
    """exit, error or killed"""
    seconds: float
    steps: int
    events: list[dict[str, Any]]
    error_tail: str
    """Last lines of stderr of a script that failed."""
    complaint: str
    """What `dashboard events` said if it could not read all."""

    @property
    def was_recorded(self) -> bool:
        """Whether there is a step, or at least an event."""
        return bool(self.steps or self.events)


def run_recorded(
    path: Path,
    *,
    limit_s: float,
    options: tuple[str, ...] = (),
    variables: Mapping[str, str] | None = None,
    before_path: str = "",
) -> Outcome:
    """Run a script through `dashboard run` in a spool of its own, without a dashboard.

    Args:
        path: of the script.
        limit_s: it is killed after this time.
        options: of `dashboard run`.
        variables: added to its environment.
        before_path: a folder whose modules come before all others.
    """
    with tempfile.TemporaryDirectory(prefix="nanscope-bank-", ignore_cleanup_errors=True) as scratch:
        spool = Path(scratch) / "spool"
        command = ["-m", "dashboard", "run", "--quiet", "--spool", str(spool), *options, str(path)]
        environment = _environment(Path(scratch), before_path) | dict(variables or {})
        ending, seconds, error = _run(command, Path(scratch), limit_s, environment)
        ended = time.time()
        events, complaint = read_events(spool, Path(scratch)) if spool.is_dir() else ([], "no spool")
        if ending == "killed":  # that its processes died is our doing, not the script's
            events = [event for event in events if event["time"] < ended - KILLING_S]
        return Outcome(
            ending=ending,
            seconds=seconds,
            steps=count_steps(spool) if spool.is_dir() else 0,
            events=events,
            complaint=complaint,
            error_tail="\n".join(error.splitlines()[-3:]),
        )


def run_rival(path: Path, rival: str, *, limit_s: float) -> dict[str, Any]:
    """Run a script with another tool switched on; return what `detection_rival_runner.py` writes."""
    with tempfile.TemporaryDirectory(prefix="nanscope-rival-") as scratch:
        report = Path(scratch) / "report.json"
        command = [str(RUNNER), rival, str(path), str(report)]
        _run(command, Path(scratch), limit_s, _environment(Path(scratch)))
        return json.loads(report.read_text()) if report.exists() else {"found": False, "problem": "no report"}


def read_events(spool: Path, folder: Path) -> tuple[list[dict[str, Any]], str]:
    """Return the events as `dashboard events --json` prints them, and what it complains of."""
    command = [sys.executable, "-m", "dashboard", "events", str(spool), "--json"]
    done = subprocess.run(
        command, cwd=folder, env=_environment(folder), capture_output=True, text=True, check=False
    )
    complaint = done.stderr.strip() or f"exit code {done.returncode}" if done.returncode else ""
    return [json.loads(line) for line in done.stdout.splitlines()], complaint


def count_steps(spool: Path) -> int:
    """Steps of the longest journal: two models of one script step side by side."""
    writers = [writer for run in list_runs(spool) for writer in list_writers(run)]
    last = -1
    for writer in writers:
        for _, payload in read_stream(writer, "metrics"):
            record = wire.decode_record(payload)
            if isinstance(record, wire.Frame):
                last = max(last, record.step)
    return last + 1


def _run(
    command: list[str], folder: Path, limit_s: float, environment: dict[str, str]
) -> tuple[str, float, str]:
    """Return how it ended, after how many seconds, and its stderr; its whole process group ends with it."""
    started = time.monotonic()
    error_file = folder / "stderr"
    with error_file.open("w") as error:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=error,
            start_new_session=True,
        )
        try:
            ending = "exit" if process.wait(timeout=limit_s) == 0 else "error"
        except subprocess.TimeoutExpired:
            ending = "killed"
        finally:
            _kill_group(process)
    return ending, time.monotonic() - started, error_file.read_text(errors="replace")


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Ranks that a script spawned are in its group; the probe's helper is in a session of its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _environment(folder: Path, before_path: str = "") -> dict[str, str]:
    """One thread, nothing of the user's own nanscope, this checkout first."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NANSCOPE_")}
    paths = [*filter(None, [before_path, str(ROOT), kept.get("PYTHONPATH")])]
    return kept | {
        "OMP_NUM_THREADS": "1",
        "NANSCOPE_CONNECT": "",
        "XDG_STATE_HOME": str(folder / "state"),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONWARNINGS": "ignore",
    }
