"""What is said of losses that a script leaves out because they are not finite, and of what they leave behind.

Pure: names and numbers in, findings out. Called on the training thread by what follows such forwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .base import Finding
from .scaler import CRITICAL_AFTER, WARN_AFTER

_SKIPPED_ADVICE: Final = (
    "Leaving out one bad batch is right; where every batch is bad, nothing is trained any more. Stop after "
    "some skips in a row instead of going on.",
    "If parameters or running statistics hold NaN, go back to a checkpoint: no further batch repairs them.",
    "If they are finite, look at the batches and at the code of the loss: run it with "
    "`torch.autograd.set_detect_anomaly(True)` and call backward once.",
)
_BUFFERS_ADVICE: Final = (
    "Check the batch before the forward (`torch.isfinite(x).all()`), not the loss after it: a forward in "
    "train mode takes the batch into the running statistics whether or not it is trained on.",
    "To go on from here, load these buffers from a checkpoint, or call `reset_running_stats()` of the module "
    "and make some hundred forwards in train mode.",
)


def skipped_losses(count: int, *, since: int, cause: str) -> Finding | None:
    """Return what is to be said of a number of losses in a row that were left out; nothing of most numbers.

    Args:
        count: how many in a row were not finite, with no backward between them.
        since: number of the step under way.
        cause: what was seen to be bad, as a sentence; "" where nothing was.
    """
    if count not in (WARN_AFTER, CRITICAL_AFTER):
        return None
    return Finding(
        kind="nonfinite_loss",
        severity="warning" if count < CRITICAL_AFTER else "critical",
        subject="loss",
        message=f"The last {count} losses were not finite and the script called no backward on them: nothing "
        f"has been trained since step {since}{f'. {cause}' if cause else ''}",
        value=float("nan"),
        threshold=float(WARN_AFTER),
        baseline={"skipped": float(count)},
        advice=_SKIPPED_ADVICE,
    )


def bad_buffers(names: Sequence[str], *, step: int) -> Finding:
    """Return what is to be said of a model's buffers that are not finite.

    Args:
        names: of the buffers, at least one.
        step: number of the step at which that was seen first.
    """
    return Finding(
        kind="nonfinite_parameter",
        severity="critical",
        subject=names[0],
        message=f"{_in_words(names)} not finite at step {step}: a forward in train mode has taken a bad "
        "batch into them, also where the script did not train on it. Evaluations give NaN from here on",
        value=float("nan"),
        threshold=None,
        affected=tuple(names),
        advice=_BUFFERS_ADVICE,
    )


def _in_words(names: Sequence[str]) -> str:
    """``The running mean and variance of `1` are``, or the buffers' own names."""
    statistics = [name for name in names if name.rpartition(".")[2] in ("running_mean", "running_var")]
    modules = list(dict.fromkeys(name.rpartition(".")[0] for name in statistics))
    if len(statistics) == len(names) == 2 * len(modules):
        more = f" and {len(modules) - 1} other modules" if len(modules) > 1 else ""
        return f"The running mean and variance of `{modules[0] or 'the model'}`{more} are"
    more = f" and {len(names) - 1} other buffers" if len(names) > 1 else ""
    return f"The buffer `{names[0]}`{more} {'are' if more else 'is'}"
