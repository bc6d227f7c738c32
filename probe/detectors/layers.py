"""From parameters to layers: the norm of a layer is the L2 norm over the parameters that it owns.

Vectorised, because a model may have thousands of layers. Also which modules a set of parameters makes up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from .base import AnyFloats, Floats, Observation, ObservationBatch

_NORMS: Final = "layer norms"


class LayerIndex:
    """Where each layer's parameters lie; rebuilt when the layout changes."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] | None = None
        self._layer_of: npt.NDArray[np.intp] | None = None
        self._starts: npt.NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        self._each = 0
        """Parameters of each layer, where all have as many; else 0."""
        self.layers: npt.NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        """Layers that own a parameter, ascending: index into `layer_names` of each row."""

    def update(self, observation: Observation, begin: Callable[[], None], *, is_again: bool) -> None:
        """Follow the observation's layout.

        Args:
            observation: the newest.
            begin: called where its layout is another one than before: what was learnt is of other layers.
            is_again: steps are repeated, so that all begins anew in any case.
        """
        if is_again or not self.is_of(observation):
            # Known once all is done: what a signal's handler breaks off in here is done again.
            self._layer_of = None
            self.layers, self._starts = np.unique(observation.layer_of, return_index=True)
            sizes = np.diff(self._starts, append=len(observation.layer_of))
            self._each = int(sizes[0]) if len(sizes) and (sizes == sizes[0]).all() else 0
            begin()
        self._names, self._layer_of = observation.parameter_names, observation.layer_of

    def is_of(self, observed: Observation | ObservationBatch) -> bool:
        """Whether this is the layout of what was observed."""
        if observed.layer_of is self._layer_of and observed.parameter_names is self._names:
            return True
        return (
            self._layer_of is not None
            and observed.parameter_names == self._names
            and np.array_equal(observed.layer_of, self._layer_of)
        )

    def norms(self, observation: Observation) -> Floats:
        """Return the gradient's L2 norm per row, (rows,); NaN where no parameter of it has a gradient.

        Parameters without a gradient count as absent. Inf stays Inf. No overflow: scaled by the largest.
        """
        if observation.grad_norm is None:
            return np.full(len(self.layers), np.nan)
        missing = None if observation.missing is None else observation.missing[None]
        norms: Floats = self.batch_norms(observation.grad_norm[None], missing)[0]
        return norms

    def norms_of(self, batch: ObservationBatch) -> Floats:
        """Return `batch_norms` of a batch of this layout: computed for the first who asks, read-only."""
        norms = batch.kept.get(_NORMS)
        if norms is None:
            norms = batch.kept[_NORMS] = self.batch_norms(batch.grad_norm, batch.missing)
            norms.setflags(write=False)
        return norms

    def batch_norms(self, grad_norm: AnyFloats, missing: npt.NDArray[np.bool_] | None) -> Floats:
        """Return the norms of several steps: (steps, parameters) in, (steps, rows) out."""
        if not len(self.layers):
            return np.full((len(grad_norm), 0), np.nan)
        values = np.abs(grad_norm, dtype=np.float64)
        top = values.max(axis=1, keepdims=True)
        if missing is None and top.max() < np.inf and top.min() > 0.0:
            return self._norms_of_plain(values, top)
        absent = np.isnan(values) if missing is None else missing | np.isnan(values)
        values[absent] = 0.0
        top = values.max(axis=1, keepdims=True)
        if top.max() < np.inf and top.min() > 0.0:
            result = self._norms_of_plain(values, top)
        else:
            result = np.stack([self._scaled_norms(row) for row in values])
        return np.where(self.any(~absent), result, np.nan) if absent.any() else result

    def _norms_of_plain(self, values: Floats, top: Floats) -> Floats:
        """The same of finite numbers, none of them negative, with the largest of each step above 0."""
        values /= top
        np.multiply(values, values, out=values)
        norms = np.sqrt(self._sums(values))
        norms *= top
        return norms

    def _sums(self, squares: Floats) -> Floats:
        """Sums of each layer's, (steps, rows): of one or two alike at a fifth of the cost of `reduceat`."""
        if self._each == 1:
            return squares
        if self._each == 2:
            return squares[:, ::2] + squares[:, 1::2]
        sums: Floats = np.add.reduceat(squares, self._starts, axis=1)
        return sums

    def _scaled_norms(self, values: Floats) -> Floats:
        """The same of one step, (parameters,), that may be zero or infinite as a whole."""
        scale = float(values.max())
        if not 0.0 < scale < np.inf:
            largest: Floats = np.maximum.reduceat(values, self._starts)
            return largest
        values /= scale
        norms: Floats = scale * np.sqrt(np.add.reduceat(values * values, self._starts))
        return norms

    def any(self, mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return (..., rows): whether `mask`, (..., parameters), is true for any parameter of the layer."""
        if not len(self._starts):
            return np.zeros((*mask.shape[:-1], 0), dtype=np.bool_)
        return np.maximum.reduceat(mask, self._starts, axis=-1)

    def name(self, observation: Observation, row: int) -> str:
        """Return the layer's qualified name."""
        return observation.layer_names[int(self.layers[row])]


def in_words(layer: str) -> str:
    """Name a layer in a sentence, in backticks; the root module's own name is empty."""
    return f"`{layer}`" if layer else "the root module"


def and_more(count: int) -> str:
    """Say how many layers are affected besides the one named; empty for none."""
    return f" and {count} more layer{'s' if count > 1 else ''}" if count else ""


def topmost_modules(names: Sequence[str], chosen: npt.NDArray[np.bool_]) -> dict[str, tuple[str, ...]]:
    """Group the chosen parameters by the outermost modules that contain no other.

    A parameter whose own module has others besides is its own group, by its full name.
    """
    total: dict[str, int] = {}
    inside: dict[str, int] = {}
    for name, is_chosen in zip(names, chosen, strict=True):
        for module in _modules_above(name):
            total[module] = total.get(module, 0) + 1
            inside[module] = inside.get(module, 0) + bool(is_chosen)
    groups: dict[str, list[str]] = {}
    for name, is_chosen in zip(names, chosen, strict=True):
        if is_chosen:
            whole = (module for module in _modules_above(name) if inside[module] == total[module])
            groups.setdefault(next(whole, name), []).append(name)
    return {module: tuple(members) for module, members in groups.items()}


def _modules_above(name: str) -> list[str]:
    """Of `a.b.weight`: the root, a, a.b."""
    segments = name.split(".")[:-1]
    return [".".join(segments[:count]) for count in range(len(segments) + 1)]
