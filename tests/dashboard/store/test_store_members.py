"""Models that a run makes one after the other are kept beside its first, and go with it."""

from __future__ import annotations

import time as clock
from pathlib import Path

import msgspec
import numpy as np
import pytest
from store_engines import OpenStore

from dashboard.ingest.run_removal import remove_runs, run_rows
from dashboard.store.limits import MAX_MEMBERS
from dashboard.store.members import counts_of, events_of, events_of_verdict, recorded_as
from dashboard.store.protocol import StepRange, Store
from probe.wire import (
    Event,
    Frame,
    Gap,
    HostSample,
    LayerInfo,
    Layout,
    Member,
    ParameterInfo,
    Record,
    RunEnd,
    RunStart,
    StreamKey,
    StreamName,
    encode,
)
from probe.wire.columns import pack_column
from probe.wire.event_json import event_json
from probe.wire.events import make_event

WRITER = "0-1000000000"
HOST = "host-one"


@pytest.fixture
def store(open_store: OpenStore, tmp_path: Path) -> Store:
    return open_store(tmp_path)


def give(store: Store, stream: StreamName, *records: Record, writer: str = WRITER) -> None:
    where = StreamKey(run="run", writer=writer, stream=stream)
    position = store.append(where, 10**9, [b""])
    store.append(where, position, [encode(record) for record in records])


def start(member: Member = msgspec.UNSET, *, time: float = 1.0) -> RunStart:
    return RunStart(
        run="run", rank=0, incarnation=10**9, name="train.py", model="net", time=time, member=member
    )


def layout(member: int) -> Layout:
    parameter = ParameterInfo(name="weight", shape=[1], dtype="float32", layer=0)
    layers = [LayerInfo(name="", type="N")]
    return Layout(
        layout=member, model="net", parameters=[parameter], layers=layers, member=member or msgspec.UNSET
    )


def frame(step: int, member: int, loss: float, *, time: float = 1.0) -> Frame:
    columns = [pack_column("grad_norm", np.array([loss]))]
    return Frame(step=step, time=time, layout=member, scalars={"loss": loss}, columns=columns, member=member)


def event(member: Member = msgspec.UNSET) -> Event:
    return make_event(
        start(member), "net", "loss_spike", "loss", step=1, time=1.0, severity="warning", message=""
    )


def three_models(store: Store) -> None:
    give(store, "events", start(), layout(0), event(), start(1), layout(1), start(2), layout(2), event(2))
    give(
        store,
        "metrics",
        *(frame(step, member, 10.0 * member + step) for member in range(3) for step in (0, 1)),
    )


def test_each_member_has_its_own_steps_and_layers(store: Store) -> None:
    three_models(store)
    rows = {row.member: row for row in run_rows(store)}
    assert {row.run for row in rows.values()} == {"run", "run.m1", "run.m2"}
    assert [rows[number].name for number in range(3)] == [f"train.py (model {n})" for n in (1, 2, 3)]
    for number in range(3):
        read = store.scalars(rows[number].run, 0, ["loss"], StepRange(), 10)
        assert list(read["mean"]) == [10.0 * number, 10.0 * number + 1]
        assert store.layout(rows[number].run, 0) is not None


def test_hole_is_shown_in_the_models_around_it(store: Store) -> None:
    give(store, "events", start(), layout(0), start(1), layout(1), start(2), layout(2))
    metrics = StreamKey(run="run", writer=WRITER, stream="metrics")
    give(store, "metrics", frame(0, 1, 1.0), frame(1, 1, 1.0))
    store.skip(metrics, 2, 5, "lost")
    give(store, "metrics", frame(7, 2, 1.0))
    store.skip(metrics, 6, 7, "lost")
    give(store, "metrics", frame(9, 2, 1.0))
    shown = [
        [(gap.first_step, gap.last_step, gap.count) for gap in store.gaps(run)]
        for run in ("run", "run.m1", "run.m2")
    ]
    assert shown == [[], [(1, 5, 3)], [(None, 7, 3), (7, 9, 1)]]


def test_steps_that_were_never_written_are_missing_of_the_model_that_was_trained(store: Store) -> None:
    give(store, "events", start(), start(1))
    gap = Gap(
        stream="metrics", first_seq=2, end_seq=2, lost=4, first_step=3, last_step=8, reason="", time=1.0
    )
    give(store, "events", gap, start(2))
    assert [[gap.count for gap in store.gaps(run)] for run in ("run", "run.m1", "run.m2")] == [[], [4], []]
    (lost,) = (row.ranks[0].lost_before_write for row in store.runs() if row.run == "run.m1")
    assert lost == 4


def test_run_without_further_models_is_as_it_was(store: Store) -> None:
    give(store, "events", start(), layout(0), event())
    (row,) = run_rows(store)
    assert (row.run, row.name, row.member) == ("run", "train.py", None)
    (found,) = events_of(store, "run")
    assert "member" not in event_json(found)


def test_events_of_the_run_have_the_members_and_the_ids_of_the_journal(store: Store) -> None:
    three_models(store)
    found = {one.member: one for one in events_of(store, "run")}
    assert set(found) == {0, 2}
    assert {one.run for one in found.values()} == {"run"}
    assert [found[0].id, found[2].id] == [event().id, event(2).id]
    assert event().id != event(2).id
    assert event_json(found[2])["member"] == 2
    assert [one.id for one in events_of(store, "run.m2")] == [event(2).id]


def test_verdict_on_a_run_is_chosen_from_all_of_its_members_whichever_is_shown(store: Store) -> None:
    three_models(store)
    worse = make_event(
        start(1), "net", "nonfinite_loss", "loss", step=1, time=1.0, severity="critical", message=""
    )
    for shown, told, counts in (("run", [event().id, event(2).id], (0, 2)), ("run.m1", [worse.id], (1, 2))):
        runs = {one.run: one for one in store.runs()}
        found = events_of_verdict(store, list(runs.values()), runs[shown])
        assert [one.id for one in found] == told
        assert counts_of(list(runs.values()), runs[shown]) == counts
        give(store, "events", worse)
    assert [one.member for one in found] == [1]


def test_who_is_followed_by_another_has_finished_and_a_death_is_the_newest_ones(store: Store) -> None:
    three_models(store)
    killed = HostSample(time=2.0, rank=0, incarnation=10**9, state="killed")
    give(store, "host", killed, writer=HOST)
    assert states_of(store) == {"run": "finished", "run.m1": "finished", "run.m2": "killed"}


def states_of(store: Store) -> dict[str, str]:
    return {row.run: row.state for row in run_rows(store)}


def test_older_model_that_steps_again_goes_on_and_ends_with_the_run(store: Store) -> None:
    three_models(store)
    now = clock.time()
    # What was made before the newer model began and arrives later is no new step.
    give(store, "metrics", frame(1, 1, 1.0))
    sample = HostSample(time=now, rank=0, incarnation=10**9, state="running")
    give(store, "host", sample, writer=HOST)
    assert states_of(store) == {"run": "finished", "run.m1": "finished", "run.m2": "running"}
    give(store, "metrics", frame(2, 0, 1.0, time=now))
    assert states_of(store) == {"run": "running", "run.m1": "finished", "run.m2": "running"}
    give(store, "events", RunEnd(time=now, step=1, outcome="exception"))
    assert states_of(store) == {"run": "exception", "run.m1": "finished", "run.m2": "exception"}


def test_model_that_a_new_optimizer_trains_again_goes_on(store: Store) -> None:
    three_models(store)
    now = clock.time()
    give(store, "events", start(0, time=now))
    give(store, "host", HostSample(time=now, rank=0, incarnation=10**9, state="running"), writer=HOST)
    assert states_of(store) == {"run": "running", "run.m1": "finished", "run.m2": "finished"}


def test_end_of_the_run_is_that_of_the_newest(store: Store) -> None:
    three_models(store)
    give(store, "events", RunEnd(time=2.0, step=1, outcome="exception"))
    assert states_of(store) == {"run": "finished", "run.m1": "finished", "run.m2": "exception"}


def test_run_goes_with_its_members_and_is_asked_for_them(store: Store) -> None:
    three_models(store)
    assert recorded_as(store.runs(), "run.m2") == "run"
    give(store, "events", RunEnd(time=2.0, step=1, outcome="finished"))
    assert remove_runs(store, ["run"]) == {}
    assert run_rows(store) == []


def test_members_beyond_the_cap_are_counted_and_their_events_kept(store: Store) -> None:
    late = MAX_MEMBERS + 3
    give(store, "events", start(), layout(0), event(late))
    give(store, "metrics", frame(0, 0, 1.0), *(frame(step, late, 1.0) for step in range(4)))
    assert [row.run for row in run_rows(store)] == ["run"]
    (notice,) = store.limit_notices()
    assert f"4 things were left out: more than {MAX_MEMBERS} models of one run" in notice
    assert [one.member for one in events_of(store, "run")] == [late]
