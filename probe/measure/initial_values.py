"""Whether parameters still have the values that an initialisation of torch gave them. Reads, changes nothing.

Called on the training thread for modules that are frozen, once a run. An initialisation leaves a trace that
training destroys: uniform values that all lie below a bound which the layer's size gives.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor, nn

_MIN_ELEMENTS: Final = 64
_MOST_ELEMENTS: Final = 65_536
_ERRORS: Final = 5.0
"""Standard errors by which a deviation may be off."""
_ROUNDING: Final = 1e-5
_KNOWN: Final = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def is_as_initialised(module: nn.Module) -> bool | None:
    """Return whether all linear and convolutional weights in it are; None where there is none to judge."""
    layers = (inner for inner in module.modules() if isinstance(inner, _KNOWN))
    weights = [layer.weight for layer in layers if layer.weight.numel() >= _MIN_ELEMENTS]
    return all(map(_is_uniform, weights)) if weights else None


def _is_uniform(weight: Tensor) -> bool:
    """Whether it is uniform between -b and b, b one of the bounds of torch's initialisations."""
    with torch.no_grad():
        some = weight.detach().reshape(-1)[:_MOST_ELEMENTS].double()
        highest, std = float(some.abs().max()), float(some.std())
    # Kurtosis 1.8: the deviation of n values is off by 1 / sqrt(5 n).
    error = _ERRORS / math.sqrt(5.0 * some.numel())
    return any(
        highest <= bound * (1.0 + _ROUNDING) and abs(std / bound * math.sqrt(3.0) - 1.0) <= error
        for bound in _bounds(weight)
    )


def _bounds(weight: Tensor) -> Iterator[float]:
    receptive = weight[0][0].numel() if weight.dim() > 2 else 1
    inputs, outputs = weight.shape[1] * receptive, weight.shape[0] * receptive
    yield 1.0 / math.sqrt(inputs)  # what Linear and the convolutions do by themselves
    yield math.sqrt(6.0 / inputs)  # kaiming_uniform_ for ReLU
    yield math.sqrt(6.0 / (inputs + outputs))  # xavier_uniform_
