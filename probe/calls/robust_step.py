"""`robust_training_step`: one training step that survives a lack of memory, or what a strategy allows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, get_args

from torch import nn
from torch.optim.optimizer import Optimizer

from ..actions.recovery.memory_release import release_after
from ..compat.other_ranks import has_other_ranks
from ..detectors.base import Finding
from ..incidents.failure_texts import is_out_of_memory
from ..settings.recovery_options import Strategy
from .attempts import UpdateWatch, known_parameters, session_of, tell

OnOutOfMemory: TypeAlias = Literal["skip", "raise"]
_MOST_RETRIES: Final = 100


def robust_training_step(
    step_function: Callable[..., Any],
    *args: Any,
    optimizer: Optimizer | None = None,
    retries: int = 1,
    on_out_of_memory: OnOutOfMemory = "skip",
    recovery_strategy: Strategy | None = None,
    skipped: Any = None,
    **kwargs: Any,
) -> Any:
    """Call `step_function(*args, **kwargs)`; on a lack of memory release what can be, and try again or skip.

    A lack of memory is `torch.OutOfMemoryError`, `MemoryError` or the RuntimeError of torch's CPU allocator.
    The frames of the exception are released, garbage is collected, CUDA's cached memory given back and the
    gradients set to None. Every other exception is raised on untouched, unless `recovery_strategy` returns
    True for it. An attempt in which an optimizer has already written to its parameters is not repeated; of a
    compiled `optimizer.step`, and of an update by hand, that is seen where `optimizer` is given or a session
    watches the model.
    With several ranks nothing is repeated or skipped: the others would wait for this one.

    Each attempt that was recovered from is an event of kind `recovery` of the session that watches the model
    (without one, a line in the log).

    Args:
        step_function: forward, backward and update of one batch.
        *args: for it.
        optimizer: whose parameters are looked at, and whose gradients are set to None after a failure; those
            of the session by default.
        retries: how often the step is tried again, at most.
        on_out_of_memory: what follows when no retry is left: "skip" returns `skipped`, "raise" raises on.
        recovery_strategy: `recovery_strategy(error, context) -> bool`, asked at every exception (after a lack
            of memory, once memory is released). True tries again, or skips when no retry is left; False
            raises the exception on. `context` has `attempt`, `retries`, `is_out_of_memory`, `optimizer` and
            `step_function`.
        skipped: what is returned for a step that was skipped.
        **kwargs: for `step_function`.

    Returns:
        What `step_function` returns, or `skipped`.

    Raises:
        ValueError: an option is out of its range.
    """
    _check(step_function, retries, on_out_of_memory, recovery_strategy)
    for attempt in range(retries + 1):
        with UpdateWatch(known_parameters(optimizer)) as updates:
            try:
                return step_function(*args, **kwargs)
            except Exception as error:
                failure = _describe(error, attempt, retries, optimizer, has_begun=updates.has_begun)
                goes_on = _may_go_on(error, failure, step_function, on_out_of_memory, recovery_strategy)
                if not goes_on:
                    raise
                release_after(error)
        _settle(failure)
        if failure.is_last:
            break
    return skipped


@dataclass(frozen=True, slots=True)
class _Failure:
    """One attempt that raised. Not the exception itself, which would keep its frames."""

    text: str
    is_out_of_memory: bool
    has_begun: bool
    attempt: int
    retries: int
    optimizer: Optimizer | None

    @property
    def is_last(self) -> bool:
        """Whether no other attempt can follow."""
        return self.has_begun or self.attempt >= self.retries


def _describe(
    error: Exception, attempt: int, retries: int, optimizer: Optimizer | None, *, has_begun: bool
) -> _Failure:
    lines = str(error).splitlines() or [""]
    return _Failure(
        text=f"{type(error).__name__}: {lines[0]}",
        is_out_of_memory=is_out_of_memory(error),
        has_begun=has_begun,
        attempt=attempt,
        retries=retries,
        optimizer=optimizer,
    )


def _may_go_on(
    error: Exception,
    failure: _Failure,
    step_function: Callable[..., Any],
    on_out_of_memory: OnOutOfMemory,
    recovery_strategy: Strategy | None,
) -> bool:
    """Whether the exception may be swallowed, for a retry or for good."""
    if not failure.is_out_of_memory and recovery_strategy is None:
        return False
    if has_other_ranks():
        _tell(
            failure,
            "declined",
            f"Training step is not recovered from {failure.text}: one rank alone that repeats or skips a "
            "step leaves the others waiting in a collective",
        )
        return False
    if recovery_strategy is None:
        return not failure.is_last or on_out_of_memory == "skip"
    if failure.is_out_of_memory:
        release_after(error)
    context = {
        "attempt": failure.attempt,
        "retries": failure.retries,
        "is_out_of_memory": failure.is_out_of_memory,
        "optimizer": failure.optimizer,
        "step_function": step_function,
    }
    return bool(recovery_strategy(error, context))


def _settle(failure: _Failure) -> None:
    """Set the gradients to None and tell what was done."""
    session = session_of(failure.optimizer)
    cleared: list[Optimizer | nn.Module] = [] if failure.optimizer is None else [failure.optimizer]
    if not cleared and session is not None:
        # Of an optimizer that has made no step yet a session does not know.
        model = session.watched_model
        cleared = [*session.optimizers, *([] if model is None else [model])]
    for owner in cleared:
        owner.zero_grad(set_to_none=True)
    why = "ran out of memory" if failure.is_out_of_memory else "failed"
    done = "memory is released and gradients are cleared" if cleared else "memory is released"
    if failure.is_last:
        following = "the batch is skipped"
    else:
        following = f"the step is tried again ({failure.attempt + 1} of {failure.retries})"
    if failure.has_begun:
        following += ", for its update had begun: some parameters may have been updated"
    message = f"Training step {why} ({failure.text}); {done}; {following}"
    _tell(failure, "skip" if failure.is_last else "retry", message)


def _tell(failure: _Failure, subject: str, message: str) -> None:
    finding = Finding(
        kind="recovery",
        severity="warning",
        subject=subject,
        message=message,
        value=float(failure.attempt + 1),
        threshold=float(failure.retries + 1),
    )
    tell(session_of(failure.optimizer), finding)


def _check(
    step_function: object, retries: object, on_out_of_memory: object, recovery_strategy: object
) -> None:
    if not callable(step_function):
        raise ValueError(f"robust_training_step() takes a function, got {type(step_function).__name__}")
    check_retries(retries)
    if on_out_of_memory not in get_args(OnOutOfMemory):
        raise ValueError(f'on_out_of_memory={on_out_of_memory!r} must be "skip" or "raise"')
    if recovery_strategy is not None and not callable(recovery_strategy):
        raise ValueError(f"recovery_strategy={recovery_strategy!r} must be a function of (error, context)")


def check_retries(retries: object) -> None:
    """Raise `ValueError` unless it is a number of retries."""
    if not isinstance(retries, int) or isinstance(retries, bool) or not 0 <= retries <= _MOST_RETRIES:
        raise ValueError(f"retries={retries!r} must be a whole number from 0 to {_MOST_RETRIES}")
