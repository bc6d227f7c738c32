"""Finds the dashboard that already runs, and the address that opens it. Imports nothing heavy.

A server leaves a note with its token in its data folder (0600), beside `serve.json`, which tells probes where
it is and has none. A note counts only while the server that has left it answers under that address: after a
kill another one may be there, and it has the same token.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import secrets
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from probe.settings.places import read_serve_state, state_folder, write_private_file

from ..local_opener import local_opener

_TIMEOUT_S: Final = 3.0
_MOST_BYTES: Final = 1024**2
_MOST_FOLDERS: Final = 50
TOKEN_HEADER: Final = "x-nanscope-token"
INSTANCE: Final = secrets.token_hex(8)
"""Of this process; what `/health` answers."""
STORE_VARIABLE: Final = "NANSCOPE_STORE"
"""Address of the store, where that is no file in a folder."""


class RunningNote(msgspec.Struct, frozen=True, kw_only=True):
    """Of the server that has the data folder in which it lies."""

    page: str
    """Address of the page, without the token."""
    token: str
    pid: int
    instance: str = ""
    """Of the server's process; "" where the server is older."""
    view_token: str = ""
    """Of who may only look; "" where the server is older."""
    public: str = ""
    """Address of the page for browsers, where that is another: a proxy's."""
    certificate: str = ""
    """PEM, where the page speaks TLS: local commands take this one and no other."""

    @property
    def address(self) -> str:
        """Address that opens the page: with the token."""
        return f"{self.public or self.page}?token={self.token}"

    @property
    def view_address(self) -> str:
        """Address that opens the page for who may only look; "" where the server is older."""
        return f"{self.public or self.page}?token={self.view_token}" if self.view_token else ""


def data_folder(data: Path | None, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the store: the one that was chosen, else in the user's state folder."""
    return data or state_folder(environment) / "data"


def write_note(data: Path, note: RunningNote) -> None:
    """Write the note (0600)."""
    write_private_file(_note_path(data), msgspec.json.encode(note))


def remove_note(data: Path, note: RunningNote) -> None:
    """Remove it, unless it is another server's by now."""
    if _read(data) == note:
        _note_path(data).unlink(missing_ok=True)


def find_server_of(data: Path) -> RunningNote | None:
    """Return who serves a data folder; None where nobody of this user answers."""
    note = _read(data)
    return note if note is not None and _answers(note) else None


def find_server(environment: Mapping[str, str] = os.environ) -> RunningNote | None:
    """Return the user's running dashboard: that of `serve.json`, else of the usual data folder."""
    state = read_serve_state(environment)
    usual = data_folder(None, environment)
    chosen = Path(state.data) if state is not None and state.data else usual
    return find_server_of(chosen) or (find_server_of(usual) if chosen != usual else None)


def remember_data(data: Path, environment: Mapping[str, str] = os.environ) -> None:
    """Note that a data folder was served, for commands that have to find all of them."""
    known = [str(data.absolute()), *map(str, remembered_data(environment))]
    newest = list(dict.fromkeys(known))[:_MOST_FOLDERS]
    with contextlib.suppress(OSError):  # a state folder that cannot be written is told elsewhere
        write_private_file(_folders_path(environment), msgspec.json.encode(newest))


def remembered_data(environment: Mapping[str, str] = os.environ) -> list[Path]:
    """Return the data folders that this user has served and that are there, the newest first."""
    try:
        found = msgspec.json.decode(_folders_path(environment).read_bytes(), type=list[str])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return []
    return [folder for folder in map(Path, found) if folder.is_dir()]


def _folders_path(environment: Mapping[str, str]) -> Path:
    return state_folder(environment) / "data-folders.json"


def _note_path(data: Path) -> Path:
    return data / "serving.json"


def _read(data: Path) -> RunningNote | None:
    path = _note_path(data)
    try:
        if path.stat().st_mode & 0o077:
            return None
        return msgspec.json.decode(path.read_bytes(), type=RunningNote)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


class _Health(msgspec.Struct):
    """What of the answer says who gives it."""

    instance: str = ""


def _answers(note: RunningNote) -> bool:
    """Whether the server that has left the note answers: its number or its port may be another's by now."""
    if not note.page.startswith("https://" if note.certificate else "http://"):
        return False
    request = urllib.request.Request(f"{note.page}health", headers={TOKEN_HEADER: note.token})
    try:
        with local_opener(note.certificate).open(request, timeout=_TIMEOUT_S) as answer:
            found = msgspec.json.decode(answer.read(_MOST_BYTES), type=_Health)
            return answer.status == 200 and found.instance == note.instance
    except (OSError, ValueError, http.client.HTTPException, RecursionError):
        return False
