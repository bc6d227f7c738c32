"""Runs a forward, the lines that made its loss, and the backward once more, to find the line that went wrong.

Called where a replay of the model alone has found that the fault lies outside of it, or does not give the
step's gradients: a penalty on a gradient goes back through more than the model's outputs. Claims nothing
unless the loss comes out as it was, bit by bit, and the model's outputs too as far as they are at hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from ...compat import all_objects, torch_modes
from ...errors import NotInLastLinesError, ReplayError
from ..arguments import find_outputs
from ..capture import RootCapture
from ..dispatch import GuardedMode, OutputScan
from ..effects.effects_put_back import effects_put_back
from ..held_outputs import compare_outputs
from ..module_state import is_plain_object, objects_preserved, preserved, state_as_before, without_logging
from ..op_recorder import DetailRecorder, OpNote
from ..origin import Source, already_bad, descendants, find_origin, outside_names
from ..rerun import ambient, autocast_off, gradients_of, set_generators
from ..running_modules import ModuleTracker, refuse_what_needs_all_ranks
from ..sources import StateKey, changed_state, look_at_state, name_sources
from .backward_stop import is_same, up_to_backward
from .loss_code import RESULT, LossCode
from .loss_graph import is_made_of

_MAX_MODULES: Final = 32
_MAX_PARTS: Final = 64
_RESULT: Final = "a result of earlier lines"


@dataclass(frozen=True, slots=True, kw_only=True)
class LossFault:
    """The op that went wrong on the way to the loss, in the model or outside of it, or in its derivative."""

    note: OpNote
    value_kind: str
    after: tuple[str, ...]
    """Modules that the values went on to, each once, in order."""
    entered: str = ""
    """What came in with a bad value that the op read, in words; "" where the op made it."""


class LossReplay:
    """The forwards of one backward together with the loss that was made of them.

    Args:
        roots: modules to name, and to put back as they were.
        captures: of the forwards, in the order of the calls; the newest knows where backward was called.
        loss: what backward was called on, as it was.
        code: the lines that made it.
        parameters: to send gradients to, by name.
        deadline_s: on `time.monotonic`.
        intended: modules and ops whose infinities are meant.

    Raises:
        ReplayError: the lines would not give the same.
    """

    def __init__(
        self,
        roots: Sequence[nn.Module],
        captures: Sequence[RootCapture],
        *,
        loss: Tensor,
        code: LossCode,
        parameters: Mapping[str, nn.Parameter],
        deadline_s: float,
        intended: Sequence[str] = (),
    ) -> None:
        self._intended = intended
        self.ruined: str | None = None
        """What was bad before the lines began, in words; known after `find`."""
        self._computed: set[str] = set()
        self._of_others: set[tuple[Source, str]] = set()
        self._captures, self._loss, self._parameters = captures, loss, parameters
        self._targets = tuple(parameters.values())
        self._deadline_s = deadline_s
        self._is_bad = not bool(torch.isfinite(loss).all())
        self._bad: dict[int, str] | None = None
        self._changed: list[frozenset[StateKey]] = []
        self._code = code
        self._others = _modules_in(code, roots)
        self._roots = [*roots, *self._others]
        refuse_what_needs_all_ranks(module for root in self._roots for module in root.modules())
        self._tracker = ModuleTracker(roots)

    def scan(self) -> list[Tensor | None]:
        """First pass; returns the gradients of the parameters, in order.

        Raises:
            ReplayError: what the lines give is not what it was in the step.
        """
        if self._code.is_last:
            raise NotInLastLinesError("the lines of the loss begin after the model's calls")
        with self._restored() as writable:
            before = [look_at_state(capture.root) for capture in self._captures]
            scan = OutputScan(deadline_s=self._deadline_s, writable=writable)
            gradients = self._send_back(self._run(scan), scan)
            self._bad = scan.bad_ops()
            self._changed = [
                changed_state(capture.root, seen)
                for capture, seen in zip(self._captures, before, strict=True)
            ]
        return gradients

    def _scan_last(self) -> None:
        """First pass over lines that call no model: of those the loss alone."""
        if not self._is_bad:
            raise NotInLastLinesError("the loss is finite, and its lines begin after the model's calls")
        with self._restored() as writable:
            scan = OutputScan(deadline_s=self._deadline_s, writable=writable)
            self._run(scan)
            self._bad = scan.bad_ops()

    def find(self) -> LossFault | None:
        """Return the op that made the first bad value; None where it is not one op that can be named."""
        found = self._find()
        if found is None and self._code.is_last:
            raise NotInLastLinesError(self.ruined or "no op since the model's calls made it")
        return found

    def _find(self) -> LossFault | None:
        if self._bad is None:
            self._scan_last() if self._code.is_last else self.scan()
        if not self._bad:
            return None
        with self._restored() as writable:
            recorder = DetailRecorder(
                deadline_s=self._deadline_s,
                writable=writable,
                bad=self._bad,
                tracker=self._tracker,
                intended=self._intended,
                outermost=frozenset({self._run.__code__, gradients_of.__code__}),
            )
            self._name_sources(recorder)
            loss = self._run(recorder)
            ends = [loss] if self._is_bad else [g for g in self._send_back(loss, recorder) if g is not None]
            causes = [cause for end in ends if (cause := recorder.cause_of(end)) is not None]
        verdict = find_origin(recorder.records, causes)
        if verdict is None or verdict.record is None:
            entry = None if verdict is None else verdict.entry
            if entry is not None and (entry.source, entry.name) in self._of_others:
                self.ruined = f"the {entry.source} `{entry.name}` of another model in the loss"
            return None
        if verdict.weak and not (verdict.is_emptied and self._is_bad):
            return None
        brought_in = outside_names(recorder.records[verdict.record])
        if computed := self._computed.intersection(brought_in):
            self.ruined = f"`{min(computed)}`, which was computed before the lines that make the loss,"
            return None
        return _fault(recorder, verdict.record, already_bad(brought_in))

    def _name_sources(self, recorder: DetailRecorder) -> None:
        if self._code.is_last:
            # Whatever has a graph was made by lines before these, which may have made it bad.
            made = all_objects.faults.instances(Tensor)
            if made is None:
                raise ReplayError(all_objects.TOO_OFTEN)
            plain = (held for held in made if type(held) is Tensor)
            for tensor in (held for held in plain if held.requires_grad and not held.is_leaf):
                recorder.add_source(tensor, "outside", name=_RESULT)
            self._computed.add(_RESULT)
        called = () if self._code.is_last else self._captures
        for capture, changed in zip(called, self._changed, strict=True):
            name_sources(recorder, capture, parameters=self._parameters, changed=changed)
            arguments = {} if capture.arguments is None else capture.arguments.again()[2]
            for name, tensor in arguments.items():
                recorder.add_source(tensor, "argument", name=name)
        # Weights of another model in the loss, a discriminator's: the op that reads them is not to blame.
        named = _attributes(self._code)
        variables = {id(value): f"{name}." for name, value in (named | self._code.namespace).items()}
        for other in self._others:
            for source, inner, tensor in _state_of(other):
                name = variables.get(id(other), "") + inner
                recorder.add_source(tensor, source, name=name)
                self._of_others.add((source, name))
        for name, tensor in _tensors_of(self._code):
            recorder.add_source(tensor, "outside", name=name)
            if tensor.requires_grad and not tensor.is_leaf:
                self._computed.add(name)

    def _run(self, mode: GuardedMode) -> Tensor:
        """Run the cut out lines under the mode, and compare what they give with the step's own."""
        first = self._captures[0]
        if first.state is None:
            raise ReplayError(first.declined or "the capture was never finished")
        state = first.state._replace(autocast=()) if self._code.enters_blocks else first.state
        namespace = dict(self._code.namespace)
        watching = self._tracker.watching([capture.root for capture in self._captures], self._as_in_the_step)
        stopped = up_to_backward(self._code, namespace, self._loss)
        with stopped, ambient(state), self._tracker.running(), watching as returned, mode:
            exec(self._code.code, namespace)  # noqa: S102 - the script's own lines, as they ran before
        loss = namespace[RESULT]
        if not isinstance(loss, Tensor) or not is_same(loss.detach(), self._loss):
            raise ReplayError("the lines of the loss give another loss than in the step")
        nodes = self._captures[-1].loss_graph.nodes
        if self._code.is_handed_on and not is_made_of(loss, nodes, is_part_allowed=self._code.is_last):
            raise ReplayError("the lines of the loss make it of other operations than in the step")
        called = () if self._code.is_last else self._captures
        if len(returned) != len(called):
            raise ReplayError("the lines of the loss call the model more or less often than in the step")
        for capture, output in zip(called, returned, strict=True):
            check = compare_outputs(capture.outputs, find_outputs(output))
            if check.difference:
                raise ReplayError(check.difference)
        return loss

    def _as_in_the_step(self, call: int, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Give a call what it got in the step: its line may draw it, `model(torch.randn(8, 4))`."""
        held = self._captures[call].arguments if call < len(self._captures) else None
        state = self._captures[call].state if held is not None else None
        if held is None or state is None:
            return args, kwargs
        with torch_modes.own_operations():
            if not held.differ_from(args, kwargs):
                return args, kwargs
            args, kwargs, _ = held.again()
        set_generators(state)
        return args, kwargs

    def _send_back(self, loss: Tensor, mode: GuardedMode) -> list[Tensor | None]:
        """Backward through loss and model; nothing accumulates."""
        mode.begin_backward()
        with autocast_off(), torch.enable_grad(), self._tracker.running(), mode:
            return gradients_of([loss], [torch.ones_like(loss)], self._targets)

    @contextmanager
    def _restored(self) -> Iterator[list[Tensor]]:
        copies = [copy for capture in reversed(self._captures) for copy in capture.state_copies]
        objects = [*(self._code.namespace[name] for name in self._code.names), *self._code.objects]
        shared = nullcontext() if self._code.shared is None else self._code.shared.preserved()
        with preserved(self._roots), objects_preserved(objects), shared, without_logging(self._roots):
            with state_as_before(self._roots, copies) as writable:
                with effects_put_back(self._roots, is_lenient=self._is_in_the_model):
                    yield writable

    def _is_in_the_model(self) -> bool:
        """Whether a module of the model runs: its forward is run again in any case."""
        return any(name is not None for name in self._tracker.running_names)


def _fault(recorder: DetailRecorder, index: int, entered: str) -> LossFault | None:
    note = recorder.notes[index]
    if not note.place.frames:
        return None
    names = (recorder.notes[after.index].place.module for after in descendants(recorder.records, index))
    return LossFault(
        note=note,
        value_kind=recorder.records[index].created,
        after=tuple(dict.fromkeys(name for name in names if name and name != note.place.module)),
        entered=entered,
    )


def _state_of(other: nn.Module) -> Iterator[tuple[Source, str, Tensor]]:
    """Parameters and buffers; of a module in training no buffers, which its forward may have made bad."""
    yield from (("parameter", name, parameter) for name, parameter in other.named_parameters())
    for prefix, module in other.named_modules():
        buffers = () if module.training else module.named_buffers(prefix, recurse=False)
        yield from (("buffer", name, buffer) for name, buffer in buffers)


def _tensors_of(code: LossCode) -> Iterator[tuple[str, Tensor]]:
    """The variables that the lines read, and what lies in those that are plain containers."""
    for name in sorted(code.names):
        value = code.namespace[name]
        parts: list[tuple[Any, Any]] = []
        if type(value) in (list, tuple):
            parts = list(enumerate(value[:_MAX_PARTS]))
        elif isinstance(value, dict):
            parts = [(key, part) for key, part in list(value.items())[:_MAX_PARTS] if isinstance(key, str)]
        found = [(name, value), *((f"{name}[{key!r}]", part) for key, part in parts)]
        yield from ((named, one) for named, one in found if isinstance(one, Tensor))


def _modules_in(code: LossCode, roots: Sequence[nn.Module]) -> list[nn.Module]:
    """Modules that the lines may call besides the model: a loss that keeps buffers, say."""
    known = {id(module) for root in roots for module in root.modules()}
    values = [*code.namespace.values(), *code.objects, *_attributes(code).values()]
    found = {id(value): value for value in values if isinstance(value, nn.Module) and id(value) not in known}
    return list(found.values())[:_MAX_MODULES]


def _attributes(code: LossCode) -> dict[str, Any]:
    """Those of what the lines call `self`, and of the plain objects that lines of several functions read."""
    named = {"self": code.namespace.get("self")}
    if code.until is not None:
        named |= {name: code.namespace[name] for name in sorted(code.names)}
        known = set(map(id, named.values()))
        named |= {type(held).__name__: held for held in code.objects if id(held) not in known}
    plain = {name: held for name, held in named.items() if name == "self" or is_plain_object(held)}
    return {
        f"{name}.{key}": value
        for name, held in plain.items()
        for key, value in getattr(held, "__dict__", {}).items()
    }
