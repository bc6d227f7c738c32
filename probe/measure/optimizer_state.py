"""Statistics of what optimizers keep per parameter: their moments, and the step that Adam makes of them.

Used by the step tracker at sampled steps, on the training thread, after the update. Waits for the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from ..compat.torch_foreach import foreach_add_, foreach_div, foreach_div_, foreach_norm, foreach_sqrt
from ..compat.torch_memory import local_shard
from .statistics.masked import MaskedValues
from .statistics.statistics import Floats, tensor_statistics
from .statistics.tensor_pairs import moment_norms

Mask: TypeAlias = npt.NDArray[np.bool_]

_FIRST: Final = ("exp_avg", "momentum_buffer")
_SECOND: Final = ("exp_avg_sq", "square_avg")
"""Names in the optimizers of torch.optim: Adam and its kin; SGD, Muon; RMSprop and Adadelta."""
_BATCH_ELEMENTS: Final = 1 << 20
"""Temporary tensors of the effective step hold about so many elements."""


def moment_statistics(
    optimizers: Iterable[Optimizer], parameters: Sequence[Tensor]
) -> dict[str, MaskedValues]:
    """Measure the optimizers' state of each parameter.

    Args:
        optimizers: those that update the watched model.
        parameters: in layout order.

    Returns:
        By column name, each only where some parameter has it: `first_moment_norm` and `second_moment_norm`,
        L2 norms of the state's own tensors (exp_avg or momentum_buffer; exp_avg_sq or square_avg), and for
        Adam and AdamW `effective_step`: the root mean square over a parameter's elements of the change that
        the newest update made, lr m_hat / (sqrt(v_hat) + eps) (Kingma and Ba 2015, algorithm 1), weight
        decay left out.
    """
    owned = _states(optimizers, parameters)
    updates = _updates_made(owned)
    norms, done = _norms_at_once(owned, updates)
    left = [None if at_once else state for state, at_once in zip(owned, done.tolist(), strict=True)]
    found = {
        "first_moment_norm": _norms(left, _FIRST, norms[0], done),
        "second_moment_norm": _norms(left, _SECOND, norms[1], done),
        "effective_step": _effective_steps(owned, left, updates, norms[2], done),
    }
    return {name: values for name, values in found.items() if not values.is_empty}


class _State(msgspec.Struct, frozen=True):
    optimizer: Optimizer
    group: Mapping[str, Any]
    values: Mapping[str, Any]


def _states(optimizers: Iterable[Optimizer], parameters: Sequence[Tensor]) -> list[_State | None]:
    """State of each parameter; the first optimizer that has one counts."""
    found: dict[int, _State] = {}
    for optimizer in optimizers:
        state = getattr(optimizer, "state", {})
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                # `get`: indexing would make an entry in the optimizer.
                values = state.get(parameter)
                if isinstance(values, Mapping) and values:
                    found.setdefault(id(parameter), _State(optimizer, group, values))
    return [found.get(id(parameter)) for parameter in parameters]


def _norms(left: Sequence[_State | None], names: tuple[str, ...], known: Floats, done: Mask) -> MaskedValues:
    """Norms of those states that are left, beside those that are known."""
    if done.all():
        return MaskedValues(known, ~done)
    statistics = tensor_statistics([None if state is None else _tensor(state, names) for state in left])
    return MaskedValues(np.where(done, known, statistics.norm), statistics.missing & ~done)


def _tensor(state: _State, names: tuple[str, ...]) -> Tensor | None:
    """The first of these that the state holds; a DTensor's local shard."""
    for name in names:
        value = state.values.get(name)
        if isinstance(value, Tensor):
            return local_shard(value)
    return None


# -- the effective step of Adam


class _AdamPart(msgspec.Struct, frozen=True):
    """A parameter's moments, or a slice of them where they are large."""

    index: int
    first: Tensor
    second: Tensor


def _updates_made(owned: Sequence[_State | None]) -> dict[int, float]:
    """How many updates Adam has made of each parameter that it updates."""
    adam = {index: state for index, state in enumerate(owned) if state is not None and _is_adam(state)}
    counts = _step_counts([state.values["step"] for state in adam.values()])
    return dict(zip(adam, counts, strict=True))


def _norms_at_once(owned: Sequence[_State | None], updates: Mapping[int, float]) -> tuple[Floats, Mask]:
    """Norms of both of Adam's moments and of m / (sqrt(v) / c + eps), and for which states, in one pass."""
    first: list[Tensor | None] = [None] * len(owned)
    second: list[Tensor | None] = [None] * len(owned)
    eps, corrections = np.zeros(len(owned)), np.ones(len(owned))
    if not updates:
        return np.zeros((3, len(owned))), np.zeros(len(owned), dtype=np.bool_)
    for index, count in updates.items():
        state = owned[index]
        if state is not None and "max_exp_avg_sq" not in state.values:
            first[index], second[index] = _tensor(state, ("exp_avg",)), _tensor(state, ("exp_avg_sq",))
            corrections[index] = _second_correction(state, count)
            eps[index] = corrections[index] * float(state.group["eps"])
    # In the form c m / (sqrt(v) + c eps).
    norms, done = moment_norms(first, second, eps)
    norms[2] *= corrections
    return norms, done


def _effective_steps(
    owned: Sequence[_State | None],
    left: Sequence[_State | None],
    updates: Mapping[int, float],
    known: Floats,
    done: Mask,
) -> MaskedValues:
    values, missing = np.zeros(len(owned)), np.ones(len(owned), dtype=np.bool_)
    adam = {index: state for index in updates if (state := left[index]) is not None}
    squares = np.where(done, np.square(known), 0.0)
    with torch.no_grad(), np.errstate(all="ignore"):
        for batch in _batches(adam):
            for part, norm in zip(batch, _norms_of_quotients(batch, adam, updates), strict=True):
                squares[part.index] += norm**2
    # A rate may be kept on a device: one read for each group.
    states = {index: state for index in updates if (state := owned[index]) is not None}
    groups = {id(state.group): state.group for state in states.values()}
    rates = {key: float(group["lr"]) for key, group in groups.items()}
    for index, state in states.items():
        correction = 1 - float(state.group["betas"][0]) ** updates[index]
        rate = rates[id(state.group)] / correction
        moment = _tensor(state, ("exp_avg",))
        assert moment is not None
        values[index], missing[index] = rate * np.sqrt(squares[index] / moment.numel()), False
    return MaskedValues(values, missing)


def _second_correction(state: _State, updates: float) -> float:
    """Root of the bias correction of the second moment."""
    return float(np.sqrt(1 - float(state.group["betas"][1]) ** updates))


def _is_adam(state: _State) -> bool:
    first, second = _tensor(state, ("exp_avg",)), _tensor(state, ("exp_avg_sq",))
    if (
        not isinstance(state.optimizer, torch.optim.Adam | torch.optim.AdamW)
        or first is None
        or second is None
    ):
        return False
    plain = first.layout is torch.strided and not first.is_complex()
    return plain and first.shape == second.shape and first.numel() > 0 and "step" in state.values


def _step_counts(steps: Sequence[Any]) -> list[float]:
    """Read how many updates were made; of those kept on a device all at once."""
    on_device = [step for step in steps if isinstance(step, Tensor) and step.device.type != "cpu"]
    if not on_device:
        return [float(step) for step in steps]
    first = on_device[0].device
    read = iter(torch.stack([step.detach().reshape(()).double().to(first) for step in on_device]).tolist())
    return [
        next(read) if isinstance(step, Tensor) and step.device.type != "cpu" else float(step)
        for step in steps
    ]


def _batches(adam: Mapping[int, _State]) -> Iterator[list[_AdamPart]]:
    """Parts of one device that are computed together."""
    batches: dict[torch.device, list[_AdamPart]] = {}
    elements: dict[torch.device, int] = {}
    for index, state in adam.items():
        for part in _parts(index, state):
            device = part.first.device
            batches.setdefault(device, []).append(part)
            elements[device] = elements.get(device, 0) + part.first.numel()
            if elements[device] >= _BATCH_ELEMENTS:
                elements[device] = 0
                yield batches.pop(device)
    yield from batches.values()


def _parts(index: int, state: _State) -> Iterator[_AdamPart]:
    first, second = _tensor(state, ("exp_avg",)), _tensor(state, ("max_exp_avg_sq", "exp_avg_sq"))
    assert first is not None and second is not None
    if first.numel() <= _BATCH_ELEMENTS or not (first.is_contiguous() and second.is_contiguous()):
        yield _AdamPart(index, first, second)
        return
    slices = (torch.split(moment.view(-1), _BATCH_ELEMENTS) for moment in (first, second))
    yield from (_AdamPart(index, *pair) for pair in zip(*slices, strict=True))


def _norms_of_quotients(
    parts: list[_AdamPart], adam: Mapping[int, _State], updates: Mapping[int, float]
) -> list[float]:
    """L2 norms of m / (sqrt(v / (1 - beta2^t)) + eps)."""
    groups = [adam[part.index].group for part in parts]
    corrections = [_second_correction(adam[part.index], updates[part.index]) for part in parts]
    # Half precision would lose what a small eps adds.
    roots = list(foreach_sqrt([part.second.float() for part in parts]))
    foreach_div_(roots, corrections)
    foreach_add_(roots, [float(group["eps"]) for group in groups])
    quotients = foreach_div([part.first.float() for part in parts], roots)
    norms: list[float] = torch.stack(foreach_norm(quotients)).tolist()
    return norms
