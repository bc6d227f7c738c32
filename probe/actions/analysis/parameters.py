"""`check_model_parameters`: whether a model's weights are sound, and which of them train.

Whether a parameter was ever updated, and how far it has moved, can only be told against an earlier snapshot.
"""

from __future__ import annotations

import math
import time
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from ...attach.layout import clean_name
from ...compat import torch_memory
from ...compat.torch_memory import local_shard
from ...measure.statistics.statistics import tensor_statistics
from ...measure.statistics.tensor_measures import difference_norms
from . import tables
from .call_results import NOT_IN_JSON, Result
from .gradient_checks import require_module

_CHUNK_ELEMENTS: Final = 16 * 1024 * 1024
"""Elements that are brought to the host at a time for a fingerprint."""


@dataclass(frozen=True, slots=True)
class _Remembered:
    """One parameter as it was."""

    shape: tuple[int, ...]
    dtype: str
    crc32: int
    norm: float
    values: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterSnapshot(Result):
    """What `snapshot_parameters` keeps: checksum and norm of each parameter, its values if asked for."""

    _derived = ("count",)

    model: str
    time: float
    """UNIX seconds."""
    nbytes: int
    """Host memory that the kept values occupy; 0 without values."""
    remembered: dict[str, _Remembered] = field(repr=False, metadata=NOT_IN_JSON)

    @property
    def count(self) -> int:
        """How many parameters it holds."""
        return len(self.remembered)

    def __str__(self) -> str:
        """One line."""
        return f"snapshot of {self.count} parameters of {self.model}, {tables.size(self.nbytes)} of values"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterState(Result):
    """One parameter. What is None could not be told."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    device: str
    is_trainable: bool
    """`requires_grad`; False is a frozen parameter."""
    shared_with: tuple[str, ...]
    """Other names of the same parameter, or of others in the same memory."""
    has_gradient: bool
    in_optimizer: bool | None
    """None without an optimizer to look at."""
    norm: float | None
    """L2 norm; None of an empty parameter or one without data."""
    max_abs: float | None
    mean: float | None
    std: float | None
    nan_count: int
    inf_count: int
    changed: bool | None
    """Whether any bit differs from the snapshot; None without one, or when the parameter is new."""
    drift: float | None
    """||now - then|| / ||then||; None where the snapshot kept no values."""
    norm_change: float | None
    """(||now|| - ||then||) / ||then||: a lower bound of the drift that needs no values."""

    @property
    def is_finite(self) -> bool:
        """Neither NaN nor Inf among the elements."""
        return not self.nan_count and not self.inf_count


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterReport(Result):
    """All parameters of a model, each once, in model order."""

    _derived = ("ok", "problems", "nonfinite", "frozen", "shared", "without_gradient", "never_updated")

    model: str
    parameters: tuple[ParameterState, ...]
    since: float | None
    """Time of the snapshot compared with, UNIX seconds; None without one."""
    stale_in_optimizer: int | None
    """Tensors that the optimizer updates and the model does not have; None without an optimizer."""
    note: str = ""

    @property
    def nonfinite(self) -> tuple[str, ...]:
        """Names of parameters with NaN or Inf."""
        return tuple(p.name for p in self.parameters if not p.is_finite)

    @property
    def frozen(self) -> tuple[str, ...]:
        """Names of parameters with `requires_grad=False`."""
        return tuple(p.name for p in self.parameters if not p.is_trainable)

    @property
    def shared(self) -> tuple[tuple[str, ...], ...]:
        """Groups of names that are one parameter, or lie in the same memory."""
        groups = {tuple(sorted((p.name, *p.shared_with))): None for p in self.parameters if p.shared_with}
        return tuple(groups)

    @property
    def without_gradient(self) -> tuple[str, ...]:
        """Trainable parameters that the last backward did not reach, though it reached others."""
        if not any(p.has_gradient for p in self.parameters):
            return ()
        return tuple(p.name for p in self._learning if not p.has_gradient)

    @property
    def never_updated(self) -> tuple[str, ...]:
        """Trainable parameters that are bit-equal to the snapshot, though others have changed since."""
        if not any(p.changed for p in self.parameters):
            return ()
        return tuple(p.name for p in self._learning if p.changed is False)

    @property
    def not_in_optimizer(self) -> tuple[str, ...]:
        """Trainable parameters that no parameter group has."""
        return tuple(p.name for p in self._learning if p.in_optimizer is False)

    @property
    def _learning(self) -> list[ParameterState]:
        """Trainable, and not empty."""
        return [p for p in self.parameters if p.is_trainable and 0 not in p.shape]

    @property
    def problems(self) -> tuple[str, ...]:
        """What a person should look at, a sentence each; shared and frozen parameters are no problem."""
        frozen_but_changed = tuple(p.name for p in self.parameters if not p.is_trainable and p.changed)
        found = (
            ("NaN or Inf in", self.nonfinite),
            ("not updated since the snapshot, though others were:", self.never_updated),
            ("the last backward gave no gradient to", self.without_gradient),
            ("trainable, but not in the optimizer:", self.not_in_optimizer),
            ("frozen, but changed since the snapshot:", frozen_but_changed),
        )
        problems = [f"{what} {tables.names(names)}" for what, names in found if names]
        if self.stale_in_optimizer:
            problems.append(
                f"the optimizer updates {self.stale_in_optimizer} tensors that the model does not have"
            )
        return tuple(problems)

    @property
    def ok(self) -> bool:
        """There is no problem."""
        return not self.problems

    def __str__(self) -> str:
        """The problems, then a row for each parameter."""
        if not self.parameters:
            return f"parameters: {self.note or 'no problem found'}"
        lines = [
            f"parameters of {self.model}: {'ok' if self.ok else 'NOT OK'}, {len(self.parameters)} parameters"
        ]
        lines += [f"  {problem}" for problem in self.problems]
        lines += [f"  one parameter: {' = '.join(group)}" for group in self.shared[:8]]
        if self.frozen:
            lines.append(f"  frozen: {tables.names(self.frozen)}")
        if self.note:
            lines.append(f"  {self.note}")
        header = ("parameter", "shape", "dtype", "norm", "max |w|", "mean", "std", "drift", "")
        return "\n".join([*lines, *tables.table(header, [_row(p) for p in self.parameters], left=3)])


def snapshot_parameters(model: nn.Module, *, keep_values: bool = True) -> ParameterSnapshot:
    """Remember all parameters of a model, for a later `check_model_parameters(model, since=...)`.

    Copies every parameter to the host once, in pieces. Waits for the device.

    Args:
        model: the model.
        keep_values: keep host copies (`nbytes` says how much), from which the drift is computed; without them
            a checksum still tells whether a parameter has changed at all.

    Raises:
        ValueError: it is no module.
    """
    root = require_module(model)
    parameters = _named(root)
    statistics = tensor_statistics(list(parameters.values()))
    remembered = {
        name: _Remembered(
            shape=tuple(parameter.shape),
            dtype=str(parameter.dtype),
            crc32=_checksum(parameter),
            norm=float(statistics.norm[index]),
            values=_host_copy(parameter) if keep_values and _has_data(parameter) else None,
        )
        for index, (name, parameter) in enumerate(parameters.items())
    }
    kept = sum(item.values.nbytes for item in remembered.values() if item.values is not None)
    return ParameterSnapshot(model=type(root).__name__, time=time.time(), nbytes=kept, remembered=remembered)


def check_model_parameters(
    model: nn.Module, *, since: ParameterSnapshot | None = None, optimizer: Optimizer | None = None
) -> ParameterReport:
    """Check all parameters: NaN/Inf, shared, frozen, without gradient, never updated. Waits for the device.

    Args:
        model: the model.
        since: of `snapshot_parameters`; without it nothing is said about updates and drift.
        optimizer: tells which parameters will never be updated, and what it updates in vain.

    Raises:
        ValueError: it is no module, no optimizer, or a snapshot of another model.
    """
    root = require_module(model)
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        raise ValueError(f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
    parameters = _named(root)
    if since is not None and parameters and not set(parameters) & set(since.remembered):
        raise ValueError(f"the snapshot is of {since.model} and has no parameter of {type(root).__name__}")
    updated = (
        None if optimizer is None else {id(p) for group in optimizer.param_groups for p in group["params"]}
    )
    return ParameterReport(
        model=type(root).__name__,
        parameters=tuple(_states(root, parameters, since, updated)),
        since=None if since is None else since.time,
        stale_in_optimizer=None if updated is None else len(updated - set(map(id, root.parameters()))),
        note=_note(parameters, since),
    )


def _states(
    root: nn.Module,
    parameters: dict[str, nn.Parameter],
    since: ParameterSnapshot | None,
    updated: set[int] | None,
) -> Iterable[ParameterState]:
    statistics = tensor_statistics(list(parameters.values()))
    sharing = _sharing(root)
    for index, (name, parameter) in enumerate(parameters.items()):
        is_missing = bool(statistics.missing[index])
        norm = float(statistics.norm[index])
        then = None if since is None else since.remembered.get(name)
        yield ParameterState(
            name=name,
            shape=tuple(parameter.shape),
            dtype=str(parameter.dtype).removeprefix("torch."),
            device=str(parameter.device),
            is_trainable=parameter.requires_grad,
            shared_with=sharing.get(name, ()),
            has_gradient=parameter.grad is not None,
            in_optimizer=None if updated is None else id(parameter) in updated,
            norm=None if is_missing else norm,
            max_abs=None if is_missing else float(statistics.max_abs[index]),
            mean=None if is_missing else float(statistics.mean[index]),
            std=None if is_missing else float(statistics.std[index]),
            nan_count=int(statistics.nan_count[index]),
            inf_count=int(statistics.inf_count[index]),
            changed=_changed(parameter, then),
            drift=_drift(parameter, then),
            norm_change=None if then is None or is_missing else _relative(norm - then.norm, then.norm),
        )


def _named(root: nn.Module) -> dict[str, nn.Parameter]:
    return {clean_name(name): parameter for name, parameter in root.named_parameters()}


def _has_data(parameter: Tensor) -> bool:
    return local_shard(parameter).device.type != "meta" and local_shard(parameter).numel() > 0


def _flat(parameter: Tensor) -> Tensor:
    """The (n,) elements of this rank's part, complex ones as pairs."""
    local = local_shard(parameter).detach()
    if local.is_complex():
        local = torch.view_as_real(local.resolve_conj())
    return local.reshape(-1)


def _host_copy(parameter: Tensor) -> Tensor:
    return local_shard(parameter).detach().to("cpu", copy=True)


def _checksum(parameter: Tensor) -> int:
    """CRC-32 of the elements' bytes: equal for bit-equal values, whatever the strides."""
    if not _has_data(parameter):
        return 0
    checksum = 0
    for piece in torch.split(_flat(parameter), _CHUNK_ELEMENTS):
        checksum = zlib.crc32(piece.cpu().contiguous().view(torch.uint8).numpy().data, checksum)
    return checksum


def _changed(parameter: Tensor, then: _Remembered | None) -> bool | None:
    if then is None:
        return None
    if tuple(parameter.shape) != then.shape or str(parameter.dtype) != then.dtype:
        return True
    return _checksum(parameter) != then.crc32


def _drift(parameter: Tensor, then: _Remembered | None) -> float | None:
    if then is None or then.values is None or tuple(parameter.shape) != then.shape:
        return None
    moved = float(difference_norms([_host_copy(parameter)], [then.values])[0])
    return _relative(moved, then.norm)


def _relative(difference: float, reference: float) -> float:
    if reference == 0:
        return math.copysign(math.inf, difference) if difference else 0.0
    return float(np.divide(difference, reference))


def _sharing(root: nn.Module) -> dict[str, tuple[str, ...]]:
    """Other names of each parameter: one object under several names, or several objects in one memory."""
    groups: dict[object, dict[str, None]] = {}
    for name, parameter in root.named_parameters(remove_duplicate=False):
        local = local_shard(parameter)
        address = torch_memory.storage_key(local) if _has_data(parameter) else 0
        # Neighbours in one flat buffer (RNN weights) are no sharing: the first element must be the same.
        place: object = (address, local.storage_offset()) if address else id(parameter)
        groups.setdefault(place, {})[clean_name(name)] = None
    return {name: tuple(n for n in group if n != name) for group in groups.values() for name in group}


def _note(parameters: dict[str, nn.Parameter], since: ParameterSnapshot | None) -> str:
    if since is None:
        return "no snapshot to compare with, so updates and drift are not checked"
    known = Counter(name in since.remembered for name in parameters)
    return f"{known[False]} parameters are not in the snapshot" if known[False] else ""


def _row(p: ParameterState) -> tuple[str, ...]:
    marks = [
        mark
        for mark, holds in (
            ("NaN" if p.nan_count else "Inf", not p.is_finite),
            ("frozen", not p.is_trainable),
            ("shared", bool(p.shared_with)),
            ("unchanged", p.changed is False),
            ("not in optimizer", p.in_optimizer is False),
        )
        if holds
    ]
    values = [tables.number(value) for value in (p.norm, p.max_abs, p.mean, p.std, p.drift)]
    return (p.name, tables.shape(p.shape), p.dtype, *values, ", ".join(marks))
