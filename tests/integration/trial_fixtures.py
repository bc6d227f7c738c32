"""Fixtures of the trials: one trial a test with a printed seed, and the table of all accounts at the end."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked_scripts import ForkedScripts
from trial import Account, Trial

HEAD = "| trial | seed | faults | steps finished | events | records | lost | told |\n" + "|---" * 8 + "|"


@pytest.fixture
def trial(tmp_path: Path, forked: ForkedScripts, forked_dashboard: ForkedScripts) -> Iterator[Trial]:
    """A trial that has begun nothing; `TRIAL_SEED` repeats one."""
    seed = int(os.environ.get("TRIAL_SEED", time.time_ns() % 10**6))
    print("TRIAL_SEED", seed)
    trial = Trial(tmp_path, seed, forked, forked_dashboard)
    yield trial
    trial.close()


@pytest.fixture(scope="module")
def accounts() -> Iterator[list[tuple[str, int, Account]]]:
    """What the tests of a file have counted; printed as a table, which docs/reliability.md shows."""
    found: list[tuple[str, int, Account]] = []
    yield found
    print("\n" + "\n".join([HEAD, *(account.line(name, seed) for name, seed, account in found)]))
