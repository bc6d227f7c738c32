"""Writes `run.json`: a run's start, for people and for any program. Any rank may write it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from ...errors import JournalError
from ...guard import let_pass, suppressed
from ...settings.places import make_private_folder, write_new_file, write_private_file
from ...wire import RunStart, decode_record, encode_record
from ...wire.ordinary_files import read_ordinary
from .segment_files import MAX_RUN_JSON_BYTES


def run_json(start: RunStart) -> bytes:
    """Return what the file says."""
    return msgspec.json.encode(decode_record(encode_record(start)))


def write_run_json(run_folder: Path, start: RunStart) -> None:
    """Write `run.json` unless another rank has: the first writer wins, a reader sees all of it or none.

    Raises:
        JournalError: the folder cannot be written.
    """
    path = run_folder / "run.json"
    if path.exists():
        return
    temporary = run_folder / f".run.json-{start.rank}-{start.incarnation}"
    try:
        make_private_folder(run_folder)
        write_new_file(temporary, run_json(start))
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    except OSError as error:
        let_pass(error)
        raise JournalError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def note_work_tree(run_folder: Path, work_tree: msgspec.Struct) -> None:
    """Put what has changed in the script's work tree into `run.json`; nothing where that fails."""
    path = run_folder / "run.json"
    with suppressed(OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        start = msgspec.json.decode(read_ordinary(path, MAX_RUN_JSON_BYTES), type=dict)
        write_private_file(path, msgspec.json.encode(start | {"work_tree": msgspec.to_builtins(work_tree)}))
