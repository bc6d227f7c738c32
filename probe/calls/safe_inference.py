"""`safe_inference`: a model called without gradients, in- and outputs checked, split where memory lacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

from ..actions.recovery.enforcement import kind_of
from ..actions.recovery.memory_release import release_after
from ..actions.recovery.tensor_conditions import apply_policy, describe_violations, lasting_violations
from ..actions.watched_session import Session
from ..attach.layout import unwrap
from ..compat.other_ranks import talks_to_other_ranks
from ..detectors.base import Finding
from ..errors import PolicyError
from ..incidents.failure_texts import is_out_of_memory
from ..measure.input_sample import argument_names
from ..session import running_session
from ..settings.policies import InputPolicy, OutputPolicy, Policy
from .attempts import tell
from .batch_halves import first_dimension, joined, rows_of
from .robust_step import check_retries

_INPUT: Final = InputPolicy("raise")
_OUTPUT: Final = OutputPolicy("raise", min_std=None)
_WAITING: Final = (
    "the model's forward talks to other ranks (DistributedDataParallel, FSDP, tensor parallel), which would "
    "wait for calls that do not come. Give the module inside DistributedDataParallel, or smaller batches on "
    "all ranks"
)


def safe_inference(
    model: nn.Module,
    inputs: Any,
    *,
    retries: int = 1,
    split_batch: bool = False,
    input_policy: InputPolicy = _INPUT,
    output_policy: OutputPolicy = _OUTPUT,
) -> Any:
    """Call a model without gradients and in evaluation mode, and return what it returns.

    Inputs and outputs are held to the policies; by default they must hold no NaN and no Inf. On a lack of
    memory what can be released is, and the call is tried again; with `split_batch`, in halves; not where the
    forward talks to other ranks, which would wait. A device is waited for only where a policy says so. Each
    retry, and each policy that is broken, is an event of the session that watches the model (without one, a
    line in the log, or what is raised). The training flags of the modules are as before.

    Args:
        model: called as `model(inputs)`; with a tuple `model(*inputs)`, with a mapping `model(**inputs)`.
        inputs: what it is called with.
        retries: how often it is tried again, at most; with `split_batch`, how often a part is halved.
        split_batch: halve the batch along the first dimension of every tensor. Only for models that treat
            each row by itself; the results are joined along the first dimension.
        input_policy: what the inputs must be like.
        output_policy: what the result must be like.

    Raises:
        ValueError: an option is out of its range, or a batch that cannot be split or joined by rows.
        PolicyError: a policy is broken and its action is "raise", or "recover" cannot mend it; a ValueError.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"safe_inference() takes a torch.nn.Module, got {type(model).__name__}")
    check_retries(retries)
    call = _Call(model, running_session(model), retries, split_batch)
    args, kwargs = _arguments(inputs)
    names = [*argument_names(unwrap(model), len(args)), *kwargs]
    named = list(zip(names, (*args, *kwargs.values()), strict=True))
    values = call.held_to(input_policy, "input", named)
    args, kwargs = values[: len(args)], dict(zip(kwargs, values[len(args) :], strict=True))
    if split_batch:
        first_dimension([args, kwargs])
    with _evaluating(model), torch.no_grad():
        output = call.run(args, kwargs, halved=0)
    return call.held_to(output_policy, "output", [("output", output)])[0]


@dataclass(frozen=True, slots=True)
class _Call:
    model: nn.Module
    session: Session | None
    retries: int
    splits: bool

    def run(self, args: Sequence[Any], kwargs: Mapping[str, Any], *, halved: int) -> Any:
        """Call the model; on a lack of memory again, or in two parts."""
        for attempt in range(self.retries + 1):
            try:
                return self.model(*args, **kwargs)
            except Exception as error:
                used = halved if self.splits else attempt
                rows = first_dimension([args, kwargs]) if self.splits else 2
                if not is_out_of_memory(error) or used >= self.retries or rows < 2:
                    raise
                text = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
                if talks_to_other_ranks(self.model):
                    self._tell("declined", f"{text}; not tried again: {_WAITING}", used)
                    raise
                release_after(error)
            if self.splits:
                self._tell("split", f"{text}; the batch of {rows} rows is halved", used)
                return self._run_halves(args, kwargs, rows, halved + 1)
            self._tell("retry", f"{text}; it is tried again ({attempt + 1} of {self.retries})", used)
        raise AssertionError("the last attempt returns or raises")

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
            message = f"{side.capitalize()} policy broken in safe_inference: {describe_violations(found)}"
            lasting = lasting_violations(policy, found)
            worst, is_mended = (lasting or found)[0], policy.action == "recover" and not lasting
            finding = Finding(
                kind="recovery" if is_mended else kind_of(worst, side),
                severity="critical" if lasting else "warning",
                subject=side if is_mended else f"policy: {worst.name}",
                message=message + (": mended copies take their place" if is_mended else ""),
                value=worst.value,
                threshold=worst.threshold,
            )
            if self.session is not None or not lasting:
                # Without a session it is for the exception to say it.
                tell(self.session, finding)
            if lasting:
                raise PolicyError(message)
        return checked

    def _tell(self, subject: str, what: str, used: int) -> None:
        finding = Finding(
            kind="recovery",
            severity="warning",
            subject=subject,
            message=f"Inference ran out of memory: {what}",
            value=float(used + 1),
            threshold=float(self.retries),
        )
        tell(self.session, finding)


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
