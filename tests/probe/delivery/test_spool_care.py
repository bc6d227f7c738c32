"""The size of a spool, what counts as still written, and what its cap deletes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from probe.delivery import spool_care
from probe.delivery.helper.helper import lock_path
from probe.delivery.journal.journal import JournalWriter
from probe.delivery.journal.run_folders import list_runs
from probe.delivery.journal.run_json import write_run_json
from probe.wire import RunStart, encode

HOLD = """
import fcntl, sys
with open(sys.argv[1], "ab") as file:
    fcntl.lockf(file, fcntl.LOCK_EX)
    print("held", flush=True)
    sys.stdin.read()
"""


def make_run(spool: Path, run: str, *, size: int = 1000, age_s: float = 3600.0) -> Path:
    folder = spool / run
    start = RunStart(run=run, rank=0, incarnation=1, name="train.py", time=time.time() - age_s)
    journal = JournalWriter(folder / "0-1", run=run, writer="0-1")
    write_run_json(folder, start)
    journal.append("events", encode(start))
    journal.close()
    (folder / "bundles").mkdir()
    (folder / "bundles" / "tensors.pt").write_bytes(bytes(size))
    for path in folder.rglob("*"):
        os.utime(path, (time.time() - age_s,) * 2)
    return folder


@pytest.fixture
def held(tmp_path: Path):
    """Hold a lock in a process of its own, as a helper does."""
    holders = []

    def hold(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-c", HOLD, str(path)]
        holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        holders.append(holder)
        assert holder.stdout.readline() == "held\n"

    yield hold
    for holder in holders:
        holder.communicate(timeout=10)


def test_room_counts_bundles_and_journals(tmp_path: Path) -> None:
    room = spool_care.room_of(make_run(tmp_path, "a", size=5000, age_s=100.0))
    assert 5000 < room.size_bytes < 10_000
    assert room.written_s == pytest.approx(time.time() - 100.0, abs=5.0)


def test_finished_run_is_not_written(tmp_path: Path) -> None:
    assert not spool_care.is_written(make_run(tmp_path, "a"))


def test_run_with_a_helper_is_written(tmp_path: Path, held) -> None:
    folder = make_run(tmp_path, "a")
    held(lock_path(folder / "host-box"))
    os.utime(lock_path(folder / "host-box"), (1.0, 1.0))
    assert spool_care.is_written(folder)


def test_run_whose_trainer_lives_is_written(tmp_path: Path) -> None:
    from probe.delivery.recorder.process_identity import own_identity
    from probe.delivery.recorder.ring_header import COUNTERS, HEADER_BYTES, MAGIC, OWNER, OWNER_AT, VERSION

    folder = make_run(tmp_path, "a")
    header = bytearray(HEADER_BYTES)
    COUNTERS.pack_into(header, 0, MAGIC, VERSION, 4096, 0, 0, 0, -1, 0, 0, 0)
    OWNER.pack_into(header, OWNER_AT, *own_identity())
    (folder / "0-1" / "ring").write_bytes(header)
    os.utime(folder / "0-1" / "ring", (1.0, 1.0))
    assert spool_care.is_written(folder)


def test_run_that_was_written_a_moment_ago_is_written(tmp_path: Path) -> None:
    assert spool_care.is_written(make_run(tmp_path, "a", age_s=0.0))


def test_cap_deletes_the_oldest_finished_runs_only(tmp_path: Path, held) -> None:
    for number, run in enumerate(("starred", "written", "old", "middle", "new")):
        make_run(tmp_path, run, size=100_000, age_s=10_000.0 - number)
    (tmp_path / "starred" / spool_care.STARRED).touch()
    os.utime(tmp_path / "starred" / spool_care.STARRED, (1.0, 1.0))
    held(lock_path(tmp_path / "written" / "host-box"))
    os.utime(lock_path(tmp_path / "written" / "host-box"), (1.0, 1.0))
    removed = spool_care.keep_below_cap(tmp_path, 350_000)
    assert [room.path.name for room in removed] == ["old", "middle"]
    assert [folder.name for folder in list_runs(tmp_path)] == ["new", "starred", "written"]
    line = spool_care.last_removal(tmp_path)
    assert "the 2 oldest finished runs were deleted" in line and "old, middle" in line


def test_cap_that_is_not_reached_deletes_nothing(tmp_path: Path) -> None:
    make_run(tmp_path, "a")
    assert spool_care.keep_below_cap(tmp_path, 10**9) == [] and spool_care.last_removal(tmp_path) is None


def test_cap_leaves_the_own_run_alone_without_opening_its_lock(tmp_path: Path, monkeypatch) -> None:
    own = make_run(tmp_path, "own")
    monkeypatch.setattr(spool_care, "lock_owner", lambda path: pytest.fail("opened"))
    lock_path(own / "host-box").parent.mkdir()
    assert spool_care.keep_below_cap(tmp_path, 1, own=own) == []


def test_removed_runs_leave_an_empty_spool(tmp_path: Path) -> None:
    spool_care.remove_run_folder(make_run(tmp_path, "a"))
    assert list_runs(tmp_path) == [] and list(tmp_path.iterdir()) == []


def test_removal_finishes_what_a_killed_one_has_left(tmp_path: Path) -> None:
    make_run(tmp_path, "a").rename(tmp_path / ".left")
    (tmp_path / ".removed").mkdir()
    (tmp_path / ".left").rename(tmp_path / ".removed" / "0123")
    assert list_runs(tmp_path) == []
    spool_care.remove_run_folder(make_run(tmp_path, "b"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "mib"), [("", 20 * 1024), ("512", 512), ("0", 20 * 1024), ("much", 20 * 1024)]
)
def test_cap_of_the_environment(text: str, mib: int) -> None:
    assert spool_care.cap_bytes({spool_care.CAP_VARIABLE: text}) == mib * 1024**2
