"""Values of a list of parameters, some of which have none. Pure data."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt


class MaskedValues(msgspec.Struct, frozen=True):
    """One value per parameter; where `missing`, the value is 0 and says nothing. NaN is a value."""

    values: npt.NDArray[np.float64]
    """(parameters,)."""
    missing: npt.NDArray[np.bool_]
    """(parameters,)."""

    @property
    def is_empty(self) -> bool:
        """Whether no parameter has a value."""
        return bool(self.missing.all())
