"""Times a rank's own part of a backward: until its graph has run, and before it waits for other ranks.

DistributedDataParallel waits for its all-reduces at the end of backward, which therefore takes the same time
on all ranks, however slow one of them is. Called by the training loop, on the training thread, where there is
more than one rank.
"""

from __future__ import annotations

import time

from torch import Tensor

from ..compat import torch_engine
from .open_step import OpenStep


def time_own_backward(loss: Tensor, opened: OpenStep) -> None:
    """Add to a step what the backward that is about to begin takes until its graph has run.

    Args:
        loss: a tensor that it starts from.
        opened: the step that it belongs to.
    """
    began_ns = time.perf_counter_ns()

    def note() -> None:
        opened.own_backward_ns += time.perf_counter_ns() - began_ns

    torch_engine.call_after_graph(loss, note)
