"""`dashboard clean`: deletes runs from the spool and the store; never one that is still written.

Through the running server where one owns the store. Nothing heavy is imported unless no server runs.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from probe.delivery.spool_care import is_starred, is_written, remove_run_folder, room_of
from probe.settings.places import default_spool, read_serve_state, state_folder
from probe.wire.findings import size_text
from probe.wire.progress import Progress

from ..client import Client, ClientError
from ..errors import DashboardError, UnknownRunError
from ..runs import RunFolder, printable, problem_lines, resolve_runs
from ..serving.credentials import load_credentials
from ..serving.running import STORE_VARIABLE, find_server, find_server_of, remembered_data
from ..store.run_row import RunRow

_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_AT_ONCE: Final = 20
"""Runs that the store is asked to delete in one request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One run, in the spool, in the store or in both."""

    run: str
    name: str
    training: str
    """The same for the models of one training."""
    written_s: float
    """When it was last written; UNIX seconds."""
    folder: Path | None
    size_bytes: int
    """In the spool."""
    is_running: bool
    is_kept: bool
    """Starred: only its name deletes it."""


def age_seconds(text: str) -> float:
    """Return the seconds of an age such as ``14d``, ``36h`` or ``2w``.

    Raises:
        ValueError: it is none.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not an age; give a number with s, m, h, d or w, such as 14d")
    return float(found[1]) * _UNITS_S[found[2]]


def clean(
    targets: Sequence[str],
    *,
    older_than_s: float | None,
    keep: int | None,
    spool: Path | None,
    data: Path | None,
    confirm: Callable[[str], bool],
    announce: Callable[[str], None],
    notice: Callable[[str], None],
) -> None:
    """Choose runs, say which and how much, ask, and delete them.

    Args:
        targets: Ids, unique prefixes, names or folders of runs; none stands for every run.
        older_than_s: Only trainings in which nothing has been written for so long.
        keep: Not the newest so many trainings.
        spool: Folder of the journals; None is the default one.
        data: Folder of the store; None is the default one.
        confirm: Is asked a question; False deletes nothing.
        announce: Gets the lines of what is chosen and of what was done.
        notice: Gets a line per run that stays though it was asked for.

    Raises:
        DashboardError: nothing says which runs are meant, a run is unknown, or the store cannot be changed.
    """
    spool = spool or default_spool()
    with_store = _Store(data)
    everything = _candidates(spool, with_store)
    if not targets and older_than_s is None and keep is None:
        raise DashboardError(
            f"which runs? There are {_sum(everything)}; give ids or names, --older-than 14d, or --keep 5"
        )
    for line in problem_lines((), spool=spool):
        notice(line)
    chosen = _chosen(everything, targets, spool, older_than_s=older_than_s, keep=keep)
    doomed = []
    for one in chosen:
        if one.is_running:
            notice(f"{one.run} is still being written by its training or helper, so it is kept.")
        elif one.is_kept and not targets:
            notice(f"{one.run} is starred, so it is kept unless it is named.")
        else:
            doomed.append(one)
    if not doomed:
        announce("Nothing to delete.")
        return
    for one in doomed:
        announce(_line(one))
    if not confirm(f"Delete {_sum(doomed)}, from the spool and from the store?"):
        announce("Nothing was deleted.")
        return
    removed = _delete(doomed, [with_store, *_other_stores(data, with_store)], notice)
    announce(f"Deleted {_sum(removed)}.")


def _delete(
    doomed: Sequence[Candidate], stores: Sequence[_Store], notice: Callable[[str], None]
) -> list[Candidate]:
    """First the journals, or a dashboard would read them in again; then the rows of each store.

    Returns:
        Those of which nothing is left.
    """
    removed = []
    with Progress("Deleting", len(doomed)) as progress:
        for one in doomed:
            if _delete_folder(one, notice):
                removed.append(one)
            progress.advance()
    refused: dict[str, str] = {}
    with Progress("Deleting from the store", len(removed) * len(stores)) as progress:
        for first in range(0, len(removed), _AT_ONCE):
            part = [one.run for one in removed[first : first + _AT_ONCE]]
            for store in stores:
                try:
                    found = store.remove(part)
                except DashboardError as error:
                    if store is stores[0]:
                        raise
                    found = dict.fromkeys(part, str(error))
                for run, reason in found.items():
                    notice(f"{run} is deleted from the spool; it stays in {store.name}: {reason}")
                refused |= found
                progress.advance(len(part))
    return [one for one in removed if one.run not in refused]


def _other_stores(data: Path | None, with_store: _Store) -> list[_Store]:
    """The stores of other data folders that were served, where nothing says which one is meant."""
    if data is not None:
        return []
    own = with_store.data.resolve()
    return [_Store(folder) for folder in remembered_data() if folder.resolve() != own]


def _delete_folder(one: Candidate, notice: Callable[[str], None]) -> bool:
    """Whether nothing of the run is in the spool any more."""
    if one.folder is None:
        return True
    if is_written(one.folder):
        notice(f"{one.run} is being written again, so it is kept.")
        return False
    try:
        remove_run_folder(one.folder)
    except OSError as error:
        notice(f"{one.run} stays: {one.folder}: {error.strerror or error}")
        return False
    return True


def _candidates(spool: Path, with_store: _Store) -> list[Candidate]:
    """All runs of spool and store, the newest last."""
    stored = with_store.runs()
    folders = {run.run: run for run in (resolve_runs(str(spool.resolve())) if spool.is_dir() else [])}
    found = []
    for run in {**folders, **stored}:
        folder, row = folders.get(run), stored.get(run)
        room = room_of(folder.path) if folder is not None else None
        found.append(
            Candidate(
                run=run,
                name=(row.name if row else "") or (folder.name if folder else ""),
                training=_training(folder) or (row.group if row else "") or run,
                written_s=room.written_s if room else row.written if row else 0.0,
                folder=folder.path if folder else None,
                size_bytes=room.size_bytes if room else 0,
                is_running=(row is not None and row.state == "running")
                or (folder is not None and is_written(folder.path)),
                is_kept=(row is not None and row.starred) or (folder is not None and is_starred(folder.path)),
            )
        )
    return sorted(found, key=lambda one: (one.written_s, one.run))


def _training(folder: RunFolder | None) -> str:
    return "" if folder is None else str(getattr(folder, "group", "") or folder.run)


def _chosen(
    everything: Sequence[Candidate],
    targets: Sequence[str],
    spool: Path,
    *,
    older_than_s: float | None,
    keep: int | None,
) -> list[Candidate]:
    """Narrow all runs down to those that are asked for; a training goes or stays as a whole."""
    chosen = list(everything)
    if targets:
        named = {run for target in targets for run in _named(target, everything, spool)}
        chosen = [one for one in chosen if one.run in named]
    newest = {one.training: one.written_s for one in everything}  # the newest last
    if older_than_s is not None:
        before_s = time.time() - older_than_s
        chosen = [one for one in chosen if newest[one.training] < before_s]
    if keep is not None:
        ranked = sorted(newest, key=lambda training: newest[training])
        kept = set(ranked[len(ranked) - keep :]) if keep else set()
        chosen = [one for one in chosen if one.training not in kept]
    return chosen


def _named(target: str, everything: Sequence[Candidate], spool: Path) -> list[str]:
    """Return the runs that an argument means; those that only the store has answer to id, prefix and name."""
    try:
        found = [run.run for run in resolve_runs(target, spool=spool)]
        known = {one.run for one in everything}
        if set(found) <= known:
            return found
        raise DashboardError(f"{target} is not in the spool {spool}; give --spool its folder.")
    except UnknownRunError:
        only_stored = [one for one in everything if one.folder is None]
        exact = [one.run for one in only_stored if target in (one.run, one.name)]
        found = exact or [one.run for one in only_stored if one.run.startswith(target)]
        if len(found) != 1:
            raise
        return found


def _line(one: Candidate) -> str:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.written_s)) if one.written_s else "?"
    where = size_text(one.size_bytes) if one.folder is not None else "in the store alone"
    text = f"  {one.run}  {one.name or '?'}  {when}  {where}"
    return printable(text)


def _sum(runs: Sequence[Candidate]) -> str:
    size = size_text(sum(one.size_bytes for one in runs))
    return f"{len(runs):,} {'run' if len(runs) == 1 else 'runs'} ({size} in the spool)"


class _Store:
    """The store's runs: through the running server, or from what it would open where none runs."""

    def __init__(self, data: Path | None) -> None:
        running = find_server() if data is None else find_server_of(data)
        self.data = data or state_folder() / "data"
        self._url = "" if data is not None else os.environ.get(STORE_VARIABLE, "")
        state = read_serve_state()
        self._client: Client | None = None
        if running is not None:
            self._client = Client(running.page, running.token, certificate=running.certificate)
        elif state is not None and data is None:
            # One that has left no note is asked with the token of the environment.
            self._client = _client_of(state.page)

    @property
    def name(self) -> str:
        """What a sentence calls it."""
        return "the store" if self._url else f"the store in {self.data}"

    def runs(self) -> dict[str, RunRow]:
        """Return id -> what is known: name, state, when it was last written."""
        if self._client is not None:
            return {row.run: row for row in self._client.runs()}
        if not self._is_there():
            return {}
        from ..ingest.run_removal import run_rows
        from ..store.engines import open_store

        with contextlib.closing(open_store(self.data, self._url)) as store:
            return {row.run: row for row in run_rows(store)}

    def remove(self, runs: Iterable[str]) -> dict[str, str]:
        """Delete runs; return those that were refused, with the reason."""
        wanted = list(runs)
        if self._client is not None:
            return self._client.remove_stored(wanted)
        if not self._is_there():
            return {}
        from ..ingest.run_removal import remove_runs
        from ..store.engines import open_store

        with contextlib.closing(open_store(self.data, self._url)) as store:
            return remove_runs(store, wanted)

    def _is_there(self) -> bool:
        return bool(self._url) or (self.data / "nanscope.duckdb").exists()


def _client_of(page: str) -> Client | None:
    """A server that has left no note: it is asked where something answers under its address."""
    client = Client(page, load_credentials(os.environ).token, timeout_s=3.0)
    try:
        client.health()
    except ClientError as error:
        if error.status != 401:  # it asks for its token, and so is there
            return None
    return Client(page, load_credentials(os.environ).token)
