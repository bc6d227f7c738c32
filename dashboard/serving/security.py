"""Who may talk to the page: Host and Origin allow-lists, the token, limits, and the headers of every answer.

One ASGI middleware around the whole server, assets and WebSockets included; runs on the server's event
loop. It knows nothing of Dash, and lets nothing through that it does not recognise.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, quote, urlencode

from .error_form import JSON, error_bytes, wants_page
from .running import TOKEN_HEADER

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY_BYTES: Final = 1024 * 1024
"""Callbacks post a few kilobytes."""
COOKIE_SECONDS: Final = 30 * 24 * 3600
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_LOOPBACK_NAMES: Final = ("127.0.0.1", "localhost", "[::1]")

NEEDS_TOKEN: Final = (
    "This page needs its token. On the machine that it runs on, `dashboard url` prints the whole address "
    "(it ends in ?token=...). Open that once; the browser remembers it afterwards.\n"
)
NEEDS_ORIGIN: Final = (
    "What changes something needs the header `Authorization: Bearer` with the token, or an Origin that is "
    "the page's own.\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRules:
    """What a request must show. Comparisons are exact."""

    token: str
    cookie: str
    """Cookie's name, see `cookie_name`."""
    hosts: frozenset[str]
    origins: frozenset[str]
    policy: str
    """Content-Security-Policy."""


def cookie_name(port: int) -> str:
    """Return the name of the page's cookie; browsers share cookies between the ports of a host."""
    return f"nanscope_{port}"


def access_rules(*, token: str, host: str, port: int, script_hashes: Sequence[str]) -> AccessRules:
    """Return the rules of a server that listens on `host` and `port`.

    Args:
        token: Shown once as ``?token=``, then kept in a cookie.
        host: Address that the server is bound to.
        port: Its port.
        script_hashes: CSP sources of the page's inline scripts (`Dash.csp_hashes`).
    """
    names = {*_LOOPBACK_NAMES, f"[{host}]" if ":" in host else host}
    hosts = frozenset(f"{name}:{port}" for name in names) | (frozenset(names) if port == 80 else frozenset())
    return AccessRules(
        token=token,
        cookie=cookie_name(port),
        hosts=hosts,
        origins=frozenset(f"http://{name}" for name in hosts),
        policy=content_security_policy(hosts=hosts, script_hashes=script_hashes),
    )


def content_security_policy(*, hosts: frozenset[str], script_hashes: Sequence[str]) -> str:
    """Return a policy without eval and without any origin but our own.

    Inline *styles* stay allowed: Plotly, Mantine and AG Grid set them from their own scripts.
    """
    # Chromium takes no IPv6 address as a source; there 'self' must do, which covers WebSockets.
    sockets = " ".join(sorted(f"ws://{host}" for host in hosts if "[" not in host))
    directives = {
        "default-src": "'none'",
        "script-src": " ".join(["'self'", *script_hashes]),
        "style-src": "'self' 'unsafe-inline'",
        "img-src": "'self' data: blob:",
        "font-src": "'self' data:",
        "connect-src": f"'self' {sockets}",
        "worker-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in directives.items())


class SecurityMiddleware:
    """Wraps the server; see the module's docstring."""

    def __init__(self, app: App, *, rules: AccessRules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a refusal, or pass the request on and add the headers to its answer."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = _headers(scope)
        refusal = self._refusal(scope, headers)
        if scope["type"] == "websocket":
            await self._serve_websocket(scope, receive, send, refused=refusal is not None)
            return
        guarded = self._with_headers(send)
        if refusal is not None:
            await _refuse(guarded, *refusal, headers)
            return
        if location := self._without_token(scope):
            await self._remember_token(guarded, location)
            return
        body = await _read_body(receive) if scope["method"] not in _SAFE_METHODS else b""
        if body is None:
            await _refuse(guarded, 413, f"A request may hold at most {MAX_BODY_BYTES} bytes.\n", headers)
            return
        await self._app(scope, _replay(body, receive), guarded)

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        """Return status and text of a refusal; None lets the request through."""
        if headers.get("host") not in self._rules.hosts:
            return 421, "This server answers only under its own address.\n"
        origin = headers.get("origin")
        if origin is not None and origin not in self._rules.origins:
            return 403, "Requests from other sites are refused.\n"
        # A browser sends a bearer token only where a script of the page says so: it proves what Origin does.
        if self._is_token(_bearer(headers)) and scope["type"] == "http":
            return None
        if not any(self._is_token(candidate) for candidate in self._candidates(scope, headers)):
            return 401, NEEDS_TOKEN
        if origin is None and (scope["type"] == "websocket" or scope["method"] not in _SAFE_METHODS):
            return 403, NEEDS_ORIGIN
        return None

    def _candidates(self, scope: Scope, headers: dict[str, str]) -> list[str]:
        """Return every token that the request offers: header, cookie, and, of a page, the query."""
        offered = [headers.get(TOKEN_HEADER, ""), _cookie(headers.get("cookie", ""), self._rules.cookie)]
        if scope["type"] == "http" and scope["method"] == "GET":
            offered += [value for name, value in _query(scope) if name == "token"]
        return offered

    def _is_token(self, candidate: str) -> bool:
        return hmac.compare_digest(candidate.encode("utf-8", "replace"), self._rules.token.encode())

    def _without_token(self, scope: Scope) -> str | None:
        """Return the address without its token, if it carries one: it must not stay in the address bar."""
        query = _query(scope)
        if scope["method"] != "GET" or all(name != "token" for name, _ in query):
            return None
        rest = urlencode([(name, value) for name, value in query if name != "token"])
        # One slash at the front: "//host" would send the browser elsewhere.
        path = "/" + quote(scope["path"].lstrip("/"))
        return f"{path}?{rest}" if rest else path

    async def _remember_token(self, send: Send, location: str) -> None:
        attributes = f"Path=/; Max-Age={COOKIE_SECONDS}; HttpOnly; SameSite=Strict"
        cookie = f"{self._rules.cookie}={self._rules.token}; {attributes}"
        extra = [(b"location", _latin(location)), (b"set-cookie", _latin(cookie))]
        await _answer(send, 303, b"", extra=extra)

    async def _serve_websocket(self, scope: Scope, receive: Receive, send: Send, *, refused: bool) -> None:
        if not refused:
            await self._app(scope, receive, send)
            return
        await receive()
        await send({"type": "websocket.close", "code": 1008})

    def _with_headers(self, send: Send) -> Send:
        """Add the security headers to whatever is answered."""
        ours = {
            b"content-security-policy": _latin(self._rules.policy),
            b"x-content-type-options": b"nosniff",
            b"x-frame-options": b"DENY",
            b"referrer-policy": b"no-referrer",
            b"cross-origin-opener-policy": b"same-origin",
            b"cross-origin-resource-policy": b"same-origin",
        }

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [pair for pair in message.get("headers", []) if pair[0].lower() not in ours]
                message = {**message, "headers": [*kept, *ours.items()]}
            await send(message)

        return guarded


def _headers(scope: Scope) -> dict[str, str]:
    """Header names are lower case in ASGI. A repeated Host or Origin is joined, and so matches nothing."""
    joined: dict[str, str] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1"), value.decode("latin-1")
        separator = "; " if key == "cookie" else ", "
        joined[key] = joined[key] + separator + text if key in joined else text
    return joined


def _query(scope: Scope) -> list[tuple[str, str]]:
    return parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)


def _cookie(header: str, name: str) -> str:
    """Find one cookie. Other programs on this host set odd ones, so nothing else is parsed."""
    for pair in header.split(";"):
        key, _, value = pair.strip().partition("=")
        if key == name:
            return value
    return ""


def _bearer(headers: dict[str, str]) -> str:
    """Return the token of `Authorization: Bearer`; empty where there is none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _latin(text: str) -> bytes:
    """Encode a header value; `urlencode` has already escaped everything else."""
    return text.encode("latin-1", "replace").replace(b"\r", b"").replace(b"\n", b"")


async def _read_body(receive: Receive) -> bytes | None:
    """Return the whole body; None as soon as it is larger than `MAX_BODY_BYTES`."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return bytes(body)
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            return None
        if not message.get("more_body", False):
            return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Hand the body that was read to the app, then whatever else arrives (the disconnect)."""
    pending = [body]

    async def replayed() -> Message:
        if pending:
            return {"type": "http.request", "body": pending.pop(), "more_body": False}
        return await receive()

    return replayed


async def _refuse(send: Send, status: int, text: str, headers: dict[str, str]) -> None:
    """Answer a refusal: text for who opens an address in a browser, JSON for a program."""
    if wants_page(headers.get("accept", "")):
        await _answer(send, status, text.encode())
        return
    extra = [(b"www-authenticate", b"Bearer")] if status == 401 else []
    await _answer(send, status, error_bytes(status, text.strip()), kind=JSON, extra=extra)


async def _answer(
    send: Send,
    status: int,
    body: bytes,
    *,
    kind: str = "text/plain; charset=utf-8",
    extra: Sequence[tuple[bytes, bytes]] = (),
) -> None:
    headers = [
        (b"content-type", kind.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        *extra,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
