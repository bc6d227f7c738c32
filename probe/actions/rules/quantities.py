"""The numbers of one step, by the names that conditions use. Numpy only; on the training thread.

An array is (1,) for a quantity of the whole model and (matches,) for one with a pattern. NaN stands for what
this layer, parameter or module has no number of; None for what was not measured at the step at all.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from ...attach.layout import ModelLayout
from ...delivery.control.grammar import LOGGED, Quantity
from ...delivery.host_memory import MemorySample
from ...step.frames import MeasuredStep, module_sample

Floats = npt.NDArray[np.float64]
_MIB: Final = 1024.0**2
_MODULE_COLUMNS: Final = {"activation_rms": "activation_rms", "activation_max": "activation_max_abs"}
_SCALARS: Final = {
    "grad_norm": "grad_norm",
    "update_ratio": "update_ratio",
    "amp_scale": "amp_scale",
    "step_time_s": "step_time_s",
}


class Matches(msgspec.Struct, frozen=True):
    """The rows that a pattern matches: layers first, then parameters; or modules."""

    names: tuple[str, ...]
    rows: npt.NDArray[np.intp]


class NameIndex:
    """Which layers, parameters and modules a pattern matches; follows the layout."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._all: tuple[str, ...] = ()
        self._found: dict[str, Matches] = {}
        self._modules: tuple[str, ...] = ()
        self._found_modules: dict[str, Matches] = {}
        self.starts: npt.NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        """(layers,) first parameter of each layer."""

    def follow(self, layout: ModelLayout) -> None:
        """Take in the layout of the step that is judged."""
        if layout.names is self._names:
            return
        self._names = layout.names
        layers, self.starts = np.unique(layout.layer_of, return_index=True)
        self._all = (*(layout.layer_names[layer] for layer in layers), *layout.names)
        self._found = {}

    def match(self, pattern: str) -> Matches:
        """Return what a pattern matches of the layers and parameters."""
        if (found := self._found.get(pattern)) is None:
            found = self._found[pattern] = _match(pattern, self._all)
        return found

    def match_modules(self, pattern: str, names: tuple[str, ...]) -> Matches:
        """Return what a pattern matches of these modules."""
        if names != self._modules:
            self._modules, self._found_modules = names, {}
        if (found := self._found_modules.get(pattern)) is None:
            found = self._found_modules[pattern] = _match(pattern, names)
        return found


def _match(pattern: str, names: tuple[str, ...]) -> Matches:
    rows = [row for row, name in enumerate(names) if fnmatch.fnmatchcase(name, pattern)]
    return Matches(tuple(names[row] for row in rows), np.array(rows, dtype=np.intp))


class StepNumbers:
    """What one measured step says; computed when asked for, once.

    Args:
        measured: the step.
        index: of its names.
        memory: newest reading of the process's memory.
    """

    def __init__(self, measured: MeasuredStep, index: NameIndex, memory: MemorySample | None) -> None:
        self._measured, self._index, self._memory = measured, index, memory
        index.follow(measured.layout)
        self._columns: dict[str, Floats | None] = {}
        self._modules: tuple[tuple[str, ...], dict[str, Floats]] | None = None

    @property
    def step(self) -> int:
        """Number of the step."""
        return self._measured.step

    def read(self, quantity: Quantity) -> Floats | None:
        """Return a quantity's numbers; None where the step has none."""
        if quantity.name == LOGGED:
            return self._logged(quantity.pattern or "")
        if quantity.pattern is None:
            value = self._whole(quantity.name)
            return None if value is None else np.array([value])
        if quantity.is_of_modules:
            return self._of_modules(quantity.name, quantity.pattern)
        column = self._column(quantity.name)
        rows = self._index.match(quantity.pattern).rows
        return None if column is None or not len(rows) else column[rows]

    def names_of(self, quantity: Quantity) -> tuple[str, ...]:
        """Return the names that its numbers are of; empty for the whole model."""
        if quantity.pattern is None or quantity.name == LOGGED:
            return ()
        if quantity.is_of_modules:
            return self._index.match_modules(quantity.pattern, self._modules_of_step()[0]).names
        return self._index.match(quantity.pattern).names

    def _logged(self, name: str) -> Floats | None:
        read = self._measured.logged.get(f"log/{name}") or self._measured.logged.get(name)
        return None if read is None else np.array([read()])

    def _whole(self, name: str) -> float | None:
        measured = self._measured
        if name == "step":
            return float(measured.step)
        if name == "loss":
            read = measured.logged.get("loss")
            return measured.loss.value if read is None else read()
        if name == "learning_rate":
            rates = [value for key, value in measured.scalars.items() if key.partition("/")[0] == "lr"]
            return max(rates, default=None)
        if name == "samples":
            return float(measured.samples) or None
        if name == "memory_mib":
            return None if self._memory is None else self._memory.rss_bytes / _MIB
        if name == "cuda_memory_mib":
            allocated = measured.scalars.get("cuda_allocated_bytes")
            return None if allocated is None else allocated / _MIB
        if name == "grad_norm":
            return measured.total_norm
        if name == "step_time_s":
            return None if measured.taken is None else measured.taken.scalars()["step_time_s"]
        if name in _SCALARS:
            return measured.scalars.get(_SCALARS[name])
        return self._over_all(name)

    def _over_all(self, name: str) -> float | None:
        """A statistic of all parameters together."""
        values = self._of_parameters(name)
        if values is None:
            return None
        present = values[~np.isnan(values)]
        if not len(present):
            return None
        if name == "parameter_norm":
            return float(np.sqrt(np.square(present).sum()))
        return float(present.max() if name == "grad_max" else present.sum())

    def _column(self, name: str) -> Floats | None:
        """One number of each layer, then of each parameter."""
        if name not in self._columns:
            values = self._of_parameters(name)
            self._columns[name] = None if values is None else self._with_layers(name, values)
        return self._columns[name]

    def _of_parameters(self, name: str) -> Floats | None:
        measured = self._measured
        if name == "parameter_norm":
            if measured.parameter_norm is None:
                return None
            return np.asarray(measured.parameter_norm, dtype=np.float64)
        if name == "update_ratio":
            ratio = measured.sampled.get("update_ratio")
            return None if ratio is None else np.where(ratio.missing, np.nan, ratio.values)
        gradients = measured.gradients
        values = {
            "grad_norm": gradients.norm,
            "grad_max": gradients.max_abs,
            "nan_count": gradients.nan_count,
            "inf_count": gradients.inf_count,
        }[name]
        return np.where(gradients.missing, np.nan, values)

    def _with_layers(self, name: str, values: Floats) -> Floats:
        """Put the layers' numbers before those of the parameters."""
        starts = self._index.starts
        absent = np.isnan(values)
        if name == "update_ratio" or not len(starts):
            layers = np.full(len(starts), np.nan)
        elif name == "grad_max":
            layers = np.maximum.reduceat(np.where(absent, 0.0, values), starts)
        elif name.endswith("_norm"):
            layers = np.sqrt(np.add.reduceat(np.square(np.where(absent, 0.0, values)), starts))
        else:
            layers = np.add.reduceat(np.where(absent, 0.0, values), starts)
        if absent.any() and len(starts):
            missing = self._measured.gradients.missing & absent
            has_nan = np.logical_or.reduceat(absent & ~missing, starts)
            is_empty = np.logical_and.reduceat(absent, starts)
            layers = np.where(has_nan | is_empty, np.nan, layers)
        return np.concatenate([layers, values])

    def _of_modules(self, name: str, pattern: str) -> Floats | None:
        names, columns = self._modules_of_step()
        column = columns.get(_MODULE_COLUMNS[name])
        rows = self._index.match_modules(pattern, names).rows
        return None if column is None or not len(rows) else column[rows]

    def _modules_of_step(self) -> tuple[tuple[str, ...], dict[str, Floats]]:
        if self._modules is None:
            sample = None if self._measured.modules is None else module_sample(self._measured.modules)
            self._modules = ((), {}) if sample is None else (sample.names, dict(sample.columns))
        return self._modules


def check_pattern(quantity: Quantity, index: NameIndex, module_names: Callable[[], tuple[str, ...]]) -> int:
    """Refuse a pattern that matches nothing in the model; return how many names it matches.

    Raises:
        ValueError: says so, with some of the names that there are.
    """
    if quantity.pattern is None or quantity.name == LOGGED:
        return 1
    if quantity.is_of_modules:
        names, what = module_names(), "module"
    else:
        names, what = index.match("*").names, "layer or parameter"
    matches = len(_match(quantity.pattern, names).names)
    if not matches:
        some = ", ".join(repr(name) for name in names[:8])
        raise ValueError(
            f"{quantity.name}({quantity.pattern!r}): no {what} has a name like that; there are {some}"
            f"{', ...' if len(names) > 8 else ''}"
        )
    return matches
