"""What holds for every answer and every body: who may keep an answer, and that a body is JSON.

One ASGI middleware between `security.py`, which has let the request in, and the app.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from .error_form import JSON, error_bytes
from .gate import Scope
from .security import App, Message, Receive, Send

NO_STORE: Final = "no-store"
ASK_AGAIN: Final = "private, no-cache"
FOR_EVER: Final = "private, max-age=31536000, immutable"
ASSETS: Final = "/assets/"
COMPONENTS: Final = "/_dash-component-suites/"
_ICON: Final = "/_favicon.ico"
_FINGERPRINT: Final = re.compile(r"^[^.]+\.v[\w-]+m[0-9a-fA-F]+\.")
_CHANGING: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
NEEDS_JSON: Final = (
    "a body, and what changes something with the page's cookie, needs the header "
    "`Content-Type: application/json`"
)


def asset_versions(folder: Path) -> dict[str, str]:
    """Return path -> query under which the page asks for each file of its assets; Dash writes the same."""
    return {
        f"{ASSETS}{file.relative_to(folder).as_posix()}": f"m={file.stat().st_mtime}"
        for file in folder.rglob("*")
        if file.is_file()
    }


def cache_rule(path: str, query: str, status: int, versions: Mapping[str, str]) -> str:
    """Return the `Cache-Control` of an answer.

    Only files of the page are kept, and without being asked for again only under an address that names their
    version; all else is about somebody's trainings.

    Args:
        path: Of the request.
        query: Of the request.
        status: Of the answer.
        versions: See `asset_versions`.
    """
    if status not in (HTTPStatus.OK, HTTPStatus.NOT_MODIFIED):
        return NO_STORE
    if path.startswith(ASSETS):
        return FOR_EVER if versions.get(path) == query else ASK_AGAIN
    if path.startswith(COMPONENTS):
        return FOR_EVER if _FINGERPRINT.match(path.rpartition("/")[2]) else ASK_AGAIN
    return ASK_AGAIN if path == _ICON else NO_STORE


class AnswerRules:
    """Wraps the app; see the module's docstring.

    Args:
        app: What answers.
        cookie: Name of the page's cookie.
        versions: See `asset_versions`.
    """

    def __init__(self, app: App, *, cookie: str, versions: Mapping[str, str]) -> None:
        self._app = app
        self._cookie = f"{cookie}="
        self._versions = versions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a body that is no JSON, or pass the request on and say who may keep its answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        ruled = self._ruled(scope, send)
        if scope["method"] not in _CHANGING:
            await self._app(scope, receive, ruled)
            return
        first = await receive()
        if (first.get("body") or self._has_cookie(scope)) and not _is_json(scope):
            await _refuse(ruled)
            return
        pending = [first]

        async def replayed() -> Message:
            return pending.pop() if pending else await receive()

        await self._app(scope, replayed, ruled)

    def _has_cookie(self, scope: Scope) -> bool:
        cookies = [value.decode("latin-1") for name, value in scope["headers"] if name == b"cookie"]
        return any(pair.strip().startswith(self._cookie) for line in cookies for pair in line.split(";"))

    def _ruled(self, scope: Scope, send: Send) -> Send:
        query = scope.get("query_string", b"").decode("latin-1")

        async def ruled(message: Message) -> None:
            if message["type"] == "http.response.start":
                rule = cache_rule(scope["path"], query, message["status"], self._versions)
                kept = [pair for pair in message.get("headers", []) if pair[0].lower() != b"cache-control"]
                message = {**message, "headers": [*kept, (b"cache-control", rule.encode())]}
            await send(message)

        return ruled


def _is_json(scope: Scope) -> bool:
    """Whether the one `Content-Type` is JSON; parameters such as a charset do not count."""
    kinds = [value.decode("latin-1") for name, value in scope["headers"] if name == b"content-type"]
    return len(kinds) == 1 and kinds[0].partition(";")[0].strip().lower() == JSON


async def _refuse(send: Send) -> None:
    body = error_bytes(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, NEEDS_JSON)
    headers: list[tuple[bytes, Any]] = [
        (b"content-type", JSON.encode()),
        (b"content-length", str(len(body)).encode()),
    ]
    start = {"type": "http.response.start", "status": HTTPStatus.UNSUPPORTED_MEDIA_TYPE.value}
    await send({**start, "headers": headers})
    await send({"type": "http.response.body", "body": body})
