"""Commands of who has chosen a database for the store: they use it too, and `open` leaves it alone."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from clickhouse_server import ClickHouseServer
from sample_runs import write_run
from store_engines import OpenStore

from dashboard.cli import main
from dashboard.commands import open as open_command
from dashboard.ingest.spool import ingest_spool
from dashboard.serving.server import Server
from dashboard.store.protocol import StepNote, Store

NOTE = StepNote(id="0" * 16, step=1, text="lr halved", time=1.7e9)


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of two runs that ended long ago."""
    folder = tmp_path / "spool"
    monkeypatch.setenv("NANSCOPE_SPOOL", str(folder))
    for run in ("old", "new"):
        write_run(folder, run, steps=3)
    for path in folder.rglob("*"):
        os.utime(path, (time.time() - 1e6,) * 2)
    return folder


@pytest.fixture
def store(
    clickhouse: ClickHouseServer, tmp_path: Path, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Store]:
    """Has both, as another process shows it; the environment names its database."""
    opener = OpenStore(clickhouse)
    opened = opener(tmp_path)
    ingest_spool(opened, spool)
    monkeypatch.setenv("NANSCOPE_STORE", clickhouse.url(opener._database(tmp_path)))
    monkeypatch.setenv("NANSCOPE_STORE_PASSWORD", clickhouse.password)
    yield opened
    opener.close()


def soon(store: Store, runs: list[str]) -> None:
    deadline = time.monotonic() + 10
    while sorted(run.run for run in store.runs()) != runs:
        assert time.monotonic() < deadline, store.runs()
        time.sleep(0.05)


def test_clean_deletes_from_the_database(store: Store, spool: Path) -> None:
    assert main(["clean", "old", "--yes"]) == 0
    soon(store, ["new"])
    (spool / "new").rename(spool.parent / "elsewhere")
    assert main(["clean", "new", "--yes"]) == 0, "the store alone has it"
    soon(store, [])


def test_clean_asks_the_server_of_the_database(store: Store, spool: Path) -> None:
    server = Server(port=0, ingest="tcp://127.0.0.1:0", environment=dict(os.environ))
    server.start()
    try:
        assert main(["clean", "old", "--yes"]) == 0
        assert [run.run for run in server.store.runs()] == ["new"]
        soon(store, ["new"])
    finally:
        server.stop()


def test_clean_of_a_folder_leaves_the_database_alone(store: Store, spool: Path, tmp_path: Path) -> None:
    assert main(["clean", "old", "--yes", "--data", str(tmp_path / "data")]) == 0
    time.sleep(0.5)
    soon(store, ["new", "old"])


def test_clean_where_the_database_is_away_deletes_nothing(
    spool: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("clickhouse_driver")
    monkeypatch.setenv("NANSCOPE_STORE", "clickhouse://127.0.0.1:1/nanscope")
    assert main(["clean", "old", "--yes"]) == 2
    assert "does not answer" in capsys.readouterr().err and (spool / "old").is_dir()


def test_export_has_the_notes_of_the_database(store: Store, tmp_path: Path) -> None:
    store.write_note("old", NOTE)
    assert main(["export", "old", "--format", "json", "-o", str(tmp_path / "out")]) == 0
    assert [note["text"] for note in json.loads((tmp_path / "out").read_text())["notes"]] == ["lr halved"]


def test_open_reads_nothing_into_the_users_database(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANSCOPE_STORE", "clickhouse://127.0.0.1:1/nanscope")
    found = []

    def serve(*, data: Path, environment: dict[str, str], **_: object) -> None:
        server = Server(port=0, ingest="tcp://127.0.0.1:0", data=data, environment=environment)
        server.start()
        found.extend(run.run for run in server.store.runs())
        server.stop()

    monkeypatch.setattr(open_command, "serve", serve)
    assert main(["open", str(spool)]) == 0
    assert sorted(found) == ["new", "old"]
