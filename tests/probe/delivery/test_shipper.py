"""The helper's windows, its census and how it finds a collector; the processes are in tests/integration."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from probe.delivery.helper import shipper
from probe.delivery.helper.census import Census
from probe.delivery.helper.link import Target, find_target
from probe.delivery.helper.shipper import PIECE_BYTES, WINDOW_BYTES, Lane
from probe.delivery.journal.journal import JournalWriter
from probe.delivery.journal.journal_reader import Chunk, StreamFollower, read_stream
from probe.settings.places import ServeState, write_serve_state
from probe.wire import (
    Answered,
    Batch,
    Control,
    HostSample,
    RunEnd,
    RunStart,
    Skip,
    StreamKey,
    decode_record,
    encode,
)

KEY = StreamKey(run="run", writer="0-1", stream="metrics")


class RecordingLink:
    """Takes messages as a link does, and can be full."""

    def __init__(self, room: int = 10**9) -> None:
        self.room = room
        self.is_full = False
        self.sent: list[Batch | Skip] = []

    def make_room(self, room: int = 10**9) -> None:
        self.room, self.is_full = room, False

    def send(self, message: Batch | Skip) -> bool:
        if len(self.sent) >= self.room:
            self.is_full = True
            return False
        self.sent.append(message)
        return True


def make_lane(spool: Path, *, records: int = 30, size: int = 100_000) -> Lane:
    journal = JournalWriter(spool / "run" / "0-1", run="run", writer="0-1")
    for number in range(records):
        journal.append("metrics", b"%03d" % number + b"x" * size)
    journal.close()
    return Lane(KEY, StreamFollower(journal.folder, "metrics"))


def fill(lane: Lane, link: RecordingLink) -> None:
    while lane.fill(link):
        pass


def numbers(link: RecordingLink) -> list[int]:
    return [int(data[:3]) for batch in link.sent if isinstance(batch, Batch) for data in batch.records]


def test_lane_sends_nothing_before_it_knows_where_to_start(tmp_path: Path) -> None:
    link, lane = RecordingLink(), make_lane(tmp_path)
    fill(lane, link)
    assert link.sent == []


def test_lane_starts_where_the_collector_says(tmp_path: Path) -> None:
    link, lane = RecordingLink(), make_lane(tmp_path)
    lane.acknowledge(17)
    fill(lane, link)
    assert numbers(link) == list(range(17, 30))


def test_lane_stops_at_its_window_until_an_ack_moves_it(tmp_path: Path) -> None:
    link, lane = RecordingLink(), make_lane(tmp_path, records=200)
    lane.acknowledge(0)
    fill(lane, link)
    sent = len(numbers(link))
    assert WINDOW_BYTES <= sent * 100_003 < WINDOW_BYTES + 600_000
    lane.acknowledge(50)
    fill(lane, link)
    assert 0 < len(numbers(link)) - sent <= 55


def test_lane_whose_link_is_full_sends_the_same_batch_later(tmp_path: Path) -> None:
    link, lane = RecordingLink(room=2), make_lane(tmp_path)
    lane.acknowledge(0)
    fill(lane, link)
    link.make_room()
    fill(lane, link)
    assert numbers(link) == list(range(30))


def test_of_all_lanes_one_reads_ahead_while_the_link_is_full(tmp_path: Path) -> None:
    """What is read and has no room is memory: 128 KiB of it, or one record, not that of every rank."""
    link = RecordingLink(room=0)
    lanes = [make_lane(tmp_path / str(rank), size=1000) for rank in range(4)]
    for lane in lanes:
        lane.acknowledge(0)
        fill(lane, link)
    held = [lane.unsent for lane in lanes if isinstance(lane.unsent, Chunk)]
    assert [sum(map(len, chunk.records)) <= PIECE_BYTES for chunk in held] == [True]
    link.make_room()
    for lane in lanes:
        fill(lane, link)
    assert numbers(link) == 4 * list(range(30))


def test_lane_without_acks_goes_back_to_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link, lane = RecordingLink(), make_lane(tmp_path)
    lane.acknowledge(0)
    fill(lane, link)
    lane.acknowledge(12)
    lane.resend_if_stalled()
    assert not lane.fill(link)
    monkeypatch.setattr(shipper, "RESEND_S", -1.0)
    lane.resend_if_stalled()
    link.sent.clear()
    fill(lane, link)
    assert numbers(link) == list(range(12, 30))


def test_lane_new_connection_asks_again_and_may_go_back(tmp_path: Path) -> None:
    link, lane = RecordingLink(), make_lane(tmp_path)
    lane.acknowledge(0)
    fill(lane, link)
    lane.acknowledge(20)
    lane.restart()
    link.sent.clear()
    lane.acknowledge(5)
    fill(lane, link)
    assert numbers(link) == list(range(5, 30))


def test_lane_is_delivered_only_when_the_last_record_is_acknowledged(tmp_path: Path) -> None:
    link, lane = RecordingLink(), make_lane(tmp_path)
    states = [lane.is_delivered()]
    for ack in (0, 29, 30):
        lane.acknowledge(ack)
        fill(lane, link)
        states.append(lane.is_delivered())
    assert states == [False, False, False, True]


def test_lane_any_order_of_sends_acks_and_losses_delivers_everything_once_in_order(tmp_path: Path) -> None:
    """A collector that loses messages, restarts, and acknowledges late: go-back-N must still arrive."""
    lane = make_lane(tmp_path, records=200, size=20_000)
    for seed in range(20):
        chance, received, durable = random.Random(seed), [], 0
        lane.restart()
        lane.acknowledge(0)
        while durable < 200:
            link = RecordingLink(room=chance.randrange(6))
            fill(lane, link)
            for batch in link.sent:
                if chance.random() < 0.7 and batch.first_seq <= len(received):
                    received += [int(r[:3]) for r in batch.records][len(received) - batch.first_seq :]
            durable = len(received) if chance.random() < 0.5 else durable
            if chance.random() < 0.3:
                received = received[:durable]
                lane.restart()
            lane.acknowledge(durable)
            if lane.in_flight and lane.acked is not None and chance.random() < 0.5:
                lane.progressed = -1e9
                lane.resend_if_stalled()
        assert received == list(range(200))


def test_find_target_takes_address_and_secret_of_the_local_dashboard(tmp_path: Path) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    assert find_target(None, environment) is None
    write_serve_state(ServeState(page="", ingest="tcp://127.0.0.1:5", pid=1, secret="ab" * 8), environment)
    local = Target("tcp://127.0.0.1:5", b"\xab" * 8)
    assert find_target(None, environment) == local
    assert find_target("tcp://box:7", environment) == Target("tcp://box:7", local.secret)
    environment["NANSCOPE_SECRET"] = "cd" * 8
    assert find_target("tcp://box:7", environment) == Target("tcp://box:7", b"\xcd" * 8)
    assert find_target(None, environment) == local


def test_find_target_without_a_usable_secret_is_none(tmp_path: Path) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    assert find_target("tcp://box:7", environment) is None
    assert find_target("tcp://box:7", {**environment, "NANSCOPE_SECRET": "not hexadecimal"}) is None


def begin_run(spool: Path, *, pid: int, rank: int = 0, began: float | None = None) -> JournalWriter:
    journal = JournalWriter(spool / "run" / f"{rank}-1", run="run", writer=f"{rank}-1")
    start = RunStart(
        run="run", rank=rank, incarnation=1, pid=pid, time=time.time() if began is None else began
    )
    journal.append("events", encode(start))
    return journal


def take(census: Census, spool: Path) -> list[HostSample]:
    """Take the census once; return all that has been written."""
    census.take()
    folder = next((spool / "run").glob("host-*"))
    records = [decode_record(data) for _, data in read_stream(folder, "host")]
    return [record for record in records if isinstance(record, HostSample)]


@pytest.fixture
def other_process() -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate(timeout=30)


def test_census_sees_a_live_trainer_and_its_memory(tmp_path: Path) -> None:
    begin_run(tmp_path, pid=os.getpid()).close()
    census = Census(tmp_path / "run")
    sample = take(census, tmp_path)[-1]
    assert (sample.state, census.over_since) == ("running", None)
    assert sample.rss_bytes is not None
    assert sample.rss_bytes > 1_000_000
    census.close()


def test_census_says_killed_once_even_to_the_next_helper(
    tmp_path: Path, other_process: subprocess.Popen[bytes]
) -> None:
    begin_run(tmp_path, pid=other_process.pid).close()
    census = Census(tmp_path / "run")
    take(census, tmp_path)
    other_process.kill()
    os.waitid(os.P_PID, other_process.pid, os.WEXITED | os.WNOWAIT)
    take(census, tmp_path)
    first_over = census.over_since
    census.close()
    census = Census(tmp_path / "run")
    states = [sample.state for sample in take(census, tmp_path)]
    assert states == ["running", "killed"]
    assert first_over is not None
    assert census.over_since == pytest.approx(first_over, abs=0.5)
    census.close()


def test_census_orderly_end_is_ended_though_the_process_lives_on(tmp_path: Path) -> None:
    journal = begin_run(tmp_path, pid=os.getpid())
    journal.append("events", encode(RunEnd(time=5.0, step=1, outcome="finished")))
    journal.close()
    census = Census(tmp_path / "run")
    assert [sample.state for sample in take(census, tmp_path)] == ["ended"]
    assert census.over_since == 5.0
    census.close()


def test_census_process_id_that_came_around_again_is_killed(tmp_path: Path) -> None:
    begin_run(tmp_path, pid=os.getpid(), began=1_000_000.0).close()
    census = Census(tmp_path / "run")
    assert [sample.state for sample in take(census, tmp_path)] == ["killed"]
    census.close()


def test_census_is_over_when_the_last_rank_is(tmp_path: Path) -> None:
    for rank, pid in ((0, os.getpid()), (1, 2**22 + 1)):
        begin_run(tmp_path, pid=pid, rank=rank).close()
    census = Census(tmp_path / "run")
    assert {sample.rank: sample.state for sample in take(census, tmp_path)} == {0: "running", 1: "killed"}
    assert census.over_since is None
    census.close()


def make_writer_lanes(spool: Path) -> tuple[JournalWriter, Lane, Lane]:
    journal = JournalWriter(spool / "run" / "0-1", run="run", writer="0-1")
    events = Lane(
        StreamKey(run="run", writer="0-1", stream="events"), StreamFollower(journal.folder, "events")
    )
    metrics = Lane(KEY, StreamFollower(journal.folder, "metrics"), events)
    return journal, events, metrics


def test_lane_of_metrics_sends_earlier_events_first(tmp_path: Path) -> None:
    journal, events, metrics = make_writer_lanes(tmp_path)
    link = RecordingLink()
    for lane in (events, metrics):
        lane.acknowledge(0)
    fill(events, link)
    journal.append("events", b"layout")
    journal.append("metrics", b"000")
    journal.close()
    assert metrics.fill(link)
    assert [message.key.stream for message in link.sent] == ["events", "metrics"]


def test_lane_of_metrics_waits_while_events_cannot_be_sent(tmp_path: Path) -> None:
    journal, events, metrics = make_writer_lanes(tmp_path)
    journal.append("events", b"layout")
    journal.append("metrics", b"000")
    journal.close()
    link = RecordingLink()
    metrics.acknowledge(0)
    fill(metrics, link)
    assert link.sent == []
    events.acknowledge(0)
    fill(metrics, link)
    assert [message.key.stream for message in link.sent] == ["events", "metrics"]


def test_shipper_does_not_leave_a_trainer_that_began_since_its_last_look(tmp_path: Path) -> None:
    ended = begin_run(tmp_path, pid=os.getpid(), rank=0)
    ended.append("events", encode(RunEnd(time=time.time(), step=1, outcome="finished")))
    leaving = shipper.Shipper(ended.folder.parent, None, linger_s=0.0)
    leaving._look_around()
    time.sleep(0.01)
    assert leaving._seems_done()
    begun = begin_run(tmp_path, pid=os.getpid(), rank=1)
    assert not leaving._is_done()
    for journal in (ended, begun):
        journal.close()
    leaving._census.close()
    leaving._context.term()


class ConnectedLink(RecordingLink):
    """A link that the collector has answered."""

    ready, failed = True, None

    def pump(self, timeout_s: float) -> list[object]:
        return []

    def close(self) -> None:
        pass


def test_shipper_keeps_an_answer_for_which_the_link_has_no_room(tmp_path: Path) -> None:
    link = ConnectedLink(room=0)
    begun = begin_run(tmp_path, pid=os.getpid(), rank=0)
    shipping = shipper.Shipper(begun.folder.parent, None)
    shipping._link = link  # type: ignore[assignment]
    shipping._relay.begin(Control(id="a" * 32, run="run", request=b""), [])
    shipping._exchange()
    assert link.sent == []
    link.make_room()
    shipping._exchange()
    assert [message.id for message in link.sent if isinstance(message, Answered)] == ["a" * 32]
    begun.close()
    shipping._census.close()
    shipping._context.term()


def test_shipper_waits_for_a_trainer_that_has_not_yet_said_who_it_is(tmp_path: Path) -> None:
    ended = begin_run(tmp_path, pid=os.getpid(), rank=0)
    ended.append("events", encode(RunEnd(time=time.time(), step=1, outcome="finished")))
    census = Census(ended.folder.parent)
    census.take()
    assert census.over_since is not None
    (ended.folder.parent / "1-5").mkdir()
    census.take()
    assert census.over_since is None
    ended.close()
    census.close()
