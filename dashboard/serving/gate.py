"""Says who a request is from: a right token, a session, or why neither. Sessions begin and end here.

Asked by the middleware at every request, on the server's event loop.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl

from ..callers import Caller, Role
from ..throttle import Throttle, is_loopback
from .credentials import Credentials
from .running import TOKEN_HEADER
from .sessions import Sessions

Scope: TypeAlias = MutableMapping[str, Any]
ROLES: Final[tuple[Role, ...]] = ("control", "view")


@dataclass(frozen=True, slots=True)
class Visit:
    """What a request has shown."""

    caller: Caller | None = None
    """Who it is from; None where nothing right was shown."""
    is_bearer: bool = False
    """It has a header that a browser sends only where a script of the page says so."""
    wait_s: int = 0
    """Its address has tried too many wrong tokens: seconds until the next is looked at."""


class Gate:
    """Tokens and sessions of one server.

    Args:
        credentials: its tokens.
        sessions: what browsers keep instead.
        cookie: name of the page's cookie.
        throttle: slows who tries wrong tokens.
        proxy_host: what requests through the proxy have as Host; "" where there is none. The address of who
            asks is then the last that the proxy names.
    """

    def __init__(
        self,
        credentials: Credentials,
        sessions: Sessions,
        *,
        cookie: str,
        throttle: Throttle | None = None,
        proxy_host: str = "",
    ) -> None:
        self._tokens: dict[Role, bytes] = {role: credentials.token_of(role).encode() for role in ROLES}
        self.sessions = sessions
        self._cookie = cookie
        self._throttle = throttle or Throttle()
        self._proxy_host = proxy_host

    def admit(self, scope: Scope, headers: Mapping[str, str]) -> Visit:
        """Return who a request is from.

        A session is never slowed: its signature cannot be guessed. From elsewhere, a right token is refused
        too once its address has tried too many wrong ones, or guessing would only become slower to tell.
        """
        address = self._address(scope, headers)
        bearer = _bearer(headers)
        offered = [bearer, headers.get(TOKEN_HEADER, "")]
        if scope["type"] == "http" and scope["method"] == "GET":
            offered += [value for name, value in query_of(scope) if name == "token"]
        offered = [one for one in offered if one]
        wait_s = self._throttle.wait_s(address) if offered else 0
        if not wait_s or is_loopback(address):
            for one in offered:
                if (role := self._role_of_token(one)) is not None:
                    return Visit(Caller(role, address), is_bearer=one == bearer and scope["type"] == "http")
        if (role := self.sessions.role_of(self.session(headers))) is not None:
            return Visit(Caller(role, address))
        if offered and not wait_s:
            self._throttle.note_failure(address)
            wait_s = self._throttle.wait_s(address)
        return Visit(wait_s=wait_s)

    def session(self, headers: Mapping[str, str]) -> str:
        """Return the session that a request shows; "" where there is none."""
        return _cookie(headers.get("cookie", ""), self._cookie)

    def _role_of_token(self, candidate: str) -> Role | None:
        shown = candidate.encode("utf-8", "replace")
        found = [role for role, token in self._tokens.items() if hmac.compare_digest(shown, token)]
        return found[0] if found else None

    def _address(self, scope: Scope, headers: Mapping[str, str]) -> str:
        client = scope.get("client")
        address = str(client[0]) if client else ""
        if not self._proxy_host:
            return address
        # What stands before the last comma the caller may have made up.
        named = headers.get("x-forwarded-for", "").rpartition(",")[2].strip()[:100]
        # A proxy that names nobody lets in everybody as one: not as this machine, where it may run.
        return named or ("" if headers.get("host") == self._proxy_host else address)


def query_of(scope: Scope) -> list[tuple[str, str]]:
    """Return names and values of a request's query."""
    return parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)


def _cookie(header: str, name: str) -> str:
    """Find one cookie. Other programs on this host set odd ones, so nothing else is parsed."""
    for pair in header.split(";"):
        key, _, value = pair.strip().partition("=")
        if key == name:
            return value
    return ""


def _bearer(headers: Mapping[str, str]) -> str:
    """Return the token of `Authorization: Bearer`; empty where there is none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
