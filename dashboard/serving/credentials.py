"""Tokens, ingest secret and the key of sessions: random, in a 0600 file, so that all survive a restart.

Read by the server while it starts, the key of sessions while it runs; changed by `dashboard token`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from probe.settings.places import make_private_folder, state_folder, write_private_file

from ..callers import Role
from ..errors import DashboardError

_MINIMUM_TOKEN = 8


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """What opens the page, and what the probes' helpers prove."""

    token: str
    """Of who may change things."""
    secret: str
    """Hexadecimal; both ends prove it and never send it."""
    view_token: str = ""
    """Of who may only look; "" in files of older versions, which get one."""
    session_key: str = ""
    """Hexadecimal; signs sessions. A new one ends all of them."""
    ended: tuple[str, ...] = ()
    """Sessions that were ended before their time."""

    def token_of(self, role: Role) -> str:
        """Return the token that opens the page in a role."""
        return self.token if role == "control" else self.view_token


def credentials_path(environment: Mapping[str, str] = os.environ) -> Path:
    """Return where the credentials are kept."""
    return state_folder(environment) / "credentials.json"


def load_credentials(environment: Mapping[str, str] = os.environ) -> Credentials:
    """Return the kept credentials, made and written on first use; the environment's tokens replace them.

    Raises:
        DashboardError: the state folder cannot be written, or `NANSCOPE_TOKEN` or `NANSCOPE_VIEW_TOKEN` is
            too short, holds characters that an address cannot carry, or both are the same.
    """
    kept = read_credentials(environment)
    if kept is None or not (kept.view_token and kept.session_key):
        kept = change_credentials(lambda found: found, environment)
    token = _chosen("NANSCOPE_TOKEN", environment) or kept.token
    view_token = _chosen("NANSCOPE_VIEW_TOKEN", environment) or kept.view_token
    if token == view_token:
        raise DashboardError("NANSCOPE_TOKEN and NANSCOPE_VIEW_TOKEN must differ: one may change things.")
    return msgspec.structs.replace(kept, token=token, view_token=view_token)


def change_credentials(
    change: Callable[[Credentials], Credentials], environment: Mapping[str, str] = os.environ
) -> Credentials:
    """Write what `change` makes of the kept credentials, and return it; one process at a time.

    Raises:
        DashboardError: the state folder cannot be written.
    """
    path = credentials_path(environment)
    try:
        with _locked(path.with_suffix(".lock")):
            found = read_credentials(environment)
            kept = change(_completed(found))
            if kept != found:
                write_private_file(path, msgspec.json.encode(kept))
            return kept
    except OSError as error:
        raise DashboardError(
            f"Cannot write {path}: {error.strerror or error}; set XDG_STATE_HOME to a folder of yours."
        ) from error


def read_credentials(environment: Mapping[str, str] = os.environ) -> Credentials | None:
    """Return what the file holds; None when it is missing, damaged or readable by others."""
    path = credentials_path(environment)
    try:
        if path.stat().st_mode & 0o077:
            return None
        kept = msgspec.json.decode(path.read_bytes(), type=Credentials)
        bytes.fromhex(kept.secret)
        bytes.fromhex(kept.session_key)
    except (OSError, ValueError, msgspec.MsgspecError, RecursionError):
        return None
    return kept if len(kept.token) >= _MINIMUM_TOKEN and len(kept.secret) >= 32 else None


def end_all_sessions(environment: Mapping[str, str] = os.environ) -> None:
    """Have every browser need the address again, at running servers too.

    Raises:
        DashboardError: the state folder cannot be written.
    """
    change_credentials(_with_new_key, environment)


def _completed(found: Credentials | None) -> Credentials:
    """Make what is missing: all, or what files of older versions lack."""
    if found is None:
        found = Credentials(token=secrets.token_urlsafe(24), secret=secrets.token_hex(32))
    if len(found.view_token) < _MINIMUM_TOKEN or found.view_token == found.token:
        found = msgspec.structs.replace(found, view_token=secrets.token_urlsafe(24))
    return found if len(found.session_key) >= 64 else _with_new_key(found)


def _with_new_key(found: Credentials) -> Credentials:
    return msgspec.structs.replace(found, session_key=secrets.token_hex(32), ended=())


def _chosen(name: str, environment: Mapping[str, str]) -> str:
    """Return a token of the environment; "" where there is none."""
    token = environment.get(name, "")
    if token and (
        len(token) < _MINIMUM_TOKEN or not all(c.isascii() and (c.isalnum() or c in "._~-") for c in token)
    ):
        raise DashboardError(
            f"{name} must have at least {_MINIMUM_TOKEN} characters, all of A-Z a-z 0-9 . _ ~ -"
        )
    return token


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Only one process changes the file at a time; the kernel frees the lock at any death."""
    make_private_folder(path.parent)
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
