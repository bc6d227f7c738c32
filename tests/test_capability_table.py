"""`make capabilities` counts honestly: a failed or skipped test shows nothing, and rows and marks agree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from capability_table import ROWS_FILE, CapabilityTable, read_rows

TESTS = Path(__file__).parent


def report(number: int, outcome: str, *, name: str = "test_x", when: str = "call") -> pytest.TestReport:
    longrepr = ("file", 1, "Skipped: no GPU") if outcome == "skipped" else None
    properties = [("capabilities", [number])]
    return pytest.TestReport(name, ("f", 1, name), {}, outcome, longrepr, when, user_properties=properties)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("outcomes", "said"),
    [
        ([], "0 of 1"),
        (["passed"], "1 of 1"),
        (["skipped"], "0 of 1"),
        (["passed", "skipped"], "1 of 1"),
        (["passed", "failed"], "0 of 1"),
    ],
)
def test_row_holds_where_a_test_passed_and_none_failed(outcomes: list[str], said: str) -> None:
    table = CapabilityTable({7: "anomaly mode"})
    for number, outcome in enumerate(outcomes):
        table.pytest_runtest_logreport(report(7, outcome, name=f"test_{number}"))
    lines = list(table.lines())
    assert lines[-1] == f"{said} capabilities hold"
    assert any("no GPU" in line for line in lines) == ("skipped" in outcomes)


def test_setup_alone_shows_nothing() -> None:
    table = CapabilityTable({7: "anomaly mode"})
    table.pytest_runtest_logreport(report(7, "passed", when="setup"))
    assert not table.holds(7)


def test_rows_of_the_page_are_numbered_without_a_hole() -> None:
    assert list(read_rows(ROWS_FILE.read_text())) == list(range(1, 80))


def test_every_mark_names_a_row_of_the_page() -> None:
    marks = re.compile(r"mark\.capability\(([\d, ]+)\)")
    text = "\n".join(path.read_text() for path in TESTS.rglob("test_*.py"))
    named = {int(number) for found in marks.findall(text) for number in found.replace(",", " ").split()}
    assert named <= set(read_rows(ROWS_FILE.read_text()))
