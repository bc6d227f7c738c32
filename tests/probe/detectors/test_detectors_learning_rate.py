"""Learning rates that decay to nothing while there is much left to do, and schedules that end near 0."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from detector_series import as_batch, observe_norms
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.detectors import Finding, Observation
from probe.detectors.learning_rate import DecayedRateDetector


def run(
    rates: Sequence[float | None], *, losses: Sequence[float] = (), norm: float = 1.0
) -> list[Observation]:
    chosen = losses or [1.0] * len(rates)
    return [
        observe_norms(step, [norm], loss=loss, rate=rate)
        for step, (rate, loss) in enumerate(zip(rates, chosen, strict=True))
    ]


def found(steps: Sequence[Observation]) -> list[tuple[int, Finding]]:
    detector = DecayedRateDetector()
    return [(step.step, finding) for step in steps for finding in detector.observe(step)]


def test_learning_rate_below_0_has_not_decayed() -> None:
    """It goes uphill: the loss tells of that."""
    assert found(run([0.02] * 60 + [-0.01] * 120)) == []


def test_decay_at_every_step_instead_of_every_epoch_is_found() -> None:
    """0.9 ** n is below 1e-4 from n = 88 on; fifty steps of that are at n = 137."""
    step, finding = found(run([0.1 * 0.9**n for n in range(200)]))[0]
    assert (step, finding.kind, finding.severity, finding.subject) == (
        137,
        "update_ratio_low",
        "warning",
        "lr",
    )
    assert finding.value == pytest.approx(0.1 * 0.9**137)
    assert finding.baseline == {"highest": 0.1, "live_steps": 44.0}


def test_schedule_that_ends_after_a_third_of_the_run_is_found() -> None:
    linear = [1e-3 * max(0.0, 1.0 - n / 300) for n in range(900)]
    step, _ = found(run(linear))[0]
    live = sum(rate >= 1e-5 for rate in linear)
    assert step == 300 + live - 1


def test_finding_ends_with_a_restart() -> None:
    rates = [0.1] * 20 + [0.0] * 100 + [0.1] * 20
    assert [step for step, _ in found(run(rates))] == list(range(69, 120))


HEALTHY: dict[str, list[Observation]] = {
    "constant": run([1e-3] * 500),
    "warm-up from 0": run([1e-3 * min(1.0, n / 400) for n in range(800)]),
    "cosine to 0": run([5e-4 * (1 + math.cos(math.pi * n / 2000)) for n in range(2001)]),
    "warm restarts": run([5e-2 * (1 + math.cos(math.pi * (n % 300) / 300)) for n in range(1500)]),
    "two decades": run([0.1] * 300 + [0.01] * 300 + [0.001] * 300),
    "exponential over the whole run": run([0.1 * 1e-5 ** (n / 3000) for n in range(3000)]),
    "converged long ago": run([0.1] * 100 + [0.0] * 300, losses=[10.0] * 100 + [1e-4] * 300),
    "no gradient any more": run([0.1] * 100 + [0.0] * 300, norm=0.0),
    "unknown": run([None] * 300),
    "always 0": run([0.0] * 300),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_learning_rate_of_a_healthy_run_is_silent(name: str) -> None:
    assert found(HEALTHY[name]) == []


@pytest.mark.parametrize("name", HEALTHY)
def test_quiet_batches_leave_the_same_history(name: str) -> None:
    """Where a batch is quiet, what follows it is found at the same step as after single steps."""
    steps = HEALTHY[name]
    singly, batched = DecayedRateDetector(), DecayedRateDetector()
    for start in range(0, len(steps), 32):
        part = steps[start : start + 32]
        if not batched.learn_quiet(as_batch(part)):
            for step in part:
                batched.observe(step)
        for step in part:
            singly.observe(step)
        assert vars(singly) == vars(batched)


@settings(max_examples=200, deadline=None)
@given(
    rates=st.lists(
        st.tuples(st.sampled_from([0.1, 0.1, 0.2, 1e-3, 9e-4, 1e-5, 0.0, -0.1, None]), st.integers(1, 40)),
        min_size=1,
        max_size=12,
    ),
    length=st.integers(1, 30),
)
def test_rates_of_a_batch_are_noted_as_one_by_one(rates: list[tuple[float | None, int]], length: int) -> None:
    steps = run([rate for rate, count in rates for _ in range(count)])
    batched, single = DecayedRateDetector(), DecayedRateDetector()
    for start in range(0, len(steps), length):
        part = steps[start : start + length]
        found = [finding for one in part for finding in single.observe(one)]
        if batched.learn_quiet(as_batch(part)):
            assert not found
        else:
            assert [finding for one in part for finding in batched.observe(one)] == found
        assert vars(batched) == vars(single)
