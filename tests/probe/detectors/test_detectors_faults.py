"""Every relative detector fires at the known step of a planted fault, and says what is wrong."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from detector_series import (
    TRAININGS,
    lognormal,
    observe_norms,
    on_one_thread,
    run_detectors,
    train_past_convergence,
)

from probe.detectors import DetectorThresholds, Finding, Observation, default_detectors

FAULT = 200


def faulty(
    factors: dict[int, float], *, first: int = FAULT, last: int = FAULT, layers: int = 12
) -> list[Observation]:
    """Healthy norms, multiplied layer by layer at the steps `first` to `last`."""
    result = []
    for step, norms in enumerate(lognormal(5, steps=FAULT + 60, layers=layers)):
        if first <= step <= last:
            norms = np.array([norm * factors.get(i, 1.0) for i, norm in enumerate(norms)])
        result.append(observe_norms(step, norms, loss=2.0))
    return result


def of_kind(observations: list[Observation], kind: str) -> list[tuple[int, Finding]]:
    return [(step, finding) for step, finding in run_detectors(observations) if finding.kind == kind]


def test_gradient_explosion_of_all_layers_fires_at_its_step_only() -> None:
    found = of_kind(faulty(dict.fromkeys(range(12), 300.0)), "gradient_explosion")
    assert [step for step, _ in found] == [FAULT]
    finding = found[0][1]
    assert finding.affected == tuple(f"layers.{i}" for i in range(12))
    assert finding.severity == "warning"


def test_gradient_explosion_evidence_is_the_runs_own() -> None:
    observations = faulty(dict.fromkeys(range(12), 300.0))
    finding = of_kind(observations, "gradient_explosion")[0][1]
    totals = [(o.step, o.total_grad_norm) for o in observations[FAULT - 20 : FAULT]]
    window = [o.total_grad_norm for o in observations[FAULT - 128 : FAULT]]
    assert finding.value == pytest.approx(observations[FAULT].total_grad_norm)
    assert finding.baseline is not None
    assert finding.baseline["median"] == pytest.approx(np.median(window), rel=0.15)
    assert [s for s, _ in finding.neighbours] == [s for s, _ in totals]
    assert [v for _, v in finding.neighbours] == pytest.approx([v for _, v in totals])


def test_gradient_explosion_message_names_numbers_step_and_layer() -> None:
    finding = of_kind(faulty(dict.fromkeys(range(12), 300.0)), "gradient_explosion")[0][1]
    assert finding.message.startswith(f"Gradient norm {finding.value:.4g} at step {FAULT} is ")
    assert "x the run's median (" in finding.message
    assert finding.message.split(" largest in ")[1].startswith(f"`{finding.subject}`")


def test_gradient_explosion_of_one_layer_names_it() -> None:
    loudest = int(np.argmax(next(lognormal(5, steps=1))))
    found = of_kind(faulty({loudest: 1000.0}), "gradient_explosion")
    assert [(step, f.subject) for step, f in found] == [(FAULT, f"layers.{loudest}")]
    assert found[0][1].affected == (f"layers.{loudest}",)


def test_gradient_explosion_far_above_the_threshold_is_critical() -> None:
    found = of_kind(faulty(dict.fromkeys(range(12), 1e5)), "gradient_explosion")
    assert [finding.severity for _, finding in found] == ["critical"]


def test_gradient_explosion_steps_do_not_enter_the_baseline() -> None:
    found = of_kind(faulty(dict.fromkeys(range(12), 300.0), last=FAULT + 29), "gradient_explosion")
    assert [step for step, _ in found] == list(range(FAULT, FAULT + 30))
    medians = [finding.baseline["median"] for _, finding in found if finding.baseline]
    assert medians == pytest.approx([medians[0]] * 30)


def test_gradient_explosion_that_stays_becomes_the_new_normal() -> None:
    steps = (observe_norms(i, (1.0 if i < 100 else 1e3) * n) for i, n in enumerate(lognormal(0, steps=600)))
    fired = [step for step, finding in run_detectors(steps) if finding.kind == "gradient_explosion"]
    assert fired[0] == 100
    assert 130 < fired[-1] < 200


def test_gradient_explosion_after_nan_steps_is_still_judged() -> None:
    observations = [
        observe_norms(i, np.where(i in (150, 151), math.nan, n) * (500.0 if i == FAULT else 1.0))
        for i, n in enumerate(lognormal(0, steps=FAULT + 10))
    ]
    assert [step for step, _ in of_kind(observations, "gradient_explosion")] == [FAULT]


def test_gradient_explosion_in_the_warm_up_is_quiet() -> None:
    steps = (observe_norms(i, [1e5 if i == 20 else 1.0]) for i in range(60))
    assert not run_detectors(steps)


def test_gradient_explosion_is_seen_when_a_mad_is_zero() -> None:
    steps = (observe_norms(i, [30.0 if i == 90 else 1.0]) for i in range(120))
    assert [(s, f.kind) for s, f in run_detectors(steps)] == [(90, "gradient_explosion")]


def test_gradient_explosion_by_overflow_of_finite_elements_is_critical() -> None:
    healthy = [observe_norms(i, [1.0, 2.0]) for i in range(50)]
    norms, elements = np.array([1.0, math.inf]), np.array([1.0, 1e200])
    broken = observe_norms(50, norms)
    fields = {name: getattr(broken, name) for name in Observation.__dataclass_fields__}
    overflow = Observation(**fields | {"grad_inf_count": np.zeros(2), "grad_max_abs": elements})
    found = run_detectors([*healthy, overflow])
    assert [(f.kind, f.severity, f.subject) for _, f in found] == [
        ("gradient_explosion", "critical", "layers.1")
    ]


def test_gradient_explosion_threshold_option_is_used() -> None:
    steps = [observe_norms(i, [8.0 if i == 90 else 1.0]) for i in range(100)]
    sensitive = default_detectors(DetectorThresholds(explosion_factor=5.0))
    assert not run_detectors(steps)
    assert [s for s, _ in run_detectors(steps, sensitive)] == [90]


def test_gradient_vanishing_of_early_layers_fires_after_its_patience() -> None:
    found = of_kind(faulty(dict.fromkeys(range(4), 1e-5), last=FAULT + 60), "gradient_vanishing")
    assert [step for step, _ in found] == list(range(FAULT + 4, FAULT + 60))
    assert found[0][1].affected == tuple(f"layers.{i}" for i in range(4))
    assert found[0][1].severity == "warning"


def test_gradient_vanishing_of_most_layers_fires() -> None:
    loudest = int(np.argmax(next(lognormal(5, steps=1))))
    lost = {i: 1e-5 for i in range(12) if i != loudest}
    found = of_kind(faulty(lost, last=FAULT + 60), "gradient_vanishing")
    assert found[0][0] == FAULT + 4
    assert f"layers.{loudest}" not in found[0][1].affected


def test_gradient_vanishing_of_the_whole_model_fires_when_abrupt() -> None:
    found = of_kind(faulty(dict.fromkeys(range(12), 1e-6), last=FAULT + 60), "gradient_vanishing")
    assert found[0][0] == FAULT + 4
    assert found[-1][0] == FAULT + 59
    assert "whole model" in found[0][1].message


def test_gradient_vanishing_for_less_than_its_patience_is_quiet() -> None:
    assert not run_detectors(faulty(dict.fromkeys(range(4), 1e-5), last=FAULT + 3))


def test_gradient_vanishing_over_hundreds_of_steps_fires() -> None:
    """Layer 0 saturates gradually, by 1e-6 over 1,500 steps: no window of 128 steps shows it."""
    steps = [
        observe_norms(i, n * np.array([1e-6 ** max(0.0, (i - 500) / 1500), 1.0, 1.0]))
        for i, n in enumerate(lognormal(0, steps=2500, layers=3))
    ]
    found = of_kind(steps, "gradient_vanishing")
    assert found
    assert {finding.affected for _, finding in found} == {("layers.0",)}


def test_zero_gradient_fires_for_a_layer_that_died() -> None:
    found = of_kind(faulty({2: 0.0, 5: 0.0}, last=FAULT + 60), "zero_gradient")
    assert found[0][0] == FAULT + 9
    assert found[0][1].affected == ("layers.2", "layers.5")
    assert "layers.2" in found[0][1].message


def test_zero_gradient_from_the_start_fires_after_the_warm_up() -> None:
    found = run_detectors(observe_norms(i, [1.0, 0.0]) for i in range(120))
    assert [(s, f.kind, f.subject) for s, f in found[:1]] == [(89, "zero_gradient", "layers.1")]


def test_zero_gradient_of_all_layers_needs_a_loss_that_is_not_zero() -> None:
    satisfied = [observe_norms(i, [0.0 if i > 50 else 1.0], loss=0.0 if i > 50 else 1.0) for i in range(100)]
    broken = [observe_norms(i, [0.0 if i > 50 else 1.0], loss=1.0) for i in range(100)]
    assert not run_detectors(satisfied)
    assert {f.kind for _, f in run_detectors(broken)} == {"zero_gradient"}


def test_zero_gradient_steps_without_a_gradient_do_not_count() -> None:
    """Every second step has no gradient at all for the layer: ten zeros need twenty steps."""
    steps = (
        observe_norms(i, [1.0, 0.0 if i >= 100 else 1.0], missing=np.array([False, i % 2 == 1]))
        for i in range(160)
    )
    assert run_detectors(steps)[0][0] == 118


def test_loss_spike_fires_at_its_step_only() -> None:
    random = np.random.default_rng(0)
    steps = [
        observe_norms(i, [1.0], loss=(9.0 if i == 90 else 2.0) + 0.05 * random.normal()) for i in range(150)
    ]
    found = run_detectors(steps)
    assert [(s, f.kind, f.subject) for s, f in found] == [(90, "loss_spike", "loss")]
    assert [s for s, _ in found[0][1].neighbours] == list(range(70, 90))
    assert "at step 90 is 4." in found[0][1].message


def test_loss_spike_of_a_negative_loss_fires() -> None:
    random = np.random.default_rng(0)
    losses = [(20.0 if i == 90 else -10.0) + 0.05 * random.normal() for i in range(150)]
    found = run_detectors(observe_norms(i, [1.0], loss=x) for i, x in enumerate(losses))
    assert [(s, f.kind) for s, f in found] == [(90, "loss_spike")]


def test_loss_spike_after_nonfinite_losses_is_still_judged() -> None:
    bad = {60: math.nan, 61: math.inf, 62: -math.inf, 90: 50.0}
    found = run_detectors(observe_norms(i, [1.0], loss=bad.get(i, 2.0)) for i in range(100))
    assert [(s, f.kind) for s, f in found] == [
        *((s, "nonfinite_loss") for s in (60, 61, 62)),
        (90, "loss_spike"),
    ]


def test_loss_that_stays_high_becomes_the_new_normal() -> None:
    fired = [
        s for s, _ in run_detectors(observe_norms(i, [1.0], loss=1.0 if i < 100 else 9.0) for i in range(500))
    ]
    assert fired[0] == 100
    assert 130 < fired[-1] < 200


@pytest.mark.parametrize("name", ["transformer", "mlp", "gan"])
def test_detectors_real_training_with_a_planted_burst_fires(name: str) -> None:
    """The same series that must be quiet are not quiet by deafness."""
    observations = TRAININGS[name](0)
    step = len(observations) - 3
    fields = {key: getattr(observations[step], key) for key in Observation.__dataclass_fields__}
    loud = {"grad_norm": fields["grad_norm"] * 1e4, "total_grad_norm": fields["total_grad_norm"] * 1e4}
    observations[step] = Observation(**fields | loud)
    found = of_kind(observations, "gradient_explosion")
    assert [s for s, _ in found] == [step]


def test_detectors_converged_run_with_a_wrong_target_fires() -> None:
    """What keeps a converged run quiet does not keep it quiet in earnest."""
    train = on_one_thread(lambda seed: train_past_convergence(seed, steps=3500, wrong_target_at=3450))
    found = run_detectors(train(0))
    assert {(3450, "gradient_explosion"), (3450, "loss_spike")} <= {(s, f.kind) for s, f in found}
    assert min(step for step, _ in found) == 3450


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("explosion_norm", 0.0),
        ("vanishing_norm", math.nan),
        ("warmup_steps", 0),
        ("explosion_mads", math.nan),
        ("explosion_factor", 1.0),
        ("vanishing_factor", 1.0),
        ("vanishing_steps", 0),
        ("loss_spike_mads", -1.0),
        ("loss_spike_factor", 1.0),
        ("zero_steps", 0),
    ],
)
def test_thresholds_out_of_range_are_named(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"{option}={value}.* is not allowed: use .* to "):
        DetectorThresholds(**{option: value})  # type: ignore[arg-type]


def test_default_detectors_are_fresh_for_every_model() -> None:
    first, second = default_detectors(DetectorThresholds()), default_detectors(DetectorThresholds())
    assert not any(a is b for a, b in itertools.product(first, second))


@pytest.mark.parametrize("lost", [4, 12])
def test_gradient_vanishing_after_it_came_back_fires_later(lost: int) -> None:
    """Three steps without a gradient, 20 steps before it is lost: patience is four times as long."""
    factors = dict.fromkeys(range(lost), 1e-5)
    before = [observe_norms(o.step, o.grad_norm) for o in faulty(factors, first=FAULT - 20, last=FAULT - 18)]
    after = [observe_norms(o.step, o.grad_norm) for o in faulty(factors, last=FAULT + 60)]
    found = of_kind(before[:FAULT] + after[FAULT:], "gradient_vanishing")
    assert FAULT + 4 < found[0][0] <= FAULT + 19


def test_gradient_vanishing_a_second_time_is_found_as_soon_as_the_first() -> None:
    """300 steps without a gradient, which were told of, are no reason for patience."""
    norms = list(lognormal(5, steps=700))
    lost = [200 <= step < 500 or step >= 600 for step in range(len(norms))]
    steps = [
        observe_norms(i, n * (1e-5 if is_lost else 1.0))
        for i, (n, is_lost) in enumerate(zip(norms, lost, strict=True))
    ]
    found = [step for step, _ in of_kind(steps, "gradient_vanishing")]
    assert min(found) < 210
    assert any(600 <= step < 610 for step in found)


def test_gradient_vanishing_evidence_has_the_median_that_its_message_compares_with() -> None:
    """Of a layer that has shrunk for some time before it falls, the recent median and the slow one differ."""
    decay = [{i: math.exp(-max(0, step - 150) / 25) for i in range(12)} for step in range(FAULT + 60)]
    observations = [
        observe_norms(step, [n * decay[step][i] * (1e-6 if i < 4 and step >= FAULT else 1) for i, n in pairs])
        for step, norms in enumerate(lognormal(5, steps=FAULT + 60, layers=12))
        if (pairs := list(enumerate(norms)))
    ]
    found = of_kind(observations, "gradient_vanishing")
    assert found
    for _, finding in found:
        assert finding.baseline is not None
        assert f"({finding.baseline['median']:.2g})" in finding.message
        assert finding.threshold == pytest.approx(finding.baseline["median"] * 1e-3)
