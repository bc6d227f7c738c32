"""Losses that lead to no model of an optimizer: what the line at the end of such a script says of them.

Asked on the training thread before a backward, while no session has begun. Reads the variables of the running
functions; names are kept, no module.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, Final

from torch import Tensor, nn

from ...attach.call_wrappers import is_own_frame
from ...compat import torch_nodes
from ...threads.frame_variables import is_library, variables_of
from .owners import variable_name

_MOST: Final = 3
"""Losses that are looked at."""
_MOST_FRAMES: Final = 32


class MissedLosses:
    """Remembers the first loss whose backward reaches a model that no optimizer has."""

    def __init__(self) -> None:
        self._left = _MOST
        self._reached: str | None = None
        self._trained = ""

    def note(self, losses: Sequence[Tensor], holders: Sequence[nn.Module], frame: FrameType | None) -> None:
        """A loss reaches none of the modules that optimizers update.

        Args:
            losses: what backward is called on.
            holders: the modules.
            frame: the innermost one of the script.
        """
        if self._reached is not None or not self._left:
            return
        self._left -= 1
        leaves = {id(leaf) for leaf in torch_nodes.leaves_of(losses) if isinstance(leaf, nn.Parameter)}
        reached = next(_modules_with(leaves, frame), None) if leaves else None
        if reached is not None:
            self._reached = _name_of(reached, frame)
            self._trained = " and ".join(_name_of(holder, frame) for holder in holders[:2])

    def sentence(self) -> str | None:
        """Say which model the losses lead to, and which the optimizer has; None where that was not seen."""
        if self._reached is None:
            return None
        line = f"nothing is recorded: backward reaches {self._reached}, which no optimizer has"
        if not self._trained:
            return f"{line}; no model has the parameters that the optimizer updates"
        return f"{line}; the optimizer's own model, {self._trained}, was never called with gradients on"


def _name_of(module: nn.Module, frame: FrameType | None) -> str:
    """What the script calls it: "`ema`", or "a `Linear`" where no variable holds it any more."""
    name = variable_name((module,), frame)
    return f"a `{type(module).__name__}`" if name is None else f"`{name}`"


def _modules_with(leaves: set[int], frame: FrameType | None) -> Iterator[nn.Module]:
    """The modules with any of these parameters that the script's variables hold, innermost frame first."""
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return
        if not is_library(frame) and not is_own_frame(frame):
            with variables_of(frame) as values:
                held = [*_modules(values), *_modules(getattr(values.get("self"), "__dict__", None))]
            held += _modules(frame.f_globals)
            yield from (one for one in held if not leaves.isdisjoint(map(id, one.parameters())))
        frame = frame.f_back


def _modules(values: Any) -> list[nn.Module]:
    kept = list(values.values()) if isinstance(values, dict) else []
    return [value for value in kept if isinstance(value, nn.Module)]
