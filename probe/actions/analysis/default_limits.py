"""Default limits of the checks of gradients: apart, so that a session that checks nothing loads no check."""

from __future__ import annotations

from typing import Final

DEFAULT_EXPLOSION_NORM: Final = 10.0
DEFAULT_VANISHING_NORM: Final = 1e-6
"""Absolute L2 norms of one parameter's gradient, in loss per unit of the parameter. A convention, not a law:
what is normal depends on the model. `watch` judges against the run's own history instead."""
DEFAULT_RATIO: Final = 1e4
"""A layer is weak (strong) when its norm is this many times below the largest (above the smallest) of those
between it and the loss. In the first steps of a ResNet, an LSTM and GPT-2s up to 6 layers by 512, the largest
and the smallest norm were 93 to 333 times apart; LayerNorm's are the smallest."""
