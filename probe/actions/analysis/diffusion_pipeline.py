"""`analyze_diffusion_pipeline`: what a pipeline consists of. Imports no `diffusers`.

Reads the pipeline by its attributes; waits for the devices of the parameters; changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from ...measure.statistics.statistics import tensor_statistics
from . import tables
from .call_results import MappingResult, Result
from .diffusion_scale import option, scheduler_family
from .tensor import occupied_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffusionComponent(Result):
    """One model of a pipeline."""

    name: str
    """As the pipeline calls it: unet, transformer, vae, text_encoder, ..."""
    kind: str
    """Class."""
    parameters: int
    """Elements; tied ones once."""
    trainable: int
    """Elements of parameters that require a gradient."""
    bytes: int
    """Of parameters and buffers on this rank."""
    dtypes: tuple[str, ...]
    """Of the parameters, the most frequent first."""
    devices: tuple[str, ...]
    training: bool
    """Whether it is in training mode: dropout is active then."""
    norm: float | None
    """L2 norm of all parameters; None where nothing can be read (meta device)."""
    nan_count: int
    inf_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffusionScheduler(Result):
    """The scheduler of a pipeline."""

    kind: str
    """Class."""
    family: str | None
    """variance_preserving, variance_exploding or flow; None where its attributes do not say so."""
    train_timesteps: int | None
    prediction_type: str | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class DiffusionPipelineReport(MappingResult):
    """A pipeline; a dictionary, too: `report["total_parameters"]`."""

    _derived = ("total_parameters", "trainable_parameters", "total_bytes", "dtypes", "devices", "problems")

    pipeline: str
    """Class."""
    components: tuple[DiffusionComponent, ...]
    """Models, the largest first."""
    scheduler: DiffusionScheduler | None
    others: Mapping[str, str]
    """What is no model (tokenizers, processors): name and class."""
    shared_parameters: int = 0
    """Elements of parameters that several components share."""
    shared_bytes: int = 0

    @property
    def total_parameters(self) -> int:
        """Elements of all components, those that are shared once."""
        return sum(component.parameters for component in self.components) - self.shared_parameters

    @property
    def trainable_parameters(self) -> int:
        """Elements that require a gradient, by component."""
        return sum(component.trainable for component in self.components)

    @property
    def total_bytes(self) -> int:
        """Of parameters and buffers."""
        return sum(component.bytes for component in self.components) - self.shared_bytes

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Of all parameters."""
        return tuple(dict.fromkeys(dtype for component in self.components for dtype in component.dtypes))

    @property
    def devices(self) -> tuple[str, ...]:
        """Of all parameters."""
        return tuple(dict.fromkeys(device for component in self.components for device in component.devices))

    @property
    def problems(self) -> tuple[str, ...]:
        """A sentence for each thing that is wrong or unusual; empty where nothing is."""
        return tuple(_problems(self))

    def __str__(self) -> str:
        """A row for each component."""
        rows = [
            (
                one.name,
                one.kind,
                f"{one.parameters:,}",
                tables.size(one.bytes),
                ", ".join(one.dtypes) or "-",
                ", ".join(one.devices) or "-",
            )
            for one in self.components
        ]
        header = ("component", "class", "parameters", "memory", "dtype", "device")
        scheduler = "no scheduler" if self.scheduler is None else self.scheduler.kind
        head = f"{self.pipeline}: {self.total_parameters:,} parameters, {tables.size(self.total_bytes)}"
        problems = [f"  {problem}" for problem in self.problems]
        return "\n".join([f"{head}, {scheduler}", *tables.table(header, rows, left=2), *problems])


def analyze_diffusion_pipeline(pipeline: Any) -> DiffusionPipelineReport:
    """Describe a diffusion pipeline: its models with parameters, dtypes, devices and bytes, its scheduler.

    Reads every parameter once (for its norm, NaN and Inf), and waits for the devices.

    Args:
        pipeline: of `diffusers`, or any object that has its models as attributes, or in a mapping
            `components`.

    Raises:
        ValueError: there is no `torch.nn.Module` in it.
    """
    parts = components_of(pipeline)
    models = {name: part for name, part in parts.items() if isinstance(part, nn.Module)}
    if not models:
        raise ValueError(
            f"analyze_diffusion_pipeline() takes a pipeline with models in it; {type(pipeline).__name__} has "
            "none, neither as attributes nor in its `components`"
        )
    found = sorted(
        (_component(name, model) for name, model in models.items()), key=lambda one: -one.parameters
    )
    shared = _shared(models.values())
    scheduler = parts.get("scheduler")
    return DiffusionPipelineReport(
        pipeline=type(pipeline).__name__,
        components=tuple(found),
        scheduler=None if scheduler is None else _scheduler(scheduler),
        others={
            name: type(part).__name__
            for name, part in parts.items()
            if name not in models and name != "scheduler" and _is_object(part)
        },
        shared_parameters=sum(tensor.numel() for tensor in shared),
        shared_bytes=sum(map(occupied_bytes, shared)),
    )


def components_of(pipeline: Any) -> dict[str, Any]:
    """Return the parts of a pipeline by name; of an object without `components` its public attributes."""
    components = getattr(pipeline, "components", None)
    if isinstance(components, Mapping):
        return dict(components)
    if isinstance(pipeline, nn.Module):
        return dict(pipeline.named_children())
    return {name: part for name, part in _attributes(pipeline).items() if not name.startswith("_")}


def _attributes(pipeline: Any) -> dict[str, Any]:
    return dict(vars(pipeline)) if hasattr(pipeline, "__dict__") else {}


def _is_object(part: Any) -> bool:
    """Neither None nor a setting."""
    return part is not None and not isinstance(part, bool | int | float | str | bytes | list | tuple | dict)


def _component(name: str, model: nn.Module) -> DiffusionComponent:
    parameters = list(model.parameters())
    tensors = [*parameters, *dict.fromkeys(model.buffers())]
    readable = [one.detach() for one in parameters if one.device.type != "meta" and one.numel()]
    with torch.no_grad():
        statistics = tensor_statistics(readable) if readable else None
    return DiffusionComponent(
        name=name,
        kind=type(model).__name__,
        parameters=sum(one.numel() for one in parameters),
        trainable=sum(one.numel() for one in parameters if one.requires_grad),
        bytes=sum(0 if one.device.type == "meta" else occupied_bytes(one) for one in tensors),
        dtypes=_frequent(str(one.dtype).removeprefix("torch.") for one in parameters),
        devices=_frequent(str(one.device) for one in parameters),
        training=model.training,
        norm=None if statistics is None else statistics.total_norm,
        nan_count=0 if statistics is None else int(statistics.nan_count.sum()),
        inf_count=0 if statistics is None else int(statistics.inf_count.sum()),
    )


def _frequent(names: Iterator[str]) -> tuple[str, ...]:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return tuple(sorted(counts, key=lambda name: -counts[name]))


def _shared(models: Any) -> list[Tensor]:
    """Parameters of a further component that an earlier one has already."""
    seen: set[int] = set()
    shared: list[Tensor] = []
    for model in models:
        own = {id(parameter): parameter for parameter in model.parameters()}
        shared += [parameter for key, parameter in own.items() if key in seen]
        seen |= set(own)
    return shared


def _scheduler(scheduler: Any) -> DiffusionScheduler:
    steps = option(scheduler, "num_train_timesteps")
    prediction = option(scheduler, "prediction_type")
    return DiffusionScheduler(
        kind=type(scheduler).__name__,
        family=scheduler_family(scheduler),
        train_timesteps=steps if isinstance(steps, int) else None,
        prediction_type=prediction if isinstance(prediction, str) else None,
    )


_DROPOUT: Final = "is in training mode: dropout changes what it returns; call eval() before sampling"


def _problems(report: DiffusionPipelineReport) -> Iterator[str]:
    for one in report.components:
        if one.nan_count or one.inf_count:
            yield f"{one.name} has parameters with {one.nan_count:,} NaN and {one.inf_count:,} Inf elements"
        if one.training:
            yield f"{one.name} {_DROPOUT}"
        if len(one.dtypes) > 1:
            yield f"{one.name} has parameters of several dtypes: {', '.join(one.dtypes)}"
    if len(report.devices) > 1:
        yield f"components are on several devices: {', '.join(report.devices)}"
    if report.scheduler is None:
        yield "there is no scheduler: the expected scale of latents is not known"
