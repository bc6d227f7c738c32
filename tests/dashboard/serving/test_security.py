"""The middleware that decides who may talk to the page, called as ASGI without a server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dashboard.callers import current_caller
from dashboard.serving.access_rules import access_rules
from dashboard.serving.credentials import Credentials, load_credentials
from dashboard.serving.gate import Gate
from dashboard.serving.security import LOGOUT, MAX_BODY_BYTES, SecurityMiddleware
from dashboard.serving.sessions import Sessions

HOST = b"127.0.0.1:8050"
ORIGIN = b"http://127.0.0.1:8050"
TOKEN = "right-token"
VIEW_TOKEN = "token-of-a-viewer"
CREDENTIALS = Credentials(token=TOKEN, view_token=VIEW_TOKEN, secret="0" * 64, session_key="1" * 64)
NOWHERE = {"XDG_STATE_HOME": "/nowhere"}
SESSIONS = Sessions(CREDENTIALS, NOWHERE)
SESSION, VIEW_SESSION = SESSIONS.begin("control"), SESSIONS.begin("view")
WITH_TOKEN = (b"cookie", f"other=x; nanscope_8050={SESSION}".encode())
AS_VIEWER = (b"cookie", f"nanscope_8050={VIEW_SESSION}".encode())


async def _page(scope: Any, receive: Any, send: Any) -> None:
    """An app that repeats the body it was sent."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        return
    body = (await receive())["body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"page:" + body})


def call(
    *headers: tuple[bytes, bytes],
    method: str = "GET",
    path: str = "/",
    query: bytes = b"",
    body: bytes = b"",
    kind: str = "http",
    client: str = "127.0.0.1",
    gate: Gate | None = None,
) -> list[dict[str, Any]]:
    """Send one request, with a right Host unless the headers have one; return the messages of the answer."""
    rules = access_rules(names=["127.0.0.1"], port=8050, script_hashes=["'sha256-abc='"])
    gate = gate or Gate(CREDENTIALS, SESSIONS, cookie=rules.cookie)
    if all(name != b"host" for name, _ in headers):
        headers = ((b"host", HOST), *headers)
    scope = {"type": kind, "method": method, "path": path, "query_string": query, "headers": list(headers)}
    scope["client"] = (client, 50_000)
    incoming = [{"type": "http.request", "body": body} if kind == "http" else {"type": "websocket.connect"}]
    answer: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return incoming.pop()

    async def send(message: Any) -> None:
        answer.append(dict(message))

    asyncio.run(SecurityMiddleware(_page, rules=rules, gate=gate)(scope, receive, send))
    return answer


def status(answer: list[dict[str, Any]]) -> int:
    return int(answer[0]["status"])


def header(answer: list[dict[str, Any]], name: bytes) -> bytes:
    return dict(answer[0]["headers"]).get(name, b"")


def test_request_with_cookie_passes() -> None:
    assert call(WITH_TOKEN)[1]["body"] == b"page:"


def test_request_without_token_is_told_which_address_to_use() -> None:
    answer = call(path="/assets/ns_00_core.js")
    assert status(answer) == 401
    assert b"`dashboard url`" in answer[1]["body"]


@pytest.mark.parametrize(
    "session",
    ["", "wrong", TOKEN, SESSION[:-1], SESSION + "x", "c" + VIEW_SESSION[1:]],
    ids=["empty", "wrong", "token", "short", "long", "other role"],
)
def test_request_with_wrong_session_is_refused(session: str) -> None:
    assert status(call((b"cookie", f"nanscope_8050={session}".encode()))) == 401


def test_request_with_cookie_of_another_port_is_refused() -> None:
    assert status(call((b"cookie", f"nanscope_8051={SESSION}".encode()))) == 401


@pytest.mark.parametrize("token", [b"", b"wrong", TOKEN[:-1].encode(), TOKEN.encode() + b"x", b"\xff\xfe"])
@pytest.mark.parametrize("name", [b"x-nanscope-token", b"authorization"])
def test_request_with_wrong_token_is_refused(name: bytes, token: bytes) -> None:
    assert status(call((name, b"Bearer " + token if name == b"authorization" else token))) == 401


def test_request_with_token_header_passes() -> None:
    assert status(call((b"x-nanscope-token", TOKEN.encode()))) == 200


@pytest.mark.parametrize(
    "host", [b"evil.example", b"evil.example:8050", b"127.0.0.1", b"127.0.0.1:8051", b""]
)
def test_request_under_foreign_host_is_refused(host: bytes) -> None:
    assert status(call((b"host", host), WITH_TOKEN)) == 421


def test_request_with_two_hosts_is_refused() -> None:
    assert status(call((b"host", HOST), (b"host", HOST), WITH_TOKEN)) == 421


@pytest.mark.parametrize(
    "origin", [b"http://evil.example", b"null", b"https://127.0.0.1:8050", b"http://127.0.0.1:1"]
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_request_from_foreign_origin_is_refused(origin: bytes, method: str) -> None:
    assert status(call(WITH_TOKEN, (b"origin", origin), method=method)) == 403


def test_unsafe_method_without_origin_is_refused() -> None:
    assert status(call(WITH_TOKEN, method="POST")) == 403


def test_unsafe_method_from_own_origin_passes_its_body() -> None:
    answer = call(WITH_TOKEN, (b"origin", ORIGIN), method="POST", body=b"x" * 1000)
    assert answer[1]["body"] == b"page:" + b"x" * 1000


def test_body_over_the_limit_is_refused() -> None:
    answer = call(WITH_TOKEN, (b"origin", ORIGIN), method="POST", body=b"x" * (MAX_BODY_BYTES + 1))
    assert status(answer) == 413


def test_token_in_address_becomes_session_and_leaves_the_address() -> None:
    answer = call(query=b"run=a&token=" + TOKEN.encode() + b"&event=b")
    assert status(answer) == 303
    assert header(answer, b"location") == b"/?run=a&event=b"
    cookie, *attributes = header(answer, b"set-cookie").decode().split("; ")
    name, _, session = cookie.partition("=")
    assert (name, SESSIONS.role_of(session)) == ("nanscope_8050", "control")
    assert TOKEN not in cookie
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} < set(attributes)


def test_token_in_address_from_a_file_leads_on_by_a_page_of_ours() -> None:
    """A browser sends a strict cookie only where a page of ours, not a redirect, leads on."""
    answer = call((b"sec-fetch-site", b"cross-site"), query=b"run=a&token=" + TOKEN.encode() + b"&e=%22%3E")
    assert status(answer) == 200 and header(answer, b"set-cookie").startswith(b"nanscope_8050=")
    assert b'content="0; url=/?run=a&amp;e=%22%3E"' in answer[1]["body"]
    assert TOKEN.encode() not in answer[1]["body"]


def test_wrong_token_in_address_sets_no_cookie() -> None:
    answer = call(query=b"token=wrong")
    assert (status(answer), header(answer, b"set-cookie")) == (401, b"")


@pytest.mark.parametrize("path", ["//evil.example/x", "/\r\nset-cookie: a=b", "\\\\evil.example"])
def test_redirect_stays_on_this_host(path: str) -> None:
    location = header(call(path=path, query=b"token=" + TOKEN.encode()), b"location")
    assert location.startswith(b"/")
    assert location[1:2] not in (b"/", b"\\")
    assert b"\r" not in location


def test_websocket_with_own_origin_and_cookie_is_accepted() -> None:
    assert call(WITH_TOKEN, (b"origin", ORIGIN), kind="websocket")[0]["type"] == "websocket.accept"


@pytest.mark.parametrize(
    "headers",
    [
        (WITH_TOKEN,),
        (WITH_TOKEN, (b"origin", b"http://evil.example")),
        ((b"origin", ORIGIN),),
        ((b"host", b"evil.example"), WITH_TOKEN, (b"origin", ORIGIN)),
    ],
)
def test_websocket_lacking_something_is_closed(headers: tuple[tuple[bytes, bytes], ...]) -> None:
    assert call(*headers, kind="websocket")[0]["type"] == "websocket.close"


def test_dash_s_own_websocket_is_closed() -> None:
    answer = call(WITH_TOKEN, (b"origin", ORIGIN), kind="websocket", path="/_dash-ws-callback")
    assert answer[0]["type"] == "websocket.close"


@pytest.mark.parametrize("headers", [(WITH_TOKEN,), ()])
def test_every_answer_carries_the_security_headers(headers: tuple[tuple[bytes, bytes], ...]) -> None:
    answer = call(*headers)
    assert header(answer, b"x-content-type-options") == b"nosniff"
    assert header(answer, b"referrer-policy") == b"no-referrer"
    assert header(answer, b"x-frame-options") == b"DENY"
    policy = header(answer, b"content-security-policy").decode()
    assert "frame-ancestors 'none'" in policy
    assert "script-src 'self' 'sha256-abc='" in policy
    assert "eval" not in policy
    assert "http:" not in policy


def as_seen(*headers: tuple[bytes, bytes]) -> str:
    """Who a request is served for."""
    seen: list[str] = []

    async def page(scope: Any, receive: Any, send: Any) -> None:
        seen.append(str(current_caller()))

    rules = access_rules(names=["127.0.0.1"], port=8050, script_hashes=[])
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"host", HOST), *headers]}
    scope["client"] = ("10.1.2.3", 50_000)
    gate = Gate(CREDENTIALS, SESSIONS, cookie=rules.cookie)
    asyncio.run(SecurityMiddleware(page, rules=rules, gate=gate)(scope, None, None))  # type: ignore[arg-type]
    return seen[0]


@pytest.mark.parametrize(
    ("header_", "role"),
    [
        (WITH_TOKEN, "control"),
        (AS_VIEWER, "view"),
        ((b"authorization", b"Bearer " + TOKEN.encode()), "control"),
        ((b"authorization", b"bearer " + VIEW_TOKEN.encode()), "view"),
        ((b"x-nanscope-token", VIEW_TOKEN.encode()), "view"),
    ],
)
def test_request_is_served_for_who_sent_it(header_: tuple[bytes, bytes], role: str) -> None:
    assert as_seen(header_) == f"{role} from 10.1.2.3"
    assert current_caller() is None


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "WHATEVER"])
@pytest.mark.parametrize("header_", [AS_VIEWER, (b"authorization", b"Bearer " + VIEW_TOKEN.encode())])
def test_viewer_changes_nothing(method: str, header_: tuple[bytes, bytes]) -> None:
    answer = call(header_, (b"origin", ORIGIN), method=method, path="/api/v1/runs/x/control/pause")
    assert status(answer) == 403
    assert b"`dashboard url`" in answer[1]["body"]


def test_viewer_may_look_and_asks_callbacks() -> None:
    assert status(call(AS_VIEWER, path="/api/v1/runs")) == 200
    assert status(call(AS_VIEWER, (b"origin", ORIGIN), method="POST", path="/_dash-update-component")) == 200
    assert call(AS_VIEWER, (b"origin", ORIGIN), kind="websocket")[0]["type"] == "websocket.accept"


def test_view_token_in_address_begins_a_session_that_only_looks() -> None:
    cookie = header(call(query=b"token=" + VIEW_TOKEN.encode()), b"set-cookie").decode()
    assert SESSIONS.role_of(cookie.partition("=")[2].partition(";")[0]) == "view"


def test_logout_ends_that_session_and_wants_the_own_origin(tmp_path: Path) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    sessions = Sessions(load_credentials(environment), environment)
    gate = Gate(load_credentials(environment), sessions, cookie="nanscope_8050")
    mine, other = ((b"cookie", b"nanscope_8050=" + sessions.begin("view").encode()) for _ in range(2))
    assert status(call(mine, method="POST", path=LOGOUT, gate=gate)) == 403
    assert status(call((b"origin", ORIGIN), method="POST", path=LOGOUT, gate=gate)) == 401
    answer = call(mine, (b"origin", ORIGIN), method="POST", path=LOGOUT, gate=gate)
    assert status(answer) == 204
    assert header(answer, b"set-cookie").startswith(b"nanscope_8050=; Path=/; Max-Age=0;")
    assert (status(call(mine, gate=gate)), status(call(other, gate=gate))) == (401, 200)


def test_live_feed_ends_with_its_session() -> None:
    sessions = Sessions(CREDENTIALS, NOWHERE)
    over = False
    sessions_role = sessions.role_of
    sessions.role_of = lambda session: None if over else sessions_role(session)  # type: ignore[method-assign]
    sent: list[str] = []

    async def feed(scope: Any, receive: Any, send: Any) -> None:
        nonlocal over
        for has_ended in (False, True, True):
            over = has_ended
            await send({"type": "websocket.send", "bytes": b"x"})

    async def send(message: Any) -> None:
        sent.append(message["type"])

    rules = access_rules(names=[], port=8050, script_hashes=[])
    scope = {
        "type": "websocket",
        "path": "/live",
        "headers": [(b"host", HOST), (b"origin", ORIGIN), AS_VIEWER],
    }
    gate = Gate(CREDENTIALS, sessions, cookie=rules.cookie)
    asyncio.run(SecurityMiddleware(feed, rules=rules, gate=gate)(scope, None, send))  # type: ignore[arg-type]
    assert sent == ["websocket.send", "websocket.close"]


def failing(client: str, gate: Gate, times: int) -> list[int]:
    wrong = (b"authorization", b"Bearer wrong")
    return [status(call(wrong, client=client, gate=gate)) for _ in range(times)]


def test_wrong_tokens_of_an_address_are_slowed_and_those_of_others_are_not() -> None:
    gate = Gate(CREDENTIALS, SESSIONS, cookie="nanscope_8050")
    assert failing("10.0.0.1", gate, 11) == [401] * 9 + [429] * 2
    right = (b"authorization", b"Bearer " + TOKEN.encode())
    refused = call(right, client="10.0.0.1", gate=gate)
    assert status(refused) == 429
    assert 0 < int(header(refused, b"retry-after")) <= 60
    assert status(call(right, client="10.0.0.2", gate=gate)) == 200
    assert status(call(WITH_TOKEN, client="10.0.0.1", gate=gate)) == 200  # a session cannot be guessed


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
def test_right_token_of_this_machine_is_never_slowed(address: str) -> None:
    gate = Gate(CREDENTIALS, SESSIONS, cookie="nanscope_8050")
    assert failing(address, gate, 11)[-1] == 429
    assert status(call((b"x-nanscope-token", TOKEN.encode()), client=address, gate=gate)) == 200


def test_requests_without_a_token_and_with_an_ended_session_are_not_counted() -> None:
    gate = Gate(CREDENTIALS, SESSIONS, cookie="nanscope_8050")
    for headers in ((), ((b"cookie", b"nanscope_8050=c.1.old.old"),)):
        assert [status(call(*headers, gate=gate, client="10.0.0.1")) for _ in range(20)] == [401] * 20


def test_address_behind_a_proxy_is_the_last_that_it_names() -> None:
    gate = Gate(CREDENTIALS, SESSIONS, cookie="nanscope_8050", proxy_host="train.example")
    wrong = (b"authorization", b"Bearer wrong")
    for made_up in range(10):
        call(wrong, (b"x-forwarded-for", f"10.0.0.{made_up}, 192.0.2.7".encode()), gate=gate)
    right = (b"authorization", b"Bearer " + TOKEN.encode())
    assert status(call(right, (b"x-forwarded-for", b"1.1.1.1, 192.0.2.7"), gate=gate)) == 429
    assert status(call(right, (b"x-forwarded-for", b"192.0.2.7, 1.1.1.1"), gate=gate)) == 200


def test_proxy_that_names_nobody_is_not_taken_for_this_machine() -> None:
    gate = Gate(CREDENTIALS, SESSIONS, cookie="nanscope_8050", proxy_host=HOST.decode())
    assert failing("127.0.0.1", gate, 10)[-1] == 429
    assert status(call((b"x-nanscope-token", TOKEN.encode()), gate=gate)) == 429


def test_address_that_nobody_declared_a_proxy_for_is_the_connection_s() -> None:
    gate = Gate(CREDENTIALS, SESSIONS, cookie="nanscope_8050")
    wrong = (b"authorization", b"Bearer wrong")
    found = [
        status(call(wrong, (b"x-forwarded-for", f"10.0.0.{made_up}".encode()), gate=gate, client="192.0.2.7"))
        for made_up in range(10)
    ]
    assert found[-1] == 429
