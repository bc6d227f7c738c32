"""Receives what helpers ship and hands it to the store; acknowledges only what the store has committed.

One thread owns the ROUTER socket and is the only one that ships into the store; commits are made beside it
(`acknowledging.py`). Nothing that a peer sends can raise out of it: what is malformed is counted, answered
with `Refused`, and shown.
"""

from __future__ import annotations

import getpass
import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import zmq

from probe.errors import WireError
from probe.wire import (
    MAX_MESSAGE_BYTES,
    Answered,
    Batch,
    Hello,
    Message,
    Position,
    Proof,
    Refused,
    Skip,
    StreamKey,
    Watch,
    decode_message,
    sealed,
)

from ..errors import AddressInUseError, DashboardError
from ..store.members import recorded_as
from ..store.protocol import Store
from ..throttle import is_loopback
from .acknowledging import Acknowledging
from .collector_status import CollectorStatus
from .connections import Connections
from .control_desk import ControlDesk
from .curve import CurveGate, ServerKeys
from .peers import Peer, Peers

_DRAIN_MESSAGES: Final = 256
"""Messages taken before the store and the page have their turn."""
MAX_RUNS_OF_PEER: Final = 64
"""Runs that one helper may name: a real one ships one."""
_POLL_MS: Final = 50
_WATCH_S: Final = 0.5
"""How often it is looked whether other ranks are watched."""
_FULL_S: Final = 0.01

_log = logging.getLogger(__name__)
_MOST_TOLD: Final = 100
"""Holes in journals that are told one by one; all are counted."""


class Collector:
    """The dashboard's end of the wire.

    Args:
        store: takes the records; only what it has committed is acknowledged.
        endpoint: ZeroMQ address to bind; port 0 takes a free one.
        secret: what helpers must prove to know, and are given proof of.
        on_change: called on the collector's thread after new records were queued; must not raise.
        keys: CURVE keys, without which no other machine may reach it; None speaks without.
        watched: returns the ranks of a run that helpers are to send in full.

    Attributes:
        desk: requests to the trainers, which are sent to the helpers of their run.
    """

    def __init__(
        self,
        store: Store,
        *,
        endpoint: str,
        secret: bytes,
        on_change: Callable[[], None],
        keys: ServerKeys | None = None,
        watched: Callable[[str], frozenset[int]] = lambda run: frozenset(),
    ) -> None:
        self._store = store
        self._endpoint = endpoint
        self._on_change = on_change
        self._told: set[tuple[StreamKey, int, str]] = set()
        self._keys = keys
        self._watched = watched
        self._next_watch = 0.0
        self._curve: CurveGate | None = None
        self.desk = ControlDesk()
        self.desk.recorded_as = lambda run: recorded_as(store.runs(), run)
        self._peers = Peers(secret)
        self._status = CollectorStatus()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._acks = Acknowledging(store, self._peers.known)
        self._generation = store.generation()

    @property
    def status(self) -> CollectorStatus:
        """A snapshot; may be read on any thread."""
        return replace(self._status, has_met_other_secret=self._peers.knows_other_secret)

    def start(self) -> str:
        """Bind and start the thread; return the endpoint with its real port.

        Raises:
            AddressInUseError: another process listens there.
            DashboardError: the endpoint is no address that can be bound, or other machines could reach it.
        """
        if self._keys is None:
            _require_loopback(self._endpoint)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        router = context.socket(zmq.ROUTER)
        router.setsockopt(zmq.LINGER, 0)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        router.setsockopt(zmq.RCVHWM, 64)
        router.setsockopt(zmq.HEARTBEAT_IVL, 2000)
        router.setsockopt(zmq.HEARTBEAT_TIMEOUT, 10_000)
        router.setsockopt(zmq.HANDSHAKE_IVL, 3000)
        connections = Connections(context, router)
        try:
            if self._keys is not None:
                self._curve = CurveGate(context, router, self._keys, self._peers.throttle)
            router.bind(self._endpoint)
        except zmq.ZMQError as error:
            connections.close()
            router.close()
            if self._curve is not None:
                self._curve.close()
            context.term()
            if error.errno == zmq.EADDRINUSE:
                raise AddressInUseError(
                    f"{self._endpoint} is in use: is a dashboard running already? "
                    "Stop it, or choose another address with --ingest"
                ) from error
            raise DashboardError(
                f"cannot listen on {self._endpoint}: {error.strerror}; "
                "--ingest takes an address like tcp://127.0.0.1:8051"
            ) from error
        endpoint = router.getsockopt_string(zmq.LAST_ENDPOINT)
        connections.begin(endpoint)
        self._connections = connections
        self._status = replace(self._status, endpoint=endpoint)
        self._thread = threading.Thread(
            target=self._run, args=(context, router), name="nanscope-collector", daemon=True
        )
        self._thread.start()
        return endpoint

    def stop(self) -> None:
        """Commit and acknowledge what has arrived, then close. Idempotent; waits 10 s at most."""
        self._stopping.set()
        self.desk.close()
        if self._thread is not None:
            self._thread.join(10.0)

    def _run(self, context: zmq.Context[zmq.Socket[bytes]], router: zmq.Socket[bytes]) -> None:
        poller = zmq.Poller()
        poller.register(router, zmq.POLLIN)
        if self._curve is not None:
            poller.register(self._curve.socket, zmq.POLLIN)
        try:
            while not self._stopping.is_set():
                self._wait(poller)
                self._answer_keys()
                self._look_at_connections()
                self._begin_anew_if_replaced(router)
                if self._drain(router):
                    self._on_change()
                self._send_requests(router)
                self._send_watches(router)
                self._commit_if_due(router)
            self._commit(router)
        finally:
            self._acks.close()
            self._connections.close()
            router.close(linger=200)
            if self._curve is not None:
                self._curve.close()
            context.term()

    def _wait(self, poller: zmq.Poller) -> None:
        """Until something arrives, or for a moment; where nothing more is taken in, for the commit."""
        if self._acks.is_full:
            self._stopping.wait(_FULL_S)
        else:
            poller.poll(_POLL_MS)

    def _answer_keys(self) -> None:
        """Let in whose keys are known, and count the others as what they are: refused handshakes."""
        if self._curve is None:
            return
        self._curve.answer()
        if self._curve.refused:
            refused, self._curve.refused = self._curve.refused, 0
            self._status = replace(self._status, refused_handshakes=self._status.refused_handshakes + refused)

    def _look_at_connections(self) -> None:
        self._connections.look()
        ended, reason = self._connections.ended, self._connections.reason
        if ended != self._status.ended_connections:
            self._status = replace(self._status, ended_connections=ended, ended_reason=reason)

    def _begin_anew_if_replaced(self, router: zmq.Socket[bytes]) -> bool:
        """Have all helpers ask where to start, if the store has lost what was acknowledged."""
        generation = self._store.generation()
        if generation == self._generation:
            return False
        self._generation = generation
        for identity in list(self._peers.known):
            self._refuse(router, identity, "the store was replaced: connect again, and ask where to start")
        self._peers.known.clear()
        self._acks.clear()
        return True

    def _send_requests(self, router: zmq.Socket[bytes]) -> None:
        """Send what is asked of trainers to the helpers that ship their run."""
        for control in self.desk.take_outbox():
            helpers = self._peers.helpers_of(control.run)
            for identity in helpers:
                self._send(router, identity, control)
            self.desk.note_sent(control.id, sum(identity in self._peers.known for identity in helpers))

    def _send_watches(self, router: zmq.Socket[bytes]) -> None:
        """Tell helpers which ranks of their run pages show, where that has changed."""
        now = time.monotonic()
        if now < self._next_watch:
            return
        self._next_watch = now + _WATCH_S
        wanted: dict[str, frozenset[int]] = {}
        for identity, peer in list(self._peers.known.items()):
            for run in peer.runs if peer.proved and peer.takes_watch else ():
                ranks = wanted[run] = wanted[run] if run in wanted else self._watched(run)
                if ranks != peer.watches.get(run, frozenset()):
                    peer.watches[run] = ranks
                    self._send(router, identity, Watch(run=run, ranks=sorted(ranks)))

    def _drain(self, router: zmq.Socket[bytes]) -> bool:
        """Take what has arrived; whether the store was given something."""
        changed = False
        for _ in range(_DRAIN_MESSAGES):
            if self._acks.is_full:
                break
            try:
                frames = router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
            changed |= self._take(router, frames)
        return changed

    def _take(self, router: zmq.Socket[bytes], frames: list[zmq.Frame]) -> bool:
        connection, address = _descriptor(frames[-1]), _address(frames[-1])
        if not self._connections.allows(connection, frames[1:]):
            return False
        parts = [frame.bytes for frame in frames]
        identity = parts[0]
        self._status = replace(self._status, last_message_time=time.time())
        try:
            if len(parts) != 2:
                raise WireError(f"{len(parts) - 1} parts; every message has one")
            message = decode_message(parts[1])
        except WireError as error:
            self._note_malformed(identity, error)
            self._refuse(router, identity, f"malformed message: {error}")
            return False
        peer = self._peers.known.get(identity)
        if isinstance(message, Hello):
            self._greet(router, identity, message, address)
        elif peer is None:
            self._refuse(router, identity, "say hello first")
        elif isinstance(message, Proof):
            self._check(router, identity, message, address)
            if peer.proved:
                self._connections.note_proof(connection)
        elif not peer.proved:
            self._refuse_handshake(router, identity, "prove the secret first")
        else:
            return self._accept(router, identity, peer, message)
        return False

    def _note_malformed(self, identity: bytes, error: WireError) -> None:
        """Count it; the server limits how often these lines are written."""
        peer, status = self._peers.known.get(identity), self._status
        if peer is not None and peer.proved:
            self._status = replace(status, malformed_messages=status.malformed_messages + 1)
            _log.warning("a message of a training's helper cannot be read: %s", error)
        else:
            self._status = replace(status, stranger_messages=status.stranger_messages + 1)
            _log.warning("%s was sent what no training's helper sends; it was refused", status.endpoint)

    def _accept(self, router: zmq.Socket[bytes], identity: bytes, peer: Peer, message: Message) -> bool:
        """Take a proved peer's message; whether the store was given something."""
        self._peers.note_heard(identity)
        if isinstance(message, Answered):
            self.desk.note_answered(message)
            return False
        if not isinstance(message, Position | Batch | Skip):
            self._refuse(router, identity, f"a helper does not send {type(message).__name__}")
            return False
        run = message.key.run
        if run not in peer.runs and len(peer.runs) >= MAX_RUNS_OF_PEER:
            self._refuse(router, identity, f"a helper ships at most {MAX_RUNS_OF_PEER} runs")
            return False
        peer.runs.add(run)
        if reason := self._store.refuses(message.key):
            self._refuse(router, identity, reason)
            return False
        taken = peer.owed.setdefault(message.key, 0)
        try:
            if isinstance(message, Batch):
                reached = self._store.append(
                    message.key, message.first_seq, message.records, generation=self._generation
                )
                peer.owed[message.key] = max(taken, reached)
                self._acks.note_queued(sum(map(len, message.records)))
                self._status = replace(self._status, batches=self._status.batches + 1)
            elif isinstance(message, Skip):
                peer.owed[message.key] = max(taken, self._skip(message))
            else:
                self._acks.hurry()  # a helper waits for this answer
                return False
        except DashboardError as error:
            self._note_store_problem(error)
            return False
        return True

    def _skip(self, skip: Skip) -> int:
        """Count what the journal has no longer, and say so once; both numbers are the same of an odd file.

        Returns:
            how far the store has taken the stream in.
        """
        reached = self._store.skip(skip.key, skip.first_seq, skip.end_seq, skip.reason)
        missing = skip.end_seq - skip.first_seq
        known = (skip.key, skip.end_seq, skip.reason)
        if reached != skip.end_seq or known in self._told or len(self._told) >= _MOST_TOLD:
            return reached
        self._told.add(known)
        many = f"records missing: {missing:,}, " if missing else ""
        text = f"Run {skip.key.run}, {many}{skip.reason}"
        _log.warning("%s", text)
        self._status = replace(self._status, losses=(*self._status.losses, text))
        return reached

    def _greet(self, router: zmq.Socket[bytes], identity: bytes, hello: Hello, address: str) -> None:
        answer = self._peers.greet(identity, hello, address)
        if isinstance(answer, Refused):
            self._refuse_handshake(router, identity, answer.reason)
        else:
            self._send(router, identity, answer)

    def _check(self, router: zmq.Socket[bytes], identity: bytes, message: Proof, address: str) -> None:
        refused = self._peers.check(identity, message, address)
        if refused is not None:
            self._refuse_handshake(router, identity, refused.reason)
        else:
            self._count_helpers()

    def _commit_if_due(self, router: zmq.Socket[bytes]) -> None:
        """Acknowledge what the commit under way has made durable, or begin the next one."""
        if self._acks.is_busy:
            self._acknowledge(router)
        elif self._acks.is_due():
            self._count_helpers()
            self._acks.begin()

    def _acknowledge(self, router: zmq.Socket[bytes], wait_s: float | None = 0.0) -> None:
        """If the commit is done, tell every peer how far its streams are."""
        try:
            answers = self._acks.take(wait_s)
        except DashboardError as error:
            self._note_store_problem(error)
            return
        if answers is None or self._begin_anew_if_replaced(router):
            return
        if self._status.store_problem is not None:
            self._status = replace(self._status, store_problem=None)
        for identity, answer in answers:
            if identity in self._peers.known:
                self._send(router, identity, answer)

    def _commit(self, router: zmq.Socket[bytes]) -> None:
        """At the end: make durable what is queued, and wait for it."""
        self._acknowledge(router, None)
        self._acks.begin()
        self._acknowledge(router, None)

    def _note_store_problem(self, error: DashboardError) -> None:
        if self._status.store_problem is None:
            _log.error("the store does not take data; helpers keep it and try again: %s", error)
        self._acks.clear()
        self._status = replace(self._status, store_problem=str(error))

    def _count_helpers(self) -> None:
        proved = self._peers.proved()
        runs = frozenset().union(*(peer.runs for peer in proved))
        if (len(proved), runs) != (self._status.helpers, self._status.runs):
            self._status = replace(self._status, helpers=len(proved), runs=runs)

    def _refuse_handshake(self, router: zmq.Socket[bytes], identity: bytes, reason: str) -> None:
        self._status = replace(self._status, refused_handshakes=self._status.refused_handshakes + 1)
        self._refuse(router, identity, reason)

    def _refuse(self, router: zmq.Socket[bytes], identity: bytes, reason: str) -> None:
        self._send(router, identity, Refused(reason=reason[:1000]))

    def _send(self, router: zmq.Socket[bytes], identity: bytes, message: Message) -> None:
        """Send, or forget a peer that has gone or does not read."""
        try:
            router.send_multipart([identity, sealed(message)], zmq.NOBLOCK)
        except zmq.ZMQError:
            self._peers.known.pop(identity, None)


def _address(frame: zmq.Frame) -> str:
    """Return the address of the machine that has sent a frame; "" where the transport has none."""
    try:
        return str(frame.get("Peer-Address"))
    except zmq.ZMQError:
        return ""


def _descriptor(part: zmq.Frame) -> int:
    """Return the descriptor of the connection that a message came in on; -1 where ZeroMQ does not say."""
    try:
        return int(part.get("__fd"))
    except (zmq.ZMQError, ValueError, TypeError):
        return -1


def _require_loopback(endpoint: str) -> None:
    """Fail closed: the handshake proves who speaks, but what follows is neither encrypted nor signed."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    host = host.strip("[]")
    is_local = endpoint.startswith(("ipc://", "inproc://")) or "://" not in endpoint
    if is_local or host == "localhost" or is_loopback(host) or endpoint.startswith("tcp://:"):
        return
    port = port if port.isdecimal() and port != "0" else "8051"
    raise DashboardError(
        f"--ingest {endpoint} can be reached from other machines, so it needs keys. Use one of\n"
        f"  dashboard keygen\n"
        f"    and this command again: it finds the keys, and trainings elsewhere get the client's file\n"
        f"  ssh -N -L {port}:127.0.0.1:{port} {getpass.getuser()}@{socket.gethostname()}\n"
        f"    where the training runs, with NANSCOPE_CONNECT=tcp://127.0.0.1:{port} and NANSCOPE_SECRET from "
        "serve.json there, and here `dashboard serve` as it is"
    )
