"""Samples for the tests of the sampled detectors: of models that are really trained, and made up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from observed_steps import Watched
from torch import Tensor, nn

from probe.attach.observation.module_statistics import ModuleStatistics
from probe.detectors.base import Finding
from probe.detectors.sample import InputSample, ModuleSample, Sample, SampleDetector
from probe.detectors.sampled_bank import SampledDetectorBank
from probe.detectors.sampled_thresholds import SampledThresholds

Forward = Callable[..., Any]
LossOf = Callable[[int, Forward], Tensor]
OPTIONS = SampledThresholds()


def find(samples: Iterable[Sample], detector: SampleDetector | None = None) -> list[tuple[int, Finding]]:
    """Return every (step, finding) of a fresh bank, or of this detector."""
    observer = SampledDetectorBank(OPTIONS) if detector is None else detector
    return [(sample.step, finding) for sample in samples for finding in observer.observe(sample)]


def kinds(findings: Sequence[tuple[int, Finding]], *, at_least: str = "warning") -> set[str]:
    """Return the kinds found at this severity or above."""
    order = ("info", "warning", "critical")
    wanted = order[order.index(at_least) :]
    return {finding.kind for _, finding in findings if finding.severity in wanted}


def describe(findings: Sequence[tuple[int, Finding]]) -> str:
    """First message of each kind, for an assertion."""
    first = {
        (finding.kind, finding.severity): f"{step}: {finding.message}" for step, finding in findings[::-1]
    }
    return "\n".join(f"{kind} {severity} {message}" for (kind, severity), message in first.items())


# ------------------------------------------------------------------------------------------ real training


def every_step(step: int) -> set[str]:
    """Measure everything at every step."""
    return {"norms", "ratios", "activations", "inputs"}


def as_basic(step: int) -> set[str]:
    """Measure as the level basic does: activations densely at first, the rest now and then."""
    due = {"norms"} if step % 10 == 0 else set()
    if step % 50 == 0 or step < 5:
        due.add("ratios")
    if step < 20 or step % 50 == 0:
        due |= {"activations", "inputs"}
    return due


@dataclass
class SampledTraining:
    """Trains a model and keeps a `Sample` of each step, with plain torch, beside the module observer.

    `loss_of` is given the step and what to call in place of the model.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    due: Callable[[int], set[str]] = every_step
    clears: bool = True
    samples: list[Sample] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._watched = Watched(self.model)
        named = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
        self._parameters = [parameter for _, parameter in named]
        self._names = tuple(name for name, _ in named)
        layers = list(dict.fromkeys(name.rpartition(".")[0] for name in self._names))
        self._layers = tuple(layers)
        self._layer_of = np.array([layers.index(n.rpartition(".")[0]) for n in self._names], dtype=np.intp)
        self._module_names: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
        self._inputs: InputSample | None = None

    def run(
        self, loss_of: LossOf, steps: int, after: Callable[[int], None] = lambda step: None
    ) -> list[Sample]:
        """Train for so many steps; returns the samples of those at which something was due."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            for step in range(steps):
                self._step(loss_of, step)
                after(step)
        finally:
            torch.set_num_threads(threads)
        return self.samples

    def _step(self, loss_of: LossOf, step: int) -> None:
        due = self.due(step)
        if self.clears:
            self.optimizer.zero_grad(set_to_none=True)
        self._inputs, self._rows = None, 0
        loss = loss_of(step, lambda *args: self._forward(due, *args))
        loss.backward()
        modules = None
        if "activations" in due:
            self._watched.observer.end_backward()
            modules = self._modules(self._watched.collect())
        if not due:
            self.optimizer.step()
            return
        grads = [p.grad for p in self._parameters]
        norm = np.array([0.0 if g is None else float(g.double().norm()) for g in grads])
        sizes = np.array([float(p.detach().double().norm()) for p in self._parameters])
        std = np.array([float(p.detach().double().std(correction=0)) for p in self._parameters])
        before = [p.detach().double().clone() for p in self._parameters]
        self.optimizer.step()
        scalars = {"lr": float(self.optimizer.param_groups[0]["lr"]), "samples": float(self._rows)}
        self.samples.append(
            Sample(
                step=step,
                time=step * 0.01,
                loss=float(loss.detach()) if bool(loss.isfinite()) else None,
                total_grad_norm=float(np.sqrt((norm**2).sum())),
                grad_norm=norm,
                missing=np.array([g is None for g in grads]),
                parameter_norm=sizes if "norms" in due else None,
                update_ratio=self._ratios(before, grads) if "ratios" in due else None,
                scalars=scalars,
                modules=modules,
                inputs=self._inputs if "inputs" in due else None,
                parameter_names=self._names,
                layer_names=self._layers,
                layer_of=self._layer_of,
                parameter_std=std if step == 0 else None,
                is_matrix=np.array([sum(d > 1 for d in p.shape) > 1 for p in self._parameters]),
            )
        )

    def _forward(self, due: set[str], *args: Any) -> Any:
        floats = [a.detach().double() for a in args if isinstance(a, Tensor) and a.is_floating_point()]
        self._rows += len(args[0])
        if floats:
            self._inputs = input_sample({f"arg{i}": value.numpy() for i, value in enumerate(floats)})
        if "activations" not in due:
            return self.model(*args)
        return self._watched.forward(*args, due=("activations",))

    def _ratios(self, before: list[Tensor], grads: list[Tensor | None]) -> np.ndarray:
        """Missing as in `update_meter`: no gradient, not of this optimizer, or 0 before."""
        updated = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        ratios = np.full(len(before), np.nan)
        for i, (parameter, old) in enumerate(zip(self._parameters, before, strict=True)):
            size = float(old.norm())
            if id(parameter) in updated and grads[i] is not None and size > 0.0:
                ratios[i] = float((parameter.detach().double() - old).norm()) / size
        return ratios

    def _modules(self, found: ModuleStatistics) -> ModuleSample:
        names = (tuple(i.name for i in found.modules), tuple(i.type for i in found.modules))
        if names != self._module_names:
            self._module_names = names
        columns = {
            name: np.where(found.missing[name], np.nan, values) for name, values in found.columns.items()
        }
        return ModuleSample(names=self._module_names[0], types=self._module_names[1], columns=columns)


# -------------------------------------------------------------------------------------------- synthetic


NAMES = ("a.weight", "b.weight", "c.weight", "d.weight")


def plain(step: int, **values: Any) -> Sample:
    """A step of a model of four layers, of which nothing was measured but what is given."""
    given: dict[str, Any] = {
        "time": float(step),
        "loss": None,
        "total_grad_norm": None,
        "grad_norm": None,
        "missing": None,
        "parameter_norm": None,
        "update_ratio": None,
        "parameter_names": NAMES,
        "layer_names": ("a", "b", "c", "d"),
        "layer_of": np.arange(4),
    }
    return Sample(step=step, **(given | values))


def module_sample(types: Sequence[str], names: Sequence[str] | None = None, **columns: Any) -> ModuleSample:
    """Modules with these columns; by default called m0, m1, ..."""
    chosen = tuple(f"m{i}" for i in range(len(types))) if names is None else tuple(names)
    arrays = {name: np.asarray(values, dtype=np.float64) for name, values in columns.items()}
    return ModuleSample(names=chosen, types=tuple(types), columns=arrays)


def input_sample(values: dict[str, np.ndarray]) -> InputSample:
    """The statistics of these inputs."""
    with np.errstate(all="ignore"):
        arrays = list(values.values())
        return InputSample(
            names=tuple(values),
            max_abs=np.array([np.nanmax(np.abs(a), initial=0.0) for a in arrays]),
            mean=np.array([a.mean() for a in arrays]),
            std=np.array([a.std() for a in arrays]),
            nan_count=np.array([float(np.isnan(a).sum()) for a in arrays]),
            inf_count=np.array([float(np.isinf(a).sum()) for a in arrays]),
        )


NOISES: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "normal": lambda random, count: random.standard_normal(count),
    "laplace": lambda random, count: random.laplace(size=count),
    "t3": lambda random, count: random.standard_t(3, count),
    "lognormal": lambda random, count: random.lognormal(0.0, 1.0, count),
}
