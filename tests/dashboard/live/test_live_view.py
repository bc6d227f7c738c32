"""What the live feed says about a store: choice of run, headline, heatmap codes, and that it costs pixels."""

from __future__ import annotations

import msgspec
import numpy as np
import page_runs
import pytest
from page_store import PageStore
from test_live_codec import Client

from dashboard.live.message import ClientView
from dashboard.live.pictures import Pictures
from dashboard.live.view import (
    CODE_FIRST,
    CODE_INF,
    CODE_NAN,
    CODE_ZERO,
    LOG10_HIGH,
    LOG10_LOW,
    Subscription,
    cell_codes,
    choose_run,
    code_limits,
    events_mark,
    step_range,
)
from dashboard.store.protocol import Heatmap, RankSummary
from probe.wire import Event

NAN, INF = float("nan"), float("inf")


def heatmap(values: list[list[float]], flags: list[list[int]]) -> Heatmap:
    return Heatmap(
        rows=tuple(f"layer{i}" for i in range(len(values))),
        row_kinds=("layer",) * len(values),
        steps=np.arange(len(values[0])),
        steps_per_column=1,
        values=np.array(values, dtype=np.float32),
        flags=np.array(flags, dtype=np.uint8),
    )


def test_choose_run_prefers_the_newest_that_runs() -> None:
    store = PageStore()
    for age, run in enumerate(("newest", "middle", "oldest")):
        page_runs.fill(store, steps=range(2), run=run, start_time=1e9 - age)
    page_runs.end_run(store, run="newest")
    assert choose_run(store.runs(), None).run == "middle"


def test_choose_run_unknown_wish_gives_none() -> None:
    store = PageStore()
    page_runs.fill(store, steps=range(2))
    assert choose_run(store.runs(), "other") is None


def test_wish_for_an_event_alone_shows_the_run_that_has_it() -> None:
    store, client = PageStore(), Client()
    for age, run in enumerate(("newest", "oldest")):
        page_runs.fill(store, steps=range(2), run=run, start_time=1e9 - age)
    event = msgspec.structs.replace(page_runs.event(1), run="oldest")
    page_runs.add_event(store, event)
    view = ClientView(Pictures(store))
    for with_data in (True, False):
        header = client.decode(view.message(Subscription(id=1, event=event.id), with_data=with_data))
        assert (header["run"], header["eventRun"]) == ("oldest", "oldest")
        header = client.decode(view.message(Subscription(id=2, event="0" * 16), with_data=with_data))
        assert (header["run"], header["eventRun"]) == ("newest", None), "an event that is nowhere"
    header = client.decode(view.message(Subscription(id=3, run="newest", event=event.id), with_data=True))
    assert header["run"] == "newest", "a run that is named is the one that is shown"
    assert "eventRun" not in header


def test_step_range_live_window_moves_in_jumps() -> None:
    def first(last_step: int) -> int | None:
        rank = RankSummary(
            rank=0, incarnation=1, state="running", first_step=0, last_step=last_step, last_time=0.0
        )
        return step_range(None, None, 320, rank).first

    assert len({first(last) for last in range(1000, 1010)}) <= 2
    assert 320 - 10 <= 1001 - first(1000) <= 320


def test_events_mark_changes_with_the_count_of_an_episode() -> None:
    event = page_runs.event(3)
    later = msgspec.structs.replace(event, count=2)
    assert events_mark([event]) != events_mark([later])


@pytest.mark.parametrize(
    "change", [{"severity": "info"}, {"message": "NaN\nBundle"}, {"propagated_to": ["head"]}, {"ended": True}]
)
def test_events_mark_changes_with_what_a_panel_shows(change: dict[str, object]) -> None:
    event = page_runs.event(3)
    assert events_mark([event]) == events_mark([page_runs.event(3)])
    assert events_mark([event]) != events_mark([msgspec.structs.replace(event, **change)])


@pytest.mark.parametrize("value", [1e-40, 3.25e-7, 1.0, 8.1, 2.5e30])
def test_cell_codes_keep_three_significant_digits(value: float) -> None:
    code = int(cell_codes(heatmap([[value]], [[1]]))[0, 0])
    log10 = LOG10_LOW + (code - CODE_FIRST) / (65535 - CODE_FIRST) * (LOG10_HIGH - LOG10_LOW)
    assert 10**log10 == pytest.approx(value, rel=2e-3)


def test_cell_codes_tell_bad_zero_and_unmeasured_apart() -> None:
    codes = cell_codes(heatmap([[NAN, NAN, 5.0, 0.0, NAN]], [[0, 1 | 2, 1 | 4, 1, 1 | 2 | 4]]))
    assert codes.tolist() == [[0, CODE_NAN, CODE_INF, CODE_ZERO, CODE_NAN | CODE_INF]]


def test_code_limits_ignore_one_exploding_cell() -> None:
    codes = cell_codes(heatmap([[1.0] * 999 + [1e30]], [[1] * 1000]))
    assert code_limits(codes)[1] <= codes[0, 0] + 1


def test_code_limits_of_counts_tell_the_smallest_from_none() -> None:
    codes = cell_codes(heatmap([[0.0, 1.0, 1.0, 4000.0]], [[1] * 4]))
    low, high = code_limits(codes, is_count=True)
    colour = (int(codes[0, 1]) - low) / (high - low)
    assert colour == pytest.approx(1 / (1 + np.log10(4000)), abs=0.01)


def test_message_second_one_carries_only_what_is_new() -> None:
    store, client = PageStore(), Client()
    page_runs.fill(store, steps=range(200))
    view = ClientView(Pictures(store))
    wish = Subscription(id=1)
    client.decode(view.message(wish, with_data=True))
    before = client.payload_elements
    page_runs.fill(store, steps=range(200, 203))
    client.decode(view.message(wish, with_data=True))
    layers = len(page_runs.layout().layers)
    assert client.payload_elements - before <= 3 * (layers + 1) + 3 * 2 * 9
    assert len(client.arrays["heatmap/codes"]) == 203 * layers


def test_message_of_a_long_run_costs_pixels_not_steps() -> None:
    store, client = PageStore(), Client()
    page_runs.fill(store, steps=range(3000))
    client.decode(
        ClientView(Pictures(store)).message(Subscription(id=1, points=64, columns=64), with_data=True)
    )
    assert max(len(array) for key, array in client.arrays.items() if key.endswith("/x")) <= 64
    assert len(client.arrays["heatmap/steps"]) <= 64


def test_message_after_unfolding_equals_a_fresh_one() -> None:
    store, client, fresh = PageStore(), Client(), Client()
    page_runs.fill(store, steps=range(50))
    view = ClientView(Pictures(store))
    client.decode(view.message(Subscription(id=1), with_data=True))
    folded = len(client.arrays["heatmap/codes"])
    unfolded = Subscription(id=2, unfolded=["embed"])
    client.decode(view.message(unfolded, with_data=True))
    fresh.decode(ClientView(Pictures(store)).message(unfolded, with_data=True))
    assert len(fresh.arrays["heatmap/codes"]) > folded
    np.testing.assert_array_equal(client.arrays["heatmap/codes"], fresh.arrays["heatmap/codes"])


def test_message_nan_loss_reaches_the_client_as_a_mark() -> None:
    store, client = PageStore(), Client()
    page_runs.fill(store, steps=range(10), bad={4: "nan", 7: "inf"})
    client.decode(ClientView(Pictures(store)).message(Subscription(id=1), with_data=True))
    assert client.arrays["loss/loss/nan/x"].tolist() == [4.0]
    assert client.arrays["loss/loss/inf/x"].tolist() == [7.0]
    assert client.arrays["loss/loss/line/x"].tolist() == list(range(10))


def test_message_without_data_has_tiles_but_no_arrays() -> None:
    store = PageStore()
    page_runs.fill(store, steps=range(10))
    header = Client().decode(ClientView(Pictures(store)).message(Subscription(id=1), with_data=False))
    assert header["arrays"] == []
    assert {tile["id"]: tile["value"] for tile in header["tiles"]}["step"] == "9"


def test_message_of_empty_store_has_no_run() -> None:
    header = Client().decode(ClientView(Pictures(PageStore())).message(Subscription(id=1), with_data=True))
    assert (header["run"], header["runs"]) == (None, [])


def test_message_run_list_is_sent_once() -> None:
    store, client = PageStore(), Client()
    page_runs.fill(store, steps=range(10))
    view = ClientView(Pictures(store))
    assert "runs" in client.decode(view.message(Subscription(id=1), with_data=False))
    assert "runs" not in client.decode(view.message(Subscription(id=1), with_data=False))


def test_message_range_makes_room_for_an_event_whose_frame_is_not_here_yet() -> None:
    store = PageStore()
    page_runs.fill(store, steps=range(20))
    page_runs.add_event(store, page_runs.event(24))
    header = Client().decode(ClientView(Pictures(store)).message(Subscription(id=1), with_data=True))
    assert header["range"] == [0, 25]
    assert header["eventEnd"] == 25


def level_event(step: int, level: str, *, rank: int = 0, incarnation: int = page_runs.INCARNATION) -> Event:
    plain = page_runs.event(step, kind="level_changed", severity="info", message=f"Level {level}")
    return msgspec.structs.replace(
        plain,
        id=f"{step:08x}{rank:04x}{incarnation % 16:04x}",
        subject=level,
        rank=rank,
        incarnation=incarnation,
    )


def header_level(*events: Event) -> dict[str, object]:
    store = PageStore()
    page_runs.fill(store, steps=range(10))
    for event in events:
        page_runs.add_event(store, event)
    return Client().decode(ClientView(Pictures(store)).message(Subscription(id=1), with_data=False))["level"]


def test_message_level_is_the_newest_one_of_this_rank_and_start() -> None:
    assert header_level() == {"name": "basic", "since": None}
    assert header_level(level_event(4, "off")) == {"name": "off", "since": 4}
    assert header_level(level_event(4, "off"), level_event(6, "extreme")) == {"name": "extreme", "since": 6}


def test_message_level_of_another_start_does_not_count() -> None:
    old = level_event(4, "off", incarnation=page_runs.INCARNATION - 1)
    assert header_level(old, page_runs.event(5)) == {"name": "basic", "since": None}


def test_message_says_whether_there_are_histograms_and_when_new_ones_come() -> None:
    store, client = PageStore(), Client()
    view = ClientView(Pictures(store))

    def mark() -> int | None:
        return client.decode(view.message(Subscription(id=1), with_data=False))["histograms"]

    page_runs.fill(store, steps=range(3))
    assert mark() is None
    page_runs.fill(store, steps=range(3, 30), is_full=True)
    first = mark()
    page_runs.fill(store, steps=range(30, 40), is_full=True)
    assert mark() == first is not None
    page_runs.fill(store, steps=range(40, 41), is_full=True)
    assert mark() != first


def test_message_says_how_much_room_runs_take() -> None:
    view = ClientView(Pictures(PageStore(), storage=lambda: "Spool 58.0 MiB in 43 runs"))
    assert (
        Client().decode(view.message(Subscription(id=1), with_data=False))["storage"]
        == "Spool 58.0 MiB in 43 runs"
    )
