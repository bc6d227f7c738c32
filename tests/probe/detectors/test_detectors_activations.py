"""Dead units, saturated layers, NaN in outputs, and outputs that are always the same."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampled_runs import OPTIONS, find, module_sample, plain

from probe.detectors.activation_values import DegenerateOutputDetector, NonFiniteActivationDetector
from probe.detectors.activations import DeadUnitDetector, SaturationDetector, innermost, returned_by_model
from probe.detectors.base import Finding
from probe.detectors.sample import Sample, SampleDetector

TYPES = ("Net", "Linear", "ReLU", "Linear")
NAMES = ("", "a", "a_act", "head")
NAN = math.nan


def steps_of(columns: Iterable[dict[str, Any]], types: Sequence[str] = TYPES, **values: Any) -> list[Sample]:
    """One sample a step with these columns."""
    return [
        plain(step, modules=module_sample(types, NAMES, **given), **({"loss": 1.0} | values))
        for step, given in enumerate(columns)
    ]


def found_by(detector: SampleDetector, samples: Iterable[Sample]) -> list[tuple[int, Finding]]:
    return find(samples, detector)


def places(found: list[tuple[int, Finding]]) -> list[tuple[int, str, str]]:
    return [(step, finding.severity, finding.subject) for step, finding in found]


# -------------------------------------------------------------------------------------------- dead units


def dead(
    shares: Iterable[float], *, type_: str = "ReLU", units: float = 64.0, zeros: float = 0.6
) -> list[Sample]:
    """Dead share of the third module, step by step."""
    return steps_of(
        (
            {
                "units": [10.0, units, units, 10.0],
                "dead_units": [0.0, 0.0, share * units, 0.0],
                "activation_zero_fraction": [0.0, 0.0, max(zeros, min(share, 0.99)), 0.0],
            }
            for share in shares
        ),
        types=("Net", "Linear", type_, "Linear"),
    )


def test_dead_units_that_become_the_most_are_found_at_the_second_sample() -> None:
    found = found_by(DeadUnitDetector(OPTIONS), dead([NAN] * 5 + [0.05] * 10 + [0.9] * 5))
    assert places(found)[0] == (16, "warning", "a_act")
    assert found[0][1].value == pytest.approx(0.9, abs=0.02)
    assert found[0][1].baseline == {"lowest": pytest.approx(0.05)}


def test_dead_relu_from_the_start_is_found() -> None:
    assert places(found_by(DeadUnitDetector(OPTIONS), dead([0.95] * 5)))[0] == (1, "warning", "a_act")


def test_dead_relu_that_gives_only_zeros_is_found_before_its_units_are_counted() -> None:
    columns = {"units": [10.0, 64.0, 64.0, 10.0], "activation_zero_fraction": [0.0, 0.0, 1.0, 0.0]}
    found = found_by(DeadUnitDetector(OPTIONS), steps_of([columns] * 4))
    assert places(found)[0] == (2, "warning", "a_act")
    assert found[0][1].message.startswith("64 of 64 units of `a_act` (ReLU) give nothing but 0 at step 2")


HEALTHY_DEAD = {
    "60 % zeros": dead([0.0] * 50),
    "half of the units": dead([0.1] * 10 + [0.5] * 40),
    "grown by a little": dead([0.6] * 10 + [0.85] * 40),
    "few units": dead([0.0] * 10 + [1.0] * 40, units=4.0),
    "switched-off adapter": dead([1.0] * 50, type_="Linear", zeros=1.0),
    "once": dead([0.0] * 10 + [0.95] + [0.0] * 10),
}


@pytest.mark.parametrize("name", HEALTHY_DEAD)
def test_dead_units_are_silent_on_what_is_healthy(name: str) -> None:
    assert places(found_by(DeadUnitDetector(OPTIONS), HEALTHY_DEAD[name])) == []


def test_dead_units_in_noise_are_silent() -> None:
    random = np.random.default_rng(0)
    shares = np.clip(0.3 + 0.1 * random.standard_t(3, 3_000), 0.0, 0.7)
    assert places(found_by(DeadUnitDetector(OPTIONS), dead(shares))) == []


def test_containers_are_left_out_for_what_they_contain() -> None:
    names = ("", "block", "block.act", "other")
    assert innermost(names, np.array([0, 1, 2, 3])) == [2, 3]


# -------------------------------------------------------------------------------------------- saturation


def saturated(
    shares: Iterable[float],
    *,
    type_: str = "Sigmoid",
    returned: bool = False,
    units: float = 64.0,
    spread: float = 0.0,
) -> list[Sample]:
    """Saturated share of the third module; `returned` makes it the model's output."""
    random = np.random.default_rng(0)
    columns = []
    for share in shares:
        own, other, last = random.random(3)
        columns.append(
            {
                "units": [10.0, units, units, 10.0],
                "activation_rms": [own if returned else last, other, own, last],
                "activation_std": [spread if returned else 0.1, 0.1, spread, 0.1],
                "activation_saturated_fraction": [share if returned else 0.0, 0.0, share, 0.0],
            }
        )
    return steps_of(columns, types=("Net", "Linear", type_, "Linear"))


@pytest.mark.parametrize("type_", ["Sigmoid", "Tanh", "LSTM"])
def test_saturation_from_the_start_is_found(type_: str) -> None:
    found = found_by(SaturationDetector(OPTIONS), saturated([0.98] * 5, type_=type_))
    assert places(found)[0] == (2, "warning", "a_act")


@pytest.mark.parametrize("type_", ["Tanh", "RNN"])
def test_saturation_at_both_limits_from_the_start_is_found_from_six_tenths_on(type_: str) -> None:
    """Normal pre-activations with a deviation of 6: 62 % are beyond 3, where |tanh| is above 0.995."""
    found = found_by(SaturationDetector(OPTIONS), saturated([0.62] * 5, type_=type_, spread=0.9))
    assert places(found)[0] == (2, "warning", "a_act")


@pytest.mark.parametrize("type_", ["Sigmoid", "Hardtanh", "ReLU6"])
def test_saturation_that_comes_is_found_at_the_third_sample(type_: str) -> None:
    found = found_by(SaturationDetector(OPTIONS), saturated([0.2] * 10 + [0.95] * 5, type_=type_))
    assert places(found)[0] == (12, "warning", "a_act")


HEALTHY_SATURATED = {
    "output of the model": saturated([0.2] * 10 + [0.99] * 20, returned=True),
    "half": saturated([0.2] * 10 + [0.6] * 20),
    "half of a tanh from the start": saturated([0.5] * 20, type_="Tanh", spread=0.9),
    "a tanh that becomes decided": saturated([0.1] * 3 + [0.7] * 20, type_="Tanh", spread=0.9),
    "gates closed on purpose": saturated([0.8] * 20, type_="Tanh", spread=0.1),
    "sigmoids with noise of low temperature": saturated([0.75] * 20, spread=0.45),
    "output at both limits": saturated([0.7] * 20, type_="Tanh", spread=0.9, returned=True),
    "hard from the start": saturated([0.95] * 20, type_="Hardsigmoid"),
    "other activation": saturated([0.2] * 10 + [0.99] * 20, type_="GELU"),
    "few units": saturated([0.2] * 10 + [0.99] * 20, units=2.0),
    "not for long": saturated(([0.2] * 5 + [0.95] * 2) * 10),
}


@pytest.mark.parametrize("name", HEALTHY_SATURATED)
def test_saturation_is_silent_on_what_is_healthy(name: str) -> None:
    assert places(found_by(SaturationDetector(OPTIONS), HEALTHY_SATURATED[name])) == []


def test_output_of_a_part_of_an_uncalled_root_counts_as_returned() -> None:
    modules = module_sample(
        ("Gan", "Net", "Tanh", "Tanh"), ("", "g", "g.hidden", "g.out"), activation_rms=[NAN, 0.5, 0.7, 0.5]
    )
    assert returned_by_model(modules).tolist() == [False, True, False, True]


# -------------------------------------------------------------------------------------------- NaN and Inf


def counted(nan: float = 0.0, inf: float = 0.0, mean: float = 0.0) -> dict[str, list[float]]:
    return {
        "activation_rms": [1.0] * 4,
        "activation_mean": [0.0, 0.0, mean, 0.0],
        "activation_nan_count": [0.0, 0.0, nan, 0.0],
        "activation_inf_count": [0.0, 0.0, inf, 0.0],
    }


@pytest.mark.parametrize(("nan", "inf", "mean"), [(1.0, 0.0, NAN), (0.0, 2.0, math.inf), (0.0, 2.0, NAN)])
def test_nonfinite_activation_is_found_at_its_step(nan: float, inf: float, mean: float) -> None:
    samples = steps_of([counted()] * 3 + [counted(nan, inf, mean)])
    found = found_by(NonFiniteActivationDetector(), samples)
    assert places(found) == [(3, "warning", "a_act")]


def test_nonfinite_activation_that_reaches_the_gradients_is_critical() -> None:
    samples = steps_of([counted(), counted(1.0, mean=NAN)], total_grad_norm=math.inf)
    assert places(found_by(NonFiniteActivationDetector(), samples)) == [(1, "critical", "a_act")]


def test_nonfinite_activation_of_padding_that_is_masked_later_is_information() -> None:
    found = found_by(
        NonFiniteActivationDetector(), steps_of([counted(1.0, mean=NAN)] * 3, total_grad_norm=1.0)
    )
    assert {severity for _, severity, _ in places(found)} == {"info"}


def test_nonfinite_activation_of_two_measurements_lasts_until_the_next_one() -> None:
    columns = [counted(), counted(1.0, mean=NAN), counted(1.0, mean=NAN), counted()]
    samples = [
        replace(sample, step=10 * sample.step + ahead, modules=None if ahead else sample.modules)
        for sample in steps_of(columns)
        for ahead in range(3)
    ]
    found = found_by(NonFiniteActivationDetector(), samples)
    assert [step for step, *_ in places(found)] == [10, 20, 21, 22]


def test_masks_of_minus_infinity_are_silent() -> None:
    samples = steps_of([counted(inf=5.0, mean=-math.inf)] * 5)
    assert places(found_by(NonFiniteActivationDetector(), samples)) == []


def test_columns_without_counts_are_clean() -> None:
    columns = [{"activation_rms": [1.0] * 4}] * 3
    assert places(found_by(NonFiniteActivationDetector(), steps_of(columns))) == []


# ------------------------------------------------------------------------------------------------ output


def outputs(
    stds: Iterable[float], *, mean: float = 3.0, loss: float = 1.0, batch: float = 32.0, scale: float = 1.0
) -> list[Sample]:
    columns = [
        {
            "activation_mean": [scale * mean, 0.0, 0.0, 0.0],
            "activation_std": [scale * std, 1.0, 1.0, 1.0],
            "activation_rms": [scale * math.hypot(mean, std), 1.0, 1.0, 1.0],
        }
        for std in stds
    ]
    return steps_of(columns, loss=loss, scalars={"samples": batch})


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_output_that_is_constant_is_found_after_ten_steps(scale: float) -> None:
    found = found_by(DegenerateOutputDetector(OPTIONS), outputs([1.0] * 5 + [1e-9] * 15, scale=scale))
    assert places(found)[0] == (15, "warning", "")


HEALTHY_OUTPUTS = {
    "varies": outputs([1e-3] * 50),
    "zero-initialised head": outputs([0.0] * 5 + [1e-2] * 50),
    "returns its loss": outputs([0.0] * 50, loss=3.0),
    "single sample": outputs([0.0] * 50, batch=1.0),
    "unknown batch": outputs([0.0] * 50, batch=0.0),
    "now and then": outputs(([0.0] * 8 + [1.0]) * 10),
}


@pytest.mark.parametrize("name", HEALTHY_OUTPUTS)
def test_output_is_silent_on_what_is_healthy(name: str) -> None:
    assert places(found_by(DegenerateOutputDetector(OPTIONS), HEALTHY_OUTPUTS[name])) == []


def innermost_by_definition(names: tuple[str, ...], rows: np.ndarray) -> list[int]:
    """Those of `rows` that contain no other one: every pair is compared."""
    return [
        int(row)
        for row in rows
        if not any(
            names[other] != names[row] and names[other].startswith(f"{names[row]}." if names[row] else "")
            for other in rows
        )
    ]


@given(st.lists(st.lists(st.sampled_from(["a", "ab", "0", ""]), max_size=4).map(".".join)), st.data())
def test_innermost_modules_contain_no_other_one(names: list[str], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.booleans(), min_size=len(names), max_size=len(names)))
    rows = np.flatnonzero(np.array(chosen, dtype=np.bool_))
    assert innermost(tuple(names), rows) == innermost_by_definition(tuple(names), rows)


def test_innermost_modules_of_a_large_model_are_found_at_once() -> None:
    """40,000 modules would be 1.6 billion pairs."""
    names = tuple(f"layers.{block}.{at}" for block in range(200) for at in range(200))
    assert innermost(names, np.arange(len(names))) == [*range(len(names))]


@pytest.mark.parametrize(("units", "is_found"), [(1.0, True), (NAN, False)], ids=["a column", "one number"])
def test_single_number_is_no_output_that_is_the_same_everywhere(units: float, is_found: bool) -> None:
    column = {"activation_mean": [4.81] * 4, "activation_std": [0.0] * 4, "activation_rms": [4.81] * 4}
    samples = steps_of([column | {"units": [units, 8.0, 8.0, 1.0]}] * 30, scalars={"samples": 32.0})
    assert bool(found_by(DegenerateOutputDetector(OPTIONS), samples)) == is_found
