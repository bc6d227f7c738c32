"""Under which evidence a piece of advice fits: what is known of a fault when it is chosen. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

EARLY_STEPS: Final = 64
"""What begins within so many steps of a run counts as there from the start."""
ORDINARY_RATE: Final = 0.01
"""From it on tiny updates are the gradient's doing, not the learning rate's."""
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
    weights: frozenset[str] = frozenset()
    """The same of the weights."""
    largest: float | None = None
    """The largest finite magnitude that the op read."""
    has_only_read: bool = False
    """Whether NaN or Inf was there already when the op read it."""
    changes: frozenset[str] = frozenset()
    """What was set otherwise shortly before, as `changes.What` names it."""
    has_one_class: bool = False
    """Whether each of the run's first batches has examples of one class alone."""
    severity: str | None = None
    subject: str = ""
    is_below_zero: bool = False
    """Whether it is about a value below 0 and below its threshold."""
    is_early: bool | None = None
    """Whether it began within the first steps of the run."""
    is_scaled: bool = False
    """Whether a GradScaler scaled the loss."""
    has_spread: bool | None = None
    """Whether parameters are named that NaN or Inf has reached."""
    are_weights_bad: bool | None = None
    """Whether weights are NaN or Inf before the update."""
    is_after_nonfinite: bool = False
    """Whether a loss or a gradient was NaN or Inf before."""
    is_everywhere: bool = False
    """Whether all layers or parameters are affected."""
    optimizers: frozenset[str] = frozenset()
    """Names of their classes."""
    optimizer_count: int | None = None
    has_decay: bool | None = None
    """Whether one of them has weight decay."""
    is_on_device: bool | None = None
    """Whether weights are on a GPU."""
    samples: int | None = None
    """Of the step under way."""
    rate: float | None = None
    """The highest learning rate."""
    is_nan: bool | None = None
    """Whether the value that was found is NaN; False: Inf."""
    held_for_backward: bool | None = None
    """Whether a large part of the memory is neither weights nor gradients nor optimizer state."""


CHANGED: Final[Mapping[str, str]] = {
    "learning rate": "The learning rate was raised just before: go back to the one before. Where a "
    "checkpoint was loaded or a scheduler was made anew, check that it continues where it was.",
    "mode": "The model is in another mode than in the steps before: call `model.train()` after each "
    "evaluation.",
    "batch size": "The batch has another size than those before: check whether that was meant, and whether "
    "the loss and BatchNorm suit it.",
    "weights": "The weights named have another size than a few steps before, and no update made them so: "
    "look at what writes to them between two steps (an initialisation, `load_state_dict`, a copy of an "
    "average).",
    "phase": "Other layers are trained since: new parts begin with large gradients; warm their learning rate "
    "up.",
}
"""What to do where the training itself has changed something, by what it is; it comes first."""


SORTED_DATA: Final = (
    "Each of the first batches has examples of one class alone: if the data are sorted by class, shuffle "
    "them."
)
"""Comes first, too, where nothing was changed."""


def is_unchanged(known: Known) -> bool:
    """Whether the training itself has changed nothing that explains the fault."""
    # A batch of another size may be the one that is at fault.
    return known.changes.isdisjoint(("learning rate", "mode", "phase", "weights"))


def _may_be_one_batch(known: Known) -> bool:
    return is_unchanged(known) and not known.has_one_class


def _is_float16(known: Known) -> bool:
    return "float16" in known.dtypes


def _may_be_half(known: Known) -> bool:
    return not known.dtypes or _has_half(known.dtypes)


def _has_half(dtypes: frozenset[str]) -> bool:
    return not dtypes.isdisjoint(("float16", "bfloat16"))


def _is_huge(known: Known) -> bool:
    return known.largest is not None and known.largest >= HUGE


def _may_be_early(known: Known) -> bool:
    return known.is_early is not False


def _may_be_late(known: Known) -> bool:
    return known.is_early is not True


def _may_be_adam(known: Known) -> bool:
    return not known.optimizers or any("adam" in name.lower() for name in known.optimizers)


def _may_be_sgd(known: Known) -> bool:
    return not known.optimizers or any("sgd" in name.lower() for name in known.optimizers)


def _is_unexplained(known: Known) -> bool:
    """A leak of which no container is known; where one is, the message says what to do about it."""
    return known.subject in ("", "process")


def _is_memory(known: Known) -> bool:
    return "memory" in known.subject


def _is_warning(known: Known) -> bool:
    return known.severity != "info"


def _is_masked_away(known: Known) -> bool:
    """Whether loss and gradients stayed finite, so that NaN in an activation may come from padding."""
    return known.severity != "critical" and not known.is_after_nonfinite


CONDITIONS: Final[Mapping[str, Callable[[Known], bool]]] = {
    # What an op computed with.
    "A product of finite numbers overflowed float16": _is_float16,
    "A product of finite numbers overflowed: look": lambda known: not _is_float16(known),
    "exp overflows above 11": _is_float16,
    "exp overflows above 88": lambda known: not _is_float16(known),
    "In float16": _is_float16,
    "In half precision, check for underflow": _may_be_half,
    "In bfloat16 or float16 weights": lambda known: not known.weights or _has_half(known.weights),
    "Small gradients become 0": lambda known: "float16" in known.weights | known.dtypes,
    "Look at the operations inside this module": lambda known: known.op is None and not known.has_only_read,
    "cross entropy is NaN when every target": lambda known: not _is_huge(known),
    "The logits are huge": _is_huge,
    # What the training has changed before, and how its data come.
    "Check the batch of this step": lambda known: _may_be_one_batch(known) and not known.has_only_read,
    "If the loss comes back": _may_be_one_batch,
    "If a gradient explosion came first": _may_be_one_batch,
    "Otherwise look at the batch": _may_be_one_batch,
    "If the loss does not come back": _may_be_one_batch,
    "One gradient was much larger": _may_be_one_batch,
    "Clip by norm": _may_be_one_batch,
    "If it repeats: lower": _may_be_one_batch,
    "Look at the batch of this step": _may_be_one_batch,
    "A loss that keeps rising": lambda known: is_unchanged(known) and not known.is_below_zero,
    "A loss that falls ever faster": lambda known: known.is_below_zero,
    "If it rose suddenly": lambda known: _may_be_late(known) and is_unchanged(known),
    "Divide the learning rate": is_unchanged,
    "Try a residual connection": is_unchanged,
    "LeakyReLU or GELU let": is_unchanged,
    # What is bad already.
    "Skip the update of this step": lambda known: known.are_weights_bad is not True,
    "Restart from the last good checkpoint: the weights": lambda known: known.are_weights_bad is True,
    "The parameters that hold NaN": lambda known: known.has_spread is not False,
    "`clip_grad_norm_` does not help": lambda known: not known.is_scaled,
    "No loss and no gradient was NaN": lambda known: not known.is_after_nonfinite,
    "If it comes from padding": _is_masked_away,
    "Look for missing values": lambda known: known.is_nan is not False,
    "It is Inf, not NaN": lambda known: known.is_nan is False,
    # Whether it was so from the start, or became so.
    "Usual cause: one update that was too large": _may_be_late,
    "It is so from the start": _may_be_early,
    "Check the scale of the inputs first": _may_be_early,
    "It became so during training": _may_be_late,
    "Initialise for the activation": _may_be_early,
    "It was so from the start": _may_be_early,
    "It became so: lower": _may_be_late,
    "If it began after a large step": _may_be_late,
    "If memory grew step by step": _may_be_late,
    "A model that is not trained yet": _may_be_early,
    # Where it is.
    "Look between the first affected layer": lambda known: not known.is_everywhere,
    "Usual causes: all ReLUs": lambda known: not known.is_everywhere,
    "No layer gets anything": lambda known: known.is_everywhere,
    "If it is intended (an auxiliary": lambda known: not known.is_everywhere,
    "Reduce the batch, the number": _is_memory,
    "Most often a list of losses": _is_unexplained,
    "Look for a cache without a limit": _is_unexplained,
    "On the host: data loader workers": _is_unexplained,
    "Save a checkpoint now": _is_memory,
    "Reduce the batch size": lambda known: known.samples != 1,
    "Trade time for memory": lambda known: known.held_for_backward is not False,
    "On a GPU": lambda known: known.is_on_device is not False,
    # Which optimizer, and what of it.
    "With Adam, a larger eps": _may_be_adam,
    "Warm the learning rate up: Adam's": lambda known: _may_be_adam(known) and _may_be_early(known),
    "With SGD the update": _may_be_sgd,
    "Raise the learning rate": lambda known: known.rate is None or known.rate < ORDINARY_RATE,
    "The optimizer has weight decay": lambda known: known.has_decay is True,
    "With several optimizers": lambda known: known.optimizer_count != 1,
    "Autocast to bfloat16": lambda known: not _has_half(known.weights),
    # A plateau from the start, or behind a fall.
    "If it is what guessing gives": _is_warning,
    "Check the wiring": _is_warning,
    "Check the loss: `cross": _is_warning,
    "Check the learning rate": _is_warning,
    "It stopped after learning": lambda known: not _is_warning(known),
    # Whether a step's own work takes longer.
    "Usual causes: a list": _is_warning,
    "Compare the module times": _is_warning,
    "The step's own work": lambda known: not _is_warning(known),
}
"""By how a sentence begins; a sentence that is not here holds for every event of its kind or op."""


def fits(sentence: str, known: Known) -> bool:
    """Whether what is known speaks for a sentence, or at least not against it."""
    return all(is_so(known) for beginning, is_so in CONDITIONS.items() if sentence.startswith(beginning))
