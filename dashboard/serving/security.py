"""Who may talk to the page: Host and Origin allow-lists, the token, limits, and the headers of every answer.

One ASGI middleware around the whole server, assets and WebSockets included; runs on the server's event
loop. It knows nothing of Dash, and lets nothing through that it does not recognise.
"""

from __future__ import annotations

import asyncio
import html
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any, Final, TypeAlias
from urllib.parse import quote, urlencode

from ..callers import Role, served_for, view_only_reason
from .access_rules import AccessRules
from .error_form import JSON, error_bytes, wants_page
from .gate import Gate, Scope, Visit, query_of
from .sessions import SESSION_SECONDS

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY_BYTES: Final = 1024 * 1024
"""Callbacks post a few kilobytes."""
BODY_S: Final = 30.0
"""Until all of it has come."""
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
LOGOUT: Final = "/logout"
_VIEWERS_POSTS: Final = ("/_dash-update-component", LOGOUT)
"""Callbacks that change something ask for the role themselves, see `callers.require_control`."""

NEEDS_TOKEN: Final = (
    "This page needs its token. On the machine that it runs on, `dashboard url` prints the whole address "
    "(it ends in ?token=...). Open that once; the browser remembers it afterwards.\n"
)
_LEADS_ON: Final = (
    '<!doctype html><meta http-equiv="refresh" content="0; url={location}"><title>nanscope</title>'
)
TOO_MANY: Final = "Too many wrong tokens from this address; try again when Retry-After is over.\n"
NEEDS_ORIGIN: Final = (
    "What changes something needs the header `Authorization: Bearer` with the token, or an Origin that is "
    "the page's own.\n"
)


class SecurityMiddleware:
    """Wraps the server; see the module's docstring."""

    def __init__(self, app: App, *, rules: AccessRules, gate: Gate) -> None:
        self._app = app
        self._rules, self._gate = rules, gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a refusal, or pass the request on and add the headers to its answer."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = _headers(scope)
        refusal = self._foreign(headers)
        visit = Visit() if refusal is not None else self._gate.admit(scope, headers)
        refusal = refusal or _refusal(scope, headers, visit)
        caller = visit.caller
        if scope["type"] == "websocket":
            if refusal is not None or caller is None:
                await receive()
                await send({"type": "websocket.close", "code": 1008})
                return
            with served_for(caller):
                await self._app(scope, receive, self._while_session(send, headers))
            return
        guarded = self._with_headers(send)
        if refusal is not None or caller is None:
            await _refuse(guarded, *(refusal or (401, NEEDS_TOKEN)), headers, wait_s=visit.wait_s)
            return
        if (location := _without_token(scope)) is not None:
            await self._begin_session(guarded, location, caller.role, headers)
            return
        try:
            async with asyncio.timeout(BODY_S):
                body = await _read_body(receive) if scope["method"] not in _SAFE_METHODS else b""
        except TimeoutError:
            await _refuse(guarded, 408, f"The body of a request has to come within {BODY_S:g} s.\n", headers)
            return
        if body is None:
            await _refuse(guarded, 413, f"A request may hold at most {MAX_BODY_BYTES} bytes.\n", headers)
            return
        if scope["path"] == LOGOUT and scope["method"] == "POST":
            await self._end_session(guarded, headers)
            return
        with served_for(caller):
            await self._app(scope, _replay(body, receive), guarded)

    def _foreign(self, headers: dict[str, str]) -> tuple[int, str] | None:
        """Return status and text of a refusal of what another site may have caused."""
        if headers.get("host") not in self._rules.hosts:
            return 421, "This server answers only under its own address.\n"
        origin = headers.get("origin")
        if origin is not None and origin not in self._rules.origins:
            return 403, "Requests from other sites are refused.\n"
        return None

    async def _begin_session(self, send: Send, location: str, role: Role, headers: Mapping[str, str]) -> None:
        """Give a session, and lead on without the token.

        Where a file or another site has led here, a browser keeps the cookie to itself until a page of ours
        leads on: `SameSite=Strict` goes by who began a navigation, redirects included.
        """
        cookie = self._cookie(self._gate.sessions.begin(role), SESSION_SECONDS)
        if headers.get("sec-fetch-site") == "cross-site":
            page = _LEADS_ON.format(location=html.escape(location)).encode()
            await _answer(send, 200, page, kind="text/html; charset=utf-8", extra=[cookie])
        else:
            await _answer(send, 303, b"", extra=[(b"location", _latin(location)), cookie])

    async def _end_session(self, send: Send, headers: Mapping[str, str]) -> None:
        self._gate.sessions.end(self._gate.session(headers))
        await _answer(send, 204, b"", extra=[self._cookie("", 0)])

    def _cookie(self, value: str, seconds: int) -> tuple[bytes, bytes]:
        attributes = f"Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict"
        secure = "; Secure" if self._rules.is_secure else ""
        return b"set-cookie", _latin(f"{self._rules.cookie}={value}; {attributes}{secure}")

    def _while_session(self, send: Send, headers: Mapping[str, str]) -> Send:
        """Close a live feed as soon as the session that opened it has ended: nothing more is sent."""
        session = self._gate.session(headers)
        if self._gate.sessions.role_of(session) is None:
            return send  # a token's, which does not end
        is_over = False

        async def checked(message: Message) -> None:
            nonlocal is_over
            if not is_over and self._gate.sessions.role_of(session) is None:
                is_over = True
                await send({"type": "websocket.close", "code": 1008})
            if not is_over:
                await send(message)

        return checked

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


def _refusal(scope: Scope, headers: Mapping[str, str], visit: Visit) -> tuple[int, str] | None:
    """Return status and text of a refusal by what the request has shown; None lets it through."""
    if visit.caller is None:
        return (429, TOO_MANY) if visit.wait_s else (401, NEEDS_TOKEN)
    if scope["type"] == "websocket" and scope["path"].startswith("/_dash"):
        return 404, "There is nothing here.\n"  # Dash's own channel for callbacks, which no page uses
    is_change = scope["type"] == "websocket" or scope["method"] not in _SAFE_METHODS
    # A browser sends a bearer token only where a script of the page says so: it proves what Origin does.
    if is_change and not visit.is_bearer and "origin" not in headers:
        return 403, NEEDS_ORIGIN
    if scope["type"] == "websocket" or not is_change or scope["path"] in _VIEWERS_POSTS:
        return None
    with served_for(visit.caller):
        reason = view_only_reason()
    return (403, f"{reason}\n") if reason else None


def _without_token(scope: Scope) -> str | None:
    """Return the address without its token, if it carries one: it must not stay in the address bar."""
    query = query_of(scope)
    if scope["method"] != "GET" or all(name != "token" for name, _ in query):
        return None
    rest = urlencode([(name, value) for name, value in query if name != "token"])
    # One slash at the front: "//host" would send the browser elsewhere.
    path = "/" + quote(scope["path"].lstrip("/"))
    return f"{path}?{rest}" if rest else path


def _headers(scope: Scope) -> dict[str, str]:
    """Header names are lower case in ASGI. A repeated Host or Origin is joined, and so matches nothing."""
    joined: dict[str, str] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1"), value.decode("latin-1")
        separator = "; " if key == "cookie" else ", "
        joined[key] = joined[key] + separator + text if key in joined else text
    return joined


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


async def _refuse(send: Send, status: int, text: str, headers: Mapping[str, str], *, wait_s: int = 0) -> None:
    """Answer a refusal: text for who opens an address in a browser, JSON for a program."""
    extra = [(b"retry-after", str(wait_s).encode())] if wait_s else []
    if wants_page(headers.get("accept", "")):
        await _answer(send, status, text.encode(), extra=extra)
        return
    extra += [(b"www-authenticate", b"Bearer")] if status == 401 else []
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
