"""The helper's connection to a collector: finding it, the mutual proof of the secret, sending, receiving.

Runs on the helper's only thread, which owns the socket. Nothing but the handshake is sent before the
collector has proved that it knows the secret.
"""

from __future__ import annotations

import hmac
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import zmq

from ...errors import WireError
from ...settings.keys import ClientKeys, chosen_keys, read_client_keys
from ...settings.places import ServeState, read_serve_state
from ...wire import (
    MAX_MESSAGE_BYTES,
    VERSION,
    Ack,
    Challenge,
    Control,
    Hello,
    Message,
    Proof,
    Refused,
    Watch,
    decode_message,
    handshake_proof,
    sealed,
)

_SEND_QUEUE_MESSAGES: Final = 4
"""Batches, most of them: what waits here takes the helper's memory, and is in the journal besides."""
_MONITOR_EVENT: Final = struct.Struct("=Hi")
"""First frame of `zmq_socket_monitor`: the event and its value. pyzmq's own reader brings asyncio and
ssl along, 3 MiB of memory."""

_REFUSED: Final = (zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
_WATCHED: Final = zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECTED | _REFUSED[0] | _REFUSED[1]


@dataclass(frozen=True, slots=True)
class Target:
    """Where a collector listens, and the secret that it must prove."""

    endpoint: str
    secret: bytes
    keys: ClientKeys | None = None
    """CURVE keys; None speaks without."""


def find_target(connect: str | None, environment: Mapping[str, str] = os.environ) -> Target | None:
    """Return the collector to ship to; None while there is none, or no secret for it.

    `connect` is an address, with the secret in `NANSCOPE_SECRET` (hexadecimal), in the file of
    `NANSCOPE_KEYS` or in `serve.json`; None takes the address from `serve.json` too. Keys that were named
    and cannot be used make
    None: nothing is sent without them.
    """
    state = read_serve_state(environment)
    endpoint = connect or (state.ingest if state else None)
    try:
        keys = _keys(connect, state, environment)
        chosen = environment.get("NANSCOPE_SECRET") if connect else None
        secret = chosen or (keys.ingest if keys else None) or (state.secret if state else None)
        if endpoint is None or not secret:
            return None
        return Target(endpoint, bytes.fromhex(secret), keys)
    except ValueError:
        return None


def _keys(connect: str | None, state: ServeState | None, environment: Mapping[str, str]) -> ClientKeys | None:
    """Return the keys for an address: those that were chosen, of the local dashboard those that its note
    names.

    Raises:
        ValueError: they cannot be used.
    """
    if connect and (chosen := chosen_keys(environment)) is not None:
        return chosen
    if state is not None and state.keys and connect in (None, "", state.ingest):
        return read_client_keys(Path(state.keys))
    return None


class Link:
    """One connection, from `Hello` to its end; a new attempt is a new link with a new identity.

    Raises:
        zmq.ZMQError: the endpoint is no valid address, or libzmq has no CURVE.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], target: Target) -> None:
        self.ready = False
        """The collector has proved the secret; batches may be sent."""
        self.failed: str | None = None
        """Why this link is of no use any more."""
        self.is_refused = False
        """Whether that is because the other end has another secret, or other keys."""
        self.established = False
        self.is_full = False
        """A message found no room; `pump` is woken when there is some."""
        self.takes_detail = False
        """The collector understands the stream `detail`; known once it is ready."""
        self._target = target
        self._nonce = os.urandom(32)
        self._socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.IMMEDIATE, 1)
        self._socket.setsockopt(zmq.SNDHWM, _SEND_QUEUE_MESSAGES)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self._socket.setsockopt(zmq.HEARTBEAT_IVL, 2000)
        self._socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 10_000)
        self._socket.setsockopt(zmq.HANDSHAKE_IVL, 3000)
        self._monitor = self._socket.get_monitor_socket(_WATCHED)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        try:
            if target.keys is not None:
                self._socket.setsockopt_string(zmq.CURVE_SERVERKEY, target.keys.server)
                self._socket.setsockopt_string(zmq.CURVE_PUBLICKEY, target.keys.public)
                self._socket.setsockopt_string(zmq.CURVE_SECRETKEY, target.keys.secret)
            self._socket.connect(target.endpoint)
        except zmq.ZMQError:
            self.close()
            raise
        self._greeted = self._greet()

    @property
    def endpoint(self) -> str:
        """Where the collector listens."""
        return self._target.endpoint

    def _greet(self) -> bool:
        return self.send(Hello(version=VERSION, nonce=self._nonce, takes_control=True, takes_watch=True))

    def send(self, message: Message) -> bool:
        """Queue a message; False when the queue is full or there is no connection."""
        try:
            self._socket.send(sealed(message), zmq.NOBLOCK)
        except zmq.Again:
            self.is_full = True
            return False
        return True

    def pump(self, timeout_s: float) -> list[Ack | Control | Watch]:
        """Wait for the collector, at most `timeout_s`; do the handshake; return its acks and requests."""
        if not self._greeted:
            self._greeted = self._greet()
        received: list[Ack | Control | Watch] = []
        self._poller.modify(self._socket, zmq.POLLIN | zmq.POLLOUT if self.is_full else zmq.POLLIN)
        ready = dict(self._poller.poll(int(timeout_s * 1000)))
        state = ready.get(self._socket, 0)
        if state & zmq.POLLOUT:
            self.is_full = False
        if self._monitor in ready:
            self._observe_connection()
        while state & zmq.POLLIN and self.failed is None:
            try:
                data = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            received.extend(self._receive(data))
        return received

    def close(self) -> None:
        """Close the socket and its monitor; what is queued is in the journal."""
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=0)

    def _observe_connection(self) -> None:
        event, _ = _MONITOR_EVENT.unpack(self._monitor.recv_multipart()[0])
        if event == zmq.EVENT_CONNECTED:
            self.established = True
        elif event in _REFUSED:
            self.failed, self.is_refused = "it has other keys than the file of NANSCOPE_KEYS", True
        elif self.established:
            self.failed = "the dashboard has gone"

    def _receive(self, data: bytes) -> list[Ack | Control | Watch]:
        try:
            message = decode_message(data)
        except WireError as error:
            self.failed = f"the dashboard sent what does not decode: {error}"
            return []
        if isinstance(message, Ack | Control | Watch) and self.ready:
            return [message]
        if isinstance(message, Challenge) and not self.ready:
            self._answer(message)
        elif isinstance(message, Refused):
            self.failed = f"the dashboard refused: {message.reason}"
        else:
            self.failed = f"the dashboard sent an unexpected {type(message).__name__}"
        return []

    def _answer(self, challenge: Challenge) -> None:
        expected = handshake_proof(self._target.secret, "collector", challenge.nonce, self._nonce)
        if not hmac.compare_digest(expected, challenge.proof):
            self.failed, self.is_refused = "it has another ingest secret than this training", True
            return
        self.takes_detail = challenge.takes_detail
        proof = handshake_proof(self._target.secret, "helper", self._nonce, challenge.nonce)
        self.ready = self.send(Proof(proof=proof))
