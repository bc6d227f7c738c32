"""`dashboard quickstart`: trains `quickstart_train.py` as `dashboard run` would; says what was recorded."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from probe.delivery.journal.journal_reader import read_stream
from probe.delivery.journal.run_folders import list_writers
from probe.delivery.run_words import how_to_open, target_of
from probe.errors import WireError
from probe.settings.places import default_spool
from probe.wire import Event, Frame, decode_record

from ..errors import DashboardError
from ..packaged import script_arguments
from ..runs import printable, read_events
from .events import table_lines
from .run import launch_environment

_EACH: Final = ("autograd", "gradient", "memory", "training")
"""`comprehensive` is all of them."""


def run_quickstart(scenario: str, *, spool: Path | None, announce: Callable[[str], None]) -> None:
    """Train one scenario, or all of them, each in a process of its own; print what its journal holds.

    Raises:
        DashboardError: there is no torch, a training failed, or it recorded nothing.
    """
    if find_spec("torch") is None:
        raise DashboardError(
            "The quick start trains with PyTorch, which is not installed here: pip install torch==2.13.0"
        )
    places = (spool or default_spool()).absolute()
    folders = []
    for name in _EACH if scenario == "comprehensive" else (scenario,):
        folders.append(_train(name, places))
        for line in _found_lines(name, folders[-1]):
            announce(line)
    for folder in folders:
        announce(f"the list again: dashboard events {target_of(folder)}")
    announce(f"the charts: {how_to_open(folders[-1])}")


def _train(scenario: str, spool: Path) -> Path:
    """Train to the end; return the run's folder. The script shows its progress itself, on a terminal only."""
    run = f"quickstart-{scenario}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    environment = {**os.environ, "NANSCOPE_RUN": run, "NANSCOPE_SPOOL": str(spool), "NANSCOPE_QUIET": "1"}
    environment |= launch_environment(environment, is_quiet=True)
    command = [sys.executable, *script_arguments("quickstart_train.py"), scenario]
    code = subprocess.run(command, env=environment, check=False).returncode
    if code != 0:
        raise DashboardError(f"The training failed with exit code {code}; its message is above.")
    if not (spool / run).is_dir():
        raise DashboardError(
            f"Nothing was recorded in {spool}: is recording switched off, by NANSCOPE_OFF or NANSCOPE_LEVEL?"
        )
    return spool / run


def _found_lines(scenario: str, folder: Path) -> Iterator[str]:
    """What the journal says of one training: its length, its loss, and what was a warning or worse."""
    losses = _losses(folder)
    course = f", loss {losses[0]:.4g} at first and {losses[-1]:.4g} at last" if losses else ""
    yield f"{scenario}: {len(losses):,} steps{course}"
    events = read_events([folder]).events
    anomalies = [event for event in events if event.severity != "info"]
    if anomalies:
        yield from table_lines(anomalies)
        yield from _advice_lines(anomalies)
    else:
        yield "    no warnings"
    yield ""


def _advice_lines(events: Sequence[Event]) -> Iterator[str]:
    """The first sentence of advice for each kind."""
    first = {event.kind: event.advice[0] for event in reversed(events) if event.advice}
    for kind in dict.fromkeys(event.kind for event in events if event.kind in first):
        yield f"    {kind}: {printable(first[kind])}"


def _losses(folder: Path) -> list[float]:
    """The loss of each recorded step, in order."""
    losses: dict[int, float] = {}
    for writer in list_writers(folder):
        for _, data in read_stream(writer, "metrics"):
            try:
                record = decode_record(data)
            except WireError:
                continue
            if isinstance(record, Frame) and "loss" in record.scalars:
                losses[record.step] = record.scalars["loss"]
    return [losses[step] for step in sorted(losses)]
