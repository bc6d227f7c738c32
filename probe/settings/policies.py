"""What `watch(input_policy=..., output_policy=...)` takes: which tensors are acceptable, and what follows."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, TypeAlias, get_args

from .recovery_options import is_number, require_above_zero

PolicyAction: TypeAlias = Literal["raise", "event", "recover"]


@dataclass(frozen=True, slots=True)
class InputPolicy:
    """What the watched model may be called with. A condition that is None is not checked.

    Raises:
        ValueError: an option is out of its range.
    """

    action: PolicyAction
    """`raise` raises `probe.PolicyError`, a ValueError, before the forward; `event` records an event and goes
    on; `recover` calls the model with mended copies, and raises where a tensor cannot be mended."""
    _: KW_ONLY
    finite: bool = True
    """No NaN and no Inf in any floating-point tensor."""
    max_abs: float | None = None
    """Largest absolute value of any floating-point tensor."""
    low: float | None = None
    """Smallest value, and"""
    high: float | None = None
    """largest value of any floating-point tensor."""
    ndim: int | None = None
    """Number of dimensions of the first tensor."""
    shape: tuple[int | None, ...] | None = None
    """Shape of the first tensor; None for a dimension that may have any size."""
    dtype: Any = None
    """Data type of the first tensor, such as `torch.float32`."""
    names: tuple[str, ...] = ()
    """Arguments of `forward` that are looked at; all by default."""
    every: int = 1
    """Calls between two that are checked."""
    wait_for_device: bool = False
    """Read the values of tensors on a device as well, for which the host has to wait; else only shapes and
    types of those are checked."""

    def __post_init__(self) -> None:
        _check(self, "InputPolicy")


@dataclass(frozen=True, slots=True)
class OutputPolicy:
    """What the watched model may return. A condition that is None is not checked.

    Raises:
        ValueError: an option is out of its range.
    """

    action: PolicyAction
    """`raise` raises `probe.PolicyError`, a ValueError, after the forward; `event` records an event and goes
    on; `recover` returns mended tensors to the script, and raises where one cannot be mended."""
    _: KW_ONLY
    finite: bool = True
    """No NaN and no Inf in any floating-point tensor."""
    max_abs: float | None = None
    """Largest absolute value of any floating-point tensor."""
    low: float | None = None
    """Smallest value, and"""
    high: float | None = None
    """largest value of any floating-point tensor: the expected range."""
    ndim: int | None = None
    """Number of dimensions of the first tensor."""
    shape: tuple[int | None, ...] | None = None
    """Shape of the first tensor; None for a dimension that may have any size."""
    dtype: Any = None
    """Data type of the first tensor."""
    min_std: float | None = 1e-6
    """Smallest standard deviation of the first tensor: below it the predictions are uniform."""
    every: int = 1
    """Calls between two that are checked."""
    wait_for_device: bool = False
    """Read the values of tensors on a device as well, for which the host has to wait; else only shapes and
    types of those are checked."""

    def __post_init__(self) -> None:
        _check(self, "OutputPolicy")
        if self.min_std is not None:
            require_above_zero("min_std", self.min_std)


Policy: TypeAlias = InputPolicy | OutputPolicy


def _check(policy: Policy, name: str) -> None:
    if policy.action not in get_args(PolicyAction):
        choices = ", ".join(map(repr, get_args(PolicyAction)))
        raise ValueError(f"{name}(action={policy.action!r}) is not available; choose one of {choices}")
    if policy.max_abs is not None:
        require_above_zero("max_abs", policy.max_abs)
    for option in ("low", "high"):
        value = getattr(policy, option)
        if value is not None and (not is_number(value) or value != value):
            raise ValueError(f"{option}={value!r} must be a number")
    if policy.low is not None and policy.high is not None and policy.low > policy.high:
        raise ValueError(f"low={policy.low!r} is above high={policy.high!r}")
    for option, least in (("ndim", 0), ("every", 1)):
        value = getattr(policy, option)
        if value is None and option == "ndim":
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{option}={value!r} must be a whole number of at least {least}")
    for option in ("finite", "wait_for_device"):
        if not isinstance(getattr(policy, option), bool):
            raise ValueError(f"{option}={getattr(policy, option)!r} must be True or False")


def require_policy(option: str, value: object, kind: type[Policy]) -> None:
    """Raise `ValueError` unless an option of `watch` is None or a policy of this kind."""
    if value is not None and not isinstance(value, kind):
        name = f"probe.{kind.__name__}"
        raise ValueError(f'{option}={value!r} must be a {name}, such as {name}("raise")')
