"""Trials of the whole line, as long as docs/reliability.md says; `make faults` prints seeds and figures.

`TRIALS` repeats each, `TRIAL_SCALE` (1) multiplies the number of faults.
"""

from __future__ import annotations

import os

import pytest
from trial import Account, Trial
from trial_fixtures import accounts, trial
from trial_scenarios import LONG

__all__ = ["accounts", "trial"]
pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600)]
TIMES = int(os.environ.get("TRIALS", "1"))


@pytest.mark.parametrize("time", range(TIMES))
@pytest.mark.parametrize("name", LONG)
def test_long_trial_stores_all_that_was_noted_once_and_right_or_tells(
    trial: Trial, accounts: list[tuple[str, int, Account]], name: str, time: int
) -> None:
    scenario = LONG[name]
    if reason := scenario.refusal():
        pytest.skip(reason)
    scenario.run(trial)
    trial.settle()
    accounts.append((name, trial.seed, trial.check(may_lose=scenario.may_lose)))
    if scenario.weights:
        assert_same_weights(trial)


def assert_same_weights(trial: Trial) -> None:
    """All trainings that ran to their end have the weights of one without the probe."""
    for run in trial.runs():
        alone = trial.weights_without_probe(run)
        assert set(trial.notes(run).weights) == {alone}, f"{run}: other weights than without the probe"
