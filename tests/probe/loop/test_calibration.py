"""`Calibration`: the interval covers the true added time, whatever the noise, and is hidden while wide."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from torch import nn

import probe
from probe.attach.watched_model import WatchedModel
from probe.loop.calibration import NEIGHBOURS, PLAIN_EVERY, Calibration, describe
from probe.settings.levels import LEVEL_FEATURES
from probe.step.frames import MeasuredStep
from probe.step.losses import StepLoss
from probe.step.step_meters import StepTime

Floats = npt.NDArray[np.float64]
STEP_NS = 40e6


def gaussian(random: np.random.Generator, steps: int) -> Floats:
    return np.exp(0.04 * random.standard_normal(steps))


def skewed(random: np.random.Generator, steps: int) -> Floats:
    return 1 + 0.05 * random.exponential(size=steps)


def correlated(random: np.random.Generator, steps: int) -> Floats:
    shocks, noise = random.standard_normal(steps), np.zeros(steps)
    for step in range(1, steps):
        noise[step] = 0.8 * noise[step - 1] + 0.6 * shocks[step]
    return np.exp(0.04 * noise)


def two_modes(random: np.random.Generator, steps: int) -> Floats:
    return np.where(random.random(steps) < 0.3, 1.3, 1.0) * gaussian(random, steps)


def calibrated(
    noise: Callable[[np.random.Generator, int], Floats],
    *,
    seed: int = 0,
    added: float,
    steps: int,
    limit: float = 1.0,
) -> Calibration:
    """Follow a run that becomes 30 % slower, with 2 % outliers; every step but the plain ones has more."""
    random = np.random.default_rng(seed)
    times = STEP_NS * noise(random, steps) * np.linspace(1.0, 1.3, steps)
    outliers = random.random(steps) < 0.02
    times[outliers] *= random.uniform(1.5, 30.0, outliers.sum())
    calibration = Calibration(limit)
    for step, ns in enumerate(times):
        whole = ns if calibration.is_plain(step) else ns * (1 + added)
        calibration.note(step, int(whole), is_ordinary=step % 10 != 0)
    return calibration


def finished_step(model: WatchedModel, step: int) -> MeasuredStep:
    gradients = model.unknown_gradients()
    return MeasuredStep(
        step=step,
        time=0.0,
        layout=model.layout,
        stage="local",
        gradients=gradients,
        total_norm=None,
        parameter_norm=None,
        loss=StepLoss(None, None),
        samples=0,
    )


@pytest.mark.parametrize("noise", [gaussian, skewed, correlated, two_modes])
@pytest.mark.parametrize("added", [0.0, 0.02])
def test_interval_covers_the_true_added_time_in_about_95_of_100_runs(
    noise: Callable[[np.random.Generator, int], Floats], added: float
) -> None:
    found = [calibrated(noise, seed=seed, added=added, steps=5_000).interval() for seed in range(60)]
    covered = [abs(interval[0] - added) <= interval[1] for interval in found if interval is not None]
    assert len(covered) == 60
    # 95 %, less three standard deviations of 60 draws.
    assert sum(covered) >= 52


@pytest.mark.parametrize("noise", [gaussian, skewed])
def test_interval_of_a_long_run_excludes_no_overhead_and_twice_the_overhead(
    noise: Callable[[np.random.Generator, int], Floats],
) -> None:
    interval = calibrated(noise, added=0.03, steps=40_000).interval()
    assert interval is not None
    # 200 differences, each of a single plain step: 1.96 * 0.05 / sqrt(200) = 0.007.
    assert interval[1] < 0.009
    assert interval[0] - interval[1] > 0
    assert interval[0] + interval[1] < 0.06


def test_interval_becomes_narrower_with_the_root_of_the_steps() -> None:
    short = [calibrated(gaussian, seed=seed, added=0.01, steps=4_000).interval() for seed in range(10)]
    long = [calibrated(gaussian, seed=seed, added=0.01, steps=16_000).interval() for seed in range(10)]
    widths = [np.median([found[1] for found in runs if found]) for runs in (short, long)]
    assert 1.6 < widths[0] / widths[1] < 3.0


def test_interval_is_hidden_until_it_is_narrower_than_the_limit() -> None:
    wide = calibrated(gaussian, added=0.01, steps=4_000).interval()
    assert wide is not None
    assert calibrated(gaussian, added=0.01, steps=4_000, limit=wide[1]).interval() is None
    assert calibrated(gaussian, added=0.01, steps=4_000, limit=wide[1] * 1.01).interval() == wide
    assert calibrated(gaussian, added=0.01, steps=4_000, limit=0.005).interval() is None
    assert calibrated(gaussian, added=0.01, steps=3 * PLAIN_EVERY).interval() is None


def test_a_frame_adds_what_plain_steps_keep_and_what_is_sampled(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    run = probe.watch(model, spool=tmp_path, connect="", overhead_limit=0.5)
    assert run._tracker is not None
    schedule = run._tracker._schedule
    random, own, sampled = np.random.default_rng(0), 0.004, 0.02
    for step, noise in enumerate(gaussian(random, 6_000)):
        schedule.begin_step(step)
        whole, mine = STEP_NS * noise * (1.0 if schedule.is_plain else 1.01), own
        if schedule.features.parameter_norms:
            schedule.charge("parameter_norms", int(sampled * STEP_NS))
            mine += sampled
        measured = finished_step(run._tracker._model, step)
        schedule.end_step(measured, StepTime(int(whole), int(mine * STEP_NS), failures=0))
    run.close()
    assert len(list(model.parameters())) == 2
    interval = schedule._calibration.interval()
    assert interval is not None
    period = LEVEL_FEATURES["basic"].parameter_norms
    # What a plain step keeps, here as much as every step, is not in the comparison.
    expected = interval[0] + own + sampled / period
    assert measured.scalars["step_time_added"] == pytest.approx(expected, abs=3e-4)
    assert measured.scalars["step_time_added_half_width"] == interval[1]


def test_one_step_in_each_two_hundred_is_plain_at_changing_places() -> None:
    calibration = Calibration(0.02)
    plain = np.array([step for step in range(100 * PLAIN_EVERY) if calibration.is_plain(step)])
    assert list(plain // PLAIN_EVERY) == list(range(1, 100))
    places = plain % PLAIN_EVERY
    assert len(set(places)) > 50
    assert len(set(places % 10)) == 10


def test_no_step_is_plain_without_a_limit() -> None:
    calibration = Calibration(0.0)
    assert not any(calibration.is_plain(step) for step in range(1_000))


def test_plain_steps_do_not_touch_the_default_random_generators() -> None:
    import random

    before, numpy_before = random.getstate(), np.random.get_state()[1].copy()
    calibrated(gaussian, added=0.01, steps=2_000)
    assert random.getstate() == before
    assert np.array_equal(np.random.get_state()[1], numpy_before)


def places(calibration: Calibration, blocks: int) -> Iterator[tuple[int, int, int]]:
    """Yield (block, step, place relative to the block's plain step)."""
    for block in range(1, blocks + 1):
        steps = range(block * PLAIN_EVERY, (block + 1) * PLAIN_EVERY)
        plain = next(step for step in steps if calibration.is_plain(step))
        yield from ((block, step, step - plain) for step in steps)


def test_neighbours_with_sampled_features_are_left_out() -> None:
    calibration = Calibration(1.0)
    for _, step, place in places(calibration, 20):
        is_ordinary = place not in NEIGHBOURS[:4]
        factor = 1.0 if place == 0 else 1.05 if is_ordinary else 3.0
        calibration.note(step, int(STEP_NS * factor), is_ordinary=is_ordinary)
    assert calibration.interval() == pytest.approx((0.05, 0.0), abs=1e-6)


@pytest.mark.parametrize(("factor", "is_ordinary"), [(100.0, True), (3.0, False)], ids=["pause", "replay"])
@pytest.mark.parametrize("at", [(0,), NEIGHBOURS[1:3]], ids=["plain", "neighbours"])
def test_pauses_and_replays_are_left_out(factor: float, is_ordinary: bool, at: tuple[int, ...]) -> None:
    calibration = Calibration(1.0)
    for block, step, place in places(calibration, 20):
        # Of the neighbours only four are there at all; the fault is in nine blocks of ten.
        is_faulty = place in at and block % 10 != 0
        ns = STEP_NS * (factor if is_faulty else 1.0 if place == 0 else 1.05)
        usable = place not in NEIGHBOURS[4:] and (is_ordinary or not is_faulty)
        calibration.note(step, int(ns), is_ordinary=usable)
    found = calibration.interval()
    if at == (0,):
        assert found is None, "two blocks are too few"
    else:
        assert found == pytest.approx((0.05, 0.0), abs=1e-6)


def test_step_numbers_that_jump_break_no_pair() -> None:
    calibration = Calibration(1.0)
    for step in range(0, 40 * PLAIN_EVERY, 2):
        calibration.note(step, int(STEP_NS))
    assert calibration.interval() is None


def test_restart_forgets_what_was_measured_before() -> None:
    calibration = calibrated(gaussian, added=0.01, steps=5_000)
    calibration.restart(1.0)
    assert calibration.interval() is None


def test_description_names_calls_and_step_time_once_it_is_known() -> None:
    assert describe(0.004, (0.003, 0.009)) == "probe 0.4 % (calls), step time +0.3 % +- 0.9"
    assert describe(0.0213, (-0.0012, 0.004)) == "probe 2.1 % (calls), step time -0.1 % +- 0.4"
    assert describe(0.004, None) == "probe 0.4 % (calls)"
