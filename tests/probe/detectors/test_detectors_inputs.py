"""What the model is called with: NaN, Inf, and sizes that this input has never had."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sampled_runs import NOISES, OPTIONS, find, input_sample, plain

from probe.detectors.inputs import InputDetector
from probe.detectors.sample import InputSample, Sample


def sized(sizes: Iterable[float], name: str = "x") -> list[Sample]:
    """One sample a step, whose input reaches these magnitudes."""
    return [
        plain(
            step,
            loss=1.0,
            total_grad_norm=1.0,
            inputs=InputSample(
                names=(name,),
                max_abs=np.array([size]),
                mean=np.zeros(1),
                std=np.ones(1),
                nan_count=np.zeros(1),
                inf_count=np.zeros(1),
            ),
        )
        for step, size in enumerate(sizes)
    ]


def alarms(samples: Iterable[Sample]) -> list[tuple[int, str, str]]:
    found = find(samples, InputDetector(OPTIONS))
    return [(step, finding.kind, finding.severity) for step, finding in found]


def test_input_forty_times_its_median_is_out_of_range() -> None:
    random = np.random.default_rng(0)
    sizes = 3.0 + 0.1 * random.random(60)
    sizes[40] = 120.0
    found = find(sized(sizes), InputDetector(OPTIONS))
    assert [(step, finding.subject) for step, finding in found] == [(40, "x")]
    assert found[0][1].value == 120.0
    assert found[0][1].threshold == pytest.approx(20 * np.median(sizes[:40]), rel=0.02)


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e3])
def test_input_range_does_not_depend_on_the_unit(scale: float) -> None:
    sizes = scale * np.array([1.8, 2.0, 2.2] * 10 + [90.0] + [2.0] * 10)
    assert alarms(sized(sizes)) == [(30, "input_out_of_range", "warning")]


HEALTHY = {
    "ten times": [1.0] * 50 + [10.0] * 50,
    "a few small ones at first": [1.0] * 3 + [1e3] * 50,
    "additive mask": [0.0, 1e9] * 50,
    "rare mask": [0.0] * 60 + [3.4e38] + [0.0] * 5,
    "mask with other stand-ins": [65504.0] * 30 + [3.4e38] * 30,
    "rare feature": [0.0, 0.0, 0.0, 1.0] * 30 + [100.0],
    "curriculum": list(np.geomspace(1.0, 1e4, 2000)),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_input_is_silent_on_what_is_healthy(name: str) -> None:
    assert alarms(sized(HEALTHY[name])) == []


def test_input_in_a_new_range_for_good_becomes_the_usual() -> None:
    found = alarms(sized([1.0] * 50 + [1e3] * 400))
    assert found[0][0] == 50
    assert found[-1][0] < 110


@pytest.mark.parametrize(("noise", "level"), [*((noise, 0.0) for noise in sorted(NOISES)), ("t3", 10.0)])
def test_input_noise_gives_at_most_one_alarm_in_ten_thousand(noise: str, level: float) -> None:
    sizes = np.abs(level + NOISES[noise](np.random.default_rng(1), 10_000)) + 1e-9
    assert len(alarms(sized(sizes))) <= 1


@settings(max_examples=25, deadline=None)
@given(at=st.integers(30, 150), mads=st.floats(8.0, 40.0), seed=st.integers(0, 1000))
def test_input_step_of_eight_mads_is_found_within_five_samples(at: int, mads: float, seed: int) -> None:
    """In the logarithm, of a step that is clear of the factor, 20, by more than its own noise."""
    logs = np.random.default_rng(seed).standard_normal(at + 5)
    mad = np.median(np.abs(logs[:at] - np.median(logs[:at])))
    assume(mads * mad > math.log(OPTIONS.input_factor) + 2.0)
    logs[at:] += mads * mad
    found = [step for step, *_ in alarms(sized(np.exp(logs))) if step >= at]
    assert found and found[0] <= at + 4


def test_absolute_limit_holds_from_the_first_step_on() -> None:
    detector = InputDetector(replace(OPTIONS, input_limit=5.0))
    found = find(sized([4.0, 6.0, 4.0]), detector)
    assert [(step, finding.threshold) for step, finding in found] == [(1, 5.0)]


# ------------------------------------------------------------------------------------------ NaN and Inf


def given_to(values: list[np.ndarray], name: str = "x", **fields: object) -> list[Sample]:
    plain_fields = {"loss": 1.0, "total_grad_norm": 1.0} | fields
    return [plain(step, inputs=input_sample({name: v}), **plain_fields) for step, v in enumerate(values)]


OKAY = np.array([1.0, 2.0])


def test_nan_in_the_input_is_found_at_its_step() -> None:
    samples = given_to([OKAY, OKAY, np.array([1.0, math.nan])])
    assert alarms(samples) == [(2, "nonfinite_input", "warning")]


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        (0, "though the loss is finite"),
        # A loss that the script skipped, or two calls for one loss: which of them is not known.
        (1, "though the loss that backward got is finite; 1 call of the model in this step had no backward"),
        (3, "though the loss that backward got is finite; 3 calls of the model in this step had no backward"),
    ],
)
def test_loss_that_is_called_finite_is_the_one_that_backward_got(calls: int, said: str) -> None:
    samples = given_to([np.array([1.0, math.inf])], calls_without_backward=calls)
    ((_, finding),) = find(samples, InputDetector(OPTIONS))
    assert said in finding.message
    assert ("the loss is finite" in finding.message) == (calls == 0)


@pytest.mark.parametrize("fields", [{"loss": None}, {"total_grad_norm": math.nan}])
def test_nan_in_the_input_that_ruins_the_step_is_critical(fields: dict[str, object]) -> None:
    samples = given_to([np.array([1.0, math.inf])], **fields)
    assert alarms(samples) == [(0, "nonfinite_input", "critical")]


def test_nan_for_missing_values_that_the_model_handles_is_information() -> None:
    samples = given_to([np.array([1.0, math.nan])] * 5)
    assert {severity for *_, severity in alarms(samples)} == {"info"}


@pytest.mark.parametrize("name", ["attn_mask", "x"])
def test_minus_infinity_of_a_mask_is_silent(name: str) -> None:
    samples = given_to([np.array([0.0, 0.0])] * 3 + [np.array([0.0, -math.inf])] * 5, name)
    assert alarms(samples) == []


def held(batches: Iterable[np.ndarray]) -> list[Sample]:
    """One sample a step of what these arrays hold."""
    return [
        replace(
            sample,
            inputs=replace(
                sample.inputs,
                max_abs=np.array([np.abs(batch).max()]),
                mean=np.array([batch.mean()]),
                std=np.array([batch.std()]),
            ),
        )
        for sample, batch in zip(sized([1.0] * 1000), batches, strict=False)
        if sample.inputs is not None
    ]


def batches_of(blank: Iterable[int], value: float, *, steps: int = 60) -> list[np.ndarray]:
    """Images of 16 values each, those of some steps all of one value."""
    random, empty = np.random.default_rng(5), set(blank)
    return [np.full(16, value) if step in empty else random.random(16) for step in range(steps)]


@pytest.mark.parametrize("value", [0.0, 0.1, -3.0])
@pytest.mark.parametrize("first", [10, 40])
def test_images_that_went_blank_are_out_of_range_at_the_second(first: int, value: float) -> None:
    found = alarms(held(batches_of(range(first, 60), value)))
    assert found[0] == (first + 1, "input_out_of_range", "warning")


BLANK_AT_TIMES = {
    "dropped conditions": batches_of([25, 26, 27, 40, 41], 0.0)[1:24] + batches_of([3, 9, 10], 0.0),
    "blank from the start": [np.zeros(16)] * 5 + batches_of([], 0.0) + [np.zeros(16)] * 9,
    "one blank batch": batches_of([30], 0.0),
    "a mask of ones": [np.array([1.0, 1.0, 1.0, 0.0])] * 40 + [np.ones(4)] * 20,
    "one number a batch": [np.array([0.3 * step]) for step in range(60)],
}


@pytest.mark.parametrize("name", BLANK_AT_TIMES)
def test_inputs_that_hold_one_number_at_times_are_silent(name: str) -> None:
    assert alarms(held(BLANK_AT_TIMES[name])) == []


def test_nan_of_two_measurements_lasts_until_the_next_one_and_of_one_does_not() -> None:
    random = np.random.default_rng(0)
    measured = sized(3.0 + 0.1 * random.random(61))
    bad = {20, 40, 50}
    samples = []
    for sample in measured:
        assert sample.inputs is not None
        if sample.step % 10:
            sample = replace(sample, inputs=None)
        elif sample.step in bad:
            sample = replace(sample, inputs=replace(sample.inputs, nan_count=np.ones(1)))
        samples.append(sample)
    assert [step for step, *_ in alarms(samples)] == [20, 40, *range(50, 60)]
