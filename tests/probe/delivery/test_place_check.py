"""Each finding about spool, variables and `serve`, made to appear."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from small_disk import disk_of

from probe.delivery.control.place_check import (
    check_environment,
    check_newest_steps,
    check_serve,
    check_spool,
    place_findings,
)
from probe.delivery.recorder import ring
from probe.settings import places
from probe.settings.places import ServeState, serve_state_path, write_serve_state

SECRET = "ab" * 16


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The temporary folder is on a disk, whatever it is on."""
    monkeypatch.setattr(places, "file_system_type", lambda path: "ext4")


def free(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=size))


@pytest.mark.usefixtures("disk")
def test_spool_with_runs_is_ok_with_their_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch, 5 << 30)
    for run in ("first", "second"):
        writer = tmp_path / run / "0-1"
        writer.mkdir(parents=True)
        (writer / "events-00000000000000000000.seg").write_bytes(bytes(3 << 20))
    finding = check_spool({"NANSCOPE_SPOOL": str(tmp_path)})
    assert finding.state == "ok"
    assert finding.found == f"{tmp_path}: 6.0 MiB of journals in 2 runs; 5.0 GiB free"


@pytest.mark.usefixtures("disk")
def test_spool_that_is_not_there_yet_is_ok_and_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free(monkeypatch, 5 << 30)
    assert check_spool({"NANSCOPE_SPOOL": str(tmp_path / "spool")}).state == "ok"
    assert list(tmp_path.iterdir()) == []


def test_spool_where_nothing_can_be_written_is_missing() -> None:
    finding = check_spool({"NANSCOPE_SPOOL": "/proc/nanscope"})
    assert finding.state == "missing"
    assert "nothing can be written in /proc/nanscope" in finding.found
    assert "set NANSCOPE_SPOOL" in finding.advice


def test_spool_that_is_a_file_is_missing(tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("x")
    assert "Not a directory" in check_spool({"NANSCOPE_SPOOL": str(tmp_path / "spool")}).found


@pytest.mark.usefixtures("disk")
@pytest.mark.parametrize(("size", "state"), [(1 << 20, "missing"), (1 << 30, "limited"), (3 << 30, "ok")])
def test_spool_with_little_space_is_told(
    size: int, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free(monkeypatch, size)
    finding = check_spool({"NANSCOPE_SPOOL": str(tmp_path)})
    assert finding.state == state
    assert "GiB free" in finding.found or "1.0 MiB free" in finding.found


@pytest.mark.parametrize(
    ("kind", "text"), [("nfs4", "on a network file system (nfs4)"), ("tmpfs", "in memory (tmpfs)")]
)
def test_spool_on_a_file_system_that_is_unfit_is_limited(
    kind: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "file_system_type", lambda path: kind)
    finding = check_spool({"NANSCOPE_SPOOL": str(tmp_path)})
    assert (finding.state, finding.found) == ("limited", f"{tmp_path}: {text}")


def test_spool_away_from_a_cache_on_a_network_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setattr(
        places, "file_system_type", lambda path: "nfs" if path.is_relative_to(cache) else "ext4"
    )
    finding = check_spool({"XDG_CACHE_HOME": str(cache)})
    assert finding.state == "limited"
    assert "temporary, because the cache folder is on a network file system" in finding.found


@pytest.mark.parametrize("kind", ["writable", "link", "file", "other owner"])
def test_temporary_folder_of_somebody_else_is_not_used(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(places.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(places, "file_system_type", lambda path: "nfs4")
    taken, environment = tmp_path / f"nanscope-{os.getuid()}", {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    if kind == "link":
        (tmp_path / "elsewhere").mkdir()
        taken.symlink_to("elsewhere")
    elif kind == "file":
        taken.touch()
    else:
        taken.mkdir()
        taken.chmod(0o777 if kind == "writable" else 0o700)
    if kind == "other owner":
        if os.geteuid() != 0:
            pytest.skip("only root can give a folder away")
        os.chown(taken, 65534, 65534)
    found = {places.default_spool(environment) for _ in range(3)}
    assert found == {tmp_path / f"nanscope-{os.getuid()}-1" / "spool"}
    (record,) = caplog.records
    assert str(taken) in record.getMessage()


def test_no_temporary_folder_of_ones_own_leaves_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(places, "file_system_type", lambda path: "nfs4")
    for number in ["", *(f"-{number}" for number in range(1, 10))]:
        (tmp_path / f"nanscope-{os.getuid()}{number}").touch()
    assert places.default_spool({"XDG_CACHE_HOME": "/net/me"}) == Path("/net/me/nanscope/spool")


def test_relative_spool_is_taken_from_where_the_process_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Path.cwd()
    monkeypatch.chdir(tmp_path)
    assert places.default_spool({"NANSCOPE_SPOOL": "runs/here"}) == before / "runs" / "here"


@pytest.mark.usefixtures("disk")
def test_spool_of_a_relative_path_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probe.began.FOLDER", str(tmp_path))
    finding = check_spool({"NANSCOPE_SPOOL": "spool"})
    assert (finding.state, finding.found) == ("limited", f"{tmp_path}/spool: a relative path")


@pytest.mark.usefixtures("disk")
def test_spool_of_other_things_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch, 5 << 30)
    (tmp_path / "holiday.jpg").write_bytes(b"x")
    finding = check_spool({"NANSCOPE_SPOOL": str(tmp_path)})
    assert finding.state == "limited"
    assert "holds other things" in finding.found


def test_environment_without_variables_is_one_line() -> None:
    findings = check_environment({"HOME": "/"})
    assert [(finding.state, finding.found) for finding in findings] == [("ok", "no NANSCOPE variable is set")]


GOOD = {
    "NANSCOPE_LEVEL": "advanced",
    "NANSCOPE_RUN": "run-1",
    "NANSCOPE_OFF": "0",
    "NANSCOPE_KERNEL": "off",
    "NANSCOPE_LINGER_S": "2.5",
    "NANSCOPE_SECRET": SECRET,
    "NANSCOPE_TOKEN": "token-to-hide",
    "NANSCOPE_VIEW_TOKEN": "another-to-hide",
    "NANSCOPE_CONNECT": "tcp://127.0.0.1:8051",
}


def test_environment_of_good_values_is_ok(tmp_path: Path) -> None:
    findings = check_environment({**GOOD, "NANSCOPE_SPOOL": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)})
    assert {finding.name: finding.state for finding in findings} == dict.fromkeys(
        [*GOOD, "NANSCOPE_SPOOL"], "ok"
    )


def test_environment_shows_no_secret(tmp_path: Path) -> None:
    variables = {**GOOD, "XDG_STATE_HOME": str(tmp_path), "NANSCOPE_SPOOL": str(tmp_path)}
    state = ServeState(page="http://127.0.0.1:1/", ingest="tcp://127.0.0.1:1", pid=1, secret="cd" * 16)
    write_serve_state(state, variables)
    text = repr(place_findings(variables))
    assert not any(secret in text for secret in (SECRET, "token-to-hide", "another-to-hide", "cd" * 16))


@pytest.mark.parametrize(
    ("name", "value", "state", "text"),
    [
        ("NANSCOPE_LEVEL", "loud", "missing", "level='loud' is not available"),
        ("NANSCOPE_LEVEL", "off", "limited", "Nothing is recorded"),
        ("NANSCOPE_RUN", "a/b", "missing", "run='a/b' cannot name a run"),
        ("NANSCOPE_OFF", "false", "limited", "inert handle"),
        ("NANSCOPE_KERNEL", "no", "limited", "has no effect"),
        ("NANSCOPE_LINGER_S", "soon", "limited", "not a number of seconds"),
        ("NANSCOPE_SECRET", "xyz", "limited", "not hexadecimal"),
        ("NANSCOPE_CONNECT", "", "limited", "ships nothing"),
        ("NANSCOPE_KEYS", "/absent/keys", "limited", "/absent/keys cannot be read"),
        ("NANSCOPE_CONNECT", "localhost:8051", "limited", "is not an address"),
        ("NANSCOPE_CONNECT", "tcp://127.0.0.1", "limited", "is not an address"),
        ("NANSCOPE_CONNECT", "tcp://127.0.0.1:8051", "limited", "without a secret"),
        ("NANSCOPE_LEVLE", "basic", "limited", "did you mean NANSCOPE_LEVEL?"),
    ],
)
def test_environment_of_a_value_that_does_not_work_is_told(
    name: str, value: str, state: str, text: str, tmp_path: Path
) -> None:
    variables = {"XDG_STATE_HOME": str(tmp_path), name: value}
    (finding,) = check_environment(variables)
    assert (finding.name, finding.state) == (name, state)
    assert text in f"{finding.found} {finding.advice}"


@pytest.fixture
def listeners() -> Iterator[list[socket.socket]]:
    """Two sockets that accept connections: a page and an ingest."""
    found = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    yield found
    close_all(found)


def close_all(listeners: list[socket.socket]) -> None:
    for listener in listeners:
        listener.close()


def leave_note(folder: Path, listeners: list[socket.socket], *, pid: int | None = None) -> dict[str, str]:
    """A `serve.json` as a server with these sockets would leave it; the environment that finds it."""
    variables = {"XDG_STATE_HOME": str(folder)}
    page, ingest = (listener.getsockname()[1] for listener in listeners)
    state = ServeState(
        page=f"http://127.0.0.1:{page}/",
        ingest=f"tcp://127.0.0.1:{ingest}",
        pid=os.getpid() if pid is None else pid,
        secret=SECRET,
    )
    write_serve_state(state, variables)
    return variables


def test_serve_that_does_not_run_is_ok_and_told(tmp_path: Path) -> None:
    finding = check_serve({"XDG_STATE_HOME": str(tmp_path)})
    assert finding.state == "ok"
    assert "no dashboard of yours is running" in finding.found


def test_serve_that_answers_is_ok_with_its_addresses(tmp_path: Path, listeners: list[socket.socket]) -> None:
    finding = check_serve(leave_note(tmp_path, listeners))
    assert finding.state == "ok"
    assert f"http://127.0.0.1:{listeners[0].getsockname()[1]}/" in finding.found


@pytest.mark.parametrize("deaf", [0, 1])
def test_serve_with_a_closed_port_is_limited(
    deaf: int, tmp_path: Path, listeners: list[socket.socket]
) -> None:
    variables = leave_note(tmp_path, listeners)
    port = listeners[deaf].getsockname()[1]
    listeners[deaf].close()
    finding = check_serve(variables)
    assert finding.state == "limited"
    assert f":{port}" in finding.found and "does not answer" in finding.found


def test_serve_whose_process_has_ended_is_limited(tmp_path: Path, listeners: list[socket.socket]) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(timeout=60)
    variables = leave_note(tmp_path, listeners, pid=ended.pid)
    close_all(listeners)
    finding = check_serve(variables)
    assert finding.state == "limited"
    assert f"names process {ended.pid}, which has ended" in finding.found


def test_serve_whose_process_number_came_round_again_is_limited(
    tmp_path: Path, listeners: list[socket.socket]
) -> None:
    variables = leave_note(tmp_path, listeners)
    close_all(listeners)
    os.utime(serve_state_path(variables), (0, 0))
    assert "which has ended" in check_serve(variables).found


@pytest.mark.parametrize("left", [b"{broken", b'{"page":"p","ingest":"i","pid":1,"secret":"no"}'])
def test_serve_note_that_is_damaged_is_limited(left: bytes, tmp_path: Path) -> None:
    variables = {"XDG_STATE_HOME": str(tmp_path)}
    places.write_private_file(serve_state_path(variables), left)
    finding = check_serve(variables)
    assert finding.state == "limited"
    assert "is damaged" in finding.found


def test_serve_note_that_others_can_read_is_limited(tmp_path: Path, listeners: list[socket.socket]) -> None:
    variables = leave_note(tmp_path, listeners)
    serve_state_path(variables).chmod(0o644)
    finding = check_serve(variables)
    assert finding.state == "limited"
    assert finding.advice == f"chmod 600 {serve_state_path(variables)}"


def test_newest_steps_are_in_a_file_and_how_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (finding,) = check_newest_steps({"NANSCOPE_SPOOL": str(tmp_path / "spool")})
    assert finding.state == "ok" and finding.found.endswith("a kill takes no finished step")
    monkeypatch.setattr(ring, "map_written_file", lambda *_: None)
    (finding,) = check_newest_steps({"NANSCOPE_SPOOL": str(tmp_path)})
    assert finding.state == "ok" and "it cannot be mapped here" in finding.found
    assert list(tmp_path.iterdir()) == []


def test_newest_steps_without_room_for_a_file_are_limited_and_why_is_said(tmp_path: Path) -> None:
    with disk_of(tmp_path / "disk", kib=1024) as disk:
        (finding,) = check_newest_steps({"NANSCOPE_SPOOL": str(disk / "spool")})
        assert finding.state == "limited"
        assert finding.found == "in memory alone, cannot be written: No space left on device"
        assert list(disk.iterdir()) == []


def test_newest_steps_where_nothing_can_be_written_are_the_spools_to_say() -> None:
    assert check_newest_steps({"NANSCOPE_SPOOL": "/proc/nanscope"}) == []
