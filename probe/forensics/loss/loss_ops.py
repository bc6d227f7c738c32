"""What is known by name of the ops that losses are made of: which of their autograd nodes can go wrong."""

from __future__ import annotations

from typing import Final

NO_LARGER: Final = frozenset(
    (
        "Neg Abs View UnsafeView ReshapeAlias Squeeze Unsqueeze T Transpose Permute Expand Slice Select "
        "Index Gather Clone Alias Relu Sigmoid Tanh Softmax Softplus LogSigmoid Gelu Silu Clamp ClampMin "
        "ClampMax Unbind Split SplitWithSizes Diagonal Max Min Amax Amin AsStrided"
    ).split()
)
"""Ops of one operand whose values and derivatives are finite for finite ones, without overflow."""
_SUMS_BACK: Final = frozenset("Expand Index Gather Split SplitWithSizes AsStrided".split())
"""Those of them whose derivative can add up what several elements receive."""
CALM: Final = (NO_LARGER - frozenset("Softmax Gelu Silu".split())) | frozenset(
    "Mean Sum Add Sub Rsub Cat Stack Where MaskedFill Maximum Minimum _DDPSinkBackward".split()
)
"""Ops that do not multiply a gradient by what grows without bound: only sums of theirs can overflow."""
PASSING: Final = (CALM & NO_LARGER) - _SUMS_BACK
"""Ops of one operand that make no element of a gradient larger."""
ORDINARY: Final = CALM | frozenset(
    (
        "LogSoftmax Softmax NllLoss NllLoss2D MseLoss L1Loss SmoothL1Loss HuberLoss BinaryCrossEntropy "
        "BinaryCrossEntropyWithLogits KlDiv ToCopy Mm Bmm Addmm Gelu Silu NativeDropout"
    ).split()
)
"""With the ops that are hardly ever at fault where the loss is finite: of what most losses are made."""


def operation(name: str) -> str:
    """ "Log" of "LogBackward0"; a user's own function keeps its name."""
    shortened = name.rstrip("0123456789")
    return shortened.removesuffix("Backward") if shortened != name else name
