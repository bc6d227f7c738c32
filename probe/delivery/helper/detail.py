"""What a helper sends of a rank whose statistics may be pooled: metrics without them, and them as `detail`.

Both are made of the same records of the journal, under the same numbers. `detail` stays behind: what is
decided of a bucket of steps depends on events near it. A restart needs no state: what is acknowledged was
decided. Loads numpy.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import msgspec

from ...detectors.ranks.rank_watch import RankColumn
from ...wire import BATCH_BYTES, Frame, Layout, encode
from ..journal.journal_reader import Chunk, Skipped, StreamFollower
from .pooling import NotPooledError, Pool
from .resolution import POOLED_STEPS, EventStep, Resolution, read_events

_COMPARED: Final = frozenset({"grad_norm", "parameter_norm"})
"""Ranks are compared at steps that have both."""


class _Slim(msgspec.Struct, tag="frame", tag_field="t", frozen=True, kw_only=True, omit_defaults=True):
    """A `wire.Frame` without its statistics."""

    step: Annotated[int, msgspec.Meta(ge=0, le=2**62)]
    time: float
    layout: int = 0
    stage: str = "local"
    scalars: dict[str, float] = {}
    columns: list[RankColumn] = []
    missing: bytes = b""
    compared: list[RankColumn] = []


_slim_frames: Final = msgspec.msgpack.Decoder(_Slim)
_frames: Final = msgspec.msgpack.Decoder(Frame)
_encoder: Final = msgspec.msgpack.Encoder()


class SlimFollower(StreamFollower):
    """Follows the metrics of a rank and gives frames without statistics, while `is_slim`.

    Args:
        folder: the writer's.
        rank: whose.
        is_compared: what ranks of several hosts are compared by stays in.
    """

    def __init__(self, folder: Path, rank: int, *, is_compared: bool) -> None:
        super().__init__(folder, "metrics")
        self.rank = rank
        self.is_slim = False
        self.newest_step = -1
        """The largest step that was read; -1 before."""
        self._is_compared = is_compared

    def poll(self, max_bytes: int = BATCH_BYTES) -> Chunk | Skipped | None:
        """See `StreamFollower.poll`."""
        found = super().poll(max_bytes)
        if not self.is_slim or not isinstance(found, Chunk):
            return found
        return Chunk(found.first_seq, [self._slim(data) for data in found.records])

    def _slim(self, data: bytes) -> bytes:
        """Return a record without statistics; as it is, what is no frame."""
        try:
            frame = _slim_frames.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return data
        self.newest_step = max(self.newest_step, frame.step)
        compared = [column for column in frame.columns if column.name in _COMPARED]
        if not self._is_compared or len(compared) < len(_COMPARED):
            compared, missing = [], b""
        else:
            missing = frame.missing
        return _encoder.encode(msgspec.structs.replace(frame, columns=[], compared=compared, missing=missing))


@dataclass(slots=True)
class _Bucket:
    """Frames of one bucket that are being pooled; their records are sent together."""

    number: int
    layout: int
    pool: Pool
    first_seq: int
    last_step: int
    frames: list[Frame] = field(default_factory=list)
    """What is sent for each record: the sampled parts that are not pooled, mostly nothing."""


class DetailFollower:
    """Follows the same journal for the statistics: of one record there is one, which may hold nothing.

    Reads as a `StreamFollower` does. Not thread-safe.

    Args:
        metrics: of the same rank: says how far it is.
        resolution: decides what is pooled.
    """

    def __init__(self, metrics: SlimFollower, resolution: Resolution) -> None:
        self.next_seq = 0
        self.settled_step = -1
        """The step up to which all events of the host are known; set by the resolution."""
        self._metrics, self._resolution = metrics, resolution
        resolution.follow(self)
        self._journal = StreamFollower(metrics.folder, "metrics")
        self._events = StreamFollower(metrics.folder, "events")
        self._layouts: dict[int, Layout] = {}
        self._pools: dict[int, Pool] = {}
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._skipped: Skipped | None = None
        self._bucket: _Bucket | None = None
        self._highest_step = -1
        self._unpooled = -1
        """The bucket that could not be pooled last: its steps are sent one by one."""
        self._is_over = False

    def seek(self, seq: int) -> None:
        """Go to a number, backwards too; the next `poll` begins there."""
        self.next_seq = seq
        self._highest_step = -1
        self._begin_at(seq)

    def writer_is_over(self) -> None:
        """Take for granted that nothing more will be written: nothing waits for later steps."""
        self._is_over = True
        self._journal.writer_is_over()

    def is_at_end(self) -> bool:
        """Whether a `poll` would find nothing, and nothing waits."""
        is_empty = not self._waiting and self._skipped is None and self._bucket is None
        return is_empty and self._journal.is_at_end()

    def poll(self, max_bytes: int = BATCH_BYTES) -> Chunk | Skipped | None:
        """Return the next records, a hole, or None for now; a bucket that is pooled is never divided."""
        if not self._layouts:
            self.read_events()
        ready: list[Frame] = []
        records: list[bytes] = []
        size = 0
        while size < max_bytes:
            if not self._waiting and not self._read(max_bytes):
                if self._bucket is not None and (self._skipped is not None or self._is_over):
                    ready = self._close()
                else:
                    break
            elif (found := self._take(*self._waiting[0])) is not None:
                ready = found
            else:
                break
            records += map(encode, ready)
            size += sum(map(len, records[len(records) - len(ready) :]))
        if records:
            chunk = Chunk(self.next_seq, records)
            self.next_seq += len(records)
            return chunk
        skipped, self._skipped = self._skipped, None
        if skipped is not None:
            self.next_seq = skipped.end_seq
        return skipped

    # -- the journal

    def _begin_at(self, seq: int) -> None:
        self._journal.seek(seq)
        self._waiting.clear()
        self._skipped, self._bucket = None, None
        for pool in self._pools.values():
            pool.clear()

    def _read(self, max_bytes: int) -> bool:
        """Read more of the journal; whether there is a record."""
        if self._skipped is not None:
            return False
        found = self._journal.poll(max_bytes)
        if isinstance(found, Chunk):
            self._waiting.extend(enumerate(found.records, found.first_seq))
        elif found is not None and found.end_seq > found.first_seq:
            self._skipped = Skipped(found.first_seq, found.end_seq, f"statistics of the {found.reason}")
        return isinstance(found, Chunk)

    def newest_step(self) -> int:
        """The largest step that was read of the metrics; -1 before."""
        return self._metrics.newest_step

    def read_events(self) -> None:
        """Read the names of rows, and give the resolution the events."""
        for record in read_events(self._events):
            if isinstance(record, EventStep):
                self._resolution.note_event(record)
            else:
                self._layouts[record.layout] = record
                self._pools.pop(record.layout, None)

    # -- one record

    def _take(self, seq: int, data: bytes) -> list[Frame] | None:
        """Return what can be sent now, which may be nothing of this record; None: it has to wait."""
        try:
            frame = _frames.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            # The metrics have it, as it is.
            frame = Frame(step=max(self._highest_step, 0), time=0.0)
        number, bucket = frame.step // POOLED_STEPS, self._bucket
        if not _has_statistics(frame):
            return self._note(frame)
        if bucket is not None and (number, frame.layout) == (bucket.number, bucket.layout):
            is_again = bool(frame.columns) and frame.step <= bucket.last_step
            return self._close() if is_again else self._pool(seq, frame, bucket)
        if bucket is not None and number < bucket.number and not frame.columns:
            return self._add_late(seq, frame, bucket)
        if bucket is not None:
            return self._close()
        return self._begin(seq, frame, number)

    def _begin(self, seq: int, frame: Frame, number: int) -> list[Frame] | None:
        """Decide what is sent of the bucket that a record begins."""
        is_again = frame.step <= self._highest_step
        if seq == 0:
            # At once: who reads the journal after this helper knows by it that statistics went apart.
            return self._send_in_full(frame)
        if not frame.columns:
            # It adds to a step that was sent in full, whose values a pooled row in its place would replace.
            return self._send_in_full(frame)
        if number == self._unpooled or is_again or self._resolution.is_full(self._metrics.rank, number):
            return self._send_in_full(frame)
        settled = self.settled_step
        may_decide = self._resolution.may_decide(number, settled_step=settled, time_s=frame.time)
        if not may_decide and not self._is_over:
            return None
        pool = self._pool_of(frame.layout)
        if pool is None:
            return self._send_in_full(frame)
        self._bucket = _Bucket(number, frame.layout, pool, seq, last_step=-1)
        return self._pool(seq, frame, self._bucket)

    def _pool_of(self, layout: int) -> Pool | None:
        """Return the pool of a layout; None where it is not known, or none can be made of it."""
        if layout not in self._pools and (known := self._layouts.get(layout)) is not None:
            try:
                self._pools[layout] = Pool(known)
            except NotPooledError:
                del self._layouts[layout]
        return self._pools.get(layout)

    def _pool(self, seq: int, frame: Frame, bucket: _Bucket) -> list[Frame]:
        """Take a frame into its bucket; where it does not pool, the whole bucket is read again."""
        try:
            bucket.pool.add(frame)
        except NotPooledError:
            self._unpooled = bucket.number
            self._begin_at(bucket.first_seq)
            return []
        if frame.columns:
            bucket.last_step = frame.step
        return self._note(_only_histograms(frame))

    def _add_late(self, seq: int, frame: Frame, bucket: _Bucket) -> list[Frame]:
        """Send what adds to a step of an earlier bucket: the largest of that bucket that came late."""
        try:
            pool = Pool(self._layouts[frame.layout])
            pool.add(frame)
        except (KeyError, NotPooledError):
            return self._note(frame)
        return self._note(pool.frame(frame))

    def _note(self, frame: Frame) -> list[Frame]:
        """Take the oldest waiting record as done; what is sent of it goes with its bucket."""
        self._waiting.popleft()
        sent = _without_scalars(frame)
        if self._bucket is None:
            return [sent]
        self._bucket.frames.append(sent)
        return []

    def _send_in_full(self, frame: Frame) -> list[Frame]:
        if frame.columns:
            self._highest_step = max(self._highest_step, frame.step)
        return self._note(frame)

    def _close(self) -> list[Frame]:
        """Return what is sent of the bucket's records, with the pooled values in one of them."""
        assert self._bucket is not None
        bucket, self._bucket = self._bucket, None
        self._highest_step = max(self._highest_step, bucket.last_step)
        for at, frame in enumerate(bucket.frames):
            if frame.step // POOLED_STEPS == bucket.number and not frame.histograms and not frame.pooled:
                bucket.frames[at] = bucket.pool.frame(frame)
                return bucket.frames
        # Each of them has histograms, which belong to their steps.
        self._unpooled = bucket.number
        self._begin_at(bucket.first_seq)
        return []


def detail_of(data: bytes) -> bytes:
    """Return what `detail` has of a record of the metrics, where nothing is pooled."""
    try:
        return encode(_without_scalars(_frames.decode(data)))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return encode(Frame(step=0, time=0.0))


def _has_statistics(frame: Frame) -> bool:
    return bool(frame.columns or frame.parameter_columns or frame.module_columns or frame.histograms)


def _without_scalars(frame: Frame) -> Frame:
    return msgspec.structs.replace(frame, scalars={}) if frame.scalars else frame


def _only_histograms(frame: Frame) -> Frame:
    """Return a frame with what is not pooled; the rows of modules name those of its histograms."""
    return Frame(
        step=frame.step,
        time=frame.time,
        layout=frame.layout,
        stage=frame.stage,
        histograms=frame.histograms,
        module_rows=frame.module_rows if frame.histograms else b"",
        member=frame.member,
    )
