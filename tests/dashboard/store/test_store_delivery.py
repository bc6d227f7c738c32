from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from store_engines import DUCKDB_ONLY, OpenStore
from store_reference import RUN, begin, make_event, make_frame, make_layout, stream_key

from dashboard.errors import DashboardError
from dashboard.store.protocol import Store
from probe.threads.hang_events import hang_event, renewed
from probe.wire import Gap, LayerInfo, Layout, ParameterInfo, RunStart, StreamKey, encode


@pytest.fixture
def store(open_store: OpenStore, tmp_path) -> Store:
    return open_store(tmp_path / "data", clock=lambda: 0.0)


def losses(store: Store) -> dict[int, float]:
    frame = store.scalars(RUN, 0, ["loss"])
    return dict(zip(frame["step"].tolist(), frame["mean"].tolist(), strict=True))


def loss_frames(first: int, end: int) -> list[bytes]:
    return [make_frame(step, scalars={"loss": float(step)}) for step in range(first, end)]


def balance(position) -> bool:
    return position.next_seq == position.stored + position.gaps + position.dropped


def test_position_unknown_stream_is_zero(store):
    position = store.position(stream_key())
    assert (position.next_seq, position.stored, position.gaps, position.dropped) == (0, 0, 0, 0)
    assert store.positions(RUN) == []


def test_append_before_commit_is_visible_and_not_yet_acknowledged(store):
    key = begin(store)
    assert store.append(key, 0, loss_frames(0, 3)) == 3
    assert losses(store) == {0: 0.0, 1: 1.0, 2: 2.0}
    assert store.position(key).next_seq == 0
    assert store.commit()[key] == 3
    assert store.position(key).next_seq == 3
    assert store.commit() == {}


def test_next_seqs_are_those_of_all_positions(store):
    key, unknown = begin(store), stream_key(rank=7)
    store.append(key, 0, loss_frames(0, 3))
    assert store.next_seqs([key, unknown]) == {key: 0, unknown: 0}
    store.commit()
    assert store.next_seqs([key, unknown]) == {key: 3, unknown: 0}
    assert store.next_seqs([]) == {}


def test_append_resend_ignores_what_it_has_and_takes_the_rest(store):
    key = begin(store)
    store.append(key, 0, loss_frames(0, 5))
    assert store.append(key, 0, loss_frames(0, 5)) == 5
    assert store.append(key, 3, loss_frames(3, 8)) == 8
    store.commit()
    assert store.position(key).stored == 8
    assert sorted(losses(store)) == list(range(8))


def test_append_above_expected_ignores_whole_batch(store):
    key = begin(store)
    store.append(key, 0, loss_frames(0, 2))
    assert store.append(key, 3, loss_frames(3, 5)) == 2
    store.commit()
    assert store.position(key).next_seq == 2


def test_reopened_store_continues_and_ignores_a_resend(open_store, tmp_path):
    store = open_store(tmp_path)
    key = begin(store)
    store.append(key, 0, loss_frames(0, 40))
    store.close()
    store.close()
    store = open_store(tmp_path)
    assert store.position(key).next_seq == 40
    assert store.append(key, 0, loss_frames(0, 42)) == 42
    assert losses(store) == {step: float(step) for step in range(42)}
    store.close()
    with pytest.raises(DashboardError, match="closed"):
        store.append(key, 42, [])


def test_skip_counts_gap_and_names_the_steps_around_it(store):
    key = begin(store)
    store.append(key, 0, loss_frames(10, 12))
    assert store.skip(key, 1, 6, "evicted") == 6
    assert store.skip(key, 3, 6, "evicted") == 6
    assert store.skip(key, 9, 12, "evicted") == 6
    store.append(key, 6, loss_frames(20, 21))
    store.commit()
    position = store.position(key)
    assert (position.stored, position.gaps, position.dropped) == (3, 4, 0) and balance(position)
    (gap,) = store.gaps(RUN)
    assert (gap.first_step, gap.last_step, gap.count, gap.reason) == (11, 20, 4, "evicted")
    assert store.gaps(RUN, 1) == [] and store.gaps("other") == []


def test_gaps_announced_hole_shows_once_and_only_while_it_is_missing(store):
    key = begin(store)
    gap = Gap(stream="metrics", first_seq=2, end_seq=7, reason="journal cap", time=1.0)
    store.append(key, 0, loss_frames(0, 1))
    store.append(stream_key("events"), 2, [encode(gap)])
    assert [(hole.count, hole.reason) for hole in store.gaps(RUN)] == [(5, "journal cap")]
    store.append(key, 1, loss_frames(1, 3))
    assert [hole.count for hole in store.gaps(RUN)] == [4]
    store.skip(key, 3, 7, "gone")
    assert [(hole.count, hole.reason) for hole in store.gaps(RUN)] == [(4, "journal cap")]


@pytest.mark.parametrize(("first_seq", "lost"), [(2**62, 2**62), (1, 2**62), (2**62, 1)])
def test_loss_beyond_all_numbers_is_refused_and_stops_no_other_run(store, first_seq, lost):
    key = begin(store)
    gap = Gap(stream="metrics", first_seq=first_seq, end_seq=first_seq, reason="x", time=1.0, lost=lost)
    store.append(stream_key("events"), 2, [encode(gap)])
    store.append(key, 0, loss_frames(0, 2))
    store.commit()
    assert store.gaps(RUN) == [] and store.position(key).stored == 2
    assert store.position(stream_key("events")).dropped == 1


def test_losses_are_counted_up_to_the_largest_number(open_store, tmp_path):
    store = open_store(tmp_path)
    begin(store)
    for number, seq in enumerate((0, 5, 9)):
        gap = Gap(stream="metrics", first_seq=seq, end_seq=seq, reason="x", time=1.0, lost=2**62 - seq)
        store.append(stream_key("events"), 2 + number, [encode(gap)])
    store.close()
    store = open_store(tmp_path)
    (run,) = store.runs()
    assert run.ranks[0].lost_before_write == 2**62 and len(store.gaps(RUN)) == 3
    store.close()


def test_gaps_survive_a_restart(open_store, tmp_path):
    store = open_store(tmp_path)
    key = begin(store)
    store.append(key, 0, loss_frames(0, 1))
    store.skip(key, 1, 3, "evicted")
    store.close()
    store = open_store(tmp_path)
    store.skip(key, 3, 5, "evicted")
    store.append(key, 5, loss_frames(9, 10))
    store.commit()
    assert [(gap.first_step, gap.last_step, gap.count) for gap in store.gaps(RUN)] == [(0, 9, 4)]
    store.close()


BAD_RECORDS = {
    "garbage": b"\xc1not msgpack",
    "empty": b"",
    "too few values": make_frame(0, {"grad_norm": [1, 2]}),
    "another run": encode(make_event(1, run="other")),
    "another run's start": encode(RunStart(run="other", rank=0, incarnation=1000)),
    "layer that does not exist": encode(
        Layout(
            layout=1,
            model="net",
            layers=[LayerInfo(name="a", type="Linear")],
            parameters=[ParameterInfo(name="a.w", shape=[1], dtype="float32", layer=1)],
        )
    ),
}


@pytest.mark.parametrize("name", sorted(BAD_RECORDS))
def test_append_unusable_record_is_counted_as_dropped(store, name):
    key = begin(store)
    records = [*loss_frames(0, 1), BAD_RECORDS[name], *loss_frames(1, 2)]
    assert store.append(key, 0, records) == 3
    store.commit()
    position = store.position(key)
    assert (position.stored, position.dropped) == (2, 1) and balance(position)
    assert losses(store) == {0: 0.0, 1: 1.0}


def unnamed_frames(first: int, end: int, *, layout: int = 7) -> list[bytes]:
    return [
        make_frame(step, {"grad_norm": [1, 2, 3]}, scalars={"loss": float(step)}, layout=layout)
        for step in range(first, end)
    ]


def test_frames_of_an_unknown_layout_keep_their_scalars_and_are_counted(open_store, tmp_path):
    store = open_store(tmp_path)
    key = stream_key()
    store.append(key, 0, unnamed_frames(5, 8))
    store.append(key, 3, [make_frame(8, scalars={"loss": 8.0}, layout=7), *unnamed_frames(9, 10)])
    store.close()
    store = open_store(tmp_path)
    store.append(key, 5, unnamed_frames(10, 11))
    store.commit()
    position = store.position(key)
    assert (position.stored, position.dropped) == (6, 0) and balance(position)
    assert losses(store) == {step: float(step) for step in range(5, 11)}
    (gap,) = store.gaps(RUN)
    assert (gap.first_step, gap.last_step, gap.count, gap.is_partial) == (5, 10, 5, True)
    assert gap.reason.startswith("5 steps without the names of their parameters")
    store.close()


def test_layout_that_comes_later_names_what_follows(store):
    key = stream_key()
    store.append(key, 0, unnamed_frames(0, 2, layout=0))
    begin(store)
    store.append(key, 2, unnamed_frames(2, 4, layout=0))
    store.append(key, 0, unnamed_frames(0, 4, layout=0))
    store.commit()
    store.append(key, 4, unnamed_frames(4, 5))
    assert [(gap.first_step, gap.last_step, gap.count) for gap in store.gaps(RUN)] == [(0, 1, 2), (4, 4, 1)]
    assert store.heatmap(RUN, 0).steps.tolist() == [2, 3]
    assert sorted(losses(store)) == list(range(5))


def test_numbers_beyond_the_limit_are_not_taken_and_stop_nothing(store):
    key = begin(store)
    assert store.skip(key, 0, 2**62 + 1, "an odd name") == 0
    assert store.skip(key, 0, 10**20 - 1, "an odd name") == 0
    assert store.append(key, 0, loss_frames(0, 2)) == 2
    store.skip(key, 2, 2**62, "as far as it goes")
    assert store.append(key, 2**62, loss_frames(2, 3)) == 2**62
    store.commit()
    assert store.position(key).next_seq == 2**62


def test_append_mask_shorter_than_layout_is_dropped(store):
    key = begin(store, layout=make_layout({"wide": [str(number) for number in range(9)]}))
    store.append(key, 0, [make_frame(0, {"grad_norm": [1.0] * 9}, missing=[True] * 8)])
    store.commit()
    assert store.position(key).dropped == 1


def test_append_frame_in_a_helpers_stream_is_dropped(store):
    begin(store)
    key = StreamKey(run=RUN, writer="host-box", stream="host")
    store.append(key, 0, loss_frames(0, 1))
    store.commit()
    assert store.position(key).dropped == 1


def test_append_event_in_a_helpers_stream_is_kept_in_its_latest_state(store):
    """What the helper itself observed: a process that was stopped, say."""
    begin(store)
    start = RunStart(run=RUN, rank=0, incarnation=1)
    event = hang_event(start, "net", "stopped", "Step 3 stands still", step=3, time=5.0)
    ended = renewed(event, "Step 3 stood still", idle_s=9.0, ended=True, count=1, last_step=3)
    key = StreamKey(run=RUN, writer="host-box", stream="host")
    assert store.append(key, 0, [encode(event), encode(ended)]) == 2
    store.commit()
    assert store.position(key).dropped == 0
    assert store.events(RUN) == [ended]
    assert store.events(RUN, rank=0) == [ended]


def test_positions_lists_every_stream_of_the_run_alone(store):
    begin(store)
    begin(store, run="other")
    store.commit()
    assert [position.key.run for position in store.positions(RUN)] == [RUN]


def test_extreme_numbers_are_kept(store):
    key = begin(store)
    store.append(key, 0, [make_frame(2**62, scalars={"loss": -1e308}), make_frame(0, scalars={"loss": 1.0})])
    store.commit()
    assert losses(store) == {0: 1.0, 2**62: -1e308}


@DUCKDB_ONLY
def test_append_while_commits_fail_is_refused_beyond_the_limit(store, monkeypatch):
    monkeypatch.setattr("dashboard.store.base.MAX_QUEUED_BYTES", 2000)
    key = begin(store)
    store.commit()
    records = loss_frames(0, 100)
    assert store.append(key, 0, records) == 0
    assert store.append(key, 0, records[:5]) == 5
    store.commit()
    assert store.append(key, 5, records[5:10]) == 10


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from store_reference import RUN, begin, make_frame
from dashboard.errors import DashboardError
from dashboard.store.duck import DuckStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = DuckStore(Path(sys.argv[1]))
key = begin(store)
store.commit()
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
sequence = failures = 0
while failures < 3:
    records = [make_frame(step, scalars={"loss": float(step)}) for step in range(sequence, sequence + 500)]
    sequence = store.append(key, sequence, records)
    try:
        store.commit()
    except DashboardError:
        failures += 1
acknowledged = store.position(key).next_seq
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
store.commit()
rows = len(store.scalars(RUN, 0, ["loss"], max_points=10**6))
assert acknowledged < sequence and rows == sequence == store.position(key).next_seq
store.close()
print("recovered")
"""


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    here = Path(__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(here.parent.parent), str(here)])}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True, timeout=120
    )


def test_commit_full_disk_keeps_everything_queued_for_the_next_try(tmp_path):
    finished = run_python(FULL_DISK, str(tmp_path))
    assert finished.stdout == "recovered\n", finished.stderr


WRITE_FOREVER = """
from store_reference import begin, make_frame
key = begin(store)
sequence = store.position(key).next_seq
while True:
    records = [
        make_frame(step, {"grad_norm": [step, step, step]}, scalars={"loss": float(step)})
        for step in range(sequence, sequence + 37)
    ]
    sequence = store.append(key, sequence, records)
    print(store.commit()[key], flush=True)
"""


def kill_while_committing(opening: str, *, commits: int) -> int:
    """Run a writer to an opened store, kill -9 it after some acknowledgements; return the last one."""
    here = Path(__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(here.parent.parent), str(here)])}
    with subprocess.Popen(
        [sys.executable, "-c", opening + WRITE_FOREVER], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        lines = [process.stdout.readline() for _ in range(commits)]
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split("\n")[:-1]
        process.wait(timeout=60)
    return int((lines + rest)[-1])


def test_kill_during_commits_keeps_positions_and_rows_together(open_store, tmp_path):
    for round_number in range(5):
        acknowledged = kill_while_committing(open_store.source(tmp_path), commits=3 + round_number)
        store = open_store(tmp_path)
        position = store.position(stream_key())
        rows = store.scalars(RUN, 0, ["loss"], max_points=10**6)
        picture = store.heatmap(RUN, 0, max_columns=10**6)
        store.close()
        assert store.notice is None
        assert position.next_seq == position.stored >= acknowledged
        assert rows["step"].tolist() == list(range(position.stored))
        assert picture.values[1].tolist() == list(range(position.stored))


def test_reads_while_another_thread_commits_see_every_step_once(store):
    key = begin(store)
    problems: list[str] = []
    stop = threading.Event()

    def read() -> None:
        longest = 0
        while not stop.is_set():
            steps = store.scalars(RUN, 0, ["loss"], max_points=10**6)["step"].tolist()
            picture = store.heatmap(RUN, 0, max_columns=10**6)
            seen = picture.values[1, picture.flags[1] > 0].tolist()
            if steps != list(range(len(steps))) or seen != list(range(len(seen))) or len(steps) < longest:
                problems.append(f"{steps} {seen}")
            longest = len(steps)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for first in range(0, 750, 15):
        columns = [{"grad_norm": [step, step, step]} for step in range(first, first + 15)]
        records = [make_frame(c["grad_norm"][0], c, scalars={"loss": 0.0}) for c in columns]
        store.append(key, first, records)
        store.commit()
    stop.set()
    for reader in readers:
        reader.join(timeout=60)
    assert problems == []
