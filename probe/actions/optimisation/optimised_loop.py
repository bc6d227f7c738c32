"""`optimize_training_loop`: trains a model in one of the modes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from ...guard import outcome_of
from ..analysis.gradient_checks import require_module
from ..analysis.mapped_result import MappedResult
from .applied import OptimizationMetrics, note_metrics
from .benchmark import benchmark_optimizations
from .benchmark_result import ModeResult
from .intervals import FEWEST
from .modes import OptimizationMode
from .optimised_model import OptimizedModel, optimize_model
from .optimised_step import Criterion, OptimizedStep, on_device, read_batch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TrainingLoopResult(MappedResult):
    """What a training loop came to: `result["total_time"]`, `result["optimization_metrics"]`."""

    mode: OptimizationMode
    epochs: int
    steps: int
    total_time: float
    """Seconds of all epochs, compilation included; the comparison before them is not."""
    epoch_losses: tuple[float, ...]
    """Mean of the steps' losses of each epoch; NaN of an epoch without a batch."""
    optimization_metrics: OptimizationMetrics
    note: str | None = None
    """Why there is no speed-up, where it was asked for."""

    def __str__(self) -> str:
        """One sentence."""
        speedup = self.optimization_metrics.speedup_factor
        pace = "" if speedup is None else f", {speedup:.2f} times as fast as without"
        note = "" if self.note is None else f" ({self.note})"
        losses = ", ".join(f"{loss:.4g}" for loss in self.epoch_losses[-3:])
        return (
            f"{self.steps:,} steps in mode {self.mode}: {self.total_time:.3g} s{pace}; "
            f"newest losses of epochs: {losses}{note}"
        )


def optimize_training_loop(
    model: nn.Module,
    dataloader: Iterable[Any],
    optimizer: Optimizer,
    criterion: Criterion | None = None,
    *,
    epochs: int = 1,
    mode: OptimizationMode = "amp",
    accumulation: int = 2,
    dtype: torch.dtype | None = None,
    checkpoint: Sequence[str] | None = None,
    compare: bool = True,
) -> TrainingLoopResult:
    """Train a model in a mode: zero_grad, forward, loss, backward, update for every batch.

    With float16 a `torch.amp.GradScaler` scales the loss. In `memory_efficient` and `full` each batch is
    computed in `accumulation` parts before the update; their gradients are those of the whole batch where the
    loss is a mean (or, with `reduction="sum"`, a sum) over rows. A watched model is recorded as in any loop.

    Args:
        model: the model, in training or evaluation mode as it is to be.
        dataloader: gives (inputs, targets), or dictionaries that the model takes; iterated once an epoch.
            Tensors are moved to the model's device.
        optimizer: of the model's parameters.
        criterion: gives the loss of outputs and targets; None takes the output's own `loss`.
        epochs: how many.
        mode: see `optimize_model`.
        accumulation: parts of a batch.
        dtype: of autocast; None chooses.
        checkpoint: names of the modules to checkpoint; None chooses.
        compare: before the first step, measure the speed-up on copies, with the first batch: some 30 steps.

    Raises:
        ValueError: no such mode, no module, nothing to checkpoint, or a number below 1.
        RuntimeError: `compilation` or `full`, and there is no C++ compiler.
    """
    for name, number in (("epochs", epochs), ("accumulation", accumulation)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ValueError(f"{name}={number!r} must be a whole number, at least 1")
    root = model if isinstance(model, OptimizedModel) else require_module(model)
    called = optimize_model(root, mode, dtype=dtype, checkpoint=checkpoint)
    step = OptimizedStep(called, criterion, optimizer, accumulation=accumulation)
    measured: ModeResult | None = None
    note, total_s, steps, losses = None, 0.0, 0, []
    for _ in range(epochs):
        found: list[Tensor] = []
        began_s = time.perf_counter()
        for batch in dataloader:
            inputs, targets = on_device(read_batch(batch), root)
            if compare and mode != "none" and not steps:
                paused_s = time.perf_counter()
                measured, note = _compared(
                    root, (inputs, targets), optimizer, criterion, called, accumulation
                )
                began_s += time.perf_counter() - paused_s
            found.append(step.run(inputs, targets))
            steps += 1
        # Waits for the device.
        losses.append(float(torch.stack(found).double().mean()) if found else float("nan"))
        total_s += time.perf_counter() - began_s
    return TrainingLoopResult(
        mode=mode,
        epochs=epochs,
        steps=steps,
        total_time=total_s,
        epoch_losses=tuple(losses),
        optimization_metrics=note_metrics(
            mode,
            execution_time=total_s,
            speedup=1.0 if mode == "none" else None if measured is None else measured.speedup,
            memory_saved=None if measured is None else measured.memory_saved,
        ),
        note=note,
    )


def _compared(
    model: nn.Module,
    batch: Any,
    optimizer: Optimizer,
    criterion: Criterion | None,
    called: OptimizedModel,
    accumulation: int,
) -> tuple[ModeResult | None, str | None]:
    """Return what the mode measures on copies, or why it could not be measured."""
    compared, error = outcome_of(
        benchmark_optimizations,
        model,
        batch if batch[1] is not None else batch[0],
        optimizer,
        criterion,
        modes=(called.mode,),
        pairs=FEWEST,
        accumulation=accumulation,
        dtype=called.dtype,
        checkpoint=called.checkpointed or None,
    )
    if compared is None:
        return None, f"no speed-up was measured: {error}"
    own = compared[called.mode]
    return (own, None) if own.error is None else (None, f"no speed-up was measured: {own.error}")
