"""Requests to a trainer as files in its own folder, ``SPOOL/<run>/<rank>-<incarnation>/control``.

Written by the helper or by `dashboard resume`, taken by the trainer's recorder thread, which answers there.
The folder is the user's own (0700): who can write there can do anything to the process already.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from ...guard import let_pass, suppressed
from ...settings.places import make_private_folder, write_private_file
from ...wire.ordinary_files import read_ordinary

_FOLDER: Final = "control"
_ASK, _ANSWER = ".ask", ".answer"
MOST_WAITING: Final = 64
MOST_BYTES: Final = 8 * 1024**2
"""A request or an answer that is larger is not read."""


def new_id() -> str:
    """Return an id for a request; in the order of time, 32 hexadecimal digits."""
    return f"{time.time_ns():016x}{os.urandom(8).hex()}"


def put_request(writer_folder: Path, request_id: str, data: bytes) -> None:
    """Leave a request for a trainer.

    Raises:
        OSError: it cannot be written.
    """
    write_private_file(make_private_folder(writer_folder / _FOLDER) / f"{request_id}{_ASK}", data)


def request_folder(writer_folder: Path) -> Path:
    """Return the folder in which requests to a trainer wait; it is there once one has come."""
    return writer_folder / _FOLDER


def take_requests(writer_folder: Path) -> list[tuple[str, bytes]]:
    """Take what waits, in order, as (id, data)."""
    try:
        waiting = sorted((writer_folder / _FOLDER).glob(f"[!.]*{_ASK}"))
    except OSError as error:
        let_pass(error)
        return []
    taken = []
    for path in waiting[:MOST_WAITING]:
        with suppressed(OSError):
            try:
                data = read_ordinary(path, MOST_BYTES)
            finally:
                # Gone before it is followed: nothing is done twice, and what was withdrawn is not done.
                path.unlink()
            taken.append((path.name.removesuffix(_ASK), data))
    return taken


def put_answer(writer_folder: Path, request_id: str, data: bytes) -> None:
    """Leave an answer for who asked.

    Raises:
        OSError: it cannot be written.
    """
    write_private_file(writer_folder / _FOLDER / f"{request_id}{_ANSWER}", data)


def take_answer(writer_folder: Path, request_id: str) -> bytes | None:
    """Take the answer to a request; None while there is none."""
    path = writer_folder / _FOLDER / f"{request_id}{_ANSWER}"
    try:
        data = read_ordinary(path, MOST_BYTES)
        path.unlink()
    except OSError as error:
        let_pass(error)
        return None
    return data


def withdraw(writer_folder: Path, request_id: str) -> None:
    """Take back a request that nobody has answered, so that it is not followed later."""
    for suffix in (_ASK, _ANSWER):
        (writer_folder / _FOLDER / f"{request_id}{suffix}").unlink(missing_ok=True)
    # A trainer that has ended leaves no empty folder behind.
    with suppressed(OSError):
        (writer_folder / _FOLDER).rmdir()
