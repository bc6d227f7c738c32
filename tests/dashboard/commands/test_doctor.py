"""`dashboard doctor`: both sides of the check, its table and JSON, and its exit code."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dashboard.commands import doctor
from dashboard.commands.doctor import Report
from dashboard.serving import doctor_checks
from dashboard.serving.server import Server
from probe import self_check
from probe.delivery.control.place_check import check_serve
from probe.settings import places
from probe.settings.places import ServeState, write_serve_state
from probe.wire.findings import Finding

ROOT = Path(__file__).resolve().parents[3]
WITHOUT_TORCH = "raise ModuleNotFoundError('no torch', name='torch')"


def run_doctor(
    *arguments: str, folder: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "dashboard", "doctor", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
        env={**os.environ, **environment},
    )


def with_torch(folder: Path, source: str) -> dict[str, str]:
    """An environment in which `import torch` runs this source."""
    (folder / "torch.py").write_text(source)
    search = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": search}


def named(found: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (finding,) = [finding for finding in found if finding["name"] == name]
    return finding


@pytest.mark.capability(16)
def test_doctor_json_is_one_object_of_both_sides(tmp_path: Path) -> None:
    finished = run_doctor("--json", folder=tmp_path)
    report = json.loads(finished.stdout)
    assert finished.stderr == ""
    assert named(report["recording"], "torch")["found"].startswith("2.")
    assert named(report["serving"], "duckdb")["state"] == "ok"
    states = {finding["state"] for finding in report["recording"] + report["serving"]}
    assert (finished.returncode, report["usable"]) == ((1, False) if "missing" in states else (0, True))


def test_doctor_without_torch_is_limited_and_exits_0(tmp_path: Path) -> None:
    finished = run_doctor(folder=tmp_path, PYTHONPATH=with_torch(tmp_path, WITHOUT_TORCH)["PYTHONPATH"])
    assert finished.returncode == 0
    assert re.search(r"^  limited  torch +not installed$", finished.stdout, re.MULTILINE)
    assert finished.stdout.splitlines()[-1].startswith("Nothing to do. What is limited")


def test_doctor_with_something_missing_says_what_to_do_and_exits_1(tmp_path: Path) -> None:
    search = with_torch(tmp_path, WITHOUT_TORCH)["PYTHONPATH"]
    finished = run_doctor(folder=tmp_path, PYTHONPATH=search, NANSCOPE_LEVEL="loud")
    assert finished.returncode == 1
    assert re.search(r"^  missing  NANSCOPE_LEVEL +level='loud' is not available", finished.stdout, re.M)
    last = finished.stdout.splitlines()[-1]
    assert last == "To do: NANSCOPE_LEVEL: watch() raises ValueError: correct or unset NANSCOPE_LEVEL"


def test_doctor_beside_files_of_our_names_checks_ours_and_tells(tmp_path: Path) -> None:
    for name in ("probe.py", "json.py"):
        (tmp_path / name).write_text("raise SystemExit('not ours')")
    finished = run_doctor("--json", folder=tmp_path)
    finding = named(json.loads(finished.stdout)["recording"], "this folder")
    assert (finding["state"], str(tmp_path / "probe.py") in finding["found"]) == ("limited", True)


def test_doctor_imports_nothing_heavy(tmp_path: Path) -> None:
    heavy = "{'duckdb', 'pandas', 'dash', 'plotly', 'torch', 'zmq', 'fastapi', 'numpy'}"
    code = (
        "import sys; from dashboard.cli import main; main(['doctor']); "
        f"print({heavy} & set(sys.modules), file=sys.stderr)"
    )
    environment = with_torch(tmp_path, WITHOUT_TORCH)
    finished = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment
    )
    assert finished.stderr == "set()\n"


def test_probe_side_that_dies_is_one_finding_with_its_last_words(tmp_path: Path) -> None:
    environment = with_torch(tmp_path, "raise ValueError('a torch of another kind')")
    (finding,) = doctor_checks.probe_findings(environment)
    assert (finding.name, finding.state) == ("self-check", "missing")
    assert finding.found == "it ended with exit code 1: ValueError: a torch of another kind"


def test_probe_side_that_is_killed_is_one_finding_with_the_signal(tmp_path: Path) -> None:
    (finding,) = doctor_checks.probe_findings(with_torch(tmp_path, "import os; os.kill(os.getpid(), 4)"))
    assert finding.found == "it ended with exit code -4"


def test_probe_side_that_hangs_is_limited(tmp_path: Path) -> None:
    environment = with_torch(tmp_path, "import time; time.sleep(600)")
    (finding,) = doctor_checks.probe_findings(environment, timeout_s=0.5)
    assert (finding.state, finding.found) == ("limited", "it took more than 0.5 s")


def test_probe_side_without_an_interpreter_is_one_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    (finding,) = doctor_checks.probe_findings()
    assert finding.found == "'/no/such/python' cannot be started: No such file or directory"


def test_libraries_and_their_versions_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    libraries = [library for library in self_check.LIBRARIES + doctor_checks.LIBRARIES if library.minimum]
    ours = {
        f"{library.name}>={library.minimum}" + (f",<{library.below}" if library.below else "")
        for library in libraries
    }
    assert ours == {text.replace("[fastapi]", "") for text in project["dependencies"]}
    integrations = {f"{library.name}>={library.minimum}" for library in self_check.INTEGRATIONS}
    assert integrations == set(project["optional-dependencies"]["integrations"])


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "file_system_type", lambda path: "ext4")


def test_data_folder_that_cannot_be_made_is_missing() -> None:
    finding = doctor_checks.check_data_folder({"XDG_STATE_HOME": "/proc/nowhere"})
    assert finding.state == "missing"
    assert "set XDG_STATE_HOME" in finding.advice


def test_data_folder_on_a_network_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "file_system_type", lambda path: "nfs4")
    finding = doctor_checks.check_data_folder({"XDG_STATE_HOME": str(tmp_path)})
    assert (finding.state, finding.found.endswith("on nfs4")) == ("limited", True)


@pytest.mark.usefixtures("disk")
@pytest.mark.parametrize(("free", "state"), [(1 << 20, "limited"), (1 << 40, "ok")])
def test_data_folder_with_little_space_is_limited(
    free: int, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    assert doctor_checks.check_data_folder({"XDG_STATE_HOME": str(tmp_path)}).state == state
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("token", "state"), [("short", "missing"), ("with spaces in it", "missing")])
def test_token_that_cannot_be_used_is_missing_and_not_shown(token: str, state: str) -> None:
    (finding,) = doctor_checks.check_token({"NANSCOPE_TOKEN": token})
    assert (finding.state, token in repr(finding)) == (state, False)


def test_tokens_that_are_the_same_are_missing() -> None:
    same = {"NANSCOPE_TOKEN": "one-and-the-same", "NANSCOPE_VIEW_TOKEN": "one-and-the-same"}
    (finding,) = doctor_checks.check_token(same)
    assert (finding.state, "one-and" in repr(finding)) == ("missing", False)


def test_token_that_can_be_used_is_ok_and_one_that_is_not_set_no_finding() -> None:
    (finding,) = doctor_checks.check_token({"NANSCOPE_TOKEN": "long-enough-a-token"})
    assert (finding.state, "long-enough" in repr(finding)) == ("ok", False)
    assert doctor_checks.check_token({}) == []


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        yield found


def page(listener: socket.socket) -> str:
    return f"http://127.0.0.1:{listener.getsockname()[1]}/"


def test_port_that_is_free_is_ok(tmp_path: Path, listener: socket.socket) -> None:
    address = page(listener)
    listener.close()
    finding = doctor_checks.check_port("page", address, {"XDG_STATE_HOME": str(tmp_path)})
    assert (finding.name, finding.state) == ("page port", "ok")


def test_port_in_use_is_limited_and_names_the_process(tmp_path: Path, listener: socket.socket) -> None:
    finding = doctor_checks.check_port("page", page(listener), {"XDG_STATE_HOME": str(tmp_path)})
    assert finding.state == "limited"
    assert f"in use by process {os.getpid()} (" in finding.found
    assert finding.advice.endswith("dashboard serve --port 0")


def test_port_of_the_running_serve_is_ok(tmp_path: Path, listener: socket.socket) -> None:
    variables = {"XDG_STATE_HOME": str(tmp_path)}
    state = ServeState(page=page(listener), ingest="tcp://127.0.0.1:1", pid=os.getpid(), secret="ab" * 16)
    write_serve_state(state, variables)
    finding = doctor_checks.check_port("page", page(listener), variables)
    assert (finding.state, finding.found.endswith(f"process {os.getpid()}")) == ("ok", True)


def test_port_of_a_process_that_may_not_be_seen_is_limited(
    tmp_path: Path, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psutil.net_connections", lambda kind: [])
    address = page(listener).replace("http", "tcp")
    finding = doctor_checks.check_port("ingest", address, {"XDG_STATE_HOME": str(tmp_path)})
    assert finding.found.endswith("in use by a process of another user")
    assert "--ingest" in finding.advice


def test_port_of_an_address_that_is_not_ours_is_missing(tmp_path: Path) -> None:
    finding = doctor_checks.check_port("page", "http://203.0.113.1:8050/", {"XDG_STATE_HOME": str(tmp_path)})
    assert finding.state == "missing"


@pytest.mark.parametrize(
    ("environment", "text"),
    [({"DISPLAY": ":0"}, "opens it"), ({"DISPLAY": ":0", "SSH_CONNECTION": "x"}, "no screen"), ({}, "no sc")],
)
def test_browser_is_told_by_the_screen(environment: dict[str, str], text: str) -> None:
    assert text in doctor_checks.check_browser(environment).found


def test_running_server_is_found_from_both_sides(tmp_path: Path) -> None:
    variables = {"XDG_STATE_HOME": str(tmp_path / "state"), "NANSCOPE_TOKEN": "token-for-tests"}
    folders = {"data": tmp_path / "data", "spool": tmp_path / "spool"}
    server = Server(port=0, ingest="tcp://127.0.0.1:0", environment=variables, **folders)
    server.start()
    try:
        serve = check_serve(variables)
        ports = [
            doctor_checks.check_port("any", address, variables) for address in (server.page, server.ingest)
        ]
    finally:
        server.stop()
    assert (serve.state, server.page in serve.found, server.ingest in serve.found) == ("ok", True, True)
    assert all("the running serve's" in port.found for port in ports)


def report(*states: str) -> Report:
    findings = [
        Finding(name=f"part {index}", state=state, found=f"found {index}", advice=f"advice {index}")
        for index, state in enumerate(states)
    ]
    return Report(recording=tuple(findings), serving=(Finding(name="x", state="ok", found="y" * 5),))


@pytest.mark.parametrize(("states", "is_usable"), [(["ok", "limited"], True), (["missing", "ok"], False)])
def test_report_is_usable_unless_something_is_missing(states: list[str], is_usable: bool) -> None:
    assert report(*states).is_usable is is_usable


def test_table_is_aligned_and_marks_advice() -> None:
    lines = list(doctor.table_lines(report("ok", "limited"), width=80))
    assert lines[1:5] == [
        "  ok       part 0  found 0",
        "                   -> advice 0",
        "  limited  part 1  found 1",
        "                   -> advice 1",
    ]
    assert lines[6:8] == ["Serving", "  ok       x       yyyyy"]


def test_table_wraps_text_and_keeps_paths_whole() -> None:
    path = "/a-very-long/path-" + "x" * 80
    found = Finding(name="spool", state="ok", found="many words " * 10 + path)
    lines = list(doctor.table_lines(Report(recording=(found,), serving=()), width=60))
    assert all(len(line) <= 60 for line in lines if "words" in line)
    assert any(line.strip() == path for line in lines)


def test_table_shows_no_control_characters() -> None:
    found = Finding(name="spool", state="missing", found="\x1b[2Jgone", advice="\x1b[2J")
    assert "\x1b" not in "".join(doctor.table_lines(Report(recording=(found,), serving=())))


@pytest.mark.parametrize(
    ("states", "last"),
    [
        (["ok"], "Nothing to do: `dashboard serve`, and `probe.watch(model)` in the training."),
        (["ok", "limited"], "Nothing to do. What is limited, and why, is listed above: part 1."),
        (["limited", "missing", "missing"], "To do: part 1: advice 1 (1 more above)"),
    ],
)
def test_table_ends_with_what_to_do(states: list[str], last: str) -> None:
    assert list(doctor.table_lines(report(*states)))[-1] == last


def test_spool_size_counts_runs_and_tells_what_the_cap_has_deleted(tmp_path: Path) -> None:
    from sample_runs import write_run

    write_run(tmp_path, steps=20)
    environment = {"NANSCOPE_SPOOL": str(tmp_path)}
    found = doctor_checks.check_spool_size(environment)
    assert "KiB in 1 run of at most 20.0 GiB" in found.found and "dashboard clean" in found.advice
    (tmp_path / ".removed.log").write_text("earlier\n2026-01-01: the oldest finished run was deleted\n")
    assert doctor_checks.check_spool_size(environment).found.endswith(
        "; 2026-01-01: the oldest finished run was deleted"
    )


def test_spool_size_of_no_spool_is_nothing(tmp_path: Path) -> None:
    assert (
        "0.0 KiB in 0 runs"
        in doctor_checks.check_spool_size({"NANSCOPE_SPOOL": str(tmp_path / "none")}).found
    )
