"""The file of CURVE keys by which a helper reaches a dashboard on another machine: `NANSCOPE_KEYS` names it.

`dashboard keygen` writes it. Read by the helper at each new connection, and by `watch` once, so that a file
that cannot be used is told where somebody sees it. Keys never come over the wire. Imports nothing heavy.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

KEYS: Final = "NANSCOPE_KEYS"
MOST_BYTES: Final = 256 * 1024
_KEY: Final = re.compile(r"[0-9A-Za-z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
"""Z85, of 32 bytes."""


class ClientKeys(msgspec.Struct, frozen=True, kw_only=True):
    """What a helper needs; z85 but for the last."""

    public: str
    secret: str
    server: str
    """Public key of the dashboard: nobody else is spoken to."""
    ingest: str = ""
    """Ingest secret of the dashboard, hexadecimal."""


def is_key(text: str) -> bool:
    """Whether a text is a CURVE key."""
    return _KEY.fullmatch(text) is not None


def read_private(path: Path) -> bytes:
    """Return what a file of keys holds.

    Raises:
        ValueError: it cannot be read, is larger than a file of keys, or others may read it.
    """
    try:
        found = path.stat()
        if found.st_mode & 0o077:
            raise ValueError(f"{path} can be read by others; chmod 600 {path}")
        if found.st_size > MOST_BYTES:
            raise ValueError(f"{path} is not a key file: it has {found.st_size} bytes")
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error


def chosen_keys(environment: Mapping[str, str] = os.environ) -> ClientKeys | None:
    """Return the keys that `NANSCOPE_KEYS` names; None where it names none.

    Raises:
        ValueError: the file cannot be used; says why.
    """
    name = environment.get(KEYS)
    return read_client_keys(Path(name)) if name else None


def read_client_keys(path: Path) -> ClientKeys:
    """Return the keys of a file.

    Raises:
        ValueError: it cannot be used; says why.
    """
    data = read_private(path)
    try:
        keys = msgspec.json.decode(data, type=ClientKeys)
        bytes.fromhex(keys.ingest)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not a key file of `dashboard keygen`: {error}") from error
    if not (is_key(keys.public) and is_key(keys.secret) and is_key(keys.server)):
        raise ValueError(f"{path} is not a key file of `dashboard keygen`: a key is not 40 characters of z85")
    return keys
