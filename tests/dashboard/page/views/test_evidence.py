"""The numbers of an event: what each is called, its unit, its digits."""

from __future__ import annotations

import math

import pytest
from sample_events import spike_event

from dashboard.page.views.evidence import evidence_facts, measure, neighbour_facts, neighbour_title
from dashboard.page.views.quantities import bytes_text, duration_text, percent_text
from probe.wire import Event, Evidence


def event_with(kind: str, subject: str = "x", **evidence: object) -> Event:
    return spike_event(kind=kind, subject=subject, evidence=Evidence(**evidence))


def rows_of(event: Event) -> dict[str, str]:
    return {row.label: row.value for row in evidence_facts(event)}


def test_leak_has_memory_for_bytes_and_plain_numbers_for_the_rest() -> None:
    """As the probe writes it for a list that gets one tensor a step."""
    baseline = {"baseline_bytes": 2.0**30, "bytes": 1.5 * 2**30, "steps": 15.0, "items": 30.0}
    event = event_with("memory_leak", value=9216.0, baseline=baseline, neighbours=[(5, 2.0**30)])
    assert rows_of(event) == {
        "growth per step": "9 KiB",
        "process at first": "1 GiB",
        "process now": "1.5 GiB",
        "steps": "15",
        "items": "30",
    }
    assert [row.value for row in neighbour_facts(event)] == ["1 GiB"]
    assert measure(event).neighbours == "process memory"


def test_blank_input_has_a_deviation_and_a_large_one_a_magnitude() -> None:
    blank = event_with("input_out_of_range", value=0.0, threshold=1e-6, baseline={"samples": 20.0})
    large = {"median": 1.0, "mad_log": 0.1, "samples": 20.0}
    names = [measure(event).name for event in (blank, event_with("input_out_of_range", baseline=large))]
    assert names == ["deviation of the input's elements", "largest magnitude"]


def test_neighbours_of_an_initialization_are_layers() -> None:
    event = event_with("poor_initialization", value=1e6, neighbours=[(0, 1.0), (1, 0.1)])
    assert [row.label for row in neighbour_facts(event)] == ["layer 0", "layer 1"]
    assert neighbour_title(event) == "The 2 layers"


def test_resource_use_is_a_share_and_what_it_is_a_share_of() -> None:
    event = event_with(
        "high_resource_use",
        value=0.931,
        threshold=0.9,
        baseline={"used_bytes": 2.0**30, "process_bytes": 512.0},
    )
    assert rows_of(event) == {
        "at this event": "93.1 %",
        "threshold": "90 %",
        "used": "1 GiB",
        "process": "512 B",
    }


def test_hang_is_in_seconds_and_its_step_in_what_suits_it() -> None:
    event = event_with("hang", value=20.25, threshold=5.0, baseline={"median_step_s": 0.0011})
    assert rows_of(event) == {"stood still for": "20.2 s", "threshold": "5.0 s", "median step": "1.1 ms"}


def test_baseline_of_a_share_is_one_too() -> None:
    event = event_with("saturated_activation", value=0.8, threshold=0.9, baseline={"lowest": 0.793})
    assert rows_of(event) == {"at this event": "80 %", "threshold": "90 %", "lowest so far": "79.3 %"}


@pytest.mark.parametrize(
    ("kind", "subject", "name"),
    [
        ("accumulated_gradient", "2.bias", "updates without clearing"),
        ("parameter_not_updated", "8.weight", "change of the parameter's norm"),
        ("update_ratio_low", "lr", "learning rate"),
        ("update_ratio_low", "update_ratio", "size of the update / size of the weights"),
        ("rank_divergence", "non-finite values", "ranks with non-finite values"),
        ("rank_divergence", "parameters", "relative difference"),
        ("overfitting", "val_loss", "validation loss"),
        ("zero_gradient", "0", "gradient L2 norm"),
    ],
)
def test_number_is_called_what_it_is(kind: str, subject: str, name: str) -> None:
    assert measure(event_with(kind, subject)).name == name


def test_parameters_without_a_gradient_are_counted_and_have_no_threshold() -> None:
    event = event_with("parameter_not_updated", value=4.0, threshold=0.0, baseline={"steps": 10.0})
    assert measure(event).name == "parameters"
    assert rows_of(event) == {"concerned": "4", "steps": "10"}


def test_memory_that_was_free_is_told_once() -> None:
    """The threshold of a failed allocation is what was free, which its baseline has."""
    event = event_with("out_of_memory", value=2.0**40, threshold=2.0**30, baseline={"free_bytes": 2.0**30})
    assert rows_of(event) == {"asked for": "1 TiB", "free": "1 GiB"}


def test_numbers_of_the_script_keep_their_names() -> None:
    event = event_with("custom", baseline={"tokens_s": 5.0, "cache_bytes": 2048.0, "steps": 2.5})
    assert rows_of(event) == {"tokens_s": "5", "cache_bytes": "2048", "steps": "2.5"}


def test_lone_nan_is_no_evidence_and_its_past_is() -> None:
    assert evidence_facts(event_with("nonfinite_input", value=math.nan)) == ()
    assert rows_of(event_with("nonfinite_gradient", value=math.nan, neighbours=[(3, 1.0)])) == {
        "at this event": "NaN"
    }


def test_ratio_to_itself_is_not_told() -> None:
    event = event_with("loss_plateau", value=0.5, baseline={"median": 0.5})
    assert rows_of(event) == {"at this event": "0.5", "median of this run": "0.5"}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (0.0000256, "25.6 µs"),
        (0.0176, "17.6 ms"),
        (0.9996, "1.0 s"),
        (59.96, "1 min 00 s"),
        (245.0, "4 min 05 s"),
        (11520.0, "3 h 12 min"),
        (math.nan, "NaN"),
    ],
)
def test_duration_has_the_unit_that_suits_it(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0 %"), (0.2471741, "24.7 %"), (1.0, "100 %"), (2e-6, "2.000e-04 %"), (math.inf, "+Inf")],
)
def test_share_is_a_percentage(share: float, text: str) -> None:
    assert percent_text(share) == text


def test_bytes_without_a_number_have_no_unit() -> None:
    assert bytes_text(math.nan) == "NaN"


def test_recoveries_are_counted_against_their_limit() -> None:
    event = event_with("recovery", "skip", value=1.0, threshold=100.0)
    assert measure(event).name == "recoveries"
    assert rows_of(event) == {"so far": "1", "at most": "100"}


def test_number_of_a_policy_is_its_own() -> None:
    """A limit on the outputs is no deviation of them, whatever the kind."""
    event = event_with("output_degenerate", "policy: output", value=-49.2, threshold=-0.1)
    assert measure(event).name == "value"
    assert rows_of(event) == {"at this event": "-49.2", "limit": "-0.1"}


def test_divergence_below_zero_is_compared_with_the_step_before_it() -> None:
    baseline = {"median": 1.5, "mad": 0.1, "step": 1015.0}
    event = event_with("loss_divergence", "loss", value=-17529.0, threshold=-3.0, baseline=baseline)
    assert rows_of(event) == {
        "at this event": "-17,529",
        "threshold": "-3",
        "median around that step": "1.5",
        "median absolute deviation (MAD)": "0.1",
        "before it, at step": "1,015",
    }


def test_update_ratio_that_is_low_has_two_numbers_with_two_names() -> None:
    event = event_with("update_ratio_low", "update_ratio", value=0.0, threshold=1e-7)
    assert rows_of(event) == {"median of the parameters": "0", "threshold": "1.000e-07"}
    assert measure(event).neighbours == "whole model"


def test_neighbours_that_end_with_the_event_s_own_value_are_not_before_it() -> None:
    own = event_with("overfitting", neighbours=[(110, 1.0), (120, 2.0)])
    assert own.step == 120
    assert neighbour_title(own) == "The 2 steps up to this one"
    assert (
        neighbour_title(event_with("loss_spike", neighbours=[(118, 1.0), (119, 2.0)])) == "The 2 steps before"
    )


def test_steps_are_called_what_they_are() -> None:
    """Those that a median is of are not those that a fault has lasted."""
    spike = event_with("loss_spike", "loss", value=9.0, baseline={"median": 2.0, "steps": 64.0})
    assert rows_of(spike)["steps of the median"] == "64"
    assert rows_of(event_with("zero_gradient", value=0.0, baseline={"steps": 15.0}))["steps"] == "15"


@pytest.mark.parametrize("subject", ["input", "output", "input 1", "output 12"])
def test_mended_copies_have_the_number_of_the_policy(subject: str) -> None:
    event = event_with("recovery", subject, value=-49.2, threshold=-0.1)
    assert measure(event).name == "value"
    assert rows_of(event) == {"at this event": "-49.2", "limit": "-0.1"}


@pytest.mark.parametrize("subject", ["retry 1", "skip 2", "split 3", "declined 1"])
def test_what_is_tried_again_has_failed_so_often(subject: str) -> None:
    """A step counts its attempts against those allowed, an inference against the retries."""
    event = event_with("recovery", subject, value=1.0, threshold=2.0)
    assert measure(event).name == "attempts"
    assert rows_of(event) == {"failed": "1"}
