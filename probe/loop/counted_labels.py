"""Counts the labels that a classification loss is of, read from its graph.

Used by the label looks on the training thread, in the first hundreds of steps at most. Reads the targets
that autograd keeps on the host. Of a loss of several terms, or with weights, none are read.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from ..compat.torch_nodes import saved_tensor, saved_value
from ..detectors.base import Floats
from ..detectors.label_frequencies import LabelledLoss
from .guessed_losses import MEAN, NONE, is_unweighted, name_of
from .misfit_losses import classes_behind

_MOST_LABELS: Final = 65_536
_MOST_COUNTS: Final = 64
"""Classes, or outputs with two answers each: what has more is a language, where frequencies come first."""


def labels_in_loss(losses: object) -> LabelledLoss | None:
    """Return the loss with its labels' counts; None where they cannot be read, or it is no mean of one.

    Args:
        losses: what backward is called on.
    """
    given = losses if isinstance(losses, list | tuple) else (losses,)
    if len(given) != 1 or not isinstance(given[0], Tensor) or not given[0].is_cpu or given[0].numel() != 1:
        return None
    node: Any = given[0].grad_fn
    factor, reduction = 1.0, MEAN
    if name_of(node) == "Div" and (divisor := _divisor(node)) is not None:
        # An accumulation's.
        node, factor = node.next_functions[0][0], divisor
    if name_of(node) == "Mean":
        node, reduction = node.next_functions[0][0], NONE
    if node is None or not is_unweighted(node, reduction) or saved_tensor(node, "pos_weight") is not None:
        return None
    counts = _counts(node)
    return None if counts is None else LabelledLoss(float(given[0].detach()) * factor, counts)


def _divisor(node: Any) -> float | None:
    other = saved_value(node, "other")
    if isinstance(other, Tensor):
        other = other.item() if other.numel() == 1 and other.is_cpu else None
    return float(other) if isinstance(other, int | float) and other > 0 else None


def _counts(node: Any) -> Floats | None:
    name, target = name_of(node), saved_tensor(node, "target")
    if target is None or not target.is_cpu or not 0 < target.numel() <= _MOST_LABELS:
        return None
    with torch.no_grad():
        if name in ("NllLoss", "NllLoss2D"):
            return _classes(target.reshape(-1), classes_behind(node), saved_value(node, "ignore_index"))
        if name in ("BinaryCrossEntropyWithLogits", "BinaryCrossEntropy"):
            return _answers(target)
    return None


def _classes(target: Tensor, classes: int, ignored: Any) -> Floats | None:
    if not 2 <= classes <= _MOST_COUNTS or target.is_floating_point():
        return None
    counted = target[(target >= 0) & (target < classes)]
    if counted.numel() != int((target != _signed(ignored)).sum()) or not counted.numel():
        return None
    counts: Floats = torch.bincount(counted, minlength=classes).double().numpy()
    return counts[None, :]


def _signed(number: Any) -> int:
    return int(number) - (int(number) >= 2**63) * 2**64


def _answers(target: Tensor) -> Floats | None:
    """(outputs, 2) how often each is 0 and 1; None where they are shares, or of an image."""
    columns = target[:, None] if target.dim() == 1 else target
    if columns.dim() != 2 or 2 * columns.shape[1] > _MOST_COUNTS:
        return None
    if not bool(((columns == 0) | (columns == 1)).all()):
        return None
    ones = columns.sum(0, dtype=torch.float64).numpy()
    return np.stack([len(columns) - ones, ones], axis=1)
