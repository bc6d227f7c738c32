"""The runs that a store has had, in a small file beside the database: what is missing can be named.

Called by `DuckStore` and by `renewal.py`, under its commit lock. Losing this file loses no data.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

import msgspec

from probe.settings.places import write_private_file

KNOWN_FILE: Final = "nanscope.runs.json"
TELL_S: Final = 7 * 86400.0
"""How long a run that is lost is spoken of."""
_MOST_RUNS: Final = 20_000


class KnownRun(msgspec.Struct, frozen=True, omit_defaults=True):
    """One run."""

    name: str = ""
    lost: float | None = None
    """When it was missing first; UNIX seconds. None while the store has it."""


class _File(msgspec.Struct):
    v: int = 1
    runs: dict[str, KnownRun] = {}


class KnownRuns:
    """Reads the file once, and writes it when runs come and go.

    Args:
        folder: the store's.
        clock: UNIX seconds.
    """

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock = folder / KNOWN_FILE, clock
        self._runs: dict[str, KnownRun] = {}
        with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            self._runs = msgspec.json.decode(self._path.read_bytes(), type=_File).runs

    def missing_in(self, present: Collection[str]) -> dict[str, str]:
        """Note which runs are not there any more; return their names by id."""
        now = self._clock()
        for run, known in list(self._runs.items()):
            if run in present:
                self._runs[run] = msgspec.structs.replace(known, lost=None)
            elif known.lost is None:
                self._runs[run] = msgspec.structs.replace(known, lost=now)
            elif now - known.lost > TELL_S:
                del self._runs[run]
        self._write()
        return {run: known.name for run, known in self._runs.items() if known.lost is not None}

    def has(self, run: str) -> bool:
        """Whether the run and its name are noted."""
        known = self._runs.get(run)
        return known is not None and bool(known.name) and known.lost is None

    def note(self, names: Mapping[str, str]) -> None:
        """The store has these runs: id -> name."""
        new = {run: KnownRun(name) for run, name in names.items()}
        if any(self._runs.get(run) != known for run, known in new.items()):
            self._runs |= new
            self._write()

    def forget(self, run: str) -> None:
        """A run has been deleted: nobody misses it."""
        if self._runs.pop(run, None) is not None:
            self._write()

    def _write(self) -> None:
        while len(self._runs) > _MOST_RUNS:
            del self._runs[next(iter(self._runs))]
        with contextlib.suppress(OSError):  # a full disk: with the next run
            write_private_file(self._path, msgspec.json.encode(_File(runs=self._runs)))
