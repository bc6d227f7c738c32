from __future__ import annotations

import math

import pytest
from store_engines import TWO_SERVERS_TOO, OpenStore
from store_reference import RUN, begin, make_event, make_frame, stream_key

from dashboard.store.incarnation import GONE_AFTER_S, SILENT_AFTER_S
from dashboard.store.protocol import Store
from probe.delivery.recorder.process_identity import own_identity
from probe.wire import HostSample, RunEnd, RunStart, StreamKey, encode

STORES = TWO_SERVERS_TOO

HOST = StreamKey(run=RUN, writer="host-box", stream="host")


class Clock:
    """Time that only the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(open_store: OpenStore, tmp_path, clock) -> Store:
    return open_store(tmp_path / "data", clock=clock)


def add_events(store: Store, *events, first_seq: int) -> None:
    store.append(stream_key("events"), first_seq, [encode(event) for event in events])


def state(store: Store) -> str:
    return store.runs()[0].ranks[0].state


def host_sample(word: str, *, time: float = 1000.0) -> bytes:
    return encode(HostSample(time=time, rank=0, incarnation=1000, state=word, rss_bytes=5))


def test_empty_store_has_nothing(store):
    assert store.runs() == [] and store.events(RUN) == [] and store.gaps(RUN) == []
    assert store.run_start(RUN) is None and store.event(RUN, "0" * 16) is None
    assert store.scalar_names(RUN) == []
    frame = store.scalars(RUN, 0, ["loss"])
    assert list(frame.columns) == ["name", "step", "time", "min", "mean", "max", "nan", "inf", "pooled"]
    assert len(frame) == 0


def test_runs_newest_first_with_ranks_and_newest_incarnation(store):
    begin(store, run="old", now=1.0)
    for rank in (1, 0):
        begin(store, rank=rank, now=5.0)
    key = begin(store, incarnation=2000, now=900.0)
    store.append(key, 0, [make_frame(step, time=900.0 + step) for step in (7, 3)])
    newest, old = store.runs()
    assert (newest.run, old.run, newest.started) == (RUN, "old", 5.0)
    assert [(rank.rank, rank.incarnation) for rank in newest.ranks] == [(0, 2000), (1, 1000)]
    first = newest.ranks[0]
    assert (first.first_step, first.last_step, first.last_time) == (3, 3, 903.0)
    assert store.run_start(RUN).incarnation == 2000 and store.run_start(RUN, 1).incarnation == 1000


def test_runs_survive_a_restart(open_store, tmp_path, clock):
    store = open_store(tmp_path, clock=clock)
    key = begin(store, now=990.0)
    store.append(key, 0, [make_frame(4, time=995.0)])
    before = store.runs()
    store.close()
    store = open_store(tmp_path, clock=clock)
    assert store.runs() == before
    store.close()


@pytest.mark.parametrize("outcome", ["finished", "exception"])
def test_state_after_run_end_is_its_outcome_whatever_the_host_says(store, outcome):
    begin(store, now=1000.0)
    end = RunEnd(time=1001.0, step=3, outcome=outcome, lost_before_write=2)
    store.append(stream_key("events"), 2, [encode(end)])
    store.append(HOST, 0, [host_sample("ended")])
    assert state(store) == outcome and store.runs()[0].ranks[0].lost_before_write == 2


def test_state_killed_when_the_helper_saw_it(store):
    begin(store, now=1000.0)
    store.append(HOST, 0, [host_sample("running"), host_sample("killed")])
    assert state(store) == "killed"


def test_state_running_until_nothing_arrives(store, clock):
    key = begin(store, now=1000.0)
    clock.now += SILENT_AFTER_S - 1
    assert state(store) == "running"
    store.append(key, 0, [make_frame(0, time=clock.now)])
    clock.now += SILENT_AFTER_S - 1
    assert state(store) == "running"
    clock.now += 2
    assert state(store) == "silent"


def test_state_of_an_old_journal_read_now_is_silent(store, clock):
    clock.now = 1e9
    key = begin(store, now=1000.0)
    store.append(key, 0, [make_frame(0, time=1001.0)])
    assert state(store) == "silent"


def told_by(store, clock, **fields):
    """What is said of a rank that has not spoken for a while, and whose start says this of its process."""
    owner = own_identity()
    known = {"pid": owner.pid, "boot": owner.boot, "started_ticks": owner.started_ticks} | fields
    begin(store, now=1000.0)
    start = RunStart(run=RUN, rank=0, incarnation=1000, time=1000.0, host="box", **known)
    store.append(stream_key("events"), 2, [encode(start)])
    clock.now += GONE_AFTER_S + 0.1
    return state(store)


def test_state_of_a_process_that_is_there_and_says_nothing_is_running(store, clock):
    assert told_by(store, clock) == "running"


def test_state_of_a_process_that_is_gone_is_killed_within_seconds_though_nobody_saw_it(store, clock):
    assert told_by(store, clock, started_ticks=1) == "killed"
    end = RunEnd(time=1001.0, step=3, outcome="finished", lost_before_write=0)
    store.append(stream_key("events"), 3, [encode(end)])
    assert state(store) == "finished"


def test_state_of_a_process_that_is_gone_waits_for_its_last_words(store, clock):
    assert told_by(store, clock, started_ticks=1) == "killed"
    store.append(HOST, 0, [host_sample("running", time=clock.now)])
    assert state(store) == "running"


def test_state_of_a_process_of_another_machine_is_silent_after_the_silence(store, clock):
    assert told_by(store, clock, boot=1, started_ticks=1) == "running"
    clock.now += SILENT_AFTER_S
    assert state(store) == "silent"


def test_state_new_incarnation_runs_after_a_killed_one(store):
    begin(store, now=900.0)
    store.append(HOST, 0, [host_sample("killed", time=950.0)])
    begin(store, incarnation=2000, now=1000.0)
    assert state(store) == "running"


def test_runs_without_a_start_record_are_described_by_what_is_known(store):
    store.append(HOST, 0, [host_sample("running")])
    summary = store.runs()[0]
    assert (summary.name, summary.start.incarnation, summary.started) == (RUN, 1000, 1000 / 1e9)


def test_events_latest_state_of_an_id_wins_committed_or_not(store):
    begin(store)
    add_events(store, make_event(1, step=5, count=1), make_event(2, step=3), first_seq=2)
    store.commit()
    add_events(store, make_event(1, step=5, count=9, ended=True), first_seq=4)
    for _ in range(2):
        assert [(event.step, event.count) for event in store.events(RUN)] == [(3, 1), (5, 9)]
        assert store.event(RUN, f"{1:016x}").ended
        store.commit()


def test_events_of_one_rank_and_of_another_run(store):
    begin(store)
    add_events(store, make_event(1), make_event(2, rank=1), first_seq=2)
    assert [event.rank for event in store.events(RUN, 1)] == [1]
    assert store.events("other") == []


def test_run_of_an_event_is_found_committed_or_not(store):
    begin(store)
    begin(store, run="other", now=2.0)
    add_events(store, make_event(1), first_seq=2)
    store.append(stream_key("events", run="other"), 2, [encode(make_event(2, run="other"))])
    for _ in range(2):
        assert [store.run_of_event(f"{number:016x}") for number in (1, 2, 3)] == [RUN, "other", None]
        store.commit()


def test_event_counts_follow_a_changed_severity_before_and_after_commit(store):
    begin(store)
    add_events(store, make_event(1, severity="warning"), make_event(2, severity="info"), first_seq=2)
    store.commit()
    add_events(store, make_event(1, severity="critical"), make_event(3, severity="info"), first_seq=4)
    for _ in range(2):
        assert store.runs()[0].event_counts == {"critical": 1, "warning": 0, "info": 2}
        store.commit()


def test_scalar_names_are_sorted_and_of_one_rank(store):
    key = begin(store)
    store.append(key, 0, [make_frame(0, scalars={"loss": 1.0, "log/lr": 0.1})])
    other = begin(store, rank=1)
    store.append(other, 0, [make_frame(0, scalars={"else": 1.0})])
    assert store.scalar_names(RUN) == ["log/lr", "loss"] and store.scalar_names(RUN, 1) == ["else"]


def test_scalars_sparse_series_keeps_its_points_when_others_are_pooled(store):
    key = begin(store)
    records = [
        make_frame(step, scalars={"loss": 0.0} | ({"rare": step} if step % 300 == 7 else {}))
        for step in range(1000)
    ]
    store.append(key, 0, records)
    store.commit()
    frame = store.scalars(RUN, 0, ["rare", "loss"], max_points=10)
    rare = frame[frame["name"] == "rare"]
    assert rare["step"].tolist() == [7, 307, 607, 907] and set(rare["pooled"]) == {1}
    assert frame[frame["name"] == "loss"]["pooled"].sum() == 1000


def test_scalars_bad_values_at_bucket_edges_are_counted_in_their_bucket(store):
    key = begin(store)
    bad = {15: math.nan, 16: math.inf, 31: -math.inf, 32: math.nan}
    store.append(key, 0, [make_frame(step, scalars={"loss": bad.get(step, 1.0)}) for step in range(48)])
    store.commit()
    frame = store.scalars(RUN, 0, ["loss"], max_points=3)
    assert frame["nan"].tolist() == [1, 0, 1] and frame["inf"].tolist() == [0, 2, 0]
    assert frame["pooled"].tolist() == [16, 16, 16] and frame["max"].tolist() == [1.0, 1.0, 1.0]


def test_run_start_with_every_field_survives(store):
    start = RunStart(
        run=RUN, rank=0, incarnation=5, argv=["train.py", "--lr=1"], versions={"torch": "2.13.0"}
    )
    store.append(stream_key("events", incarnation=5), 0, [encode(start)])
    store.commit()
    assert store.run_start(RUN) == start
