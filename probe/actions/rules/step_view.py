"""A finished step as a rule of the user's sees it: numbers by name, to be read only."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from ...delivery.control.grammar import Quantity
from ...step.frames import MeasuredStep
from .quantities import NameIndex, StepNumbers

_LOGGED = "log/"


class StepView:
    """One finished step. What is asked for is computed then; what was not measured is None or not there.

    Attributes:
        step: its number.
        time: UNIX seconds.
    """

    __slots__ = ("_index", "_measured", "step", "time")

    def __init__(self, measured: MeasuredStep, index: NameIndex) -> None:
        self.step, self.time = measured.step, measured.time
        self._measured, self._index = measured, index

    def __repr__(self) -> str:
        return f"StepView(step={self.step}, loss={self.loss})"

    @property
    def loss(self) -> float | None:
        """Loss of the step; what `run.log(loss=...)` gave goes before what the probe found by itself."""
        read = self._measured.logged.get("loss")
        return self._measured.loss.value if read is None else read()

    @property
    def grad_norm(self) -> float | None:
        """Global L2 norm of all gradients, before clipping."""
        return self._measured.total_norm

    @property
    def layer_grad_norms(self) -> Mapping[str, float]:
        """L2 norm of each layer's gradient, by the layer's name; a layer without a gradient is not there."""
        return self._by_name(is_layer=True)

    @property
    def parameter_grad_norms(self) -> Mapping[str, float]:
        """L2 norm of each parameter's gradient, by name; a parameter without one is not there."""
        return self._by_name(is_layer=False)

    @property
    def learning_rates(self) -> Mapping[str, float]:
        """The rate as "lr", or where groups differ one for each: "lr/0", "lr/<name of the group>"."""
        return MappingProxyType(
            {name: value for name, value in self._measured.scalars.items() if name.partition("/")[0] == "lr"}
        )

    @property
    def scalars(self) -> Mapping[str, float]:
        """Everything that a step has one number of, as on the page: see `probe.wire.SCALARS`."""
        measured = self._measured
        own = {"loss": self.loss, "grad_norm": self.grad_norm, "samples": float(measured.samples) or None}
        taken = {} if measured.taken is None else measured.taken.scalars()
        known = {name: value for name, value in own.items() if value is not None}
        return MappingProxyType({**known, **taken, **measured.scalars})

    @property
    def logged(self) -> Mapping[str, float]:
        """What the script gave to `run.log` for this step, by name."""
        return MappingProxyType(
            {name.removeprefix(_LOGGED): read() for name, read in self._measured.logged.items()}
        )

    def _by_name(self, *, is_layer: bool) -> Mapping[str, float]:
        numbers = StepNumbers(self._measured, self._index, None)
        everything = Quantity("grad_norm", "*")
        values, names = numbers.read(everything), numbers.names_of(everything)
        if values is None:
            return MappingProxyType({})
        layers = len(self._index.starts)
        chosen = slice(0, layers) if is_layer else slice(layers, None)
        missing = self._measured.gradients.missing
        absent = np.concatenate([np.logical_and.reduceat(missing, self._index.starts), missing])
        rows = zip(names[chosen], values[chosen].tolist(), absent[chosen].tolist(), strict=True)
        return MappingProxyType({name: value for name, value, is_absent in rows if not is_absent})
