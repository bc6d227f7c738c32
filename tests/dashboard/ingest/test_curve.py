"""CURVE on the ingest, with real sockets: who has its keys gets in; no keys, other keys and no CURVE do
not."""

from __future__ import annotations

import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import zmq
from memory_store import MemoryStore

from dashboard.commands.keygen import make_keys
from dashboard.errors import DashboardError
from dashboard.ingest.collector import Collector
from dashboard.ingest.curve import (
    CLIENT_FILE,
    SERVER_FILE,
    CurveGate,
    ServerKeys,
    client_keys_beside,
    keys_folder,
    read_server_keys,
)
from dashboard.throttle import FAILURES, Throttle
from probe.delivery.helper.link import Link, Target, find_target
from probe.settings.config import ProbeConfig
from probe.settings.keys import ClientKeys, read_client_keys
from probe.settings.places import ServeState, write_serve_state
from probe.wire import VERSION, Hello, encode

SECRET = b"s" * 32
PATIENCE_S = 20.0
"""Longer than any handshake takes."""


def keys_in(folder: Path) -> tuple[ServerKeys, ClientKeys]:
    lines: list[str] = []
    make_keys(
        folder, force=False, announce=lines.append, environment={"XDG_STATE_HOME": str(folder / "state")}
    )
    return read_server_keys(folder / SERVER_FILE), read_client_keys(folder / CLIENT_FILE)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[ServerKeys, ClientKeys]:
    return keys_in(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def collector(keys: tuple[ServerKeys, ClientKeys]) -> Iterator[Collector]:
    made = Collector(
        MemoryStore(), endpoint="tcp://127.0.0.1:0", secret=SECRET, on_change=lambda: None, keys=keys[0]
    )
    made.start()
    yield made
    made.stop()


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield made
    made.destroy(linger=0)


def settled(link: Link) -> bool:
    """Whether the link becomes ready; False as soon as it is refused."""
    until_s = time.monotonic() + PATIENCE_S
    try:
        while time.monotonic() < until_s and not link.ready and link.failed is None:
            link.pump(0.05)
        assert link.ready or link.failed is not None, "neither let in nor refused"
        return link.ready
    finally:
        link.close()


def test_curve_is_in_libzmq() -> None:
    assert zmq.has("curve")


def test_curve_helper_with_its_keys_gets_in(
    collector: Collector, keys: tuple[ServerKeys, ClientKeys], context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    assert settled(Link(context, Target(collector.status.endpoint, SECRET, keys[1])))
    assert collector.status.refused_handshakes == 0


def test_curve_helper_with_unknown_keys_is_refused_and_told(
    collector: Collector,
    keys: tuple[ServerKeys, ClientKeys],
    context: zmq.Context[zmq.Socket[bytes]],
    tmp_path: Path,
) -> None:
    strange = msgspec.structs.replace(keys_in(tmp_path)[1], server=keys[0].public)
    link = Link(context, Target(collector.status.endpoint, SECRET, strange))
    assert not settled(link)
    assert "keys" in (link.failed or "")
    # The answer is on its way before the collector's loop has counted it.
    until_s = time.monotonic() + PATIENCE_S
    while collector.status.refused_handshakes == 0 and time.monotonic() < until_s:
        time.sleep(0.01)
    assert collector.status.refused_handshakes >= 1


def unheard(socket: zmq.Socket[bytes], collector: Collector) -> bool:
    """Say hello, and whether nothing of it reaches the collector before the handshake is given up."""
    monitor = socket.get_monitor_socket(
        zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        | zmq.EVENT_DISCONNECTED
    )
    socket.setsockopt(zmq.HANDSHAKE_IVL, 1000)
    socket.connect(collector.status.endpoint)
    socket.send(encode(Hello(version=VERSION, nonce=b"n" * 32)))
    try:
        assert monitor.poll(PATIENCE_S * 1000), "the handshake neither succeeds nor fails"
        return collector.status.last_message_time is None and not socket.poll(0)
    finally:
        socket.disable_monitor()
        monitor.close(linger=0)
        socket.close(linger=0)


@pytest.mark.parametrize("mechanism", ["none", "plain", "wrong server key"])
def test_curve_peer_without_the_right_mechanism_is_not_heard(
    collector: Collector,
    keys: tuple[ServerKeys, ClientKeys],
    context: zmq.Context[zmq.Socket[bytes]],
    mechanism: str,
) -> None:
    socket = context.socket(zmq.DEALER)
    if mechanism == "plain":
        socket.setsockopt_string(zmq.PLAIN_USERNAME, "me")
        socket.setsockopt_string(zmq.PLAIN_PASSWORD, "mine")
    elif mechanism == "wrong server key":
        socket.setsockopt(zmq.CURVE_SERVERKEY, zmq.curve_keypair()[0])
        socket.setsockopt_string(zmq.CURVE_PUBLICKEY, keys[1].public)
        socket.setsockopt_string(zmq.CURVE_SECRETKEY, keys[1].secret)
    assert unheard(socket, collector)


def test_curve_helper_speaks_to_nobody_else_than_the_server_of_its_file(
    keys: tuple[ServerKeys, ClientKeys], context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> None:
    """Who sits at the address with keys of his own, and even knows the secret, gets nothing."""
    impostor = Collector(
        MemoryStore(),
        endpoint="tcp://127.0.0.1:0",
        secret=SECRET,
        on_change=lambda: None,
        keys=msgspec.structs.replace(keys_in(tmp_path)[0], clients=(keys[1].public,)),
    )
    endpoint = impostor.start()
    try:
        link = Link(context, Target(endpoint, SECRET, keys[1]))
        assert not settled_within(link, 4.0)
        assert impostor.status.last_message_time is None
    finally:
        impostor.stop()


def settled_within(link: Link, seconds: float) -> bool:
    """Whether the link becomes ready; silence is a no."""
    until_s = time.monotonic() + seconds
    try:
        while time.monotonic() < until_s and not link.ready and link.failed is None:
            link.pump(0.05)
        return link.ready
    finally:
        link.close()


def test_curve_right_keys_do_not_replace_the_secret(
    collector: Collector, keys: tuple[ServerKeys, ClientKeys], context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    link = Link(context, Target(collector.status.endpoint, b"w" * 32, keys[1]))
    assert not settled(link)
    assert "another ingest secret" in (link.failed or "")


@pytest.mark.parametrize("end", ["closed", "deaf"])
def test_curve_without_an_answer_of_the_handler_nobody_gets_in(
    keys: tuple[ServerKeys, ClientKeys], context: zmq.Context[zmq.Socket[bytes]], end: str
) -> None:
    own: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = own.socket(zmq.ROUTER)
    router.setsockopt(zmq.HANDSHAKE_IVL, 1000)
    gate = CurveGate(own, router, keys[0], Throttle())
    try:
        endpoint = f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}"
        if end == "closed":
            gate.close()
        link = Link(context, Target(endpoint, SECRET, keys[1]))
        assert not settled_within(link, 3.0)
        assert router.poll(0) == 0
    finally:
        gate.close()
        router.close(linger=0)
        own.term()


def asked(
    gate: CurveGate, context: zmq.Context[zmq.Socket[bytes]], *, change: Callable[[list[bytes]], list[bytes]]
) -> bytes | None:
    """Ask the handler as libzmq would; the status that it answers, None for no answer."""
    request = [b"1.0", b"1", b"nanscope", b"10.0.0.1", b"", b"CURVE", next(iter(gate._known))]
    socket = context.socket(zmq.DEALER)
    socket.connect("inproc://zeromq.zap.01")
    socket.send_multipart([b"", *change(request)])
    gate.socket.poll(5000)
    gate.answer()
    answer = socket.recv_multipart() if socket.poll(200) else None
    socket.close(linger=0)
    return None if answer is None else answer[3]


def changed(place: int, value: bytes) -> Callable[[list[bytes]], list[bytes]]:
    return lambda parts: [*parts[:place], value, *parts[place + 1 :]]


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        (lambda parts: parts, b"200"),
        (changed(2, b"other-domain"), b"400"),
        (changed(5, b"NULL"), b"400"),
        (changed(5, b"PLAIN"), b"400"),
        (changed(6, b"x" * 32), b"400"),
        (changed(6, b""), b"400"),
        (lambda parts: parts[:-1], b"400"),
        (lambda parts: [*parts, b"more"], b"400"),
        (lambda parts: parts[:3], None),
    ],
)
def test_curve_handler_lets_in_known_keys_alone(
    keys: tuple[ServerKeys, ClientKeys],
    context: zmq.Context[zmq.Socket[bytes]],
    change: Callable[[list[bytes]], list[bytes]],
    answer: bytes | None,
) -> None:
    router = context.socket(zmq.ROUTER)
    gate = CurveGate(context, router, keys[0], Throttle())
    assert asked(gate, context, change=change) == answer
    gate.close()
    router.close(linger=0)


def test_curve_address_that_shows_wrong_keys_is_slowed(
    keys: tuple[ServerKeys, ClientKeys], context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    router = context.socket(zmq.ROUTER)
    gate = CurveGate(context, router, keys[0], Throttle())
    for _ in range(FAILURES):
        asked(gate, context, change=changed(6, b"x" * 32))
    assert asked(gate, context, change=lambda parts: parts) == b"400"
    assert asked(gate, context, change=changed(3, b"10.0.0.2")) == b"200"
    for _ in range(FAILURES):
        asked(gate, context, change=lambda parts: [*parts[:3], b"127.0.0.1", *parts[4:6], b"x" * 32])
    assert asked(gate, context, change=changed(3, b"127.0.0.1")) == b"200"
    gate.close()
    router.close(linger=0)


@pytest.mark.parametrize("endpoint", ["tcp://0.0.0.0:0", "tcp://*:0", "tcp://[::]:8052", "ws://0.0.0.0:8052"])
def test_curve_ingest_beyond_loopback_without_keys_says_what_to_use(endpoint: str) -> None:
    collector = Collector(MemoryStore(), endpoint=endpoint, secret=SECRET, on_change=lambda: None)
    with pytest.raises(DashboardError) as caught:
        collector.start()
    assert "dashboard keygen" in str(caught.value)
    assert "ssh -N -L 805" in str(caught.value)


def test_curve_ingest_on_all_addresses_takes_keys(
    keys: tuple[ServerKeys, ClientKeys], context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    made = Collector(
        MemoryStore(), endpoint="tcp://0.0.0.0:0", secret=SECRET, on_change=lambda: None, keys=keys[0]
    )
    endpoint = made.start().replace("0.0.0.0", "127.0.0.1")
    try:
        assert settled(Link(context, Target(endpoint, SECRET, keys[1])))
    finally:
        made.stop()


# ------------------------------------------------------------------------------------------- files of keys


def test_keygen_writes_private_files_that_belong_together_and_says_what_to_do(tmp_path: Path) -> None:
    lines: list[str] = []
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    make_keys(None, force=False, announce=lines.append, environment=environment)
    folder = keys_folder(environment)
    server, client = read_server_keys(folder / SERVER_FILE), read_client_keys(folder / CLIENT_FILE)
    assert (server.public, server.clients) == (client.server, (client.public,))
    assert len({server.public, server.secret, client.public, client.secret}) == 4
    assert [stat.S_IMODE(path.stat().st_mode) for path in sorted(folder.iterdir())] == [0o600, 0o600]
    text = "\n".join(lines)
    assert "dashboard serve --ingest tcp://0.0.0.0:8051" in text and "NANSCOPE_KEYS=" in text
    assert not {server.secret, client.secret, client.ingest} & set(text.split())
    assert client_keys_beside(folder / SERVER_FILE) == folder / CLIENT_FILE


def test_keygen_replaces_nothing_unless_it_must(tmp_path: Path) -> None:
    first = keys_in(tmp_path)
    with pytest.raises(DashboardError, match="--force"):
        keys_in(tmp_path)
    assert (read_server_keys(tmp_path / SERVER_FILE), read_client_keys(tmp_path / CLIENT_FILE)) == first
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    make_keys(tmp_path, force=True, announce=lambda line: None, environment=environment)
    assert read_server_keys(tmp_path / SERVER_FILE) != first[0]


def test_keys_of_another_server_are_not_told_to_trainings(tmp_path: Path) -> None:
    keys_in(tmp_path / "one")
    keys_in(tmp_path / "other")
    (tmp_path / "one" / CLIENT_FILE).write_bytes((tmp_path / "other" / CLIENT_FILE).read_bytes())
    assert client_keys_beside(tmp_path / "one" / SERVER_FILE) is None


def spoilt(path: Path, how: str) -> None:
    if how == "absent":
        path.unlink()
    elif how == "readable":
        path.chmod(0o644)
    elif how == "large":
        path.write_bytes(b" " * 300_000)
    else:
        path.write_bytes({"empty": b"", "nested": b"[" * 5000, "latin": b"\xff", "short": b"{}"}[how])


HOW = ["absent", "readable", "large", "empty", "nested", "latin", "short"]


@pytest.mark.parametrize("how", HOW)
def test_keys_that_cannot_be_used_ship_nothing_and_are_told(tmp_path: Path, how: str) -> None:
    keys_in(tmp_path)
    environment = {"NANSCOPE_KEYS": str(tmp_path / CLIENT_FILE), "XDG_STATE_HOME": str(tmp_path)}
    target = find_target("tcp://127.0.0.1:1", environment)
    assert target is not None and target.keys is not None
    spoilt(tmp_path / CLIENT_FILE, how)
    assert find_target("tcp://127.0.0.1:1", {**environment, "NANSCOPE_SECRET": "ab" * 32}) is None
    with pytest.raises(ValueError, match="NANSCOPE_KEYS"):
        ProbeConfig.resolve({}, environment)


@pytest.mark.parametrize("how", HOW)
def test_server_keys_that_cannot_be_used_are_refused(tmp_path: Path, how: str) -> None:
    keys_in(tmp_path)
    spoilt(tmp_path / SERVER_FILE, how)
    with pytest.raises(DashboardError, match="--keys"):
        read_server_keys(tmp_path / SERVER_FILE)


def test_target_has_the_keys_that_were_named_for_it(tmp_path: Path) -> None:
    _, mine = keys_in(tmp_path / "mine")
    _, local = keys_in(tmp_path / "local")
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    note = ServeState(
        page="http://127.0.0.1:8050/",
        ingest="tcp://127.0.0.1:8051",
        pid=1,
        secret="cd" * 32,
        keys=str(tmp_path / "local" / CLIENT_FILE),
    )
    write_serve_state(note, environment)
    chosen = {**environment, "NANSCOPE_KEYS": str(tmp_path / "mine" / CLIENT_FILE)}

    def keys_of(connect: str | None, known: dict[str, str]) -> ClientKeys | None:
        target = find_target(connect, known)
        assert target is not None
        return target.keys

    assert keys_of(None, environment) == keys_of(None, chosen) == local
    assert keys_of("tcp://127.0.0.1:8051", environment) == local
    assert keys_of("tcp://elsewhere:8051", environment) is None
    assert keys_of("tcp://elsewhere:8051", chosen) == mine
    assert find_target("tcp://elsewhere:8051", chosen).secret == bytes.fromhex(mine.ingest)  # type: ignore[union-attr]
