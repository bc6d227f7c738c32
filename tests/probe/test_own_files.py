"""Files that stay open beside a script that closes any descriptor, and opens files of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from probe.delivery.journal.journal import JournalWriter
from probe.delivery.journal.journal_reader import read_stream
from probe.own_files import LOWEST, OwnFile, closed_by_script

APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND


@pytest.fixture
def own(tmp_path: Path) -> Iterator[OwnFile]:
    file = OwnFile(tmp_path / "own", APPEND)
    yield file
    file.close()


def _close(file: OwnFile, _: Path) -> None:
    os.close(file.descriptor())


def _replace(file: OwnFile, path: Path) -> None:
    """The script's own file gets the number."""
    with path.open("wb") as script:
        os.dup2(script.fileno(), file.descriptor())


def _replace_by_pipe(file: OwnFile, _: Path) -> None:
    reads, writes = os.pipe()
    os.dup2(writes, file.descriptor())
    os.close(reads)
    os.close(writes)


LOSSES = [_close, _replace, _replace_by_pipe]


@pytest.mark.parametrize("lose", LOSSES)
def test_closed_file_is_opened_again_and_the_scripts_is_left_alone(
    own: OwnFile, tmp_path: Path, lose: Callable[[OwnFile, Path], None]
) -> None:
    os.write(own.descriptor(), b"one ")
    number, before = own.descriptor(), len(closed_by_script())
    lose(own, tmp_path / "of the script")
    assert own.is_closed_by_script
    os.write(own.descriptor(), b"two")
    assert (tmp_path / "own").read_bytes() == b"one two"
    assert not own.is_closed_by_script and closed_by_script()[before:] == ("own",)
    own.close()
    if lose is not _close:
        os.fstat(number)  # it is the script's, and still open
        os.close(number)
        assert not (tmp_path / "of the script").exists() or os.path.getsize(tmp_path / "of the script") == 0


@pytest.mark.parametrize("is_replaced", [True, False])
def test_file_that_is_closed_and_gone_is_not_made_anew(
    own: OwnFile, tmp_path: Path, is_replaced: bool
) -> None:
    other = tmp_path / "other"
    other.touch()
    os.close(own.descriptor())
    (tmp_path / "own").unlink()
    if is_replaced:
        other.rename(tmp_path / "own")
    with pytest.raises(OSError, match="own"):
        own.descriptor()
    assert own.is_removed() and (tmp_path / "own").exists() == is_replaced


def test_descriptors_lie_at_64_and_above(own: OwnFile) -> None:
    assert own.descriptor() >= LOWEST and not os.get_inheritable(own.descriptor())


LIFTS = """
import os, resource, sys
from probe.own_files import lift
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
print([lift(os.open(sys.argv[1], os.O_APPEND)) for _ in range(3)])
"""
"""In a process of its own: what others open and close here decides which descriptors are free."""


def test_descriptors_are_the_highest_free_ones_below_a_low_limit(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    program = [sys.executable, "-c", LIFTS, str(tmp_path / "file")]
    assert subprocess.run(program, capture_output=True, check=True).stdout == b"[39, 38, 37]\n"


@pytest.mark.parametrize("lose", LOSSES)
@pytest.mark.parametrize("is_removed", [False, True])
def test_journal_goes_on_where_the_script_closes_its_segment(
    tmp_path: Path, lose: Callable[[OwnFile, Path], None], is_removed: bool
) -> None:
    folder = tmp_path / "run" / "0-1"
    journal = JournalWriter(folder, run="run", writer="0-1")
    journal.append("events", b"one")
    file = journal._streams["events"].file
    assert file is not None
    number = file.descriptor()
    lose(file, tmp_path / "of the script")
    if is_removed:
        file.path.unlink()
    assert journal.append("events", b"two") == 1
    journal.close()
    if lose is not _close:
        os.close(number)
    assert list(read_stream(folder, "events")) == [(0, b"one"), (1, b"two")][is_removed:]
