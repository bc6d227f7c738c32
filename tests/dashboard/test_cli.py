"""The command line: output, exit codes, and one sentence for every mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sample_events import nan_event, spike_event
from sample_runs import write_run

from dashboard.cli import main, unsupported_python
from probe.wire.event_json import event_json

CONTRACT = set(
    "v id run rank incarnation model step micro_step time kind severity subject message evidence origin "
    "noticed_at propagated_to stacks advice count last_step ended data".split()
)


def run_cli(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dashboard", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )


def test_events_json_is_one_contract_object_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path)
    assert main(["events", str(tmp_path), "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines == [json.loads(json.dumps(event_json(event))) for event in (spike_event(), nan_event())]
    assert set(lines[0]) == CONTRACT


def test_events_json_writes_nan_as_a_string(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path, events=[nan_event()])
    main(["events", str(tmp_path), "--json"])
    assert json.loads(capsys.readouterr().out)["evidence"]["value"] == "NaN"


def test_events_table_names_headline_line_and_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path)
    assert main(["events", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "◆ critical  NaN first at step 400 in `blocks.3`, model.py:26, forward" in text
    assert "project/model.py:26 in forward" in text
    assert text.endswith("1 critical, 1 warning\n")


def test_events_table_shows_no_control_characters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path, events=[nan_event(message="\x1b[2Jgone")])
    main(["events", str(tmp_path)])
    assert "[U+001B][2Jgone" in capsys.readouterr().out


def test_events_json_empty_spool_prints_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["events", str(tmp_path), "--json"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("command", [["events"], ["export", "-o", "x.html"]])
def test_unknown_run_is_one_sentence_and_exit_2(command: list[str], tmp_path: Path) -> None:
    result = run_cli(*command, "nosuch", NANSCOPE_SPOOL=str(tmp_path), XDG_STATE_HOME=str(tmp_path))
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert "No run called" in result.stderr


@pytest.mark.parametrize("port", ["abc", "-1", "65536"])
def test_serve_port_that_is_none_is_told_the_range(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["serve", f"--port={port}"])
    assert exit_info.value.code == 2
    assert f"{port} is not a port; give a number from 0 to 65535" in capsys.readouterr().err


def test_export_file_that_cannot_be_written_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "spool")
    output = tmp_path / "missing" / "run.json"
    assert main(["export", str(run), "--format", "json", "-o", str(output)]) == 2
    expected = f"dashboard: Cannot write {output}: No such file or directory; choose another file with -o.\n"
    assert capsys.readouterr().err == expected


def test_export_to_a_dash_writes_to_stdout_and_no_file(tmp_path: Path) -> None:
    run = write_run(tmp_path / "spool", steps=3)
    command = [sys.executable, "-m", "dashboard", "export", str(run), "--format", "json", "-o", "-"]
    (tmp_path / "here").mkdir()
    result = subprocess.run(
        command, capture_output=True, timeout=60, check=True, cwd=tmp_path / "here",
        env=os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert json.loads(result.stdout)["run"]["id"] == run.name
    assert list((tmp_path / "here").iterdir()) == []


def test_export_heatmap_that_is_none_is_told_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["export", "x", "-o", "y", "--heatmap", "nonsense"])
    assert exit_info.value.code == 2
    assert "activation_rms" in capsys.readouterr().err


def test_export_of_a_journal_without_a_readable_record_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "spool")
    for segment in run.glob("*/*.seg"):
        segment.write_bytes(b"")
    assert main(["export", str(run), "-o", str(tmp_path / "run.html")]) == 2
    assert capsys.readouterr().err == f"dashboard: The journals in {run} hold nothing that can be read.\n"
    assert not (tmp_path / "run.html").exists()


def test_demo_spool_of_other_things_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"x")
    assert main(["demo", "--spool", str(tmp_path)]) == 2
    assert "is not a spool" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["holiday.jpg"]


def test_demo_spool_that_cannot_be_made_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("x")
    spool = tmp_path / "notes.txt" / "spool"
    assert main(["demo", "--spool", str(spool)]) == 2
    expected = f"cannot write to the spool {spool}: Not a directory; choose another with --spool.\n"
    assert capsys.readouterr().err.endswith(expected)


def test_events_not_a_spool_is_one_sentence_and_exit_2(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"x")
    result = run_cli("events", str(tmp_path))
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert "not a spool" in result.stderr


def test_events_reader_that_leaves_early_is_no_traceback(tmp_path: Path) -> None:
    write_run(tmp_path, events=[spike_event(step) for step in range(2000)])
    command = f"{sys.executable} -m dashboard events {tmp_path} --json | head -n 1"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert result.stdout.count("\n") == 1
    assert result.stderr == ""


def test_events_ascii_terminal_still_shows_the_table(tmp_path: Path) -> None:
    write_run(tmp_path)
    result = run_cli("events", str(tmp_path), PYTHONIOENCODING="ascii")
    assert result.returncode == 0
    assert "critical" in result.stdout


def test_events_imports_nothing_heavy(tmp_path: Path) -> None:
    write_run(tmp_path)
    heavy = "{'duckdb', 'pandas', 'dash', 'plotly', 'torch', 'zmq', 'fastapi'}"
    code = (
        "import sys; from dashboard.cli import main; "
        f"main(['events', {str(tmp_path)!r}, '--json']); print({heavy} & set(sys.modules), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.stderr == "set()\n"


def test_version_names_the_product(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["--version"])
    assert exit_info.value.code == 0
    assert capsys.readouterr().out.startswith("nanscope ")


def test_unsupported_python_names_both_versions() -> None:
    assert "needs Python 3.11 or newer; this is 3.9" in unsupported_python((3, 9))
