"""Makes the step of a bundle again: the entry's model, the step's state, and the replay as in the run itself.

Runs in a process of its own (`python -m probe.forensics.bundle`), whose settings it changes for good.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from ...attach.layout import clean_name
from ...errors import BundleError, ReplayError
from ...guard import outcome_of
from ...threads.stacks import stack_from_traceback
from ...threads.unnoticed import unnoticed
from ...wire import Origin, StackFrame
from ...wire.bundle_format import DESCRIPTION, read_description
from ..capture import RootCapture
from ..dispatch import OutputScan
from ..fidelity import Fidelity
from ..held_outputs import held_values
from ..loss.loss_code import LossCode
from ..module_state import preserved, state_as_before
from ..passes import StepReplay
from ..replay import Replay, locate_origin
from ..rerun import run_forward
from ..running_modules import ModuleTracker
from .calls import referred, unpack_call
from .environment import apply_settings, differences
from .loss_lines import loss_code_of
from .model_state import load_model, named_modules
from .schema import TENSORS, Bundle, Contents, LossMaker, decode_bundle
from .unpacker import TensorReader
from .values import Decoder

LIMIT_S: Final = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The outputs of the replayed forwards against those of the run."""

    identical: int
    """Bit for bit; a NaN is a NaN."""
    different: int
    unknown: int
    """Not in the bundle: they were large, and the script had let go of them."""
    largest_difference: float
    """Among finite elements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """What came of a replay."""

    replay: Replay
    outputs: Comparison
    gradients: int
    """How many of the run's gradients there were to compare with."""
    notes: tuple[str, ...]
    """What is not as it was in the run."""
    has_loss: bool = False
    """Whether the script's own lines gave the loss of the run, bit for bit."""
    has_raised: bool = False
    """Whether the step was a forward that raised, and it raised once more."""

    @property
    def is_reproduced(self) -> bool:
        """Whether it was the step: its outputs and gradients came again."""
        return self.replay.fidelity in ("exact", "confirmed")

    @property
    def is_exact(self) -> bool:
        """Whether outputs and gradients came again bit for bit."""
        return self.replay.fidelity == "exact" and not self.outputs.different and not self.outputs.unknown


def read_bundle(folder: Path) -> Bundle:
    """Read `bundle.json`.

    Raises:
        BundleError: it is no bundle, or not one that this version reads.
    """
    path = folder / DESCRIPTION
    try:
        data = read_description(folder)
    except OSError as error:
        raise BundleError(
            f"{folder} is not a bundle: {DESCRIPTION}: {error.strerror or error}; the last line "
            "of an event's "
            "message names its bundle's folder"
        ) from error
    try:
        return decode_bundle(data)
    except ValueError as error:
        raise BundleError(f"{path} is not a bundle's description: {error}") from error


def reproduce(bundle: Bundle, folder: Path, build: Callable[[], nn.Module]) -> Reproduction:
    """Replay the step of a bundle.

    Args:
        bundle: its description.
        folder: where its tensors are.
        build: makes the model; its weights do not matter.

    Raises:
        BundleError: the bundle has not what is needed, is damaged, or the model is another one.
    """
    step, contents, tensors = open_step(bundle, folder, build)
    has_loss = False
    if step.ends_in_exception:
        replay = step.raise_again(bundle.event.subject)
    elif bundle.event.kind == "exception":
        replay = step.run_again()
    else:
        loss = None if contents.loss is None else tensors.get(contents.loss)
        code = step.loss_code(contents.loss_maker)
        has_loss = code is not None and loss is not None and step.gives_loss(loss, code)
        replay = step.replay(loss, code if has_loss else None, contents.stage)
    notes = [*step.notes, *differences(bundle.environment)]
    notes += [
        f"{device} is not here: the CPU stands in for it, whose sums differ in the last bits and whose "
        "random numbers are others"
        for device in sorted(tensors.replaced_devices)
    ]
    if step.is_on_cuda:
        notes.append("on a GPU, sums made by atomic additions differ in the last bits from run to run")
    return Reproduction(
        replay=replay,
        outputs=step.compare_outputs(),
        gradients=sum(gradient is not None for gradient in step.gradients.values()),
        notes=tuple(notes),
        has_loss=has_loss,
        has_raised=step.ends_in_exception and replay.fidelity == "confirmed",
    )


def open_step(
    bundle: Bundle, folder: Path, build: Callable[[], nn.Module]
) -> tuple[BundledStep, Contents, TensorReader]:
    """Put a bundle's step into the entry's model, and this process's settings as they were in the run.

    Raises:
        BundleError: as `reproduce` does.
    """
    contents = bundle.contents
    if bundle.not_replayable or contents is None:
        raise BundleError(f"this bundle cannot be replayed: {bundle.not_replayable or 'it holds no tensors'}")
    apply_settings(bundle.environment.settings)
    tensors = TensorReader(folder / TENSORS, contents)
    top = build()
    try:
        step = BundledStep(top, contents, tensors, origin=bundle.event.origin)
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        raise BundleError(f"the bundle cannot be followed: {type(error).__name__}: {error}") from error
    return step, contents, tensors


class BundledStep:
    """The step of a bundle, in this process's model."""

    def __init__(
        self, top: nn.Module, contents: Contents, tensors: TensorReader, *, origin: Origin | None
    ) -> None:
        loss_op = origin.op if origin is not None and origin.phase == "loss" else None
        modules = dict(named_modules(top))
        named: dict[tuple[str, str], nn.Module | nn.Parameter] = {
            ("module", name): module for name, module in modules.items()
        }
        named |= {("parameter", clean_name(name)): value for name, value in top.named_parameters()}
        self._decoder = decoder = Decoder(referred(tensors), named=named, device=tensors.device)
        self.notes = load_model(top, contents.model, tensors, decoder)
        self.is_on_cuda = any(tensor.is_cuda for tensor in (*top.parameters(), *top.buffers()))
        if contents.model.naming_root not in modules:
            raise BundleError(f"the model has no module {contents.model.naming_root!r}")
        self.naming_root = modules[contents.model.naming_root]
        self.captures = [
            unpack_call(call, modules, tensors, decoder, loss_op=loss_op) for call in contents.calls
        ]
        self._roots = [self.naming_root, *(capture.root for capture in self.captures)]
        own = {clean_name(name): value for name, value in self.naming_root.named_parameters()}
        gradients = contents.gradients or []
        if unknown := [gradient.name for gradient in gradients if gradient.name not in own]:
            raise BundleError(f"the model has no parameter {unknown[0]!r}")
        self.gradients: Mapping[str, Tensor | None] = {
            gradient.name: None if gradient.tensor is None else tensors.get(gradient.tensor)
            for gradient in gradients
            if own[gradient.name].requires_grad
        }
        known = self.gradients or own
        self.parameters = {
            name: value for name, value in own.items() if name in known and value.requires_grad
        }

    @property
    def ends_in_exception(self) -> bool:
        """Whether a forward raised."""
        return any(capture.output_count < 0 for capture in self.captures)

    def loss_code(self, maker: LossMaker | None) -> LossCode | None:
        """Return the lines that made the loss, where they are to be had; else a note says why not."""
        if maker is None:
            return None
        try:
            return loss_code_of(maker, self._decoder)
        except BundleError as error:
            self.notes.append(f"the loss is not computed again: {error}")
            return None

    def gives_loss(self, loss: Tensor, code: LossCode) -> bool:
        """Run forwards and loss once more; whether the loss is the run's, bit for bit."""
        replay = StepReplay(
            self.naming_root,
            self.captures,
            parameters=self.parameters,
            loss=loss,
            loss_code=code,
            deadline_s=time.monotonic() + LIMIT_S,
        )
        with unnoticed():
            _, error = outcome_of(replay.scan_by_lines)
        if error is not None:
            self.notes.append(f"the loss did not come again: {type(error).__name__}: {error}"[:1000])
        return error is None

    def replay(self, loss: Tensor | None, code: LossCode | None, stage: str) -> Replay:
        """Replay as the run itself does."""
        return locate_origin(
            self.naming_root,
            self.captures,
            parameters=self.parameters,
            gradients=self.gradients,
            loss=loss,
            loss_code=code,
            stage=stage,
            limit_s=LIMIT_S,
        )

    def raise_again(self, expected: str) -> Replay:
        """Make the forward that raised once more; "confirmed" where it raises the same kind of exception."""
        started = time.monotonic()
        fidelity: Fidelity = "could not reproduce"
        reason, frames = f"the forward returned, and raised no {expected}", list[StackFrame]()
        for capture in self.captures:
            if capture.output_count >= 0:
                continue
            _, error = outcome_of(_outputs_again, self._roots, capture)
            if error is not None and not isinstance(error, ReplayError):
                fidelity = "confirmed" if type(error).__name__ == expected else fidelity
                reason = f"{type(error).__name__}: {error}"[:1000]
                frames = stack_from_traceback(error.__traceback__)
        return Replay(
            fidelity=fidelity,
            reason=reason,
            forward=frames,
            backward=[],
            propagated_to=[],
            duration_s=time.monotonic() - started,
        )

    def run_again(self) -> Replay:
        """Make the forwards of a step that the script ended with an exception; "exact" if they come again."""
        started = time.monotonic()
        outputs = self.compare_outputs()
        is_same = outputs.identical > 0 and not (outputs.different or outputs.unknown)
        return Replay(
            fidelity="exact" if is_same else "could not reproduce",
            reason="the script raised it after the forward" if is_same else "the outputs are not the step's",
            forward=[],
            backward=[],
            propagated_to=[],
            duration_s=time.monotonic() - started,
        )

    def compare_outputs(self) -> Comparison:
        """Make the forwards once more, and compare what they return with what is in the bundle."""
        identical = different = unknown = 0
        largest = 0.0
        for capture in self.captures:
            known = [held_values(held) for held in capture.outputs]
            present = sum(tensor is not None for tensor in known)
            # What the user's forward raises, the replay has said.
            again, _ = outcome_of(_outputs_again, self._roots, capture) if present else (None, None)
            pairs = [(one, other) for one, other in zip(known, again or [], strict=False) if one is not None]
            same = sum(_is_identical(one, other) for one, other in pairs)
            identical, different = identical + same, different + len(pairs) - same
            unknown += max(0, capture.output_count - len(pairs))
            largest = max([largest, *(_largest_difference(one, other) for one, other in pairs)])
        return Comparison(
            identical=identical, different=different, unknown=unknown, largest_difference=largest
        )


def _outputs_again(roots: list[nn.Module], capture: RootCapture) -> list[Tensor]:
    with preserved(roots), state_as_before(roots, capture.state_copies) as writable:
        scan = OutputScan(deadline_s=time.monotonic() + LIMIT_S, writable=writable)
        run = run_forward(capture, scan, tracker=ModuleTracker(roots))
    return [tensor.detach() for tensor in run.outputs]


def _is_identical(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    same = one == other
    if one.is_floating_point() or one.is_complex():
        parts = (torch.view_as_real(one), torch.view_as_real(other)) if one.is_complex() else (one, other)
        signs = torch.signbit(parts[0]) == torch.signbit(parts[1])
        both_nan = torch.isnan(parts[0]) & torch.isnan(parts[1])
        same = ((parts[0] == parts[1]) & signs) | both_nan
    return bool(same.all())


def _largest_difference(one: Tensor, other: Tensor) -> float:
    if one.shape != other.shape:
        return float("inf")
    apart = (one.double() - other.double()).abs() if not one.is_complex() else (one - other).abs().double()
    apart = apart[torch.isfinite(apart)]
    return float(apart.max()) if apart.numel() else 0.0
