"""The probe's whole self-check, and what it says where torch, a library or the system is unfit."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from probe import self_check
from probe.wire.findings import Finding

ROOT = Path(__file__).resolve().parents[2]


def run_check(folder: Path, *arguments: str, **modules: str) -> subprocess.CompletedProcess[str]:
    """The command, with modules of this source in the way of the installed ones."""
    for name, source in modules.items():
        (folder / f"{name}.py").write_text(source)
    return subprocess.run(
        [sys.executable, "-m", "probe.self_check", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")])),
        },
    )


def by_name(finished: subprocess.CompletedProcess[str]) -> dict[str, Finding]:
    findings = [Finding(**entry) for entry in json.loads(finished.stdout)]
    return {finding.name: finding for finding in findings}


def test_check_as_json_names_everything_once(tmp_path: Path) -> None:
    finished = run_check(tmp_path, "--json")
    findings = by_name(finished)
    assert {"Python", "system", "msgspec", "torch", "measuring", "replay", "spool", "serve"} <= set(findings)
    assert {finding.state for finding in findings.values()} <= {"ok", "limited", "missing"}
    missing = [finding for finding in findings.values() if finding.state == "missing"]
    assert finished.returncode == (1 if missing else 0)


def test_check_without_torch_says_so_and_checks_the_rest(tmp_path: Path) -> None:
    finished = run_check(tmp_path, "--json", torch="raise ModuleNotFoundError('no torch', name='torch')")
    findings = by_name(finished)
    assert finished.returncode == 0
    assert (findings["torch"].state, findings["torch"].found) == ("limited", "not installed")
    assert "pip install torch==2.13.0" in findings["torch"].advice
    assert "spool" in findings and "replay" not in findings


def test_check_of_a_torch_that_does_not_load_is_missing(tmp_path: Path) -> None:
    finished = run_check(tmp_path, "--json", torch="raise OSError('libcudart.so.13: cannot open')")
    finding = by_name(finished)["torch"]
    assert (finished.returncode, finding.state) == (1, "missing")
    assert finding.found == "its import fails: OSError: libcudart.so.13: cannot open"


def test_check_of_a_torch_that_lacks_a_library_is_missing(tmp_path: Path) -> None:
    finished = run_check(tmp_path, "--json", torch="import no_such_dependency")
    assert "No module named 'no_such_dependency'" in by_name(finished)["torch"].found


def test_check_without_a_library_of_ours_still_reports(tmp_path: Path) -> None:
    broken = "raise ModuleNotFoundError('no msgspec', name='msgspec')"
    without_torch = "raise ModuleNotFoundError('no torch', name='torch')"
    finished = run_check(tmp_path, "--json", msgspec=broken, torch=without_torch)
    finding = by_name(finished)["places"]
    assert (finished.returncode, finding.state) == (1, "missing")
    assert finding.found == "cannot be checked: no msgspec"


def test_check_for_reading_is_a_line_per_finding(tmp_path: Path) -> None:
    finished = run_check(tmp_path, torch="raise ModuleNotFoundError('no torch', name='torch')")
    assert "limited  torch: not installed. No training can be recorded here" in finished.stdout
    assert finished.stderr == ""


def test_python_that_is_too_old_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_check, "_MINIMUM_PYTHON", (3, 99))
    finding = self_check.check_python()
    assert finding.state == "missing"
    assert finding.advice == "nanscope needs Python 3.99 or newer"


def test_python_that_is_untested_is_ok_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_check, "_TESTED_PYTHON", ((3, 97), (3, 98)))
    finding = self_check.check_python()
    assert finding.state == "ok"
    assert finding.found.endswith("nanscope is tested with 3.97 to 3.98")


def test_platform_that_is_untested_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert self_check.check_platform().state == "limited"


def test_platform_without_record_locks_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    assert self_check.check_platform().state == "missing"


def test_working_folder_with_a_probe_of_its_own_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "probe.py").write_text("")
    (finding,) = self_check.check_working_folder()
    assert finding.state == "limited"
    assert finding.found == f"{tmp_path / 'probe.py'} stands in the way of `import probe`"


def test_working_folder_of_our_own_checkout_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert self_check.check_working_folder() == []


def test_working_folder_that_is_deleted_is_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert self_check.check_working_folder() == []
