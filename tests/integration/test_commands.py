"""The long-running commands as real processes: what they print, how they end, that nothing stays behind.

One server and one demo are started as a user does; the others are forked from a process with their imports.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from forked_scripts import ForkedScript, ForkedScripts

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "dashboard"))

from sample_runs import write_run

from dashboard.commands.demo import is_stored
from dashboard.ingest.spool import SpoolIngest
from dashboard.store.duck import DuckStore

ADDRESS = re.compile(r"nanscope (http://127\.0\.0\.1:\d+/\?token=\S+)")
FREE = ("--port", "0", "--ingest", "tcp://127.0.0.1:*", "--no-browser")
Start = Callable[..., "subprocess.Popen[str]"]
Fork = Callable[..., ForkedScript]


def places(tmp_path: Path) -> dict[str, str]:
    """All of a command's, under tmp_path."""
    return {"XDG_STATE_HOME": str(tmp_path / "state"), "NANSCOPE_SPOOL": str(tmp_path / "spool")}


@pytest.fixture
def fork(tmp_path: Path, forked_dashboard: ForkedScripts) -> Iterator[Fork]:
    """Fork what `dashboard ...` is once it has imported its modules; what still runs at the end is killed."""
    started: list[ForkedScript] = []

    def run(*arguments: str, **environment: str) -> ForkedScript:
        command = ["-m", "dashboard", *arguments]
        started.append(forked_dashboard.start(command, Path.cwd(), places(tmp_path) | environment))
        return started[-1]

    yield run
    for script in started:
        script.kill()
        script.wait(30)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start `dashboard ...` as a user does; what still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "dashboard", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **places(tmp_path), **environment},
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate(timeout=30)


def address_of(process: subprocess.Popen[str] | ForkedScript) -> str:
    if isinstance(process, ForkedScript):
        found = ADDRESS.fullmatch(process.first_line())
        assert found, process.finish(60)
        return found[1]
    assert process.stdout is not None
    found = ADDRESS.fullmatch(process.stdout.readline().strip())
    assert found, process.communicate(timeout=60)
    return found[1]


def visitor() -> urllib.request.OpenerDirector:
    """A client that keeps cookies: the token is asked for once."""
    return urllib.request.build_opener(urllib.request.HTTPCookieProcessor())


def read(client: urllib.request.OpenerDirector, address: str) -> bytes:
    with client.open(address, timeout=30) as answer:
        body: bytes = answer.read()
    return body


def interrupt(process: subprocess.Popen[str] | ForkedScript) -> tuple[int, str]:
    """Ctrl-C; return the exit code and what was written to stderr since."""
    process.send_signal(signal.SIGINT)
    if isinstance(process, ForkedScript):
        code, _, errors = process.finish(90)
        return code, errors
    _, errors = process.communicate(timeout=90)
    return process.returncode, errors


def runs_behind(folder: Path) -> list[list[str]]:
    """Command lines of living processes that belong to a test's folder."""
    return [
        process.info["cmdline"]
        for process in psutil.process_iter(["cmdline", "environ"])
        if str(folder)
        in " ".join([*(process.info["cmdline"] or []), *(process.info["environ"] or {}).values()])
    ]


def test_serve_prints_the_address_first_and_ends_quietly_on_ctrl_c(start: Start, tmp_path: Path) -> None:
    server = start("serve", *FREE)
    assert b"nanscope" in read(visitor(), address_of(server))
    assert interrupt(server) == (0, "")
    assert not (tmp_path / "state" / "nanscope" / "serve.json").exists()


def test_serve_ends_properly_when_its_terminal_closes(fork: Fork, tmp_path: Path) -> None:
    server = fork("serve", *FREE)
    address_of(server)
    server.send_signal(signal.SIGHUP)
    code, _, errors = server.finish(90)
    assert (code, errors) == (0, "")
    assert not (tmp_path / "state" / "nanscope" / "serve.json").exists()


def test_serve_under_nohup_survives_its_terminal(start: Start) -> None:
    ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        server = start("serve", *FREE)
    finally:
        signal.signal(signal.SIGHUP, ignored)
    address = address_of(server)
    server.send_signal(signal.SIGHUP)
    assert b"nanscope" in read(visitor(), address)
    assert interrupt(server) == (0, "")


def test_serve_port_in_use_is_one_sentence_and_exit_2(fork: Fork) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = fork("serve", "--port", str(taken.getsockname()[1]), "--ingest", "tcp://127.0.0.1:*")
        code, _, errors = server.finish(60)
    assert code == 2
    assert errors.count("\n") == 1
    assert "in use" in errors


def test_serve_spool_that_is_none_is_refused(fork: Fork, tmp_path: Path) -> None:
    (tmp_path / "photos" / "one").mkdir(parents=True)
    code, _, errors = fork("serve", *FREE, "--spool", str(tmp_path / "photos")).finish(60)
    assert (code, errors.count("\n")) == (2, 1)
    assert "is not a spool" in errors


def test_serve_of_what_is_served_already_leads_there(fork: Fork, tmp_path: Path) -> None:
    """Also by the data folder alone, and where another server has been started since."""
    data = tmp_path / "state" / "nanscope" / "data"
    server = fork("serve", *FREE, NANSCOPE_TOKEN="one-of-its-own")
    address = address_of(server)
    line = f"nanscope {address}\n"
    other = fork("serve", *FREE, "--data", str(tmp_path / "other"))
    assert f"nanscope {address_of(other)}\n" != line
    for arguments in (("--no-browser",), FREE, ("--no-browser", "--data", str(data)), ("--port", "8050")):
        code, output, errors = fork("serve", *arguments).finish(60)
        assert (code, output) == (0, line)
        assert errors.count("\n") == 1
    elsewhere = {"XDG_STATE_HOME": str(tmp_path / "another state")}
    assert fork("serve", "--data", str(data), **elsewhere).finish(60)[:2] == (0, line)
    assert interrupt(server) == (0, "")
    code, said = interrupt(other)
    assert (code, said.count("\n")) == (0, 1)
    assert f"find another dashboard, {address.partition('?')[0]} " in said
    assert not (data / "serving.json").exists()


def test_url_of_who_may_look_and_the_end_of_all_sessions(fork: Fork, tmp_path: Path) -> None:
    server = fork("serve", *FREE)
    address = address_of(server)
    code, looking, errors = fork("url", "--view").finish(60)
    assert (code, errors, looking.partition("?")[0]) == (0, "", address.partition("?")[0])
    assert looking.strip() != address
    one, other = visitor(), visitor()
    assert b'data-role="view"' in read(one, looking.strip())
    assert b'data-role="view"' not in read(other, address)
    page = address.partition("?")[0]
    assert b"nanscope" in read(one, page) and b"nanscope" in read(other, page)
    assert fork("token", "--revoke").finish(60)[::2] == (0, "")
    for client in (one, other):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            read(client, page)
    assert b"nanscope" in read(other, address)
    assert interrupt(server) == (0, "")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--host", "0.0.0.0", "--port", "0", "--ingest", "tcp://127.0.0.1:*"),
        ("--port", "0", "--ingest", "tcp://0.0.0.0:*"),
    ],
)
def test_serve_beyond_loopback_is_refused_with_the_commands_that_would_do(
    fork: Fork, arguments: tuple[str, ...]
) -> None:
    code, output, errors = fork("serve", "--no-browser", *arguments).finish(60)
    assert (code, output) == (2, "")
    assert "ssh -N -L 805" in errors and "\n  dashboard " in errors


def test_keygen_makes_what_serve_finds(fork: Fork, tmp_path: Path) -> None:
    code, output, errors = fork("keygen").finish(60)
    assert (code, errors) == (0, "")
    assert "NANSCOPE_KEYS=" in output
    assert fork("keygen").finish(60)[0] == 2
    server = fork("serve", "--no-browser", "--port", "0", "--ingest", "tcp://0.0.0.0:*")
    address_of(server)
    assert interrupt(server) == (0, "")


def test_url_and_open_print_the_running_dashboards_address(fork: Fork, tmp_path: Path) -> None:
    server = fork("serve", *FREE)
    address = address_of(server)
    assert fork("url").finish(60) == (0, f"{address}\n", "")
    assert fork("open", "--no-browser").finish(60) == (0, f"nanscope {address}\n", "")
    with pytest.raises(urllib.error.HTTPError) as refused:
        read(visitor(), address.partition("?")[0])
    assert "`dashboard url`" in refused.value.read().decode()
    for path in (tmp_path / "state").rglob("*.json"):
        assert path.stat().st_mode & 0o077 == 0
    assert address.partition("=")[2] not in (tmp_path / "state" / "nanscope" / "serve.json").read_text()
    server.send_signal(signal.SIGKILL)
    server.wait(30)
    for command in ("url", "open"):
        code, output, errors = fork(command).finish(60)
        assert (code, output) == (2, "")
        assert "start one with: dashboard serve" in errors


@pytest.mark.parametrize(
    "left", ["no server", "another program", "another token", "no JSON", "open to others"]
)
def test_note_that_no_server_answers_to_leads_nowhere(left: str, tmp_path: Path, fork: Fork) -> None:
    note = {"page": "http://127.0.0.1:9/", "token": "left-behind", "pid": 1}
    data = tmp_path / "state" / "nanscope" / "data"
    server = fork("serve", *FREE) if left in ("another token", "open to others") else None
    with socket.create_server(("127.0.0.1", 0)) as silent:
        if left == "another program":
            note["page"] = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        if server is not None:
            note["page"], _, token = address_of(server).partition("?token=")
            note["token"] = token if left == "open to others" else "wrong-token"
        data.mkdir(parents=True, exist_ok=True)
        (data / "serving.json").unlink(missing_ok=True)
        (data / "serving.json").write_text("{" if left == "no JSON" else json.dumps(note))
        (data / "serving.json").chmod(0o644 if left == "open to others" else 0o600)
        assert fork("url").finish(60)[0] == 2


def test_open_shows_the_finished_run_and_leaves_no_trace(fork: Fork, tmp_path: Path) -> None:
    write_run(tmp_path / "finished", steps=30)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    server = fork("open", str(tmp_path / "finished"), *FREE, TMPDIR=str(temporary))
    address, browser = address_of(server), visitor()
    read(browser, address)
    assert b"nonfinite_gradient" in read(browser, address.partition("?")[0] + "export/json?run=run-a")
    assert interrupt(server) == (0, "")
    assert list(temporary.iterdir()) == []
    assert not (tmp_path / "state").exists()


def test_open_of_one_run_shows_that_run_alone(fork: Fork, tmp_path: Path) -> None:
    for run in ("older", "run-a", "run-a-judge", "newest"):
        write_run(tmp_path / "finished", run, steps=30, group=run.removesuffix("-judge"))
    server = fork("open", str(tmp_path / "finished" / "run-a"), *FREE)
    address, browser = address_of(server), visitor()
    read(browser, address)
    time.sleep(1.0)  # the server reads what else the spool holds as soon as it answers
    assert json.loads(read(browser, address.partition("?")[0] + "health"))["runs"] == 2
    assert interrupt(server) == (0, "")


def test_open_empty_spool_is_one_sentence(fork: Fork, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    code, _, errors = fork("open", str(tmp_path / "empty"), *FREE).finish(60)
    assert (code, errors.count("\n")) == (2, 1)


@pytest.mark.slow
def test_demo_ends_by_itself_once_all_is_stored(fork: Fork, tmp_path: Path) -> None:
    demo = fork("demo", *FREE, "--", "--steps", "12", "--fault", "none", DEMO_EXIT="1")
    code, output, errors = demo.finish(170)
    assert code == 0, errors
    assert ADDRESS.search(output)
    (run,) = (tmp_path / "spool").iterdir()
    store = DuckStore(tmp_path / "state" / "nanscope" / "data")
    try:
        assert is_stored(store, run)
    finally:
        store.close()
    assert runs_behind(tmp_path) == []


@pytest.mark.slow
def test_demo_ctrl_c_ends_training_and_server_and_leaves_nothing(start: Start, tmp_path: Path) -> None:
    demo = start("demo", *FREE, "--", "--steps", "100000")
    address_of(demo)
    assert demo.stdout is not None
    assert "step" in demo.stdout.readline()
    assert interrupt(demo) == (0, "")
    assert runs_behind(tmp_path) == []


@pytest.mark.slow
def test_demo_failing_training_is_one_clear_sentence(fork: Fork) -> None:
    demo = fork("demo", *FREE, "--", "--nonsense", DEMO_EXIT="1")
    code, _, errors = demo.finish(120)
    assert code == 2
    assert errors.splitlines()[-1].startswith("dashboard: The demo's training failed with exit code 2")


def test_is_stored_only_once_the_store_has_every_record(tmp_path: Path) -> None:
    run = write_run(tmp_path / "spool", steps=10)
    store = DuckStore(tmp_path / "data")
    try:
        assert not is_stored(store, run)
        SpoolIngest(store, tmp_path / "spool").run_one(run)
        assert is_stored(store, run)
        assert not is_stored(store, tmp_path / "spool" / "unknown")
    finally:
        store.close()
