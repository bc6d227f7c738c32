"""Parameters that nothing updates, and updates that are too large or too small."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from sampled_runs import NAMES, OPTIONS, describe, find, plain

from probe.detectors import not_updated
from probe.detectors.cause_advice import LOST_IN_ROUNDING, MEANT, NOT_IN_OPTIMIZER
from probe.detectors.not_updated import NotUpdatedDetector
from probe.detectors.sample import Sample
from probe.detectors.updates import UpdateRatioDetector

EVERY = 10
"""Steps between two measurements of the norms."""


def walk(
    steps: int,
    *,
    moves: Callable[[int], list[bool]] = lambda step: [True] * 4,
    gradient: tuple[float, ...] = (1.0, 2.0, 0.5, 1.0),
    rates: dict[str, float] | None = None,
    speed: float = 1e-3,
    ratio: bool = True,
) -> Iterator[Sample]:
    """A model of four parameters, of which those move that `moves` names; norms every ten steps."""
    random = np.random.default_rng(0)
    norms = np.array([10.0, 5.0, 8.0, 3.0])
    for step in range(steps):
        moving = np.array(moves(step))
        if step % EVERY == 0:
            yield plain(
                step,
                loss=1.0,
                total_grad_norm=2.0,
                grad_norm=np.array(gradient),
                missing=np.zeros(4, dtype=np.bool_),
                parameter_norm=norms.copy(),
                update_ratio=np.where(moving, speed, np.nan) if ratio else None,
                scalars={"lr": 0.1} if rates is None else rates,
            )
        norms = norms * np.where(moving, 1.0 + speed * random.standard_normal(4), 1.0)


def stuck(samples: Iterator[Sample]) -> list[tuple[int, str, str]]:
    """(step, severity, subject) of what stands still."""
    found = find(samples, NotUpdatedDetector(OPTIONS))
    return [(step, finding.severity, finding.subject) for step, finding in found]


@pytest.mark.parametrize("ratio", [True, False])
def test_not_updated_parameter_is_named_after_twenty_steps(ratio: bool) -> None:
    found = stuck(walk(60, moves=lambda step: [True, True, False, True], ratio=ratio))
    assert found[0] == (20, "warning", NAMES[2])
    assert [step for step, *_ in found] == [20, 30, 40, 50]


def test_not_updated_parameters_of_an_optimizer_that_waits_get_more_time() -> None:
    detector = NotUpdatedDetector(OPTIONS)
    detector.note_waiting(frozenset([NAMES[2]]))
    found = find(walk(130, moves=lambda step: [True, True, False, True]), detector)
    assert found[0][0] == 100


def test_not_updated_asks_for_the_rates_once_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Sample] = []
    monkeypatch.setattr(not_updated, "_has_idle_group", lambda sample: bool(asked.append(sample)))
    samples = list(walk(60, moves=lambda step: [True, True, False, True]))
    assert stuck(iter(samples))[0][0] == 20
    assert 0 < len(asked) <= len(samples)


def test_not_updated_finding_names_all_that_stand_still() -> None:
    samples = walk(40, moves=lambda step: [True, False, True, False])
    finding = find(samples, NotUpdatedDetector(OPTIONS))[0][1]
    assert finding.affected == (NAMES[1], NAMES[3])
    assert finding.baseline == {"steps": 20.0}


@pytest.mark.parametrize(
    ("gradient", "rates", "is_lost"),
    [
        (1e-8, {"lr": 0.1}, True),  # 1e-9 of weights of norm 8: far below the distance of float32 numbers
        (1e-3, {"lr": 0.1}, False),
        (1e-8, {}, False),
        (1e-8, {"lr/0": 0.1, "lr/1": 0.0}, False),
    ],
)
def test_not_updated_message_says_where_the_gradient_is_lost_in_rounding(
    gradient: float, rates: dict[str, float], is_lost: bool
) -> None:
    small = (500 * gradient, 500 * gradient, gradient, 500 * gradient)
    samples = walk(130, moves=lambda step: [True, True, False, True], gradient=small, rates=rates)
    finding = find(samples, NotUpdatedDetector(OPTIONS))[0][1]
    assert ("so small (the largest 1e-08) that a step of learning rate 0.1" in finding.message) == is_lost
    assert ("lost in rounding" in finding.message) == is_lost
    assert finding.advice == (LOST_IN_ROUNDING if is_lost else NOT_IN_OPTIMIZER + MEANT)
    assert np.float32(8.0) - np.float32(0.1 * 1e-8) == np.float32(8.0)


def test_not_updated_message_does_not_blame_a_gradient_like_all_others() -> None:
    """At a fine-tuning rate every gradient is small beside its weights, and Adam moves them all the same."""
    samples = walk(
        130, moves=lambda step: [True, True, False, True], gradient=(1e-4,) * 4, rates={"lr": 1e-5}
    )
    finding = find(samples, NotUpdatedDetector(OPTIONS))[0][1]
    assert "lost in rounding" not in finding.message


def test_not_updated_stays_known_between_the_measurements_of_the_norms() -> None:
    measured = list(walk(40, moves=lambda step: [True, True, False, True]))
    detector = NotUpdatedDetector(OPTIONS)
    for sample in measured[:3]:
        detector.observe(sample)
    between = replace(measured[2], step=25, parameter_norm=None, update_ratio=None)
    assert [finding.subject for finding in detector.observe(between)] == [NAMES[2]]


@pytest.mark.parametrize("in_single", [{10}, {0, 20}, {10, 20}])
def test_not_updated_is_found_though_some_norms_are_of_single_precision(in_single: set[int]) -> None:
    """Steps that C has followed have such ones; a third is none of their numbers."""
    samples = []
    for sample in walk(60, moves=lambda step: [True, True, False, True]):
        norm = None if sample.parameter_norm is None else sample.parameter_norm / 3
        if norm is not None and sample.step in in_single:
            norm = norm.astype(np.float32).astype(np.float64)
        samples.append(replace(sample, parameter_norm=norm))
    assert stuck(samples)[0] == (20, "warning", NAMES[2])


def test_not_updated_model_as_a_whole_is_a_forgotten_step() -> None:
    found = stuck(walk(60, moves=lambda step: [False] * 4))
    assert found[0] == (30, "warning", NAMES[0])


@pytest.mark.parametrize("is_cleared", [True, False])
def test_not_updated_model_that_no_optimizer_steps_is_silent(is_cleared: bool) -> None:
    """A teacher, saliency maps: gradients are computed, and nobody is to update anything."""
    none = np.ones(4, dtype=np.bool_)
    steps = walk(80, moves=lambda step: [False] * 4, ratio=False, rates={})
    cleared = (replace(sample, missing=none, grad_norm=np.zeros(4)) for sample in steps)
    assert stuck(cleared if is_cleared else steps) == []


def test_not_updated_model_whose_optimizer_steps_without_any_gradient_is_found() -> None:
    """A loss that was made anew (`torch.tensor(loss.item(), requires_grad=True)`) has no way back."""
    none = np.ones(4, dtype=np.bool_)
    steps = walk(80, moves=lambda step: [False] * 4, ratio=False)
    scalars = {"lr": 0.1, "samples": 8.0}
    cut_off = [
        replace(sample, missing=none, grad_norm=np.zeros(4), loss=None, scalars=scalars) for sample in steps
    ]
    (step, finding), *_ = find(cut_off, NotUpdatedDetector(OPTIONS))
    assert (step, finding.severity) == (50, "warning")
    assert "no gradient" in finding.message
    for healthy in ({**scalars, "lr": 0.0}, {"lr": 0.1}):  # at rest; no forward that could be trained
        assert stuck(replace(sample, scalars=healthy) for sample in cut_off) == []


def test_not_updated_model_that_is_only_called_is_silent() -> None:
    steps = walk(80, moves=lambda step: [False] * 4, ratio=False, rates={})
    assert stuck(replace(sample, missing=None, grad_norm=None, loss=None) for sample in steps) == []


def test_not_updated_backbone_of_a_tuned_head_is_information() -> None:
    found = stuck(walk(60, moves=lambda step: [False, False, False, True]))
    assert found[0] == (20, "info", NAMES[0])


HEALTHY: dict[str, Iterator[Sample]] = {
    "all move": walk(300),
    "frozen": walk(300, moves=lambda step: [False, True, True, True], gradient=(0.0, 1.0, 1.0, 1.0)),
    "learning rate 0": walk(300, moves=lambda step: [False] * 4, rates={"lr": 0.0}),
    "rounding noise": walk(300, moves=lambda step: [False, True, True, True], gradient=(1e-8, 1.0, 1.0, 1.0)),
    "moves now and then": walk(300, moves=lambda step: [step % 50 == 0, True, True, True]),
    "stops late": walk(300, moves=lambda step: [step < 100, True, True, True]),
    "all stop": walk(300, moves=lambda step: [step < 100] * 4),
    "steps below rounding": walk(300, moves=lambda step: [False, True, True, True], speed=1e-9),
    "group that joins in": walk(
        100, moves=lambda step: [step > 90, True, True, True], rates={"lr/0": 0.0, "lr/1": 1.0}
    ),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_not_updated_is_silent_on_what_is_healthy(name: str) -> None:
    assert stuck(HEALTHY[name]) == []


def test_not_updated_is_silent_while_a_scaler_skips_the_updates() -> None:
    samples = [
        replace(sample, scalars={"lr": 0.1, "amp_skipped_updates": float(sample.step)})
        for sample in walk(100, moves=lambda step: [False] * 4)
    ]
    assert stuck(iter(samples)) == []


@pytest.mark.parametrize("factor", [1e-6, 1.0, 1e6])
def test_not_updated_does_not_depend_on_the_scale_of_gradients(factor: float) -> None:
    gradient = tuple(factor * value for value in (1.0, 2.0, 0.5, 1.0))
    assert stuck(walk(30, moves=lambda step: [True, False, True, True], gradient=gradient))[0][0] == 20


# ------------------------------------------------------------------------------------------------ ratios


def ratios(values: list[float], losses: list[float], **scalars: float) -> list[Sample]:
    """One sample a step, all parameters with the same ratio."""
    return [
        plain(
            step,
            loss=loss,
            total_grad_norm=1.0,
            grad_norm=np.ones(4),
            missing=np.zeros(4, dtype=np.bool_),
            parameter_norm=np.array([10.0, 5.0, 8.0, 3.0]),
            update_ratio=np.full(4, value),
            scalars={"lr": 0.1, **scalars},
        )
        for step, (value, loss) in enumerate(zip(values, losses, strict=True))
    ]


def judged(samples: list[Sample]) -> list[tuple[int, str]]:
    found = find(samples, UpdateRatioDetector(OPTIONS))
    assert all(finding.severity == "warning" for _, finding in found)
    return [(step, finding.kind) for step, finding in found]


def test_update_ratio_of_a_first_step_that_ruins_the_loss_is_high() -> None:
    found = judged(ratios([11.0, 0.7, 0.2, 0.1, 0.1], [2.3, 597.0, 525.0, 25.0, 3.0]))
    assert found[0] == (3, "update_ratio_high")


def test_update_ratio_that_grows_suddenly_is_high_if_the_loss_suffers() -> None:
    values = [1e-3] * 40 + [0.5] + [1e-3] * 9
    losses = [1.0] * 41 + [9.0] * 9
    assert judged(ratios(values, losses))[0] == (43, "update_ratio_high")


def test_update_ratio_that_stays_high_without_progress_is_found() -> None:
    assert judged(ratios([0.5] * 20, [2.3] * 20))[0] == (12, "update_ratio_high")


def test_update_ratio_low_is_found_where_it_was_never_higher() -> None:
    found = judged(ratios([1e-9] * 40, [2.3] * 40))
    assert found[0] == (30, "update_ratio_low")
    assert {kind for _, kind in found} == {"update_ratio_low"}


def test_update_ratio_low_needs_two_measurements_thirty_steps_apart() -> None:
    samples = ratios([1e-9] * 51, [2.3] * 51)
    assert [step for step, _ in judged([samples[0], samples[50]])] == [50]
    assert judged([samples[0], samples[20]]) == []


def test_update_ratio_that_clipping_makes_small_has_a_higher_floor() -> None:
    def clipped(ratio: float, left: float) -> list[Sample]:
        samples = ratios([ratio] * 40, [2.3] * 40)
        return [replace(sample, scalars={"lr": 0.1, "grad_norm_clipped": left}) for sample in samples]

    found = find(clipped(5e-7, 1e-6), UpdateRatioDetector(OPTIONS))
    assert (found[0][0], found[0][1].kind) == (30, "update_ratio_low")
    assert found[0][1].message.endswith("; clipping leaves 1e-06 of the gradient")
    assert judged(clipped(5e-7, 0.1)) == []
    assert judged(clipped(5e-5, 1e-4)) == []
    assert judged(ratios([5e-7] * 40, [2.3] * 40)) == []


def test_weight_decay_that_takes_a_tenth_of_the_weights_at_a_step_is_high() -> None:
    detector = UpdateRatioDetector(OPTIONS)
    detector.note_decay(3, 0.25, how="learning rate 0.05 times weight_decay 5")
    assert detector.has_news
    (finding,) = detector.observe(plain(3))
    assert (finding.kind, finding.severity, finding.value) == ("update_ratio_high", "warning", 0.25)
    assert "learning rate 0.05 times weight_decay 5" in finding.message
    assert not detector.has_news


@pytest.mark.parametrize("share", [0.0, 5e-5, 1e-2, 0.09])
def test_weight_decay_of_usual_size_is_silent(share: float) -> None:
    detector = UpdateRatioDetector(OPTIONS)
    detector.note_decay(3, share, how="")
    assert not detector.has_news
    assert detector.observe(plain(3)) == []


QUIET = {
    "usual": ratios([1e-3] * 100, [1.0] * 100),
    "Adam at first": ratios([1.1, 0.5, 0.3, 0.2, 0.15] + [0.05] * 95, [2.3 - 0.01 * i for i in range(100)]),
    "zero-initialised": ratios([1.0 / (i + 1) for i in range(100)], [2.3] * 100),
    "large and successful": ratios([0.4] * 100, [2.3 * 0.9**i for i in range(100)]),
    "warm restart": ratios([1e-2] * 30 + [1e-8] * 30 + [1e-2] * 40, [1.0] * 100),
    "decayed": ratios([1e-3 * 0.7**i for i in range(100)], [1.0] * 100),
    "skipped updates": ratios([0.0] * 100, [1.0] * 100),
}


@pytest.mark.parametrize("name", QUIET)
def test_update_ratio_is_silent_on_what_is_healthy(name: str) -> None:
    assert judged(QUIET[name]) == []


def test_update_ratio_is_silent_while_the_learning_rate_warms_up() -> None:
    samples = [
        replace(sample, scalars={"lr": 1e-12 * (sample.step + 1)})
        for sample in ratios([1e-9] * 60, [2.3] * 60)
    ]
    assert judged(samples) == []


def test_update_ratio_is_silent_where_the_gradient_itself_is_tiny() -> None:
    samples = [replace(sample, total_grad_norm=1e-9) for sample in ratios([1e-9] * 60, [1e-12] * 60)]
    assert judged(samples) == []


def test_update_ratio_of_the_same_measurement_counts_once() -> None:
    newest = ratios([0.5], [2.3])[0]
    samples = [replace(newest, step=step) for step in range(20)]
    assert judged(samples) == []


def test_update_ratios_message_says_what_to_expect() -> None:
    found = find(ratios([11.0, 0.7, 0.2, 0.1], [2.3, 597.0, 525.0, 25.0]), UpdateRatioDetector(OPTIONS))
    message = describe(found)
    assert "The update of step 0 is 11 times as large as the weights" in message
    assert message.endswith("and the loss went from 2.3 to 525 by step 3")
