"""Replays the step that went wrong and names the op, the module and the line that made the first NaN or Inf.

The session calls `locate_origin` on the training thread after a trip, before the update. Training state is
the same afterwards; a replay that cannot be made, or is not the step's own, says so and claims no origin.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from torch import Tensor, nn

from ..compat import availability
from ..compat.torch_memory import is_wrapper_class
from ..errors import ReplayError
from ..guard import outcome_of
from ..threads.unnoticed import unnoticed
from ..wire import Origin, StackFrame, TensorFacts
from .capture import RootCapture
from .effects.effects_put_back import objects_known
from .effects.muted_output import output_muted
from .explain import Explanation, explain
from .fidelity import Fidelity, compare_gradients
from .held_outputs import NOT_RESTORED
from .loss.loss_code import LossCode
from .nonfinite_kinds import EITHER_KIND
from .passes import StepReplay
from .running_modules import refuse_what_needs_all_ranks
from .tensor_facts import classify, facts_line

DEFAULT_LIMIT_S: Final = 30.0
_MAX_NAMES: Final = 10_000
_FROM_ANOTHER_RANK: Final = (
    "this rank's own gradients are finite when they are made again: the bad values came from another rank, "
    "with the average"
)
_COMPILED_ONLY: Final = (
    "replayed eagerly the forward is finite: it went wrong only in the compiled code, or depends on "
    f"{NOT_RESTORED}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What a replay found. Always a value: a failure inside is a `fidelity` of "declined"."""

    fidelity: Fidelity
    origin: Origin | None = None
    reason: str = ""
    """Why there is no origin, or what is to be known about it; a sentence without a full stop."""
    why_no_line: str = ""
    """Why the line of the origin is not known, where it is not; likewise."""
    tensors: tuple[TensorFacts, ...] = ()
    """The origin op's inputs and outputs, or the bad argument, parameter or operand that it began with."""
    value_kind: str = EITHER_KIND
    """What the origin made: "NaN", "Inf", or `origin.EITHER_KIND`."""
    entered: str = ""
    """That the origin only read what was bad already, in words; "" where it made it."""
    forward: list[StackFrame]
    backward: list[StackFrame]
    propagated_to: list[str]
    """Modules the values went on to, then parameters whose gradients are bad, each in order."""
    noticed_in: str | None = None
    """Without an origin: the module whose line `forward` ends in, if any."""
    micro_step: int | None = None
    """Number of the backward, from 0, that `origin` was found in, where the step has several."""
    duration_s: float

    @property
    def operands(self) -> tuple[str, ...]:
        """A line for each of `tensors`."""
        return tuple(map(facts_line, self.tensors))

    @property
    def came_from_another_rank(self) -> bool:
        """Whether this rank only received the bad values."""
        return self.reason == _FROM_ANOTHER_RANK


def locate_origin(
    root: nn.Module,
    captures: Sequence[RootCapture],
    *,
    parameters: Mapping[str, nn.Parameter],
    gradients: Mapping[str, Tensor | None],
    loss: Tensor | None,
    loss_code: LossCode | None = None,
    stage: str,
    parameter_stamp: object = None,
    limit_s: float = DEFAULT_LIMIT_S,
    intended: Sequence[str] = (),
) -> Replay:
    """Replay the captured calls of a step and name the origin of its non-finite values.

    Costs some times the step and synchronises. Gradients, parameters, buffers, random generators and module
    attributes are as before; other side effects of the user's `forward` happen again. Raises nothing but
    `KeyboardInterrupt` and `SystemExit`.

    Args:
        root: the naming root; module names are relative to it.
        captures: the finished captures of the step, in the order of the calls.
        parameters: by name, in model order.
        gradients: the step's gradients by the same names, as they were at the trip.
        loss: the loss, if known; what it is made of comes from `RootCapture.note_backward`.
        loss_code: the lines that made it, where the function that ran them is not running here.
        stage: which gradient tripped; copied to the origin.
        parameter_stamp: must equal the captures' stamps.
        limit_s: the replay stops after this many seconds.
        intended: names of modules and ops, ``*`` allowed, whose infinities are meant, as those of masks are.
    """
    started = time.monotonic()

    def make_again() -> StepReplay:
        _check_captures(captures, parameter_stamp)
        return StepReplay(
            root,
            captures,
            parameters=parameters,
            loss=loss,
            loss_code=loss_code,
            deadline_s=started + limit_s,
            intended=intended,
        )

    with unnoticed(), output_muted(), objects_known():
        outcome = _attempt(make_again, parameters, gradients, loss=loss, stage=stage)
    return outcome.as_replay(time.monotonic() - started)


class _Outcome(NamedTuple):
    """How a replay ended."""

    fidelity: Fidelity
    found: Explanation
    micro_step: int | None = None
    bad: Sequence[str] = ()
    """Parameters whose gradients are non-finite."""

    def as_replay(self, duration_s: float) -> Replay:
        found = self.found
        return Replay(
            fidelity=self.fidelity,
            origin=found.origin,
            reason=found.reason,
            why_no_line="" if found.origin is None else found.why_no_line,
            tensors=found.operands,
            value_kind=found.value_kind,
            entered=found.entered,
            forward=found.forward,
            noticed_in=found.noticed_in,
            backward=found.backward,
            propagated_to=list(dict.fromkeys([*found.modules, *self.bad]))[:_MAX_NAMES],
            micro_step=None if found.origin is None else self.micro_step,
            duration_s=duration_s,
        )


def _attempt(
    make_again: Callable[[], StepReplay],
    parameters: Mapping[str, nn.Parameter],
    gradients: Mapping[str, Tensor | None],
    *,
    loss: Tensor | None,
    stage: str,
) -> _Outcome:
    """Replay a step and explain it; what goes wrong in there is the reason that no origin is named."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # The user's forward runs in there, and may raise anything at all.
        made, error = outcome_of(_make_again, make_again, parameters, gradients, stage)
        if made is None:
            return _failed("declined", error)
        step, fidelity, difference = made
        if difference:
            return _Outcome(fidelity, Explanation(reason=difference))
        outcome, error = outcome_of(_explain, step, fidelity, gradients, loss, stage)
        return _failed(fidelity, error) if outcome is None else outcome


def _make_again(
    make_again: Callable[[], StepReplay],
    parameters: Mapping[str, nn.Parameter],
    gradients: Mapping[str, Tensor | None],
    stage: str,
) -> tuple[StepReplay, Fidelity, str]:
    step = make_again()
    # What a frozen parameter holds is of an earlier step.
    trained = {name: gradients[name] for name in gradients if parameters[name].requires_grad}
    return step, *_compare(step, trained, is_reduced=stage == "reduced")


def _explain(
    step: StepReplay,
    fidelity: Fidelity,
    gradients: Mapping[str, Tensor | None],
    loss: Tensor | None,
    stage: str,
) -> _Outcome:
    found = explain(step, stage=stage, loss_is_bad=None if loss is None else bool(classify(loss)))
    micro_step = None if found.call is None else step.micro_step_of(found.call)
    bad = [name for name, value in gradients.items() if value is not None and classify(value)]
    return _Outcome(fidelity, found, micro_step, bad)


def _failed(fidelity: Fidelity, error: Exception | None) -> _Outcome:
    """No origin: the replay says why it cannot go on, or has failed."""
    if isinstance(error, ReplayError):
        return _Outcome(fidelity, Explanation(reason=str(error)))
    reason = f"the replay failed with {type(error).__name__}: {error}"[:1000]
    return _Outcome("declined", Explanation(reason=reason))


def _compare(
    step: StepReplay, gradients: Mapping[str, Tensor | None], *, is_reduced: bool
) -> tuple[Fidelity, str]:
    """Run the step again; return how close it came, and in words what differs from the real one."""
    replayed = step.scan()
    fidelity = compare_gradients(gradients, replayed)
    if step.is_by_the_compiler:
        return "could not reproduce", _COMPILED_ONLY
    if step.difference:
        # Where all gradients are NaN, those of another forward are no different.
        return "could not reproduce", step.difference
    if fidelity == "could not reproduce":
        # A penalty on a gradient goes back into the model by other ways than its outputs.
        fidelity = _by_lines(step, gradients)
    if fidelity == "could not reproduce" and is_reduced and step.is_closed and _are_finite(replayed):
        return fidelity, _FROM_ANOTHER_RANK
    if fidelity == "could not reproduce":
        return fidelity, "the replay did not give the gradients of the step"
    return fidelity, ""


def _are_finite(gradients: Mapping[str, Tensor | None]) -> bool:
    return not any(gradient is not None and classify(gradient) for gradient in gradients.values())


def _by_lines(step: StepReplay, gradients: Mapping[str, Tensor | None]) -> Fidelity:
    """Run the step again with the script's own lines for its loss."""
    # They may raise anything at all.
    fidelity, _ = outcome_of(lambda: compare_gradients(gradients, step.scan_by_lines()))
    return fidelity or "could not reproduce"


def _check_captures(captures: Sequence[RootCapture], parameter_stamp: object) -> None:
    """Refuse what is known not to be the step's own, or not to be replayable on one rank."""
    symbols = availability.available()
    missing = [name for name in sorted(availability.NEEDED_FOR_REPLAY) if not symbols[name]]
    if missing:
        raise ReplayError(f"this torch has no {missing[0]}")
    if not captures:
        raise ReplayError("no forward of the model was captured in this step")
    for capture in captures:
        if capture.declined:
            raise ReplayError(capture.declined)
        if capture.state is None or capture.output_count < 0:
            raise ReplayError("the forward did not finish")
        if capture.parameter_stamp != parameter_stamp:
            raise ReplayError("the parameters were updated after the forward")
        if capture.root.training != capture.state.training:
            raise ReplayError("the model went from training to evaluation, or back, after the forward")
        if any(is_wrapper_class(type(parameter)) for parameter in capture.root.parameters()):
            raise ReplayError("the parameters are sharded or quantised tensors")
        refuse_what_needs_all_ranks(capture.root.modules())
