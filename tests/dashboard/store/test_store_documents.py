"""Documents in the store: the newest of each key, committed or not, and none of a helper's stream."""

from __future__ import annotations

import pytest
from store_engines import TWO_SERVERS_TOO, OpenStore
from store_reference import RUN, begin, stream_key

from dashboard.store.protocol import Store
from probe.wire import Document, StreamKey, encode

STORES = TWO_SERVERS_TOO


@pytest.fixture
def store(open_store: OpenStore, tmp_path) -> Store:
    return open_store(tmp_path / "data")


def record(
    key: str, *, time: float, body: bytes = b"{}", kind: str = "snapshot", step: int | None = 4
) -> bytes:
    return encode(Document(kind=kind, key=key, step=step, time=time, body=body))


def add(store: Store, *records: bytes, first: int = 2, rank: int = 0) -> None:
    store.append(stream_key("events", rank=rank), first, list(records))


@pytest.mark.parametrize("commits", [(), (0,), (0, 1)])
def test_newest_document_of_each_key_is_shown_committed_or_not(store, commits):
    begin(store)
    for number, one in enumerate(
        (record("b", time=2.0, body=b"1"), record("a", time=3.0), record("b", time=1.0, body=b"2"))
    ):
        add(store, one, first=2 + number)
        if number in commits:
            store.commit()
    found = store.documents(RUN, "snapshot")
    assert [(one.document.key, one.document.body) for one in found] == [("b", b"2"), ("a", b"{}")]


def test_documents_are_of_their_kind_and_rank(store):
    begin(store), begin(store, rank=1)
    add(store, record("a", time=1.0), record("a", time=1.0, kind="profile", step=None))
    add(store, record("a", time=2.0), rank=1)
    assert [one.rank for one in store.documents(RUN, "snapshot")] == [0, 1]
    assert [one.rank for one in store.documents(RUN, "snapshot", 1)] == [1]
    assert [one.document.step for one in store.documents(RUN, "profile")] == [None]
    assert store.documents("other", "snapshot") == []


def test_document_survives_a_restart_of_the_store(open_store, store, tmp_path):
    begin(store)
    add(store, record("a", time=1.0, body=b'{"x":1}'))
    store.close()
    again = open_store(tmp_path / "data")
    assert [one.document.body for one in again.documents(RUN, "snapshot")] == [b'{"x":1}']
    again.close()


def test_mark_moves_with_every_document_and_with_nothing_else(store):
    begin(store)
    before = store.documents_mark(RUN)
    add(store, record("a", time=1.0))
    after = store.documents_mark(RUN)
    store.commit()
    assert before == 0 and after == store.documents_mark(RUN) == 1


def test_document_in_a_helpers_stream_is_refused_and_counted(store):
    key = StreamKey(run=RUN, writer="host-x", stream="host")
    store.append(key, 0, [record("a", time=1.0)])
    store.commit()
    assert store.position(key).dropped == 1 and store.documents(RUN, "snapshot") == []


def test_removed_run_has_no_documents(store):
    begin(store)
    add(store, record("a", time=1.0))
    store.remove_run(RUN)
    assert store.documents(RUN, "snapshot") == []
