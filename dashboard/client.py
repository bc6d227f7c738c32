"""`Client`: the HTTP API of a running dashboard, from Python. Needs the standard library and msgspec.

    client = Client("http://127.0.0.1:8050/", token)
    for event in client.events(run, severities=["critical"]): ...

Used by the command line where a server runs. docs/http-api.md describes what the routes answer.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import quote, urlencode

import msgspec

from .errors import DashboardError
from .local_opener import local_opener
from .store.run_row import RunRow

TIMEOUT_S: Final = 60.0
_PAGE: Final = 1000
"""Entries asked for at a time, where an answer comes page by page."""
Parameters: TypeAlias = Mapping[str, str | int | float | Sequence[str] | None]
Level: TypeAlias = Literal["off", "basic", "advanced", "extreme"]
ExportFormat: TypeAlias = Literal["html", "json", "csv", "parquet"]


class ClientError(DashboardError):
    """The dashboard has refused, or does not answer.

    Attributes:
        status: of the answer; None where there was none.
        code: the word for it, such as "not_found"; "" where there was none.
    """

    def __init__(self, message: str, *, status: int | None = None, code: str = "") -> None:
        super().__init__(message)
        self.status, self.code = status, code


class TrainerAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What one trainer has answered."""

    rank: int
    incarnation: int
    problem: str | None
    """Why it did not follow; None where it did."""
    state: dict[str, Any] | None


class Client:
    """The API of one dashboard; holds no connection, and may be used from several threads.

    Args:
        url: address of its page, such as ``http://127.0.0.1:8050/``.
        token: the one that `dashboard url` prints.
        timeout_s: how long an answer is waited for.
        certificate: PEM of a page that speaks TLS: the only one that is taken, whatever name is in it. Where
            it is "", an address with https:// is trusted as the system trusts others.
    """

    def __init__(self, url: str, token: str, *, timeout_s: float = TIMEOUT_S, certificate: str = "") -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(
                f"url={url!r} must begin with http:// or https://, such as http://127.0.0.1:8050/"
            )
        self.url = url.partition("?")[0].rstrip("/") + "/"
        self._token, self._timeout_s = token, timeout_s
        self._opener = local_opener(certificate)

    def health(self) -> dict[str, Any]:
        """Return whether the dashboard is up, and how many runs it knows."""
        return self._json("GET", "health")

    # -- runs

    def runs(self) -> list[RunRow]:
        """Return all runs, newest first.

        Raises:
            ClientError: as every call: the dashboard has refused, or does not answer.
        """
        rows = list(self._pages("api/v1/runs", "runs", {}))
        return msgspec.convert(rows, list[RunRow])

    def run(self, run: str) -> dict[str, Any]:
        """Return all that is known of one run as a whole."""
        return self._json("GET", self._of(run))

    def summary(self, run: str, *, rank: int = 0) -> dict[str, Any]:
        """Return counts and rates of one rank."""
        return self._json("GET", self._of(run, "summary"), {"rank": rank})

    def remove(self, run: str) -> None:
        """Delete a run from the store and from the dashboard's spool."""
        self._json("DELETE", self._of(run))

    def remove_stored(self, runs: Sequence[str]) -> dict[str, str]:
        """Delete runs from the store alone; return those that stay, with the reason."""
        answer = self._json("POST", "api/v1/runs/remove", body={"runs": list(runs)})
        return msgspec.convert(answer["refused"], dict[str, str])

    def notes(self, run: str) -> list[dict[str, Any]]:
        """Return what people have written at steps of a run, by step: `id`, `step`, `text`, `time`."""
        found: list[dict[str, Any]] = self._json("GET", self._of(run, "notes"))["notes"]
        return found

    def write_note(self, run: str, note: str) -> None:
        """Write a note on a run, in place of the one before."""
        self._json("PUT", self._of(run, "note"), body={"note": note})

    def star(self, run: str, starred: bool = True) -> None:
        """Keep a run whatever the spool's cap says, or no longer."""
        self._json("PUT" if starred else "DELETE", self._of(run, "star"))

    # -- what was found and measured

    def events(
        self,
        run: str,
        *,
        kinds: Sequence[str] = (),
        severities: Sequence[str] = (),
        rank: int | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Yield events by step and time, as docs/interfaces.md describes them."""
        wanted: Parameters = {"kind": list(kinds), "severity": list(severities), "rank": rank}
        return self._pages(self._of(run, "events"), "events", wanted)

    def series(
        self,
        run: str,
        names: Sequence[str],
        *,
        rank: int = 0,
        first: int | None = None,
        end: int | None = None,
        points: int = 1000,
    ) -> dict[str, Any]:
        """Return series by name, each a set of equally long columns."""
        wanted: Parameters = {"name": names, "rank": rank, "first": first, "end": end, "points": points}
        found: dict[str, Any] = self._json("GET", self._of(run, "series/values"), wanted)["series"]
        return found

    def documents(self, run: str, kind: str, *, rank: int | None = None) -> list[dict[str, Any]]:
        """Return the newest 1,000 documents of a kind, by time."""
        wanted: Parameters = {"rank": rank, "limit": _PAGE}
        found: list[dict[str, Any]] = self._json("GET", self._of(run, "documents", kind), wanted)["documents"]
        return found

    def export(self, run: str, format: ExportFormat = "json", *, rank: int = 0) -> bytes:
        """Return one rank of a run as a file."""
        return self._bytes("GET", self._of(run, "export"), {"format": format, "rank": rank})

    # -- a running training

    def control(
        self, run: str, request: Mapping[str, Any], *, rank: int | None = None
    ) -> list[TrainerAnswer]:
        """Ask something of the trainers, such as ``{"do": "resume"}``; return an answer for each."""
        answer = self._json("POST", self._of(run, "control"), {"rank": rank}, body=dict(request))
        return msgspec.convert(answer["answers"], list[TrainerAnswer])

    def set_level(self, run: str, level: Level, *, rank: int | None = None) -> list[TrainerAnswer]:
        """Have the trainers measure more or less, from their next step on."""
        return self.control(run, {"do": "set_level", "level": level}, rank=rank)

    def resume(self, run: str, *, rank: int | None = None) -> list[TrainerAnswer]:
        """Let a paused training go on."""
        return self.control(run, {"do": "resume"}, rank=rank)

    # -- requests

    def _of(self, run: str, *parts: str) -> str:
        return "/".join(["api/v1/runs", quote(run, safe=""), *parts])

    def _pages(self, path: str, field: str, wanted: Parameters) -> Iterator[dict[str, Any]]:
        cursor: str | None = None
        while True:
            page = self._json("GET", path, {**wanted, "limit": _PAGE, "cursor": cursor})
            yield from page[field]
            cursor = page.get("next_cursor")
            if cursor is None:
                return

    def _json(
        self, method: str, path: str, wanted: Parameters | None = None, *, body: object = None
    ) -> dict[str, Any]:
        answer = self._bytes(method, path, wanted, body=body)
        try:
            found: dict[str, Any] = json.loads(answer)
        except (ValueError, RecursionError) as error:
            raise ClientError(f"the dashboard at {self.url} has answered no JSON: {error}") from error
        return found

    def _bytes(
        self, method: str, path: str, wanted: Parameters | None = None, *, body: object = None
    ) -> bytes:
        given = {name: value for name, value in (wanted or {}).items() if value is not None}
        query = f"?{urlencode(given, doseq=True)}" if given else ""
        headers = {"authorization": f"Bearer {self._token}", "accept": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        if data is not None:
            headers["content-type"] = "application/json"
        request = urllib.request.Request(self.url + path + query, data=data, headers=headers, method=method)
        try:
            with self._opener.open(request, timeout=self._timeout_s) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            raise self._refused(error) from error
        except (OSError, ValueError) as error:
            raise ClientError(f"the dashboard at {self.url} does not answer: {error}") from error

    def _refused(self, error: urllib.error.HTTPError) -> ClientError:
        hint = "; set NANSCOPE_TOKEN to the token that it was started with" if error.code == 401 else ""
        text = error.read().decode(errors="replace").strip()
        try:
            facts = json.loads(text)["error"]
            code, reason = str(facts["code"]), str(facts["message"])
        except (ValueError, KeyError, TypeError, RecursionError):
            code, reason = "", text[:500]
        return ClientError(
            f"the dashboard at {self.url} has refused: {reason}{hint}", status=error.code, code=code
        )
