"""Live line charts of everything that the probe measures: what is sent, what is left out, what it costs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import page_runs
import pytest
from page_store import PageStore
from test_live_codec import Client

from dashboard.live.message import ClientView
from dashboard.live.pictures import Pictures
from dashboard.live.view import Subscription
from dashboard.page.views.chart_specs import MAX_LOGGED
from dashboard.store.duck import DuckStore
from probe.wire import Frame, encode


@pytest.fixture
def store(tmp_path: Path):
    opened = DuckStore(tmp_path)
    page_runs.fill(opened, steps=range(100), is_full=True)
    yield opened
    opened.close()


def look(store, client: Client | None = None, **wish) -> dict:
    message = ClientView(Pictures(store)).message(Subscription(id=1, **wish), with_data=True)
    return (client or Client()).decode(message)


def test_message_run_that_measures_little_has_no_chart_of_the_rest() -> None:
    store = PageStore()
    page_runs.fill(store, steps=range(10))
    charts = look(store)["charts"]
    shown = {id_ for id_, chart in charts.items() if chart["present"]}
    assert shown == {"loss", "grad_norm", "memory", "step_time", "steps_per_s", "machine_memory"}


def test_message_full_run_has_every_chart_and_its_marks(store: DuckStore) -> None:
    client = Client()
    charts = look(store, client)["charts"]
    assert all(chart["present"] and chart["series"] for chart in charts.values())
    assert charts["grad_norm"]["marks"] == {"clip_fired": "clipped in 30 % of the steps"}
    assert client.arrays["grad_norm/clip_fired/mark/x"][:2].tolist() == [-0.5, 2.5]
    assert charts["amp"]["marks"] == {"amp_skipped_updates": "skipped updates: 1"}
    assert client.arrays["amp/amp_skipped_updates/mark/x"].tolist() == [7.0]
    assert client.arrays["update_ratio/update_ratio/line/x"].tolist() == list(range(0, 100, 10))


def test_message_series_outside_the_range_is_present_and_not_drawn(store: DuckStore) -> None:
    chart = look(store, first=11, end=15)["charts"]["update_ratio"]
    assert (chart["present"], chart["series"]) == (True, [])


def test_message_users_series_travel_only_while_their_section_is_open(store: DuckStore) -> None:
    closed, opened = Client(), Client()
    names = ["log/<b>bold</b>", "log/accuracy"]
    assert look(store, closed)["logged"] == {"names": names, "count": 2}
    assert not [key for key in closed.arrays if key.startswith("log/")]
    assert set(names) <= set(look(store, opened, logged=True)["charts"])
    np.testing.assert_allclose(opened.arrays["log/accuracy/log/accuracy/line/y"][-1], 0.099, rtol=1e-6)


def test_message_very_many_users_series_are_counted_and_the_first_ones_sent(store: DuckStore) -> None:
    scalars = {f"log/{number:03d}": 1.0 for number in range(200)}
    key = page_runs.key("metrics")
    store.append(key, store.position(key).next_seq, [encode(Frame(step=100, time=1e9, scalars=scalars))])
    header = look(store, logged=True)
    assert (header["logged"]["count"], len(header["logged"]["names"])) == (202, MAX_LOGGED)
    assert sum(id_.startswith("log/") for id_ in header["charts"]) == MAX_LOGGED


def test_message_second_one_of_a_full_run_carries_little(store: DuckStore) -> None:
    client, view = Client(), ClientView(Pictures(store))
    wish = Subscription(id=1, statistic="activation_rms")
    client.decode(view.message(wish, with_data=True))
    before = client.payload_elements
    page_runs.fill(store, steps=range(100, 120), is_full=True)
    message = view.message(wish, with_data=True)
    client.decode(message)
    assert client.payload_elements - before < 20 * 70
    assert len(message) < 15_500


def test_message_heatmap_shows_what_was_asked_for(store: DuckStore) -> None:
    client = Client()
    fields = look(store, client, statistic="activation_rms")["heatmap"]
    assert (fields["statistic"], fields["every"], fields["stepsPerColumn"]) == ("activation_rms", 5, 8)
    assert fields["rows"][:2] == ["", "blocks.0.norm1"] and set(fields["kinds"]) == {"module"}
    assert fields["note"] == "1 step in 5 measured, max of 8 steps a column"
    codes = client.arrays["heatmap/codes"].reshape(13, fields["rowCount"])
    assert (codes[:-1] > 0).all() and not codes[-1].any(), "the next sample is still to come"
    counts = ["activation_nan_count", "activation_inf_count"]
    assert fields["statistics"] == ["grad_norm", "update_ratio", "activation_rms", *counts, "saved_bytes"]


def test_message_heatmap_of_what_the_run_lacks_is_empty_and_stays_chosen(store: DuckStore) -> None:
    fields = look(store, statistic="dead_units")["heatmap"]
    assert (fields["statistic"], fields["hasValues"]) == ("dead_units", False)
    assert "dead_units" in fields["statistics"]


def test_message_heatmap_of_what_does_not_exist_is_the_default(store: DuckStore) -> None:
    assert look(store, statistic="<script>")["heatmap"]["statistic"] == "grad_norm"


def test_message_after_another_choice_equals_a_fresh_one(store: DuckStore) -> None:
    client, fresh, view = Client(), Client(), ClientView(Pictures(store))
    client.decode(view.message(Subscription(id=1), with_data=True))
    header = client.decode(view.message(Subscription(id=2, statistic="update_ratio"), with_data=True))
    look(store, fresh, statistic="update_ratio")
    for key in ("heatmap/codes", "heatmap/steps"):
        np.testing.assert_array_equal(client.arrays[key], fresh.arrays[key])
    assert "rows" not in header["heatmap"], "the same layers need not be named again"


def test_message_tile_says_both_costs(store: DuckStore) -> None:
    tile = next(tile for tile in look(store)["tiles"] if tile["id"] == "probe")
    assert (tile["value"], tile["unit"], tile["detail"]) == (
        "1.1", "% of step", "+0.3 % \u00b1 0.9 step time",
    )  # fmt: skip
