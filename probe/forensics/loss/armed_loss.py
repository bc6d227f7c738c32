"""Has the losses of the next steps watched, op by op, after one that nothing could tell the origin of.

The training loop says where a forward returns and where the loss is complete; `loss_watch.py` looks at the
ops between, `loss_backward.py` at what they send back. Training thread; `stop` from any. While it is not
armed a step asks `is_on` a few times, and that is all.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from torch import Tensor, nn

from ...compat import torch_private
from ...guard import Guard
from ...threads.stacks import RawFrame, format_frames, inner_torch_removed, raw_stack
from ...wire import Origin
from ..capture import RootCapture
from ..origin import descendants
from ..tensor_facts import classify

if TYPE_CHECKING:
    from ..op_recorder import OpNote
    from ..replay import Replay
    from .loss_backward import LossBackward
    from .loss_watch import LossWatch, RunningModules

STEPS: Final = 20
"""Steps that are watched after one whose origin could not be told."""
ARMS: Final = 3
"""Times that a run is armed."""
_BUDGET_NS: Final = 5_000_000_000
"""Of a run, for looking at ops."""
_STACK_FRAMES: Final = 256
_ARMED: Final = (
    "armed: the losses of the next {steps} steps are watched op by op, so that the next occurrence can be "
    "named"
)
_COMPILED: Final = "not armed for the next occurrence: the loss, or a part of it, runs compiled"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """The op that a watched loss went wrong at."""

    note: OpNote
    value_kind: str
    after: tuple[str, ...]
    """Modules that the values went on to."""
    backward: int
    """Number of the backward within its step, from 0."""
    site: Sequence[RawFrame]
    """Of the call of backward."""


@dataclass(frozen=True, slots=True)
class _Sending:
    """One backward of the step."""

    nodes: LossBackward
    number: int
    site: Sequence[RawFrame]


class ArmedLoss:
    """Watches the losses of a few steps when it is armed.

    Attributes:
        is_on: whether it is.
        steps: how many steps were watched so far: they took longer.
    """

    def __init__(self, guard: Guard, *, intended: Sequence[str] = ()) -> None:
        self.is_on = False
        self.steps = 0
        self._guard, self._intended = guard, intended
        self._arms, self._left = ARMS, 0
        self._budget_ns = _BUDGET_NS
        self._running: RunningModules | None = None
        self._parameters: tuple[Tensor, ...] = ()
        self._watch: LossWatch | None = None
        self._sending: list[_Sending] = []
        self._seen: _Seen | None = None
        self._is_told = False

    def arm_after(
        self,
        replay: Replay | None,
        root: nn.Module,
        captures: Sequence[RootCapture],
        parameters: Mapping[str, nn.Parameter],
    ) -> Replay | None:
        """Arm after a replay that has left open what in the loss went wrong; the result says so.

        Args:
            replay: of the step; None where it failed.
            root: the naming root.
            captures: of the step.
            parameters: the watched ones.
        """
        if replay is None or replay.origin is not None or not replay.may_be_loss:
            return replay
        if not self.is_on:
            if not self._arms or self._budget_ns <= 0:
                return replay
            if _is_compiled(captures):
                return replace(replay, reason=f"{replay.reason}; {_COMPILED}")
            self._arms -= 1
            # The step that is being judged ends, too.
            self.is_on, self._left, self._is_told = True, STEPS + 1, False
            from .loss_watch import RunningModules

            self._running = RunningModules([root])
            self._parameters = tuple(parameters.values())
        return replace(replay, reason=f"{replay.reason}; {_ARMED.format(steps=max(self._left - 1, 1))}")

    def enter(self) -> None:
        """A forward has returned: what follows may be a part of the loss."""
        if not self.is_on or torch_private.in_backward():
            return
        if self._watch is None:
            from .loss_watch import LossWatch, RunningModules

            self.steps += 1
            running = RunningModules(()) if self._running is None else self._running
            self._watch = LossWatch(
                running, intended=self._intended, guard=self._guard, budget_ns=self._budget_ns
            )
        self._watch.enter()

    def pass_by(self, number: int) -> None:
        """The backward of a number was not of the watched model: what follows may still be its loss."""
        for sending in self._sending:
            if sending.number == number:
                sending.nodes.release()
        self._sending = [sending for sending in self._sending if sending.number != number]
        if self._seen is not None and self._seen.backward == number:
            self._seen = None
        self.enter()

    def leave(self) -> None:
        """What follows is no part of the loss: a forward, a backward, an update."""
        if self._watch is not None:
            self._watch.leave()

    def begin_backward(self, losses: Sequence[Tensor], number: int) -> None:
        """A backward begins, after `leave`: is a loss bad? If not, what does it send back?

        Args:
            losses: what backward is called on.
            number: of the backward in its step, from 0.
        """
        watch = self._watch
        if watch is None or self._seen is not None:
            return
        from .loss_backward import LossBackward

        site = inner_torch_removed(raw_stack(sys._getframe(1), limit=_STACK_FRAMES))
        with torch_private.own_operations():
            is_bad = any(bool(classify(loss)) for loss in losses)
            origin = watch.origin_of(losses) if is_bad else None
        if origin is not None and watch.notes[origin].place.frames:
            names = (watch.notes[after.index].place.module for after in descendants(watch.records, origin))
            own = watch.notes[origin].place.module
            self._seen = _Seen(
                note=watch.notes[origin],
                value_kind=watch.records[origin].created,
                after=tuple(dict.fromkeys(name for name in names if name and name != own)),
                backward=number,
                site=site,
            )
        elif not is_bad:
            nodes = LossBackward(watch, self._parameters)
            nodes.follow(losses)
            self._sending.append(_Sending(nodes, number, site))

    @property
    def has_seen(self) -> bool:
        """Whether the origin of what is bad in this step is known."""
        if self._seen is None:
            for sending in self._sending:
                if (bad := sending.nodes.bad_node()) is not None:
                    self._seen = _Seen(
                        note=bad.note,
                        value_kind=bad.value_kind,
                        after=(),
                        backward=sending.number,
                        site=sending.site,
                    )
                    break
        return self._seen is not None

    def told(self, stage: str, *, is_one: bool) -> Replay | None:
        """What is known of this step's origin, in the form of a replay's result; None where nothing is.

        Args:
            stage: which gradient tripped; copied to the origin.
            is_one: whether the step has one backward.
        """
        if not self.has_seen or self._seen is None:
            return None
        from ..explain import op_name
        from ..replay import Replay

        self._is_told = True
        seen, note = self._seen, self._seen.note
        module = note.place.module
        inside: Literal["forward", "backward"] = "backward" if note.backward else "forward"
        backward = inner_torch_removed(list(note.asked)) if note.asked else list(seen.site)
        return Replay(
            fidelity="exact",
            origin=Origin(
                phase="loss" if module is None else inside, op=op_name(note), module=module, stage=stage
            ),
            operands=note.operands,
            value_kind=seen.value_kind,
            forward=format_frames(note.place.frames),
            backward=format_frames(backward) if note.backward or module is None else [],
            propagated_to=list(seen.after),
            micro_step=None if is_one else seen.backward,
            is_seen=True,
            duration_s=0.0,
        )

    def end_step(self) -> None:
        """A step is finished and judged."""
        self._forget()
        self._left -= 1
        if self._is_told or self._left <= 0 or self._budget_ns <= 0:
            self.is_on = False

    def stop(self) -> None:
        """Watch no more, whatever happens; idempotent, from any thread."""
        self.is_on, self._arms = False, 0
        self._forget()

    def _forget(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.leave()
            self._budget_ns -= watch.spent_ns
        for sending in self._sending:
            sending.nodes.release()
        self._sending, self._seen = [], None


def _is_compiled(captures: Sequence[RootCapture]) -> bool:
    """Whether a part of the loss ran compiled: its ops cannot be seen."""
    nodes = (node for capture in captures for node in capture.loss_graph.nodes)
    return any(node.name.startswith("CompiledFunction") for node in nodes)
