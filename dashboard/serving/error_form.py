"""The one form in which a route refuses: JSON for a program, a page for a browser. Pure, light imports."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

CODES: Final[Mapping[int, str]] = MappingProxyType(
    {
        400: "bad_request",
        401: "unauthorized",
        403: "forbidden",
        404: "not_found",
        405: "method_not_allowed",
        409: "conflict",
        413: "too_large",
        415: "not_json",
        421: "wrong_host",
        422: "invalid",
        429: "too_many_tries",
        500: "failed",
        501: "not_available",
        503: "store_unavailable",
    }
)
"""Status -> the word that programs compare."""
JSON: Final = "application/json"
_MOST_CHARACTERS: Final = 4000
_PAGE: Final = """<!DOCTYPE html>
<html lang="en">
  <head>
    <meta charset="utf-8">
    <meta name="viewport" content="width=device-width, initial-scale=1">
    <meta name="color-scheme" content="dark light">
    <title>nanscope: {title}</title>
    <style>
      body {{ font: 16px/1.5 system-ui, sans-serif; margin: 15vh auto; max-width: 34rem; padding: 0 1rem }}
    </style>
  </head>
  <body>
    <h1>{title}</h1>
    <p>{message}</p>
    <p><a href="/">Go to the dashboard</a></p>
  </body>
</html>
"""


def error_json(status: int, message: str) -> dict[str, dict[str, str]]:
    """Return `{"error": {"code", "message"}}`."""
    return {"error": {"code": CODES.get(status, "error"), "message": message[:_MOST_CHARACTERS]}}


def error_bytes(status: int, message: str) -> bytes:
    """Return the same, encoded."""
    return json.dumps(error_json(status, message)).encode()


def error_page(title: str, message: str) -> str:
    """Return a page that says what is wrong, with a link home; all text is shown as text."""
    return _PAGE.format(title=html.escape(title), message=html.escape(message[:_MOST_CHARACTERS]))


def wants_page(accept: str) -> bool:
    """Whether who asks is a browser that opens an address, by its `Accept` header."""
    return "text/html" in accept.lower()
