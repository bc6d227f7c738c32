"""ETags: a GET whose answer is what the caller has already is answered by 304, without a body."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute


class TaggedRoute(APIRoute):
    """A route whose answers to GET carry an ETag of their bytes."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap the handler that FastAPI has made."""
        handle = super().get_route_handler()

        async def tagged(request: Request) -> Response:
            answer = await handle(request)
            if request.method != "GET" or answer.status_code != 200:
                return answer
            return with_tag(answer, request.headers.get("if-none-match", ""))

        return tagged


def with_tag(answer: Response, known: str) -> Response:
    """Return the answer with its tag, or 304 where `If-None-Match` names that.

    The tag is a weak one: what travels may be compressed.
    """
    tag = f'W/"{hashlib.blake2b(bytes(answer.body), digest_size=16).hexdigest()}"'
    headers = {"etag": tag}
    if tag.removeprefix("W/") in {one.strip().removeprefix("W/") for one in known.split(",")}:
        return Response(status_code=304, headers=headers)
    answer.headers.update(headers)
    return answer
