"""Why PyTorch raised an exception, named from the run: which tensor, which module, which line, which numbers.

One row of a table for each exception: a pattern of torch's text, and a function that looks for the cause in
what the traceback still holds. Read once, when the exception leaves the script; guesses are not said.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, TypeAlias

from torch import nn
from torch.optim.optimizer import Optimizer

from .graph import TABLE as GRAPH
from .scene import Cause, Scene
from .shapes import TABLE as SHAPES
from .stale_graph import TABLE as STALE_GRAPH
from .training import TABLE as TRAINING
from .wrong_values import TABLE as WRONG_VALUES

Explainer: TypeAlias = Callable[[Scene, "re.Match[str]"], Cause | None]

TABLE: Final[tuple[tuple[str, Explainer], ...]] = (
    *STALE_GRAPH,
    *GRAPH,
    *SHAPES,
    *WRONG_VALUES,
    *TRAINING,
)
"""Pattern searched for in the exception's text, and who explains it; the first cause that is found counts."""


def find_cause(
    error: BaseException,
    trace: TracebackType | None,
    *,
    step: int,
    model: nn.Module | None = None,
    optimizers: Sequence[Optimizer] = (),
) -> Cause | None:
    """Return why an exception was raised; None where the run does not show it.

    Args:
        error: the exception.
        trace: its traceback, whose frames still have their variables.
        step: number of the step under way.
        model: the naming root, and
        optimizers: those that update it.
    """
    text = str(error)
    scene: Scene | None = None
    for pattern, explain in TABLE:
        match = re.search(pattern, text, re.S)
        if match is None:
            continue
        scene = scene or Scene(error, trace, step=step, model=model, optimizers=optimizers)
        if (cause := explain(scene, match)) is not None:
            return cause
    return None
