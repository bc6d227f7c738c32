"""The two passes over a step: first which ops are bad and what the gradients are, then the details.

Owns the captured calls of one replay; `replay.py` makes it, `explain.py` asks it. Training thread.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar, cast

from torch import Tensor, nn

from ..compat import torch_memory
from ..errors import KeptElsewhereError, NotInLastLinesError, ReplayError
from ..guard import outcome_of
from ..wire import TensorFacts
from .capture import OutputGradients, RootCapture
from .dispatch import GuardedMode, OutputScan
from .effects.effects_put_back import effects_put_back
from .effects.replaying import always
from .held_outputs import OutputCheck, compare_outputs, held_values
from .loss.loss_code import LossCode
from .loss.loss_replay import LossFault, LossReplay
from .loss.ways_to_lines import ways_to_lines
from .module_state import preserved, state_as_before
from .op_recorder import DetailRecorder, OpNote
from .origin import Cause, Record
from .rerun import ForwardRun, accumulate, gradients_of, run_backward, run_forward
from .running_modules import ModuleTracker
from .sources import StateKey, changed_state, look_at_state, name_sources
from .tensor_facts import classify, facts_of

_Found = TypeVar("_Found")
_NOT_AGAIN: Final = "the lines of the loss could not be run again"
OUTERMOST = frozenset(function.__code__ for function in (run_forward, run_backward, gradients_of, accumulate))


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """What the second pass recorded of one call."""

    records: Mapping[int, Record]
    notes: Mapping[int, OpNote]
    output_causes: tuple[Cause, ...]
    """Why outputs of the root are bad."""
    gradient_causes: tuple[Cause, ...]
    """Why gradients of parameters and inputs are bad."""
    bad_inputs: Mapping[str, TensorFacts]
    """By argument name; of the bad ones."""


class StepReplay:
    """The captured calls of one step, replayed as often as needed."""

    def __init__(
        self,
        root: nn.Module,
        captures: Sequence[RootCapture],
        *,
        parameters: Mapping[str, nn.Parameter],
        loss: Tensor | None = None,
        loss_code: LossCode | None = None,
        deadline_s: float,
        intended: Sequence[str] = (),
    ) -> None:
        """Take the step's captures in the order of the calls; `deadline_s` is on `time.monotonic`.

        Without `loss_code` the lines that made the loss are looked for in the functions that are running.
        """
        self.captures = tuple(captures)
        self._loss, self._loss_code = loss, loss_code
        self._names = tuple(parameters)
        self._parameters = tuple(parameters.values())
        self._deadline_s, self._intended = deadline_s, intended
        self._roots = [root, *(capture.root for capture in captures)]
        self.tracker = ModuleTracker(self._roots)
        self._bad: dict[int, dict[int, str]] = {}
        self._outputs: dict[int, OutputCheck] = {}
        self._changed: dict[int, frozenset[StateKey]] = {}
        self._details: dict[int, Detail] = {}
        self._lines: LossReplay | None = None
        self.ruined: str | None = None
        """What was bad before the lines of the loss began, in words; known after `loss_fault`."""
        self.why_no_lines = ""
        """Why the lines of the loss could not be run again, as a clause; known after `loss_fault`."""

    def scan(self) -> dict[str, Tensor | None]:
        """First pass over all calls; returns the gradients of the step by parameter name.

        Raises:
            ReplayError: a call cannot be made again.
        """
        return dict(zip(self._names, self._scan_calls(range(len(self.captures))), strict=True))

    def observe(self, make_mode: Callable[[int, list[Tensor]], DetailRecorder]) -> list[DetailRecorder]:
        """Make the calls once more in their order, each under a mode of its own; return the modes.

        Args:
            make_mode: gets the number of a call and the tensors that it may write.

        Raises:
            ReplayError: a call cannot be made again.
        """
        modes: list[DetailRecorder] = []
        for position, capture in enumerate(self.captures):
            with self._restored(capture) as writable:
                mode = make_mode(position, writable)
                run = self._named_forward(capture, mode)
                self._outputs[position] = compare_outputs(capture.outputs, run.outputs)
                for _ in self._backwards(capture, run, mode):
                    pass
            modes.append(mode)
        return modes

    def _named_forward(self, capture: RootCapture, recorder: DetailRecorder) -> ForwardRun:
        """Make a call again under a recorder that knows what its values are called."""
        named = dict(zip(self._names, self._parameters, strict=True))
        name_sources(recorder, capture, parameters=named, changed=frozenset())

        def inputs_known(tensors: Mapping[str, Tensor]) -> None:
            for name, tensor in tensors.items():
                recorder.add_source(tensor, "argument", name=name)

        return run_forward(capture, recorder, tracker=self.tracker, inputs_known=inputs_known)

    def _scan_calls(self, positions: Iterable[int]) -> list[Tensor | None]:
        total: list[Tensor | None] = [None] * len(self._parameters)
        partial: list[Tensor | None] = list(total)
        task: int | None = None
        for position in sorted(positions, key=self.first_backward):
            for gradients, found in self._scan_call(position):
                # Autograd sums within one backward before it adds to what p.grad held.
                if task is not None and gradients.task != task:
                    total, partial = _add(total, partial), [None] * len(total)
                task = gradients.task
                partial = _add(partial, found)
        return _add(total, partial)

    @property
    def is_by_lines(self) -> bool:
        """Whether only the script's own lines have given the step's gradients: see `scan_by_lines`."""
        return self._lines is not None

    @property
    def is_closed(self) -> bool:
        """Whether every backward is known to have begun at finite losses and come through outputs alone."""
        ends = [capture for capture in self.captures if capture.backwards]
        return bool(ends) and all(
            capture.backwards == 1 and capture.loss_graph.is_closed and capture.loss_is_finite
            for capture in ends
        )

    @property
    def difference(self) -> str:
        """How the replayed outputs differ from the step's own, in words; "" when nothing speaks for it."""
        return next((check.difference for check in self._outputs.values() if check.difference), "")

    @property
    def is_by_the_compiler(self) -> bool:
        """Whether compiled calls alone gave bad outputs that are finite when they are made eagerly."""
        differ = [position for position, check in self._outputs.items() if check.difference]
        return bool(differ) and all(
            self.captures[position].is_compiled and self._outputs[position].is_finite_again
            for position in differ
        )

    def outputs_of(self, position: int) -> OutputCheck:
        """How the outputs of a call compare with the step's own; after `scan`."""
        return self._outputs[position]

    def reached(self) -> list[int]:
        """The calls that a backward went through; all of them where none is known to have."""
        everything = range(len(self.captures))
        return [p for p in everything if self.captures[p].passes] or list(everything)

    def with_the_same_backward(self, position: int) -> list[int]:
        """The calls that a call's backward passes went through as well, itself included."""
        tasks = {back.task for back in self.captures[position].passes}
        others = (
            p for p, capture in enumerate(self.captures) if any(back.task in tasks for back in capture.passes)
        )
        return sorted({position, *others})

    def maker_of(self, position: int, argument: str) -> int | None:
        """The earlier call whose output an argument is, itself or without its graph; None where none is."""
        arguments = self.captures[position].arguments
        held = None if arguments is None else arguments.tensor(argument)
        key = 0 if held is None else torch_memory.storage_key(held.alias)
        for earlier in range(position) if key else ():
            outputs = (held_values(output) for output in self.captures[earlier].outputs)
            if any(tensor is not None and torch_memory.storage_key(tensor) == key for tensor in outputs):
                return earlier
        return None

    def state_of(self, position: int, name: str) -> Tensor | None:
        """A parameter or buffer by the name that a cause has; None of an attribute."""
        root = self.captures[position].root
        known = dict(zip(self._names, self._parameters, strict=True))
        return {**dict(root.named_buffers()), **dict(root.named_parameters()), **known}.get(name)

    def micro_step_of(self, position: int) -> int | None:
        """Number of the backward, from 0, that a call belongs to; None where it is one or not known."""
        backwards = [capture.backwards for capture in self.captures]
        if sum(backwards) < 2 or max(backwards) > 1:
            return None
        return sum(backwards[:position])

    def has_bad_ops(self, position: int) -> bool:
        """Whether the first pass found anything non-finite in this call, or coming into it."""
        gradients = (tensor for back in self.captures[position].passes for tensor in back.by_output.values())
        return bool(self._bad.get(position)) or any(bool(classify(tensor)) for tensor in gradients)

    def loss_fault(self, position: int) -> LossFault | None:
        """The op that went wrong in the loss made of a call; None where running it again does not tell.

        Of a micro-step before the newest nothing is known.
        """
        newest = self._of_newest_backward()
        if position not in newest:
            self.why_no_lines = f"{_NOT_AGAIN} (it is the loss of an earlier backward of the step)"
            return None
        if self._lines is not None:
            fault, self.ruined = self._lines.find(), self._lines.ruined
            return fault
        for together in (self.with_the_same_backward(position), newest):
            if together[-1] != newest[-1]:
                continue
            # The script's own lines run in there, and may raise anything at all.
            found, error = outcome_of(self._run_lines, together)
            if found is not None:
                fault, self.ruined = found
                return fault
            self.why_no_lines = self.why_no_lines or _why_not_again(error)
        return None

    def _run_lines(self, calls: Sequence[int]) -> tuple[LossFault | None, str | None]:
        return self._first_that_runs(calls, lambda lines: (lines.find(), lines.ruined))

    def _first_that_runs(self, calls: Sequence[int], run: Callable[[LossReplay], _Found]) -> _Found:
        """Run the lines of the loss that some calls went into; found in one way after the other.

        Raises:
            Exception: what the surest way has raised that had lines, where none gives the step's loss.
        """
        captures = [self.captures[call] for call in calls]
        code = self._loss_code
        ways = ways_to_lines(captures, sys._getframe()) if code is None else [lambda: code]
        errors: list[Exception] = []
        for way in ways:
            # The script's own lines run in there, and may raise anything at all.
            found, error = outcome_of(lambda way: run(self._loss_replay(captures, way())), way)
            if error is None:
                return cast(_Found, found)
            errors.append(error)
        reasons = [error for error in errors if not isinstance(error, NotInLastLinesError)]
        raise next((one for one in reasons if not isinstance(one, KeptElsewhereError)), reasons[0])

    def scan_by_lines(self) -> dict[str, Tensor | None]:
        """Like `scan`, with the script's own lines for the newest loss: it may go back past the outputs.

        Raises:
            ReplayError: they cannot be run again, or give something else.
        """
        newest = self._of_newest_backward()
        earlier = range(newest[0])
        if any(self.captures[call].passes[:1] == [] for call in earlier):
            raise ReplayError("a forward of the step belongs to no backward")
        lines, found = self._first_that_runs(newest, lambda lines: (lines, lines.scan()))
        gradients = _add(self._scan_calls(earlier), found)
        self._lines = lines
        return dict(zip(self._names, gradients, strict=True))

    def _loss_replay(self, captures: Sequence[RootCapture], code: LossCode) -> LossReplay:
        if self._loss is None:
            raise ReplayError("the loss is not known")
        return LossReplay(
            self._roots,
            captures,
            loss=self._loss,
            code=code,
            parameters=dict(zip(self._names, self._parameters, strict=True)),
            deadline_s=self._deadline_s,
            intended=self._intended,
        )

    def _of_newest_backward(self) -> list[int]:
        """The calls since the last backward but one."""
        noted = [call for call, capture in enumerate(self.captures[:-1]) if capture.backwards]
        return list(range(noted[-1] + 1 if noted else 0, len(self.captures)))

    def detail(self, position: int) -> Detail:
        """Second pass over one call; made once."""
        if position not in self._details:
            self._details[position] = self._record_call(position)
        return self._details[position]

    def first_backward(self, position: int) -> tuple[int, int]:
        """Sorts calls by when a backward came to their outputs; those that none did come last."""
        capture = self.captures[position]
        return (capture.passes[0].order if capture.passes else 2**62, capture.order)

    def _scan_call(self, position: int) -> list[tuple[OutputGradients, list[Tensor | None]]]:
        capture = self.captures[position]
        with self._restored(capture) as writable:
            scan = OutputScan(deadline_s=self._deadline_s, writable=writable)
            before = look_at_state(capture.root)
            run = run_forward(capture, scan, tracker=self.tracker)
            self._changed[position] = changed_state(capture.root, before)
            self._outputs[position] = compare_outputs(capture.outputs, run.outputs)
            passes = [(gradients, found) for gradients, found, _ in self._backwards(capture, run, scan)]
            self._bad[position] = scan.bad_ops()
        return passes

    def _backwards(
        self, capture: RootCapture, run: ForwardRun, mode: GuardedMode
    ) -> Iterator[tuple[OutputGradients, list[Tensor | None], dict[str, Tensor]]]:
        for number, gradients in enumerate(capture.passes):
            mode.begin_backward()
            of_parameters, of_inputs = run_backward(
                run,
                gradients,
                mode,
                parameters=self._parameters,
                tracker=self.tracker,
                keep_graph=number + 1 < len(capture.passes),
            )
            yield gradients, of_parameters, of_inputs

    def _record_call(self, position: int) -> Detail:
        capture = self.captures[position]
        with self._restored(capture) as writable:
            recorder = DetailRecorder(
                deadline_s=self._deadline_s,
                writable=writable,
                bad=self._bad.get(position, {}),
                tracker=self.tracker,
                intended=self._intended,
                outermost=OUTERMOST,
            )
            bad_inputs: dict[str, TensorFacts] = {}
            named = dict(zip(self._names, self._parameters, strict=True))
            changed = self._changed.get(position, frozenset())
            name_sources(recorder, capture, parameters=named, changed=changed)

            def inputs_known(tensors: Mapping[str, Tensor]) -> None:
                for name, tensor in tensors.items():
                    recorder.add_source(tensor, "argument", name=name)
                    if classify(tensor):
                        bad_inputs[name] = facts_of(tensor, role="batch", name=name)

            run = run_forward(capture, recorder, tracker=self.tracker, inputs_known=inputs_known)
            sent = {output for back in capture.passes for output in back.by_output}
            used = [output for p, output in enumerate(run.outputs) if p in sent or not sent]
            output_causes = _causes(recorder, used)
            gradient_causes: list[Cause] = []
            for _, of_parameters, of_inputs in self._backwards(capture, run, recorder):
                gradient_causes += _causes(recorder, (*of_parameters, *of_inputs.values()))
        return Detail(
            records=recorder.records,
            notes=recorder.notes,
            output_causes=tuple(output_causes),
            gradient_causes=tuple(gradient_causes),
            bad_inputs=bad_inputs,
        )

    @contextmanager
    def _restored(self, capture: RootCapture) -> Iterator[list[Tensor]]:
        with preserved(self._roots), state_as_before(self._roots, capture.state_copies) as writable:
            # A forward is run again whatever it does: the loss says whether it was the step's.
            with effects_put_back(self._roots, is_lenient=always):
                yield writable


def _causes(recorder: DetailRecorder, tensors: Iterable[Tensor | None]) -> list[Cause]:
    found = (recorder.cause_of(tensor) for tensor in tensors if tensor is not None)
    return [cause for cause in found if cause is not None]


def _why_not_again(error: Exception | None) -> str:
    if isinstance(error, ReplayError):
        return f"{_NOT_AGAIN} ({error})"
    return f"{_NOT_AGAIN} (they raise {type(error).__name__} the second time)"


def _add(one: Sequence[Tensor | None], other: Sequence[Tensor | None]) -> list[Tensor | None]:
    return [b if a is None else a if b is None else a + b for a, b in zip(one, other, strict=True)]
