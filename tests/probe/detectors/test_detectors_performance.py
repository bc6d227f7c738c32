"""Steps that become slow, and runs of which too many steps go wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from sampled_runs import NOISES, OPTIONS, find, plain
from thinned import some

from probe.detectors.performance import AnomalyRateDetector, SlowdownDetector
from probe.detectors.sample import Sample


def timed(
    seconds: Sequence[float] | np.ndarray,
    batch: Sequence[float] | None = None,
    every: int = 1,
    shares: Sequence[float] | np.ndarray | None = None,
) -> list[Sample]:
    """A sample every so many steps, with the time that each step took and the share with a processor."""
    now, samples = 1e9, []
    for step, taken in enumerate(seconds):
        now += float(taken)
        if step % every == 0:
            size = 32.0 if batch is None else batch[step]
            share = 1.0 if shares is None else float(shares[step])
            samples.append(plain(step, time=now, scalars={"samples": size}, processor_share=share))
    return samples


def slow(samples: list[Sample]) -> list[tuple[int, str]]:
    found = find(samples, SlowdownDetector(OPTIONS))
    return [(step, finding.severity) for step, finding in found]


def jitter(count: int, level: float = 0.1, seed: int = 0) -> np.ndarray:
    return level * np.random.default_rng(seed).lognormal(0.0, 0.1, count)


@pytest.mark.parametrize("every", [1, 10])
def test_slowdown_to_three_times_is_a_warning_after_ten_seconds(every: int) -> None:
    at = 1000
    seconds = np.concatenate([jitter(at), jitter(600, 0.3)])
    found = slow(timed(seconds, every=every))
    assert found[0][1] == "warning"
    # 50 steps take 15 s, and four in five of them must be slow.
    assert at + 39 <= found[0][0] <= at + 120


def test_profiled_steps_are_no_slowdown() -> None:
    seconds = np.concatenate([jitter(300), jitter(100, 1.0), jitter(300)])
    samples = timed(seconds)
    for sample in samples[300:401]:
        sample.scalars["profiled"] = 1.0  # type: ignore[index]
    assert slow(timed(seconds)) and not slow(samples)


def test_slowdown_by_a_little_more_than_half_is_information() -> None:
    found = slow(timed(np.concatenate([jitter(300), jitter(300, 0.18)])))
    assert {severity for _, severity in found} == {"info"}


def test_slowdown_that_creeps_in_is_found() -> None:
    seconds = 0.1 * (1.0 + np.arange(3000) / 1000.0)
    found = slow(timed(seconds))
    assert {"info", "warning"} == {severity for _, severity in found}


def test_slowdown_for_a_few_seconds_is_silent() -> None:
    seconds = jitter(1000)
    seconds[400:420] *= 5.0
    assert slow(timed(seconds)) == []


def test_slowdown_by_evaluations_and_checkpoints_is_silent() -> None:
    seconds = jitter(2000)
    seconds[::20] += 3.0
    assert slow(timed(seconds)) == []


def test_slowdown_by_a_larger_batch_is_silent() -> None:
    batch = [32.0] * 300 + [96.0] * 300
    assert slow(timed(np.concatenate([jitter(300), jitter(300, 0.3)]), batch)) == []


def test_slowdown_by_other_programs_is_information_with_that_reason() -> None:
    """Steps take four times as long from the 300th on, and for three quarters of it wait for a processor."""
    seconds = np.concatenate([jitter(300), jitter(600, 0.4)])
    shares = np.concatenate([np.ones(300), np.full(600, 0.25)])
    found = find(timed(seconds, shares=shares), SlowdownDetector(OPTIONS))
    assert {finding.severity for _, finding in found} == {"info"}
    assert found[0][1].message.endswith(". Other programs have the processors: the training waits for them")
    assert found[0][1].value == pytest.approx(0.4, rel=0.1)


def test_slowdown_that_creeps_in_as_other_programs_do_is_information() -> None:
    seconds = 0.1 * (1.0 + np.arange(3000) / 1000.0)
    assert {severity for _, severity in slow(timed(seconds, shares=0.1 / seconds))} == {"info"}


def test_slowdown_from_the_first_step_on_as_other_programs_come_is_information() -> None:
    """Steps of 5 ms: too short a run for a usual time of a step."""
    seconds = 0.005 * (1.0 + np.arange(700) / 200.0)
    found = find(timed(seconds, every=4, shares=0.005 / seconds), SlowdownDetector(OPTIONS))
    assert {finding.severity for _, finding in found} == {"info"}
    assert found[0][1].message.startswith("Steps take longer and longer")


def test_slowdown_after_other_programs_have_gone_is_silent() -> None:
    """What a step takes without waits is the same; the whole of it is less."""
    seconds = np.concatenate([jitter(300, 0.4), jitter(600)])
    shares = np.concatenate([np.full(300, 0.05), np.ones(600)])
    assert slow(timed(seconds, shares=shares)) == []


def test_slowdown_of_the_training_itself_on_a_busy_machine_is_found_and_says_so() -> None:
    seconds = np.concatenate([jitter(300), jitter(300, 0.6)])
    samples = timed(seconds, shares=np.concatenate([np.ones(300), np.full(300, 0.5)]))
    step, finding = find(samples, SlowdownDetector(OPTIONS))[-1]
    assert (finding.severity, step > 300) == ("warning", True)
    assert finding.value == pytest.approx(0.6, rel=0.1)
    assert finding.baseline is not None
    assert finding.baseline["least_without_waits"] == pytest.approx(0.3, rel=0.1)
    why = "; its threads also wait for processors, but it is slower even without these waits"
    assert finding.message.endswith(why)


@pytest.mark.parametrize("is_sudden", [True, False])
def test_steps_that_compute_twice_as_long_beside_others_are_no_warning(is_sudden: bool) -> None:
    """The others empty the caches: a training at `nice 19` computes twice as long in the same step."""
    own = np.repeat([0.1, 0.22], 300) if is_sudden else np.linspace(0.1, 0.22, 600)
    waits = np.repeat([0.0, 0.4], 300) if is_sudden else np.linspace(0.0, 0.4, 600)
    found = slow(timed(own + waits, shares=own / (own + waits)))
    assert {severity for _, severity in found} == {"info"}


@pytest.mark.parametrize("noise", sorted(NOISES))
def test_slowdown_in_noise_is_silent(noise: str) -> None:
    random = np.random.default_rng(0)
    seconds = 0.1 * np.abs(1.0 + 0.3 * NOISES[noise](random, 10_000)) + 1e-4
    assert slow(timed(seconds)) == []


def test_slowdown_does_not_depend_on_the_unit_of_a_step() -> None:
    seconds = np.concatenate([jitter(300), jitter(300, 0.3)])
    assert slow(timed(seconds))[0] == slow(timed(4.0 * seconds))[0]


def anomalous(steps: int, bad: Sequence[int]) -> list[int]:
    """Steps at which the rate is high, where those of `bad` have had a warning."""
    detector = AnomalyRateDetector(OPTIONS)
    found = []
    for step in range(steps):
        if step in bad:
            detector.note(step)
            detector.note(step)
        found += [step for _ in detector.observe(plain(step))]
    return found


def test_anomaly_rate_above_a_tenth_is_found() -> None:
    assert anomalous(400, range(0, 400, 5))[0] == 49


def test_anomaly_rate_counts_the_last_two_hundred_steps() -> None:
    # 21 of 200 are more than a tenth, until the first of them is 200 steps old.
    found = anomalous(600, range(200, 221))
    assert found == list(range(220, 400))


def test_anomaly_rate_of_a_tenth_is_silent() -> None:
    assert anomalous(1000, range(9, 1000, 10)) == []


@pytest.mark.parametrize("order", [1, -1], ids=["in order", "backwards"])
def test_anomaly_rate_counts_no_step_after_the_one_that_is_judged(order: int) -> None:
    """Steps are judged in rows, and what they had is known before the samples among them are judged."""
    detector = AnomalyRateDetector(OPTIONS)
    found = [finding for step in range(100) for finding in detector.observe(plain(step))]
    for step in range(100, 140)[::order]:
        detector.note(step)
    shares = [finding.value for step in range(100, 140) for finding in detector.observe(plain(step))]
    assert found == []
    # Eleven of 111 steps are no tenth, 12 of 112 are.
    assert shares == pytest.approx([count / (100 + count) for count in range(12, 41)])


def test_anomaly_rate_knows_steps_whose_verdict_came_late() -> None:
    detector = AnomalyRateDetector(OPTIONS)
    detector.observe(plain(0))
    for step in [*range(60, 80), *range(20, 40), 20]:
        detector.note(step)
    (finding,) = detector.observe(plain(100))
    assert finding.value == pytest.approx(40 / 101)
    (finding,) = detector.observe(plain(230))
    assert finding.value == pytest.approx(29 / 200)


@pytest.mark.parametrize("noted", [(30, 0), (30, 10), (4, 30), (0, 8)])
def test_anomaly_rate_is_the_same_whenever_verdicts_come(noted: tuple[int, int]) -> None:
    before, after = noted
    late, early = AnomalyRateDetector(OPTIONS), AnomalyRateDetector(OPTIONS)
    assert late.again() == []
    for step in range(100):
        late.observe(plain(step))
        early.observe(plain(step))
    for step in range(100 - before - after, 100):
        early.note(step)
        late.note(step)
        if step < 100 - after:
            late.observe(plain(99))
    assert late.again() == early.observe(plain(99)) == early.again()


@pytest.mark.parametrize("waiting", [1, 12, 60])
def test_anomaly_rate_counts_no_step_that_waits_to_be_judged(waiting: int) -> None:
    """The finding at each step is that of the newest judged step, as if those after it had not come."""
    bad = set(range(60, 75)) | set(range(250, 300, 3))
    late, early = AnomalyRateDetector(OPTIONS), AnomalyRateDetector(OPTIONS)
    found: list[list[float]] = [[], []]
    for step in range(600):
        judged = step - waiting
        if step in bad:
            early.note(step)
        if judged in bad:
            late.note(judged)
        late.unjudged_from = judged + 1
        found[0] += [finding.value for finding in early.observe(plain(step))]
        found[1] += [finding.value for finding in late.observe(plain(step))]
    assert found[0] and found[0] == found[1]


def test_anomaly_rate_forgets_steps_that_come_again() -> None:
    detector = AnomalyRateDetector(OPTIONS)
    for step in range(100):
        detector.note(step)
    detector.observe(plain(100))
    assert [finding for step in range(60) for finding in detector.observe(plain(step))] == []


LONGER = {
    "twice as long": 0.01 * (1.0 + np.arange(400) / 100.0),
    "in proportion to the steps so far": 0.001 * np.arange(1, 401),
}


@pytest.mark.parametrize("name", LONGER)
def test_steps_that_take_longer_and_longer_are_found_within_seconds(name: str) -> None:
    seconds = LONGER[name] * jitter(400) / jitter(400).mean()
    found = slow(timed(seconds))
    assert found
    assert seconds[: found[0][0]].sum() < 10.0


@pytest.mark.parametrize("factor", [5.0, 10.0])
def test_short_steps_that_take_longer_are_found_with_a_sample_in_twenty(factor: float) -> None:
    seconds = 0.0012 * (1.0 + factor * np.arange(350) / 350.0) * jitter(350, 1.0)
    found = slow(timed(seconds, every=20))
    assert found
    assert {severity for _, severity in found} == {"warning"}


@pytest.mark.parametrize("seed", some(range(20), 5))
@pytest.mark.parametrize("scatter", [0.2, 0.5, 1.0])
def test_short_steps_that_scatter_are_silent_with_a_sample_in_twenty(seed: int, scatter: float) -> None:
    # Scatter of whole stretches, as other programs make it.
    noise = np.random.default_rng(seed).standard_normal(100).repeat(20)
    assert slow(timed(0.004 * np.exp(scatter * noise), every=20)) == []


@pytest.mark.parametrize("seed", some(range(20), 5))
def test_steps_that_scatter_by_half_take_no_longer(seed: int) -> None:
    seconds = 0.02 * np.exp(0.5 * np.random.default_rng(seed).standard_normal(500))
    assert slow(timed(seconds)) == []


def test_steps_that_grow_with_their_batch_take_no_longer() -> None:
    growth = 1.0 + np.arange(400) // 50
    assert slow(timed(jitter(400, 0.02) * growth, list(32.0 * growth))) == []


def test_steps_that_grow_with_their_forwards_take_no_longer() -> None:
    growth = 1.0 + np.arange(400) // 50
    samples = timed(jitter(400, 0.02) * growth, [1.0] * 400)
    assert slow(samples) != []
    episodes = [replace(one, input_elements=int(4 * growth[one.step])) for one in samples]
    assert slow(episodes) == []


@pytest.mark.parametrize("every", [1, 10])
def test_time_that_is_the_probes_own_is_no_slowdown(every: int) -> None:
    seconds = np.concatenate([jitter(400, 0.05), jitter(600, 0.2)])
    samples = timed(seconds, every=every)
    assert slow(samples)
    own = [replace(one, own_s=0.15 * every if one.step > 400 else 0.0) for one in samples]
    assert slow(own) == []


class _Thorough(SlowdownDetector):
    """Looks at the last stretch at every sample, however few of the recent ones are slow."""

    def _is_slow(self, interval: tuple[int, int, float, float]) -> bool:
        return True


@pytest.mark.parametrize("seed", some(range(40), 10))
def test_slowdown_is_the_same_where_the_last_stretch_is_looked_at_every_time(seed: int) -> None:
    random = np.random.default_rng(seed)
    levels = random.choice([0.1, 0.1, 0.16, 0.3, 0.9], size=12)
    seconds = np.concatenate(
        [random.lognormal(np.log(level), random.choice([0.05, 0.5]), 120) for level in levels]
    )
    sizes = np.repeat(random.choice([32.0, 32.0, 64.0], size=12), 120).tolist()
    samples = timed(seconds, sizes, every=int(random.choice([1, 3])))
    quick, thorough = find(samples, SlowdownDetector(OPTIONS)), find(samples, _Thorough(OPTIONS))
    assert [(step, one) for step, one in quick] == [(step, one) for step, one in thorough]


def beside_others(own_s: np.ndarray, seed: int) -> list[tuple[int, str]]:
    """Steps that also wait, for times that come and go; a sample in ten."""
    random = np.random.default_rng(seed)
    waits = 0.01 * np.repeat(random.lognormal(0.0, 0.7, len(own_s) // 20 + 1), 20)[: len(own_s)]
    own = own_s * jitter(len(own_s), 1.0, seed)
    return slow(timed(own + waits, every=10, shares=own / (own + waits)))


@pytest.mark.parametrize("seed", range(5))
def test_steps_that_take_longer_and_longer_warn_beside_other_programs(seed: int) -> None:
    assert "warning" in {severity for _, severity in beside_others(np.linspace(0.002, 0.03, 350), seed)}


@pytest.mark.parametrize("seed", some(range(40), 10))
def test_steps_that_only_wait_longer_and_longer_are_no_warning(seed: int) -> None:
    rising = 0.002 * jitter(350, 1.0, seed)
    others = np.linspace(0.0, 0.04, 350) * jitter(350, 1.0, seed + 100)
    found = slow(timed(rising + others, every=10, shares=rising / (rising + others)))
    assert "warning" not in {severity for _, severity in found}
    assert beside_others(np.full(350, 0.004), seed) == []
