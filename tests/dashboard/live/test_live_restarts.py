"""A run that is started again under its id: what the page is sent is the newest start's, and says so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import page_runs
import pytest
from store_reference import RUN, begin, make_event, make_frame, stream_key
from test_live_codec import Client

from dashboard.export.html import export_html
from dashboard.export.json import export_json
from dashboard.live.message import ClientView
from dashboard.live.pictures import Pictures
from dashboard.live.view import Subscription
from dashboard.page.callbacks.events import rows_part
from dashboard.page.event_feed import EventFeed
from dashboard.store.duck import DuckStore
from probe.wire import StreamKey, encode


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DuckStore]:
    opened = DuckStore(tmp_path)
    yield opened
    opened.close()


def train(store: DuckStore, number: int, steps: range, *, loss: float, commit: bool = True) -> StreamKey:
    """Write the steps of one start; every loss of it is `loss`, its memory `loss` GiB at every tenth step."""
    key = begin(store, incarnation=number, now=float(number))
    add(store, key, steps, loss=loss, commit=commit)
    return key


def add(store: DuckStore, key: StreamKey, steps: range, *, loss: float, commit: bool = True) -> None:
    frames = []
    for step in steps:
        scalars = {"loss": loss, "grad_norm": loss, "step_time_s": 0.1}
        if step % 10 == key.writer.count("2"):
            scalars["process_rss_bytes"] = loss * 2**30
        frames.append(make_frame(step, {"grad_norm": [loss] * 3}, scalars=scalars))
    store.append(key, store.position(key).next_seq, frames)
    if commit:
        store.commit()


def look(store: DuckStore, client: Client | None = None, **wish: Any) -> dict[str, Any]:
    message = ClientView(Pictures(store)).message(Subscription(id=1, run=RUN, **wish), with_data=True)
    return (client or Client()).decode(message)


def tiles(header: dict[str, Any]) -> dict[str, str]:
    return {tile["id"]: tile["value"] for tile in header["tiles"]}


def places(header: dict[str, Any]) -> list[tuple[int, str]]:
    return [(each["step"], each["kind"]) for each in header["breaks"]]


@pytest.mark.parametrize("commit", [True, False])
def test_restart_at_zero_newest_values_are_the_newest_starts(store: DuckStore, commit: bool) -> None:
    train(store, 1000, range(1000), loss=7.0)
    train(store, 2000, range(6), loss=3.0, commit=commit)
    header = look(store)
    assert (tiles(header)["step"], tiles(header)["loss"], tiles(header)["grad_norm"]) == ("5", "3", "3")
    assert header["newestStep"] == 5 and header["range"] == [0, 6]
    assert places(header) == [(0, "restart"), (6, "restart")]
    assert "had come to step 999" in header["breaks"][0]["text"]


def test_restart_at_zero_whole_line_ends_with_the_newest_step(store: DuckStore) -> None:
    train(store, 1000, range(1000), loss=7.0)
    train(store, 2000, range(6), loss=3.0)
    for wish in ({}, {"window": 200}):
        client = Client()
        look(store, client, points=64, **wish)
        assert client.arrays["loss/loss/line/x"].tolist() == [0, 1, 2, 3, 4, 5]
        assert set(client.arrays["loss/loss/line/y"].tolist()) == {3.0}


def test_zoom_over_a_restart_shows_both_with_a_hole_between(store: DuckStore) -> None:
    train(store, 1000, range(40), loss=7.0)
    train(store, 2000, range(6), loss=3.0)
    client = Client()
    header = look(store, client, first=0, end=12)
    line = client.arrays["loss/loss/line/y"]
    assert client.arrays["loss/loss/line/x"].tolist() == [0, 1, 2, 3, 4, 5, 5.5, *range(6, 12)]
    assert line[:6].tolist() == [3.0] * 6 and line[6] != line[6] and line[7:].tolist() == [7.0] * 6
    assert header["range"] == [0, 12]


@pytest.mark.parametrize("commit", [True, False])
def test_series_that_few_steps_have_shows_nothing_of_the_old_start_between(
    store: DuckStore, commit: bool
) -> None:
    train(store, 1000, range(40), loss=7.0)
    train(store, 2000, range(35), loss=3.0, commit=commit)
    memory = store.scalars(RUN, 0, ["process_rss_bytes"])
    assert memory["step"].tolist() == [1, 11, 21, 31], "not 0, 10, 20 and 30 of the first start"


def test_resume_from_a_checkpoint_keeps_what_was_before_in_view(store: DuckStore) -> None:
    train(store, 1000, range(650), loss=7.0)
    key = train(store, 2000, range(600, 620), loss=3.0)
    header = look(store)
    assert header["range"] == [0, 620] and places(header) == [(600, "restart"), (620, "restart")]
    add(store, key, range(620, 700), loss=3.0)
    client = Client()
    header = look(store, client, points=1984)
    assert header["range"] == [0, 700] and places(header) == [(600, "restart")]
    assert 599.5 in client.arrays["loss/loss/line/x"].tolist()


def test_resume_at_a_later_step_has_a_mark_and_a_hole(store: DuckStore) -> None:
    train(store, 1000, range(40), loss=7.0)
    train(store, 2000, range(60, 80), loss=3.0)
    header = look(store)
    assert header["range"] == [0, 80] and places(header) == [(60, "restart")]


def test_loop_that_goes_back_within_one_start(store: DuckStore) -> None:
    key = train(store, 1000, range(50), loss=7.0)
    add(store, key, range(20, 25), loss=3.0)
    header = look(store)
    assert tiles(header)["loss"] == "3" and places(header) == [(20, "restart"), (25, "restart")]
    assert header["range"] == [0, 25]


def test_restart_before_its_first_step_shows_no_value_of_the_old_one(store: DuckStore) -> None:
    train(store, 1000, range(50), loss=7.0)
    begin(store, incarnation=2000, now=2000.0)
    header = look(store)
    assert (tiles(header)["loss"], tiles(header)["step"]) == ("\u2013", "\u2013")
    assert header["range"] == [0, 50] and header["newestStep"] is None


def test_healthy_restart_without_an_event_is_no_longer_said_to_have_a_nan(store: DuckStore) -> None:
    train(store, 1000, range(50), loss=7.0)
    store.append(stream_key("events"), 2, [encode(make_event(1, step=49))])
    assert look(store)["verdict"]["severity"] == "critical"
    train(store, 2000, range(6), loss=3.0)
    header = look(store)
    said = "".join(part for part, _ in header["verdict"]["parts"])
    assert said == "No warnings in 6 steps; before the restart at step 0: a NaN"
    assert header["verdict"]["severity"] == "none" and header["verdict"]["counts"] == [1, 0]
    part = rows_part(store, EventFeed(), {"run": RUN})
    assert [row["id"] for row in part["rows"]] == [f"{1:016x}"], "the list of events has it as before"


def test_event_from_before_a_restart_does_not_stretch_the_axis(store: DuckStore) -> None:
    train(store, 1000, range(50), loss=7.0)
    store.append(StreamKey(run=RUN, writer="0-1000", stream="events"), 2, [encode(make_event(1, step=45))])
    train(store, 2000, range(6), loss=3.0)
    header = look(store)
    assert header["range"] == [0, 6] and header["eventEnd"] is None


def test_restarts_survive_the_store(tmp_path: Path) -> None:
    store = DuckStore(tmp_path)
    key = train(store, 1000, range(50), loss=7.0)
    add(store, key, range(20, 25), loss=3.0)
    train(store, 2000, range(3), loss=1.0)
    before = store.starts(RUN)
    assert [each.returns for each in before] == [((20, 49),), ()]
    store.close()
    store = DuckStore(tmp_path)
    assert store.starts(RUN) == before and store.starts(RUN, 1) == store.starts("none") == []
    store.close()


def test_exports_have_the_same_breaks(store: DuckStore) -> None:
    train(store, 1000, range(40), loss=7.0)
    train(store, 2000, range(6), loss=3.0)
    document = json.loads(json.dumps(export_json(store, RUN), allow_nan=False))
    assert document["breaks"] == look(store)["breaks"]
    assert [(each["first_step"], each["last_step"]) for each in document["starts"]] == [(0, 39), (0, 5)]
    page = export_html(store, RUN)
    assert "from step 6 on: values from before the restart" in page
    assert page.count('"dash":"dot"') >= 2


def test_run_that_was_started_once_has_no_break(store: DuckStore) -> None:
    page_runs.fill(store, steps=range(20))
    header = ClientView(Pictures(store)).message(Subscription(id=1, run="demo-run"), with_data=True)
    assert Client().decode(header)["breaks"] == []
