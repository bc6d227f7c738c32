"""The newest points of the tracks between two pictures: all that a page lacks, or none."""

from __future__ import annotations

import math

import page_runs
import pytest
from page_store import PageStore
from test_live_codec import Client

from dashboard.live.message import ClientView
from dashboard.live.newest import Edge, NewestPoints, points_after
from dashboard.live.pictures import Pictures
from dashboard.live.view import Subscription

LOSSES = ([3, 5, 8], [0.3, 0.5, 0.8])


def points(*, first: int = 2, end: int = 9, incarnation: int = 1) -> NewestPoints:
    return NewestPoints(edge=Edge(incarnation=incarnation, end=end), first=first, lines={"loss": LOSSES})


@pytest.mark.parametrize(
    ("end", "found"),
    [
        (4, {"loss": ([5, 8], [0.5, 0.8])}),
        (5, {"loss": ([5, 8], [0.5, 0.8])}),
        (2, {"loss": LOSSES}),
        (1, {}),
        (9, {}),
    ],
)
def test_points_after_an_edge_are_all_that_follow_or_none(end: int, found: dict[str, object]) -> None:
    assert points_after(Edge(incarnation=1, end=end), points()) == found


def test_points_of_another_start_are_left_to_the_picture() -> None:
    assert points_after(Edge(incarnation=1, end=4), points(incarnation=2)) == {}


def told(store: PageStore, view: ClientView, client: Client, wish: Subscription) -> dict[str, object] | None:
    return client.decode(view.message(wish, with_data=False)).get("newest")


def test_status_has_the_steps_since_the_picture_and_the_next_picture_takes_them() -> None:
    store, client, wish = PageStore(), Client(), Subscription(id=1, run="demo-run")
    view = ClientView(Pictures(store))
    page_runs.fill(store, steps=range(40))
    assert told(store, view, client, wish) is None, "no picture yet"
    client.decode(view.message(wish, with_data=True))
    assert told(store, view, client, wish) is None, "nothing new"
    page_runs.fill(store, steps=range(40, 43), bad={41: "nan"})
    newest = told(store, view, client, wish)
    assert [newest[name][0] for name in ("loss", "grad_norm")] == [[40, 41, 42]] * 2
    client.decode(view.message(wish, with_data=True))
    drawn = dict(zip(client.arrays["loss/loss/line/x"], client.arrays["loss/loss/line/y"], strict=True))
    for step, value in zip(*newest["loss"], strict=True):
        assert value == pytest.approx(drawn[step]) if value is not None else math.isnan(drawn[step])
    assert newest["loss"][1].count(None) == 1
    assert told(store, view, client, wish) is None


def test_status_skips_no_step_that_nobody_has_read() -> None:
    store, client, wish = PageStore(), Client(), Subscription(id=1, run="demo-run")
    view = ClientView(Pictures(store))
    page_runs.fill(store, steps=range(40))
    client.decode(view.message(wish, with_data=True))
    page_runs.fill(store, steps=range(40, 200))
    assert told(store, view, client, wish) is None


@pytest.mark.parametrize("wish", [{"paused": True}, {"first": 3, "end": 20}, {"id": 2}])
def test_status_of_a_page_that_shows_other_steps_has_no_points(wish: dict[str, object]) -> None:
    store, client = PageStore(), Client()
    view = ClientView(Pictures(store))
    page_runs.fill(store, steps=range(40))
    client.decode(view.message(Subscription(id=1, run="demo-run"), with_data=True))
    page_runs.fill(store, steps=range(40, 43))
    assert told(store, view, client, Subscription(**{"id": 1, "run": "demo-run", **wish})) is None
