"""What pages share: one read for one question, new pictures for new data, and nothing of each other's."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import page_runs
import pytest
from page_store import PageStore
from test_live_codec import Client

from dashboard.live.answers import Answers
from dashboard.live.message import ClientView
from dashboard.live.pictures import Picture, Pictures, question_of
from dashboard.live.view import Subscription
from dashboard.store.duck import DuckStore
from dashboard.store.protocol import StepNote

WISH = Subscription(id=1, run="demo-run")


@pytest.fixture
def store() -> PageStore:
    filled = PageStore()
    page_runs.fill(filled, steps=range(50))
    return filled


def answers(**limits: int) -> Answers[str, str]:
    return Answers(size_bytes=len, **limits)


def arrays(picture: Picture) -> dict[str, np.ndarray]:
    pairs = [((t.index_key, t.index), (t.values_key, t.values)) for t in picture.tracks]
    return dict(pair for both in pairs for pair in both)


# ---------------------------------------------------------------------------------------------- answers


def test_ask_again_at_one_revision_is_worked_out_once() -> None:
    kept, worked = answers(), []
    for _ in range(2):
        kept.ask("q", revision=lambda: 1, work_out=lambda: worked.append(1) or "a")
    assert worked == [1]


def test_ask_an_answer_of_nothing_is_kept_too() -> None:
    kept: Answers[str, None] = Answers(size_bytes=lambda _: 0)
    worked: list[int] = []
    for _ in range(2):
        kept.ask("q", revision=lambda: 1, work_out=lambda: worked.append(1))
    assert worked == [1]


def test_ask_at_a_new_revision_is_worked_out_again() -> None:
    kept = answers()
    kept.ask("q", revision=lambda: 1, work_out=lambda: "old")
    assert kept.ask("q", revision=lambda: 2, work_out=lambda: "new") == "new"


def test_ask_takes_an_answer_that_was_begun_after_the_question() -> None:
    kept, asked_at = answers(), time.monotonic()
    kept.ask("q", revision=lambda: 1, work_out=lambda: "first")
    assert kept.ask("q", revision=lambda: 2, work_out=lambda: "second", asked_at=asked_at) == "first", (
        "two pages woken by the same news share what the first of them gets"
    )
    assert kept.ask("q", revision=lambda: 2, work_out=lambda: "third") == "third"


def test_ask_never_takes_an_answer_that_was_begun_before_the_change() -> None:
    kept, revision = answers(), [1]

    def work_out() -> str:
        revision[0] += 1  # something arrives while the answer is being made
        return "old"

    kept.ask("q", revision=lambda: revision[0], work_out=work_out)
    assert kept.ask("q", revision=lambda: revision[0], work_out=lambda: "new") == "new"


def test_ask_at_the_same_time_waits_for_the_one_at_work() -> None:
    kept, is_asked, may_answer = answers(), threading.Event(), threading.Event()
    worked: list[int] = []

    def work_out() -> str:
        worked.append(1)
        is_asked.set()
        assert may_answer.wait(10)
        return "a"

    with ThreadPoolExecutor(4) as threads:
        found = [threads.submit(kept.ask, "q", revision=lambda: 1, work_out=work_out) for _ in range(4)]
        assert is_asked.wait(10)
        may_answer.set()
        assert [each.result(10) for each in found] == ["a"] * 4
    assert len(worked) == 1


def test_ask_after_a_failure_tries_again() -> None:
    kept = answers()
    with pytest.raises(ZeroDivisionError):
        kept.ask("q", revision=lambda: 1, work_out=lambda: str(1 // 0))
    assert kept.ask("q", revision=lambda: 1, work_out=lambda: "a") == "a"


def test_answers_old_ones_go_by_number_and_size() -> None:
    few, small = answers(max_answers=2), answers(max_bytes=5)
    for question in "abc":
        few.ask(question, revision=lambda: 1, work_out=lambda: "")
        small.ask(question, revision=lambda: 1, work_out=lambda: "four")
    assert (len(few), len(small)) == (2, 1)


def test_answers_too_old_are_worked_out_again() -> None:
    kept: Answers[str, str] = Answers(size_bytes=len, max_age_s=0.0)
    kept.ask("q", revision=lambda: 1, work_out=lambda: "old")
    assert kept.ask("q", revision=lambda: 1, work_out=lambda: "new") == "new"


# ---------------------------------------------------------------------------------------------- pictures


def test_look_two_clients_with_one_question_read_the_store_once(store: PageStore) -> None:
    pictures = Pictures(store)
    first, second = ClientView(pictures), ClientView(pictures)
    first.message(WISH, with_data=True)
    before = dict(store.reads)
    second.message(Subscription(id=7, run="demo-run"), with_data=True)
    changed = {name for name, count in store.reads.items() if count != before[name]}
    assert changed <= {"view", "runs", "scalars"} and store.reads["heatmap"] == 1
    assert store.reads["scalars"] - before["scalars"] <= 1, "the status alone, where the clock may say more"


def test_look_a_beat_of_many_clients_reads_the_store_once(store: PageStore) -> None:
    pictures, asked_at = Pictures(store), time.monotonic()
    ClientView(pictures).message(WISH, with_data=True, asked_at=asked_at)
    before = dict(store.reads)
    page_runs.fill(store, steps=range(50, 51))
    for _ in range(9):
        ClientView(pictures).message(WISH, with_data=True, asked_at=asked_at)
    assert dict(store.reads) == before


def test_look_after_new_data_is_a_new_picture(store: PageStore) -> None:
    pictures = Pictures(store)
    old = pictures.look(WISH, with_data=True)
    page_runs.fill(store, steps=range(50, 60))
    new = pictures.look(WISH, with_data=True)
    assert (old.fields["range"], new.fields["range"]) == ([0, 50], [0, 60])
    assert new.status.fields["newestStep"] == 59


def test_look_news_of_another_run_leave_a_picture_as_it_is(store: PageStore) -> None:
    pictures = Pictures(store)
    old = pictures.look(WISH, with_data=True)
    page_runs.fill(store, steps=range(5), run="other")
    new = pictures.look(WISH, with_data=True)
    assert new.tracks is old.tracks
    assert len(new.status.runs) == 2, "while the list of runs is the newest"


@pytest.mark.parametrize(
    "other",
    [
        {"first": 10, "end": 20},
        {"rank": 1},
        {"unfolded": ["embed"]},
        {"statistic": "update_ratio"},
        {"columns": 128},
        {"points": 128},
        {"window": 32},
    ],
)
def test_look_clients_with_other_wishes_do_not_mix(store: PageStore, other: dict[str, object]) -> None:
    page_runs.fill(store, steps=range(30), rank=1)
    shared, wish = Pictures(store), Subscription(id=1, run="demo-run", **other)
    clients = [Client(), Client(), Client()]
    clients[0].decode(ClientView(shared).message(WISH, with_data=True))
    clients[1].decode(ClientView(shared).message(wish, with_data=True))
    clients[2].decode(ClientView(Pictures(store)).message(wish, with_data=True))
    assert clients[1].arrays.keys() == clients[2].arrays.keys()
    for key, values in clients[2].arrays.items():
        np.testing.assert_array_equal(clients[1].arrays[key], values, err_msg=key)


def test_message_client_that_missed_a_picture_holds_the_same_as_a_fresh_one(store: PageStore) -> None:
    pictures = Pictures(store)
    wish = Subscription(id=1, run="demo-run", window=32, points=64, columns=64)
    views, clients = [ClientView(pictures) for _ in "abc"], [Client() for _ in "abc"]
    for number, present in enumerate(((0, 1), (0,), (0,), (0, 1, 2))):
        page_runs.fill(store, steps=range(50 + 20 * number, 70 + 20 * number))
        for index in present:
            clients[index].decode(views[index].message(wish, with_data=True))
    assert {"loss/loss/line/y", "heatmap/codes"} <= clients[2].arrays.keys()
    for key, values in clients[2].arrays.items():
        np.testing.assert_array_equal(clients[0].arrays[key], values, err_msg=key)
        np.testing.assert_array_equal(clients[1].arrays[key], values, err_msg=key)


def test_look_a_picture_cannot_be_changed_by_who_gets_it(store: PageStore) -> None:
    pictures = Pictures(store)
    shared = arrays(pictures.look(WISH, with_data=True))
    assert shared
    for values in shared.values():
        with pytest.raises(ValueError, match="read-only"):
            values[...] = 0


def test_message_leaves_the_shared_fields_as_they_are(store: PageStore) -> None:
    pictures = Pictures(store)
    ClientView(pictures).message(WISH, with_data=True)
    second = Client().decode(ClientView(pictures).message(Subscription(id=9, run="demo-run"), with_data=True))
    assert second["subscription"] == 9
    assert "rows" in second["heatmap"] and "runs" in second, "this client holds neither yet"
    assert "rows" not in pictures.look(WISH, with_data=True).heatmap.fields


def test_question_pages_of_nearly_equal_width_ask_the_same() -> None:
    def question(pixels: int):
        return question_of(Subscription(id=1, points=pixels, columns=pixels))

    assert question(900) == question(940) != question(1000)
    assert (question(900).points, question(63).points, question(2000).columns) == (896, 63, 1984)


def test_look_unknown_run_is_said_and_shared() -> None:
    store = PageStore()
    page_runs.fill(store, steps=range(3))
    picture = Pictures(store).look(Subscription(id=1, run="gone"), with_data=True)
    assert (picture.status.fields["run"], picture.fields, picture.tracks) == (None, None, ())


# ---------------------------------------------------------------------------------------------- one snapshot


@pytest.fixture
def duck(tmp_path: Path) -> Iterator[DuckStore]:
    opened = DuckStore(tmp_path)
    page_runs.fill(opened, steps=range(20))
    yield opened
    opened.close()


def test_look_lines_heatmap_and_status_are_of_one_moment(
    duck: DuckStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    heatmap = duck.heatmap

    def late(*arguments, **more):  # a step arrives between two reads of one picture
        page_runs.fill(duck, steps=range(20, 21))
        return heatmap(*arguments, **more)

    monkeypatch.setattr(duck, "heatmap", late)
    picture = Pictures(duck).look(WISH, with_data=True)
    found = arrays(picture)
    newest = (picture.status.fields["newestStep"], found["loss/loss/line/x"][-1], found["heatmap/steps"][-1])
    assert newest == (19, 19, 19)
    monkeypatch.undo()
    assert Pictures(duck).look(WISH, with_data=True).status.fields["newestStep"] == 20


# ------------------------------------------------------------------------------------------------ notes


def test_notes_are_sent_when_they_change_and_anew_with_each_wish(store: PageStore) -> None:
    view, client = ClientView(Pictures(store)), Client()

    def notes(wish: Subscription) -> object:
        header = client.decode(view.message(wish, with_data=False))
        return [note["text"] for note in header["notes"]] if "notes" in header else None

    store.step_notes["demo-run"] = [StepNote(id="1", step=3, text="lr halved", time=1.7e9)]
    assert (notes(WISH), notes(WISH)) == (["lr halved"], None)
    store.step_notes["demo-run"] = []
    store.revisions.update(("demo-run", None))
    assert (notes(WISH), notes(WISH)) == ([], None)
    # The page drops what answers an older wish: the newer one's answer has to have them again.
    assert notes(Subscription(id=2, run="demo-run")) == []
