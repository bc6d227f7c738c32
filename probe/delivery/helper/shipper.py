"""Ships one run's local journals to a collector: the helper process's loop, on its only thread.

Go-back-N: every stream has a window of unacknowledged records; an ack moves it, a timeout or a new
connection sends everything after the last ack again. Acks come after the store's commit, so nothing is lost
with either end.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import zmq

from ...wire import BATCH_BYTES, Ack, Answered, Batch, Position, SentStream, Skip, StreamKey, Watch
from ..control.control_relay import ControlRelay
from ..journal.journal_reader import Chunk, Skipped, StreamFollower
from ..spool_care import cap_bytes, keep_below_cap
from .census import Census
from .helper import note_listening, note_refusal
from .link import Link, find_target
from .resolution import Resolution, pool_above

if TYPE_CHECKING:
    from .detail import DetailFollower, SlimFollower

LINGER_S: Final = 60.0
"""How long after the last trainer ended the helper waits for a dashboard; `NANSCOPE_LINGER_S` changes it."""
WINDOW_BYTES: Final = 8 * 1024**2
"""Unacknowledged bytes per stream."""
PIECE_BYTES: Final = BATCH_BYTES // 2
"""What is read of a journal at once, if it is more than one record: it is in memory several times over."""
RESEND_S: Final = 5.0
"""Without an ack for this long a stream is sent again from the last one."""
DEAD_S: Final = 15.0
"""With something outstanding and not a word for this long the connection is made anew."""
CONNECT_S: Final = 3.0
"""A connection whose handshake takes longer is made anew; the address may have changed."""
_IDLE_S: Final = 0.05
_QUIET_S: Final = 0.15
"""How long it waits for a trainer that has written nothing lately, and nobody has asked anything."""
_LATELY_S: Final = 2.0
_CENSUS_S: Final = 1.0
_EVENTS_S: Final = 0.2
"""How often events are looked for that decide what is sent in full."""
_MAX_BACKOFF_S: Final = 2.0
_SPOOL_AFTER_S: Final = 10.0
_SPOOL_S: Final = 600.0
"""How often the size of the whole spool is looked at; once more at the end."""
_ORDER: Final[tuple[SentStream, ...]] = ("events", "host", "metrics", "detail")


@dataclass(slots=True)
class Lane:
    """One stream on its way to the collector."""

    key: StreamKey
    follower: StreamFollower | DetailFollower
    ahead: Lane | None = None
    """Sent before anything of this one: frames mean nothing before the layout that names their rows."""
    acked: int | None = None
    """Everything below is durable in the store; None until the collector has said where to start."""
    asked: bool = False
    """A `Position` is on its way."""
    unsent: Chunk | Skipped | None = None
    """Read from the journal, but the link had no room for it yet."""
    in_flight: deque[tuple[int, int]] = field(default_factory=deque)
    """(number after the batch, its bytes), oldest first."""
    in_flight_bytes: int = 0
    progressed: float = 0.0
    """Monotonic seconds of the last ack, or of the first send after it."""

    def fill(self, link: Link) -> bool:
        """Send the next batch if the window has room; whether something was sent."""
        if self.acked is None or self.in_flight_bytes >= WINDOW_BYTES:
            return False
        if link.is_full and self.unsent is None:
            # One that is read waits for room already.
            return False
        found = self.unsent or self.follower.poll(PIECE_BYTES)
        if found is None:
            return False
        self.unsent = found
        # After the poll: what was written before these records is sent before them.
        if not (self._send_ahead(link) and link.send(_as_message(self.key, found))):
            return False
        self.unsent = None
        if not self.in_flight:
            self.progressed = time.monotonic()
        size = sum(map(len, found.records)) if isinstance(found, Chunk) else 0
        self.in_flight.append((self.follower.next_seq, size))
        self.in_flight_bytes += size
        return True

    def _send_ahead(self, link: Link) -> bool:
        """Send all that the lane ahead has; whether nothing of it is left."""
        lane = self.ahead
        if lane is None:
            return True
        while lane.fill(link):
            pass
        return lane.acked is not None and lane.unsent is None and lane.follower.is_at_end()

    def acknowledge(self, next_seq: int) -> None:
        """Take in an ack; the first one of a connection says where to start."""
        if self.acked is None:
            self.unsent = None
            self.follower.seek(next_seq)
        if self.acked is None or next_seq > self.acked:
            self.acked, self.progressed = next_seq, time.monotonic()
        while self.in_flight and self.in_flight[0][0] <= next_seq:
            self.in_flight_bytes -= self.in_flight.popleft()[1]

    def resend_if_stalled(self) -> None:
        """Go back to the last ack when there has been none for too long."""
        if self.acked is not None and self.in_flight and time.monotonic() - self.progressed > RESEND_S:
            self._forget_in_flight()
            self.follower.seek(self.acked)

    def restart(self) -> None:
        """Forget the connection: the next one asks where to start."""
        self._forget_in_flight()
        self.acked, self.asked = None, False

    def is_delivered(self) -> bool:
        """Whether everything that the journal holds is durable in the store."""
        if self.in_flight or self.acked != self.follower.next_seq:
            return False
        return self.follower.is_at_end()

    def _forget_in_flight(self) -> None:
        self.unsent = None
        self.in_flight.clear()
        self.in_flight_bytes = 0


class Shipper:
    """Ships everything that this host's trainers and the helper itself write for one run.

    Args:
        run_folder: `SPOOL/<run>`.
        connect: ingest address; None finds the local dashboard in `serve.json`, whenever it appears.
        linger_s: how long to wait for a dashboard after the last trainer ended.
        is_held: whether other helpers see this one's lock. Not once somebody has removed the run's folder:
            the trainers make a new one then, and start a helper for it.
    """

    def __init__(
        self,
        run_folder: Path,
        connect: str | None,
        *,
        linger_s: float = LINGER_S,
        is_held: Callable[[], bool] = lambda: True,
    ) -> None:
        self._run_folder = run_folder
        self._connect = connect
        self._linger_s = linger_s
        self._is_held = is_held
        self._census = Census(run_folder)
        self._relay = ControlRelay()
        self._answers: deque[Answered] = deque()
        """What the link had no room for yet."""
        self._lanes: dict[tuple[str, SentStream], Lane] = {}
        self._resolution = Resolution(run_folder)
        self._pool_above = pool_above()
        self._next_events = 0.0
        self._slim: list[SlimFollower] = []
        """Ranks whose statistics are sent apart."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._link: Link | None = None
        self._link_began = 0.0
        self._heard = 0.0
        self._next_attempt = 0.0
        self._backoff_s = 0.1
        self._next_census = 0.0
        self._next_spool_look = time.monotonic() + _SPOOL_AFTER_S
        self._is_listening = self._is_replaced = False
        self._moved = 0.0
        """When a trainer's record was sent, or a request came; monotonic seconds."""

    def run(self) -> None:
        """Ship until every trainer is over and all is delivered, or nobody has come for it."""
        try:
            while True:
                self._look_around()
                if self._is_replaced:
                    return
                busy = self._exchange()
                if self._is_done():
                    self._look_at_spool(math.inf)
                    return
                if self._link is None:
                    # Nothing else can happen before the next of both.
                    time.sleep(max(min(self._next_census, self._next_attempt) - time.monotonic(), _IDLE_S))
                elif not busy:
                    is_quiet = self._link.ready and time.monotonic() - self._moved > _LATELY_S
                    self._receive(_QUIET_S if is_quiet else _IDLE_S)
        finally:
            self._drop_link()
            note_listening(self._run_folder, is_listening=False)
            self._context.term()
            self._census.close()

    def _look_around(self) -> None:
        """Once a second: see how the trainers are and which streams there are."""
        now = time.monotonic()
        if now < self._next_census:
            return
        self._next_census = now + _CENSUS_S
        self._is_replaced = not self._is_held()
        if self._is_replaced:
            return
        self._census.take()
        is_listening = self._link is not None and self._link.ready
        if is_listening or self._is_listening:
            note_listening(self._run_folder, is_listening=is_listening)
            self._is_listening = is_listening
        self._look_at_spool(now)
        for folder in self._census.writers:
            if (folder.name, "events") not in self._lanes:
                self._begin_writer(folder)
        for folder in self._census.over:
            for stream in _ORDER:
                if (lane := self._lanes.get((folder.name, stream))) is not None:
                    lane.follower.writer_is_over()
        if self._slim:
            # Of who is over nothing waits: what its host has told of it is to be known.
            self._resolution.look()

    def _begin_writer(self, folder: Path) -> None:
        """Have the streams of a writer sent; of a rank of many, its statistics apart."""
        events = self._add_lane(folder, "events", StreamFollower(folder, "events"))
        self._add_lane(folder, "host", StreamFollower(folder, "host"))
        if self._census.world_size(folder) <= max(self._pool_above, 0):
            self._add_lane(folder, "metrics", StreamFollower(folder, "metrics"), ahead=events)
            return
        # With numpy, which the comparison of ranks has loaded already.
        from .detail import DetailFollower, SlimFollower

        rank = int(folder.name.partition("-")[0])
        # The helper compares the ranks of its host itself: of several hosts one rank each is compared.
        is_compared = all(rank <= other.rank for other in self._slim)
        metrics = SlimFollower(folder, rank, is_compared=is_compared)
        self._slim.append(metrics)
        self._add_lane(folder, "metrics", metrics, ahead=events)
        self._add_lane(folder, "detail", DetailFollower(metrics, self._resolution), ahead=events)

    def _add_lane(
        self,
        folder: Path,
        stream: SentStream,
        follower: StreamFollower | DetailFollower,
        *,
        ahead: Lane | None = None,
    ) -> Lane:
        key = StreamKey(run=self._run_folder.name, writer=folder.name, stream=stream)
        lane = self._lanes[folder.name, stream] = Lane(key, follower, ahead)
        return lane

    def _look_at_spool(self, now: float) -> None:
        """Now and then: keep the whole spool, with the runs of other trainings, below its cap."""
        if now < self._next_spool_look:
            return
        self._next_spool_look = now + _SPOOL_S
        keep_below_cap(self._run_folder.parent, cap_bytes(), own=self._run_folder)

    def _exchange(self) -> bool:
        """Send what the most urgent streams' windows allow; whether anything was sent."""
        if self._link is None:
            self._connect_if_due()
            return False
        self._receive(0.0)
        self._judge_link()
        self._answers += self._relay.poll()
        if self._link is None or not self._link.ready:
            self._answers.clear()
            return False
        while self._answers and self._link.send(self._answers[0]):
            self._answers.popleft()
        for follower in self._slim:
            follower.is_slim = self._link.takes_detail
        self._ask_positions(self._link)
        for lane in self._lanes.values():
            lane.resend_if_stalled()
        if self._slim and time.monotonic() >= self._next_events:
            self._next_events = time.monotonic() + _EVENTS_S
            self._resolution.look()
        return any(self._send_stream(self._link, stream) for stream in _ORDER)

    def _send_stream(self, link: Link, stream: SentStream) -> bool:
        """Send all of an urgent stream that fits; of others one batch per rank, then look again."""
        sent = False
        # Who has the least on its way comes first: ranks that stay together can be compared.
        for lane in sorted(self._lanes.values(), key=lambda lane: lane.in_flight_bytes):
            if lane.key.stream == stream:
                while lane.fill(link):
                    sent = True
                    if stream != "host":
                        self._moved = time.monotonic()
                    if stream in ("metrics", "detail"):
                        break
        return sent

    def _ask_positions(self, link: Link) -> None:
        for lane in self._lanes.values():
            if not lane.asked and (link.takes_detail or lane.key.stream != "detail"):
                lane.asked = link.send(Position(key=lane.key))

    def _receive(self, timeout_s: float) -> None:
        """Take in what the collector says, waiting for it at most `timeout_s`."""
        if self._link is None:
            return
        for message in self._link.pump(timeout_s):
            self._heard, self._backoff_s = time.monotonic(), 0.1
            if isinstance(message, Ack):
                self._take_ack(message)
            elif message.run != self._run_folder.name:
                continue
            elif isinstance(message, Watch):
                self._resolution.watch(message.ranks)
            else:
                self._moved = time.monotonic()
                self._relay.begin(message, self._census.living)

    def _take_ack(self, ack: Ack) -> None:
        lane = self._lanes.get((ack.key.writer, ack.key.stream))
        if lane is not None and ack.key == lane.key:
            if lane.acked is None and lane.key.stream == "host":
                self._census.go_on_at(ack.key.writer, ack.next_seq)
            lane.acknowledge(ack.next_seq)

    def _judge_link(self) -> None:
        """Drop a link that failed, never came about, or has been silent while something was outstanding."""
        link = self._link
        if link is None:
            return
        now = time.monotonic()
        outstanding = any(
            lane.in_flight or (lane.asked and lane.acked is None) for lane in self._lanes.values()
        )
        never_came = not link.ready and now - self._link_began > CONNECT_S
        silent = link.ready and outstanding and now - max(self._heard, self._link_began) > DEAD_S
        if link.failed is not None or never_came or silent:
            if link.is_refused:
                note_refusal(self._run_folder, f"{link.endpoint} does not get it: {link.failed}")
            self._drop_link()

    def _connect_if_due(self) -> None:
        now = time.monotonic()
        if now < self._next_attempt:
            return
        target = find_target(self._connect)
        if target is not None:
            # A wrong address in NANSCOPE_CONNECT: there is nobody here to tell, and `serve` may come later.
            with contextlib.suppress(zmq.ZMQError):
                self._link = Link(self._context, target)
                self._link_began = now
        self._back_off()

    def _back_off(self) -> None:
        self._next_attempt = time.monotonic() + self._backoff_s
        self._backoff_s = min(self._backoff_s * 2, _MAX_BACKOFF_S)

    def _drop_link(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
            self._back_off()
        # The next dashboard says which ranks its pages show.
        self._resolution.watch(())
        for lane in self._lanes.values():
            lane.restart()

    def _is_done(self) -> bool:
        if not self._seems_done():
            return False
        # A trainer may have begun since the last look: it saw our lock held and started no helper.
        self._next_census = 0.0
        self._look_around()
        return self._seems_done()

    def _seems_done(self) -> bool:
        over_since = self._census.over_since
        if over_since is None:
            return False
        if time.time() - over_since > self._linger_s and not self._is_shipping():
            return True
        without_detail = self._link is not None and self._link.ready and not self._link.takes_detail
        return bool(self._lanes) and all(
            lane.is_delivered()
            for lane in self._lanes.values()
            if not (without_detail and lane.key.stream == "detail")
        )

    def _is_shipping(self) -> bool:
        """Whether a dashboard is there and takes what we have: then the wait is not limited."""
        return self._link is not None and self._link.ready and time.monotonic() - self._heard < DEAD_S


def ship(run_folder: Path, connect: str | None, *, is_held: Callable[[], bool] = lambda: True) -> None:
    """Run the helper of this run on this host until it has nothing left to do; its lock is held."""
    linger_s = float(os.environ.get("NANSCOPE_LINGER_S") or LINGER_S)
    Shipper(run_folder, connect, linger_s=linger_s, is_held=is_held).run()


def _as_message(key: StreamKey, found: Chunk | Skipped) -> Batch | Skip:
    if isinstance(found, Chunk):
        return Batch(key=key, first_seq=found.first_seq, records=found.records)
    return Skip(key=key, first_seq=found.first_seq, end_seq=found.end_seq, reason=found.reason[:4096])
