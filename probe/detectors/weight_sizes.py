"""Weights that have another size than a few steps before, though no update can have made them so.

Something has written to them: an initialisation, `load_state_dict`, a copy of an average. Asked by the
incidents when an event begins; numpy only, no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from .base import Observation, ObservationBatch
from .changes import Change

_FACTOR: Final = 10.0
"""Times the norm: with gradients and a learning rate as usual, no ten updates do that."""
_LONGEST: Final = 64
"""Steps since the norms were measured; within more of them a weight may grow so by itself."""
_LEAST_UPDATES: Final = 8
"""Steps from the first one on: weights that begin at 0 grow by any factor at first."""


class WeightSizes:
    """Keeps the newest norms of the parameters that were measured."""

    def __init__(self) -> None:
        self._step, self._norms = -1, dict[str, float]()

    @property
    def count(self) -> int:
        """Parameters whose norms are known."""
        return len(self._norms)

    def note(self, observed: Observation | ObservationBatch) -> None:
        """Take what a step, or the last of several, has of the norms."""
        if isinstance(observed, Observation):
            measured = [(observed.step, observed.parameter_norm)]
        else:
            measured = list(zip(observed.steps, observed.parameter_norms, strict=True))
        for step, norms in reversed(measured):
            if norms is not None:
                self._step = step
                self._norms = dict(zip(observed.parameter_names, norms.tolist(), strict=True))
                return

    def change(self, step: int, now: Mapping[str, float]) -> Change | None:
        """Return the parameter that has changed its size most, if by more than updates do.

        Args:
            step: under way; its update has not been made.
            now: the norms by name.
        """
        if not _LEAST_UPDATES <= self._step < step <= self._step + _LONGEST:
            return None
        found = ("", 0.0)
        for name, norm in now.items():
            before = self._norms.get(name, 0.0)
            if before > 0.0 and norm > 0.0 and math.isfinite(before) and math.isfinite(norm):
                found = max(found, (name, abs(math.log(norm / before))), key=lambda pair: pair[1])
        name, change = found
        if change < math.log(_FACTOR):
            return None
        since = f"norm {self._norms[name]:.2g} at step {self._step}, now {now[name]:.2g}"
        return Change("weights", step, f"of `{name}` ({since})")
