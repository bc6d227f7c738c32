"""Writes a bundle: everything that a replay of one step needs on another machine, in one folder.

Called on the training thread at the moment of a fault, before the update; nothing of it runs at an ordinary
step. There the tensors are copied, and nothing is written: a thread does that (`beside.py`). What goes wrong
is said in the event, and never raised into training.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ...compat import torch_modes
from ...delivery.journal.journal import SLOW_S
from ...delivery.recorder.beside import END_WAIT_S, Task
from ...delivery.recorder.recorder import Recorder
from ...errors import BundleError, JournalError
from ...guard import let_pass, outcome_of
from ...settings.places import make_private_folder, write_new_file
from ...wire import Event, Frame, RunStart, member_number
from ...wire.bundle_format import DESCRIPTION, SPOOL, VERSION
from ...wire.event_json import event_json
from ...wire.message_lines import BEING_WRITTEN, BUNDLE
from .chosen_parts import Chosen, choose_parts
from .packed_step import FailingStep, PackedStep

if TYPE_CHECKING:
    from .packer import CopiedTensors, WrittenTensors

_MESSAGE_LIMIT: Final = 4000
_FOLDER: Final = "bundles"
_SPARE_BYTES: Final = 64 * 1024**2
"""Left free on the disk, for the journal."""
WAIT_S: Final = 0.25
"""How long a step waits for its bundle, so that its event says where that is; not at all on a slow disk."""
_FLUSHES: Final = 5
"""How often the newest steps are waited for, on a disk that hangs."""
_LEFTOVER_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What is needed to write a bundle, whatever the training does meanwhile."""

    event: Event
    chosen: Chosen
    contents: dict[str, Any]
    """Of the step, but for the tensors."""
    environment: Any
    frames: Sequence[Frame]
    """The newest ones, which are not in the journal yet."""
    end_seq: int
    """How many records the metrics have, and"""
    waiting: int
    """about how many more wait."""


class BundleWriter:
    """Writes the bundles of one rank, under ``SPOOL/<run>/bundles/<event id>``.

    Args:
        recorder: of the rank; its folder says where, its journal has the newest steps.
        start: of the run.
        most: bundles per run; 0 writes none.
        with_inputs: whether inputs and outputs of the model go in; without them nothing can be replayed.
        limit_bytes: of the tensors; what is beyond is left out (`chosen_parts.py`).
    """

    def __init__(
        self,
        recorder: Recorder,
        start: RunStart,
        *,
        most: int = 3,
        with_inputs: bool = True,
        limit_bytes: int = 1024**3,
    ) -> None:
        self._recorder, self._start = recorder, start
        self._most, self._with_inputs, self._limit_bytes = most, with_inputs, limit_bytes
        self._folder = recorder.folder.parent / _FOLDER
        self._under_way: set[str] = set()
        """The events whose bundles are not written yet."""
        self.written = 0
        """Bundles begun so far; a step that began one is no measure of the others."""

    def attach(self, event: Event, step: FailingStep | None = None, *, is_asked: bool = False) -> Event:
        """Have a bundle written for an event; return the event with a last line that says where it is."""
        line = self.write(event, step, is_asked=is_asked)
        if not line:
            return event
        room = _MESSAGE_LIMIT - len(line) - 1
        return msgspec.structs.replace(event, message=f"{event.message[:room]}\n{line}")

    def write(self, event: Event, step: FailingStep | None = None, *, is_asked: bool = False) -> str:
        """Have a bundle written for an event, and return what its message is to say of it; "" for nothing.

        Args:
            event: what happened; its id names the folder.
            step: what is at hand of the step; None where there is nothing to replay.
            is_asked: somebody has asked for it: its copies may take as long as they take.
        """
        if self._most <= 0:
            return ""
        folder = self._folder / event.id
        try:
            if self._count() >= self._most:
                return f"No bundle: this run has {self._most} already (bundles)."
            with torch_modes.own_operations():
                prepared = self._prepare(event, step, is_asked=is_asked)
        except (OSError, JournalError, BundleError, RuntimeError, TypeError, ValueError) as error:
            let_pass(error)
            return self._failed(error)
        self.written += 1
        self._under_way.add(event.id)
        task = Task(
            lambda: self._write(prepared, folder),
            lambda line: self._recorder.settle(event.id, line),
            f"No bundle yet: {END_WAIT_S:.0f} s after the end of the run it was not complete. "
            f"If the process went on, it is in {folder}",
        )
        self._recorder.beside.add(task)
        is_slow = self._recorder.write_s >= SLOW_S
        line = task.wait(0.0 if is_slow else WAIT_S) or f"{BEING_WRITTEN}{folder}"
        note = prepared.chosen.note
        return f"{note}\n{line}" if note else line

    def _failed(self, error: Exception) -> str:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return f"No bundle was written in {self._folder}: {reason}."

    def _prepare(self, event: Event, step: FailingStep | None, *, is_asked: bool) -> _Prepared:
        """Take what is needed of the step, on its thread."""
        from .environment import describe_environment

        chosen = Chosen()
        if step is not None:
            chosen = choose_parts(
                step, with_inputs=self._with_inputs, limit_bytes=self._limit_bytes, is_asked=is_asked
            )
        # The step's tensors stay with this thread.
        return _Prepared(
            event,
            chosen._replace(packed=None),
            _contents(chosen.packed, "" if step is None else step.stage),
            msgspec.to_builtins(describe_environment()),
            () if step is None else tuple(step.frames()),
            self._recorder.metrics_end,
            self._recorder.waiting,
        )

    def _write(self, prepared: _Prepared, folder: Path) -> str:
        """Write a bundle, whose folder is there once it is whole; say what became of it. Thread beside."""
        _, error = outcome_of(self._write_folder, prepared, folder)
        if error is None:
            outcome = (
                f"Bundle, which cannot be replayed ({prepared.chosen.reason}): "
                if prepared.chosen.reason
                else BUNDLE
            )
            line = f"{outcome}{folder}"
        else:
            line = self._failed(error)
        self._under_way.discard(prepared.event.id)
        return line

    def _write_folder(self, prepared: _Prepared, folder: Path) -> None:
        self._remove_leftovers()
        partial = make_private_folder(self._folder / f".{folder.name}-{os.getpid()}")
        try:
            self._fill(partial, prepared)
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _remove_leftovers(self) -> None:
        """Make room of what a process that was killed in the middle has left; a live one is much quicker."""
        for path in make_private_folder(self._folder).glob(".*"):
            if time.time() - path.stat().st_mtime > _LEFTOVER_S:
                shutil.rmtree(path, ignore_errors=True)

    def _count(self) -> int:
        """How many the run has, of all its ranks and starts, with those that are being written here."""
        found = set(self._under_way)
        if self._folder.is_dir():
            found |= {path.name for path in self._folder.iterdir() if not path.name.startswith(".")}
        return len(found)

    def _fill(self, folder: Path, prepared: _Prepared) -> None:
        """Write everything."""
        from . import last_steps
        from .schema import STATISTICS

        written = self._write_tensors(folder, prepared.chosen.tensors)
        any(self._recorder.flush() for _ in range(_FLUSHES))
        frames = last_steps.newest_frames(
            self._recorder.folder,
            prepared.frames,
            member=member_number(self._start.member),
            end_seq=prepared.end_seq,
            waiting=prepared.waiting,
            last_step=prepared.event.step,
        )
        last_steps.write_spool(folder / SPOOL, self._start, [prepared.event], frames, self._recorder.folder)
        _write_json(folder / STATISTICS, last_steps.scalars_by_step(frames))
        description = {
            "version": VERSION,
            "event": event_json(prepared.event),
            "environment": prepared.environment,
            "run": msgspec.to_builtins(self._start),
            "learning_rates": last_steps.learning_rates(frames),
            "left_out": prepared.chosen.left_out,
            "not_replayable": prepared.chosen.reason,
            "contents": None if written is None else prepared.contents | _of_tensors(written),
        }
        _write_json(folder / DESCRIPTION, description)

    def _write_tensors(self, folder: Path, tensors: CopiedTensors | None) -> WrittenTensors | None:
        from .schema import TENSORS

        if tensors is None:
            return None
        needed, free = tensors.nbytes, shutil.disk_usage(folder).free
        if free < needed + _SPARE_BYTES:
            raise BundleError(f"it takes {needed >> 20:,} MiB, and {free >> 20:,} MiB are free")
        return tensors.write(folder / TENSORS)


def _contents(packed: PackedStep | None, stage: str) -> dict[str, Any]:
    if packed is None:
        return {}
    return {
        "model": msgspec.to_builtins(packed.model),
        "calls": msgspec.to_builtins(packed.calls),
        "gradients": msgspec.to_builtins(packed.gradients),
        "loss": packed.loss,
        "loss_maker": msgspec.to_builtins(packed.loss_maker),
        "batches": msgspec.to_builtins(packed.batches),
        "stage": stage,
    }


def _of_tensors(written: WrittenTensors) -> dict[str, Any]:
    return {
        "tensors": msgspec.to_builtins(written.records),
        "blobs": msgspec.to_builtins(written.blobs),
        "tensors_bytes": written.size,
        "tensors_crc32": written.crc32,
    }


def _write_json(path: Path, value: object) -> None:
    # Names of files may hold halves of characters, which no reader of JSON takes.
    write_new_file(path, json.dumps(value, allow_nan=False, ensure_ascii=False).encode("utf-8", "replace"))
