"""The collector against hand-made peers: who is let in, what is acknowledged, what garbage does."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory_store import MemoryStore

from dashboard.errors import AddressInUseError, DashboardError
from dashboard.ingest.collector import Collector
from dashboard.store.base import MAX_QUEUED_BYTES
from probe.delivery.helper.shipper import PIECE_BYTES
from probe.errors import WireError
from probe.wire import (
    MAX_MESSAGE_BYTES,
    VERSION,
    Ack,
    Batch,
    Challenge,
    Frame,
    Hello,
    Message,
    Position,
    Proof,
    Refused,
    Skip,
    StreamKey,
    Watch,
    decode_message,
    encode,
    handshake_proof,
)

SECRET = b"s" * 16
KEY = StreamKey(run="run", writer="0-1", stream="metrics")
RECORDS = [encode(Frame(step=step, time=0.0)) for step in range(10)]


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Peer:
    """A DEALER that says exactly what a test wants."""

    def __init__(self, endpoint: str) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(endpoint)

    def say(self, message: Message) -> None:
        self.socket.send(encode(message))

    def hear(self) -> Message:
        assert self.socket.poll(20_000), "the collector did not answer"
        return decode_message(self.socket.recv())

    def shake_hands(
        self, secret: bytes = SECRET, *, known: bytes = SECRET, takes_watch: bool = False
    ) -> Challenge:
        """Prove a secret; the collector's own is `known`."""
        nonce = os.urandom(32)
        self.say(Hello(version=VERSION, nonce=nonce, takes_watch=takes_watch))
        challenge = self.hear()
        assert isinstance(challenge, Challenge)
        assert challenge.proof == handshake_proof(known, "collector", challenge.nonce, nonce)
        self.say(Proof(proof=handshake_proof(secret, "helper", nonce, challenge.nonce)))
        return challenge

    def close(self) -> None:
        self.socket.close()
        self.context.term()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def changes() -> list[float]:
    return []


@pytest.fixture
def collector(store: MemoryStore, changes: list[float]) -> Iterator[Collector]:
    collector = Collector(
        store,
        endpoint="tcp://127.0.0.1:0",
        secret=SECRET,
        on_change=lambda: changes.append(time.time()),
    )
    collector.start()
    yield collector
    collector.stop()


@pytest.fixture
def connect(collector: Collector) -> Iterator[Callable[[], Peer]]:
    peers: list[Peer] = []

    def make() -> Peer:
        peers.append(Peer(collector.status.endpoint))
        return peers[-1]

    yield make
    for peer in peers:
        peer.close()


@pytest.fixture
def peer(connect: Callable[[], Peer]) -> Peer:
    return connect()


def test_collector_position_of_an_unknown_stream_is_zero(peer: Peer) -> None:
    peer.shake_hands()
    peer.say(Position(key=KEY))
    assert peer.hear() == Ack(key=KEY, next_seq=0)


def test_collector_acknowledges_a_batch_after_the_commit(
    peer: Peer, store: MemoryStore, changes: list[float]
) -> None:
    peer.shake_hands()
    peer.say(Batch(key=KEY, first_seq=0, records=RECORDS))
    assert peer.hear() == Ack(key=KEY, next_seq=10)
    assert store.durable == {KEY: 10}
    assert list(store.records[KEY].values()) == RECORDS
    assert len(changes) == 1


def test_collector_acknowledges_other_streams_while_the_server_of_some_is_away(
    peer: Peer, store: MemoryStore, collector: Collector
) -> None:
    keys = [StreamKey(run=KEY.run, writer=f"{rank}-1", stream="metrics") for rank in range(6)]
    store.away = set(keys[::2])
    peer.shake_hands()
    for key in keys:
        peer.say(Batch(key=key, first_seq=0, records=RECORDS))
    assert {peer.hear() for _ in range(3)} == {Ack(key=key, next_seq=10) for key in keys[1::2]}
    assert collector.status.store_problem is None
    store.away = set()
    assert {peer.hear() for _ in range(3)} == {Ack(key=key, next_seq=10) for key in keys[::2]}


def test_collector_takes_in_and_shows_what_arrives_while_a_commit_waits(
    peer: Peer, store: MemoryStore, changes: list[float]
) -> None:
    peer.shake_hands()
    store.may_commit.clear()
    peer.say(Batch(key=KEY, first_seq=0, records=RECORDS[:4]))
    wait_until(lambda: store.queued.get(KEY) == 4)
    time.sleep(0.6)  # the commit of these has begun
    told = len(changes)
    peer.say(Batch(key=KEY, first_seq=4, records=RECORDS[4:7]))
    wait_until(lambda: store.queued.get(KEY) == 7)
    wait_until(lambda: len(changes) > told)
    assert store.durable == {}
    store.may_commit.set()
    assert peer.hear() == Ack(key=KEY, next_seq=7)


@pytest.mark.parametrize("way", ["at once", "commits that wait", "commits that are put off"])
def test_collector_takes_in_no_more_than_the_store_has_room_for(
    peer: Peer, store: MemoryStore, way: str
) -> None:
    """What it cannot take is dropped, and comes again five seconds later: it has to wait in the socket."""
    peer.shake_hands()
    peer.say(Position(key=KEY))
    assert peer.hear() == Ack(key=KEY, next_seq=0)  # before that a helper sends nothing
    store.most_bytes = MAX_QUEUED_BYTES
    if way == "commits that wait":
        store.may_commit.clear()
        threading.Timer(2.0, store.may_commit.set).start()
    elif way == "commits that are put off":
        store.put_off = 20
    # More than the store takes, less than ends a connection.
    count = 3 * MAX_QUEUED_BYTES // PIECE_BYTES
    for number in range(count):
        peer.say(Batch(key=KEY, first_seq=number, records=[b"x" * PIECE_BYTES]))
    while peer.hear() != Ack(key=KEY, next_seq=count):
        pass
    assert store.dropped[KEY] == count


def test_collector_acknowledges_later_what_a_store_has_put_off_without_more_of_it(
    peer: Peer, store: MemoryStore
) -> None:
    peer.shake_hands()
    store.put_off = 3
    peer.say(Batch(key=KEY, first_seq=0, records=RECORDS[:4]))
    heard = [peer.hear()]
    while heard[-1] != Ack(key=KEY, next_seq=4):
        assert heard[-1] == Ack(key=KEY, next_seq=0)
        heard.append(peer.hear())
    assert store.put_off == 0


def test_collector_does_not_acknowledge_what_the_store_refuses(
    peer: Peer, store: MemoryStore, collector: Collector
) -> None:
    store.refuse = True
    peer.shake_hands()
    peer.say(Batch(key=KEY, first_seq=0, records=RECORDS))
    assert peer.socket.poll(1500) == 0
    assert collector.status.store_problem == "the disk is full"
    store.refuse = False
    assert peer.hear() == Ack(key=KEY, next_seq=10)
    assert collector.status.store_problem is None


def test_collector_batch_above_the_expected_number_is_acknowledged_as_before(peer: Peer) -> None:
    peer.shake_hands()
    peer.say(Batch(key=KEY, first_seq=5, records=RECORDS))
    assert peer.hear() == Ack(key=KEY, next_seq=0)


def test_collector_repeated_batch_is_stored_once(peer: Peer, store: MemoryStore) -> None:
    peer.shake_hands()
    for first in (0, 3):
        peer.say(Batch(key=KEY, first_seq=first, records=RECORDS[first:]))
    while peer.hear() != Ack(key=KEY, next_seq=10):
        pass
    assert list(store.records[KEY].values()) == RECORDS


def test_collector_counts_skips_and_undecodable_records(peer: Peer, store: MemoryStore) -> None:
    peer.shake_hands()
    peer.say(Batch(key=KEY, first_seq=0, records=[RECORDS[0], b"\xc1"]))
    peer.say(Skip(key=KEY, first_seq=2, end_seq=7, reason="evicted"))
    while peer.hear() != Ack(key=KEY, next_seq=7):
        pass
    position = store.position(KEY)
    assert (position.stored, position.dropped, position.gaps) == (1, 1, 5)


@pytest.mark.parametrize(
    "message",
    [
        Position(key=KEY),
        Batch(key=KEY, first_seq=0, records=RECORDS),
        Proof(proof=b"x" * 32),
        Refused(reason=""),
    ],
)
def test_collector_stranger_gets_nothing_but_refused(
    peer: Peer, store: MemoryStore, message: Message
) -> None:
    peer.say(message)
    assert isinstance(peer.hear(), Refused)
    assert not store.queued


def test_collector_peer_that_has_not_proved_the_secret_is_refused(peer: Peer, store: MemoryStore) -> None:
    peer.say(Hello(version=VERSION, nonce=os.urandom(32)))
    assert isinstance(peer.hear(), Challenge)
    peer.say(Batch(key=KEY, first_seq=0, records=RECORDS))
    assert isinstance(peer.hear(), Refused)
    assert not store.queued


def test_collector_wrong_secret_is_refused_and_counted(peer: Peer, collector: Collector) -> None:
    peer.shake_hands(b"another secret")
    assert peer.hear() == Refused(reason="wrong ingest secret")
    peer.say(Position(key=KEY))
    assert peer.hear() == Refused(reason="say hello first")
    assert (collector.status.refused_handshakes, collector.status.helpers) == (1, 0)


def test_collector_notes_who_leaves_without_a_proof(
    connect: Callable[[], Peer], collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A helper with another secret sees that from the challenge, leaves, and comes again."""
    monkeypatch.setattr("dashboard.ingest.peers._PROOF_S", 0.0)

    def greet() -> None:
        peer = connect()
        peer.say(Hello(version=VERSION, nonce=b"n" * 32))
        assert isinstance(peer.hear(), Challenge)

    connect().shake_hands()
    greet()
    assert not collector.status.has_met_other_secret
    greet()
    assert collector.status.has_met_other_secret


def test_collector_proof_of_one_connection_is_no_proof_for_another(connect: Callable[[], Peer]) -> None:
    first, second = connect(), connect()
    nonce = b"n" * 32
    first.say(Hello(version=VERSION, nonce=nonce))
    challenge = first.hear()
    assert isinstance(challenge, Challenge)
    second.say(Hello(version=VERSION, nonce=nonce))
    assert isinstance(second.hear(), Challenge)
    second.say(Proof(proof=handshake_proof(SECRET, "helper", nonce, challenge.nonce)))
    assert second.hear() == Refused(reason="wrong ingest secret")


def test_collector_other_protocol_version_is_told_which_one_is_spoken(peer: Peer) -> None:
    peer.say(Hello(version=VERSION + 1, nonce=os.urandom(32)))
    answer = peer.hear()
    assert isinstance(answer, Refused)
    assert f"speaks {VERSION}" in answer.reason


def test_collector_malformed_message_is_counted_and_refused(peer: Peer, collector: Collector) -> None:
    peer.socket.send_multipart([b"one", b"two"])
    peer.socket.send(b"\xff\xff")
    assert [type(peer.hear()) for _ in range(2)] == [Refused, Refused]
    assert (collector.status.malformed_messages, collector.status.stranger_messages) == (0, 2)


def test_collector_malformed_message_of_a_helper_is_counted_apart(peer: Peer, collector: Collector) -> None:
    peer.shake_hands()
    peer.socket.send(b"\xff\xff")
    assert isinstance(peer.hear(), Refused)
    assert (collector.status.malformed_messages, collector.status.stranger_messages) == (1, 0)


def test_collector_oversize_message_does_not_stop_the_others(connect: Callable[[], Peer]) -> None:
    connect().socket.send(b"x" * (MAX_MESSAGE_BYTES + 1))
    well_behaved = connect()
    well_behaved.shake_hands()
    well_behaved.say(Position(key=KEY))
    assert well_behaved.hear() == Ack(key=KEY, next_seq=0)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300))
def test_collector_survives_any_bytes(peer: Peer, data: bytes) -> None:
    peer.socket.send(data)
    assert isinstance(peer.hear(), Refused)


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=400))
def test_decode_message_of_any_bytes_is_a_message_or_a_wire_error(data: bytes) -> None:
    try:
        message = decode_message(data)
    except WireError:
        return
    assert decode_message(encode(message)) == message


@settings(max_examples=200, deadline=None)
@given(cut=st.integers(0, 200), noise=st.binary(min_size=1, max_size=8))
def test_decode_message_of_a_damaged_batch_is_a_message_or_a_wire_error(cut: int, noise: bytes) -> None:
    whole = bytearray(encode(Batch(key=KEY, first_seq=3, records=RECORDS)))
    whole[cut : cut + len(noise)] = noise
    try:
        decode_message(bytes(whole))
    except WireError as error:
        assert str(error)


def test_collector_port_in_use_says_what_to_do(collector: Collector, store: MemoryStore) -> None:
    second = Collector(
        store,
        endpoint=collector.status.endpoint,
        secret=SECRET,
        on_change=lambda: None,
    )
    with pytest.raises(AddressInUseError, match=r"is in use.*--ingest"):
        second.start()
    second.stop()


def test_collector_endpoint_that_is_no_address_says_what_one_looks_like(store: MemoryStore) -> None:
    wrong = Collector(store, endpoint="nonsense", secret=SECRET, on_change=lambda: None)
    with pytest.raises(DashboardError, match="tcp://127"):
        wrong.start()


@pytest.mark.parametrize("host", ["0.0.0.0", "*", "10.0.0.7", "example.org", "[::]"])
def test_collector_address_that_others_can_reach_is_refused(store: MemoryStore, host: str) -> None:
    wide = Collector(store, endpoint=f"tcp://{host}:0", secret=SECRET, on_change=lambda: None)
    with pytest.raises(DashboardError, match="from other machines"):
        wide.start()


def test_collector_stop_commits_what_has_arrived(
    peer: Peer, store: MemoryStore, collector: Collector, changes: list[float]
) -> None:
    peer.shake_hands()
    peer.say(Batch(key=KEY, first_seq=0, records=RECORDS))
    deadline = time.monotonic() + 20
    while not changes and time.monotonic() < deadline:
        time.sleep(0.01)
    collector.stop()
    collector.stop()
    assert store.durable == {KEY: 10}


def test_collector_forgets_strangers_first_when_there_are_too_many(
    connect: Callable[[], Peer], collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dashboard.ingest.peers.MAX_PEERS", 4)
    known = connect()
    known.shake_hands()
    for _ in range(10):
        stranger = connect()
        stranger.say(Hello(version=VERSION, nonce=os.urandom(32)))
        stranger.hear()
    known.say(Position(key=KEY))
    assert known.hear() == Ack(key=KEY, next_seq=0)


def test_collector_tells_helpers_that_understand_it_which_ranks_are_watched(
    store: MemoryStore,
) -> None:
    watched: dict[str, frozenset[int]] = {"run": frozenset({7, 3})}
    collector = Collector(
        store,
        endpoint="tcp://127.0.0.1:0",
        secret=SECRET,
        on_change=lambda: None,
        watched=lambda run: watched.get(run, frozenset()),
    )
    endpoint = collector.start()
    peers = [Peer(endpoint) for _ in range(2)]
    try:
        for peer, takes_watch in zip(peers, (True, False), strict=True):
            assert peer.shake_hands(takes_watch=takes_watch).takes_detail
            peer.say(Position(key=KEY))
        heard = {type(message): message for message in (peers[0].hear(), peers[0].hear())}
        assert heard[Watch].ranks == [3, 7] and heard[Ack] == Ack(key=KEY, next_seq=0)
        watched.clear()
        assert peers[0].hear() == Watch(run="run", ranks=[])
        # An older one would take it for garbage.
        assert peers[1].hear() == Ack(key=KEY, next_seq=0)
        peers[1].say(Position(key=KEY))
        assert peers[1].hear() == Ack(key=KEY, next_seq=0)
    finally:
        for peer in peers:
            peer.close()
        collector.stop()
