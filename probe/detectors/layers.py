"""From parameters to layers: the norm of a layer is the L2 norm over the parameters that it owns.

Used by the gradient detectors; vectorised, because a model may have thousands of layers.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .base import Floats, Observation


class LayerIndex:
    """Where each layer's parameters lie; rebuilt when the layout changes."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] | None = None
        self._layer_of: npt.NDArray[np.intp] | None = None
        self._starts: npt.NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        self.layers: npt.NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        """Layers that own a parameter, ascending: index into `layer_names` of each row."""

    def update(self, observation: Observation) -> bool:
        """Follow the observation's layout; True when it is another one than before."""
        if observation.layer_of is self._layer_of and observation.parameter_names is self._names:
            return False
        if (
            self._layer_of is not None
            and observation.parameter_names == self._names
            and np.array_equal(observation.layer_of, self._layer_of)
        ):
            return False
        self._names, self._layer_of = observation.parameter_names, observation.layer_of
        self.layers, self._starts = np.unique(observation.layer_of, return_index=True)
        return True

    def norms(self, observation: Observation) -> Floats:
        """Return the gradient's L2 norm per row, (rows,); NaN where no parameter of it has a gradient.

        Parameters without a gradient count as absent. Inf stays Inf. No overflow: scaled by the largest.
        """
        norm = observation.grad_norm
        if norm is None or not len(self.layers):
            return np.full(len(self.layers), np.nan)
        values = np.abs(norm)
        absent = np.isnan(values) if observation.missing is None else observation.missing | np.isnan(values)
        has_absent = bool(absent.any())
        if has_absent:
            values[absent] = 0.0
        scale = float(values.max())
        if scale > 0.0 and np.isfinite(scale):
            values /= scale
            result = scale * np.sqrt(np.add.reduceat(values * values, self._starts))
        else:
            result = np.maximum.reduceat(values, self._starts)
        return np.where(self.any(~absent), result, np.nan) if has_absent else result

    def any(self, mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return (rows,): whether `mask`, (parameters,), is true for any parameter of the layer."""
        if not len(self._starts):
            return np.zeros(0, dtype=np.bool_)
        return np.maximum.reduceat(mask, self._starts)

    def name(self, observation: Observation, row: int) -> str:
        """Return the layer's qualified name."""
        return observation.layer_names[int(self.layers[row])]


def in_words(layer: str) -> str:
    """Name a layer in a sentence: the root module's own name is empty."""
    return layer or "the root module"


def and_more(count: int) -> str:
    """Say how many layers are affected besides the one named; empty for none."""
    return f" and {count} more layer{'s' if count > 1 else ''}" if count else ""
