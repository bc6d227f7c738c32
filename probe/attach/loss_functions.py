"""Listens to the loss functions of `torch.nn.functional`, which those of `torch.nn` call, on request.

Used by `evaluation.py` alone. While anyone listens the functions run other code, and have their own again
afterwards: training pays nothing. The function objects stay what they are. So code that imported one by name,
looks it up by its identity (tensor subclasses, torch.compile), or evaluated `F.cross_entropy` before the
model's call in the same expression still has the right one.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, Final, NamedTuple, Protocol

from torch import Tensor, nn
from torch.nn import functional

from ..compat import torch_dynamo

NAMES: Final = (
    *("binary_cross_entropy", "binary_cross_entropy_with_logits", "cosine_embedding_loss"),
    *("cross_entropy", "ctc_loss", "gaussian_nll_loss", "hinge_embedding_loss", "huber_loss", "kl_div"),
    *("l1_loss", "margin_ranking_loss", "mse_loss", "multi_margin_loss", "multilabel_margin_loss"),
    *("multilabel_soft_margin_loss", "nll_loss", "poisson_nll_loss", "smooth_l1_loss", "soft_margin_loss"),
    "triplet_margin_loss",
)
_BATCH_SECOND: Final = frozenset({"ctc_loss"})
"""Functions whose first argument has its batch in the second dimension."""
_PLAIN: Final = (Tensor, nn.Parameter)
_PLACEHOLDER: Final = "what runs in place of a loss function"


class SeenLoss(NamedTuple):
    """One scalar that a loss function has returned."""

    function: str
    result: Tensor
    samples: int
    """Size of the batch that it was given."""
    is_sum: bool
    """Whether it is the sum over the batch, not a mean."""


class LossListener(Protocol):
    """What is told of results."""

    def note_loss(self, seen: SeenLoss) -> None:
        """A loss function has returned a scalar, on the thread that calls. May not raise."""
        ...


class _Exchange(NamedTuple):
    """A function of torch's, its own code, and what it runs while anyone listens."""

    function: FunctionType
    own: CodeType
    listening: CodeType


class LossFunctions:
    """Has the loss functions tell of their results while there is a listener."""

    def __init__(self) -> None:
        self._listeners: tuple[LossListener, ...] = ()
        self._exchanges: list[_Exchange] | None = None
        # The garbage collector may end the session of a dropped model in between, on the same thread.
        self._lock = threading.RLock()

    def add(self, listener: LossListener) -> None:
        """Tell `listener` from now on."""
        with self._lock:
            if self._exchanges is None:
                self._exchanges = [made for name in NAMES if (made := self._exchange(name)) is not None]
            if not self._listeners:
                for function, own, listening in self._exchanges:
                    if function.__code__ is own:
                        function.__code__ = listening
            if not any(other is listener for other in self._listeners):
                self._listeners = (*self._listeners, listener)

    def remove(self, listener: LossListener) -> None:
        """Stop telling; the last one gives every function its own code back. Idempotent."""
        with self._lock:
            had_any = bool(self._listeners)
            self._listeners = tuple(other for other in self._listeners if other is not listener)
            if had_any and not self._listeners:
                for function, own, listening in self._exchanges or ():
                    if function.__code__ is listening:
                        function.__code__ = own

    def _exchange(self, name: str) -> _Exchange | None:
        """Prepare one function; None where torch has none, or someone else something else in its place."""
        function = vars(functional).get(name)
        if not inspect.isfunction(function) or function.__module__ != functional.__name__:
            return None
        parameters = inspect.signature(function).parameters.values()
        if function.__closure__ or any(p.kind is not p.POSITIONAL_OR_KEYWORD for p in parameters):
            return None
        own, names = function.__code__, [parameter.name for parameter in parameters]
        copied = FunctionType(own, function.__globals__, name, function.__defaults__)
        return _Exchange(function, own, _code_that_calls(self._teller(name, copied, names), own, names))

    def _teller(self, name: str, original: FunctionType, names: list[str]) -> Callable[..., Any]:
        """Return what runs the original and tells of its result."""
        reduction_at = names.index("reduction") if "reduction" in names else None

        def call(*arguments: Any) -> Any:
            result = original(*arguments)
            listeners = self._listeners
            if listeners and _is_scalar(result) and all(map(_is_plain, arguments)):
                is_sum = reduction_at is not None and arguments[reduction_at] == "sum"
                seen = SeenLoss(name, result, _batch_size(name, arguments[0]), is_sum)
                for listener in listeners:
                    listener.note_loss(seen)
            return result

        torch_dynamo.never_compile(call)
        return functools.wraps(original)(call)


def _code_that_calls(call: Callable[..., Any], own: CodeType, names: list[str]) -> CodeType:
    """Compile code with a function's signature, file and line that calls something else."""
    # A constant of the code, not a global: nothing of ours is left in torch's module.
    source = f"def {own.co_name}({', '.join(names)}): return [{_PLACEHOLDER!r}][0]({', '.join(names)})"
    scope: dict[str, Any] = {}
    exec(compile(source, own.co_filename, "exec"), scope)  # noqa: S102 - made of torch's own names
    code: CodeType = scope[own.co_name].__code__
    constants = tuple(call if constant == _PLACEHOLDER else constant for constant in code.co_consts)
    return code.replace(co_consts=constants, co_firstlineno=own.co_firstlineno, co_qualname=own.co_qualname)


def _is_scalar(result: object) -> bool:
    return type(result) is Tensor and not result.dim() and result.is_floating_point()


def _is_plain(value: object) -> bool:
    kind = type(value)
    return kind in _PLAIN or not hasattr(kind, "__torch_function__")


def _batch_size(function: str, first: Any) -> int:
    if not isinstance(first, Tensor) or not first.dim():
        return 1
    return first.size(1) if function in _BATCH_SECOND and first.dim() > 1 else first.size(0)


loss_functions = LossFunctions()
"""Of this process: every session shares it."""
