"""One POST over HTTP: follows no redirect, and says what went wrong without the address. It blocks."""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import ipaddress
import socket
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

MOST_ANSWER_BYTES: Final = 64 * 1024
LONGEST_WAIT_S: Final = 300.0
"""The most that is granted to a `Retry-After`."""
_TRY_AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True, kw_only=True)
class Posted:
    """How a request ended."""

    problem: str | None
    """None where it was taken."""
    may_retry: bool = False
    retry_after_s: float | None = None
    body: bytes = b""
    """Of the answer, at most `MOST_ANSWER_BYTES`."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: object) -> None:
        """Follow none: the body was meant for the address that the operator has written."""
        return


def post(url: str, body: bytes, headers: Mapping[str, str], *, timeout_s: float) -> Posted:
    """Send, and return how it ended; raises nothing. `timeout_s` is for each read and write."""
    request = urllib.request.Request(url, data=body, headers=dict(headers), method="POST")
    handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
    if _is_here(urllib.parse.urlsplit(url).hostname or ""):
        handlers.append(urllib.request.ProxyHandler({}))
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=timeout_s) as answer:
            return Posted(problem=None, body=answer.read(MOST_ANSWER_BYTES))
    except urllib.error.HTTPError as error:
        with error:
            return _refused(error.code, error.headers.get("retry-after"))
    except urllib.error.URLError as error:
        return Posted(problem=_reason(error.reason, timeout_s), may_retry=True)
    except (OSError, UnicodeError, http.client.HTTPException) as error:
        return Posted(problem=_reason(error, timeout_s), may_retry=True)


def _is_here(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _refused(status: int, retry_after: str | None) -> Posted:
    if 300 <= status < 400:
        return Posted(problem=f"it answered with a redirect ({status}), which is not followed")
    wait_s = retry_after_s(retry_after, now=time.time())
    return Posted(problem=f"it answered {status}", may_retry=status in _TRY_AGAIN, retry_after_s=wait_s)


def retry_after_s(text: str | None, *, now: float) -> float | None:
    """Return the seconds of a `Retry-After`, a number or a date, at most `LONGEST_WAIT_S`; None for none."""
    if not text:
        return None
    try:
        wait_s = float(text)
    except ValueError:
        try:
            wait_s = email.utils.parsedate_to_datetime(text).timestamp() - now
        except ValueError:
            return None
    return min(max(0.0, wait_s), LONGEST_WAIT_S) if wait_s == wait_s else None


def _reason(error: object, timeout_s: float) -> str:
    """In words of our own: texts of exceptions may repeat the address."""
    if isinstance(error, TimeoutError):
        return f"it did not answer within {timeout_s:g} s"
    # A label of a host's name that is empty or too long is an error of its encoding.
    if isinstance(error, socket.gaierror | UnicodeError):
        return "its host's name is not known"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({error.reason or type(error).__name__})"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"the connection failed ({type(error).__name__})"
