"""What is gathered of a training step between two frames, and the small questions asked of it.

Used by the training loop and its pipeline, on the training thread.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from ..forensics.capture import RootCapture
from ..measure.statistics.statistics import PendingStatistics, TensorStatistics
from .late_values import LateClipping, LateValues
from .losses import StepLoss
from .stages import Stage

MAX_CAPTURES: Final = 64
"""Micro-steps whose inputs are kept for a replay; with more, the step is not replayed."""

_MAX_DEPTH: Final = 2
_MAX_ITEMS: Final = 64
"""How far the first tensor of a batch is looked for."""

LogValue = Callable[[], float]


class Clipping(msgspec.Struct, frozen=True):
    """Global L2 norms before and after; `after` is None where it has to be measured."""

    before: float
    after: float | None


class OpenStep(msgspec.Struct):
    """What has been gathered since the previous frame."""

    captures: dict[RootCapture, int] = msgspec.field(default_factory=dict)
    """In the order of the calls, each with its number of samples."""
    settled: int = -1
    """`order` of the newest capture at the last backward that succeeded."""
    forwards: int = 0
    calls: int = 0
    """Forwards, those that were taken back among them."""
    settled_forwards: int = 0
    """How many of them there were at the last backward that succeeded."""
    backwards: int = 0
    before_backward_ns: int = 0
    """Before each backward, since the one before or the update: time in which no rank waits for another."""
    own_backward_ns: int = 0
    """In the backwards, until this rank's graphs had run."""
    fed: set[int] = msgspec.field(default_factory=set)
    """`order` of the captures whose inputs another module has made: gradients pass through to that."""
    passes: list[tuple[int, object]] = msgspec.field(default_factory=list)
    """Of each backward the number that all sessions of the thread know it by, and its line."""
    number: int = 0
    """Of the step at the newest backward that succeeded."""
    others_updates: int = 0
    """Updates of other models on this thread until that backward."""
    missed: int = 0
    """Steps without a frame before this one, for which other models were updated and this one was not."""
    samples: int = 0
    followed_elements: int = 0
    """Elements of the first inputs, where C has kept them and there are no captures."""
    loss: Tensor | None = None
    measured: TensorStatistics | PendingStatistics | None = None
    """Gradients as they were before clipping."""
    cleared: TensorStatistics | None = None
    """Gradients as they were when the script dropped them before any update."""
    after_backward: TensorStatistics | None = None
    """Gradients as the newest backward left them, while no hook tells of updates."""
    is_by_grad: bool = False
    """Whether its gradients are those that `torch.autograd.grad` has returned."""
    given: dict[str, Tensor | None] | None = None
    """These, by parameter name, where they are not finite."""
    is_first_pass: bool = False
    """Whether parameters were changed since a backward of this step, and no hook told of it."""
    first_norm: float | None = None
    """Global L2 norm after the first of several backwards, where it was measured."""
    reductions: int = 0
    """Backwards whose gradients were averaged over the ranks."""
    own_grad_norm: float | None = None
    """Global L2 norm of this rank's own gradient before that, where it was measured."""
    clipping: Clipping | LateClipping | None = None
    logged: dict[str, LogValue] = msgspec.field(default_factory=dict)

    def forget(self, capture: RootCapture) -> None:
        """Take back a forward that raised, or that no backward can follow any more."""
        samples = self.captures.pop(capture, None)
        if samples is not None:
            self.forwards -= 1
            self.samples -= samples

    def forget_abandoned(self) -> list[RootCapture]:
        """Take back and return forwards whose outputs are gone: an evaluation with gradients on, say."""
        abandoned = [capture for capture in self.captures if capture.is_abandoned]
        for capture in abandoned:
            self.forget(capture)
        return abandoned

    def unused(self) -> list[RootCapture]:
        """Return forwards of a finished step that no backward has reached: the script left their loss out."""
        captures = self.captures if len(self.captures) > 1 else ()
        return [capture for capture in captures if not (capture.passes or capture.declined)]

    @property
    def input_elements(self) -> int:
        """Elements of the first input of each forward, added up; 0 where one is not known."""
        counts = [0 if (held := one.arguments) is None else held.first_elements for one in self.captures]
        if not counts or not all(counts):
            return self.followed_elements
        # Of more forwards than are kept, the others are taken to be as large.
        return sum(counts) * max(self.forwards, len(counts)) // len(counts)

    @property
    def has_unsettled_forwards(self) -> bool:
        """Whether a root was called since the last backward: then the micro-step's first input is known."""
        return self.forwards > self.settled_forwards

    @property
    def is_fed(self) -> bool:
        """Whether all forwards that had a backward were called with what another module has made."""
        settled = [capture.order in self.fed for capture in self.captures if capture.order <= self.settled]
        return bool(settled) and all(settled)

    def unsettled(self) -> list[RootCapture]:
        """Forwards since the last backward that succeeded."""
        return [capture for capture in self.captures if capture.order > self.settled]

    def settle(self) -> None:
        """A backward has succeeded: the forwards so far belong to it or to one before."""
        self.backwards += 1
        self.settled_forwards = self.forwards
        if self.captures:
            self.settled = next(reversed(self.captures)).order

    def split_unsettled(self) -> OpenStep:
        """Take the unsettled forwards out and return them as the beginning of the next step."""
        following = OpenStep(captures={capture: self.captures[capture] for capture in self.unsettled()})
        for capture in following.captures:
            self.forget(capture)
        following.forwards, following.fed = len(following.captures), self.fed
        following.samples = sum(following.captures.values())
        return following


class FinishedStep(NamedTuple):
    """A step whose gradients are measured and whose update has not been made."""

    opened: OpenStep
    step: int
    gradients: TensorStatistics
    stage: Stage
    loss: StepLoss
    was_scaled: bool
    is_early: bool = False
    """Whether it is judged right after a backward or before clipping, not at the update."""
    is_updated: bool = False
    """Whether an update that no hook told of was made already."""
    late: LateValues | None = None
    """What brings gradients and loss, where they are still on their way; until then they are unknown."""


class RunningBackward(NamedTuple):
    """How the open step was when a backward began, in case that it fails or is another model's."""

    opened: OpenStep
    thread: int
    losses: int
    gradients_seen: int
    loss: Tensor | None
    measured: TensorStatistics | PendingStatistics | None
    passes: int


def gradients_seen(captures: Iterable[RootCapture]) -> int:
    """How many backward passes have reached the outputs of these calls."""
    return sum([len(capture.passes) for capture in captures])


def why_not_replayable(opened: OpenStep) -> str | None:
    """Say why the step cannot be replayed, if that is known already."""
    if not opened.forwards:
        return "the watched model's forward was not called through model(...) with gradients enabled"
    if opened.forwards > MAX_CAPTURES:
        return f"the step has {opened.forwards} forward passes; at most {MAX_CAPTURES} are kept"
    return None


def batch_size(args: Any, kwargs: Any) -> int:
    """First dimension of the first tensor that the root was called with; 0 when there is none.

    Looks into lists, tuples and mappings, and into those inside of them; of a packed sequence the number of
    sequences counts.
    """
    first = _first_tensor((*args, *kwargs.values()), _MAX_DEPTH)
    return 0 if first is None or not first.dim() else first.size(0)


def are_made_by_others(args: Any, kwargs: Any) -> bool:
    """Whether a tensor that the root is called with was computed by something that can learn."""
    given = (*args, *kwargs.values())
    tensors = [value for value in given if isinstance(value, Tensor)]
    inside = [value for value in given if isinstance(value, list | tuple)]
    tensors += [item for value in inside for item in value[:_MAX_ITEMS] if isinstance(item, Tensor)]
    return any(tensor.grad_fn is not None for tensor in tensors)


def _first_tensor(values: Iterable[Any], depth: int) -> Tensor | None:
    for value in values:
        if isinstance(value, Tensor):
            return value
        if isinstance(value, PackedSequence):
            # Its tensor holds time steps, one of each sequence to begin with.
            return value.data[: int(value.batch_sizes[0])]
        if depth and isinstance(value, (list, tuple, Mapping)):
            inside = value.values() if isinstance(value, Mapping) else value
            if (found := _first_tensor(itertools.islice(inside, _MAX_ITEMS), depth - 1)) is not None:
                return found
    return None
