"""The middleware that decides who may talk to the page, called as ASGI without a server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dashboard.serving.security import MAX_BODY_BYTES, SecurityMiddleware, access_rules

HOST = b"127.0.0.1:8050"
ORIGIN = b"http://127.0.0.1:8050"
TOKEN = "right-token"
WITH_TOKEN = (b"cookie", f"other=x; nanscope_8050={TOKEN}".encode())


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
) -> list[dict[str, Any]]:
    """Send one request, with a right Host unless the headers have one; return the messages of the answer."""
    rules = access_rules(token=TOKEN, host="127.0.0.1", port=8050, script_hashes=["'sha256-abc='"])
    if all(name != b"host" for name, _ in headers):
        headers = ((b"host", HOST), *headers)
    scope = {"type": kind, "method": method, "path": path, "query_string": query, "headers": list(headers)}
    incoming = [{"type": "http.request", "body": body} if kind == "http" else {"type": "websocket.connect"}]
    answer: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return incoming.pop()

    async def send(message: Any) -> None:
        answer.append(dict(message))

    asyncio.run(SecurityMiddleware(_page, rules=rules)(scope, receive, send))
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


@pytest.mark.parametrize("token", [b"", b"wrong", TOKEN[:-1].encode(), TOKEN.encode() + b"x"])
def test_request_with_wrong_token_is_refused(token: bytes) -> None:
    assert status(call((b"cookie", b"nanscope_8050=" + token))) == 401


def test_request_with_cookie_of_another_port_is_refused() -> None:
    assert status(call((b"cookie", f"nanscope_8051={TOKEN}".encode()))) == 401


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


def test_token_in_address_becomes_cookie_and_leaves_the_address() -> None:
    answer = call(query=b"run=a&token=" + TOKEN.encode() + b"&event=b")
    assert status(answer) == 303
    assert header(answer, b"location") == b"/?run=a&event=b"
    cookie = header(answer, b"set-cookie").decode()
    assert cookie.startswith(f"nanscope_8050={TOKEN};")
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie


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
