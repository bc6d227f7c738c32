"""`--cpu-table FILE`: which files take the time. Their seconds of CPU, children included, and of waiting.

A child counts where it was waited for: a server shared by a file's tests in the teardown of the last of them.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PHASES = ("setup", "call", "teardown")
COLLECTION = "(collection, on each worker)"


def cpu_s() -> float:
    """Seconds of this process and of its ended children."""
    return sum(os.times()[:4])


class CpuTable:
    """Measures on each worker, writes where the reports come together."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._cpu: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._wall: Counter[str] = Counter()
        self._tests: Counter[str] = Counter()
        self._slowest: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._before = cpu_s()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        report: Any = yield
        now = cpu_s()
        report.user_properties = [*report.user_properties, ("cpu_s", now - self._before)]
        self._before = now
        return report

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["collection_cpu_s"] = self._collected

    def pytest_collection_finish(self) -> None:
        self._collected = cpu_s()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._cpu[COLLECTION]["setup"] += getattr(node, "workeroutput", {}).get("collection_cpu_s", 0.0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        cpu = dict(report.user_properties).get("cpu_s", 0.0)  # none of a worker that was killed
        self._cpu[file][report.when] += cpu
        self._wall[file] += report.duration
        self._tests[file] += report.when == "call"
        self._slowest[report.nodeid] += cpu

    def pytest_terminal_summary(self) -> None:
        total = sum(sum(cpu.values()) for cpu in self._cpu.values())
        lines = [f"{'CPU':>8} {'setup':>8} {'call':>8} {'teardown':>8} {'wall':>8} {'tests':>6}  file"]
        lines.append(f"{total:8.1f} {'':35} {sum(self._tests.values()):6}  all")
        for file, cpu in sorted(self._cpu.items(), key=lambda item: -sum(item[1].values())):
            phases = " ".join(f"{cpu[phase]:8.1f}" for phase in PHASES)
            sums = f"{sum(cpu.values()):8.1f} {phases} {self._wall[file]:8.1f}"
            lines.append(f"{sums} {self._tests[file]:6}  {file}")
        lines += ["", *(f"{cpu:8.2f}  {test}" for test, cpu in self._slowest.most_common(300))]
        self._path.write_text("\n".join(lines) + "\n")
