"""Non-finite loss, gradients and parameters, and no trouble from any float64 input whatsoever."""

from __future__ import annotations

import math

import numpy as np
import pytest
from detector_series import observe_norms, run_detectors
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from probe.detectors import DetectorThresholds, Observation, default_detectors
from probe.detectors.baselines import RowHistory, SeriesHistory
from probe.detectors.nonfinite import NonFiniteDetector


def changed(observation: Observation, **fields: object) -> Observation:
    old = {name: getattr(observation, name) for name in Observation.__dataclass_fields__}
    return Observation(**old | fields)


@pytest.mark.parametrize(
    ("loss", "word"), [(math.nan, "NaN"), (math.inf, "Inf"), (-math.inf, "-Inf")], ids=["nan", "inf", "-inf"]
)
def test_nonfinite_loss_fires_from_the_first_step(loss: float, word: str) -> None:
    [(step, finding)] = run_detectors([observe_norms(0, [1.0], loss=loss)])
    assert (step, finding.kind, finding.severity, finding.subject) == (
        0,
        "nonfinite_loss",
        "critical",
        "loss",
    )
    assert finding.message == f"Loss is {word} at step 0"


def test_nonfinite_loss_tells_the_last_finite_one() -> None:
    losses = [2.0, 1.5, math.nan]
    [(_, finding)] = run_detectors(observe_norms(i, [1.0], loss=x) for i, x in enumerate(losses))
    assert finding.message == "Loss is NaN at step 2; it was 1.5 at step 1"
    assert finding.neighbours == ((0, 2.0), (1, 1.5))


def test_nonfinite_gradient_counts_parameters_and_elements() -> None:
    counts = {
        "grad_nan_count": np.array([0.0, 7.0, 0.0, 2.0]),
        "grad_inf_count": np.array([0.0, 1.0, 0.0, 0.0]),
    }
    norms = [1.0, math.nan, 1.0, math.nan]
    [(_, finding)] = run_detectors([changed(observe_norms(3, norms), **counts)])
    assert (finding.kind, finding.severity) == ("nonfinite_gradient", "critical")
    assert finding.affected == ("layers.1.p0", "layers.3.p0")
    assert finding.message == (
        "Gradients of 2 of 4 parameters are not finite at step 3 (9 NaN, 1 Inf elements), "
        "among them `layers.1.p0`"
    )


def test_nonfinite_gradient_of_a_missing_parameter_is_ignored() -> None:
    missing = np.array([False, True])
    assert not run_detectors([observe_norms(0, [1.0, math.nan], missing=missing)])


def test_nonfinite_gradient_without_counts_is_seen_in_the_largest_element() -> None:
    columns = {"grad_nan_count": None, "grad_inf_count": None}
    [(_, finding)] = run_detectors([changed(observe_norms(0, [1.0, math.inf]), **columns)])
    assert (finding.kind, finding.subject, finding.value) == ("nonfinite_gradient", "layers.1.p0", math.inf)


def test_nonfinite_gradient_with_a_global_norm_alone_is_seen() -> None:
    columns = dict.fromkeys(("grad_nan_count", "grad_inf_count", "grad_max_abs", "grad_norm"))
    [(_, finding)] = run_detectors([changed(observe_norms(0, [math.nan]), **columns)])
    assert (finding.kind, finding.subject) == ("nonfinite_gradient", "gradient norm")


def test_nonfinite_gradient_is_not_claimed_for_a_norm_that_overflows() -> None:
    finite = {"grad_inf_count": np.zeros(1), "grad_max_abs": np.array([1e200])}
    observation = changed(observe_norms(0, [math.inf]), **finite)
    assert not NonFiniteDetector().observe(observation)


def test_nonfinite_parameter_names_the_first() -> None:
    norms = np.array([1.0, math.inf, math.nan])
    [(_, finding)] = run_detectors([changed(observe_norms(9, [1.0] * 3), parameter_norm=norms)])
    assert (finding.kind, finding.severity, finding.subject) == (
        "nonfinite_parameter",
        "critical",
        "layers.1.p0",
    )
    assert finding.affected == ("layers.1.p0", "layers.2.p0")


def norms_at(step: int, *norms: float, **fields: object) -> Observation:
    return changed(observe_norms(step, [1.0] * len(norms)), parameter_norm=np.array(norms), **fields)


def test_nonfinite_parameter_says_when_all_was_known_to_be_finite() -> None:
    steps = [norms_at(0, 1.0), norms_at(10, 1.0), *(observe_norms(step, [1.0]) for step in range(11, 14))]
    found = run_detectors([*steps, norms_at(14, math.nan, loss=math.nan)])
    finding = next(finding for _, finding in found if finding.kind == "nonfinite_parameter")
    assert finding.message.endswith(
        "last known to be finite: the norms at step 10, loss and gradients at step 13"
    )
    assert finding.baseline == {"last_finite_step": 10.0}


def test_nonfinite_parameter_after_a_bad_step_names_that_step() -> None:
    found = run_detectors(
        [norms_at(0, 1.0), observe_norms(1, [math.nan]), norms_at(2, math.nan, loss=math.nan)]
    )
    finding = next(finding for _, finding in found if finding.kind == "nonfinite_parameter")
    assert finding.message.endswith("; the loss or gradients of step 1 were not finite")


def test_nonfinite_parameter_at_the_first_step_knows_of_nothing_before() -> None:
    [(_, finding)] = run_detectors([norms_at(0, math.inf)])
    assert finding.message.endswith("(Inf)")


def test_clipping_by_an_infinite_norm_is_no_zero_gradient() -> None:
    steps = [observe_norms(i, [1.0, 2.0]) for i in range(50)]
    steps += [observe_norms(i, [math.nan, 0.0]) for i in range(50, 100)]
    assert {finding.kind for _, finding in run_detectors(steps)} == {"nonfinite_gradient"}


any_float = st.floats(width=64)
columns = hnp.arrays(np.float64, 6, elements=any_float)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_detectors_survive_arbitrary_numbers(data: st.DataObject) -> None:
    detectors = default_detectors(DetectorThresholds(warmup_steps=5, zero_steps=2, vanishing_steps=1))
    optional = st.none() | columns
    for step in range(data.draw(st.integers(1, 25))):
        observation = Observation(
            step=data.draw(st.integers(0, 3)) if step % 7 == 6 else step,
            loss=data.draw(st.none() | any_float),
            total_grad_norm=data.draw(st.none() | any_float),
            grad_norm=data.draw(optional),
            grad_max_abs=data.draw(optional),
            grad_nan_count=data.draw(optional),
            grad_inf_count=data.draw(optional),
            missing=data.draw(st.none() | hnp.arrays(np.bool_, 6)),
            parameter_norm=data.draw(optional),
            parameter_names=tuple("abcdef"),
            layer_names=("x", "y", ""),
            layer_of=np.array([0, 0, 1, 2, 2, 2]),
        )
        for detector in detectors:
            kinds = [finding.kind for finding in detector.observe(observation)]
            assert len(kinds) == len(set(kinds))


EXTREMES = np.array([0.0, 5e-324, 1e-308, 1e-30, 1e-3, 1.0, 1.5, 1e3, 1e30, 1e200, 1e308])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, len(EXTREMES)))
def test_detectors_survive_any_finite_norms_after_the_warm_up(seed: int, variety: int) -> None:
    random = np.random.default_rng(seed)
    thresholds = DetectorThresholds(warmup_steps=5, zero_steps=2, vanishing_steps=1)
    chosen = random.choice(EXTREMES, variety)
    steps = []
    for i in range(60):
        norms = random.choice(chosen, 6)
        with np.errstate(over="ignore"):
            total = float(np.sqrt(np.square(norms).sum()))
        plain = changed(observe_norms(i, [1.0] * 6, per_layer=2), loss=norms[0], total_grad_norm=total)
        steps.append(changed(plain, grad_norm=norms, grad_max_abs=norms))
    found = [(step, finding.kind) for step, finding in run_detectors(steps, default_detectors(thresholds))]
    assert len(found) == len(set(found))


def test_detectors_survive_a_model_without_parameters() -> None:
    assert not run_detectors(observe_norms(i, []) for i in range(60))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300))
def test_series_history_is_the_median_and_mad_of_the_window(values: list[float]) -> None:
    history = SeriesHistory(window=50)
    for value in values:
        history.add(value)
    median, mad = history.robust()
    expected = float(np.median(values[-50:]))
    assert median == pytest.approx(expected)
    assert mad == pytest.approx(float(np.median(np.abs(np.array(values[-50:]) - expected))))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 90))
def test_row_history_is_the_median_and_mad_of_each_rows_values(seed: int, steps: int) -> None:
    random = np.random.default_rng(seed)
    series = random.normal(0, 3, (steps, 40))
    series[:, random.random(40) < 0.5] *= np.where(random.random((steps, 1)) < 0.3, math.nan, 1.0)
    history = RowHistory(40, window=100)
    for column in series:
        history.add(column)
    history.refresh_all()
    for row in range(40):
        known = series[:, row][~np.isnan(series[:, row])]
        if not len(known):
            assert math.isnan(history.median[row])
            continue
        median = np.median(known)
        assert history.samples[row] == len(known)
        assert history.median[row] == pytest.approx(median, abs=1e-5)
        assert history.mad[row] == pytest.approx(np.median(np.abs(known - median)), abs=1e-5)


@pytest.mark.parametrize("window", [1, 2, 7, 50, 128])
@pytest.mark.parametrize("digits", [0, 6])
@pytest.mark.parametrize("rows", [40, 256, 600])
def test_row_history_of_full_windows_has_the_median_and_mad_of_numpy(
    window: int, digits: int, rows: int
) -> None:
    random = np.random.default_rng(window)
    series = np.round(random.normal(0, 3, (window + 5, rows)) ** 3, digits)
    history = RowHistory(rows, window=window)
    for column in series:
        history.add(column)
    history.refresh_all()
    kept = series[-window:].astype(np.float32).astype(np.float64)
    assert np.array_equal(history.median, np.median(kept, axis=0))
    assert np.array_equal(history.mad, np.median(np.abs(kept - history.median), axis=0))
