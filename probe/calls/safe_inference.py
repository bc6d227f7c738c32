"""`safe_inference`: a model called without gradients, in- and outputs checked, tried again where it fails."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

from ..actions.recovery.enforcement import kind_of
from ..actions.recovery.memory_release import release_after
from ..actions.recovery.tensor_conditions import (
    apply_policy,
    describe_violations,
    lasting_violations,
    map_tensors,
)
from ..attach.layout import unwrap
from ..compat.other_ranks import talks_to_other_ranks
from ..detectors.base import Finding
from ..errors import PolicyError
from ..incidents.failure_texts import is_out_of_memory
from ..measure.input_sample import argument_names
from ..session import Probe, running_session
from ..settings.policies import InputPolicy, OutputPolicy, Policy
from .attempts import tell
from .batch_halves import first_dimension, joined, rows_of
from .inference_drift import drift_of_call
from .robust_step import check_retries

_INPUT: Final = InputPolicy("raise")
_OUTPUT: Final = OutputPolicy("raise", min_std=None)
_MISSING: Final[Any] = object()
_FAILED: Final = "Inference failed"
_RAN_OUT: Final = "Inference ran out of memory"
_WAITING: Final = (
    "the model's forward talks to other ranks (DistributedDataParallel, FSDP, tensor parallel), which would "
    "wait for calls that do not come. Give the module inside DistributedDataParallel, or smaller batches on "
    "all ranks"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceResult:
    """What came of a `safe_inference`."""

    success: bool
    data: Any
    """What the model returned, held to the output policy; None where it failed."""
    error_message: str | None
    """Class and text of the exception that was left in the end; None where it succeeded."""
    error: Exception | None
    attempts: int
    """Calls of the model, of parts of the batch too; 0 where the inputs were refused."""
    drift: tuple[str, ...] = ()
    """What is far from what training showed, in one sentence each; of a watched model."""

    def __bool__(self) -> bool:
        return self.success

    def unwrap(self) -> Any:
        """Return `data`.

        Raises:
            Exception: the one that was left, such as `PolicyError`, where the inference has failed.
        """
        if self.error is not None:
            raise self.error
        return self.data


def safe_inference(
    model: nn.Module,
    inputs: Any = _MISSING,
    *,
    input_data: Any = _MISSING,
    retries: int | None = None,
    max_retries: int | None = None,
    device: torch.device | str | None = None,
    split_batch: bool = False,
    input_policy: InputPolicy = _INPUT,
    output_policy: OutputPolicy = _OUTPUT,
) -> InferenceResult:
    """Call a model without gradients and in evaluation mode, and return what came of it; nothing is raised.

    Inputs and outputs are held to the policies; by default they must hold no NaN and no Inf. What fails is
    tried again, whatever the exception is, an output that breaks its policy too; on a lack of memory what can
    be released is, first; with `split_batch` the batch is then halved. Not where the forward talks to other
    ranks, which would wait. A device is waited for only where a policy says so. Each retry, and each policy
    that is broken, is an event of the session that watches the model (without one, a line in the log, or the
    result alone). So is an input or output that is far from what the session has seen in training (`drift`).
    The training flags of the modules are as before.

    Args:
        model: called as `model(inputs)`; with a tuple `model(*inputs)`, with a mapping `model(**inputs)`.
        inputs: what it is called with.
        input_data: another name for `inputs`.
        retries: how often it is tried again, at most, 1 by default; with `split_batch`, also how often a
            part is halved.
        max_retries: another name for `retries`.
        device: where the tensors of the inputs are moved to first; the model is not moved.
        split_batch: halve the batch along the first dimension of every tensor. Only for models that treat
            each row by itself; the results are joined along the first dimension.
        input_policy: what the inputs must be like.
        output_policy: what the result must be like.

    Raises:
        ValueError: an option is out of its range or given twice, or the inputs cannot be split by rows.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"safe_inference() takes a torch.nn.Module, got {type(model).__name__}")
    given = _one_of(inputs=inputs, input_data=input_data)
    count = _one_of(
        retries=_MISSING if retries is None else retries,
        max_retries=_MISSING if max_retries is None else max_retries,
        default=1,
    )
    check_retries(count)
    args, kwargs = _arguments(given if device is None else _moved(given, device))
    if split_batch:
        first_dimension([args, kwargs])
    call = _Call(model, running_session(model), count, split_batch)
    try:
        data = call.whole(args, kwargs, input_policy, output_policy)
    except Exception as error:  # noqa: BLE001 - it is in the result, which says so
        text = f"{type(error).__name__}: {error}"
        return InferenceResult(
            success=False, data=None, error_message=text, error=error, attempts=call.attempts
        )
    drift = drift_of_call(call.session, model, args, kwargs, data)
    return InferenceResult(
        success=True, data=data, error_message=None, error=None, attempts=call.attempts, drift=drift
    )


def _one_of(default: Any = _MISSING, **named: Any) -> Any:
    """Return the only one of two names of one argument that is given.

    Raises:
        ValueError: both are given, or neither where there is no default.
    """
    given = [value for value in named.values() if value is not _MISSING]
    first, second = named
    if len(given) > 1:
        raise ValueError(f"safe_inference() got {first}= and {second}=, two names of one argument; give one")
    if not given and default is _MISSING:
        raise ValueError(f"safe_inference() needs {first}=, what the model is called with")
    return given[0] if given else default


def _moved(inputs: Any, device: torch.device | str) -> Any:
    return map_tensors(inputs, "input", lambda name, tensor: tensor.to(device), most=None)


@dataclass(slots=True)
class _Call:
    model: nn.Module
    session: Probe | None
    retries: int
    splits: bool
    attempts: int = 0
    used: int = 0
    """Retries that were made of the whole batch."""

    def whole(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        input_policy: InputPolicy,
        output_policy: OutputPolicy,
    ) -> Any:
        """Check, call and check, and call again where that failed."""
        names = [*argument_names(unwrap(self.model), len(args)), *kwargs]
        named = list(zip(names, (*args, *kwargs.values()), strict=True))
        values = self.held_to(input_policy, "input", named)
        args, kwargs = values[: len(args)], dict(zip(kwargs, values[len(args) :], strict=True))
        while True:
            with _evaluating(self.model), torch.no_grad():
                output = self.run(args, kwargs, halved=0)
            try:
                return self.held_to(output_policy, "output", [("output", output)])[0]
            except PolicyError as error:
                if not self._may_retry(error):
                    raise

    def run(self, args: Sequence[Any], kwargs: Mapping[str, Any], *, halved: int) -> Any:
        """Call the model, again where it fails; on a lack of memory in two parts, if it may be split."""
        while True:
            self.attempts += 1
            try:
                return self.model(*args, **kwargs)
            except Exception as error:
                if not (is_out_of_memory(error) and self.splits):
                    if not self._may_retry(error):
                        raise
                    continue
                rows = first_dimension([args, kwargs])
                if halved >= self.retries or rows < 2:
                    raise
                if self._must_not_repeat(error, halved):
                    raise
                release_after(error)
                what = f"{_line_of(error)}; the batch of {rows} rows is halved"
                self._tell("split", _RAN_OUT, what, halved)
            return self._run_halves(args, kwargs, rows, halved + 1)

    def _may_retry(self, error: Exception) -> bool:
        """Whether it is tried again after this; says so."""
        if self.used >= self.retries or self._must_not_repeat(error, self.used):
            return False
        begin = _FAILED
        if is_out_of_memory(error):
            begin = _RAN_OUT
            release_after(error)
        what = f"{_line_of(error)}; it is tried again ({self.used + 1} of {self.retries})"
        self._tell("retry", begin, what, self.used)
        self.used += 1
        return True

    def _must_not_repeat(self, error: Exception, used: int) -> bool:
        if not talks_to_other_ranks(self.model):
            return False
        begin = _RAN_OUT if is_out_of_memory(error) else _FAILED
        self._tell("declined", begin, f"{_line_of(error)}; not tried again: {_WAITING}", used)
        return True

    def _run_halves(self, args: Sequence[Any], kwargs: Mapping[str, Any], rows: int, halved: int) -> Any:
        middle, parts = rows // 2, []
        for start, stop in ((0, middle), (middle, rows)):
            part_args, part_kwargs = rows_of([list(args), dict(kwargs)], start, stop)
            parts.append((self.run(part_args, part_kwargs, halved=halved), stop - start))
        return joined(parts)

    def held_to(self, policy: Policy, side: str, named: Sequence[tuple[str, Any]]) -> list[Any]:
        """Check values; returns them, mended where the policy says so."""
        checked, found = apply_policy(policy, named)
        if found:
            message = f"{side.capitalize()} policy violated in safe_inference: {describe_violations(found)}"
            lasting = lasting_violations(policy, found)
            worst, is_mended = (lasting or found)[0], policy.action == "recover" and not lasting
            finding = Finding(
                kind="recovery" if is_mended else kind_of(worst, side),
                severity="critical" if lasting else "warning",
                subject=side if is_mended else f"policy: {worst.name}",
                message=message + (": repaired copies take their place" if is_mended else ""),
                value=worst.value,
                threshold=worst.threshold,
            )
            if self.session is not None or not lasting:
                # Without a session it is for the exception to say it.
                tell(self.session, finding)
            if lasting:
                raise PolicyError(message)
        return checked

    def _tell(self, subject: str, begin: str, what: str, used: int) -> None:
        finding = Finding(
            kind="recovery",
            severity="warning",
            subject=subject,
            message=f"{begin}: {what}",
            value=float(used + 1),
            threshold=float(self.retries),
        )
        tell(self.session, finding)


def _line_of(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _arguments(inputs: Any) -> tuple[list[Any], dict[str, Any]]:
    if isinstance(inputs, Mapping):
        return [], dict(inputs)
    if type(inputs) is tuple:
        return list(inputs), {}
    return [inputs], {}


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, and each module's own flag back."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
