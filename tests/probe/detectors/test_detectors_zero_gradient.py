"""Layers whose gradient was never anything but 0: when that is said, and when it has to wait."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from detector_series import as_batch, observe_norms

from probe.detectors import DetectorThresholds, Observation
from probe.detectors.bank import DetectorBank
from probe.detectors.zero_gradient import SILENT_STEPS, ZeroGradientDetector

OPTIONS = DetectorThresholds()


def series(
    norms: Iterable[Sequence[float]], *, rate: float | None = 1e-3, loss: float = 1.0
) -> list[Observation]:
    return [observe_norms(step, given, loss=loss, rate=rate) for step, given in enumerate(norms)]


def first(steps: Iterable[Observation]) -> tuple[int, tuple[str, ...]] | None:
    """Step and layers of the first finding."""
    detector = ZeroGradientDetector(OPTIONS)
    found = ((step.step, finding) for step in steps for finding in detector.observe(step))
    return next(((step, finding.affected) for step, finding in found), None)


def test_zeros_from_the_start_are_said_after_fifteen_steps_with_a_learning_rate() -> None:
    assert first(series([[1.0, 0.0]] * 100)) == (14, ("layers.1",))


def test_zeros_of_all_layers_are_said_as_soon() -> None:
    assert first(series([[0.0, 0.0]] * 100)) == (14, ("layers.0", "layers.1"))


def test_option_sets_how_soon() -> None:
    detector = ZeroGradientDetector(DetectorThresholds(zero_steps=20))
    found = [step.step for step in series([[1.0, 0.0]] * 100) if detector.observe(step)]
    assert found[0] == 29


def test_batches_find_them_at_the_same_step() -> None:
    bank = DetectorBank(OPTIONS)
    found = bank.observe_batch(as_batch(series([[1.0, 0.0]] * 40)))
    assert [(index, [finding.kind for finding in findings]) for index, findings in found[:1]] == [
        (14, ["zero_gradient"])
    ]


@pytest.mark.parametrize("rate", [None, 0.0])
def test_learning_rate_that_is_0_or_unknown_keeps_the_longer_patience(rate: float | None) -> None:
    assert first(series([[1.0, 0.0]] * 100, rate=rate)) == (89, ("layers.1",))


def test_one_group_that_waits_keeps_the_longer_patience() -> None:
    steps = [replace(step, lowest_rate=0.0) for step in series([[1.0, 0.0]] * 100)]
    assert first(steps) == (89, ("layers.1",))


def test_learning_rate_that_begins_late_counts_from_there() -> None:
    steps = series([[1.0, 0.0]] * 30, rate=0.0) + series([[1.0, 0.0]] * 100)
    steps = [replace(step, step=index) for index, step in enumerate(steps)]
    assert first(steps) == (44, ("layers.1",))


def test_experts_that_come_and_go_keep_the_longer_patience() -> None:
    """The third was never chosen; of the other two, each has no tokens at some steps."""
    norms = [[1.0, float(step % 2), float(step % 3 > 0), 0.0] for step in range(100)]
    assert first(series(norms)) == (89, ("layers.3",))


HEALTHY = {
    "behind a gate that opens at the first update": series([[1.0, 0.0]] + [[1.0, 1e-9]] * 99),
    "behind a gate that opens after warm-up": series([[1.0, 0.0]] * 80, rate=0.0)
    + [replace(step, step=80 + step.step) for step in series([[1.0, 1e-9]] * 20)],
    "margins that are all satisfied": series([[1.0, 1.0]], loss=0.1)
    + [replace(step, step=1 + step.step) for step in series([[0.0, 0.0]] * 100, loss=0.0)],
    "a head that has its first batch at step 12": series([[1.0, 0.0]] * 12 + [[1.0, 1.0]] * 88),
    "missing, not zero": [
        observe_norms(step, [1.0, 0.0], loss=1.0, rate=1e-3, missing=np.array([False, True]))
        for step in range(100)
    ],
}


@pytest.mark.parametrize("name", HEALTHY)
def test_zeros_that_are_no_fault_are_silent(name: str) -> None:
    assert first(HEALTHY[name]) is None


def silent(steps: Iterable[Observation]) -> list[int]:
    """Steps at which loss and gradients are said to have been 0 from the start."""
    detector = ZeroGradientDetector(OPTIONS)
    detector.note_cause("Every target is ignored.")
    found = [(step.step, one) for step in steps for one in detector.observe(step) if one.subject == "loss"]
    assert all(one.message.endswith(". Every target is ignored.") for _, one in found)
    return [step for step, _ in found]


def test_loss_and_gradients_of_0_from_the_first_step_on_are_said_after_fifty() -> None:
    steps = series([[0.0, 0.0]] * 60, loss=0.0)
    assert silent(steps) == list(range(SILENT_STEPS - 1, 60))
    found = DetectorBank(OPTIONS).observe_batch(as_batch(steps))
    assert found[0][0] == SILENT_STEPS - 1


@pytest.mark.parametrize(
    "before",
    [series([[1.0, 1.0]], loss=0.5), series([[1.0, 1.0]], loss=0.0), series([[0.0, 0.0]], loss=0.5)],
    ids=["trained", "gradient alone", "loss alone"],
)
def test_loss_of_0_is_a_margin_that_is_kept_where_it_was_not_always_so(before: list[Observation]) -> None:
    after = [replace(step, step=step.step + 1) for step in series([[0.0, 0.0]] * 200, loss=0.0)]
    assert silent([*before, *after]) == []


def test_loss_of_0_is_meant_where_its_term_has_the_weight_0() -> None:
    detector = ZeroGradientDetector(OPTIONS)
    detector.excuse()
    assert not any(detector.observe(step) for step in series([[0.0, 0.0]] * 200, loss=0.0))
