"""Lasting jumps: what is found, how surely and how soon, what is none, and what is said of it."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from detector_series import as_batch, lognormal, observe_norms
from sampled_runs import NOISES

from probe.detectors import DetectorBank, DetectorThresholds, Observation
from probe.detectors.heights import LEAST_LOG_MAD, SeriesHeights
from probe.detectors.jump_watch import JumpWatch
from probe.detectors.jumps import SILENT, Jump, JumpDetector
from probe.detectors.why import RecentSteps, chain

Floats = npt.NDArray[np.float64]


def heights_of(values: Floats) -> Floats:
    """(steps, series), every 32 steps anew, in plain numpy: how many MADs above the median of 64 values.

    The MAD is that of 128 values, each half from its own median.
    """
    heights = np.full(values.shape, np.nan)
    for now in range(32, len(values), 32):
        halves = [values[max(0, now - 64) : now], values[max(0, now - 128) : max(0, now - 64)]]
        apart = [np.abs(half - np.median(half, axis=0)) for half in halves if len(half)]
        level, mad = np.median(halves[0], axis=0), np.median(np.concatenate(apart), axis=0)
        heights[now : now + 32] = (values[now : now + 32] - level) / mad
    return heights


def find(values: Floats, family: float = 1.0) -> list[Jump]:
    """What a fresh detector finds in (steps, series)."""
    steps, series = values.shape
    return JumpDetector().judge(range(steps), heights_of(values), np.full(series, family))


# ------------------------------------------------------------------------------------- what is found

SURE = {"normal": 0.995, "laplace": 0.98, "t3": 0.98, "lognormal": 0.95}
"""Least shares of 600 series; measured over 10,000: 0.999, 0.991, 0.993 and 0.983."""


@pytest.mark.parametrize("at", [130, 400])
@pytest.mark.parametrize("noise", NOISES)
def test_jump_of_eight_mads_is_found_within_five_steps(noise: str, at: int) -> None:
    values = NOISES[noise](np.random.default_rng(at), (at + 5) * 600).reshape(at + 5, 600)
    before = values[at - 128 : at]
    values[at:] += 8.0 * np.median(np.abs(before - np.median(before, axis=0)), axis=0)
    found = [jump for jump in find(values) if jump.found >= at]
    assert len({jump.series for jump in found}) >= SURE[noise] * 600
    assert np.mean([abs(jump.step - at) <= 1 for jump in found]) > 0.9


@pytest.mark.parametrize("missing", [0.0, 0.05, 0.3])
def test_series_among_many_are_judged_as_each_by_itself(missing: float) -> None:
    random = np.random.default_rng(7)
    heights = random.laplace(0.0, 2.0, (700, 520))
    heights[300:, ::7] += 12.0
    heights[random.random(heights.shape) < missing * (np.arange(520) % 3 > 0)] = np.nan
    families, steps = np.full(520, 9.0), range(700)
    found = {(jump.series, jump) for jump in JumpDetector().judge(steps, heights, families)}
    alone = {
        (series, jump._replace(series=series))
        for series in range(520)
        for jump in JumpDetector().judge(steps, heights[:, [series]], families[:1])
    }
    assert found == alone and len({series for series, _ in found}) >= 25


def test_heights_beyond_single_precision_are_jumps_of_a_finite_height() -> None:
    heights = np.random.default_rng(1).normal(0.0, 1.0, (200, 2))
    heights[100:, 0], heights[100:, 1] = 1e300, -1e300
    with np.errstate(all="raise"):
        found = JumpDetector().judge(range(200), heights, np.ones(2))
    assert [(jump.series, jump.step) for jump in found] == [(0, 100)] and math.isfinite(found[0].mads)


@pytest.mark.parametrize("noise", NOISES)
def test_noise_is_a_jump_less_than_once_in_ten_thousand_steps(noise: str) -> None:
    values = NOISES[noise](np.random.default_rng(11), 1024 * 300).reshape(1024, 300)
    assert len(find(values)) < 1024 * 300 / 10_000


def test_a_family_of_series_makes_no_more_noise_than_one() -> None:
    values = NOISES["laplace"](np.random.default_rng(12), 1024 * 320).reshape(1024, 320)
    assert len(find(values, 8.0)) < 1024 * 40 / 10_000 * 2


# --------------------------------------------------------------------------------------- what is none


def noise(steps: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal((steps, 1))


def test_three_outliers_and_a_fall_are_no_jump() -> None:
    values = noise(400)
    values[300:303] += 1e6
    values[350:] -= 50.0
    assert find(values) == []


def test_a_rise_over_a_hundred_steps_is_no_jump() -> None:
    values = noise(500)
    values[250:350] += np.linspace(0.0, 12.0, 100)[:, None]
    values[350:] += 12.0
    assert find(values) == []


def test_a_jump_is_told_once_and_the_next_one_again() -> None:
    values = noise(900)
    values[300:] += 10.0
    values[700:] += 10.0
    assert [jump.step for jump in find(values)] == [300, 700]
    assert SILENT < 400


@pytest.mark.parametrize("kind", ["hinge", "errors", "rounded"])
def test_losses_that_are_often_equal_are_no_jumps(kind: str) -> None:
    """Their MAD is nearly or exactly 0."""
    random = np.random.default_rng(12)
    losses = {
        "hinge": np.maximum(random.standard_normal(10_000), 0.0),
        "errors": (random.random(10_000) < 0.4).astype(float),
        "rounded": np.round(2.0 + 0.02 * random.standard_normal(10_000), 2),
    }[kind]
    watch = JumpWatch()
    for start in range(0, len(losses), 32):
        part = [float(loss) for loss in losses[start : start + 32]]
        watch.judge(range(start, start + len(part)), part, [1.0] * len(part))
    assert len(watch.take()) <= 1


def test_a_series_with_gaps_is_not_judged() -> None:
    values = noise(400)
    heights = heights_of(values)
    heights[::3] = np.nan
    heights[300:] += 30.0
    assert JumpDetector().judge(range(400), heights, np.ones(1)) == []


def test_a_few_gaps_do_not_matter() -> None:
    heights = heights_of(noise(400))
    heights[100:300:20] = np.nan
    heights[320:] += 30.0
    assert [jump.step for jump in JumpDetector().judge(range(400), heights, np.ones(1))] == [320]


# -------------------------------------------------------------------------------------------- heights


def test_heights_are_those_of_plain_medians_however_the_steps_are_cut() -> None:
    random = np.random.default_rng(3)
    losses, norms = 3.0 + random.standard_normal(300), np.exp(random.standard_normal(300))
    whole, cut = SeriesHeights(), SeriesHeights()
    expected = heights_of(np.stack([losses, np.log(norms)], axis=1)).T
    assert np.allclose(whole.of(losses.tolist(), norms.tolist()), expected, equal_nan=True)
    parts = [cut.of(losses[i : i + 7].tolist(), norms[i : i + 7].tolist()) for i in range(0, 300, 7)]
    assert np.array_equal(np.concatenate(parts, axis=1), whole_again(losses, norms), equal_nan=True)


def whole_again(losses: Floats, norms: Floats) -> Floats:
    return SeriesHeights().of(losses.tolist(), norms.tolist())


@pytest.mark.parametrize("absent", [None, math.nan, math.inf])
def test_heights_of_what_is_not_known_are_nan_and_not_learnt(absent: float | None) -> None:
    apart = [1.0 + number / 64.0 for number in range(-12, 13) if number]
    both = [value for distance in apart for value in (2.0 - distance, 2.0 + distance)]
    losses = [value for at in range(0, 48, 3) for value in (*both[at : at + 3], absent)]
    heights = SeriesHeights()
    with np.errstate(all="ignore"):
        heights.of(losses, [0.0] * 64)
        after = heights.of([2.0, 3.0, absent], [1.0, 0.0, 1.0])
    assert after[0, :2].tolist() == [0.0, 1.0]  # median 2, MAD 1
    assert np.isnan(after[0, 2])
    assert np.isnan(after[1]).all()


def test_heights_of_a_loss_and_of_norms_that_stand_still_have_a_least_scale() -> None:
    heights = SeriesHeights()
    heights.of([2.0] * 64, [5.0] * 64)
    loss, norm = heights.of([2.0 + 2e-3], [5.0 * math.exp(8.0 * LEAST_LOG_MAD)])[:, 0]
    assert loss == pytest.approx(8.0)
    assert norm == pytest.approx(8.0)


# ------------------------------------------------------------------------------------- the whole bank


def training(seed: int, steps: int) -> list[Observation]:
    losses = 2.0 + 0.1 * np.random.default_rng(seed).standard_normal(steps)
    norms = lognormal(seed, steps=steps, layers=6)
    return [observe_norms(step, row, loss=losses[step]) for step, row in enumerate(norms)]


def test_bank_gives_the_same_jumps_step_by_step_and_in_batches() -> None:
    steps = training(2, 320)
    jumped = [
        observe_norms(s.step, s.grad_norm * (1.0 + 5.0 * (s.step >= 200)), loss=s.loss + (s.step >= 260))
        for s in steps
    ]
    single, batched = DetectorBank(DetectorThresholds()), DetectorBank(DetectorThresholds())
    for step in jumped:
        assert not single.observe(step)
    for start in range(0, 320, 24):
        assert not batched.observe_batch(as_batch(jumped[start : start + 24]))
    jumps = batched.take_jumps()
    assert single.take_jumps() == jumps
    assert {jump.series for jump in jumps} == set(range(8))
    assert {(jump.series == 0, jump.step) for jump in jumps} == {(False, 200), (True, 260)}
    assert batched.take_jumps() == []


def test_bank_that_begins_anew_knows_no_jump() -> None:
    steps = training(4, 200)
    bank = DetectorBank(DetectorThresholds())
    bank.observe_batch(as_batch(steps))
    for step in steps:
        bank.observe(observe_norms(step.step, step.grad_norm * 30.0, loss=step.loss + 30.0))
    assert bank.take_jumps() == []


# --------------------------------------------------------------------------------------- what is said


def watched(steps: list[Observation]) -> RecentSteps:
    recent = RecentSteps()
    for step in steps:
        recent.note(step)
    return recent


def test_what_jumped_first_is_named_with_its_levels() -> None:
    steps = [
        observe_norms(s, [0.1, 1.0, 2.0 if s < 50 else 3.0], loss=4.0 if s < 52 else 5.0) for s in range(57)
    ]
    said = watched(steps).note_jumps([Jump(52, 56, 0, 9.25), Jump(50, 54, 4, 8.0)])
    assert said == (
        "the gradient norm of `layers.2` jumped at step 50, from 2 to 3 (8 MADs), "
        "and stayed there up to step 54"
    )
    said = watched(steps).note_jumps([Jump(52, 56, 0, 9.25), Jump(52, 56, 3, 8.5), Jump(52, 56, 4, 8.0)])
    assert said == (
        "the loss jumped at step 52, from 4 to 5 (9.25 MADs), with the gradient of `layers.1` and 1 more "
        "layer, and stayed there up to step 56"
    )


def test_a_layer_of_rounding_noise_is_not_named() -> None:
    steps = [observe_norms(s, [1.0, 1e-9 if s < 50 else 3e-9], loss=4.0) for s in range(57)]
    assert watched(steps).note_jumps([Jump(50, 54, 3, 20.0)]) is None
    assert watched(steps).note_jumps([]) is None


def test_a_jump_that_is_no_alarm_is_told_of_as_what_moved_first() -> None:
    steps = [
        observe_norms(s, [1.0, 2.0 if s < 80 else 3.0], loss=4.0 if s < 90 else 400.0) for s in range(91)
    ]
    recent = watched(steps)
    assert chain(recent.explain(90)) is None
    recent.note_jumps([Jump(80, 84, 3, 10.0)])
    line = chain(recent.explain(90))
    assert line is not None
    assert line.endswith("gradients at step 80: `layers.1` 1.5x its median")
    assert "loss 100x its median at step 90" in line
    assert chain(recent.explain(200)) is None
