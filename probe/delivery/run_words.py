"""What a session says on stderr: the line at its start, and the one at the end when something was found.

Pure texts, and when they are due. Called by `session.py`; imports nothing of torch.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..settings.places import ServeState, default_spool, read_serve_state
from .recorder.tally import Tally
from .stderr import say

if TYPE_CHECKING:
    from .recorder.recorder import Recorder


_PATIENCE_S: Final = 0.25
"""How long rank 0 waits at its end for the last words of ranks that have yet to end."""


def start_line(run_folder: Path, model: str, environment: Mapping[str, str] = os.environ) -> str:
    """Say where a session records, and how to open it; never the page's token: stderr lands in shared logs.

    Args:
        run_folder: `SPOOL/<run>`.
        model: what the script calls it.
        environment: of the process.
    """
    how = how_to_open(run_folder, environment)
    return f"recording run {run_folder.name} of {model}; in {run_folder}, {how}"


def how_to_open(run_folder: Path, environment: Mapping[str, str] = os.environ) -> str:
    """Say where the page of a run is, or by which command there will be one; without the page's token."""
    serving = read_serve_state(environment)
    if serving is not None and is_alive(serving.pid):
        of_others = _why_there(serving, run_folder.parent)
        return f"watch it at {serving.page} (with its token: dashboard url){of_others}"
    how = "open with: dashboard serve"
    if not _is_usual(run_folder.parent, environment):
        how += f" --spool {shlex.quote(str(run_folder.parent))}"
    return how


def _why_there(serving: ServeState, spool: Path) -> str:
    """Say why a dashboard with another spool shows a run; empty where it has the same."""
    if not serving.spool or Path(serving.spool).resolve() == spool.resolve():
        return ""
    return (
        f"; that dashboard (process {serving.pid}, spool {serving.spool}) receives all trainings of your "
        "account: to keep this one out of it, set NANSCOPE_CONNECT= to nothing"
    )


def target_of(run_folder: Path, environment: Mapping[str, str] = os.environ) -> str:
    """What commands take for a run: its id where it lies in the usual spool, else its folder."""
    is_usual = _is_usual(run_folder.parent, environment)
    return run_folder.name if is_usual else shlex.quote(str(run_folder))


def end_line(
    tally: Tally, run_folder: Path, environment: Mapping[str, str] = os.environ, *, has_ranks: bool = False
) -> str | None:
    """Say how many warnings and worse there were, the worst and what led to it, and how to see the rest.

    None without any. The worst is the event that the page's verdict line names, of all models of the run.

    Args:
        tally: of the whole training.
        run_folder: `SPOOL/<run>`.
        environment: of the process.
        has_ranks: there were several; the line names the one that the worst is of.
    """
    worst = tally.worst
    if worst is None:
        return None
    target = target_of(run_folder, environment)
    which = "this" if tally.total == 1 else "the worst" if tally.has_critical else "the first"
    counts = tally.counts
    if has_ranks:
        counts += f" on {tally.ranks} ranks" if tally.ranks > 1 else ""
        which += f", on rank {tally.worst_rank}"
    if tally.worst_model is not None:
        which += f", model {tally.worst_model:,}"
    led = "" if tally.led_to_worst is None else f". {tally.led_to_worst}"
    return f"{counts}; {which}: {worst}{led}; see: dashboard events {target}"


class Ending:
    """Says one line for the sessions of a group that ran together, when the last of them has ended."""

    def __init__(self) -> None:
        self._running: list[Recorder] = []
        """Sessions that may speak."""
        self._ended: list[Recorder] = []

    def let_speak(self, recorder: Recorder, *, may: bool) -> None:
        """Say whether a running session may speak: it is of rank 0, and was not asked to be quiet."""
        if recorder in self._running:
            self._running.remove(recorder)
        if may:
            self._running.append(recorder)

    def speaks(self, recorder: Recorder) -> bool:
        """Whether a running session may speak."""
        return recorder in self._running

    def end(self, recorder: Recorder) -> None:
        """A session has written its end; it may be one that is to be quiet."""
        if recorder not in self._running:
            return
        self._running.remove(recorder)
        self._ended.append(recorder)
        if any(other.group == recorder.group for other in self._running):
            return
        together = [other for other in self._ended if other.group == recorder.group]
        self._ended = [other for other in self._ended if other.group != recorder.group]
        tally = Tally().add(other.tally for other in together)
        has_ranks = any(other.world_size > 1 for other in together)
        if has_ranks:
            _add_ranks(tally, together)
        line = end_line(tally, _folder_of(together), has_ranks=has_ranks)
        if line is not None:
            say(line)

    def forget(self) -> None:
        """In a forked child: they are the parent's."""
        self._running, self._ended = [], []


def _add_ranks(tally: Tally, together: list[Recorder]) -> None:
    """Note what the other ranks of this host have written of the same runs."""
    from .journal.rank_events import events_beside

    deadline = time.monotonic() + _PATIENCE_S
    for recorder in together:
        for event in events_beside(recorder.folder, patience_s=deadline - time.monotonic()):
            tally.note(event)


def _folder_of(together: list[Recorder]) -> Path:
    """The run that leads to all of them: the group's first, where it lies beside them."""
    own = together[0].folder.parent
    first = own.with_name(together[0].group)
    return first if len(together) > 1 and first.is_dir() else own


def is_alive(pid: int) -> bool:
    """Whether a process of this machine has the number."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _is_usual(spool: Path, environment: Mapping[str, str]) -> bool:
    """Whether commands look there by themselves, in another shell too."""
    usual = default_spool({name: value for name, value in environment.items() if name != "NANSCOPE_SPOOL"})
    return spool == usual.resolve()
