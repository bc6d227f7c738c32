"""What a browser keeps instead of the token: a signed session that ends by itself, by `dashboard token
--revoke` or by logging out. Asked by the middleware at every request, on the server's event loop.

A session is ``ROLE.ISSUED.NONCE.SIGNATURE``: an HMAC-SHA256 over the rest and over the token that opened it,
with a key that lies in the credentials' file. No table is kept, and it survives a restart of the server.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from ..callers import Role
from .credentials import Credentials, change_credentials, credentials_path, read_credentials

SESSION_SECONDS: Final = 30 * 24 * 3600
_AHEAD_SECONDS: Final = 300
"""A clock that was put back does not end sessions that were begun before."""
MOST_ENDED: Final = 1000
"""Sessions that are remembered as ended; one more ends all, rather than forget one."""
_LARGEST: Final = 200
_ROLES: Final[Mapping[str, Role]] = {"c": "control", "v": "view"}
_LETTERS: Final[Mapping[Role, str]] = {"control": "c", "view": "v"}


class Sessions:
    """Sessions of one server.

    Args:
        credentials: of the server; their tokens are bound into the sessions.
        environment: where the credentials' file lies, which other commands change.
        clock: UNIX seconds.
    """

    def __init__(
        self,
        credentials: Credentials,
        environment: Mapping[str, str] = os.environ,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._credentials, self._environment, self._clock = credentials, environment, clock
        self._path = credentials_path(environment)
        self._seen: tuple[int, int, int] | None = None

    def begin(self, role: Role) -> str:
        """Return a new session, as the cookie's value."""
        body = f"{_LETTERS[role]}.{int(self._clock()):x}.{secrets.token_urlsafe(12)}"
        return f"{body}.{self._signature(body, role)}"

    def role_of(self, session: str) -> Role | None:
        """Return who has it; None where it is none, has ended or was opened by another token."""
        if not session.isascii() or not 0 < len(session) <= _LARGEST:
            return None
        body, _, signature = session.rpartition(".")
        role = _ROLES.get(body.partition(".")[0])
        if role is None:
            return None
        self._look()
        if not hmac.compare_digest(signature, self._signature(body, role)) or body in self._credentials.ended:
            return None
        age_s = self._clock() - _issued(body)
        return role if -_AHEAD_SECONDS <= age_s < SESSION_SECONDS else None

    def end(self, session: str) -> None:
        """End one session; what is none is left alone.

        Raises:
            DashboardError: the credentials cannot be written.
        """
        if self.role_of(session) is None:
            return
        oldest_s, body = self._clock() - SESSION_SECONDS, session.rpartition(".")[0]

        def with_end(kept: Credentials) -> Credentials:
            ended = (*(one for one in kept.ended if _issued(one) > oldest_s), body)
            if len(ended) > MOST_ENDED:
                return msgspec.structs.replace(kept, session_key=secrets.token_hex(32), ended=())
            return msgspec.structs.replace(kept, ended=ended)

        change_credentials(with_end, self._environment)

    def _look(self) -> None:
        """Take what another process has written; a file that cannot be read changes nothing."""
        try:
            found = os.stat(self._path)  # noqa: PTH116 - at every request; a Path is ten times dearer
        except OSError:
            return
        seen = (found.st_mtime_ns, found.st_ino, found.st_size)
        if seen == self._seen:
            return
        self._seen = seen
        kept = read_credentials(self._environment)
        if kept is not None and kept.session_key:
            self._credentials = msgspec.structs.replace(
                self._credentials, session_key=kept.session_key, ended=kept.ended
            )

    def _signature(self, body: str, role: Role) -> str:
        self._look()
        key = bytes.fromhex(self._credentials.session_key)
        opened_by = hashlib.sha256(self._credentials.token_of(role).encode()).hexdigest()
        digest = hmac.new(key, f"session\0{body}\0{opened_by}".encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _issued(body: str) -> float:
    """Return when a session was begun; what says nothing was never begun."""
    try:
        return float(int(body.split(".")[1], 16))
    except (IndexError, ValueError):
        return float("-inf")
