"""`throttle`: what is measured more rarely, or again more often; and what the events say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.loop.throttle import AIM, MAX_STRETCH, ROOM, TRIPWIRE, Change, Load, loosen, tighten
from probe.settings.levels import FEATURES

MS = 1_000_000.0


def load(base_ms: float = 0.0, training_ms: float = 100.0, **costs_ms: float) -> Load:
    return Load(
        training_ns=training_ms * MS,
        base_ns=base_ms * MS,
        costs_ns={name: cost * MS for name, cost in costs_ms.items()},
    )


def test_fraction_spreads_sampled_costs_over_their_periods() -> None:
    measured = load(base_ms=1.0, gradients=2.0, activations=40.0)
    periods = {"gradients": 1, "activations": 20, "histograms": 0}
    assert measured.fraction(periods) == pytest.approx(5 / 105)


def test_tighten_doubles_the_dearest_sampled_feature_first() -> None:
    periods = {"gradients": 1, "activations": 10, "histograms": 10}
    measured = load(gradients=1.0, activations=30.0, histograms=5.0)
    assert tighten(measured, periods, periods, limit=0.04) == {
        "gradients": 1,
        "activations": 20,
        "histograms": 10,
    }


def test_tighten_drops_the_dearest_once_its_period_is_at_the_end() -> None:
    wanted = {"gradients": 1, "activations": 10, "histograms": 10}
    measured = load(gradients=0.5, activations=5_000.0, histograms=3_000.0)
    tightened = tighten(measured, wanted, wanted, limit=0.06)
    assert tightened == {"gradients": 1, "activations": 0, "histograms": 10 * MAX_STRETCH}
    assert measured.fraction({**tightened, "activations": 10 * MAX_STRETCH}) > 0.06 * AIM


def test_tighten_samples_gradients_only_when_nothing_else_is_left() -> None:
    wanted = {"gradients": 1, "activations": 10}
    enough_without = tighten(load(gradients=1.0, activations=400.0), wanted, wanted, limit=0.02)
    assert enough_without["gradients"] == 1
    assert tighten(load(gradients=3.0, activations=400.0), wanted, wanted, limit=0.02)["gradients"] == 2


def test_tighten_never_drops_gradients_and_ends_when_the_tripwire_alone_is_too_much() -> None:
    wanted = {"gradients": 1, "activations": 10, "learning_rates": 1}
    tightened = tighten(
        load(base_ms=50.0, gradients=90.0, activations=1e6, learning_rates=0.001), wanted, wanted, limit=0.02
    )
    assert tightened == {"gradients": MAX_STRETCH, "activations": 0, "learning_rates": 1}


def test_loosen_begins_with_gradients_then_what_was_dropped() -> None:
    wanted = {"gradients": 1, "activations": 10, "histograms": 10}
    throttled = {"gradients": 2, "activations": 0, "histograms": 640}
    room_for_gradients = load(gradients=1.0, activations=700.0, histograms=1.0)
    assert loosen(room_for_gradients, throttled, wanted, limit=0.015)["gradients"] == 1
    assert loosen(room_for_gradients, throttled, wanted, limit=0.015)["activations"] == 0
    assert loosen(load(gradients=0.1, activations=7.0), throttled, wanted, limit=0.05) == wanted


periods = st.sampled_from([0, 1, 2, 5, 10, 50])
costs = st.floats(min_value=0.0, max_value=1e10)


@given(
    wanted=st.fixed_dictionaries(dict.fromkeys(FEATURES[:8], periods)),
    costs_ns=st.dictionaries(st.sampled_from(FEATURES[:8]), costs),
    base_ns=costs,
    training_ns=st.floats(min_value=1e3, max_value=1e10),
    limit=st.floats(min_value=0.001, max_value=0.5),
)
def test_tighten_and_loosen_keep_their_promises(
    wanted: dict[str, int], costs_ns: dict[str, float], base_ns: float, training_ns: float, limit: float
) -> None:
    measured = Load(training_ns=training_ns, base_ns=base_ns, costs_ns=costs_ns)
    tightened = tighten(measured, wanted, wanted, limit=limit)
    for name, period in tightened.items():
        assert period in [0, *(wanted[name] * 2**k for k in range(7))], name
    assert not wanted["gradients"] or tightened["gradients"]
    assert measured.fraction(tightened) <= measured.fraction(wanted)
    if measured.fraction(tightened) > limit:
        # Then nothing that counts is left to be measured more rarely.
        least = 0.03 * limit * training_ns
        at_end = tightened["gradients"] == wanted["gradients"] * MAX_STRETCH
        assert all(
            measured.share_ns(n, tightened) <= least for n in wanted if not (n == "gradients" and at_end)
        )
    loosened = loosen(measured, tightened, wanted, limit=limit)
    if loosened != tightened:
        assert measured.fraction(loosened) <= ROOM * limit
    # What has just been loosened is not tightened again: no flapping on the same load.
    if measured.fraction(loosened) <= limit:
        assert tighten(measured, loosened, wanted, limit=limit) == loosened or (
            measured.fraction(loosened) > AIM * limit and loosened == tightened
        )


def change(feature: str, old: int, new: int, fraction: float = 0.031) -> Change:
    return Change(
        feature=feature, old=old, new=new, fraction=fraction, limit=0.02, cost_ns=12.3e6, step_ns=45.67e6
    )


def first_line(old: int, new: int, feature: str = "activations") -> str:
    return change(feature, old, new).message.splitlines()[0]


def test_message_answers_everything_in_its_first_line() -> None:
    assert first_line(20, 40) == (
        "Activations are measured every 40 instead of 20 steps: "
        "the probe took 3.1 % of the step, the limit is 2 %"
    )
    assert first_line(1, 2, "gradients") == (
        "Full gradient statistics are measured every 2 steps instead of every step: "
        "the probe took 3.1 % of the step, the limit is 2 %"
    )
    assert first_line(1280, 0).startswith("Activations are no longer measured (every 1280 steps before): ")
    assert first_line(0, 1280).startswith("Activations are measured every 1280 steps again: the probe takes ")


def test_message_says_what_one_measurement_takes() -> None:
    assert "One measurement takes 12.3 ms of a step of 45.7 ms." in change("activations", 20, 40).message


def test_message_of_the_tripwire_says_that_it_stays() -> None:
    assert first_line(1, 1, TRIPWIRE) == (
        "The probe takes 3.1 % of the step, the limit is 2 %: "
        "its work at every step takes 12.3 ms of a step of 45.7 ms"
    )


@pytest.mark.parametrize(
    ("old", "new", "looser"), [(20, 40, False), (40, 20, True), (9, 0, False), (0, 9, True)]
)
def test_change_knows_its_direction(old: int, new: int, looser: bool) -> None:
    assert change("activations", old, new).is_looser is looser
