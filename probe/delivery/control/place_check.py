"""Whether the probe's places and settings can be used: spool, environment variables, the running `serve`.

Called by `self_check`. Looks, and leaves nothing behind; of sockets it only tries loopback connections to
what `serve.json` names.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import socket
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import psutil

from ...errors import JournalError
from ...settings import places
from ...settings.config import ProbeConfig, is_switched_off
from ...settings.keys import chosen_keys
from ...wire.findings import Finding, existing_part, free_bytes, size_text, write_problem
from ..helper.link import find_target
from ..journal.journal import DEFAULT_CAP_BYTES, SEGMENT_BYTES
from ..journal.run_folders import list_runs
from ..journal.segment_files import run_folder_bytes
from ..recorder.ring import LARGEST, Ring

VARIABLES: Final = (
    "NANSCOPE_LEVEL",
    "NANSCOPE_CONNECT",
    "NANSCOPE_SPOOL",
    "NANSCOPE_RUN",
    "NANSCOPE_FIRST_STEP",
    "NANSCOPE_TOKEN",
    "NANSCOPE_VIEW_TOKEN",
    "NANSCOPE_KEYS",
    "NANSCOPE_OFF",
    "NANSCOPE_QUIET",
    "NANSCOPE_REPORT",
    "NANSCOPE_KERNEL",
    "NANSCOPE_SECRET",
    "NANSCOPE_LINGER_S",
    "NANSCOPE_SPOOL_CAP_MIB",
    "NANSCOPE_LAUNCH",
)
_SECRET: Final = ("NANSCOPE_TOKEN", "NANSCOPE_VIEW_TOKEN", "NANSCOPE_SECRET")
_ADDRESS: Final = re.compile(r"ipc://.+|tcp://(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):[1-9]\d{0,4}")
_CONNECT_TIMEOUT_S: Final = 1.0


def place_findings(environment: Mapping[str, str] = os.environ) -> list[Finding]:
    """Check the spool, the NANSCOPE variables, and whether a `serve` can be reached."""
    return [
        check_spool(environment),
        *check_newest_steps(environment),
        *check_environment(environment),
        check_serve(environment),
    ]


def check_spool(environment: Mapping[str, str] = os.environ) -> Finding:
    """Say where the journals go, whether they can, and how much room there is."""
    name, spool = "spool", places.default_spool(environment)
    if problem := write_problem(spool):
        return Finding(
            name=name,
            state="missing",
            found=f"nothing can be written in {spool}: {problem}",
            advice="No training can be recorded: set NANSCOPE_SPOOL to a folder of yours on a local disk",
        )
    free = free_bytes(spool)
    if free < SEGMENT_BYTES:
        return Finding(
            name=name,
            state="missing",
            found=f"{spool}: {size_text(free)} free",
            advice="No training can be recorded: free space, or set NANSCOPE_SPOOL to a larger place",
        )
    if limit := _spool_limit(spool, free, environment):
        return Finding(name=name, state="limited", found=f"{spool}: {limit[0]}", advice=limit[1])
    try:
        runs = list_runs(spool) if spool.exists() else []
    except JournalError as error:
        return Finding(
            name=name,
            state="limited",
            found=str(error),
            advice="`dashboard serve` may refuse it: set NANSCOPE_SPOOL to a folder of its own",
        )
    used = size_text(sum(run_folder_bytes(run) for run in runs))
    counted = f"{len(runs):,} run{'' if len(runs) == 1 else 's'}"
    found = f"{spool}: {used} of journals in {counted}; {size_text(free)} free"
    return Finding(name=name, state="ok", found=found)


def check_newest_steps(environment: Mapping[str, str] = os.environ) -> list[Finding]:
    """Say what a kill of a training would take: nothing where its newest steps can be in a file.

    Tries it with a file like a training's, which is gone at once; says nothing where nothing can be written.
    """
    name, spool = "newest steps", places.default_spool(environment)
    try:
        place = existing_part(spool)
        with tempfile.TemporaryDirectory(dir=place, prefix=".nanscope-") as folder:
            ring = Ring(Path(folder) / "ring", LARGEST)
            problem, is_mapped = ring.problem, ring.is_mapped
            ring.close()
    except OSError:
        return []
    if problem is not None:
        return [
            Finding(
                name=name,
                state="limited",
                found="in memory alone, " + problem.removeprefix(f"{folder}/ring "),
                advice="A kill may take the newest steps, 50 ms as a rule: free space for the spool, or set "
                "NANSCOPE_SPOOL to a folder with room for files of 8 MiB",
            )
        ]
    how = "that is mapped" if is_mapped else "that is written step by step: it cannot be mapped here"
    found = f"in a file {how}: a kill takes no finished step"
    return [Finding(name=name, state="ok", found=found)]


def _spool_limit(spool: Path, free: int, environment: Mapping[str, str]) -> tuple[str, str] | None:
    """Return what is wrong with a spool that can be written, and what to do."""
    chosen, kind = environment.get("NANSCOPE_SPOOL"), places.file_system_type(spool)
    if kind in places.NETWORK_FILE_SYSTEMS:
        return (
            f"on a network file system ({kind})",
            "Appends there can hold up the training, and locks fail: set NANSCOPE_SPOOL to a local folder",
        )
    if chosen and not Path(chosen).is_absolute():
        return (
            "a relative path",
            "It is taken from where each process began: set NANSCOPE_SPOOL to an absolute path",
        )
    if not chosen and spool.name == "spool" and spool.parent.name != "nanscope":
        return (
            "temporary, because the cache folder is on a network file system",
            "Journals are lost when the machine clears it: set NANSCOPE_SPOOL to a local folder",
        )
    if kind in ("tmpfs", "ramfs"):
        return (
            f"in memory ({kind})",
            "Journals take memory and are lost at a restart: set NANSCOPE_SPOOL to a folder on a disk",
        )
    if free < DEFAULT_CAP_BYTES:
        return (
            f"{size_text(free)} free",
            f"A run may take {size_text(DEFAULT_CAP_BYTES)}: free space, or lower journal_cap_mib",
        )
    return None


def check_environment(environment: Mapping[str, str] = os.environ) -> list[Finding]:
    """Say which NANSCOPE variables are set, and whether their values mean anything; shows no secret.

    What `NANSCOPE_TOKEN` must look like is the dashboard's to say.
    """
    names = sorted(name for name in environment if name.startswith("NANSCOPE_"))
    if not names:
        return [Finding(name="environment", state="ok", found="no NANSCOPE variable is set")]
    return [_check_variable(name, environment) for name in names]


def _check_variable(name: str, environment: Mapping[str, str]) -> Finding:
    value = environment[name]
    shown = "set" if name in _SECRET else repr(value)
    if name not in VARIABLES:
        close = difflib.get_close_matches(name, VARIABLES, n=1)
        meant = f"; did you mean {close[0]}?" if close else ""
        return Finding(
            name=name,
            state="limited",
            found=f"{shown}, which is not a variable of nanscope",
            advice=f"It has no effect{meant}",
        )
    if name in ("NANSCOPE_LEVEL", "NANSCOPE_RUN"):
        try:
            ProbeConfig.resolve({}, {name: value, "NANSCOPE_SPOOL": "."})
        except ValueError as error:
            advice = f"watch() raises ValueError: correct or unset {name}"
            return Finding(name=name, state="missing", found=str(error), advice=advice)
    if limit := _variable_limit(name, value, environment):
        return Finding(name=name, state="limited", found=f"{shown}{limit[0]}", advice=limit[1])
    return Finding(name=name, state="ok", found=shown)


def _variable_limit(name: str, value: str, environment: Mapping[str, str]) -> tuple[str, str] | None:
    """Return what a known variable's value keeps from working, and what to do."""
    if name == "NANSCOPE_LEVEL" and value == "off":
        return "", "Nothing is recorded: unset it, or choose basic, advanced or extreme"
    if name == "NANSCOPE_OFF" and is_switched_off(environment):
        return "", "watch() returns an inert handle: unset it, or set it to 0"
    if name == "NANSCOPE_KERNEL" and value.strip().lower() not in ("", "off"):
        return ", which has no effect", "Only `off` has a meaning: unset it"
    if name == "NANSCOPE_LINGER_S" and value and not _is_seconds(value):
        return ", which is not a number of seconds", "The helper cannot ship anything: correct or unset it"
    if name == "NANSCOPE_SPOOL_CAP_MIB" and not (value.strip().isdecimal() and int(value)):
        return ", which is not a whole number above 0", "The spool keeps its usual cap: correct or unset it"
    if name == "NANSCOPE_SECRET" and not _is_hexadecimal(value):
        return ", but not hexadecimal", "Nothing is shipped: copy the secret from the dashboard's serve.json"
    if name == "NANSCOPE_KEYS" and value:
        try:
            chosen_keys(environment)
        except ValueError as error:
            return f", but {error}", "watch() raises ValueError: copy the client's file of `dashboard keygen`"
    if name == "NANSCOPE_CONNECT":
        return _connect_limit(value, environment)
    return None


def _connect_limit(value: str, environment: Mapping[str, str]) -> tuple[str, str] | None:
    if not value:
        return ", which ships nothing", "Runs are in the journal alone: unset it to see them live"
    if _ADDRESS.fullmatch(value) is None:
        return ", which is not an address", "Nothing is shipped: it must look like tcp://127.0.0.1:8051"
    if find_target(value, environment) is None:
        return (
            ", without a secret for it",
            "Nothing is shipped: set NANSCOPE_SECRET or NANSCOPE_KEYS, or start `dashboard serve`",
        )
    return None


def _is_seconds(text: str) -> bool:
    try:
        return not math.isnan(float(text))
    except ValueError:
        return False


def _is_hexadecimal(text: str) -> bool:
    try:
        return bool(bytes.fromhex(text))
    except ValueError:
        return False


def check_serve(environment: Mapping[str, str] = os.environ) -> Finding:
    """Say whether a `serve` of this user runs, as the helper of a training would find it."""
    name, note = "serve", places.serve_state_path(environment)
    try:
        mode = note.stat().st_mode if note.exists() else None
    except OSError as error:
        mode, problem = None, f"{note} cannot be read: {error.strerror}"
        return _limited_serve(problem, "No training is sent to a dashboard: check who owns the folder")
    if mode is None:
        found = "no dashboard of yours is running; runs wait in the spool"
        return Finding(name=name, state="ok", found=found, advice="To watch trainings: dashboard serve")
    state = places.read_serve_state(environment)
    if state is None or not _is_hexadecimal(state.secret):
        return _limited_serve(
            f"{note} is damaged", "No training is sent to a dashboard: start `dashboard serve` again"
        )
    deaf = [address for address in (state.page, state.ingest) if not _answers(address)]
    if deaf and not _is_running(state.pid, since=note.stat().st_mtime):
        found = f"{note} names process {state.pid}, which has ended"
        return _limited_serve(
            found, "No training is sent to a dashboard until you start `dashboard serve` again"
        )
    if deaf:
        found = f"process {state.pid} runs, but {' and '.join(deaf)} does not answer"
        return _limited_serve(found, "Stop it and start `dashboard serve` again")
    if stat.S_IMODE(mode) & 0o077:
        return _limited_serve(f"{note} can be read by others, with its secret", f"chmod 600 {note}")
    found = f"{state.page} and {state.ingest} answer, process {state.pid}"
    return Finding(name=name, state="ok", found=found)


def _limited_serve(found: str, advice: str) -> Finding:
    return Finding(name="serve", state="limited", found=found, advice=advice)


def _is_running(pid: int, *, since: float) -> bool:
    """Whether the process that wrote a file at `since`, UNIX seconds, runs; not a later one of its number."""
    try:
        return psutil.Process(pid).create_time() <= since
    except (psutil.Error, ValueError, OverflowError):
        return False


def _answers(address: str) -> bool:
    """Whether something accepts connections at a TCP address; others are taken to."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
        if host is None or port is None:
            return parts.scheme not in ("http", "tcp")
        with socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S):
            return True
    except (OSError, ValueError):
        return False
