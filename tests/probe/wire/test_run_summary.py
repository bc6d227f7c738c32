"""Counts of a run against an enumeration of its steps; what cannot be known is never counted too low."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from probe.wire import Event, Evidence
from probe.wire.run_summary import RunCounts, count_run


def event(kind: str, steps: list[int], *, severity: str = "warning") -> Event:
    return Event(
        id="0" * 16, run="r", rank=0, incarnation=1, step=min(steps), time=0.0, kind=kind,
        severity=severity, message="", count=len(steps), last_step=max(steps),
    )  # fmt: skip


def test_counts_of_episodes_are_in_steps() -> None:
    found = count_run(
        [
            event("gradient_explosion", [3, 4, 5]),
            event("gradient_explosion", [9]),
            event("nonfinite_loss", [5], severity="critical"),
            event("level_changed", [5], severity="info"),
        ],
        20,
    )
    assert (found.gradient_explosions, found.gradient_vanishing, found.loss_anomalies) == (4, 0, 1)
    assert (found.total_anomalies, found.events, found.anomaly_steps) == (3, 4, 4)
    assert found.anomaly_rate == 0.2 and found.gradient_explosion_rate == 0.2
    assert found.events_by_severity == {"warning": 2, "critical": 1, "info": 1}
    assert found.steps_by_kind["gradient_explosion"] == 4 and found.events_by_kind["gradient_explosion"] == 2


def test_information_is_no_anomaly() -> None:
    found = count_run([event("amp_overflow", [1, 2], severity="info")], 10)
    assert (found.total_anomalies, found.anomaly_steps, found.anomaly_rate) == (0, 0, 0.0)


def test_run_without_steps_has_no_rates() -> None:
    assert count_run([], 0).training() == RunCounts().training()
    assert count_run([event("loss_spike", [0])], 0).loss_anomaly_rate == 0.0


def test_training_summary_has_the_documented_fields_in_order() -> None:
    assert list(RunCounts().training()) == [
        "total_steps", "anomaly_steps", "gradient_explosions", "gradient_vanishing", "loss_anomalies",
        "anomaly_rate", "loss_anomaly_rate", "gradient_explosion_rate", "gradient_vanishing_rate",
    ]  # fmt: skip


@given(st.lists(st.sets(st.integers(0, 30), min_size=1), max_size=6))
def test_anomaly_steps_are_never_too_few_and_exact_without_holes(episodes: list[set[int]]) -> None:
    truth = len(set().union(*episodes))
    found = count_run([event("loss_spike", sorted(steps)) for steps in episodes], 31).anomaly_steps
    assert truth <= found <= 31
    if all(max(steps) - min(steps) + 1 == len(steps) for steps in episodes):
        assert found == truth


def test_counts_begin_anew_at_the_newest_clearing() -> None:
    def at(time: float, kind: str, steps: list[int], **evidence: float) -> Event:
        made = event(kind, steps, severity="info" if kind == "cleared" else "warning")
        return msgspec.structs.replace(made, time=time, evidence=Evidence(**evidence))

    events = [
        at(1.0, "loss_spike", [3]),
        at(2.0, "cleared", [9], value=10.0),
        at(3.0, "loss_spike", [12, 13]),
        at(4.0, "cleared", [19], value=20.0),
        at(4.0, "loss_spike", [19]),
        at(5.0, "loss_spike", [24]),
    ]
    for order in (events, events[::-1]):
        found = count_run(order, 30)
        assert (found.total_steps, found.loss_anomalies, found.total_anomalies) == (10, 1, 1)
        assert found.loss_anomaly_rate == 0.1 and found.events_by_kind == {"loss_spike": 1}
        whole = count_run(order, 30, is_whole=True)
        assert (whole.total_steps, whole.loss_anomalies, whole.events) == (30, 5, 6)
