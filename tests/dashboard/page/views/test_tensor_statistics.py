"""Statistics of a tensor as the panel shows them: order, gaps, the last values, and what is not recorded."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dashboard.page.views.tensor_statistics import NEWEST, newest_values, not_recorded, tracks_data
from dashboard.store.protocol import TensorTrack
from probe.settings.levels import LEVEL_FEATURES


def track(name: str, values: list[float | None], *, size: int = 1, kind: str = "parameter") -> TensorTrack:
    """None was not measured."""
    numbers = np.array([np.nan if value is None else value for value in values], np.float32)
    flags = [
        0 if value is None else 1 | 2 * bool(np.isnan(value)) | 4 * bool(np.isinf(value)) for value in values
    ]
    return TensorTrack(
        name=name,
        kind=kind,
        steps=np.arange(len(values)) * size,
        steps_per_column=size,
        values=np.where(np.isfinite(numbers), numbers, np.float32(np.nan)),
        flags=np.array(flags, np.uint8),
    )


def test_tracks_stand_in_one_order_and_hold_what_was_measured() -> None:
    nan, inf = float("nan"), float("inf")
    found = [track("update_ratio", [None, 0.001, None]), track("grad_norm", [0.123456789, nan, inf])]
    shown = tracks_data(found, [])["tracks"]
    assert [each["label"] for each in shown] == ["Gradient norm", "Update-to-weight ratio"]
    assert shown[0]["values"] == [0.12346, None, None] and shown[0]["flags"] == [1, 3, 5]
    assert shown[1]["steps"] == [1] and shown[1]["values"] == [0.001]
    assert json.loads(json.dumps(tracks_data(found, found))) == tracks_data(found, found)


def test_tracks_say_that_there_was_no_nan_and_are_silent_on_inf() -> None:
    none = [track("grad_nan_count", [0.0, 0.0]), track("grad_inf_count", [0.0, 0.0])]
    assert [each["name"] for each in tracks_data(none, none)["tracks"]] == ["grad_nan_count"]
    some = [track("grad_inf_count", [0.0, 3.0])]
    assert [each["name"] for each in tracks_data(some, some)["tracks"]] == ["grad_inf_count"]


def test_tracks_of_unknown_statistics_are_left_out() -> None:
    assert tracks_data([track("gradient_cosine", [0.5]), track("<b>", [1.0])], [])["tracks"] == []


def test_newest_values_are_the_last_measured_ones_newest_first() -> None:
    norm = track("grad_norm", [float(step) for step in range(50)])
    ratio = track("update_ratio", [float(step) if step % 10 == 0 else None for step in range(50)])
    table = newest_values([norm, ratio])
    assert [label for label, _ in table["columns"]] == ["Gradient norm", "Update-to-weight ratio"]
    steps = [step for step, _ in table["rows"]]
    assert steps == list(range(49, 49 - NEWEST, -1))
    by_step = dict(table["rows"])
    assert by_step[40] == [[40.0, 1], [40.0, 1]] and by_step[41] == [[41.0, 1], None]


def test_newest_values_of_what_is_sampled_go_further_back() -> None:
    table = newest_values([track("activation_rms", [1.0 if step % 7 == 0 else None for step in range(200)])])
    assert [step for step, _ in table["rows"]] == [step for step in range(199, -1, -1) if step % 7 == 0][:20]
    assert newest_values([])["rows"] == []


@pytest.mark.parametrize("present", [{"grad_norm"}, set()])
def test_not_recorded_names_the_lowest_level_that_records_it(present: set[str]) -> None:
    lines = not_recorded(present, ["parameter"])
    said = [line.children[0] for line in lines]
    (text,) = [each for each in said if each.startswith("Histograms")]
    period = LEVEL_FEATURES["advanced"].histograms
    assert f"from level advanced on, every {period} steps" in text
    assert LEVEL_FEATURES["basic"].histograms == 0
    assert any(each.startswith("Gradient norms") for each in said) is not bool(present)
    assert not any(each.startswith("Statistics of outputs") for each in said)


def test_not_recorded_says_nothing_of_what_is_there_or_of_an_unknown_name() -> None:
    everything = {
        "histogram",
        "grad_norm",
        "update_ratio",
        "parameter_norm",
        "parameter_max_abs",
        "activation_rms",
        "activation_gradient_norm",
    }
    assert not_recorded(everything, ["layer", "module"]) == []
    assert not_recorded([], []) == []
