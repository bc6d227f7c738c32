"""Under which evidence a piece of advice fits: what is known of a fault when it is chosen. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

HUGE: Final = 1e4
"""Magnitude of logits that no target and no mask explains."""


class Known(NamedTuple):
    """What is known of a fault; a default stands for what is not."""

    phase: str | None = None
    """Of the origin: forward, backward, loss or input."""
    op: str | None = None
    """Of the origin, as torch names it (`aten.sqrt.default`, `SqrtBackward0`, `torch.sqrt`)."""
    dtypes: frozenset[str] = frozenset()
    """Of the op's tensors, such as "float16"."""
    largest: float | None = None
    """The largest finite magnitude that the op read."""
    has_only_read: bool = False
    """Whether NaN or Inf was there already when the op read it."""
    changes: frozenset[str] = frozenset()
    """What was set otherwise shortly before, as `changes.What` names it."""


CHANGED: Final[Mapping[str, str]] = {
    "learning rate": "The learning rate was raised just before: go back to the one before. Where a "
    "checkpoint was loaded or a scheduler was made anew, check that it continues where it was.",
    "mode": "The model is in another mode than in the steps before: call `model.train()` after each "
    "evaluation.",
    "batch size": "The batch has another size than those before: check whether that was meant, and whether "
    "the loss and BatchNorm suit it.",
    "phase": "Other layers are trained since: new parts begin with large gradients; warm their learning rate "
    "up.",
}
"""What to do where the training itself has changed something, by what it is; it comes first."""


def _is_unchanged(known: Known) -> bool:
    # A batch of another size may be the one that is at fault.
    return known.changes.isdisjoint(("learning rate", "mode", "phase"))


def _is_float16(known: Known) -> bool:
    return "float16" in known.dtypes


def _may_be_half(known: Known) -> bool:
    return not known.dtypes or not known.dtypes.isdisjoint(("float16", "bfloat16"))


def _is_huge(known: Known) -> bool:
    return known.largest is not None and known.largest >= HUGE


CONDITIONS: Final[Mapping[str, Callable[[Known], bool]]] = {
    "A product of finite numbers overflowed float16": _is_float16,
    "A product of finite numbers overflowed: look": lambda known: not _is_float16(known),
    "exp overflows above 11": _is_float16,
    "exp overflows above 88": lambda known: not _is_float16(known),
    "In float16 squares overflow": _is_float16,
    "In float16 a product above": _is_float16,
    "In half precision, check for underflow": _may_be_half,
    "In bfloat16 or float16 weights": _may_be_half,
    "cross entropy is NaN when every target": lambda known: not _is_huge(known),
    "The logits are huge": _is_huge,
    "Check the batch of this step": lambda known: _is_unchanged(known) and not known.has_only_read,
    "If the loss comes back": _is_unchanged,
    "If a gradient explosion came first": _is_unchanged,
    "Otherwise look at the batch": _is_unchanged,
    "If the loss does not come back": _is_unchanged,
    "One gradient was much larger": _is_unchanged,
    "Clip by norm": _is_unchanged,
    "If it repeats: lower": _is_unchanged,
    "Look at the batch of this step": _is_unchanged,
}
"""By how a sentence begins; a sentence that is not here holds for every event of its kind or op."""


def fits(sentence: str, known: Known) -> bool:
    """Whether what is known speaks for a sentence, or at least not against it."""
    return all(is_so(known) for beginning, is_so in CONDITIONS.items() if sentence.startswith(beginning))
