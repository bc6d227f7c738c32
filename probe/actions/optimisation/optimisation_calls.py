"""The calls of a session about optimisations: a part of `Probe`. What they need is loaded with the first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from .applied import OptimizationMetrics
    from .benchmark_result import OptimizationBenchmark
    from .modes import OptimizationMode
    from .optimised_loop import TrainingLoopResult


class OptimizationCalls:
    """Methods of `Probe`."""

    if TYPE_CHECKING:

        def record_document(self, body: Any, *, kind: str, key: str) -> None:
            """Write something that was measured as a whole."""

    def optimize_model(
        self,
        model: nn.Module | Callable[..., Any] | None = None,
        mode: OptimizationMode = "full",
        **options: Any,
    ) -> Any:
        """See `probe.optimize_model`."""
        from .optimised_model import optimize_model

        return optimize_model(model, mode, **options)

    def optimize_training_loop(
        self,
        model: nn.Module,
        dataloader: Iterable[Any],
        optimizer: Any,
        criterion: Any = None,
        **options: Any,
    ) -> TrainingLoopResult:
        """See `probe.optimize_training_loop`."""
        from .optimised_loop import optimize_training_loop

        return optimize_training_loop(model, dataloader, optimizer, criterion, **options)

    def benchmark_optimizations(
        self, model: Any, batch: Any, optimizer: Any = None, criterion: Any = None, **options: Any
    ) -> OptimizationBenchmark:
        """See `probe.benchmark_optimizations`; the result is kept with this run."""
        from .benchmark import benchmark_optimizations

        found = benchmark_optimizations(model, batch, optimizer, criterion, **options)
        self.keep_benchmark(found)
        return found

    def keep_benchmark(self, found: OptimizationBenchmark) -> None:
        """Write a comparison as a document of the run; the newest of a model is kept."""
        from ...wire.compared_modes import KIND
        from .kept_benchmark import document_body

        self.record_document(document_body(found), kind=KIND, key=found.model)

    @property
    def optimization_metrics(self) -> tuple[OptimizationMetrics, ...]:
        """Modes that were applied or measured in this process, the newest 1,000, oldest first."""
        from .applied import metrics

        return metrics()
