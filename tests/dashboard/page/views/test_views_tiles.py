"""Tiles: texts with units and sensible digits."""

from __future__ import annotations

import pandas as pd
import pytest

from dashboard.page.layout import TRACKS
from dashboard.page.views.tiles import TILES, TileText, significant, tile_texts

COLUMNS = ["name", "step", "time", "min", "mean", "max", "nan", "inf", "pooled"]
NAN = float("nan")


def table(**series: list[float]) -> pd.DataFrame:
    rows = [
        (name, step, 0.0, value, value if abs(value) != float("inf") else NAN, value,
         int(value != value), int(abs(value) == float("inf")), 1)
        for name, values in series.items()
        for step, value in enumerate(values)
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=COLUMNS)


def texts(last_step: int | None = 41_200, **series: list[float]) -> dict[str, TileText]:
    data = table(**series)
    return {tile.id: tile for tile in tile_texts(data, data, last_step=last_step)}


def test_tiles_say_newest_values_with_units() -> None:
    said = texts(
        loss=[3.0, 1.04321],
        grad_norm=[1.0],
        step_time_s=[0.1, 0.3],
        probe_fraction=[0.011],
        process_rss_bytes=[1e9, 2.0**30],
    )
    assert {id_: f"{tile.value} {tile.unit}".strip() for id_, tile in said.items()} == {
        "step": "41,200",
        "loss": "1.043",
        "grad_norm": "1",
        "speed": "5 steps/s",
        "memory": "1,024 MiB",
        "probe": "1.1 % of step",
    }


def test_tiles_of_tracks_have_the_newest_value_of_each_line() -> None:
    said = texts(loss=[3.0, 1.04321], grad_norm=[4.0, 5.0], grad_norm_clipped=[1.0, NAN])
    assert said["loss"].lines == {"loss": "1.043"}
    assert said["grad_norm"].lines == {"grad_norm": "5", "grad_norm_clipped": "NaN"}
    assert texts(grad_norm=[2.0])["grad_norm"].lines == {"grad_norm": "2"}
    assert said["speed"].lines == {}


@pytest.mark.parametrize(("value", "text"), [(NAN, "NaN"), (float("inf"), "Inf")])
def test_tiles_bad_newest_value_is_named(value: float, text: str) -> None:
    tile = texts(loss=[1.0, value])["loss"]
    assert (tile.value, tile.is_bad) == (text, True)


def test_tiles_bad_value_of_an_earlier_step_is_past() -> None:
    assert texts(loss=[NAN, 1.0])["loss"].is_bad is False


def test_tiles_without_data_show_dashes_not_zeros() -> None:
    assert {(tile.value, tile.unit) for tile in texts(last_step=None).values()} == {("\u2013", "")}


def test_tiles_probe_cost_by_comparison_is_a_second_line_once_it_is_known() -> None:
    tile = texts(probe_fraction=[0.0041], step_time_added=[-0.002], step_time_added_half_width=[0.0091])[
        "probe"
    ]
    assert (tile.value, tile.detail) == ("0.4", "\u22120.2 % \u00b1 0.9 step time")
    assert "95 % interval" in tile.hint
    assert texts(probe_fraction=[0.0041])["probe"].detail == ""


def test_tiles_tiny_probe_cost_is_not_said_to_be_nothing() -> None:
    assert texts(probe_fraction=[0.0004])["probe"].value == "< 0.1"


def test_tiles_ids_are_those_of_the_layout() -> None:
    assert list(texts()) == ["step", *TRACKS, *(id_ for id_, _ in TILES)]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1.23456, "1.235"),
        (12345.6, "12,346"),
        (1.5e-7, "1.50e-07"),
        (2e9, "2.00e+09"),
        (-0.5, "-0.5"),
    ],
)
def test_significant_keeps_four_digits(value: float, text: str) -> None:
    assert significant(value) == text
