"""What moved before an event, what was set otherwise, and what else its advice is chosen by.

Asked when an event begins.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from ..detectors.advice_when import Known
from ..detectors.base import Finding
from ..detectors.changes import Change
from ..detectors.why import RecentSteps, chain, in_order
from ..forensics.bundle.black_box import BlackBox
from .evidence import LateEvidence, StepEvidence

if TYPE_CHECKING:
    from ..forensics.replay import Replay

_MOST_WEIGHTS: Final = 50_000_000
"""Read in some 10 ms."""


class Before(NamedTuple):
    """What is known of the steps before an event, and of the weights it found."""

    changes: Sequence[Change] = ()
    """What the script or a person had set otherwise."""
    norms: Mapping[str, float] = {}
    """Of the weights by name, before the update; empty where they are not known."""


NOTHING_BEFORE: Final = Before()


def look_before(
    recent: RecentSteps, box: BlackBox, step: int, evidence: StepEvidence | LateEvidence
) -> Before:
    """Return what was set otherwise shortly before a step."""
    changes = recent.changes(step)
    if isinstance(evidence, LateEvidence):
        size = box.size_change(step, [])
        return Before([*changes, *([] if size is None else [size])])
    newest = [held for capture in evidence.captures if (held := capture.arguments) is not None]
    norms = _norms(evidence.parameters)
    found = [box.size_change(step, newest)]
    is_usual = all(move.what != "gradient" or move.step == step for move in recent.explain(step))
    if is_usual and all(change.what != "learning rate" for change in changes):
        found.append(recent.weights.change(step, norms))
    return Before([*changes, *(change for change in found if change is not None)], norms)


def _norms(parameters: Mapping[str, nn.Parameter]) -> dict[str, float]:
    """L2 norms by name; empty where to read them all takes long.

    Subclasses are left out: the norm of a sharded parameter is a collective.
    """
    own = {
        name: value for name, value in parameters.items() if type(value) is nn.Parameter and _is_plain(value)
    }
    if sum(value.numel() for value in own.values()) > _MOST_WEIGHTS:
        return {}
    with torch.no_grad():
        return {name: _norm(value) for name, value in own.items()}


def _is_plain(value: Tensor) -> bool:
    return value.is_floating_point() and value.layout is torch.strided and not value.is_meta


def _norm(value: Tensor) -> float:
    norm = float(torch.linalg.vector_norm(value))
    if math.isfinite(norm) or not value.numel():
        return norm
    # Squares of finite weights may overflow: the largest one is no more than the norm.
    low, high = torch.aminmax(value)
    return max(abs(float(low)), abs(float(high)))


def moved_before(recent: RecentSteps, box: BlackBox, step: int, before: Before) -> str | None:
    """Return the line; None where nothing but the event's own series moved."""
    return chain(in_order([*recent.explain(step), *box.moves(step)]), before.changes)


def known_of(
    finding: Finding, replay: Replay | None, before: Before, *, optimizers: Sequence[Optimizer], **known: Any
) -> Known:
    """Return what the advice of an event is chosen by.

    Args:
        finding: of which it is made.
        replay: of the step, if there was one.
        before: what is known of the steps before.
        optimizers: that update the model.
        **known: further fields.
    """
    has_spread = bool(finding.affected or (replay and replay.propagated_to))
    fields = known | _of_optimizers(optimizers) | _of_origin(replay)
    if before.norms:
        fields["are_weights_bad"] = not all(map(math.isfinite, before.norms.values()))
    return Known(changes=frozenset(change.what for change in before.changes), has_spread=has_spread, **fields)


def _of_optimizers(optimizers: Sequence[Optimizer]) -> dict[str, Any]:
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    weights = [value for group in groups for value in group["params"]]
    if not weights:
        return {}
    return {
        "optimizers": frozenset(type(optimizer).__name__ for optimizer in optimizers),
        "optimizer_count": len(optimizers),
        "rate": max((rate for group in groups if isinstance(rate := group.get("lr"), float)), default=None),
        "has_decay": any(bool(group.get("weight_decay")) for group in groups),
        "weights": frozenset(str(value.dtype).removeprefix("torch.") for value in weights),
        "is_on_device": any(value.device.type != "cpu" for value in weights),
    }


def _of_origin(replay: Replay | None) -> dict[str, Any]:
    if replay is None or replay.origin is None:
        return {}
    reads = [tensor for tensor in replay.tensors if tensor.role != "output"]
    sizes = [abs(value) for tensor in reads for value in (tensor.min, tensor.max) if value is not None]
    return {
        "phase": replay.origin.phase,
        "op": replay.origin.op,
        "dtypes": frozenset(tensor.dtype.removeprefix("torch.") for tensor in replay.tensors),
        "largest": max(filter(math.isfinite, sizes), default=None),
        "has_only_read": replay.origin.phase != "input"
        and (bool(replay.entered) or any(tensor.nan for tensor in reads)),
    }
