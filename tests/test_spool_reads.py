"""Spool files are opened by `probe.wire.ordinary_files` alone; what opens others has its reason here."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from typing import Final

import pytest

from probe.wire.ordinary_files import NotOrdinaryError, ordinary_file, read_ordinary

ROOT = Path(__file__).resolve().parent.parent
READERS: Final = (
    "probe/delivery",
    "probe/wire",
    "probe/threads/life_sign.py",
    "dashboard/commands",
    "dashboard/comparison",
    "dashboard/export",
    "dashboard/ingest",
    "dashboard/runs.py",
    "dashboard/serving",
)
OPENING: Final = frozenset({"open", "read_bytes", "read_text", "fdopen", "memmap", "fromfile"})
WRITES: Final = "opens what it writes"
SYSTEM: Final = "reads files of the system"
OWN: Final = "reads files that came with the package"
STATE: Final = "reads this user's own state folder, never a spool"
REASONS: Final = {
    "probe/wire/ordinary_files.py": "is the one place",
    "probe/delivery/helper/oom_record.py": SYSTEM,
    "probe/delivery/helper/process_end.py": SYSTEM,
    "probe/delivery/helper/trainer_watch.py": SYSTEM,
    "probe/delivery/host_memory.py": SYSTEM,
    "probe/delivery/utilisation.py": SYSTEM,
    "probe/delivery/recorder/process_identity.py": SYSTEM,
    "probe/delivery/recorder/run_facts.py": "reads the script's git folder",
    "probe/threads/life_sign.py": WRITES,
    "dashboard/export/html.py": OWN,
    "dashboard/export/table.py": "reads back the table that it has written into a temporary folder",
    "dashboard/export/trackers/tensorboard_files.py": WRITES,
    "dashboard/serving/credentials.py": STATE,
    "dashboard/serving/listening.py": "opens a browser",
    "dashboard/serving/reach.py": SYSTEM,
    "dashboard/serving/running.py": STATE,
}


def opens(text: str) -> bool:
    """Whether a source text opens a file by itself."""
    calls = [node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    names = {call.attr if isinstance(call, ast.Attribute) else getattr(call, "id", "") for call in calls}
    return not OPENING.isdisjoint(names)


def test_spool_is_read_in_one_way() -> None:
    places = [ROOT / reader for reader in READERS]
    sources = [path for place in places for path in ([place] if place.is_file() else place.rglob("*.py"))]
    found = {str(path.relative_to(ROOT)) for path in sources if opens(path.read_text(encoding="utf-8"))}
    assert found == set(REASONS)


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("path.read_bytes()", True),
        ("with open(path) as file: pass", True),
        ("descriptor = os.open(path, 0)", True),
        ("with path.open('rb') as file: pass", True),
        ("read_ordinary(path, 10)", False),
    ],
)
def test_scan_finds_what_opens(text: str, is_found: bool) -> None:
    assert opens(text) == is_found


def test_ordinary_file_is_read_whole_and_up_to_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 1000)
    assert read_ordinary(path, 1000) == b"x" * 1000
    with pytest.raises(NotOrdinaryError, match="1,000 bytes, and at most 999 are read"):
        read_ordinary(path, 999)
    linked = tmp_path / "folder"
    linked.symlink_to(tmp_path)
    assert read_ordinary(linked / "file", 1000) == b"x" * 1000


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "link", "broken link"])
def test_what_is_no_ordinary_file_is_refused_at_once(kind: str, flags: int, tmp_path: Path) -> None:
    path = tmp_path / "place"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev")
        path /= "zero"
    else:
        (tmp_path / "file").touch()
        path.symlink_to("file" if kind == "link" else "nothing")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(NotOrdinaryError) as caught, ordinary_file(path, flags=flags):
        pass
    assert caught.value.strerror == ("it is a link" if "link" in kind else "it is not a regular file")
    assert len(os.listdir("/proc/self/fd")) == before
