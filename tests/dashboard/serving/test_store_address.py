"""`dashboard serve --store`: its password stands in no process list, log or page; what is wrong is said."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from clickhouse_server import ClickHouseServer

from dashboard.errors import DashboardError
from dashboard.store.clickhouse.connection import read_password

TIMEOUT_S = 60


def serve(folder: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dashboard", "serve", "--no-browser", "--port", "0"]
    places = [
        "--ingest",
        "tcp://127.0.0.1:*",
        "--data",
        str(folder / "data"),
        "--spool",
        str(folder / "spool"),
    ]
    return subprocess.Popen(
        [*command, *places, *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_password_is_seen_nowhere(clickhouse: ClickHouseServer, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.touch(mode=0o600)
    file.write_text(f"{clickhouse.password}\n")
    url = clickhouse.url("seen_nowhere")
    running = serve(tmp_path, NANSCOPE_STORE=url, NANSCOPE_STORE_PASSWORD_FILE=str(file))
    assert running.stdout is not None
    line = running.stdout.readline()
    address = line.split()[1]
    try:
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with browser.open(address, timeout=TIMEOUT_S) as answer:
            page = answer.read().decode()
        command = Path(f"/proc/{running.pid}/cmdline").read_bytes().decode()
    finally:
        running.terminate()
        out, err = running.communicate(timeout=TIMEOUT_S)
    assert running.returncode == 0
    written = "".join(path.read_text(errors="replace") for path in tmp_path.glob("data/*") if path.is_file())
    for text in (line, page, command, out, err, written):
        assert clickhouse.password not in text
    assert not list(tmp_path.glob("data/*.duckdb"))
    assert ("seen_nowhere",) in clickhouse.ask("SHOW DATABASES")
    clickhouse.ask("DROP DATABASE seen_nowhere")


@pytest.mark.parametrize("password", ["wrong-password", ""])
def test_wrong_password_is_said_and_not_repeated(
    clickhouse: ClickHouseServer, tmp_path: Path, password: str
) -> None:
    url = clickhouse.url("refused")
    running = serve(tmp_path, "--store", url, NANSCOPE_STORE_PASSWORD=password)
    out, err = running.communicate(timeout=TIMEOUT_S)
    assert running.returncode == 2 and out == ""
    assert err.startswith(f"dashboard: the store at {url} cannot be used:") and err.count("\n") == 1
    assert not password or password not in err


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("clickhouse://user@127.0.0.1:1/x", "cannot be used: it does not answer"),
        ("clickhouse://user:hush@127.0.0.1:1/x", "leave it out"),
        ("postgres://127.0.0.1/x", "--store knows addresses like clickhouse://"),
    ],
)
def test_address_that_cannot_be_used_is_said(tmp_path: Path, url: str, said: str) -> None:
    pytest.importorskip("clickhouse_driver")
    running = serve(tmp_path, "--store", url)
    out, err = running.communicate(timeout=TIMEOUT_S)
    assert running.returncode == 2 and out == ""
    assert said in err and "Traceback" not in err and "hush" not in err


def test_password_file_of_others_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("clickhouse_driver")
    file = tmp_path / "password"
    file.write_text("hush\n")
    file.chmod(0o640)
    with pytest.raises(DashboardError, match="chmod 600") as refused:
        read_password({"NANSCOPE_STORE_PASSWORD_FILE": str(file)})
    assert "hush" not in str(refused.value)
    file.chmod(0o600)
    assert read_password({"NANSCOPE_STORE_PASSWORD_FILE": str(file)}) == "hush"
    with pytest.raises(DashboardError, match="No such file"):
        read_password({"NANSCOPE_STORE_PASSWORD_FILE": str(tmp_path / "missing")})
    assert read_password({"NANSCOPE_STORE_PASSWORD": "said"}) == "said"
    assert read_password({}) == ""
