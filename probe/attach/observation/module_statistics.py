"""Makes columns, one value per module or per call, of what one step's calls have told. Numbers only."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from ...measure.kernels import call_binding
from ...measure.kernels.call_binding import Columns, packed_columns
from ...wire import ModuleColumn, ModuleInfo
from ...wire.magnitude_bins import BINS
from ...wire.module_frames import MODULE_STATES, pack_module_columns
from .call_table import CallTable, Mask
from .dead_units import DeadUnits, all_active
from .kernel_step import KernelStep
from .measured_rows import COUNTS, STATISTICS, Floats, combine_by
from .modules import ModuleIndex

if TYPE_CHECKING:
    from .call_clock import Nanoseconds
    from .observed_step import ModuleCall, ObservedStep


_OBSERVED: Final = (
    "calls",
    *(f"activation_{name}" for name in (*STATISTICS, *COUNTS)),
    *("units", "dead_units"),
)
"""Columns of a step of which only outputs are measured, as the kernel has them too."""


class ModuleStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one sampled step says of the model's modules."""

    modules: tuple[ModuleInfo, ...]
    """What the rows stand for; the same object as long as nothing changes."""
    generation: int
    """Goes up with every change of `modules`."""
    rows: npt.NDArray[np.intp] | None
    """(rows,) index into `modules` of each call, in the order of the calls; None: one row per module."""
    columns: Mapping[str, Floats]
    """(rows,) values by name, see `module_frames.MODULE_COLUMNS`."""
    missing: Mapping[str, Mask]
    """(rows,) by name, where a column has no value (which is then 0)."""
    states: npt.NDArray[np.uint8]
    """(modules,) index into `module_frames.MODULE_STATES`."""
    activation_histogram: npt.NDArray[np.int64] | None = None
    """(rows, BINS) counts of the outputs' elements by magnitude."""
    made: Columns | None = None
    """Where the kernel has made the columns: they are views of this."""

    def packed(self) -> list[ModuleColumn]:
        """Return the columns as a frame has them."""
        packed = None if self.made is None else _packed(self.made)
        return pack_module_columns(self.columns, self.missing) if packed is None else packed

    def value(self, column: str, module: str) -> float | None:
        """Return one module's value (of its first row); None where it has none."""
        names = [info.name for info in self.modules]
        wanted = names.index(module)
        row = wanted if self.rows is None else int(np.flatnonzero(self.rows == wanted)[0])
        if column not in self.columns or self.missing[column][row]:
            return None
        return float(self.columns[column][row])


class _Columns:
    """Columns under construction; `row_of` sends each call to its row, -1 for calls that failed."""

    def __init__(self, row_of: npt.NDArray[np.intp], rows: int) -> None:
        self._rows = rows
        self.row_of = row_of
        self._done = np.flatnonzero(row_of >= 0)
        self.done: list[int] = self._done.tolist()
        self.columns: dict[str, Floats] = {}
        self.missing: dict[str, Mask] = {}

    def total(self, name: str, values: Floats) -> None:
        """Add up (calls,) values by row; rows without a call have none."""
        chosen = self.row_of[self._done]
        totals: Floats = np.zeros(self._rows)
        np.add.at(totals, chosen, values[self._done])
        self.columns[name] = totals
        self.missing[name] = np.bincount(chosen, minlength=self._rows) == 0

    def put(self, name: str, values: Floats, missing: Mask) -> None:
        """Take a finished column."""
        self.columns[name], self.missing[name] = values, missing


def build_statistics(
    step: ObservedStep | KernelStep, index: ModuleIndex, dead: DeadUnits
) -> ModuleStatistics | None:
    """Bring a closed step to the host and arrange it; `dead` notes its activity. None without calls."""
    if isinstance(step, KernelStep) and step.columns is not None:
        return _arranged(step.columns, index, dead)
    calls = step.table()
    if not len(calls.rows):
        return None
    done = calls.done
    row_of = np.full(len(calls.rows), -1, dtype=np.intp)
    modules = calls.rows[done]
    row_of[done] = np.arange(len(done)) if step.lists_calls else modules
    rows = len(done) if step.lists_calls else len(index.infos)
    table = _Columns(row_of, rows)
    table.total("calls", np.ones(len(row_of)))
    if step.measures_outputs:
        is_measured = calls.outputs[done] >= 0
        pairs = np.stack([done[is_measured], calls.outputs[done[is_measured]]], axis=1)
        _add_rows(table, "activation", calls.measured, calls.elements, pairs)
        _add_units(table, calls, dead)
    counts = None
    if not isinstance(step, KernelStep):
        _add_others(table, step, index)
        counts = _histogram(table, step, rows) if step.counts_magnitudes else None
    return ModuleStatistics(
        modules=index.infos,
        generation=index.generation,
        rows=modules if step.lists_calls else None,
        columns=table.columns,
        missing=table.missing,
        states=_states(calls, index, measures_outputs=step.measures_outputs),
        activation_histogram=counts,
    )


def _arranged(made: Columns, index: ModuleIndex, dead: DeadUnits) -> ModuleStatistics:
    """Add the dead units to what the kernel has arranged."""
    _add_dead_units(made, dead)
    return ModuleStatistics(
        modules=index.infos,
        generation=index.generation,
        rows=None,
        columns=_Rows(made, "block"),
        missing=_Rows(made, "gaps"),
        states=made.states,
        made=made,
    )


def _add_dead_units(made: Columns, dead: DeadUnits) -> None:
    rows, units = made.whole
    if dead.is_settled(rows + units):
        made.close_gaps_of_dead_units()
    else:
        whole = np.frombuffer(rows, np.intp)
        counts = dead.note_active(whole, np.frombuffer(units, np.intp))
        for row, count in zip(whole.tolist(), counts.tolist(), strict=True):
            made.put_dead_units(row, None if math.isnan(count) else int(count))
    for row, active in made.partly().items():
        made.put_dead_units(row, dead.note(row, active))


class _Rows(Mapping[str, npt.NDArray[Any]]):
    """The rows of an array of `Columns` by name; the recorder's thread is the first that asks for one."""

    __slots__ = ("_made", "_rows", "_which")

    def __init__(self, made: Columns, which: Literal["block", "gaps"]) -> None:
        self._made, self._which = made, which
        self._rows: dict[str, npt.NDArray[Any]] = {}

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        if not self._rows:
            self._rows = dict(zip(_OBSERVED, getattr(self._made, self._which), strict=True))
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_OBSERVED)

    def __len__(self) -> int:
        return len(_OBSERVED)


def _packed(made: Columns) -> list[ModuleColumn] | None:
    functions = call_binding.functions()
    packed = None if functions is None else functions.pack(made.memory)
    if packed is None:
        return None
    return [
        ModuleColumn(name=_OBSERVED[at], dtype="f4", data=data, missing=marks)
        for at, data, marks in packed_columns(packed, made.rows)
    ]


def _add_others(table: _Columns, step: ObservedStep, index: ModuleIndex) -> None:
    """Gradients, times and memory, where they are due."""
    if step.measures_gradients:
        _add_gradients(table, step)
    if step.measures_times:
        _add_times(table, step)
    if step.measures_memory:
        _add_memory(table, step, index)


def _add_gradients(table: _Columns, step: ObservedStep) -> None:
    measured = step.gradients.fetch()
    pairs = [(call, number) for call in table.done for number in _gradients_of(step, step.calls[call])]
    chosen = np.array(pairs, dtype=np.intp).reshape(-1, 2)
    sizes = np.array(step.gradients.elements, dtype=np.float64)
    rms, elements = _add_rows(table, "activation_gradient", measured, sizes, chosen)
    name = "activation_gradient_norm"
    table.put(name, rms * np.sqrt(elements), table.missing["activation_gradient_max_abs"])


def _gradients_of(step: ObservedStep, call: ModuleCall) -> tuple[int, ...]:
    return () if call.gradient is None else step.gradients_of[call.gradient]


def _add_rows(
    table: _Columns,
    prefix: str,
    measured: Floats,
    elements: Floats,
    pairs: npt.NDArray[np.intp],
) -> tuple[Floats, Floats]:
    """Combine measured rows, given as (call, number), by table row; returns each row's rms and elements."""
    groups, numbers = table.row_of[pairs[:, 0]], pairs[:, 1]
    sizes = elements[numbers]
    count = len(table.columns["calls"])
    combined = combine_by(groups, measured[numbers], sizes, count)
    totals = np.zeros(count)
    np.add.at(totals, groups, sizes)
    missing = totals == 0
    is_gradient = prefix == "activation_gradient"
    for name, values in zip((*STATISTICS, *COUNTS), np.ascontiguousarray(combined.T), strict=True):
        if not (is_gradient and name in ("rms", "zero_fraction", "saturated_fraction")):
            table.put(f"{prefix}_{name}", values, missing)
    return combined[:, 0], totals


def _add_units(table: _Columns, calls: CallTable, dead: DeadUnits) -> None:
    """Dead units are a module's, over all its calls; each of its rows says the same."""
    done = calls.done[calls.outputs[calls.done] >= 0]
    done = done[calls.units[calls.outputs[done]] > 0]
    rows, numbers = calls.rows[done], calls.outputs[done]
    count = int(calls.rows.max(initial=-1)) + 1
    units, dead_units = np.full(count, np.nan), np.full(count, np.nan)
    # The newest call counts where their numbers of units differ.
    units[rows] = calls.units[numbers]
    is_partly = np.zeros(count, dtype=np.bool_)
    if calls.activity:
        is_partly[rows[[number in calls.activity for number in numbers.tolist()]]] = True
    whole = np.flatnonzero(~is_partly & ~np.isnan(units))
    dead_units[whole] = dead.note_active(whole, units[whole].astype(np.intp))
    if calls.activity:
        for row, active in _activity_by_row(rows, numbers, is_partly, calls).items():
            found = dead.note(row, active)
            dead_units[row] = np.nan if found is None else found
    _put_by_module(table, "units", units, calls)
    _put_by_module(table, "dead_units", dead_units, calls)


def _activity_by_row(
    rows: npt.NDArray[np.intp], numbers: npt.NDArray[np.intp], is_partly: Mask, calls: CallTable
) -> dict[int, Mask]:
    """Which units of the modules that are not all active were, over all calls of the same number of units."""
    found: dict[int, Mask] = {}
    chosen = is_partly[rows]
    for row, number in zip(rows[chosen].tolist(), numbers[chosen].tolist(), strict=True):
        own = calls.activity.get(number)
        own = all_active(int(calls.units[number])) if own is None else own
        before = found.get(row)
        found[row] = own | before if before is not None and len(before) == len(own) else own
    return found


def _put_by_module(table: _Columns, name: str, by_module: Floats, calls: CallTable) -> None:
    """Take one value for each module, NaN for none; all its calls that are done have the same."""
    given = by_module[calls.rows[table.done]]
    rows = len(table.columns["calls"])
    column, missing = np.zeros(rows), np.ones(rows, dtype=np.bool_)
    known = ~np.isnan(given)
    chosen = table.row_of[table.done][known]
    column[chosen], missing[chosen] = given[known], False
    table.put(name, column, missing)


def _add_times(table: _Columns, step: ObservedStep) -> None:
    marks = step.clock.read() / 1e9
    if len(marks) % 2:
        # A failure of the probe's own code left a pair open: nothing can be said of this step.
        return
    forward = forward_times(step.calls, marks)
    backward = backward_times(step, marks)
    parents = [call.parent for call in step.calls]
    table.total("forward_time_s", forward)
    table.total("forward_self_time_s", forward - _sum_of_children(forward, parents))
    if backward is not None:
        inclusive = backward.copy()
        for index in range(len(parents) - 1, -1, -1):
            if parents[index] >= 0:
                inclusive[parents[index]] += inclusive[index]
        table.total("backward_time_s", inclusive)
        table.total("backward_self_time_s", backward)


def forward_times(calls: list[ModuleCall], marks: Nanoseconds) -> Floats:
    """Return the (calls,) times between begin and end without the probe's own in between; 0 if unfinished."""
    own = np.concatenate([[0.0], np.cumsum(marks[1::2] - marks[::2])])
    result = np.zeros(len(calls))
    for index, call in enumerate(calls):
        if call.ended >= 0:
            # `began` ends a pair of marks and `ended` begins one.
            inside = own[call.ended // 2] - own[call.began // 2 + 1]
            result[index] = marks[call.ended] - marks[call.began] - inside
    return result


def backward_times(step: ObservedStep, marks: Nanoseconds) -> Floats | None:
    """Return the (calls,) times in which backward computed what each call itself had; None if none ran."""
    result = np.zeros(len(step.calls))
    owner, since, has_any = -1, 0.0, False
    for begun, ended, following in step.switches:
        if owner >= 0:
            result[owner] += marks[begun] - since
            has_any = True
        owner = owner if following is None else following
        since = float(marks[ended])
    return result if has_any else None


def _sum_of_children(values: Floats, parents: list[int]) -> Floats:
    result = np.zeros(len(values))
    for value, parent in zip(values, parents, strict=True):
        if parent >= 0:
            result[parent] += value
    return result


def _add_memory(table: _Columns, step: ObservedStep, index: ModuleIndex) -> None:
    calls = step.calls
    table.total("output_bytes", np.array([call.output_bytes for call in calls], dtype=np.float64))
    table.total("saved_bytes", np.array([call.saved_bytes for call in calls], dtype=np.float64))
    if step.device.type == "cuda":
        grown = np.array([call.allocated_bytes for call in calls], dtype=np.float64)
        table.total("allocated_bytes", grown - _sum_of_children(grown, [call.parent for call in calls]))
    own = np.array(index.parameter_bytes(), dtype=np.float64)
    if step.lists_calls:
        own = own[[calls[number].row for number in table.done]]
    table.put("parameter_bytes", own, np.zeros(len(own), dtype=np.bool_))


def _histogram(table: _Columns, step: ObservedStep, rows: int) -> npt.NDArray[np.int64]:
    result = np.zeros((rows, BINS), dtype=np.int64)
    counts = step.outputs.histograms()
    for index in table.done:
        output = step.calls[index].output
        if output is not None and output in counts:
            result[table.row_of[index]] += counts[output]
    return result


def _states(calls: CallTable, index: ModuleIndex, *, measures_outputs: bool) -> npt.NDArray[np.uint8]:
    observed, not_called, compiled, no_tensor = range(len(MODULE_STATES))
    states = np.full(len(index.infos), not_called, dtype=np.uint8)
    for row in calls.compiled_rows:
        states[list(index.rows_below(row))] = compiled
    rows, outputs = calls.rows[calls.done], calls.outputs[calls.done]
    states[rows[outputs < 0]] = no_tensor
    states[rows[(outputs >= 0) | (not measures_outputs)]] = observed
    return states
