"""`probe.benchmark_optimizations`: what it finds is kept with the run, where one is recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from ..actions.optimisation.benchmark import benchmark_optimizations as measure
from ..actions.optimisation.modes import MODES, OptimizationMode
from ..session import running_session, running_sessions

if TYPE_CHECKING:
    import torch
    from torch.optim.optimizer import Optimizer

    from ..actions.optimisation.benchmark_result import OptimizationBenchmark
    from ..actions.optimisation.optimised_step import Criterion


def benchmark_optimizations(
    model: nn.Module | Callable[[], nn.Module],
    batch: Any,
    optimizer: Optimizer | Callable[[Any], Optimizer] | None = None,
    criterion: Criterion | None = None,
    *,
    modes: Sequence[OptimizationMode] = MODES,
    pairs: int = 12,
    accumulation: int = 2,
    dtype: torch.dtype | None = None,
    checkpoint: Sequence[str] | None = None,
) -> OptimizationBenchmark:
    """Compare the modes of `optimize_model` on training steps of copies, and recommend one.

    Each mode has a copy of the model beside a plain copy, and both make steps in turn: their ratio is the
    speed-up, with an interval that holds its median in 99 % of cases. Of both first steps, from the same
    weights, outputs, loss and gradients are compared in float64. Memory is what the allocator gave at most
    in one step more. The model, its optimizer, the random generators and a running session stay as they are;
    two copies of model and optimizer have to fit into memory. The result is kept with the run that watches
    the model, else with the newest one: in its report, and in the view Profile of its page.

    Args:
        model: the model; or a function that makes one, where a model cannot be copied.
        batch: (inputs, targets), a dictionary that the model takes, or a loader whose first batch is taken.
        optimizer: makes the update of a step, from a copy of its state; or a function of parameters that
            makes one; None times forward and backward alone.
        criterion: gives the loss of outputs and targets; None takes the output's own `loss`.
        modes: which ones; `none` is always measured.
        pairs: of timed steps of each mode, at least 8.
        accumulation: parts of a batch in `memory_efficient` and `full`.
        dtype: of autocast; None chooses.
        checkpoint: names of the modules to checkpoint; None chooses.

    Returns:
        Reads like a dictionary of modes; `print` shows a table. A mode that does not work has `error`.

    Raises:
        ValueError: no such mode, too few pairs, no batch, or the plain step fails.
    """
    found = measure(
        model,
        batch,
        optimizer,
        criterion,
        modes=modes,
        pairs=pairs,
        accumulation=accumulation,
        dtype=dtype,
        checkpoint=checkpoint,
    )
    session = running_session(model) if isinstance(model, nn.Module) else None
    session = session or next(reversed(running_sessions()), None)
    if session is not None:
        session.keep_benchmark(found)
    return found
