"""Odd files in a spool: they are told, once, and stop nothing of the other runs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from sample_runs import write_run

from dashboard.cli import main
from dashboard.ingest import spool as spool_reader
from dashboard.ingest.spool import SpoolIngest
from dashboard.runs import read_events
from dashboard.serving.doctor_checks import check_spool_size
from dashboard.store.duck import DuckStore
from probe.delivery.journal.run_folders import list_runs, read_run_json, unreadable_runs
from probe.delivery.journal.run_json import note_work_tree, write_run_json
from probe.delivery.spool_care import is_starred, keep_below_cap, room_of, rooms
from probe.wire import RunStart

ROOT = Path(__file__).resolve().parents[2]
NESTED = b"[" * 3000 + b"]" * 3000
GOOD = "good"


def nested_start(folder: Path) -> None:
    (folder / "run.json").write_bytes(
        b'{"run": "odd", "rank": 0, "incarnation": 1, "later": ' + NESTED + b"}"
    )


def loop(folder: Path) -> None:
    (folder / "run.json").unlink()
    (folder / "run.json").symlink_to("run.json")


def folder_for_a_file(folder: Path) -> None:
    (folder / "run.json").unlink()
    (folder / "run.json").mkdir()


def pipe(folder: Path) -> None:
    (folder / "run.json").unlink()
    os.mkfifo(folder / "run.json")


def segment_is_a_folder(folder: Path) -> None:
    (folder / "0-1" / "events-000000000000.seg").unlink(missing_ok=True)
    for path in (folder / "0-1").glob("metrics-*.seg"):
        path.unlink()
        path.mkdir()


def segment_is_a_loop(folder: Path) -> None:
    for path in (folder / "0-1").glob("metrics-*.seg"):
        path.unlink()
        path.symlink_to(path.name)


def deep(folder: Path) -> None:
    before = Path.cwd()
    try:
        os.chdir(folder)
        for _ in range(300):
            Path("d").mkdir()
            os.chdir("d")
    finally:
        os.chdir(before)


def put(kind: str, *places: str) -> Callable[[Path], None]:
    """Put something odd where the run's files are; what lies there goes."""

    def change(folder: Path) -> None:
        for place in places:
            for path in sorted(folder.glob(place)) or [folder / place]:
                path.parent.mkdir(exist_ok=True)
                path.unlink(missing_ok=True)
                if kind == "pipe":
                    os.mkfifo(path)
                elif kind == "endless":
                    path.symlink_to("/dev/zero")
                else:
                    path.touch()
                    os.truncate(path, 200 * 1024**3)

    return change


DESCRIBED = "Run odd: its run.json cannot be read:"
ODD: dict[str, tuple[Callable[[Path], object], str]] = {
    "nested": (nested_start, "Run odd: its run.json does not decode"),
    "all brackets": (
        lambda folder: (folder / "run.json").write_bytes(NESTED),
        "Run odd: its run.json does not",
    ),
    "empty": (lambda folder: (folder / "run.json").write_bytes(b""), "Run odd: its run.json does not decode"),
    "no text": (
        lambda folder: (folder / "run.json").write_bytes(b'{"run": "\xff"}'),
        "Run odd: its run.json",
    ),
    "loop": (loop, f"{DESCRIBED} it is a link"),
    "folder": (folder_for_a_file, f"{DESCRIBED} it is not a regular file"),
    "pipe": (pipe, f"{DESCRIBED} it is not a regular file"),
    "writer is a file": (lambda folder: (folder / "1-1").write_bytes(b"x"), ""),
    "segment is a folder": (segment_is_a_folder, "seg is passed over"),
    "segment is a loop": (segment_is_a_loop, "seg is passed over"),
    "run is a loop": (
        lambda folder: (folder.parent / "round").symlink_to("round"),
        "round in the spool is passed over",
    ),
    "a file": (lambda folder: (folder.parent / "a-file").write_bytes(b"x"), ""),
    "no id": (lambda folder: (folder.parent / "no id \u202e").mkdir(), ""),
    "no text in a name": (lambda folder: os.mkdir(os.fsencode(folder.parent) + b"/\xff\xfe"), ""),
    "deep": (deep, ""),
    "ring is a pipe": (put("pipe", "0-1/ring"), ""),
    "ring is endless": (put("endless", "0-1/ring"), ""),
    "ring is sparse": (put("sparse", "0-1/ring"), ""),
    "ring of an odd number": (lambda folder: (folder / "0-1" / "ring-\N{SUPERSCRIPT TWO}").touch(), ""),
    "writer of an odd number": (lambda folder: (folder / "\N{SUPERSCRIPT TWO}-1").mkdir(), ""),
    "segment is a pipe": (put("pipe", "0-1/metrics-*.seg"), "seg is passed over"),
    "segment is endless": (put("endless", "0-1/metrics-*.seg"), "seg is passed over"),
    "segment is sparse": (put("sparse", "0-1/metrics-*.seg"), "Run odd, records missing: 1, metrics-"),
    "account is a pipe": (put("pipe", "0-1/account"), ""),
    "account is endless": (put("endless", "0-1/account"), ""),
    "account is sparse": (put("sparse", "0-1/account"), ""),
    "lock is a pipe": (put("pipe", "host-box/helper.lock"), ""),
    "description is endless": (put("endless", "run.json"), f"{DESCRIBED} it is a link"),
    "description is sparse": (put("sparse", "run.json"), f"{DESCRIBED} it has 214,748,364,800 bytes"),
}


@pytest.fixture(params=ODD)
def odd(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """A spool with a good run and something odd; what is to be told of it."""
    spool = tmp_path / "spool"
    write_run(spool, GOOD, steps=20, name="good.py")
    change, told = ODD[request.param]
    change(write_run(spool, "odd", steps=20, name="odd.py"))
    return spool, told


def test_odd_folder_is_told_once_and_the_other_run_is_stored(odd: tuple[Path, str], tmp_path: Path) -> None:
    spool, told = odd
    store = DuckStore(tmp_path / "data")
    reader = SpoolIngest(store, spool)
    reports = [reader.run() for _ in range(3)]
    assert len(store.scalars(GOOD, 0, ["loss"])) == 20
    problems = reports[-1].problems
    assert len(problems) == len(set(problems))
    assert [told in problem for problem in problems].count(True) == (1 if told else len(problems))
    assert reports[0].problems == problems
    store.close()


@pytest.mark.parametrize(
    ("kind", "why"),
    [("pipe", "it is not a regular file"), ("endless", "it is a link"), ("sparse", "it does not begin like")],
)
def test_odd_ring_is_one_sentence_of_its_run(kind: str, why: str, tmp_path: Path) -> None:
    folder = write_run(tmp_path, "odd", steps=20, name="odd.py")
    put(kind, "0-1/ring")(folder)
    events = [event for event in read_events([folder]).events if event.kind == "data_gap"]
    said = [event.message for event in events]
    assert (
        len(said) == 1
        and f"`ring`, where a killed run leaves its newest steps, is not read: {why}" in said[0]
    )
    assert said[0].endswith("This run ended in order: nothing is missing.") and events[0].advice == []


def test_sparse_file_is_no_reason_to_delete_other_runs(tmp_path: Path) -> None:
    write_run(tmp_path, GOOD, steps=20)
    put("sparse", "0-1/metrics-00.seg.old")(write_run(tmp_path, "odd", steps=20))
    assert sum(room.size_bytes for room in rooms(tmp_path)) < 1024**2


def test_fault_in_one_run_is_told_once_and_the_others_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spool = tmp_path / "spool"
    for run in ("a", "b", "c"):
        write_run(spool, run, steps=20)
    list_them = spool_reader.list_writers
    faulty = {"b"}

    def list_writers(folder: Path) -> list[Path]:
        if folder.name in faulty:
            raise TypeError("no such luck")
        return list_them(folder)

    monkeypatch.setattr(spool_reader, "list_writers", list_writers)
    store = DuckStore(tmp_path / "data")
    reader = SpoolIngest(store, spool)
    problems = [reader.run().problems for _ in range(3)][-1]
    assert problems == ("Run b cannot be read: TypeError: no such luck",)
    assert [record.levelname for record in caplog.records].count("ERROR") == 1
    assert [len(store.scalars(run, 0, ["loss"])) for run in "abc"] == [20, 0, 20]
    faulty.clear()
    reader.run()
    assert len(store.scalars("b", 0, ["loss"])) == 20
    store.close()


def test_commands_go_on_with_the_other_runs(
    odd: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spool, told = odd
    assert main(["events", str(spool)]) == 0
    shown = capsys.readouterr()
    is_of_description = told.startswith("Run odd: its run.json")
    assert ("Run odd: its run.json" in shown.err) == is_of_description
    assert main(["events", str(spool / GOOD), "--json"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    clean = ["clean", "--spool", str(spool), "--data", str(tmp_path / "data"), "--keep", "9", "--yes"]
    assert main(clean) == 0
    said = capsys.readouterr().err
    assert ("round" in said) == ("round" in told)
    finding = check_spool_size({"NANSCOPE_SPOOL": str(spool)})
    assert ("passed over" in finding.found) == ("round" in told)


def test_spool_care_and_training_side_pass_over_it(odd: tuple[Path, str]) -> None:
    spool, _ = odd
    assert GOOD in {folder.name for folder in list_runs(spool)}
    assert {room.path.name for room in rooms(spool)} >= {GOOD}
    assert keep_below_cap(spool, 1 << 40) == []
    for folder in spool.iterdir():
        is_starred(folder)
        room_of(folder)
        if folder.is_dir():
            read_run_json(folder)
            note_work_tree(folder, RunStart(run="odd", rank=0, incarnation=1))
            if (folder / "0-1").is_dir():
                write_run_json(folder, RunStart(run="odd", rank=0, incarnation=1))


AS_NOBODY = """
import os, sys
from pathlib import Path
from dashboard.commands.events import load_events
from dashboard.ingest.spool import SpoolIngest
from dashboard.runs import problem_lines, resolve_runs
from dashboard.serving.doctor_checks import check_spool_size
from dashboard.store.duck import DuckStore
from probe.delivery.spool_care import is_starred, keep_below_cap
spool, data = map(Path, sys.argv[1:])
store = DuckStore(data)
if os.geteuid() == 0:
    os.seteuid(65534)
report = SpoolIngest(store, spool).run()
assert len(store.scalars("good", 0, ["loss"])) == 20
assert any("closed in the spool is passed over" in line for line in report.problems), report
assert [run.run for run in resolve_runs(str(spool))] == ["good"]
(line,) = problem_lines([], spool=spool)
assert line == "closed is passed over: it cannot be read: Permission denied."
assert "closed: it cannot be read" in check_spool_size({"NANSCOPE_SPOOL": str(spool)}).found
keep_below_cap(spool, 1)
assert not is_starred(spool / "closed")
assert len(load_events(str(spool)).events) == 2
print("went on")
"""


def test_folder_of_another_user_is_passed_over() -> None:
    # pytest's own folders are closed to others.
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        root = Path(name)
        spool = root / "spool"
        write_run(spool, GOOD, steps=20)
        closed = write_run(spool, "closed", steps=20)
        for path in (root, *root.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        closed.chmod(0o000)
        finished = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, str(spool), str(root / "data")],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
        )
        closed.chmod(0o700)
    assert finished.stdout.splitlines()[-1:] == ["went on"], finished.stderr


def test_readable_spool_has_nothing_to_tell(tmp_path: Path) -> None:
    write_run(tmp_path, GOOD, steps=2)
    assert unreadable_runs(tmp_path) == {}
    assert unreadable_runs(tmp_path / "none") == {}
