"""Inputs that were never normalised: numbers of 10,000 and more go into the first layer as they are.

Judged on the first samples of a run, and never again. It is not the input alone that counts: a model may
divide it, take its logarithm or begin with a normalisation, and then its first layer's outputs are small.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from .base import Finding
from .cause_advice import RAW_INPUT
from .sample import Sample

SIZE: Final = 1e4
"""Largest magnitude of such an input ..."""
SPREAD: Final = 1e3
"""... and the least standard deviation of its elements."""
LARGEST: Final = 1e9
"""Beyond it lie the stand-ins for -Inf of a mask: -1e9, `torch.finfo(dtype).min`."""
BINARY: Final = 1e-6
"""A mask has two values alone, whatever they are."""
GAIN: Final = 0.03
"""The first layer's outputs are at least this share of the input's standard deviation: it came as it is."""
LOOKS: Final = 4
AGREEING: Final = 2
RECURRENT_SIZE: Final = 0.3
"""The same for recurrent layers, which return values between -1 and 1: 0.1 where inputs are about 1."""
_RECURRENT: Final = ("LSTM", "GRU", "RNN")
_FIRST_LAYERS: Final = ("Linear", "Conv1d", "Conv2d", "Conv3d")


class RawInputDetector:
    """Emits `input_out_of_range`, a warning, once."""

    def __init__(self) -> None:
        self._looks = self._agreeing = 0

    def observe(self, sample: Sample) -> list[Finding]:
        """Return a finding once two of the first samples agree."""
        if self._looks >= LOOKS or sample.inputs is None or sample.modules is None:
            return []
        self._looks += 1
        found = _raw_input(sample)
        if found is None:
            return []
        self._agreeing += 1
        if self._agreeing < AGREEING:
            return []
        self._looks = LOOKS
        return [found]


def _raw_input(sample: Sample) -> Finding | None:
    layer = _first_layer(sample)
    inputs = sample.inputs
    if layer is None or inputs is None:
        return None
    module, rms, is_recurrent = layer
    for index, name in enumerate(inputs.names):
        size, mean, std = (float(column[index]) for column in (inputs.max_abs, inputs.mean, inputs.std))
        if not (np.isfinite(size) and size >= SIZE and std >= SPREAD):
            continue
        is_binary = abs(std * std - abs(mean) * (size - abs(mean))) <= BINARY * size * size
        # Seconds since 1970 are above it as well, and positive.
        if is_binary or (size >= LARGEST and mean <= 0.0):
            continue
        if rms < (RECURRENT_SIZE if is_recurrent else GAIN * std):
            continue
        return Finding(
            kind="input_out_of_range",
            severity="warning",
            subject=name,
            message=f"Input `{name}` is not normalised: its values reach {size:.4g}, with a standard "
            f"deviation of {std:.3g}, at step {sample.step}, and go into {module} as they are, which returns "
            f"values of {rms:.3g}; layers are initialised for inputs of about 1",
            value=size,
            threshold=SIZE,
            baseline={"std": std, "mean": mean},
            advice=RAW_INPUT,
        )
    return None


def _first_layer(sample: Sample) -> tuple[str, float, bool] | None:
    """Name and output's rms of the first layer that multiplies, whether it is recurrent.

    None behind or before a normalisation.
    """
    modules = sample.modules
    assert modules is not None
    rms = modules.columns.get("activation_rms")
    if rms is None:
        return None
    parents = {name.rpartition(".")[0] for name in modules.names if name}
    leaves = [i for i, name in enumerate(modules.names) if name not in parents and np.isfinite(rms[i])]
    for at, index in enumerate(leaves):
        kind = modules.types[index]
        if "Norm" in kind:
            return None
        is_recurrent = kind in _RECURRENT
        if is_recurrent or kind in _FIRST_LAYERS:
            following = modules.types[leaves[at + 1]] if at + 1 < len(leaves) else ""
            name = modules.names[index] or "the model"
            return None if "Norm" in following else (name, float(rms[index]), is_recurrent)
    return None
