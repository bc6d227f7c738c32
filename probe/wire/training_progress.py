"""How far a training is: the body of a `progress` document. Data only, imports no torch.

Made by `loop/progress_watch.py`; read by the page, which counts on from the newest step it knows.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

KIND: Final = "progress"
TRAINING: Final = "training"
EVALUATION: Final = "evaluation"

_Name = Annotated[str, msgspec.Meta(max_length=200)]
_Whole = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class BarState(msgspec.Struct, frozen=True, kw_only=True):
    """The outermost tqdm bar of the training process."""

    label: _Name
    done: float
    total: float
    elapsed_s: float
    """Seconds since it was opened."""


class TrainingProgress(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a training's length, and of how far it is; None is not known, and never guessed."""

    step: _Whole | None = None
    """Steps that are done, those before a resumed start included."""
    steps_before: _Whole = 0
    """Of those, the ones that this run has not made: its own step 0 came after them."""
    total_steps: _Whole | None = None
    is_estimate: bool = False
    """`total_steps` is that of the newest epoch, for each that is left."""
    epoch: float | None = None
    """Under way: as the script tells it, else counted from 1."""
    total_epochs: _Whole | None = None
    epoch_began: _Whole | None = None
    """Steps of this run before the epoch under way."""
    epoch_steps: _Whole | None = None
    """That the epoch under way has, by the length of its DataLoader."""
    is_epoch_estimate: bool = False
    """`epoch_steps` is that of the epoch before, or the last accumulation of the epoch is not full."""
    phase: _Name = TRAINING
    loss: float | str | None = None
    """As the script tells it; NaN and Inf as text."""
    learning_rate: float | str | None = None
    seconds_per_step: float | None = None
    """Mean of the last half minute or so."""
    bar: BarState | None = None
    ended: bool = False
