"""Makes tables out of a trace: each call of an operation with its own time, its module and its line. Pure.

Calls of a thread are nested by their times. An operation of the backward belongs where the operation of the
forward stands whose sequence number it carries.
"""

from __future__ import annotations

import os
import re
import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from .trace_events import Trace, TraceEvent

_FUNCTION: Final = re.compile(r"(.+)\((\d+)\): (.+)\Z", re.DOTALL)
_MODULE: Final = "nn.Module: "
_BACKWARD: Final = "autograd::engine::evaluate_function: "
_LOADER: Final = "enumerate(DataLoader)#"
_OPTIMIZER: Final = "Optimizer.step#"
_ON_DEVICE: Final = frozenset(("kernel", "gpu_memcpy", "gpu_memset"))
_NESTED: Final = frozenset(("cpu_op", "python_function", "user_annotation", "cuda_runtime", "cuda_driver"))
_LIBRARIES: Final = frozenset(sys.stdlib_module_names) | {"torch", "<frozen importlib", "<string>"}
_PASSING: Final = ("probe/attach/", "probe/compat/", "probe/loop/step_tracker.py", "probe/guard.py")
"""Of the probe: what only stands between the script and torch."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a call stands: what of the Python stack matters."""

    module: str | None = None
    line: str | None = None
    function: str | None = None
    """File of the innermost function of the script, None below a library's that it calls."""
    is_ours: bool = False
    is_in_optimizer: bool = False


@dataclass(slots=True)
class OpCall:
    """One call of an operation, or of the CUDA runtime."""

    name: str
    start_us: float
    end_us: float
    self_us: float
    place: Place
    is_outermost: bool
    is_backward: bool
    cuda_us: float = 0.0
    allocated_bytes: int = 0


@dataclass(slots=True)
class ProfileTable:
    """A trace as calls, in the order in which they began."""

    wall_us: float
    steps: int
    calls: list[OpCall] = field(default_factory=list)
    input_wait_us: float = 0.0
    """In DataLoaders' `__next__`, on the thread that trains."""
    traced_in_input: int = 0
    """Events in there, each of which took the profiler's time."""
    device_us: float = 0.0
    """In which at least one kernel or copy ran."""
    has_device: bool = False
    copied_to_device_us: float = 0.0

    @property
    def script_calls(self) -> Iterable[OpCall]:
        """Those that are not the probe's own."""
        return (call for call in self.calls if not call.place.is_ours)


def build_table(
    trace: Trace,
    *,
    wall_us: float,
    steps: int | None,
    modules: Mapping[str, str],
    calling_lines: Mapping[int, int],
) -> ProfileTable:
    """Nest the calls of a trace.

    Args:
        trace: decoded.
        wall_us: from the beginning of the profile to its end.
        steps: that it holds; None counts the calls of optimizers' `step`, at least 1.
        modules: see `compat.torch_profiler.PythonCalls`.
        calling_lines: the same.
    """
    builder = _Builder(trace.base_ns, modules, calling_lines)
    threads: defaultdict[tuple[object, object], list[TraceEvent]] = defaultdict(list)
    device: list[TraceEvent] = []
    for event in trace.events:
        if event.ph == "X" and event.cat in _ON_DEVICE:
            device.append(event)
        elif (event.ph == "X" and event.cat in _NESTED) or event.name == "[memory]":
            threads[event.pid, event.tid].append(event)
    trains = max(threads.values(), key=_optimizers_and_ops, default=[])
    counted = _optimizers_and_ops(trains)[0] if steps is None else steps
    table = ProfileTable(wall_us=wall_us, steps=max(counted, 1))
    for events in threads.values():
        builder.add_thread(events)
        if events is trains:
            _add_loaders(table, events)
    builder.settle_backwards()
    builder.add_device(device)
    table.calls = sorted(builder.calls, key=lambda call: call.start_us)
    table.has_device = bool(device)
    table.device_us = _covered_us(device)
    table.copied_to_device_us = sum(event.dur for event in device if "HtoD" in event.name)
    return table


def _optimizers_and_ops(events: list[TraceEvent]) -> tuple[int, int]:
    steps = sum(event.cat == "user_annotation" and event.name.startswith(_OPTIMIZER) for event in events)
    return steps, sum(event.cat == "cpu_op" for event in events)


def _add_loaders(table: ProfileTable, events: list[TraceEvent]) -> None:
    waits = [one for one in events if one.cat == "user_annotation" and one.name.startswith(_LOADER)]
    waits.sort(key=lambda event: event.ts)
    table.input_wait_us = _covered_us(waits)
    begins = [event.ts for event in waits]
    for event in events:
        at = bisect_right(begins, event.ts) - 1
        table.traced_in_input += at >= 0 and event.ts < waits[at].end


def _covered_us(events: list[TraceEvent]) -> float:
    """Time in which at least one of them ran."""
    covered = until = 0.0
    for event in sorted(events, key=lambda event: event.ts):
        covered += max(event.end - max(event.ts, until), 0.0)
        until = max(until, event.end)
    return covered


@dataclass(slots=True)
class _Open:
    """An event of the stack."""

    end_us: float
    place: Place
    call: OpCall | None
    """The innermost operation up to here."""


class _Builder:
    """Collects the calls of all threads."""

    def __init__(self, base_ns: int, modules: Mapping[str, str], calling_lines: Mapping[int, int]) -> None:
        self.calls: list[OpCall] = []
        self._base_ns, self._modules, self._lines = base_ns, modules, calling_lines
        self._forwards: dict[object, Place] = {}
        """By sequence number: of the innermost operation, which made the node."""
        self._backwards: list[tuple[OpCall, object]] = []
        self._by_id: dict[object, OpCall] = {}

    def add_thread(self, events: list[TraceEvent]) -> None:
        """Nest the events of one thread."""
        events.sort(key=lambda event: (event.ts, -event.dur))
        stack = [_Open(float("inf"), Place(), None)]
        backward: list[tuple[float, object]] = []
        for event in events:
            while stack[-1].end_us <= event.ts and len(stack) > 1:
                stack.pop()
            while backward and backward[-1][0] <= event.ts:
                backward.pop()
            above = stack[-1]
            if event.name == "[memory]":
                if above.call is not None and isinstance(event.args.bytes, int):
                    above.call.allocated_bytes += max(event.args.bytes, 0)
                continue
            place = self._place_of(event, above.place)
            call = above.call
            if event.cat in ("cpu_op", "cuda_runtime", "cuda_driver"):
                if event.name.startswith(_BACKWARD):
                    backward.append((event.end, event.args.sequence))
                if call is None or call.name != event.name:
                    # One that dispatches itself anew is one call, as in torch's own tables.
                    call = self._add(event, place, above.call, backward[-1][1] if backward else None)
            stack.append(_Open(event.end, place, call))

    def _add(self, event: TraceEvent, place: Place, caller: OpCall | None, sequence: object) -> OpCall:
        is_backward = sequence is not None
        call = OpCall(
            event.name, event.ts, event.end, event.dur, place, _is_outermost(caller, event), is_backward
        )
        if caller is not None:
            caller.self_us = max(caller.self_us - event.dur, 0.0)
        if is_backward:
            self._backwards.append((call, sequence))
        elif event.args.sequence is not None and not place.is_ours:
            self._forwards[event.args.sequence] = place
        if event.args.external_id is not None and event.cat == "cpu_op":
            self._by_id[event.args.external_id] = call
        self.calls.append(call)
        return call

    def settle_backwards(self) -> None:
        """Put the operations of backwards where their forwards stand."""
        for call, sequence in self._backwards:
            forward = self._forwards.get(sequence)
            if forward is not None and not call.place.is_ours:
                call.place = forward

    def add_device(self, events: list[TraceEvent]) -> None:
        """Give kernels and copies to the operations that launched them."""
        for event in events:
            call = self._by_id.get(event.args.external_id)
            if call is not None:
                call.cuda_us += event.dur

    def _place_of(self, event: TraceEvent, above: Place) -> Place:
        if event.cat == "user_annotation":
            is_update = event.name.startswith(_OPTIMIZER)
            return Place(above.module, above.line, None, False, True) if is_update else above
        if event.cat != "python_function":
            if event.name.startswith(_BACKWARD):
                return Place(above.module, above.line, None, False, above.is_in_optimizer)
            return above
        line = self._calling_line(event, above)
        if event.name.startswith(_MODULE):
            name = self._modules.get(event.name, event.name.removeprefix(_MODULE))
            return Place(name, line, None, False, above.is_in_optimizer)
        return self._place_of_function(event.name, line, above)

    def _place_of_function(self, name: str, line: str | None, above: Place) -> Place:
        found = _FUNCTION.match(name)
        if found is None:
            # A function in C: its line is the calling one.
            return Place(above.module, line, None, above.is_ours, above.is_in_optimizer)
        file = found[1]
        if file.startswith("probe/"):
            is_ours = above.is_ours or not file.startswith(_PASSING)
            return Place(above.module, line, None, is_ours, above.is_in_optimizer)
        if _is_of_library(file):
            return Place(above.module, line, None, above.is_ours, above.is_in_optimizer)
        return Place(above.module, f"{file}:{found[2]}", file, False, above.is_in_optimizer)

    def _calling_line(self, event: TraceEvent, above: Place) -> str | None:
        """The line of the script that called a function; of a library's function, that of its own caller."""
        if above.function is None:
            return above.line
        number = self._lines.get(self._base_ns + round(event.ts * 1000))
        return above.line if number is None else f"{above.function}:{number}"


def _is_outermost(caller: OpCall | None, event: TraceEvent) -> bool:
    if event.cat != "cpu_op" or event.name.startswith(_BACKWARD):
        return False
    return caller is None or caller.name.startswith(_BACKWARD)


def _is_of_library(file: str) -> bool:
    top = file.partition("/")[0] if not file.startswith("/") else file
    if top.removesuffix(".py") in _LIBRARIES or top.startswith("<frozen "):
        return True
    return f"{os.sep}lib{os.sep}python" in file and "site-packages" not in file


@dataclass(slots=True)
class Total:
    """Sums over calls."""

    calls: int = 0
    self_us: float = 0.0
    whole_us: float = 0.0
    backward_us: float = 0.0
    cuda_us: float = 0.0
    allocated_bytes: int = 0
    modules: defaultdict[str | None, float] = field(default_factory=lambda: defaultdict(float))
    """Self time (device time where there is any) by module ..."""
    lines: defaultdict[str | None, float] = field(default_factory=lambda: defaultdict(float))
    """... and by line."""

    def add(self, call: OpCall, *, has_device: bool) -> None:
        """Add one call."""
        self.calls += 1
        self.self_us += call.self_us
        self.whole_us += call.end_us - call.start_us
        self.backward_us += call.self_us if call.is_backward else 0.0
        self.cuda_us += call.cuda_us
        self.allocated_bytes += call.allocated_bytes
        weight = call.cuda_us if has_device else call.self_us
        self.modules[call.place.module] += weight
        self.lines[call.place.line] += weight

    @property
    def module(self) -> str | None:
        """Where most of the time is."""
        return largest(self.modules)

    @property
    def line(self) -> str | None:
        """The line that most of the time is on."""
        return largest(self.lines)


def largest(weights: Mapping[str | None, float]) -> str | None:
    """The key of the largest weight; None where there is none."""
    return max(weights, key=lambda key: weights[key], default=None)


def total_by_op(table: ProfileTable) -> dict[str, Total]:
    """Sum up the calls of each operation."""
    totals: defaultdict[str, Total] = defaultdict(Total)
    for call in table.script_calls:
        totals[call.name].add(call, has_device=table.has_device)
    return dict(totals)


def total_by_module(table: ProfileTable) -> dict[str, Total]:
    """Sum up by the innermost module; calls outside any are left out."""
    totals: defaultdict[str, Total] = defaultdict(Total)
    for call in table.script_calls:
        if call.place.module is not None:
            totals[call.place.module].add(call, has_device=table.has_device)
    return dict(totals)


def total_by_line(table: ProfileTable) -> dict[str, Total]:
    """Sum up by line of the script."""
    totals: defaultdict[str, Total] = defaultdict(Total)
    for call in table.script_calls:
        if call.place.line is not None:
            totals[call.place.line].add(call, has_device=table.has_device)
    return dict(totals)
