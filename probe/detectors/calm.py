"""What steps keep within as long as the detectors have nothing to say of them: limits for a glance at them.

Steps within these may wait to be judged with many others, at a fraction of the cost and with the same result.
The limits are narrower than those of the detectors, whose medians move on with the steps that wait.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from .base import Floats

MARGIN: Final = math.log(2.0)
"""How far, in natural-log units, norms stay away from a detector's limit."""
LOSS_SHARE: Final = 0.5
"""Of the rise above its median that a loss is allowed."""
GATE_SHARE: Final = 0.9
"""Of the sum of heights above which a series may have jumped."""


class LayerLimits(msgspec.Struct, frozen=True):
    """Limits of the norms of the layers, rows, and of the whole gradient."""

    starts: npt.NDArray[np.int64]
    """(rows + 1,) the first parameter of each layer, and how many there are."""
    low: Floats
    high: Floats
    """(rows,) of the logarithm of a norm."""
    median: Floats
    mad: Floats
    """(rows,) what a height is counted from, and in."""
    expected: float
    """Logarithm of the norm that the layers' medians have together."""
    common_low: float
    common_high: float
    """Of the logarithm of the norm of all layers, less `expected`."""


class HeightLimits(msgspec.Struct, frozen=True):
    """What tells that the loss, the whole gradient or a layer has gone up and stays there."""

    middle: Floats
    scale: Floats
    """(2,) of the loss and of the logarithm of the whole gradient's norm."""
    gate: Floats
    """(2 + rows,) no sum of five heights below it is a jump."""
    newest: Floats
    """(20, 2 + rows) heights of the newest steps."""


class CalmLimits(msgspec.Struct, frozen=True):
    """All of them, as they are after the steps that were judged last."""

    layers: LayerLimits
    heights: HeightLimits
    loss: float
    """The highest."""
    rate: float
    """The lowest learning rate that the group with the highest may have."""
