"""`dashboard clean`: which runs go, which stay, and that nothing of them comes back."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sample_runs import write_run

from dashboard.cli import main
from dashboard.commands.clean import age_seconds
from dashboard.errors import DashboardError
from dashboard.ingest.spool import ingest_spool
from dashboard.serving.server import Server
from dashboard.store.duck import DuckStore
from probe.delivery.journal.run_folders import list_runs

HOLD = """
import fcntl, sys
file = open(sys.argv[1], "ab")
fcntl.lockf(file, fcntl.LOCK_EX)
print(flush=True)
input()
"""
DAY_S = 86400.0


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "spool"
    monkeypatch.setenv("NANSCOPE_SPOOL", str(folder))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("NANSCOPE_TOKEN", "token-for-tests")
    for run, days in (("old", 30.0), ("middle", 10.0), ("new", 1.0)):
        age(write_run(folder, run, name=f"{run}.py", steps=20), days * DAY_S)
    return folder


def age(folder: Path, seconds: float) -> None:
    for path in folder.rglob("*"):
        os.utime(path, (time.time() - seconds,) * 2)


def left(spool: Path) -> list[str]:
    return [folder.name for folder in list_runs(spool)] if any(spool.iterdir()) else []


def stored(data: Path) -> list[str]:
    store = DuckStore(data)
    try:
        return sorted(run.run for run in store.runs())
    finally:
        store.close()


@pytest.mark.parametrize(
    ("arguments", "stay"),
    [
        (["old"], ["middle", "new"]),
        (["middle.py"], ["new", "old"]),
        (["--older-than", "14d"], ["middle", "new"]),
        (["--older-than", "36h"], ["new"]),
        (["--keep", "1"], ["new"]),
        (["--keep", "0"], []),
        (["--keep", "1", "--older-than", "14d"], ["middle", "new"]),
        (["old", "new", "--older-than", "14d"], ["middle", "new"]),
    ],
)
def test_clean_deletes_what_is_asked_for(arguments: list[str], stay: list[str], spool: Path) -> None:
    assert main(["clean", *arguments, "--yes"]) == 0
    assert left(spool) == stay


def test_clean_says_which_and_how_much(spool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["clean", "--older-than", "14d", "--yes"])
    lines = capsys.readouterr().out.splitlines()
    assert "old  old.py" in lines[0] and "KiB" in lines[0]
    assert lines[-1].startswith("Deleted 1 run (")


def test_clean_deletes_from_the_store_too_and_nothing_comes_back(spool: Path, tmp_path: Path) -> None:
    data = tmp_path / "state" / "nanscope" / "data"
    store = DuckStore(data)
    ingest_spool(store, spool)
    store.close()
    assert main(["clean", "old", "--yes"]) == 0
    assert stored(data) == ["middle", "new"]
    store = DuckStore(data)
    ingest_spool(store, spool)
    store.close()
    assert stored(data) == ["middle", "new"]


def test_clean_deletes_a_run_that_only_the_store_has(spool: Path, tmp_path: Path) -> None:
    data = tmp_path / "state" / "nanscope" / "data"
    store = DuckStore(data)
    ingest_spool(store, spool)
    store.close()
    (spool / "old").rename(tmp_path / "elsewhere")
    assert main(["clean", "old", "--yes"]) == 0
    assert stored(data) == ["middle", "new"]


def test_clean_without_a_terminal_asks_for_yes(
    spool: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert main(["clean", "old"]) == 2
    assert "pass --yes" in capsys.readouterr().err and left(spool) == ["middle", "new", "old"]


def test_clean_without_a_choice_says_what_there_is(spool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["clean", "--yes"]) == 2
    assert "There are 3 runs (" in capsys.readouterr().err and len(left(spool)) == 3


@pytest.mark.parametrize("arguments", [["nosuch"], ["old", "nosuch"], ["/nosuch"]])
def test_clean_of_an_unknown_run_deletes_nothing(arguments: list[str], spool: Path) -> None:
    assert main(["clean", *arguments, "--yes"]) == 2
    assert len(left(spool)) == 3


def test_clean_leaves_a_run_with_a_helper(spool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = spool / "old" / "host-box" / "helper.lock"
    lock.parent.mkdir()
    command = [sys.executable, "-c", HOLD, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        holder.stdout.readline()
        age(spool / "old", 30 * DAY_S)
        assert main(["clean", "--keep", "0", "--yes"]) == 0
        holder.communicate("\n", timeout=10)
    assert left(spool) == ["old"]
    assert "old is still being written" in capsys.readouterr().err


def test_clean_leaves_a_starred_run_unless_it_is_named(spool: Path) -> None:
    (spool / "old" / "starred").touch()
    age(spool / "old", 30 * DAY_S)
    main(["clean", "--keep", "0", "--yes"])
    assert left(spool) == ["old"]
    main(["clean", "old", "--yes"])
    assert left(spool) == []


@pytest.fixture
def server(spool: Path, tmp_path: Path) -> Iterator[Server]:
    started = Server(port=0, ingest="tcp://127.0.0.1:0", environment=dict(os.environ))
    started.start()
    wait_for(lambda: len(started.store.runs()) == 3)
    yield started
    started.stop()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20.0
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert condition()


def test_clean_asks_the_running_server(server: Server, spool: Path) -> None:
    assert main(["clean", "--older-than", "5d", "--yes"]) == 0
    assert [run.run for run in server.store.runs()] == ["new"]
    assert left(spool) == ["new"]


def test_clean_has_the_token_from_the_servers_note(
    server: Server, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NANSCOPE_TOKEN", "another-token")
    assert main(["clean", "old", "--yes"]) == 0
    assert sorted(run.run for run in server.store.runs()) == ["middle", "new"] == sorted(left(spool))


def test_clean_of_a_folder_that_is_served_asks_its_server(server: Server, tmp_path: Path) -> None:
    assert main(["clean", "old", "--yes", "--data", str(tmp_path / "state" / "nanscope" / "data")]) == 0
    assert sorted(run.run for run in server.store.runs()) == ["middle", "new"]


def test_clean_without_note_and_token_is_one_sentence_and_deletes_nothing(
    server: Server,
    spool: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "state" / "nanscope" / "data" / "serving.json").unlink()
    monkeypatch.setenv("NANSCOPE_TOKEN", "another-token")
    assert main(["clean", "old", "--yes"]) == 2
    assert "set NANSCOPE_TOKEN" in capsys.readouterr().err and len(left(spool)) == 3


def test_routes_refuse_what_is_no_list_of_runs(server: Server) -> None:
    import urllib.error
    import urllib.request

    headers = {"x-nanscope-token": "token-for-tests", "origin": server.page.rstrip("/")}
    headers["content-type"] = "application/json"
    request = urllib.request.Request(
        server.page + "api/v1/runs/remove", data=json.dumps({"run": "old"}).encode(), headers=headers
    )
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(request, timeout=10)
    assert raised.value.code == 422
    raised.value.close()
    assert len(server.store.runs()) == 3


@pytest.mark.parametrize(
    ("text", "seconds"), [("14d", 14 * DAY_S), ("36h", 129600.0), ("1.5m", 90.0), ("2w", 14 * DAY_S)]
)
def test_age_in_seconds(text: str, seconds: float) -> None:
    assert age_seconds(text) == seconds


@pytest.mark.parametrize("text", ["14", "d", "-1d", "14 days", ""])
def test_age_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="such as 14d"):
        age_seconds(text)


def serve_once(spool: Path, data: Path) -> list[str]:
    """Have a server read the spool into a data folder, and stop it; return the runs that it knows."""
    server = Server(port=0, ingest="tcp://127.0.0.1:0", data=data, spool=spool)
    server.start()
    try:
        deadline = time.monotonic() + 20
        while len(server.store.runs()) < len(left(spool)) and time.monotonic() < deadline:
            time.sleep(0.02)
        return sorted(run.run for run in server.store.runs())
    finally:
        server.stop()


def test_clean_deletes_from_data_folders_whose_servers_are_down(
    spool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "elsewhere"
    assert serve_once(spool, data) == ["middle", "new", "old"]
    assert main(["clean", "old", "--yes"]) == 0
    assert "Deleted 1 run (" in capsys.readouterr().out
    assert serve_once(spool, data) == ["middle", "new"]

    # A store that cannot be changed is told, and nothing is called deleted.
    def refuse(*given: object) -> None:
        raise DashboardError("it is in use")

    monkeypatch.setattr("dashboard.ingest.run_removal.remove_runs", refuse)
    assert main(["clean", "new", "--yes"]) == 0
    said = capsys.readouterr()
    assert f"new is deleted from the spool; it stays in the store in {data}: it is in use" in said.err
    assert "Deleted 0 runs" in said.out
