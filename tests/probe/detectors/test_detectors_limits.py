"""Absolute limits on gradient norms: off by default, exact where set, from the first step on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from detector_series import as_batch, observe_norms

from probe.detectors import DetectorBank, DetectorThresholds, Finding, Observation


def find(steps: Sequence[Observation], **options: float) -> list[tuple[int, Finding]]:
    bank = DetectorBank(DetectorThresholds(**options))  # type: ignore[arg-type]
    return [(step.step, finding) for step in steps for finding in bank.observe(step)]


def test_limits_are_off_by_default() -> None:
    assert not find([observe_norms(i, [1e9, 1e-9]) for i in range(20)])


def test_explosion_norm_is_a_limit_of_the_global_norm_at_the_first_step() -> None:
    (found,) = find([observe_norms(0, [3.0, 4.0])], explosion_norm=4.9)
    step, finding = found
    assert (step, finding.kind, finding.severity) == (0, "gradient_explosion", "warning")
    assert finding.value == pytest.approx(5.0)
    assert finding.threshold == 4.9
    assert (finding.subject, finding.affected) == ("layers.1", ("layers.1",))
    assert "5 at step 0 is above the limit 4.9 (`explosion_norm`)" in finding.message
    assert not find([observe_norms(0, [3.0, 4.0])], explosion_norm=5.1)


def test_explosion_norm_exceeded_for_good_is_reported_and_still_learnt() -> None:
    """A run that lives above the limit is told so at every step, of a burst by its own history."""
    steps = [observe_norms(i, [600.0 if i == 80 else 6.0]) for i in range(100)]
    found = find(steps, explosion_norm=5.0)
    assert [step for step, _ in found] == list(range(100))
    assert "`explosion_norm`" not in found[80][1].message
    assert "`explosion_norm`" in found[81][1].message


def test_vanishing_norm_is_a_limit_of_each_layer_and_patient() -> None:
    steps = [observe_norms(i, [1.0, 1e-7 if 3 <= i < 12 else 1.0, 0.0]) for i in range(15)]
    found = find(steps, vanishing_norm=1e-6, vanishing_steps=5)
    assert [step for step, _ in found] == list(range(7, 12))
    finding = found[0][1]
    assert (finding.kind, finding.subject, finding.affected) == (
        "gradient_vanishing",
        "layers.1",
        ("layers.1",),
    )
    assert (finding.value, finding.threshold) == (pytest.approx(1e-7), 1e-6)
    assert "for 5 steps in a row" in finding.message


def test_vanishing_norm_steps_without_a_gradient_neither_count_nor_end_the_row() -> None:
    missing = np.array([False, True])
    steps = [observe_norms(i, [1.0, 1e-7], missing=missing if i % 2 else None) for i in range(12)]
    assert [step for step, _ in find(steps, vanishing_norm=1e-6, vanishing_steps=5)] == [8, 10]


def test_limits_judge_a_batch_as_its_steps() -> None:
    steps = [observe_norms(i, [1.0, 9.0 if i == 40 else 1.0]) for i in range(64)]
    bank = DetectorBank(DetectorThresholds(explosion_norm=5.0, vanishing_norm=1e-6))
    found = [bank.observe_batch(as_batch(steps[start : start + 16])) for start in range(0, 64, 16)]
    assert [[index for index, _ in batch] for batch in found] == [[], [], [8], []]
