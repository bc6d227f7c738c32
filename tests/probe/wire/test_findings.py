"""Libraries, folders and sizes, as both self-checks look at them."""

from __future__ import annotations

from pathlib import Path

import pytest

from probe.wire.findings import Library, check_library, free_bytes, size_text, write_problem


def test_library_that_is_installed_gives_its_version() -> None:
    import numpy

    finding = check_library(Library(name="numpy", minimum="1.26"))
    assert (finding.state, finding.found) == ("ok", numpy.__version__)


def test_library_that_is_needed_and_absent_is_missing() -> None:
    finding = check_library(Library(name="no-such-distribution", minimum="2"))
    assert (finding.state, finding.found) == ("missing", "not installed")
    assert finding.advice == 'Install it: pip install "no-such-distribution>=2"'


def test_library_whose_module_has_gone_is_missing() -> None:
    assert check_library(Library(name="numpy", module="no_such_module")).state == "missing"


def test_library_that_is_optional_and_absent_is_ok() -> None:
    assert check_library(Library(name="no-such-distribution"), is_needed=False).state == "ok"


@pytest.mark.parametrize(("is_needed", "state"), [(True, "missing"), (False, "limited")])
def test_library_that_is_too_old_is_named_with_the_minimum(is_needed: bool, state: str) -> None:
    finding = check_library(Library(name="numpy", minimum="1000.5"), is_needed=is_needed)
    assert finding.state == state
    assert finding.found.endswith("older than 1000.5")


def test_library_minimum_is_compared_by_numbers() -> None:
    assert check_library(Library(name="numpy", minimum="1.9")).state == "ok"


def test_library_of_an_unknown_major_version_is_limited() -> None:
    finding = check_library(Library(name="numpy", below=1))
    assert finding.state == "limited"
    assert "newer than nanscope knows" in finding.found


def test_write_problem_of_a_folder_to_be_made_is_none_and_makes_nothing(tmp_path: Path) -> None:
    assert write_problem(tmp_path / "a" / "b") is None
    assert list(tmp_path.iterdir()) == []


def test_write_problem_of_a_folder_leaves_no_file(tmp_path: Path) -> None:
    assert write_problem(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_write_problem_of_a_file_system_that_takes_no_files_is_told() -> None:
    assert write_problem(Path("/proc/nanscope")) is not None


def test_write_problem_below_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    assert write_problem(tmp_path / "notes.txt" / "spool") == "Not a directory"


def test_free_bytes_of_a_folder_to_be_made_are_those_of_its_file_system(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "a" / "b") > 0


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0.0 KiB"),
        (1536, "1.5 KiB"),
        (3 << 19, "1.5 MiB"),
        (1 << 30, "1.0 GiB"),
        (1 << 41, "2.0 TiB"),
        (1 << 52, "4,096.0 TiB"),
    ],
)
def test_size_text_is_in_binary_units(size: int, text: str) -> None:
    assert size_text(size) == text
