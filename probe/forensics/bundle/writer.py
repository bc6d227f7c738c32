"""Writes a bundle: everything that a replay of one step needs on another machine, in one folder.

Called on the training thread at the moment of a fault, before the update; nothing of it runs at an ordinary
step. What goes wrong here is said in the event, and never raised into training.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
from torch import Tensor, nn

from ...attach.layout import clean_name
from ...compat import torch_modes
from ...delivery.recorder.recorder import Recorder
from ...errors import BundleError, JournalError, ReplayError
from ...settings.places import make_private_folder, write_private_file
from ...wire import Event, Frame, RunStart, member_number
from ...wire.bundle_format import DESCRIPTION, SPOOL, VERSION
from ...wire.event_json import event_json
from ...wire.message_lines import BUNDLE
from ..capture import RootCapture
from .black_box import PastBatch

if TYPE_CHECKING:
    from .calls import CallPacker
    from .packer import TensorPacker, WrittenTensors
    from .schema import Batch, Call, Gradient, LossMaker, Model

_MESSAGE_LIMIT: Final = 4000
_FOLDER: Final = "bundles"
_SPARE_BYTES: Final = 64 * 1024**2
"""Left free on the disk, for the journal."""
_LEFTOVER_S: Final = 3600.0
_INPUTS_LEFT_OUT: Final = "its inputs were left out (bundle_inputs=False)"


class FailingStep(Protocol):
    """What is at hand of the step that went wrong."""

    @property
    def root(self) -> nn.Module:
        """The naming root."""
        ...

    @property
    def captures(self) -> Sequence[RootCapture]:
        """In the order of the calls; one that raised is not finished."""
        ...

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]:
        """Those that are watched, by name."""
        ...

    @property
    def loss(self) -> Tensor | None:
        """The newest scalar that backward was called on, detached."""
        ...

    @property
    def stage(self) -> str:
        """Which gradients the parameters have."""
        ...

    @property
    def no_replay_reason(self) -> str | None:
        """Why the step cannot be replayed, if that is known already."""
        ...

    @property
    def past_batches(self) -> Sequence[PastBatch]:
        """What the steps before were called with, the oldest first."""
        ...

    @property
    def frames(self) -> Callable[[], Sequence[Frame]]:
        """Gives the newest frames, which are not in the journal yet."""
        ...


class _Packed(msgspec.Struct, frozen=True):
    """What is to be written of a step."""

    model: Model
    calls: list[Call]
    gradients: list[Gradient] | None
    loss: int | None
    tensors: TensorPacker
    loss_maker: LossMaker | None
    batches: list[Batch]
    without: list[str]
    """Of the loss and the batches before: what could not be written, in words."""


class BundleWriter:
    """Writes the bundles of one rank, under ``SPOOL/<run>/bundles/<event id>``.

    Args:
        recorder: of the rank; its folder says where, its journal has the newest steps.
        start: of the run.
        most: bundles per run; 0 writes none.
        with_inputs: whether inputs and outputs of the model go in; without them nothing can be replayed.
        limit_bytes: of the tensors; above it gradients are left out first, then everything.
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
        self.written = 0
        """Bundles written so far; a step that wrote one is no measure of the others."""

    def attach(self, event: Event, step: FailingStep | None = None) -> Event:
        """Write a bundle for an event, and return the event with a last line that says where it is."""
        line = self.write(event, step)
        if not line:
            return event
        room = _MESSAGE_LIMIT - len(line) - 1
        return msgspec.structs.replace(event, message=f"{event.message[:room]}\n{line}")

    def write(self, event: Event, step: FailingStep | None = None) -> str:
        """Write a bundle for an event, and return what its message is to say of it; "" for nothing.

        Args:
            event: what happened; its id names the folder.
            step: what is at hand of the step; None where there is nothing to replay.
        """
        if self._most <= 0:
            return ""
        folder = self._folder / event.id
        try:
            if self._count() >= self._most:
                return f"No bundle: this run has {self._most} already (bundles)."
            self._remove_leftovers()
            partial = make_private_folder(self._folder / f".{event.id}-{os.getpid()}")
            try:
                with torch_modes.own_operations():
                    outcome = self._fill(partial, event, step)
                partial.rename(folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
        except (OSError, JournalError, BundleError, RuntimeError, TypeError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            return f"No bundle was written in {self._folder}: {reason}."
        self.written += 1
        return f"{outcome}{folder}"

    def _remove_leftovers(self) -> None:
        """Make room of what a process that was killed in the middle has left; a live one is much quicker."""
        for path in make_private_folder(self._folder).glob(".*"):
            if time.time() - path.stat().st_mtime > _LEFTOVER_S:
                shutil.rmtree(path, ignore_errors=True)

    def _count(self) -> int:
        if not self._folder.is_dir():
            return 0
        return sum(not path.name.startswith(".") for path in self._folder.iterdir())

    def _fill(self, folder: Path, event: Event, step: FailingStep | None) -> str:
        """Write everything; return in a few words what it is good for."""
        from . import last_steps
        from .environment import describe_environment
        from .schema import STATISTICS

        reason, left_out = "nothing of the step was at hand", list[str]()
        packed: _Packed | None = None
        if step is not None:
            packed, reason, left_out = self._pack(step)
        written = None if packed is None else self._write_tensors(folder, packed)
        self._recorder.flush()
        unwritten = () if step is None else step.frames()
        member = member_number(self._start.member)
        frames = last_steps.newest_frames(self._recorder.folder, unwritten, member=member)
        last_steps.write_spool(folder / SPOOL, self._start, [event], frames, self._recorder.folder)
        _write_json(folder / STATISTICS, last_steps.scalars_by_step(frames))
        description = {
            "version": VERSION,
            "event": event_json(event),
            "environment": msgspec.to_builtins(describe_environment()),
            "run": msgspec.to_builtins(self._start),
            "learning_rates": last_steps.learning_rates(frames),
            "left_out": left_out,
            "not_replayable": reason,
            "contents": _contents(packed, written, "" if step is None else step.stage),
        }
        _write_json(folder / DESCRIPTION, description)
        return f"Bundle, which cannot be replayed ({reason}): " if reason else BUNDLE

    def _write_tensors(self, folder: Path, packed: _Packed) -> WrittenTensors:
        from .schema import TENSORS

        needed = packed.tensors.nbytes
        free = shutil.disk_usage(folder).free
        if free < needed + _SPARE_BYTES:
            raise BundleError(f"it takes {needed >> 20:,} MiB, and {free >> 20:,} MiB are free")
        return packed.tensors.write(folder / TENSORS)

    def _pack(self, step: FailingStep) -> tuple[_Packed | None, str, list[str]]:
        """Choose what goes in; return it, why it cannot be replayed, and what was left out."""
        reason = step.no_replay_reason or ("" if self._with_inputs else _INPUTS_LEFT_OUT)
        left_out = [] if self._with_inputs else ["inputs and outputs"]
        try:
            packed = _packed(step, with_calls=not reason, with_batches=self._with_inputs)
        except BundleError as error:
            reason = reason or str(error)
            try:
                packed = _packed(step, with_calls=False, with_batches=self._with_inputs)
            except BundleError as state_error:
                return None, reason, [*left_out, f"the model: {state_error}"]
        whole = packed.tensors.nbytes
        if whole <= self._limit_bytes:
            return packed, reason, left_out + packed.without
        for with_gradients in (True, False):
            if with_gradients and not packed.batches:
                continue
            left_out.append("the inputs of the steps before" if with_gradients else "gradients")
            packed = _packed(step, with_calls=not reason, with_batches=False, with_gradients=with_gradients)
            if packed.tensors.nbytes <= self._limit_bytes:
                return packed, reason, left_out
        too_large = f"it would take {whole >> 20:,} MiB, above bundle_limit_bytes ({self._limit_bytes:,})"
        return None, reason or too_large, [f"all tensors: {too_large}"]


def _packed(
    step: FailingStep, *, with_calls: bool, with_batches: bool, with_gradients: bool = True
) -> _Packed:
    """Take in what a step consists of.

    Raises:
        BundleError: something cannot be written.
    """
    from .calls import CallPacker
    from .model_state import describe_model, named_modules
    from .packer import TensorPacker

    tensors = TensorPacker()
    captures = step.captures if with_calls else ()
    if with_calls and not captures:
        raise BundleError("no forward of the model was captured in this step")
    top = _top_of(step.root, captures)
    modules: dict[int, str] = {}
    for name, module in named_modules(top):
        modules.setdefault(id(module), name)
    names: dict[int, str] = {}
    for name, parameter in top.named_parameters():
        names[id(parameter)] = clean_name(name)
    model = describe_model(top, modules[id(step.root)], tensors, with_tensors=with_calls)
    calls = CallPacker(modules, names, tensors, with_outputs=True)
    gradients = None
    packed_calls = [calls.pack(capture, number) for number, capture in enumerate(captures)]
    if with_gradients:
        gradients = [_gradient(name, parameter, tensors) for name, parameter in step.parameters.items()]
    loss = None if step.loss is None else tensors.add(step.loss, "loss")
    maker, problem = _loss_maker(captures, calls)
    batches, without = _batches(step.past_batches if with_batches else (), calls)
    return _Packed(model, packed_calls, gradients, loss, tensors, maker, batches, problem + without)


def _loss_maker(captures: Sequence[RootCapture], calls: CallPacker) -> tuple[LossMaker | None, list[str]]:
    """The lines that made the loss; a model that returns its loss needs none."""
    from .loss_lines import describe_loss

    if not captures:
        return None, []
    try:
        return describe_loss(captures, sys._getframe(), calls.encoder("loss")), []
    except BundleError as error:
        return None, [f"the lines that made the loss: {error}"]


def _batches(past: Sequence[PastBatch], calls: CallPacker) -> tuple[list[Batch], list[str]]:
    """What the steps before were called with; and of which that cannot be said, with the reason."""
    batches: list[Batch] = []
    without: list[str] = []
    for batch in past:
        try:
            for number, held in enumerate(batch.arguments):
                batches.append(calls.pack_batch(held, step=batch.step, number=number))
        except (BundleError, ReplayError) as error:
            without.append(f"the inputs of step {batch.step}: {error}")
    return batches, without


def _top_of(root: nn.Module, captures: Sequence[RootCapture]) -> nn.Module:
    """The module that has the watched model and all that was called in it.

    Raises:
        BundleError: there is none, or one that was called is gone.
    """
    try:
        called = [root, *(capture.root for capture in captures)]
    except ReplayError as error:
        raise BundleError(str(error)) from error
    for candidate in called:
        inside = set(map(id, candidate.modules()))
        if all(id(module) in inside for module in called):
            return candidate
    raise BundleError("the step called modules outside of the watched model, which no single one holds")


def _gradient(name: str, parameter: nn.Parameter, tensors: TensorPacker) -> Gradient:
    from .schema import Gradient

    if parameter.grad is None:
        return Gradient(name=name, tensor=None)
    try:
        return Gradient(name=name, tensor=tensors.add(parameter.grad, f"gradients/{name}"))
    except BundleError as error:
        raise BundleError(f"the gradient of {name} is {error}") from error


def _contents(packed: _Packed | None, written: WrittenTensors | None, stage: str) -> object:
    if packed is None or written is None:
        return None
    return {
        "model": msgspec.to_builtins(packed.model),
        "calls": msgspec.to_builtins(packed.calls),
        "gradients": msgspec.to_builtins(packed.gradients),
        "loss": packed.loss,
        "loss_maker": msgspec.to_builtins(packed.loss_maker),
        "batches": msgspec.to_builtins(packed.batches),
        "stage": stage,
        "tensors": msgspec.to_builtins(written.records),
        "blobs": msgspec.to_builtins(written.blobs),
        "tensors_bytes": written.size,
        "tensors_crc32": written.crc32,
    }


def _write_json(path: Path, value: object) -> None:
    # Names of files may hold halves of characters, which no reader of JSON takes.
    write_private_file(
        path, json.dumps(value, allow_nan=False, ensure_ascii=False).encode("utf-8", "replace")
    )
