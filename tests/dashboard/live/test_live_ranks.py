"""The view Ranks in the live feed: for pages that have it open, one answer for all of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import rank_runs
from page_store import PageStore
from test_live_codec import Client

from dashboard.live.hub import ranks_interval
from dashboard.live.message import ClientView
from dashboard.live.pictures import Picture, Pictures, question_of
from dashboard.live.view import Subscription
from dashboard.store.duck import DuckStore

WISH = Subscription(id=1, run="demo-run", ranks="grad_norm")


@pytest.fixture
def store() -> PageStore:
    filled = PageStore()
    rank_runs.fill_ranks(filled, ranks=range(8), steps=range(40))
    return filled


@pytest.fixture
def duck(tmp_path: Path) -> Iterator[DuckStore]:
    opened = DuckStore(tmp_path)
    yield opened
    opened.close()


def matrix(picture: Picture) -> np.ndarray:
    """(ranks, columns) values, below the row of medians."""
    (track,) = [each for each in picture.tracks if each.index_key == "ranks/steps"]
    return track.values.reshape(len(track.index), track.rows).T


def test_look_without_the_view_open_reads_no_ranks(store: PageStore) -> None:
    picture = Pictures(store).look(Subscription(id=1, run="demo-run"), with_data=True)
    assert picture.fields["ranks"] is None and store.reads["rank_scalars"] == 0
    assert not [each for each in picture.tracks if each.index_key.startswith("ranks")]
    assert picture.status.fields["rankCount"] == 8


def test_look_values_and_median_are_those_of_the_ranks(store: PageStore) -> None:
    found = matrix(Pictures(store).look(WISH, with_data=True))
    values = np.array(
        [[rank_runs.scalars(rank, step)["grad_norm"] for step in range(40)] for rank in range(8)]
    )
    np.testing.assert_allclose(found[1:], values, rtol=1e-6)
    np.testing.assert_allclose(found[0], np.median(values, axis=0), rtol=1e-6)


@pytest.mark.parametrize("statistic", ["grad_norm", "loss", "step_time", "own_work"])
def test_look_both_stores_answer_the_same(store: PageStore, duck: DuckStore, statistic: str) -> None:
    def damage(rank: int, step: int, values: dict[str, float]) -> None:
        if rank == 3 and step > 50:
            values["loss"] = values["grad_norm"] = math.nan
        if rank == 4 and step == 60:
            values["step_time_s"] = math.inf

    for each in (store, duck):
        rank_runs.fill_ranks(each, ranks=[0, 3, 4, 6], steps=range(40, 64), world_size=8, change=damage)
    wish = Subscription(id=1, run="demo-run", ranks=statistic, first=40)
    plain, real = (Pictures(each).look(wish, with_data=True) for each in (store, duck))
    rows = [0, 1, 4, 5, 7]  # the median apart, the ranks that both have in these steps
    np.testing.assert_allclose(matrix(plain)[rows[1:]], matrix(real)[rows[1:]], rtol=1e-6)
    assert real.fields["ranks"]["present"] == (True, False, False, True, True, False, True, False)
    assert plain.fields["ranks"]["caption"] == real.fields["ranks"]["caption"]
    assert set(real.fields["ranks"]["statistics"]) == {"grad_norm", "loss", "step_time", "own_work"}


def test_look_says_not_measured_nan_and_inf_apart(duck: DuckStore) -> None:
    def damage(rank: int, step: int, values: dict[str, float]) -> None:
        bad = {1: math.nan, 2: math.inf, 3: -math.inf}.get(step)
        if rank == 0 and bad is not None:
            values["loss"] = bad

    rank_runs.fill_ranks(duck, ranks=range(3), steps=range(6), world_size=4, change=damage)
    found = matrix(Pictures(duck).look(Subscription(id=1, run="demo-run", ranks="loss"), with_data=True))
    assert math.isnan(found[1, 1]) and found[1, 2] == found[1, 3] == math.inf
    assert (found[4] == -math.inf).all()
    assert np.isfinite(found[0]).all(), "the median leaves out what is not finite"


def test_look_values_that_are_there_now_and_then_fill_their_columns(duck: DuckStore) -> None:
    def now_and_then(rank: int, step: int, values: dict[str, float]) -> None:
        if step >= 100 and step % 10 == 0:  # before that the level was another one
            values["own_grad_norm"] = 1.0 + rank + step

    rank_runs.fill_ranks(duck, ranks=range(4), steps=range(200), change=now_and_then)
    wish = Subscription(id=1, run="demo-run", ranks="own_grad_norm")
    picture = Pictures(duck).look(wish, with_data=True)
    fields = picture.fields["ranks"]
    assert (fields["stepsPerColumn"], fields["pooled"]) == (16, "largest of 16 steps")
    assert "own_grad_norm" in fields["statistics"] and "before" in fields["caption"]
    rows = matrix(picture)[1:]
    assert np.isfinite(rows[:, 6:12]).all(), "steps 96 to 191"
    assert rows[2, 6] == 1 + 2 + 110, "the largest of 100 and 110"
    every = Pictures(duck).look(Subscription(id=1, run="demo-run", ranks="loss"), with_data=True)
    assert every.fields["ranks"]["stepsPerColumn"] == 1


def test_look_pages_with_other_ranks_picked_share_the_answer(store: PageStore) -> None:
    pictures = Pictures(store)
    first = pictures.look(WISH, with_data=True)
    before = store.reads["rank_scalars"]
    second = pictures.look(Subscription(id=2, run="demo-run", ranks="grad_norm", rank=5), with_data=True)
    assert store.reads["rank_scalars"] == before
    assert second.fields["ranks"] is first.fields["ranks"] and second.status.fields["rank"] == 5


def test_look_after_news_is_a_new_answer(store: PageStore) -> None:
    pictures = Pictures(store)
    assert matrix(pictures.look(WISH, with_data=True)).shape == (9, 40)
    rank_runs.fill_ranks(store, ranks=range(8), steps=range(40, 44))
    assert matrix(pictures.look(WISH, with_data=True)).shape == (9, 44)


@pytest.mark.parametrize(
    ("took_s", "interval_s"), [(0.0, 1), (0.05, 1), (0.12, 2), (0.3, 3), (1.0, 4), (60, 4)]
)
def test_ranks_interval_leaves_most_of_the_time_to_others(took_s: float, interval_s: float) -> None:
    assert ranks_interval(took_s) == interval_s


def test_look_fault_before_a_restart_is_over(duck: DuckStore) -> None:
    rank_runs.fill_ranks(duck, ranks=range(4), steps=range(60), nan_from={2: 50, 3: 52})
    wish = Subscription(id=1, run="demo-run", ranks="step_time")
    pictures = Pictures(duck)
    assert "Rank 2 went NaN first" in str(pictures.look(wish, with_data=True).fields["ranks"]["remarks"])
    for rank in range(4):
        rank_runs.restart_rank(duck, rank)
    assert "NaN" not in str(pictures.look(wish, with_data=True).fields["ranks"]["remarks"])


def test_look_run_of_one_rank_has_no_ranks(store: PageStore) -> None:
    rank_runs.fill_ranks(store, ranks=[0], steps=range(5), run="alone")
    picture = Pictures(store).look(Subscription(id=1, run="alone", ranks="loss"), with_data=True)
    assert picture.fields["ranks"] is None and picture.status.fields["rankCount"] == 1


@pytest.mark.parametrize(("wanted", "shown"), [(3, 3), (9, 6), (4, 3), (0, 0)])
def test_look_rank_that_the_run_has_not_is_the_nearest(wanted: int, shown: int) -> None:
    store = PageStore()
    rank_runs.fill_ranks(store, ranks=[0, 3, 6], steps=range(3))
    picture = Pictures(store).look(Subscription(id=1, run="demo-run", rank=wanted), with_data=True)
    assert picture.status.fields["rank"] == shown


def test_look_before_the_first_step_has_rows_and_no_columns(duck: DuckStore) -> None:
    rank_runs.fill_ranks(duck, ranks=range(4), steps=range(0))
    picture = Pictures(duck).look(WISH, with_data=True)
    assert matrix(picture).shape == (5, 0) and picture.fields["ranks"]["ranks"] == (0, 1, 2, 3)


def test_look_remarks_name_first_bad_and_slow_rank(duck: DuckStore) -> None:
    rank_runs.fill_ranks(duck, ranks=range(8), steps=range(60), nan_from={2: 50, 3: 52}, slow=[6])
    said = Pictures(duck).look(WISH, with_data=True).fields["ranks"]["remarks"]
    assert said[0]["text"] == "Rank 2 went NaN first at step 50, 2 steps before any other"
    assert said[1]["text"].startswith("Rank 6 is slow: its own work takes 130 ms, of the others 60")


def test_message_names_of_hosts_travel_as_text(store: PageStore) -> None:
    hostile = PageStore()
    rank_runs.fill_ranks(
        hostile,
        ranks=range(2),
        steps=range(3),
        host_of=lambda rank: f"<img src=x onerror=alert({rank})>\u202e",
    )
    header = Client().decode(ClientView(Pictures(hostile)).message(WISH, with_data=True))
    assert header["ranks"]["hosts"] == [f"<img src=x onerror=alert({rank})>\u202e" for rank in range(2)]


def test_message_only_new_columns_travel(duck: DuckStore) -> None:
    rank_runs.fill_ranks(duck, ranks=range(8), steps=range(200))
    view, client = ClientView(Pictures(duck)), Client()
    client.decode(view.message(WISH, with_data=True))
    rank_runs.fill_ranks(duck, ranks=range(8), steps=range(200, 203))
    before = client.arrays["ranks/values"].copy()
    message = view.message(WISH, with_data=True)
    client.decode(message)
    assert len(client.arrays["ranks/values"]) == 203 * 9 and len(message) < 200 * 9 * 4
    np.testing.assert_array_equal(client.arrays["ranks/values"][: 200 * 9], before)


def test_question_unknown_statistic_is_the_default_and_a_closed_view_is_none() -> None:
    assert question_of(Subscription(id=1, ranks="no such")).ranks == "grad_norm"
    assert question_of(Subscription(id=1)).ranks == ""
