"""Notes at steps in the store: kept, changed and deleted durably, each run's own, gone with the run."""

from __future__ import annotations

from pathlib import Path

import pytest
from store_engines import TWO_SERVERS_TOO, OpenStore
from store_reference import begin

from dashboard.store.protocol import StepNote, Store

STORES = TWO_SERVERS_TOO


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def store(open_store: OpenStore, folder: Path) -> Store:
    opened = open_store(folder)
    begin(opened, run="a"), begin(opened, run="b")
    return opened


def note(id_: str, step: int, text: str = "lr halved", time: float = 1.7e9) -> StepNote:
    return StepNote(id=id_, step=step, text=text, time=time)


def test_notes_come_by_step_and_of_one_run_alone(store: Store) -> None:
    for each in (note("2", 40), note("1", 7), note("3", 40, time=1.6e9)):
        store.write_note("a", each)
    assert [each.id for each in store.notes("a")] == ["1", "3", "2"]
    assert store.notes("b") == []


def test_note_that_is_written_again_replaces_the_one_of_its_id(store: Store) -> None:
    store.write_note("a", note("1", 7))
    store.write_note("b", note("1", 9))
    store.write_note("a", note("1", 8, "other"))
    assert store.notes("a") == [note("1", 8, "other")] and store.notes("b") == [note("1", 9)]


def test_notes_are_there_after_a_restart(open_store: OpenStore, store: Store, folder: Path) -> None:
    hostile = note("1", 2**53, "'; DROP TABLE notes; --\u202e<b>")
    store.write_note("a", hostile)
    store.write_note("a", note("2", 3))
    assert store.remove_note("a", "2")
    store.close()
    again = open_store(folder)
    assert again.notes("a") == [hostile]
    again.close()


def test_remove_note_says_whether_there_was_one(store: Store) -> None:
    store.write_note("a", note("1", 7))
    assert not store.remove_note("b", "1") and not store.remove_note("a", "2")
    assert store.remove_note("a", "1") and not store.remove_note("a", "1")
    assert store.notes("a") == []


def test_each_change_of_a_note_is_a_new_revision_of_its_run(store: Store) -> None:
    seen = [store.revision("a")]
    store.write_note("a", note("1", 7))
    seen.append(store.revision("a"))
    store.remove_note("a", "1")
    seen.append(store.revision("a"))
    store.remove_note("a", "1")
    assert seen[0] < seen[1] < seen[2] == store.revision("a")


def test_notes_can_be_read_inside_of_a_view_while_one_is_written(store: Store) -> None:
    with store.view():
        assert store.notes("a") == []
    store.write_note("a", note("1", 7))
    with store.view():
        assert store.notes("a") == [note("1", 7)]


def test_notes_go_with_their_run(open_store: OpenStore, store: Store, folder: Path) -> None:
    store.write_note("a", note("1", 7))
    store.write_note("b", note("1", 7))
    store.remove_run("a")
    assert store.notes("a") == [] and len(store.notes("b")) == 1
    store.close()
    again = open_store(folder)
    assert again.notes("a") == []
    again.close()
