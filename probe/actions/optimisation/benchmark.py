"""Steps of copies in each mode, beside plain ones; the model itself is not called. Any thread."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from ...compat.torch_compiler import graphs_compiled
from ...forensics.module_state import preserved
from ...guard import outcome_of
from ...threads.unnoticed import unnoticed
from ..analysis.recorded_calls import find_tensors
from .applied import note_metrics
from .benchmark_result import ModeResult, OptimizationBenchmark
from .copies import CopySource, draws_random_numbers
from .differences import StepValues, compare, limits_of
from .intervals import FEWEST, median_interval, speedups
from .measuring import PairedTimes, pair_times, peak_bytes, timed
from .modes import MODES, WITH_CHECKPOINTS, WITH_COMPILATION, OptimizationMode, check_mode, device_of
from .optimised_model import OptimizedModel
from .optimised_step import Criterion, OptimizedStep, on_device, read_batch, rows
from .recommendation import recommend

_WARM_UP: Final = 2
_DRAWS: Final = (
    "the model draws random numbers outside torch's dropout modules, so its numbers cannot be compared"
)
_NOT_COMPILED: Final = (
    "RuntimeError: nothing of the model was compiled: torch.compile fell back to plain Python; "
    "TORCH_LOGS=graph_breaks says where"
)


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
    """See `probe.benchmark_optimizations`; nothing is kept."""
    chosen = [check_mode(mode) for mode in modes]
    if isinstance(pairs, bool) or not isinstance(pairs, int) or pairs < FEWEST:
        raise ValueError(f"pairs={pairs!r} must be a whole number, at least {FEWEST}: fewer have no interval")
    if isinstance(accumulation, bool) or not isinstance(accumulation, int) or accumulation < 1:
        raise ValueError(f"accumulation={accumulation!r} must be a whole number, at least 1")
    source = CopySource(model, optimizer, criterion)
    with unnoticed(), preserved([] if source.root is None else [source.root]), torch.enable_grad():
        inputs, targets = read_batch(_first_batch(batch))
        bench = _Bench(source, inputs, targets, pairs, accumulation, dtype, checkpoint)
        bench.begin()
        for mode in chosen:
            if mode != "none":
                bench.measure(mode)
        results = bench.results()
    for one in results.values():
        if one.error is None:
            note_metrics(
                one.mode,
                execution_time=one.total_time or 0.0,
                speedup=one.speedup,
                memory_saved=one.memory_saved,
            )
    recommended, why = recommend(list(results.values()))
    return OptimizationBenchmark(
        model=bench.name,
        device=str(bench.device),
        pairs=pairs,
        recommended=recommended,
        why=why,
        results=results,
    )


class _Bench:
    """Everything that the modes have in common."""

    def __init__(
        self,
        source: CopySource,
        inputs: Any,
        targets: Any,
        pairs: int,
        accumulation: int,
        dtype: torch.dtype | None,
        checkpoint: Sequence[str] | None,
    ) -> None:
        self._source, self._pairs, self._accumulation = source, pairs, accumulation
        self._inputs, self._targets = inputs, targets
        self._options: dict[str, Any] = {"dtype": dtype, "checkpoint": checkpoint}
        self._found: dict[OptimizationMode, ModeResult] = {}
        self._plain_s: list[float] = []
        self._draws = self._still_draws = False
        self._plain_values: StepValues | None = None
        self.name, self.device = "", torch.device("cpu")

    def begin(self) -> None:
        """Make plain steps: they have to work, and the others are measured against them.

        Raises:
            ValueError: they do not.
        """
        _, error = outcome_of(self._begin)
        if error is not None:
            raise ValueError(f"a plain step of the model fails ({_sentence(error)})") from error

    def _begin(self) -> None:
        plain = self._step("none")
        self.name, self.device = type(plain.copied).__name__, device_of(plain.copied)
        self._inputs = on_device(self._inputs, plain.copied)
        self._targets = on_device(self._targets, plain.copied)
        first_s = 0.0

        def first() -> None:
            nonlocal first_s
            first_s = timed(lambda: plain.run(self._inputs, self._targets), self.device)

        self._draws = draws_random_numbers(first)
        checked = self._step("none", without_dropout=self._draws)

        def values() -> None:
            self._plain_values = self._values(checked)

        with preserved([]):
            self._still_draws = draws_random_numbers(values)
        self._found["none"] = ModeResult(
            mode="none", first_step_s=first_s, peak_bytes=self._peak(plain, warm_up=_WARM_UP)
        )

    def measure(self, mode: OptimizationMode) -> None:
        """Measure one mode; that it does not work is a result too."""
        made, error = outcome_of(self._measured, mode)
        self._found[mode] = made if made is not None else ModeResult(mode=mode, error=_sentence(error))

    def results(self) -> dict[OptimizationMode, ModeResult]:
        """All modes, `none` with the times that it had beside the others."""
        if not self._plain_s:
            plain = self._step("none")
            run = self._runner(plain)
            self._plain_s = pair_times(run, run, self.device, pairs=self._pairs, warm_up=_WARM_UP).plain_s
        times = self._plain_s
        self._found["none"] = replace(
            self._found["none"],
            total_time=sum(times) * self._pairs / len(times),
            step_s=statistics.median(times),
        )
        return self._found

    def _measured(self, mode: OptimizationMode) -> ModeResult:
        if mode in WITH_CHECKPOINTS and self._accumulation > 1 and rows(self._inputs) < 2:
            raise ValueError("a batch of one row cannot be split: pass a larger one, or accumulation=1")
        graphs = graphs_compiled()
        own = self._step(mode)
        values: list[StepValues] = []
        with preserved([]):
            # A step that is compared is a first one as well, unless it needs a copy of its own.
            first_s = timed(
                self._runner(own) if self._draws else lambda: values.append(self._values(own)), self.device
            )
        if mode in WITH_COMPILATION and graphs is not None and graphs_compiled() == graphs:
            return ModeResult(mode=mode, error=_NOT_COMPILED)
        if self._draws:
            with preserved([]):
                values.append(self._values(self._step(mode, without_dropout=True)))
        times = self._times(own)
        return self._result(mode, first_s, times, self._peak(own), values[0])

    def _result(
        self, mode: OptimizationMode, first_s: float, times: PairedTimes, peak: int | None, values: StepValues
    ) -> ModeResult:
        assert self._plain_values is not None
        ratios = speedups(*times)
        interval = median_interval(ratios)
        difference = compare(self._plain_values, values)
        limits = limits_of(mode, {one.dtype for one in self._plain_values.gradients.values()})
        plain_peak = self._found["none"].peak_bytes
        return ModeResult(
            mode=mode,
            total_time=sum(times.own_s),
            step_s=statistics.median(times.own_s),
            first_step_s=first_s,
            speedup=statistics.median(ratios),
            speedup_low=None if interval is None else interval.low,
            speedup_high=None if interval is None else interval.high,
            peak_bytes=peak,
            memory_saved=None if peak is None or not plain_peak else 1 - peak / plain_peak,
            difference=difference,
            is_within=None if self._still_draws else difference.within(limits),
            note=_DRAWS if self._still_draws else None,
        )

    def _step(self, mode: OptimizationMode, *, without_dropout: bool = False) -> _CopiedStep:
        made = self._source.copy(without_dropout=without_dropout)
        return _CopiedStep(
            OptimizedModel(made.model, mode, **self._options),
            made.criterion,
            made.optimizer,
            accumulation=self._accumulation,
        )

    def _runner(self, step: _CopiedStep) -> Callable[[], object]:
        return lambda: step.run(self._inputs, self._targets)

    def _times(self, own: _CopiedStep) -> PairedTimes:
        plain = self._step("none")
        times = pair_times(
            self._runner(plain), self._runner(own), self.device, pairs=self._pairs, warm_up=_WARM_UP
        )
        self._plain_s += times.plain_s
        return times

    def _peak(self, step: _CopiedStep, *, warm_up: int = 0) -> int | None:
        for _ in range(warm_up):
            step.run(self._inputs, self._targets)
        step.clear()
        step.outputs.clear()
        return peak_bytes(self._runner(step), self.device)

    def _values(self, step: _CopiedStep) -> StepValues:
        """Make one step, and return what it has computed before the update."""
        loss = step.backward(self._inputs, self._targets)
        scale = 1.0 if step.scaler is None else step.scaler.get_scale()
        gradients = {
            name: _dense(parameter.grad).clone() / scale
            for name, parameter in step.copied.named_parameters()
            if parameter.grad is not None
        }
        values = StepValues(outputs=_joined(step.outputs), loss=float(loss), gradients=gradients)
        step.update()
        return values


class _CopiedStep(OptimizedStep):
    """Steps of a copy."""

    @property
    def copied(self) -> nn.Module:
        """The copy itself."""
        return self._model.wrapped


def _first_batch(batch: Any) -> Any:
    if isinstance(batch, tuple | list) or hasattr(batch, "keys"):
        return batch
    if not isinstance(batch, Iterable) or isinstance(batch, Tensor):
        raise ValueError(
            f"batch must be (inputs, targets), a dictionary or a loader, got {type(batch).__name__}"
        )
    found = next(iter(batch), None)
    if found is None:
        raise ValueError("the loader has no batch")
    return found


def _dense(gradient: Tensor) -> Tensor:
    return gradient.detach() if gradient.layout is torch.strided else gradient.detach().to_dense()


def _joined(parts: Sequence[Any]) -> list[Tensor]:
    """Floating-point tensors of outputs, those of a batch in parts joined along the rows."""
    found = [[one.detach() for one in find_tensors(part) if one.is_floating_point()] for part in parts]
    return [
        torch.cat(many).clone()
        if many[0].dim()
        else torch.stack(many).sum()
        if len(many) > 1
        else many[0].clone()
        for many in zip(*found, strict=True)
    ]


def _sentence(error: BaseException | None) -> str:
    first = str(error).strip().splitlines()[:1]
    return ": ".join([type(error).__name__, *first])
