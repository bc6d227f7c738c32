"""The two passes over a step: first which ops are bad and what the gradients are, then the details.

Owns the captured calls of one replay; `replay.py` makes it, `explain.py` asks it. Training thread.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor, nn

from .. import torch_private
from .capture import OutputGradients, RootCapture
from .dispatch import GuardedMode, OutputScan
from .loss_replay import LossFault, LossReplay
from .module_state import preserved, state_as_before
from .modules import ModuleTracker
from .origin import Cause, Record
from .outputs import OutputCheck, compare_outputs, held_values
from .recorder import DetailRecorder, OpNote
from .rerun import ForwardRun, run_backward, run_forward
from .sources import StateKey, changed_state, look_at_state, name_sources
from .values import classify, summarise

_OUTERMOST = frozenset({run_forward.__code__, run_backward.__code__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """What the second pass recorded of one call."""

    records: Mapping[int, Record]
    notes: Mapping[int, OpNote]
    output_causes: tuple[Cause, ...]
    """Why outputs of the root are bad."""
    gradient_causes: tuple[Cause, ...]
    """Why gradients of parameters and inputs are bad."""
    input_summaries: Mapping[str, str]
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
        deadline_s: float,
    ) -> None:
        """Take the step's captures in the order of the calls; `deadline_s` is on `time.monotonic`."""
        self.captures = tuple(captures)
        self._loss = loss
        self._names = tuple(parameters)
        self._parameters = tuple(parameters.values())
        self._deadline_s = deadline_s
        self._roots = [root, *(capture.root for capture in captures)]
        self.tracker = ModuleTracker(self._roots)
        self._bad: dict[int, dict[int, str]] = {}
        self._outputs: dict[int, OutputCheck] = {}
        self._changed: dict[int, frozenset[StateKey]] = {}
        self._details: dict[int, Detail] = {}

    def scan(self) -> dict[str, Tensor | None]:
        """First pass over all calls; returns the gradients of the step by parameter name.

        Raises:
            ReplayError: a call cannot be made again.
        """
        total: list[Tensor | None] = [None] * len(self._parameters)
        partial: list[Tensor | None] = list(total)
        task: int | None = None
        for position in sorted(range(len(self.captures)), key=self._first_backward):
            for gradients, found in self._scan_call(position):
                # Autograd sums within one backward before it adds to what p.grad held.
                if task is not None and gradients.task != task:
                    total, partial = _add(total, partial), [None] * len(total)
                task = gradients.task
                partial = _add(partial, found)
        return dict(zip(self._names, _add(total, partial), strict=True))

    @property
    def difference(self) -> str:
        """How the replayed outputs differ from the step's own, in words; "" when nothing speaks for it."""
        return next((check.difference for check in self._outputs.values() if check.difference), "")

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
        key = 0 if held is None else torch_private.storage_key(held.alias)
        for earlier in range(position) if key else ():
            outputs = (held_values(output) for output in self.captures[earlier].outputs)
            if any(tensor is not None and torch_private.storage_key(tensor) == key for tensor in outputs):
                return earlier
        return None

    def has_bad_ops(self, position: int) -> bool:
        """Whether the first pass found anything non-finite in this call, or coming into it."""
        gradients = (tensor for back in self.captures[position].passes for tensor in back.by_output.values())
        return bool(self._bad.get(position)) or any(bool(classify(tensor)) for tensor in gradients)

    def loss_fault(self, position: int) -> LossFault | None:
        """The op that went wrong in the loss made of a call; None where running it again does not tell.

        Of a micro-step before the newest nothing is known.
        """
        together = self.with_the_same_backward(position)
        if self._loss is None or together[-1] != len(self.captures) - 1:
            return None
        if torch_private.is_distributed():
            # A loss may talk to the other ranks, which do not replay.
            return None
        try:
            return LossReplay(
                self._roots,
                [self.captures[call] for call in together],
                loss=self._loss,
                frame=sys._getframe(1),
                parameters=self._parameters,
                deadline_s=self._deadline_s,
            ).find()
        # The script's own lines run in there, and may raise anything at all.
        except Exception:  # noqa: BLE001
            return None

    def detail(self, position: int) -> Detail:
        """Second pass over one call; made once."""
        if position not in self._details:
            self._details[position] = self._record_call(position)
        return self._details[position]

    def _first_backward(self, position: int) -> tuple[int, int]:
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
                outermost=_OUTERMOST,
            )
            summaries: dict[str, str] = {}
            named = dict(zip(self._names, self._parameters, strict=True))
            changed = self._changed.get(position, frozenset())
            name_sources(recorder, capture, parameters=named, changed=changed)

            def inputs_known(tensors: Mapping[str, Tensor]) -> None:
                for name, tensor in tensors.items():
                    recorder.add_source(tensor, "argument", name=name)
                    if classify(tensor):
                        summaries[name] = summarise(tensor)

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
            input_summaries=summaries,
        )

    @contextmanager
    def _restored(self, capture: RootCapture) -> Iterator[list[Tensor]]:
        with preserved(self._roots), state_as_before(self._roots, capture.state_copies) as writable:
            yield writable


def _causes(recorder: DetailRecorder, tensors: Iterable[Tensor | None]) -> list[Cause]:
    found = (recorder.cause_of(tensor) for tensor in tensors if tensor is not None)
    return [cause for cause in found if cause is not None]


def _add(one: Sequence[Tensor | None], other: Sequence[Tensor | None]) -> list[Tensor | None]:
    return [b if a is None else a if b is None else a + b for a, b in zip(one, other, strict=True)]
