"""What a helper sends apart of a rank of many: which records, when, and what is left of them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from probe.delivery.helper import resolution as rules
from probe.delivery.helper.detail import DetailFollower, SlimFollower, detail_of
from probe.delivery.helper.helper import host_folder
from probe.delivery.helper.resolution import EVENT_STEPS, POOLED_STEPS, Resolution, pool_above
from probe.delivery.journal.journal import JournalWriter
from probe.delivery.journal.journal_reader import Chunk, Skipped
from probe.detectors.ranks.rank_watch import RankWatch
from probe.wire import (
    Event,
    Frame,
    LayerInfo,
    Layout,
    ParameterInfo,
    RunStart,
    decode_record,
    encode,
)
from probe.wire.columns import pack_column
from probe.wire.module_frames import pack_module_columns

RUN = "run"
NOW = 1e9
LAYOUT = Layout(
    layout=0,
    model="net",
    parameters=[
        ParameterInfo(name=f"{layer}.{name}", shape=[2], dtype="float32", layer=layer)
        for layer, name in ((0, "weight"), (0, "bias"), (1, "weight"))
    ],
    layers=[LayerInfo(name="0", type="Linear"), LayerInfo(name="1", type="Linear")],
)


@pytest.fixture(autouse=True)
def at_that_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames are as young as they say."""
    monkeypatch.setattr(rules.time, "time", lambda: NOW)


def make(step: int, *, value: float = 1.0, **fields) -> Frame:
    columns = [pack_column("grad_norm", np.array([value + step, 2.0, 3.0]))]
    if step % 10 == 0:
        columns.append(pack_column("parameter_norm", np.array([1.0, 2.0, 4.0])))
    scalars = {"loss": 1 / (1 + step), "grad_norm": 5.0}
    return Frame(step=step, time=NOW, scalars=scalars, columns=columns, **fields)


class Rank:
    """One rank's journal and what follows it."""

    def __init__(self, spool: Path, rank: int = 3, resolution: Resolution | None = None, **options) -> None:
        self.folder = spool / RUN / f"{rank}-1"
        self.journal = JournalWriter(self.folder, run=RUN, writer=self.folder.name)
        self.resolution = resolution or Resolution(spool / RUN)
        if options.pop("layout", True):
            self.journal.append("events", encode(LAYOUT))
        self.metrics = SlimFollower(self.folder, rank, is_compared=options.pop("is_compared", False))
        self.metrics.is_slim = True
        self.detail = DetailFollower(self.metrics, self.resolution)
        self.sent: list[Frame] = []
        self.ends: list[int] = []

    def write(self, *frames: Frame) -> None:
        self.journal.append_many("metrics", list(map(encode, frames)))

    def event(self, step: int, severity: str = "critical") -> None:
        event = Event(
            id="0" * 16, run=RUN, rank=3, incarnation=1, step=step, time=NOW, kind="custom",
            severity=severity, message="",
        )  # fmt: skip
        self.journal.append("events", encode(event))

    def slim(self) -> list[Frame]:
        return [decode_record(data) for data in records_of(self.metrics)]

    def read(self, piece: int = 4096) -> list[Frame]:
        """Read metrics and detail as far as they go; all of the detail that was sent until now."""
        self.slim()
        self.resolution.look()
        while (found := self.detail.poll(piece)) is not None:
            assert isinstance(found, Chunk) and found.first_seq == len(self.sent)
            self.sent += map(decode_record, found.records)
            self.ends.append(self.detail.next_seq)
        return self.sent


def records_of(follower: SlimFollower) -> list[bytes]:
    records: list[bytes] = []
    while (found := follower.poll()) is not None:
        assert isinstance(found, Chunk)
        records += found.records
    return records


def is_whole(frames: list[Frame], frame: Frame) -> bool:
    """Whether a frame's statistics were sent as they are."""
    return any(one.step == frame.step and one.columns == frame.columns for one in frames)


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path)


def test_metrics_have_everything_but_the_statistics(rank: Rank) -> None:
    frames = [make(step, stage="clipped", missing=b"\x80") for step in range(30)]
    rank.write(*frames)
    kept = [Frame(step=f.step, time=f.time, stage=f.stage, scalars=f.scalars) for f in frames]
    assert rank.slim() == kept


def test_what_is_no_frame_stays_as_it_is(rank: Rank) -> None:
    rank.journal.append("metrics", b"\xc1 no record")
    rank.write(make(0))
    assert records_of(rank.metrics)[0] == b"\xc1 no record"
    rank.detail.writer_is_over()
    assert len(rank.read()) == 2


def test_every_record_has_one_and_nothing_waits_at_the_end(rank: Rank) -> None:
    frames = [make(step) for step in range(0, 500, 3)]
    frames.insert(20, Frame(step=9, time=NOW, scalars={"log/x": 1.0}))
    rank.write(*frames)
    rank.detail.writer_is_over()
    sent = rank.read()
    assert len(sent) == len(frames) and rank.detail.is_at_end()
    assert not any(frame.scalars for frame in sent)
    pooled = [frame for frame in sent if frame.pooled]
    assert [frame.step // POOLED_STEPS for frame in pooled] == list(range(500 // POOLED_STEPS + 1))
    assert [frame.step for frame in sent if frame.columns] == [0], "the first one is sent at once"


def test_a_bucket_waits_until_no_event_near_it_will_come(rank: Rank) -> None:
    rank.write(*(make(step) for step in range(EVENT_STEPS + POOLED_STEPS)))
    assert len(rank.read()) == 1 and not rank.detail.is_at_end()
    rank.write(make(EVENT_STEPS + POOLED_STEPS))
    assert len(rank.read()) == POOLED_STEPS


def test_steps_count_once_the_events_written_before_them_are_known(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    other = Rank(tmp_path, 4, rank.resolution)
    rank.write(*(make(step) for step in range(EVENT_STEPS + 100)))
    rank.resolution.look()
    rank.slim()
    rank.sent += map(decode_record, rank.detail.poll().records)
    assert len(rank.sent) == 1 and rank.detail.poll() is None
    other.event(60)
    rank.read()
    assert is_whole(rank.sent, make(0)) and is_whole(rank.sent, make(99))


def test_a_bucket_that_has_waited_long_is_sent(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    rank.write(*(make(step) for step in range(33)))
    assert len(rank.read()) == 1
    monkeypatch.setattr(rules.time, "time", lambda: NOW + rules.HOLD_S + 1)
    assert len(rank.read()) == 32


def test_steps_near_an_event_of_any_rank_of_the_host_are_sent_one_by_one(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    other = Rank(tmp_path, 4, rank.resolution)
    frames = [make(step) for step in range(1000)]
    rank.write(*frames)
    other.event(500)
    other.event(900, "info")
    other.read()
    rank.detail.writer_is_over()
    sent = rank.read()
    whole = [frame.step for frame in frames[1:] if is_whole(sent, frame)]
    assert set(range(300, 701)) <= set(whole)
    assert min(whole) > 300 - 2 * POOLED_STEPS and max(whole) < 700 + 2 * POOLED_STEPS


def test_an_event_that_the_helper_tells_counts(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    folder = host_folder(tmp_path / RUN)
    host = JournalWriter(folder, run=RUN, writer=folder.name)
    event = Event(
        id="0" * 16, run=RUN, rank=9, incarnation=1, step=100, time=NOW, kind="hang", severity="warning",
        message="",
    )  # fmt: skip
    host.append("host", encode(event))
    rank.resolution.look()
    assert rank.resolution.is_full(3, 100 // POOLED_STEPS) and not rank.resolution.is_full(3, 40)


def test_a_watched_rank_is_sent_at_once_and_in_full(rank: Rank) -> None:
    frames = [make(step) for step in range(40)]
    rank.write(*frames)
    assert len(rank.read()) == 1
    rank.resolution.watch([3])
    assert all(is_whole(rank.read(), frame) for frame in frames)
    rank.resolution.watch([])
    rank.write(make(40))
    assert len(rank.read()) == 40


def test_the_first_rank_is_never_pooled(tmp_path: Path) -> None:
    first = Rank(tmp_path, 0)
    frames = [make(step) for step in range(20)]
    first.write(*frames)
    assert all(is_whole(first.read(), frame) for frame in frames)


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_a_bucket_with_what_is_not_finite_is_sent_step_by_step(rank: Rank, odd: float) -> None:
    frames = [make(step, value=odd if step == 25 else 1.0) for step in range(64)]
    rank.write(*frames)
    rank.detail.writer_is_over()
    whole = [frame.step for frame in frames if is_whole(rank.read(), frame)]
    assert whole == [0, *range(16, 32)]


def test_without_a_layout_nothing_is_pooled(tmp_path: Path) -> None:
    rank = Rank(tmp_path, layout=False)
    frames = [make(step) for step in range(20)]
    rank.write(*frames)
    rank.detail.writer_is_over()
    assert all(is_whole(rank.read(), frame) for frame in frames)


def test_steps_that_come_again_are_sent_in_full(rank: Rank) -> None:
    rank.write(*(make(step) for step in range(64)))
    again = [make(step, value=9.0) for step in range(20, 80)]
    rank.write(*again)
    rank.detail.writer_is_over()
    sent = rank.read()
    assert [frame.step for frame in again if is_whole(sent, frame)] == list(range(20, 64))


@pytest.mark.parametrize("piece", [1, 700, 10**6])
def test_who_begins_anew_at_an_acknowledged_record_sends_the_same(tmp_path: Path, piece: int) -> None:
    rank = Rank(tmp_path)
    frames = [make(step, value=math.nan if step == 70 else 1.0) for step in range(120)]
    ratios = pack_module_columns({"update_ratio": np.array([0.1, 0.2, 0.3])}, {})
    frames.insert(50, Frame(step=47, time=NOW, parameter_columns=ratios))
    rank.write(*frames)
    rank.detail.writer_is_over()
    rank.read(piece)
    # Within a bucket that did not pool it is not known any more that it did not: its rest is pooled then.
    for end in (end for end in rank.ends if not 65 < end <= 80):
        again = DetailFollower(rank.metrics, rank.resolution)
        again.writer_is_over()
        again.seek(end)
        found: list[Frame] = []
        while (chunk := again.poll()) is not None:
            found += map(decode_record, chunk.records)
        assert found == rank.sent[end:]


def test_a_hole_ends_a_bucket_and_is_passed_on(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    rank.write(*(make(step) for step in range(8)))
    rank.journal.close()
    segment = next(rank.folder.glob("metrics-*.seg"))
    data = bytearray(segment.read_bytes())
    at = data.index(encode(make(5)))
    data[at + 3] ^= 0xFF
    segment.write_bytes(data)
    rank.detail.writer_is_over()
    found = []
    while (one := rank.detail.poll()) is not None:
        found.append(one)
    spans = [
        (one.first_seq, one.end_seq if isinstance(one, Skipped) else one.first_seq + len(one.records))
        for one in found
    ]
    assert spans == [(0, 5), (5, 6), (6, 8)] and isinstance(found[1], Skipped)
    assert [decode_record(data).pooled for data in found[0].records] == [0, 16, 0, 0, 0]
    assert found[1].reason.startswith("statistics of the metrics")


def test_detail_of_a_record_is_its_statistics() -> None:
    frame = make(10, missing=b"\x80")
    found = decode_record(detail_of(encode(frame)))
    assert isinstance(found, Frame) and not found.scalars
    assert (found.step, found.columns, found.missing) == (10, frame.columns, frame.missing)
    assert decode_record(detail_of(b"\xc1")) == Frame(step=0, time=0.0)


def test_ranks_of_two_hosts_are_compared_by_what_stays_in(tmp_path: Path) -> None:
    """The dashboard finds the same with slim frames of one rank a host as with whole ones."""
    told = []
    for is_slim in (False, True):
        watch = RankWatch(RUN)
        for number in (3, 11):
            watch.start(RunStart(run=RUN, rank=number, incarnation=1, world_size=2))
            watch.layout(number, 1, LAYOUT)
        for number in (3, 11):
            rank = Rank(tmp_path / str(is_slim), number, is_compared=True)
            rank.metrics.is_slim = is_slim
            for step in range(60):
                drift = 1.0 + 0.01 * (number == 11) * (step >= 20)
                columns = [
                    pack_column("grad_norm", np.array([1.0 + step, 2.0, 3.0])),
                    pack_column("parameter_norm", np.array([1.0, 2.0, 4.0]) * drift),
                ]
                grad_norm = math.sqrt((1 + step) ** 2 + 13)
                rank.write(
                    Frame(step=step, time=NOW + step, scalars={"grad_norm": grad_norm}, columns=columns)
                )
            for frame in rank.slim():
                assert bool(frame.columns) != is_slim and bool(frame.compared) == is_slim
                watch.frame(number, 1, frame)
        told.append([(event.kind, event.rank, event.step) for event in watch.take(everything=True)])
    assert told[0] == told[1] and ("rank_divergence", 11, 20) in told[1]


def test_where_the_line_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pool_above({}) == 16
    assert pool_above({"NANSCOPE_POOL_ABOVE": "100"}) == 100
    assert pool_above({"NANSCOPE_POOL_ABOVE": "many"}) == 16
