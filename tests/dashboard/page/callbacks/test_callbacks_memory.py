"""The callbacks of memory and of the system: what they read of a store and a journal; odd input."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import page_runs
import pytest
from dash import no_update
from dash.development.base_component import Component
from sample_runs import write_models, write_run
from written_journal import record_places

from dashboard.ingest.spool import ingest_spool
from dashboard.page.callbacks.memory import memory_view
from dashboard.page.callbacks.system import system_view
from dashboard.store.duck import DuckStore
from probe.delivery.recorder.process_identity import own_identity
from probe.delivery.recorder.ring import Ring
from probe.delivery.recorder.ring_format import FRAME, metrics_of
from probe.delivery.recorder.ring_header import OWNER_AT
from probe.wire import Frame, encode
from probe.wire.documents import make_document
from probe.wire.memory_snapshots import MEMORY_SNAPSHOT, MemorySnapshot

RUN = "demo-run"
MIB = 2**20


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DuckStore]:
    opened = DuckStore(tmp_path / "data")
    yield opened
    opened.close()


def texts(part: Any) -> Iterator[str]:
    if isinstance(part, str):
        yield part
    elif isinstance(part, Component):
        yield from texts(getattr(part, "children", None))
    elif isinstance(part, list | tuple):
        for one in part:
            yield from texts(one)


def cells(part: Any) -> list[list[str]]:
    rows = [one for each in part for one in each._traverse() if type(one).__name__ == "Tr"]
    return [["".join(texts(cell)) for cell in row.children] for row in rows]


def append(store: DuckStore, stream: str, *records: Any) -> None:
    key = page_runs.key(stream)
    store.append(key, store.position(key).next_seq, [encode(record) for record in records])
    store.commit()


def filled(store: DuckStore) -> None:
    """A hundred steps; other memory grows by 1 MiB a step. Snapshots at 10, 20 and 90."""
    page_runs.fill(store, steps=range(1))
    kinds = {"memory_parameters_bytes": 4.0 * MIB, "process_rss_bytes": 1e9}
    frames = [
        Frame(step=step, time=1e9 + step, scalars=kinds | {"memory_other_bytes": float(step * MIB)})
        for step in range(0, 100, 4)
    ]
    append(store, "metrics", *frames[1:])
    taken = [
        MemorySnapshot(label=f"<b>{step}", cause="call", time=1e9 + step, step=step, rss_bytes=step * MIB)
        for step in (10, 20, 90)
    ]
    documents = [
        make_document(one, kind=MEMORY_SNAPSHOT, key=one.label, step=one.step, time=one.time) for one in taken
    ]
    append(store, "events", *documents)


def compared(shown: Any) -> dict[str, list[str]]:
    return {row[0]: row[1:] for row in cells(shown)}


def test_first_and_newest_snapshot_are_compared_with_the_kinds_read_before_them(store: DuckStore) -> None:
    filled(store)
    rows = compared(memory_view(store, {"run": RUN}))
    assert rows[""] == ["At step 10", "At step 90", "Change"]
    assert rows["parameters"] == ["4 MiB", "4 MiB", "0"]
    # Read at every fourth step: at 8 and at 88.
    assert rows["other"] == ["8 MiB", "88 MiB", "+80 MiB"]
    assert rows["process"] == ["10 MiB", "90 MiB", "+80 MiB"]


def test_picked_snapshots_are_compared_in_the_order_of_time(store: DuckStore) -> None:
    filled(store)
    picked = [f"{page_runs.INCARNATION}/<b>{step}" for step in (90, 20)]
    rows = compared(memory_view(store, {"run": RUN, "picked": picked}))
    assert rows[""] == ["At step 20", "At step 90", "Change"]
    assert "no longer" not in "".join(texts(memory_view(store, {"run": RUN, "picked": picked})))


@pytest.mark.parametrize(
    ("picked", "sentence", "heads"),
    [
        (["1/gone", "1/lost"], "Both snapshots that the address names are no longer here", (10, 90)),
        (["1/gone", "<b>20"], "The first snapshot that the address names is no longer here", (10, 20)),
        (["<b>20", "1/gone"], "The second snapshot that the address names is no longer here", (20, 90)),
        ([None, "<b>20"], "", (10, 20)),
    ],
)
def test_picked_snapshot_that_is_gone_is_said_to_be(
    store: DuckStore, picked: list[str | None], sentence: str, heads: tuple[int, int]
) -> None:
    filled(store)
    ids = [f"{page_runs.INCARNATION}/{each}" if each and each.startswith("<b>") else each for each in picked]
    shown = memory_view(store, {"run": RUN, "picked": ids})
    assert compared(shown)[""] == [*(f"At step {step}" for step in heads), "Change"]
    said = "".join(texts(shown))
    assert sentence in said and ("no longer here" in said) is bool(sentence)


def test_picked_snapshot_that_is_gone_is_said_to_be_where_no_two_are_left(store: DuckStore) -> None:
    page_runs.fill(store, steps=range(5))
    said = "".join(texts(memory_view(store, {"run": RUN, "picked": ["1/gone", "1/lost"]})))
    assert "Both snapshots that the address names are no longer here." in said


def test_growth_is_that_of_the_steps_in_view(store: DuckStore) -> None:
    page_runs.fill(store, steps=range(1))
    append(
        store,
        "metrics",
        *(
            Frame(step=step, time=1e9, scalars={"process_rss_bytes": 1e9 + MIB * max(0, step - 200)})
            for step in range(1, 400)
        ),
    )
    early = "".join(texts(memory_view(store, {"run": RUN, "first": 5, "end": 200})))
    late = "".join(texts(memory_view(store, {"run": RUN, "first": 220, "end": 400})))
    assert "The process: no growth" in early and "The process grows by +1000 MiB per 1,000" in late


def test_run_without_anything_of_memory_has_no_sections(store: DuckStore) -> None:
    page_runs.fill(store, steps=range(5), is_bare=True)
    assert memory_view(store, {"run": RUN}) == [] == memory_view(store, {"run": "other"})


@pytest.mark.parametrize(
    "asked", [None, 3, {}, {"run": 5}, {"run": RUN, "rank": -1}, {"run": RUN, "picked": ["a", "b", "c"]}]
)
def test_malformed_asking_changes_nothing(store: DuckStore, asked: Any) -> None:
    assert memory_view(store, asked) is no_update
    if not isinstance(asked, dict) or "picked" not in asked:
        assert system_view(store, asked, spool=None) is no_update


def test_account_has_what_the_journal_holds_and_the_store_took(store: DuckStore, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    folder = write_run(spool, steps=40)
    ingest_spool(store, spool)
    shown = system_view(store, {"run": folder.name}, spool=spool)
    said, rows = "".join(texts(shown)), compared(shown)
    # The start, the layout, two events and the end; 40 steps.
    assert "All 45 records arrived." in said
    assert [row for row in cells(shown) if row[0] == "rank 0"] == [
        ["rank 0", "events", "5", "5", "0", "0", "0"],
        ["rank 0", "metrics", "40", "40", "0", "0", "0"],
    ]
    assert rows["Runs on"] == ["box, process 7"]


def test_account_of_each_member_is_that_of_the_run(store: DuckStore, tmp_path: Path) -> None:
    """One journal has them all: nothing is missing of the later ones."""
    write_models(tmp_path, "tried", [[0.5] * 3, [0.4] * 4, [0.3] * 5])
    ingest_spool(store, tmp_path)
    said = {
        "".join(texts(system_view(store, {"run": run}, spool=tmp_path)))
        for run in ("tried", "tried.m1", "tried.m2")
    }
    assert len(said) == 1 and "All 18 records arrived." in said.pop()


def test_account_has_what_is_missing_at_the_end(store: DuckStore, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "spool", steps=40)
    (segment,) = (folder / "0-1").glob("metrics-*.seg")
    os.truncate(segment, record_places(segment.read_bytes())[-14][0])
    ingest_spool(store, tmp_path / "spool")
    said = "".join(texts(system_view(store, {"run": folder.name}, spool=tmp_path / "spool")))
    assert "45 records written: 31 stored + 14 in gaps + 0 dropped." in said


def test_account_has_what_a_killed_trainer_left_in_its_ring(store: DuckStore, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "spool", steps=40)
    ring = Ring(folder / "0-1" / "ring", 4096)
    ring.append(FRAME, encode(Frame(step=39, time=39.0)))
    ((_, (first,)),) = metrics_of(ring.records(), ring.templates)
    ring.take(end=first.end, end_seq=first.seq + 1, records=1, next_seq=39, store=lambda: None)
    for step in (40, 41, 42):
        ring.append(FRAME, encode(Frame(step=step, time=float(step))))
    with (folder / "0-1" / "ring").open("r+b") as file:
        file.seek(OWNER_AT + 8)  # of a process that is gone
        file.write(struct.pack("<q", own_identity().started_ticks - 1))
    ingest_spool(store, tmp_path / "spool")
    said = "".join(texts(system_view(store, {"run": folder.name}, spool=tmp_path / "spool")))
    ring.close()
    assert "All 48 records arrived." in said


def test_account_without_the_journal_says_so(store: DuckStore, tmp_path: Path) -> None:
    page_runs.fill(store, steps=range(10))
    said = "".join(texts(system_view(store, {"run": RUN}, spool=tmp_path)))
    assert "12 records received = 12 stored" in said and "not on this machine" in said
    assert system_view(store, {"run": "other"}, spool=tmp_path) == []
