"""`analyze_optimizer`: learning rates, moments and the steps that come of them. Waits for the device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from ...attach.layout import clean_name
from ...compat.torch_memory import local_shard
from ...measure.optimizer_state import moment_statistics
from ...measure.statistics.masked import MaskedValues
from ...measure.statistics.statistics import tensor_norms
from . import tables
from .call_results import Result
from .gradient_checks import require_module

HIGH_LEARNING_RATE: Final = 1.0
"""A learning rate above this is named a problem; a convention: torch's own largest default is 1.0."""
HIGH_RATIO: Final = 0.1
"""An update-to-weight ratio above this is named a problem: a tenth of the weight in one step. About 1e-3 is
customary for weights (Stanford CS231n, "Neural Networks Part 3", ratio of weights to updates)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState(Result):
    """One parameter group."""

    index: int
    name: str
    """The group's "name", if it has one."""
    learning_rate: float | None
    """None where the optimizer has none, or a tensor with several elements."""
    weight_decay: float | None
    parameters: int
    elements: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterMoments(Result):
    """What the optimizer keeps of one parameter. None where it keeps no such thing (yet)."""

    name: str
    """``param[3]`` where no model says it."""
    group: int
    norm: float
    """L2 norm of the parameter."""
    first_moment_norm: float | None
    """L2 norm of `exp_avg` or `momentum_buffer`."""
    second_moment_norm: float | None
    """L2 norm of `exp_avg_sq` or `square_avg`."""
    effective_step: float | None
    """Adam and AdamW: root mean square of the newest update's elements, lr m_hat / (sqrt(v_hat) + eps)
    (Kingma and Ba 2015, algorithm 1), weight decay left out."""
    update_ratio: float | None
    """L2 norm of that update over the parameter's; None of a parameter that is 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerReport(Result):
    """One optimizer."""

    _derived = ("ok", "problems")

    type: str
    groups: tuple[GroupState, ...]
    parameters: tuple[ParameterMoments, ...]
    """In the order of the groups."""

    @property
    def problems(self) -> tuple[str, ...]:
        """What a person should look at, a sentence each."""
        found = [problem for group in self.groups if (problem := _rate_problem(group)) is not None]
        bad = [p.name for p in self.parameters if not _is_finite(p.first_moment_norm, p.second_moment_norm)]
        if bad:
            found.append(
                f"moments with NaN or Inf: {tables.names(bad)}; they do not recover, whatever the gradients"
            )
        high = [p.name for p in self.parameters if p.update_ratio is not None and p.update_ratio > HIGH_RATIO]
        if high:
            found.append(f"updates of more than {HIGH_RATIO:.0%} of the weight: {tables.names(high)}")
        return tuple(found)

    @property
    def ok(self) -> bool:
        """There is no problem."""
        return not self.problems

    def __str__(self) -> str:
        """The problems, a row for each group, a row for each parameter."""
        lines = [f"optimizer {self.type}: {'ok' if self.ok else 'NOT OK'}"]
        lines += [f"  {problem}" for problem in self.problems]
        header = ("group", "name", "learning rate", "weight decay", "parameters", "elements")
        groups = [
            (
                str(g.index),
                g.name or "-",
                tables.number(g.learning_rate),
                tables.number(g.weight_decay),
                str(g.parameters),
                f"{g.elements:,}",
            )
            for g in self.groups
        ]
        lines += [*tables.table(header, groups, left=2), ""]
        columns = ("parameter", "norm", "1st moment", "2nd moment", "effective step", "update / norm")
        rows = [
            (
                p.name,
                *map(
                    tables.number,
                    (p.norm, p.first_moment_norm, p.second_moment_norm, p.effective_step, p.update_ratio),
                ),
            )
            for p in self.parameters
        ]
        return "\n".join([*lines, *tables.table(columns, rows)])


def analyze_optimizer(optimizer: Optimizer, model: nn.Module | None = None) -> OptimizerReport:
    """Describe an optimizer: learning rates and whether they make sense, moments, effective steps.

    Args:
        optimizer: with its state as it is now, best after a step.
        model: gives the parameters their names.

    Raises:
        ValueError: it is no optimizer, or `model` no module.
    """
    if not isinstance(optimizer, Optimizer):
        raise ValueError(f"analyze_optimizer() takes a torch.optim.Optimizer, got {type(optimizer).__name__}")
    names = {}
    if model is not None:
        names = {id(p): clean_name(name) for name, p in require_module(model).named_parameters()}
    groups = list(optimizer.param_groups)
    parameters = [parameter for group in groups for parameter in group["params"]]
    group_of = [index for index, group in enumerate(groups) for _ in group["params"]]
    moments = moment_statistics([optimizer], parameters)
    norms = tensor_norms([local_shard(parameter).detach() for parameter in parameters])
    return OptimizerReport(
        type=type(optimizer).__name__,
        groups=tuple(_group(index, group) for index, group in enumerate(groups)),
        parameters=tuple(
            ParameterMoments(
                name=names.get(id(parameter), f"param[{index}]"),
                group=group_of[index],
                norm=float(norms[index]),
                first_moment_norm=_value(moments, "first_moment_norm", index),
                second_moment_norm=_value(moments, "second_moment_norm", index),
                effective_step=(step := _value(moments, "effective_step", index)),
                update_ratio=_ratio(step, local_shard(parameter).numel(), float(norms[index])),
            )
            for index, parameter in enumerate(parameters)
        ),
    )


def _group(index: int, group: dict[str, Any]) -> GroupState:
    name = group.get("name")
    return GroupState(
        index=index,
        name=name if isinstance(name, str) else "",
        learning_rate=_number(group.get("lr")),
        weight_decay=_number(group.get("weight_decay")),
        parameters=len(group["params"]),
        elements=sum(parameter.numel() for parameter in group["params"]),
    )


def _number(value: Any) -> float | None:
    if isinstance(value, Tensor):
        return float(value) if value.numel() == 1 else None
    return float(value) if isinstance(value, int | float) else None


def _value(moments: dict[str, MaskedValues], name: str, index: int) -> float | None:
    found = moments.get(name)
    return None if found is None or found.missing[index] else float(found.values[index])


def _ratio(step: float | None, elements: int, norm: float) -> float | None:
    return None if step is None or not norm else step * math.sqrt(elements) / norm


def _is_finite(*values: float | None) -> bool:
    return all(value is None or math.isfinite(value) for value in values)


def _rate_problem(group: GroupState) -> str | None:
    rate = group.learning_rate
    where = f"the learning rate of group {group.name or group.index}"
    if rate is None:
        return None
    if not math.isfinite(rate) or rate < 0:
        return f"{where} is {tables.number(rate)}"
    if rate == 0:
        return f"{where} is 0, so it learns nothing"
    if rate > HIGH_LEARNING_RATE:
        return f"{where} is {tables.number(rate)}, above {HIGH_LEARNING_RATE:g}"
    return None
