"""What works on this machine, what cannot and why, for recording and for serving: the checks themselves.

Shared by `dashboard doctor` and the page's view of the system. The probe's own check runs in a process of its
own, because it imports torch; here libraries are looked up by their metadata and none of them is imported.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import psutil

from probe.delivery.journal.run_folders import unreadable_runs
from probe.delivery.spool_care import last_removal
from probe.delivery.visible_text import visible_text
from probe.settings import places
from probe.wire import findings
from probe.wire.findings import Finding, Library, check_library

from ..errors import DashboardError
from ..ingest.storage import spool_size
from . import listening
from .credentials import load_credentials

LIBRARIES: Final = (
    Library(name="dash", minimum="4.4.1", below=5),
    Library(name="fastapi"),
    Library(name="plotly", minimum="6.1"),
    Library(name="pandas", minimum="2.2"),
    Library(name="duckdb", minimum="1.4"),
    Library(name="dash-mantine-components", minimum="2.4", module="dash_mantine_components", below=3),
    Library(name="uvicorn", minimum="0.34"),
    Library(name="websockets", minimum="14"),
)
PROBE_CHECK_TIMEOUT_S: Final = 120.0
_LEAST_FREE_BYTES: Final = 1024**3
# A script's own `probe.py` must not be taken for ours: the folder is on the path for this import alone.
_PROBE_CHECK: Final = """
import sys
sys.path.insert(0, sys.argv[1])
import probe
del sys.path[0]
from probe.self_check import main
sys.exit(main(["--json"]))
"""


def probe_findings(
    environment: Mapping[str, str] = os.environ, *, timeout_s: float = PROBE_CHECK_TIMEOUT_S
) -> list[Finding]:
    """Return what the probe's self-check finds in this interpreter; how it fails is a finding too."""
    parent = Path(findings.__file__).resolve().parents[2]
    command = [sys.executable, "-P", "-c", _PROBE_CHECK, str(parent)]
    try:
        finished = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            env=dict(environment),
        )
    except subprocess.TimeoutExpired:
        return [_failed_check(f"it took more than {timeout_s:g} s", state="limited")]
    except OSError as error:
        return [_failed_check(f"{sys.executable!r} cannot be started: {error.strerror or error}")]
    lines = finished.stdout.splitlines()
    try:
        return [Finding(**entry) for entry in json.loads(lines[-1])]
    except (IndexError, ValueError, TypeError, RecursionError):
        last = finished.stderr.strip().splitlines()[-1:]
        return [_failed_check(": ".join([f"it ended with exit code {finished.returncode}", *last]))]


def _failed_check(found: str, *, state: findings.State = "missing") -> Finding:
    return Finding(
        name="self-check",
        state=state,
        found=found,
        advice=f"Whether trainings can be recorded is unknown; look at: {sys.executable} -c 'import torch'",
    )


def serving_findings(environment: Mapping[str, str] = os.environ) -> list[Finding]:
    """Check what `dashboard serve` needs; imports none of its libraries, and writes nothing that stays."""
    return [
        *(check_library(library) for library in LIBRARIES),
        check_data_folder(environment),
        check_spool_size(environment),
        *check_token(environment),
        check_port("page", f"http://127.0.0.1:{places.DEFAULT_PAGE_PORT}/", environment),
        check_port("ingest", places.DEFAULT_INGEST, environment),
        check_browser(environment),
    ]


def check_data_folder(environment: Mapping[str, str] = os.environ) -> Finding:
    """Say whether the store and the note for local probes can be written, and how much room there is."""
    name, folder = "data folder", places.state_folder(environment) / "data"
    if problem := findings.write_problem(folder):
        found = f"nothing can be written in {folder}: {problem}"
        advice = "`dashboard serve` cannot start: set XDG_STATE_HOME to a folder of yours"
        return Finding(name=name, state="missing", found=found, advice=advice)
    free, kind = findings.free_bytes(folder), places.file_system_type(folder)
    found = f"{folder}: {findings.size_text(free)} free"
    if kind in places.NETWORK_FILE_SYSTEMS:
        advice = "The store is slow there and its lock may fail: pass --data a local folder"
        return Finding(name=name, state="limited", found=f"{found}, on {kind}", advice=advice)
    if free < _LEAST_FREE_BYTES:
        advice = "A day of training can take that much: free space, or pass --data another folder"
        return Finding(name=name, state="limited", found=found, advice=advice)
    return Finding(name=name, state="ok", found=found)


def check_spool_size(environment: Mapping[str, str] = os.environ) -> Finding:
    """Say how much room all runs take, and what the cap of the spool has deleted last."""
    spool = places.default_spool(environment)
    removal = last_removal(spool)
    advice = "To delete runs: dashboard clean --older-than 14d"
    found = f"{spool}: {spool_size(spool).removeprefix('Spool ')}"
    if odd := [f"{name}: {reason}" for name, reason in unreadable_runs(spool).items()]:
        more = f", and {len(odd) - 3:,} more" if len(odd) > 3 else ""
        found = f"{found}; passed over: {visible_text(', '.join(odd[:3]))}{more}"
        return Finding(name="spool size", state="limited", found=found, advice=advice)
    return Finding(
        name="spool size", state="ok", found=f"{found}; {removal}" if removal else found, advice=advice
    )


def check_token(environment: Mapping[str, str] = os.environ) -> list[Finding]:
    """Say whether the tokens of the environment can be used, where any is set; shows nothing of them."""
    names = ("NANSCOPE_TOKEN", "NANSCOPE_VIEW_TOKEN")
    chosen = {name: token for name in names if (token := environment.get(name))}
    if not chosen:
        return []
    name = " and ".join(chosen)
    with tempfile.TemporaryDirectory(prefix="nanscope-doctor-") as folder:
        try:
            load_credentials({**chosen, "XDG_STATE_HOME": folder})
        except DashboardError as error:
            advice = "`dashboard serve` cannot start: correct or unset it"
            return [Finding(name=name, state="missing", found=str(error), advice=advice)]
    return [Finding(name=name, state="ok", found="can be used")]


def check_port(name: str, address: str, environment: Mapping[str, str] = os.environ) -> Finding:
    """Say whether `serve` can listen at a default address, or who does.

    Args:
        name: "page" or "ingest".
        address: a URL with host and port.
    """
    parts = urlsplit(address)
    host, port = parts.hostname or "", parts.port or 0
    name = f"{name} port"
    problem = _bind_problem(host, port)
    if problem is None:
        return Finding(name=name, state="ok", found=f"{host}:{port} is free")
    if problem != errno.EADDRINUSE:
        found = f"nothing can listen on {host}:{port}: {os.strerror(problem)}"
        return Finding(name=name, state="missing", found=found, advice="`dashboard serve` cannot start")
    pid = _listening_process(port)
    running = places.read_serve_state(environment)
    if running is not None and running.pid == pid:
        return Finding(name=name, state="ok", found=f"{host}:{port} is the running serve's, process {pid}")
    option = "--port 0" if parts.scheme == "http" else "--ingest 'tcp://127.0.0.1:*'"
    return Finding(
        name=name,
        state="limited",
        found=f"{host}:{port} is in use by {_describe(pid)}",
        advice=f"Stop that, or take a free port: dashboard serve {option}",
    )


def _bind_problem(host: str, port: int) -> int | None:
    """Return the errno of binding a port as `serve` does; None if it works."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            return error.errno or errno.EINVAL
    return None


def _listening_process(port: int) -> int | None:
    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return None
    return next(
        (
            connection.pid
            for connection in connections
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
        ),
        None,
    )


def _describe(pid: int | None) -> str:
    if pid is None:
        return "a process of another user"
    try:
        return f"process {pid} ({psutil.Process(pid).name()})"
    except psutil.Error:
        return f"process {pid}"


def check_browser(environment: Mapping[str, str] = os.environ) -> Finding:
    """Say how the page is reached; any browser of today will do, on any machine."""
    if listening.has_graphical_session(environment):
        return Finding(name="browser", state="ok", found="`dashboard serve` opens it on this screen")
    port = places.DEFAULT_PAGE_PORT
    return Finding(
        name="browser",
        state="ok",
        found="no screen here: open the address that `dashboard serve` prints",
        advice=f"From another machine: ssh -L {port}:127.0.0.1:{port} this-machine",
    )
