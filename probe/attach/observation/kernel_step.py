"""One sampled step whose module calls the kernel follows: at level basic, where only outputs are measured.

Takes the place of `ObservedStep` in the module observer, on the training thread. One step of the process at a
time; what the kernel does not read is measured here, by torch.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from ...compat.torch_modules import is_compiled
from ...guard import Guard
from ...measure.kernels import call_binding
from ...measure.kernels.call_binding import CallFunctions, Columns, Noted, known_modules
from ...measure.statistics.tensor_measures import unit_activity
from .call_table import CallTable
from .dead_units import all_active
from .measured_rows import WIDTH, Floats
from .modules import ModuleIndex, ModuleTraits, half_of_largest, saturation_bounds, unit_dimension
from .outputs import first_tensor, measurable
from .tensor_rows import TensorRows

_PART: Final = "module observation"
_BEYOND: Final = frozenset(
    {"activation_gradients", "module_times", "module_memory", "histograms", "module_calls"}
)
"""Features that `ObservedStep` measures."""


class KernelStep:
    """The module calls of one step, over all its micro-steps.

    Attributes:
        functions: the kernel's callbacks.
        is_closed: whether the step is over.
        columns: what a closed step has told, where the kernel has made columns of it; else there is `table`.
    """

    measures_outputs: ClassVar = True
    measures_memory: ClassVar = False
    lists_calls: ClassVar = False
    _newest: ClassVar[weakref.ref[KernelStep] | None] = None
    _known: ClassVar[Mapping[int, ModuleTraits] | None] = None
    """The modules that the kernel knows."""
    _outermost: ClassVar[tuple[ModuleTraits, Any] | None] = None
    """What the kernel is told of the outermost one, made once: to make it takes longer than the rest."""

    def __init__(self, functions: CallFunctions, index: ModuleIndex, guard: Guard) -> None:
        # Until it is whole: a signal's handler may raise before.
        self.functions, self.is_closed = functions, True
        self._index, self._guard = index, guard
        self._other, self._other_of = TensorRows(), dict[int, int]()
        """Measured by torch, and of which call."""
        self._activity: dict[int, npt.NDArray[np.bool_]] = {}
        self._units: dict[int, int] = {}
        self._noted: Noted | None = None
        self.columns: Columns | None = None
        self.is_closed = False

    @classmethod
    def begin(
        cls, features: Collection[str], index: ModuleIndex, *, guard: Guard, device: torch.device
    ) -> KernelStep | None:
        """Begin a step; None where more is due than outputs, or the kernel is not there or busy."""
        if "activations" not in features or not _BEYOND.isdisjoint(features) or device.type != "cpu":
            return None
        newest = None if cls._newest is None else cls._newest()
        functions = call_binding.functions()
        if functions is None or (newest is not None and not newest.is_closed):
            return None
        if cls._known is not index.traits:
            array = known_modules([_known(traits) for traits in index.traits.values()])
            if not functions.know(len(array), array):
                return None
            # The kernel goes by the weak references in it.
            cls._known = index.traits
        step = cls(functions, index, guard)
        cls._newest = weakref.ref(step)
        functions.begin(_take_unusual)
        return step

    @property
    def has_met_unknown(self) -> bool:
        """Whether a module was called that is not among the known ones."""
        return bool(self.functions.state.has_met_unknown)

    def begin_forward(self) -> None:
        """A forward begins: nothing is open."""
        self.functions.settle()

    def enter_outermost(self, module: nn.Module) -> int | None:
        """The outermost module is called, whose call does not come through the callbacks; returns a token."""
        traits = self._index.find(module)
        if traits is None:
            return None
        if KernelStep._outermost is None or KernelStep._outermost[0] is not traits:
            KernelStep._outermost = traits, known_modules([_known(traits)])
        # What it wraps, or it itself where its class calls on, must not count a second time.
        number = self.functions.open(KernelStep._outermost[1], call_binding.WRAPS)
        return None if number < 0 else self.functions.token_of(number)

    def end_forward(self) -> None:
        """It has returned, or raised."""
        self.functions.settle()

    def switch(self, owner: int | None) -> None:
        """Nothing here is timed."""

    def close(self) -> None:
        """The step is over: what was noted is taken, and the kernel is free for another one."""
        if self.is_closed:
            return
        # Where nothing was left to Python, the kernel has arranged it too.
        if not self._activity and not self._other_of:
            memory = self.functions.columns(len(self._index.infos))
            self.columns = None if memory is None else Columns(memory)
        if self.columns is None:
            self._noted = self.functions.noted()
        self.functions.end()
        self.is_closed = True

    def take_own_ns(self) -> int:
        """Return what the callbacks have taken since the last call."""
        state = self.functions.state
        spent_ns, state.own_ns = int(state.own_ns), 0
        return spent_ns

    def table(self) -> CallTable:
        """Return what the closed step has told."""
        noted = self._noted
        assert noted is not None
        calls, outputs = noted.calls, noted.outputs
        count, others = len(outputs), len(self._other)
        numbers = calls["output"].astype(np.intp)
        for call, number in self._other_of.items():
            numbers[call] = count + number
        measured = np.concatenate([_statistics_of(outputs), self._other.fetch()])
        elements = [*outputs["elements"].tolist(), *self._other.elements]
        units = np.zeros(count + others, dtype=np.intp)
        units[:count] = outputs["units"]
        activity = dict(self._activity)
        for number in np.flatnonzero(outputs["activity"] >= 0).tolist():
            start, size = int(outputs["activity"][number]), int(outputs["units"][number])
            activity[number] = noted.activity[start : start + size]
        for number, active in self._other.active_units().items():
            units[count + number] = len(active)
            if active is not all_active(len(active)):
                activity[count + number] = active
        compiled = calls["row"][calls["flags"] & call_binding.IS_COMPILED != 0]
        return CallTable(
            rows=calls["row"].astype(np.intp),
            outputs=numbers,
            is_done=calls["state"] == call_binding.DONE,
            measured=measured,
            elements=np.array(elements, dtype=np.float64),
            units=units,
            activity=activity,
            compiled_rows=set(compiled.tolist()),
        )

    @classmethod
    def tell_newest(cls, token: int, value: Any, output: int) -> None:
        """Take a value, or the output of this number, that the kernel could not measure in a call."""
        step = None if cls._newest is None else cls._newest()
        if step is not None:
            step._take_unusual(token, value, output)

    def _take_unusual(self, token: int, value: Any, output: int) -> None:
        self._guard.run(_PART, self._look_at_unusual, token, value, output)

    def _look_at_unusual(self, token: int, value: Any, output: int) -> None:
        """Take what the kernel has left: an output that is no plain tensor, or units that lie strangely."""
        tensor = first_tensor(value)
        if tensor is None or self.is_closed:
            return
        number = self.functions.number_of(token)
        call = self.functions.call(number)
        rule = None if call["unit_rule"] == call_binding.BY_SHAPE else int(call["unit_rule"])
        dimension = unit_dimension(rule, tensor.dim())
        if output >= 0:
            self._activity[output] = unit_activity(tensor.detach(), dimension)
            return
        if value is not tensor and self.functions.measure(token, tensor):
            return
        plain = measurable(tensor)
        if plain is None:
            return
        low, high = float(call["low"]), float(call["high"])
        bounds = half_of_largest(plain.dtype) if math.isnan(low) else (low, high)
        self._other_of[number] = measured = self._other.measure(plain, bounds)
        self._other.note_units(measured, plain, dimension)


def _take_unusual(token: int, value: Any, output: int) -> None:
    """What the kernel calls, which does not keep it: it outlives every step, one that nobody closes too."""
    KernelStep.tell_newest(token, value, output)


def _known(traits: ModuleTraits) -> tuple[Any, Any, int, int, int, float, float]:
    """What the kernel is told of a module; nothing of one that is gone."""
    module = traits.module()
    flags = call_binding.WRAPS if traits.is_wrapper else 0
    if module is not None and is_compiled(module):
        flags |= call_binding.IS_COMPILED
    rule = call_binding.BY_SHAPE if traits.unit_rule is None else traits.unit_rule
    low = high = math.nan
    if module is not None and traits.bounds_by_type:
        low, high = saturation_bounds(module, torch.empty(0)) or (math.nan, math.nan)
    return module, traits.module, traits.row, flags, rule, low, high


def _statistics_of(outputs: npt.NDArray[np.void]) -> Floats:
    """(outputs, WIDTH) in the order of `measured_rows`."""
    row, elements = outputs["row"], np.maximum(outputs["elements"], 1).astype(np.float64)
    result = np.empty((len(outputs), WIDTH))
    result[:, 0] = row[:, 0] / np.sqrt(elements)
    result[:, 1:4], result[:, 6:8] = row[:, 1:4], row[:, 4:6]
    result[:, 4], result[:, 5] = outputs["zeros"], outputs["saturated"]
    return result
