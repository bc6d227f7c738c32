"""The two passes over a step: first which ops are bad and what the gradients are, then the details.

Owns the captured calls of one replay; `replay.py` makes it, `explain.py` asks it. Training thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor, nn

from .capture import OutputGradients, RootCapture
from .dispatch import GuardedMode, OutputScan
from .module_state import preserved, state_as_before
from .modules import ModuleTracker
from .origin import Cause, Record
from .recorder import DetailRecorder, OpNote
from .rerun import ForwardRun, run_backward, run_forward
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
        deadline_s: float,
    ) -> None:
        """Take the step's captures in the order of the calls; `deadline_s` is on `time.monotonic`."""
        self.captures = tuple(captures)
        self._names = tuple(parameters)
        self._parameters = tuple(parameters.values())
        self._deadline_s = deadline_s
        self._roots = [root, *(capture.root for capture in captures)]
        self.tracker = ModuleTracker(self._roots)
        self._bad: dict[int, frozenset[int]] = {}
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

    def has_bad_ops(self, position: int) -> bool:
        """Whether the first pass found anything non-finite in this call, or coming into it."""
        gradients = (tensor for back in self.captures[position].passes for tensor in back.by_output.values())
        return bool(self._bad.get(position)) or any(bool(classify(tensor)) for tensor in gradients)

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
            run = run_forward(capture, scan, tracker=self.tracker)
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
                bad=self._bad.get(position, frozenset()),
                tracker=self.tracker,
                outermost=_OUTERMOST,
            )
            summaries: dict[str, str] = {}
            self._name_sources(capture, recorder)

            def inputs_known(tensors: Mapping[str, Tensor]) -> None:
                for name, tensor in tensors.items():
                    recorder.add_source(tensor, "argument", name=name)
                    if classify(tensor):
                        summaries[name] = summarise(tensor)

            run = run_forward(capture, recorder, tracker=self.tracker, inputs_known=inputs_known)
            output_causes = _causes(recorder, run.outputs)
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

    def _name_sources(self, capture: RootCapture, recorder: DetailRecorder) -> None:
        for name, parameter in zip(self._names, self._parameters, strict=True):
            recorder.add_source(parameter, "parameter", name=name)
        for name, parameter in capture.root.named_parameters():
            recorder.add_source(parameter, "parameter", name=name)
        for name, buffer in capture.root.named_buffers():
            recorder.add_source(buffer, "buffer", name=name)
        for gradients in capture.passes:
            for tensor in gradients.by_output.values():
                recorder.add_source(tensor, "gradient", name="")

    @contextmanager
    def _restored(self, capture: RootCapture) -> Iterator[list[Tensor]]:
        with preserved(self._roots), state_as_before(self._roots, capture.state_copies) as writable:
            yield writable


def _causes(recorder: DetailRecorder, tensors: Iterable[Tensor | None]) -> list[Cause]:
    found = (recorder.cause_of(tensor) for tensor in tensors if tensor is not None)
    return [cause for cause in found if cause is not None]


def _add(one: Sequence[Tensor | None], other: Sequence[Tensor | None]) -> list[Tensor | None]:
    return [b if a is None else a if b is None else a + b for a, b in zip(one, other, strict=True)]
