"""What a watchpoint's condition may consist of: the tree that the parser makes, and the tables of its names.

Pure data, no torch and no numpy: the dashboard reads it too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

import msgspec

MAX_LENGTH: Final = 500
"""Characters of a condition."""
MAX_DEPTH: Final = 24
"""Operations inside of each other."""
MAX_PATTERN: Final = 200
_WILDCARDS: Final = frozenset("*?[")

NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "step": "number of the step",
        "loss": "loss of the step, or what `run.log(loss=...)` gave before the update",
        "learning_rate": "largest learning rate of all parameter groups",
        "samples": "first dimension of the first input, summed over the micro-steps",
        "step_time_s": "seconds since the step before",
        "memory_mib": "resident memory of the process, read about once a second",
        "cuda_memory_mib": "torch.cuda.memory_allocated, at the steps at which it is read",
        "amp_scale": "scale of the GradScaler",
    }
)
"""Numbers that a step has one of."""
PARAMETER_FUNCTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "grad_norm": "L2 norm of the gradient",
        "grad_max": "largest absolute element of the gradient",
        "nan_count": "NaN elements of the gradient",
        "inf_count": "infinite elements of the gradient",
        "parameter_norm": "L2 norm of the parameters, at the steps that measure it (every 10th)",
        "update_ratio": "norm of the update over the parameter's, at the steps that measure it (every 50th)",
    }
)
"""Of the layers and parameters whose names match; without a pattern, of the whole model."""
MODULE_FUNCTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "activation_rms": "root mean square of a module's output, at the steps that measure it",
        "activation_max": "largest absolute element of a module's output, at the steps that measure it",
    }
)
"""Of the modules whose names match."""
LOGGED: Final = "logged"
HISTORY: Final[Mapping[str, str]] = MappingProxyType(
    {
        "median": "median of the left side's history",
        "mad": "median absolute deviation from that median",
        "mean": "arithmetic mean of the history",
        "max": "largest value of the history",
        "previous": "the newest value of the history",
    }
)
"""Right of a comparison: of what its left side was at the last `HISTORY_STEPS` steps that measured it."""
HISTORY_STEPS: Final = 64
LEAST_HISTORY: Final = 8
"""Fewer steps have no median, mad, mean or max yet; `previous` needs one."""


class Number(msgspec.Struct, frozen=True):
    """A constant."""

    value: float


class Quantity(msgspec.Struct, frozen=True):
    """A name of `NAMES`, or a function of the tables above; `pattern` is None for the whole model."""

    name: str
    pattern: str | None = None

    @property
    def is_of_many(self) -> bool:
        """Whether the pattern may match several names."""
        return self.name != LOGGED and self.pattern is not None and not _WILDCARDS.isdisjoint(self.pattern)

    @property
    def is_of_modules(self) -> bool:
        """Whether the pattern is about modules, and not about layers and parameters."""
        return self.name in MODULE_FUNCTIONS

    @property
    def is_late(self) -> bool:
        """Whether it is known only when the step's update has been made."""
        return self.name in (LOGGED, "update_ratio")


class History(msgspec.Struct, frozen=True):
    """A statistic of the left side's history."""

    statistic: str


class Arithmetic(msgspec.Struct, frozen=True):
    """Two numbers make one."""

    operator: str
    left: Term
    right: Term


class Negative(msgspec.Struct, frozen=True):
    """A number with the other sign."""

    operand: Term


class Comparison(msgspec.Struct, frozen=True):
    """Two numbers are compared: true where it holds of any name that the pattern matches."""

    operator: str
    left: Term
    right: Term
    text: str
    """As it was written."""


class Junction(msgspec.Struct, frozen=True):
    """Several conditions: all of them ("and") or any ("or")."""

    is_all: bool
    operands: tuple[Condition, ...]


class Negation(msgspec.Struct, frozen=True):
    """The opposite of a condition."""

    operand: Condition


Term: TypeAlias = Number | Quantity | History | Arithmetic | Negative
Condition: TypeAlias = Comparison | Junction | Negation


def quantities(node: Term | Condition) -> Iterator[Quantity]:
    """Yield every quantity of a tree, left to right."""
    if isinstance(node, Quantity):
        yield node
    elif isinstance(node, Arithmetic | Comparison):
        yield from quantities(node.left)
        yield from quantities(node.right)
    elif isinstance(node, Negative | Negation):
        yield from quantities(node.operand)
    elif isinstance(node, Junction):
        for operand in node.operands:
            yield from quantities(operand)


def compared_with_history(node: Condition) -> Iterator[Comparison]:
    """Yield every comparison for which the history of its left side is kept."""
    if isinstance(node, Comparison):
        if uses_history(node.right):
            yield node
    elif isinstance(node, Negation):
        yield from compared_with_history(node.operand)
    else:
        for operand in node.operands:
            yield from compared_with_history(operand)


def uses_history(node: Term) -> bool:
    """Whether a term has a statistic of a history in it."""
    if isinstance(node, Arithmetic):
        return uses_history(node.left) or uses_history(node.right)
    return isinstance(node, History) or (isinstance(node, Negative) and uses_history(node.operand))
