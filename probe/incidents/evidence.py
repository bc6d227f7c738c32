"""What is still at hand of a step that is being judged: for its replay, or for nothing more than its stack.

Made by the judge of `loop` and read by `incidents.py`, on the thread that judges.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
from torch import Tensor, nn

from ..forensics.bundle.black_box import PastBatch
from ..forensics.capture import RootCapture
from ..threads.stacks import RawFrame
from ..wire import Frame


class StepEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What is still at hand of the step that is being judged, for a replay."""

    root: nn.Module
    """The naming root."""
    captures: Sequence[RootCapture]
    parameters: Mapping[str, nn.Parameter]
    given: Mapping[str, Tensor | None] | None = None
    """Gradients by parameter name that are in no `grad`: `torch.autograd.grad` has returned them."""
    loss: Tensor | None
    """The newest scalar that backward was called on, detached."""
    stage: str
    was_scaled: bool
    """A GradScaler scaled the loss: a finite loss with non-finite gradients is its business."""
    loss_scale: float | None = None
    """Of that GradScaler; None where it is not known."""
    micro_step: int | None
    no_replay_reason: str | None = None
    """Why this step cannot be replayed, if that is known already."""
    context: Sequence[str] = ()
    """What the modules returned, line by line, where that is wanted and was measured."""
    frames: Callable[[], Sequence[Frame]] = tuple
    """Gives the newest frames, which are not in the journal yet."""
    past_batches: Sequence[PastBatch] = ()
    """What the steps before were called with."""

    def gradients(self) -> Mapping[str, Tensor | None]:
        """The step's gradients by parameter name."""
        if self.given is not None:
            return self.given
        return {name: parameter.grad for name, parameter in self.parameters.items()}


class LateEvidence(msgspec.Struct, frozen=True):
    """What is still at hand of a step that is judged after its update: nothing to replay."""

    stack: Sequence[RawFrame]
    micro_step: None = None
    was_scaled: bool = False
    loss_scale: None = None
