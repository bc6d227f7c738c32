"""The callbacks of the view of the system: the account, and the doctor's checks. Runs on callback threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from dash import Dash, Input, Output, no_update

from probe.delivery.helper.helper import host_folder, is_listened_to, lock_owner, lock_path
from probe.delivery.journal.journal_reader import written_to
from probe.delivery.journal.ring_rest import read_rest
from probe.delivery.journal.run_folders import list_writers
from probe.wire.event_texts import headline
from probe.wire.findings import Finding

from ... import ids
from ...ingest.run_removal import spool_folder
from ...store.protocol import RunSummary, StepRange, Store, StreamPosition
from ..views.doctor_section import LOOKING, doctor_said, findings_table
from ..views.system_account import NEWEST, StreamAccount, SystemFacts, system_account

_BACK_STEPS: Final = 2000
Check = Callable[[], Sequence[Finding]]


class SystemScope(msgspec.Struct, frozen=True, kw_only=True):
    """What the scripts ask to see; `mark` only makes two askings differ."""

    run: Annotated[str, msgspec.Meta(max_length=4096)]
    rank: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 0
    mark: float = 0


def register_system(app: Dash, store: Store, *, spool: Path | None) -> None:
    """Register the callback of the account.

    Args:
        app: Gets it.
        store: Has the runs.
        spool: Has their journals, where they were written on this machine.
    """
    app.callback(
        Output(ids.SYSTEM_ACCOUNT, "children"), Input(ids.SYSTEM_SCOPE, "data"), prevent_initial_call=True
    )(lambda data: system_view(store, data, spool=spool))


def system_view(store: Store, data: Any, *, spool: Path | None, now: float | None = None) -> Any:
    """Return the sections of a rank; a malformed asking changes nothing."""
    try:
        scope = msgspec.convert(data, SystemScope)
    except msgspec.ValidationError:
        return no_update
    run = next((one for one in store.runs() if one.run == scope.run), None)
    if run is None:
        return []
    # What a run's members write is one account: their journal has no parts.
    folder = None if spool is None else spool_folder(spool, run.recorded_as)
    host = None if folder is None else lock_path(host_folder(folder))
    return system_account(
        SystemFacts(
            start=store.run_start(scope.run, scope.rank),
            now=time.time() if now is None else now,
            readings=_newest(store, run, scope.rank),
            accounts=_accounts(store.positions(run.recorded_as), folder),
            lost_before_write=sum(rank.lost_before_write for rank in run.ranks),
            throttled=_throttled(store, run.recorded_as),
            is_running=any(rank.state in ("running", "silent") for rank in run.ranks),
            helper_pid=None if host is None else lock_owner(host),
            is_listened_to=folder is not None and is_listened_to(folder),
            has_journal=folder is not None,
        )
    )


def _throttled(store: Store, run: str) -> str:
    """The newest word on what is measured less often: lists of events leave it out."""
    found = [event for event in store.events(run) if event.kind == "throttled"]
    return headline(max(found, key=lambda event: event.time)).rstrip(".") if found else ""


def _newest(store: Store, run: RunSummary, rank: int) -> dict[str, float]:
    """The newest value of each series, as far back as a reading may be."""
    last = next((one.last_step for one in run.ranks if one.rank == rank), None)
    first = None if last is None else max(0, last - _BACK_STEPS)
    data = store.scalars(run.run, rank, list(NEWEST), StepRange(first=first), _BACK_STEPS)
    finite = data[np.isfinite(data["mean"].to_numpy(dtype=np.float64))]
    return {str(name): float(rows["mean"].iloc[-1]) for name, rows in finite.groupby("name", sort=False)}


def _accounts(positions: Sequence[StreamPosition], folder: Path | None) -> list[StreamAccount]:
    """The journal is looked at after the store: it is at least as far."""
    writers = {} if folder is None else {writer.name: writer for writer in list_writers(folder)}
    return [_account(one, writers.get(one.key.writer)) for one in positions]


def _account(position: StreamPosition, folder: Path | None) -> StreamAccount:
    writer, stream = position.key.writer, position.key.stream
    # Detail is made of the frames of the metrics, a record of each.
    of_journal = "metrics" if stream == "detail" else stream
    written = None if folder is None else written_to(folder, of_journal)
    if written is not None and folder is not None and of_journal == "metrics":
        # What a killed trainer left in its ring was written, and is read after the journal.
        written += len(read_rest(folder, metrics_end=written))
    return StreamAccount(
        writer=writer,
        stream=stream,
        written=written,
        stored=position.stored,
        gaps=position.gaps,
        dropped=position.dropped,
    )


def register_doctor(app: Dash, *, serving: Check, recording: Check) -> None:
    """Register the two callbacks of the doctor: the quick checks first, then those in a process of their own.

    Args:
        app: Gets them.
        serving: Checks what the dashboard needs, in this process.
        recording: Checks the probe's side; takes seconds, for it imports torch.
    """
    once = threading.Lock()

    def check_serving(_: Any) -> tuple[Any, Any, float]:
        found = serving()
        return findings_table("Serving", found), [], time.time()

    def check_recording(_: Any) -> tuple[Any, str]:
        # Each takes a process with torch in it: however many pages ask, one at a time.
        with once:
            found = recording()
        return findings_table("Recording", found), doctor_said(found)

    app.callback(
        Output(ids.DOCTOR_SERVING, "children"),
        Output(ids.DOCTOR_RECORDING, "children"),
        Output(ids.DOCTOR_NEXT, "data"),
        Input(ids.DOCTOR_ASK, "n_clicks"),
        prevent_initial_call=True,
    )(check_serving)
    app.callback(
        Output(ids.DOCTOR_RECORDING, "children", allow_duplicate=True),
        Output(ids.DOCTOR_SAID, "children"),
        Input(ids.DOCTOR_NEXT, "data"),
        running=[
            (Output(ids.DOCTOR_ASK, "disabled"), True, False),
            (Output(ids.DOCTOR_SAID, "children"), LOOKING, ""),
        ],
        prevent_initial_call=True,
    )(check_recording)
