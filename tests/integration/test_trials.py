"""The whole line under faults, in short; `make faults` makes the same for longer (`test_long_trials.py`)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from chaos_proxy import BadMessages
from trial import Trial, wait_for
from trial_fixtures import trial
from trial_scenarios import (
    bad_network,
    disturbed_training,
    failing_writes,
    full_disk,
    mount_is_possible,
    server_that_dies,
    stopped_server,
)

from dashboard.store.duck import DuckStore

__all__ = ["trial"]


def killed_at_once(trial: Trial) -> None:
    trial.start_server()
    trial.start_training("a", pause_s=0.002)
    trial.wait_for_steps("a", 100)
    wait_for(lambda: trial.helper_pid("a") is not None, "no helper comes")
    trial.trainers["a"].kill()
    trial.kill_helper("a")
    trial.kill_server()
    trial.kill_training("a")


def statistics_apart(trial: Trial) -> None:
    """The helper sends statistics in a stream of their own; the spool's reader takes what it left."""
    trial.environment["NANSCOPE_POOL_ABOVE"] = "0"
    trial.start_server()
    trial.start_training("a", pause_s=0.002)
    trial.wait_for_steps("a", 100)
    wait_for(lambda: trial.stored_to("a", "detail") > 20, "no statistics arrive")
    trial.kill_helper("a")
    trial.kill_server()
    trial.kill_training("a")


def changing(seed: int, target: int) -> BadMessages:
    return BadMessages(seed, target, share=0.3, faults=["corrupted"])


OFTEN_ENOUGH = ("changed messages", "disturbed", "stopped server")
"""Left to `make faults`, whose trials are longer, too: what they disturb, others here disturb as well."""
SHORT: dict[str, Callable[[Trial], None]] = {
    "killed at once": killed_at_once,
    "statistics apart": statistics_apart,
    "stopped server": lambda trial: stopped_server(trial, steps=100),
    "server that dies": lambda trial: server_that_dies(trial, places=["after-commit 2", "in-checkpoint 3"]),
    "changed messages": lambda trial: bad_network(trial, changing, faults=20),
    "bad network": lambda trial: bad_network(trial, BadMessages, faults=15),
    "disturbed": lambda trial: disturbed_training(trial, how=["gil", "stop", "fork"]),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.faults] if name in OFTEN_ENOUGH else []) for name in SHORT],
)
def test_trial_stores_all_that_was_noted_once_and_right(trial: Trial, name: str) -> None:
    SHORT[name](trial)
    trial.settle()
    account = trial.check()
    assert (account.missing, account.told) == (0, 0)
    assert account.steps >= 100 and account.events >= 10
    if name == "statistics apart":
        check_statistics(trial, "a")


def check_statistics(trial: Trial, run: str) -> None:
    """All steps of a training have the statistics of their layers, whether helper or reader brought them."""
    store = DuckStore(trial.data)
    steps = trial.notes(run).steps[0].keys()
    picture = store.heatmap(run, 0, "grad_norm", max_columns=10**6)
    store.close()
    assert picture is not None and picture.steps_per_column == 1
    shown = set(picture.steps[(picture.flags > 0).all(axis=0)].tolist())
    assert not steps - shown, sorted(steps - shown)[:5]


def test_write_that_fails_costs_nothing_or_is_counted(trial: Trial) -> None:
    failing_writes(trial, numbers=[1, 2, 5, 60])
    trial.settle()
    trial.check(may_lose=True)


def test_full_disk_ends_no_training_and_is_told(trial: Trial) -> None:
    if reason := mount_is_possible():
        pytest.skip(reason)
    full_disk(trial, is_lasting=True)
    trial.settle()
    account = trial.check(may_lose=True)
    assert account.steps == 600 and account.told >= account.missing > 0
    assert set(trial.notes("full").weights) == {trial.weights_without_probe("full")}
    store = DuckStore(trial.data)
    gaps = [event for event in store.events("full") if event.kind == "data_gap"]
    store.close()
    assert gaps and all("No space left" in gap.message for gap in gaps), gaps
