"""Takes in what a failing step consists of: model, calls, gradients, loss, and the batches before.

By reference: nothing is copied here, and nothing written. Training thread, at a fault.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec
from torch import Tensor, nn

from ...attach.layout import clean_name
from ...errors import BundleError, ReplayError
from ...wire import Frame
from ..capture import RootCapture
from .black_box import PastBatch

if TYPE_CHECKING:
    from .calls import CallPacker
    from .packer import TensorPacker
    from .schema import Batch, Call, Gradient, LossMaker, Model


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


class PackedStep(msgspec.Struct, frozen=True):
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


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """What of a step goes into a bundle, the loss always."""

    state: bool = True
    """Parameters, buffers and attributes of the model."""
    calls: bool = True
    """What the forwards were called with, and the state of the random generators."""
    outputs: bool = True
    """Of these calls, and the gradients with regard to them."""
    gradients: bool = True
    batches: bool = True
    """What the steps before were called with."""


def pack_step(step: FailingStep, parts: Parts) -> PackedStep:
    """Take in what a step consists of: what is worth most first.

    Raises:
        BundleError: something cannot be written.
    """
    from .calls import CallPacker
    from .model_state import describe_model, describe_without_state, named_modules
    from .packer import TensorPacker

    tensors = TensorPacker()
    captures = step.captures if parts.calls else ()
    if parts.calls and not captures:
        raise BundleError("no forward of the model was captured in this step")
    top = _top_of(step.root, captures)
    modules: dict[int, str] = {}
    for name, module in named_modules(top):
        modules.setdefault(id(module), name)
    names: dict[int, str] = {}
    for name, parameter in top.named_parameters():
        names[id(parameter)] = clean_name(name)
    root = modules[id(step.root)]
    if parts.state:
        model = describe_model(top, root, tensors, with_tensors=parts.calls)
    else:
        model = describe_without_state(top, root)
    calls = CallPacker(modules, names, tensors, with_outputs=parts.outputs)
    packed_calls = [calls.pack(capture, number) for number, capture in enumerate(captures)]
    loss = None if step.loss is None else tensors.add(step.loss, "loss")
    maker, problem = _loss_maker(captures, calls)
    gradients = None
    if parts.gradients:
        gradients = [_gradient(name, parameter, tensors) for name, parameter in step.parameters.items()]
    batches, without = _batches(step.past_batches if parts.batches else (), calls)
    return PackedStep(model, packed_calls, gradients, loss, tensors, maker, batches, problem + without)


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
