"""`--capabilities`: runs the tests marked with a row of docs/capabilities.md, and says how many rows hold.

A row holds where at least one of its tests passed here and none failed. A test that was skipped (no GPU, say)
is listed beside its row, and counts for nothing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROWS_FILE = Path(__file__).resolve().parents[1] / "docs" / "capabilities.md"
_ROW = re.compile(r"^\| (\d+) \| (.+) \|$", re.MULTILINE)


def read_rows(text: str) -> dict[int, str]:
    """Number -> capability."""
    return {int(number): name for number, name in _ROW.findall(text)}


def numbers_of(item: pytest.Item) -> list[int]:
    """The rows that a test is marked with: `@pytest.mark.capability(17, 18)`."""
    return sorted({number for mark in item.iter_markers("capability") for number in mark.args})


class CapabilityTable:
    """Keeps the marked tests, on each worker; counts where the reports come together."""

    def __init__(self, rows: dict[int, str]) -> None:
        self._rows = rows
        self._passed: defaultdict[int, set[str]] = defaultdict(set)
        self._failed: defaultdict[int, set[str]] = defaultdict(set)
        self._skipped: defaultdict[int, dict[str, str]] = defaultdict(dict)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if numbers_of(item)]
        for item in chosen:
            unknown = set(numbers_of(item)) - set(self._rows)
            if unknown:
                raise pytest.UsageError(f"{item.nodeid}: there is no row {sorted(unknown)}")
            item.user_properties.append(("capabilities", numbers_of(item)))
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for number in dict(report.user_properties).get("capabilities", ()):
            if report.failed:
                self._failed[number].add(report.nodeid)
            elif report.skipped:
                reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
                self._skipped[number][report.nodeid] = reason
            elif report.when == "call":
                self._passed[number].add(report.nodeid)

    def holds(self, number: int) -> bool:
        """Whether a row has been shown here."""
        return bool(self._passed[number]) and not self._failed[number]

    def lines(self) -> Iterator[str]:
        """The rows that do not hold, the tests that could not run here, and the count."""
        for number, name in self._rows.items():
            if not self.holds(number):
                why = "a test failed" if self._failed[number] else "no test has shown it here"
                yield f"row {number:2}: {why}: {name}"
            for test, reason in self._skipped[number].items():
                yield f"row {number:2}: could not run here: {test} ({reason.removeprefix('Skipped: ')})"
        held = sum(self.holds(number) for number in self._rows)
        yield f"{held} of {len(self._rows)} capabilities hold"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("capabilities")
        for line in self.lines():
            terminalreporter.write_line(line)
