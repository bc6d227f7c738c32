"""The page's token and the ingest secret: random, kept in a 0600 file so that both survive a restart.

Called by the server while it starts.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

import msgspec

from probe.settings.places import state_folder, write_private_file

from ..errors import DashboardError

_MINIMUM_TOKEN = 8


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """What opens the page, and what the probes' helpers prove."""

    token: str
    secret: str
    """Hexadecimal; both ends prove it and never send it."""


def credentials_path(environment: Mapping[str, str] = os.environ) -> Path:
    """Return where the credentials are kept."""
    return state_folder(environment) / "credentials.json"


def load_credentials(environment: Mapping[str, str] = os.environ) -> Credentials:
    """Return the kept credentials, made and written on first use; `NANSCOPE_TOKEN` replaces the token.

    Raises:
        DashboardError: the state folder cannot be written, or `NANSCOPE_TOKEN` is too short or holds
            characters that a cookie cannot carry.
    """
    path = credentials_path(environment)
    kept = _read(path)
    if kept is None:
        kept = Credentials(token=secrets.token_urlsafe(24), secret=secrets.token_hex(32))
        try:
            write_private_file(path, msgspec.json.encode(kept))
        except OSError as error:
            raise DashboardError(
                f"Cannot write {path}: {error.strerror or error}; set XDG_STATE_HOME to a folder of yours."
            ) from error
    chosen = environment.get("NANSCOPE_TOKEN")
    if not chosen:
        return kept
    if len(chosen) < _MINIMUM_TOKEN or not all(c.isascii() and (c.isalnum() or c in "._~-") for c in chosen):
        raise DashboardError(
            f"NANSCOPE_TOKEN must have at least {_MINIMUM_TOKEN} characters, all of A-Z a-z 0-9 . _ ~ -"
        )
    return Credentials(token=chosen, secret=kept.secret)


def _read(path: Path) -> Credentials | None:
    """Return what the file holds; None when it is missing, damaged or readable by others."""
    try:
        if path.stat().st_mode & 0o077:
            return None
        kept = msgspec.json.decode(path.read_bytes(), type=Credentials)
        bytes.fromhex(kept.secret)
    except (OSError, ValueError, msgspec.MsgspecError):
        return None
    return kept if len(kept.token) >= _MINIMUM_TOKEN and len(kept.secret) >= 32 else None
