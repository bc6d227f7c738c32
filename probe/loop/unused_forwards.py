"""Forwards in train mode that no backward follows: the script has left their loss out, perhaps for ever.

Called on the training thread, of such forwards alone: a healthy step pays nothing. Says that losses which are
not finite are left out one after the other, and what a bad batch leaves behind in the buffers of the model.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from types import FrameType
from typing import Final

import torch
from torch import Tensor, nn

from ..actions.step_hooks import StepHooks
from ..attach.call_wrappers import is_own_frame
from ..attach.watched_model import WatchedModel
from ..compat import torch_memory, torch_modes
from ..compat.host_copy import HostCopy, allowed_to_wait, is_capturing
from ..detectors.skipped_losses import bad_buffers, skipped_losses
from ..forensics.capture import RootCapture
from ..forensics.held_outputs import held_values
from ..guard import Guard
from ..incidents.incidents import IncidentReporter
from ..threads.frame_variables import is_library, variables_of
from ..threads.stacks import format_loop_stack, raw_stack
from ..wire import StackFrame

_PART: Final = "unused forwards"
_SUSPICIOUS: Final = 3
"""Forwards in a row, and no backward, after which the variables of the loop are searched for the loss."""
_FRAMES: Final = 3
"""Functions of the script that are searched."""
_STACK_FRAMES: Final = 64
_MOST_PENDING: Final = 64
_STATISTICS: Final = frozenset({"running_mean", "running_var"})


class UnusedForwards:
    """Follows one model's forwards that are not trained on.

    Args:
        model: the watched one.
        incidents: writes what is found.
        hooks: tell of such forwards.
        guard: runs all of it.
    """

    def __init__(
        self, model: WatchedModel, incidents: IncidentReporter, *, hooks: StepHooks, guard: Guard
    ) -> None:
        self._model, self._incidents, self._guard = model, incidents, guard
        self._step = -1
        """At which the row of forwards goes on: no other step begins meanwhile."""
        self._unused = self._bad = 0
        self._pending: deque[HostCopy] = deque(maxlen=_MOST_PENDING)
        """Whether an output or a loss was bad, on its way to the host."""
        self._reported_buffers = False
        hooks.unused_forward.add(self.note)

    def note(self, captures: Sequence[RootCapture], step: int) -> None:
        """No backward has followed these forwards; `step` is under way, or just finished."""
        self._guard.run(_PART, self._note, captures, step)

    def look_at_buffers(self, step: int) -> None:
        """An evaluation was not finite: are the model's buffers?"""
        stack = raw_stack(sys._getframe(1), limit=_STACK_FRAMES)
        self._guard.run(_PART, lambda: self._report_buffers(step, format_loop_stack(stack)))

    def _note(self, captures: Sequence[RootCapture], step: int) -> None:
        if is_capturing():
            return
        if step != self._step:
            self._step, self._unused, self._bad = step, 0, 0
            self._pending.clear()
        self._unused += len(captures)
        with torch_modes.own_operations():
            for capture in captures:
                self._start_looking(capture, sys._getframe(2))
        while self._pending and self._pending[0].is_ready:
            if not bool(self._pending.popleft().read()):
                continue
            self._bad += 1
            stack = format_loop_stack(captures[-1].call_site)
            if self._bad == 1:
                self._report_buffers(step, stack)
            if (finding := skipped_losses(self._bad, since=step, cause=self._cause(self._bad))) is not None:
                self._incidents.report(finding, step, time.time(), stack=stack)

    def _start_looking(self, capture: RootCapture, frame: FrameType | None) -> None:
        """See whether an output is NaN, or a loss in the script's variables is not finite; waits for nothing.

        An output may be infinite on purpose: masked scores.
        """
        outputs = [values for held in capture.outputs if (values := held_values(held)) is not None]
        flags = [value.isnan().any() for value in outputs if value.is_floating_point()]
        if self._unused >= _SUSPICIOUS:
            flags += [~loss.isfinite() for loss in _losses_in(frame)]
        for device in {flag.device for flag in flags}:
            on_device = [flag.reshape(()) for flag in flags if flag.device == device]
            self._pending.append(HostCopy(torch.stack(on_device).any()))
            return  # one answer for each forward: what lies on several devices is asked of the first

    def _cause(self, count: int) -> str:
        """What is not finite by now, as a sentence; waits for the device. Asked where something is said."""
        if skipped_losses(count, since=0, cause="") is None:
            return ""
        with allowed_to_wait():
            parameters = self._model.measure_parameters()
            if not parameters.is_finite:
                norms = zip(self._model.layout.names, parameters.norm, strict=True)
                bad = [name for name, norm in norms if not abs(norm) < float("inf")]
                more = f" and {len(bad) - 1} other parameters hold" if len(bad) > 1 else " holds"
                return f"The cause is in the model: `{bad[0]}`{more} NaN or Inf" if bad else ""
            if names := _bad_buffers_of(self._model.root):
                return f"The cause is in the model: its buffer `{names[0]}` is not finite"
        return "All parameters and buffers of the model are finite: the cause is in the batches or the loss"

    def _report_buffers(self, step: int, stack: Sequence[StackFrame]) -> None:
        if self._reported_buffers:
            return
        with allowed_to_wait():
            names = _bad_buffers_of(self._model.root)
        if names:
            self._reported_buffers = True
            self._incidents.report(bad_buffers(names, step=step), step, time.time(), stack=stack)


def _bad_buffers_of(model: nn.Module) -> list[str]:
    """Names of buffers that hold NaN, and of running statistics that hold Inf: masks do so on purpose."""
    found = []
    with torch_modes.own_operations():
        for name, buffer in model.named_buffers():
            if not (buffer.is_floating_point() and torch_memory.is_plain_strided(buffer)):
                continue
            is_statistic = name.rpartition(".")[2] in _STATISTICS
            bad = ~buffer.isfinite() if is_statistic else buffer.isnan()
            if bool(bad.any()):
                found.append(name)
    return found


def _losses_in(frame: FrameType | None) -> list[Tensor]:
    """Scalars with a graph in the variables of the innermost functions of the script."""
    found: list[Tensor] = []
    for each in islice(_own_functions(frame), _FRAMES):
        with variables_of(each) as values:
            found += [value for value in list(values.values()) if _is_loss(value)]
    return [value.detach() for value in found]


def _own_functions(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        if not (is_own_frame(frame) or is_library(frame)):
            yield frame
        frame = frame.f_back


def _is_loss(value: object) -> bool:
    return type(value) is Tensor and not value.dim() and value.is_floating_point() and value.requires_grad
