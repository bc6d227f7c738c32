"""More than the store takes of anything: left out, counted and told; other runs stay whole."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from store_engines import DUCKDB_ONLY, OpenStore

from dashboard.store import layout_cache, limits, timelines
from dashboard.store.limits import Held
from dashboard.store.protocol import StepRange, Store
from probe.wire import (
    Document,
    Event,
    Frame,
    Gap,
    HostSample,
    LayerInfo,
    Layout,
    ParameterInfo,
    Record,
    RunStart,
    StreamKey,
    StreamName,
    encode,
    event_id,
)
from probe.wire.columns import pack_column

WRITER = "0-1000000000"
NUMBER = 1_000_000_000


@pytest.fixture
def store(open_store: OpenStore, tmp_path: Path) -> Store:
    return open_store(tmp_path)


def at_most(monkeypatch: pytest.MonkeyPatch, what: Held, count: int) -> None:
    monkeypatch.setitem(limits.MOST, what, count)


def key(stream: StreamName, run: str = "run", writer: str = WRITER) -> StreamKey:
    return StreamKey(run=run, writer=writer, stream=stream)


def give(store: Store, where: StreamKey, *records: Record) -> int:
    """Append at the stream's end; return what it expects next."""
    position = store.append(where, 10**9, [b""])
    return store.append(where, position, [encode(record) for record in records])


def layout(number: int = 0, *, name: str = "weight") -> Layout:
    parameter = ParameterInfo(name=name, shape=[1], dtype="float32", layer=0)
    return Layout(layout=number, model="net", parameters=[parameter], layers=[LayerInfo(name="", type="N")])


def start(run: str = "run", **more: object) -> RunStart:
    return RunStart(run=run, rank=0, incarnation=NUMBER, time=1.0, **more)  # type: ignore[arg-type]


def event(number: int, *, run: str = "run", message: str = "") -> Event:
    facts = {"run": run, "rank": 0, "incarnation": NUMBER, "model": "", "kind": "custom", "subject": ""}
    found = event_id(**facts, step=number)  # type: ignore[arg-type]
    return Event(id=found, step=number, time=1.0, severity="info", message=message, **facts)  # type: ignore[arg-type]


def frame(step: int, *names: str) -> Frame:
    return Frame(step=step, time=1.0, scalars=dict.fromkeys(names, 1.0))


def begin(store: Store, run: str = "run") -> None:
    give(store, key("events", run), start(run), layout())


def dropped(store: Store, where: StreamKey) -> int:
    store.commit()
    position = store.position(where)
    assert position.stored + position.gaps + position.dropped == position.next_seq
    return position.dropped


def told(store: Store) -> str:
    """What the server asks of a store beyond the protocol."""
    return " ".join(store.limit_notices())


def test_limits_of_healthy_runs_say_nothing(store: Store) -> None:
    begin(store)
    give(store, key("metrics"), frame(0, "loss"), frame(1, "loss"))
    give(store, key("events"), event(0))
    assert dropped(store, key("events")) == 0
    assert store.limit_notices() == []


def test_limits_new_series_in_every_record_are_left_out_beyond_the_most(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timelines, "MAX_SERIES", 20)
    begin(store)
    begin(store, "other")
    for first in range(0, 500, 50):
        give(
            store, key("metrics"), *(frame(step, "loss", f"log/{step}") for step in range(first, first + 50))
        )
    give(store, key("metrics", "other"), frame(0, "loss", "log/a"))
    assert dropped(store, key("metrics")) == 0
    names = store.scalar_names("run", 0)
    assert len(names) == 20
    # The rest of such a frame is kept, and so is all of the other run.
    assert len(store.scalars("run", 0, ["loss"], max_points=1000)) == 500
    assert store.scalar_names("other", 0) == ["log/a", "loss"]
    assert "Of run run 481 things were left out: more than 20 series" in told(store)


def test_limits_series_of_all_ranks_together(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    at_most(monkeypatch, "series", 6)
    for rank in range(4):
        writer = f"{rank}-{NUMBER}"
        give(store, key("events", writer=writer), layout())
        give(store, key("metrics", writer=writer), frame(0, "a", "b"))
    store.commit()
    assert [len(store.scalar_names("run", rank)) for rank in range(4)] == [2, 2, 2, 0]


def test_limits_new_statistics_in_every_record_are_left_out(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np

    monkeypatch.setattr(timelines, "MAX_SERIES", 5)
    begin(store)
    for step in range(30):
        columns = [pack_column(f"odd_{step}", np.ones(1))]
        give(store, key("metrics"), Frame(step=step, time=1.0, columns=columns, scalars={"loss": 1.0}))
    store.commit()
    assert len(store.scalars("run", 0, ["loss"], max_points=100)) == 30
    assert told(store).startswith("Of run run 25 things were left out")


def test_limits_new_layout_in_every_record_is_refused_beyond_the_most(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_most(monkeypatch, "layouts", 10)
    begin(store)
    give(store, key("events"), *(layout(number, name=f"w{number}") for number in range(1, 40)))
    assert dropped(store, key("events")) == 30
    assert "more than 10 layouts" in told(store)


def test_limits_same_layout_again_takes_no_room(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    at_most(monkeypatch, "layouts", 3)
    begin(store)
    give(store, key("events"), *[layout()] * 50)
    assert dropped(store, key("events")) == 0


def test_limits_starts_of_ranks_that_there_are_not(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    at_most(monkeypatch, "incarnations", 10)
    begin(store, "other")
    host = key("host", writer="host-a")
    samples = [HostSample(time=1.0, rank=n, incarnation=n, state="running") for n in range(100)]
    give(store, host, *samples)
    assert dropped(store, host) == 90
    assert len(next(run for run in store.runs() if run.run == "run").ranks) == 10
    assert len(store.runs()) == 2
    # The ranks that are known go on.
    give(store, host, samples[3])
    assert dropped(store, host) == 90


def test_limits_descriptions_of_starts_have_a_size(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    at_most(monkeypatch, "start_bytes", 20_000)
    begin(store)
    big = start(options={str(number): "x" * 4000 for number in range(10)})
    give(store, key("events"), big, start(name="again"))
    assert dropped(store, key("events")) == 1
    found = store.run_start("run")
    assert found is not None
    assert found.name == "again"


def test_limits_streams_of_a_run_are_refused_with_a_reason(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_most(monkeypatch, "streams", 5)
    for number in range(50):
        give(store, key("events", writer=f"{number}-1"), event(number))
    store.commit()
    assert len(store.positions("run")) == 5
    assert "5 streams" in str(store.refuses(key("events", writer="49-1")))
    assert store.skip(key("events", writer="49-1"), 0, 10, "x") == 0
    assert store.refuses(key("events", writer="0-1")) is None
    assert store.refuses(key("events", "other")) is None


def test_limits_runs_beyond_the_most_wait_and_the_others_go_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_RUNS", 5)
    for number in range(200):
        give(store, key("events", f"run-{number}"), start(f"run-{number}"))
    store.commit()
    assert {run.run for run in store.runs()} == {f"run-{number}" for number in range(5)}
    assert "dashboard clean" in told(store)
    assert give(store, key("events", "run-0"), event(1, run="run-0")) == 2
    store.remove_run("run-0")
    assert store.refuses(key("events", "run-77")) is None


def test_limits_events_have_a_number_and_newer_states_are_taken(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_EVENTS", 10)
    begin(store)
    give(store, key("events"), *(event(number) for number in range(40)))
    give(store, key("events"), event(3, message="newer"))
    assert dropped(store, key("events")) == 30
    events = store.events("run")
    assert len(events) == 10
    assert events[3].message == "newer"


def test_limits_events_have_a_size(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_EVENT_BYTES", 10_000)
    begin(store)
    give(store, key("events"), *(event(number, message="x" * 4000) for number in range(10)))
    assert dropped(store, key("events")) == 8
    assert "MiB of events" in told(store)


@pytest.mark.parametrize(
    ("name", "value", "left"), [("MAX_DOCUMENTS", 10, 10), ("MAX_DOCUMENT_BYTES", 300, 3)]
)
def test_limits_documents(
    store: Store, monkeypatch: pytest.MonkeyPatch, name: str, value: int, left: int
) -> None:
    monkeypatch.setattr(limits, name, value)
    begin(store)
    for number in range(40):
        give(store, key("events"), Document(kind="profile", key=str(number), time=1.0, body=b"x" * 100))
    give(store, key("events"), Document(kind="profile", key="0", time=2.0, body=b"new"))
    assert dropped(store, key("events")) == 40 - left
    assert len(store.documents("run", "profile")) == left


def test_limits_holes_are_counted_beyond_those_that_are_kept(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_most(monkeypatch, "gaps", 10)
    begin(store)
    metrics = key("metrics")
    for number in range(50):
        store.append(metrics, 2 * number, [encode(frame(number, "loss"))])
        store.skip(metrics, 2 * number + 1, 2 * number + 2, "evicted")
    announced = [Gap(stream="metrics", first_seq=n, end_seq=n + 1, reason="x", time=1.0) for n in range(50)]
    give(store, key("events"), *announced)
    store.commit()
    assert store.position(metrics).gaps == 50
    assert len(store.gaps("run")) <= 10


def test_limits_hold_after_opening_again(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_most(monkeypatch, "layouts", 3)
    at_most(monkeypatch, "streams", 2)
    monkeypatch.setattr(limits, "MAX_EVENTS", 4)
    monkeypatch.setattr(limits, "MAX_DOCUMENTS", 2)
    monkeypatch.setattr(timelines, "MAX_SERIES", 4)
    for first in (0, 100):
        store = open_store(tmp_path)
        begin(store)
        give(store, key("events"), *(layout(first + n, name=f"{first}-{n}") for n in range(1, 9)))
        give(store, key("events"), *(event(first + n) for n in range(9)))
        documents = (Document(kind="p", key=f"{first}-{n}", time=1.0, body=b"") for n in range(5))
        give(store, key("events"), *documents)
        give(store, key("metrics"), *(frame(first + n, "loss", f"log/{first}-{n}") for n in range(9)))
        store.close()
    store = open_store(tmp_path)
    assert len(store.events("run")) == 4
    assert len(store.documents("run", "p")) == 2
    assert len(store.scalar_names("run", 0)) == 4
    assert len(store.positions("run")) == 2
    store.close()


@DUCKDB_ONLY
def test_limits_layouts_in_memory_are_read_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_cache, "LAYOUT_CACHE_BYTES", 300)
    begin(store)
    for number in range(1, 30):
        give(store, key("events"), layout(number, name=f"w{number}"))
        store.commit()
    assert len(store._catalog._layouts) < 10
    give(store, key("metrics"), *(Frame(step=n, time=1.0, layout=n, scalars={"a": 1.0}) for n in range(30)))
    assert dropped(store, key("metrics")) == 0
    found = store.layout("run")
    assert found is not None
    assert found.parameters[0].name == "w29"


@pytest.mark.parametrize("number", [2**62, 2**62 - 1, 2**53, sys.maxsize // 2])
def test_limits_numbers_far_ahead_take_nothing_from_others(store: Store, number: int) -> None:
    begin(store)
    begin(store, "other")
    metrics = key("metrics")
    give(store, key("metrics", "other"), frame(0, "loss"), frame(1, "loss"))
    assert store.append(metrics, number, [encode(frame(0, "loss"))]) == 0
    give(store, metrics, frame(number, "loss"), frame(0, "loss"), frame(number, "loss"))
    assert store.skip(metrics, 3, number, "far") == number
    assert store.append(metrics, 5, [encode(frame(1, "loss"))]) == number
    store.append(metrics, number, [encode(frame(2, "loss"))])
    for _ in range(60):  # what is old is removed now and then
        give(store, key("metrics", "other"), frame(2, "loss"))
        store.commit()
    # Nothing has a number above the largest one.
    is_last = number == 2**62
    assert store.position(metrics).next_seq == number + (not is_last)
    near = store.scalars("run", 0, ["loss"], StepRange(first=0, end=10), max_points=100)
    # What lies far behind the newest step is pooled by 16.
    assert near["pooled"].sum() == (1 if is_last else 2)
    assert store.heatmap("run", 0) is not None
    assert len(store.scalars("other", 0, ["loss"], max_points=10)) == 3


def test_frame_with_too_many_or_too_long_names_keeps_its_loss(store: Store) -> None:
    begin(store)
    many = [f"log/{number}" for number in range(5000)]
    give(store, key("metrics"), frame(0, *many, "loss"), frame(1, "log/" + "n" * 2000, "loss"))
    assert dropped(store, key("metrics")) == 0
    assert store.scalars("run", 0, ["loss"], max_points=10)["step"].tolist() == [0, 1]
    assert f"Of run run {5001 - 4096 + 1:,} things were left out: names above 1,024 characters" in told(store)
