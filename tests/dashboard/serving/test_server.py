"""The serve process: start, stop, note for probes, ports, and what its routes answer over real HTTP."""

from __future__ import annotations

import http.client
import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import page_runs
import pytest
from sample_runs import write_run
from written_journal import record_places

from dashboard.errors import DashboardError
from dashboard.ingest.spool import SpoolIngest
from dashboard.serving.running import INSTANCE, find_server
from dashboard.serving.serve import serve
from dashboard.serving.server import Server
from probe.settings.places import ServeState, read_serve_state, serve_state_path, write_serve_state

TOKEN = "token-for-tests"


def environment(folder: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(folder / "state"), "NANSCOPE_TOKEN": TOKEN}


def make(folder: Path, *, port: int = 0, state: Path | None = None) -> Server:
    return Server(
        port=port,
        ingest="tcp://127.0.0.1:0",
        data=folder / "data",
        spool=folder / "spool",
        environment=environment(state or folder),
    )


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = make(tmp_path)
    started.start()
    yield started
    started.stop()


def get(server: Server, path: str, *, token: str = TOKEN) -> tuple[int, dict[str, str], bytes]:
    host = server.page.removeprefix("http://").rstrip("/")
    connection = http.client.HTTPConnection(host, timeout=10)
    connection.request("GET", path, headers={"x-nanscope-token": token})
    answer = connection.getresponse()
    found = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    connection.close()
    return found


def test_server_leaves_a_note_and_takes_it_away(tmp_path: Path) -> None:
    server = make(tmp_path)
    server.start()
    note = read_serve_state(environment(tmp_path))
    assert (note.page, note.ingest) == (server.page, server.ingest)
    server.stop()
    assert read_serve_state(environment(tmp_path)) is None


def test_server_with_other_data_leaves_the_note_of_the_first(tmp_path: Path) -> None:
    first, second = make(tmp_path), make(tmp_path / "other", state=tmp_path)
    first.start()
    second.start()
    try:
        assert read_serve_state(environment(tmp_path)).page == first.page
        (said,) = second.notices()
        assert f"another dashboard, {first.page} (process {os.getpid()}, " in said
        assert f"NANSCOPE_CONNECT={second.ingest}." in said
        assert first.notices() == []
        second.stop()
        assert read_serve_state(environment(tmp_path)).page == first.page
    finally:
        second.stop()
        first.stop()
    assert read_serve_state(environment(tmp_path)) is None


def test_server_takes_the_note_when_the_first_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dashboard.serving.spool_thread.SPOOL_INTERVAL_S", 0.05)
    first, second = make(tmp_path), make(tmp_path / "other", state=tmp_path)
    first.start()
    second.start()
    first.stop()
    try:
        deadline = time.monotonic() + 10
        # For a moment there is no note of anybody.
        while read_serve_state(environment(tmp_path)) is None and time.monotonic() < deadline:
            time.sleep(0.02)
        assert read_serve_state(environment(tmp_path)).page == second.page
        while second.notices() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert second.notices() == []
    finally:
        second.stop()
    assert read_serve_state(environment(tmp_path)) is None


@pytest.mark.parametrize("answers", [True, False])
def test_server_note_of_a_process_that_began_later_counts_while_a_server_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    """The number of a killed server is another process's by now; or somebody has set the clock."""
    theirs = ServeState(page="http://127.0.0.1:1/", ingest="i", pid=os.getppid(), secret="", data="d")
    write_serve_state(theirs, environment(tmp_path))
    os.utime(serve_state_path(environment(tmp_path)), (1.0, 1.0))
    monkeypatch.setattr(
        "dashboard.serving.serve_note.find_server_of", lambda data: object() if answers else None
    )
    server = make(tmp_path)
    server.start()
    server.stop()
    assert read_serve_state(environment(tmp_path)) == (theirs if answers else None)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """The folder and the page's port of a server whose process was killed: its notes lie there still."""
    folder = tmp_path_factory.mktemp("killed")
    script = (
        "import os, sys; from pathlib import Path; from test_server import make\n"
        "make(Path(sys.argv[1])).start(); os.kill(os.getpid(), 9)"
    )
    paths = os.pathsep.join(sys.path)
    subprocess.run(
        [sys.executable, "-c", script, folder],
        env=os.environ | {"PYTHONPATH": paths},
        timeout=60,
        check=False,
    )
    note = read_serve_state(environment(folder))
    return folder, int(note.page.rstrip("/").rpartition(":")[2])


@pytest.mark.parametrize("data", ["data", "other"])
@pytest.mark.parametrize("is_number_taken", [False, True])
def test_server_after_a_kill_is_found_by_trainings(
    data: str,
    is_number_taken: bool,
    killed: tuple[Path, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the same port the page answers for the killed server too, with the token that lasts.

    In a container the process has the same number again.
    """
    folder, port = killed
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    left = read_serve_state(environment(tmp_path))
    left = msgspec.structs.replace(left, data=str(tmp_path / "data"))
    if is_number_taken:
        left = msgspec.structs.replace(left, pid=os.getpid())
    write_serve_state(left, environment(tmp_path))
    server = Server(
        port=port,
        ingest="tcp://127.0.0.1:0",
        data=tmp_path / data,
        spool=tmp_path / "spool",
        environment=environment(tmp_path),
    )
    server.start()
    try:
        found = read_serve_state(environment(tmp_path))
        assert (found.ingest, found.pid) == (server.ingest, os.getpid())
        assert server.notices() == []
        assert find_server(environment(tmp_path)).page == server.page
    finally:
        server.stop()


def test_serve_says_where_trainings_ship_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("NANSCOPE_TOKEN", TOKEN)
    stop, said = threading.Event(), []
    first = make(tmp_path)
    first.start()
    try:
        serve(
            port=0,
            ingest="tcp://127.0.0.1:0",
            data=tmp_path / "other",
            spool=tmp_path / "spool",
            open_browser=False,
            announce=lambda line: None,
            notice=said.append,
            ready=lambda server: stop.set(),
            stop=stop,
        )
    finally:
        first.stop()
    (line,) = said
    assert line.startswith(f"Trainings on this machine find another dashboard, {first.page} ")


@pytest.mark.parametrize(
    "left", [None, b"{broken", b'{"page":"p","ingest":"i","pid":2147483647,"secret":""}']
)
def test_server_note_that_is_lost_or_of_a_dead_server_is_written_again(
    left: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dashboard.serving.spool_thread.SPOOL_INTERVAL_S", 0.05)
    server = make(tmp_path)
    server.start()
    try:
        path = serve_state_path(environment(tmp_path))
        mine = path.read_bytes()
        path.unlink() if left is None else path.write_bytes(left)
        deadline = time.monotonic() + 10
        while (not path.exists() or path.read_bytes() != mine) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert path.read_bytes() == mine
    finally:
        server.stop()
    assert not path.exists()


def test_server_secret_survives_a_restart(tmp_path: Path) -> None:
    secrets = []
    for _ in range(2):
        server = make(tmp_path)
        server.start()
        secrets.append(read_serve_state(environment(tmp_path)).secret)
        server.stop()
    assert secrets[0] == secrets[1]


def test_server_start_and_stop_twice_is_harmless(server: Server) -> None:
    address = server.address
    server.start()
    assert server.address == address
    server.stop()
    server.stop()
    with pytest.raises(RuntimeError, match="not started"):
        _ = server.store


def test_server_port_in_use_says_what_to_do(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(DashboardError, match=f"Port {port} .* --port 0"):
            make(tmp_path, port=port).start()


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "example.com", "::"])
def test_server_refuses_to_listen_elsewhere(tmp_path: Path, host: str) -> None:
    with pytest.raises(DashboardError, match="loopback"):
        Server(host=host, environment=environment(tmp_path))


def test_server_store_after_stop_is_gone(server: Server) -> None:
    server.stop()
    with pytest.raises(RuntimeError, match="not started"):
        _ = server.store


def test_health_counts_runs(server: Server) -> None:
    page_runs.fill(server.store, steps=range(3))
    found = json.loads(get(server, "/health")[2])
    assert found == {"status": "ok", "instance": INSTANCE, "runs": 1, "outlets": []}


@pytest.mark.parametrize(
    "path", ["/", "/health", "/assets/ns_page.css", "/export/json?run=demo-run", "/_dash-layout"]
)
def test_every_route_needs_the_token(server: Server, path: str) -> None:
    assert get(server, path, token="wrong")[0] == 401


def test_page_is_served_with_its_policy(server: Server) -> None:
    status, headers, body = get(server, "/")
    assert status == 200
    assert "sha256-" in headers["content-security-policy"]
    assert b"ns_00_core.js" in body


def test_export_of_unknown_run_is_not_found(server: Server) -> None:
    assert get(server, "/export/json?run=nobody")[0] == 404


def test_export_html_is_a_download_of_that_run(server: Server) -> None:
    page_runs.fill(server.store, steps=range(5))
    status, headers, body = get(server, "/export/html?run=demo-run&theme=light")
    assert status == 200
    assert headers["content-disposition"] == 'attachment; filename="nanscope-demo-run.html"'
    assert b"demo-run" in body


def test_documentation_pages_that_load_from_elsewhere_are_off(server: Server) -> None:
    assert b"swagger" not in get(server, "/docs")[2].lower()


def test_serve_announces_one_line_and_ends_when_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("NANSCOPE_TOKEN", TOKEN)
    lines: list[str] = []
    stop = threading.Event()
    serve(
        port=0,
        ingest="tcp://127.0.0.1:0",
        data=tmp_path / "data",
        spool=tmp_path / "spool",
        open_browser=False,
        announce=lines.append,
        ready=lambda server: stop.set(),
        stop=stop,
    )
    assert len(lines) == 1
    assert lines[0].startswith("nanscope http://127.0.0.1:")
    assert lines[0].endswith(f"/?token={TOKEN}")


def test_notices_are_whole_sentences(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "holiday.jpg").write_bytes(b"x")
    server = make(tmp_path)
    server.start()
    try:
        deadline = time.monotonic() + 20
        while not (notices := server.notices()) and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        server.stop()
    (notice,) = notices
    assert notice.startswith(f"The spool {tmp_path / 'spool'} cannot be read: ")
    assert notice.endswith("but no run.")


def test_run_whose_end_is_missing_is_told_in_the_log_on_the_page_and_by_the_api(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_run(tmp_path / "spool", steps=40)
    (segment,) = (folder / "0-1").glob("metrics-*.seg")
    at, _ = record_places(segment.read_bytes())[-14]
    os.truncate(segment, at)
    with caplog.at_level(logging.WARNING):
        server = make(tmp_path)
        server.start()
        try:
            deadline = time.monotonic() + 20
            while not (notices := server.notices()) and time.monotonic() < deadline:
                time.sleep(0.02)
            answer = json.loads(get(server, f"/api/v1/runs/{folder.name}/delivery")[2])
        finally:
            server.stop()
    said = f"Run {folder.name}, records missing: 14, metrics of 0-1: missing at the end"
    assert notices[0].startswith(said)
    assert [record.message for record in caplog.records if record.message.startswith(said)]
    (gap,) = answer["gaps"]
    assert (gap["count"], gap["first_step"], gap["last_step"], gap["is_partial"]) == (14, 25, None, False)
    (metrics,) = (one for one in answer["positions"] if one["stream"] == "metrics")
    assert (metrics["next_seq"], metrics["stored"], metrics["gaps"]) == (40, 26, 14)


def test_run_that_its_helper_ships_elsewhere_is_read_from_the_spool(tmp_path: Path) -> None:
    lock = write_run(tmp_path / "spool", steps=5) / "host-box" / "helper.lock"
    lock.parent.mkdir()
    hold = (
        "import fcntl, sys; held = open(sys.argv[1], 'a'); fcntl.lockf(held, fcntl.LOCK_EX); print(); input()"
    )
    command = [sys.executable, "-c", hold, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as helper:
        helper.stdout.readline()
        server = make(tmp_path)
        server.start()
        try:
            deadline = time.monotonic() + 20
            while not (runs := server.store.runs()) and time.monotonic() < deadline:
                time.sleep(0.02)
            assert [rank.last_step for run in runs for rank in run.ranks] == [4]
        finally:
            server.stop()
            helper.communicate(b"\n", timeout=30)


def test_spool_that_waits_for_the_store_is_not_called_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: SpoolIngest, **_: object) -> None:
        raise DashboardError("the store cannot write")

    monkeypatch.setattr(SpoolIngest, "run", refuse)
    (tmp_path / "spool").mkdir()
    server = make(tmp_path)
    server.start()
    try:
        deadline = time.monotonic() + 20
        while not (notices := server.notices()) and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        server.stop()
    assert notices == [f"Runs of the spool {tmp_path / 'spool'} wait: the store cannot write."]


def test_wait_idle_after_news_waits_for_quiet(server: Server) -> None:
    server.notify()
    assert server.wait_idle(quiet_s=0.2, timeout_s=10.0) is True
    server.notify()
    assert server.wait_idle(quiet_s=30.0, timeout_s=0.1) is False
