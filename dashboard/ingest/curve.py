"""CURVE on the collector's socket, and the ZAP handler that says which keys are let in. Fails closed.

The handler is a socket of the collector's own thread: where that thread does not answer, nobody is let in. A
client without CURVE, with a key that is not in the file, or of another mechanism is refused before a message
is read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
import zmq
import zmq.utils.z85

from probe.settings.keys import is_key, read_client_keys, read_private
from probe.settings.places import state_folder

from ..errors import DashboardError
from ..throttle import Throttle, is_loopback

SERVER_FILE: Final = "nanscope-server-keys.json"
CLIENT_FILE: Final = "nanscope-client-keys.json"
_ZAP: Final = "inproc://zeromq.zap.01"
_DOMAIN: Final = "nanscope"
_VERSION: Final = b"1.0"
_MOST_AT_ONCE: Final = 64


class ServerKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of an ingest, z85."""

    public: str
    secret: str
    clients: tuple[str, ...]
    """Public keys of those who are let in."""


def keys_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return where `dashboard keygen` writes, and `serve` looks, when they are given no place."""
    return state_folder(environment) / "keys"


def client_keys_beside(path: Path) -> Path | None:
    """Return the client's file beside a server's, for trainings of this machine; None without one."""
    beside = path.with_name(CLIENT_FILE)
    try:
        return beside if read_client_keys(beside).server == read_server_keys(path).public else None
    except (ValueError, DashboardError):
        return None


def read_server_keys(path: Path) -> ServerKeys:
    """Return the keys of a file.

    Raises:
        DashboardError: it cannot be used; says why.
    """
    try:
        keys = msgspec.json.decode(read_private(path), type=ServerKeys)
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise DashboardError(
            f"--keys {path} cannot be used: {error}; `dashboard keygen` writes one"
        ) from error
    if not all(map(is_key, (keys.public, keys.secret, *keys.clients))) or not keys.clients:
        raise DashboardError(
            f"--keys {path} cannot be used: a key is not 40 characters of z85, or there are none of clients"
        )
    return keys


class CurveGate:
    """Guards one ROUTER socket; used on the thread that owns it.

    Args:
        context: of the socket.
        router: not bound yet.
        keys: own, and those that are let in.
        throttle: slows addresses that show wrong keys.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        router: zmq.Socket[bytes],
        keys: ServerKeys,
        throttle: Throttle,
    ) -> None:
        self._known = frozenset(zmq.utils.z85.decode(key) for key in keys.clients)
        self._throttle = throttle
        self.refused = 0
        """Handshakes that were refused here."""
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(_ZAP)
        router.setsockopt_string(zmq.ZAP_DOMAIN, _DOMAIN)
        router.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        router.setsockopt(zmq.CURVE_SERVER, 1)
        router.setsockopt_string(zmq.CURVE_SECRETKEY, keys.secret)
        router.setsockopt_string(zmq.CURVE_PUBLICKEY, keys.public)

    def answer(self) -> None:
        """Answer the handshakes that wait; never waits itself."""
        for _ in range(_MOST_AT_ONCE):
            try:
                parts = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._answer(parts)

    def close(self) -> None:
        """Close the handler; from then on nobody is let in."""
        self.socket.close(linger=0)

    def _answer(self, parts: list[bytes]) -> None:
        if len(parts) < 8:  # no request of libzmq's
            return
        identity, empty, _version, request, domain, address, _, mechanism, *credentials = parts
        where = address.decode("latin-1")
        is_known = (
            domain == _DOMAIN.encode()
            and mechanism == b"CURVE"
            and len(credentials) == 1
            and credentials[0] in self._known
            and (is_loopback(where) or not self._throttle.wait_s(where))
        )
        if not is_known:
            self.refused += 1
            self._throttle.note_failure(where)
        code, text = (b"200", b"OK") if is_known else (b"400", b"not one of the keys that are let in")
        self.socket.send_multipart([identity, empty, _VERSION, request, code, text, b"", b""], zmq.NOBLOCK)
