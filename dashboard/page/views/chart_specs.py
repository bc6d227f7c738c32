"""Which line charts there are, and which series each one shows. Pure data, on any thread.

The page, the live feed and the exports go by the same list, from top to bottom.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from .memory_series import CUDA_GROWTH, CUDA_UNUSED, PROCESS_GROWTH
from .phases import PHASES
from .throughput import SAMPLES_PER_S, STEPS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkSpec:
    """A series that is no line: it marks steps, in the band above the y-scale."""

    label: str
    """Of a flag an adjective, of a count what is counted."""
    is_count: bool = False
    """A count since the start marks the steps at which it rises, one symbol each; a flag those at which it is
    1, as a bar over all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartSpec:
    """One chart of the page and of the exports."""

    id: str
    title: str
    unit: str
    names: tuple[str, ...]
    """Series that it shows, in drawing order, stored ones and those of `throughput.DERIVED`; absent ones are
    left out."""
    labels: Mapping[str, str]
    prefix: str | None = None
    """Series whose names begin so are shown as well, labelled with the rest of the name."""
    marks: Mapping[str, MarkSpec] = field(default_factory=dict)
    """Series that mark steps, by name."""
    log: bool = False
    """Logarithmic y-axis once the values differ by `LOG_RATIO`."""
    always: bool = False
    """Takes its place even in a run that has none of its series."""
    remark: str = ""
    """What a reader has to know of the numbers, below the lines' names."""
    stacked: bool = False
    """Its lines are parts of a whole: areas, one upon the other, the first at the bottom, in the colours of
    `theme.Colours.kinds`."""

    def lines(self, known: Iterable[str]) -> dict[str, str]:
        """Return the lines that it has among the known series, in drawing order: name -> label."""
        there = set(known)
        lines = {name: self.labels[name] for name in self.names if name in there}
        if self.prefix is not None:
            lines |= {
                name: name[len(self.prefix) :] for name in sorted(there) if name.startswith(self.prefix)
            }
        return lines


_SLOW_AND_LOSS: Final = (
    ChartSpec(id="loss", title="Loss", unit="", names=("loss",), labels={"loss": "loss"}, always=True),
    ChartSpec(
        id="val_loss",
        title="Validation loss, as seen in evaluations",
        unit="",
        names=("val_loss",),
        labels={"val_loss": "validation loss"},
    ),
    ChartSpec(
        id="grad_norm",
        title="Gradient norm",
        unit="L2",
        names=("grad_norm", "grad_norm_clipped", "grad_norm_whole"),
        labels={
            "grad_norm": "gradient norm",
            "grad_norm_clipped": "after clipping",
            "grad_norm_whole": "of all ranks' parts",
        },
        marks={"clip_fired": MarkSpec(label="clipped")},
        log=True,
        always=True,
    ),
    ChartSpec(
        id="update_ratio",
        title="Update-to-weight ratio",
        unit="",
        names=("update_ratio",),
        labels={"update_ratio": "update-to-weight ratio"},
        log=True,
    ),
    ChartSpec(
        id="lr",
        title="Learning rate",
        unit="",
        names=("lr",),
        labels={"lr": "learning rate"},
        prefix="lr/",
        log=True,
    ),
    ChartSpec(
        id="amp",
        title="Loss scale of the GradScaler",
        unit="",
        names=("amp_scale",),
        labels={"amp_scale": "loss scale"},
        marks={"amp_skipped_updates": MarkSpec(label="skipped updates", is_count=True)},
        log=True,
    ),
    ChartSpec(
        id="memory_kinds",
        title="Memory by kind",
        unit="GiB",
        names=(
            "memory_parameters_bytes",
            "memory_gradients_bytes",
            "memory_optimizer_bytes",
            "memory_activations_bytes",
            "memory_other_bytes",
        ),
        labels={
            "memory_parameters_bytes": "parameters",
            "memory_gradients_bytes": "gradients",
            "memory_optimizer_bytes": "optimizer",
            "memory_activations_bytes": "activations",
            "memory_other_bytes": "other",
        },
        stacked=True,
    ),
    ChartSpec(
        id="memory",
        title="Process memory",
        unit="GiB",
        names=("process_rss_bytes",),
        labels={"process_rss_bytes": "process (RSS)"},
    ),
    ChartSpec(
        id="allocator",
        title="CUDA allocator",
        unit="GiB",
        names=("cuda_allocated_bytes", "cuda_reserved_bytes", CUDA_UNUSED),
        labels={
            "cuda_allocated_bytes": "allocated",
            "cuda_reserved_bytes": "reserved",
            CUDA_UNUSED: "in no tensor",
        },
    ),
    ChartSpec(
        id="memory_growth",
        title="Growth per 1,000 steps",
        unit="MiB",
        names=(PROCESS_GROWTH, CUDA_GROWTH),
        labels={PROCESS_GROWTH: "process", CUDA_GROWTH: "CUDA allocated"},
    ),
)

_SPEED: Final = (
    ChartSpec(
        id="step_phases",
        title="Step time by phase",
        unit="s",
        names=PHASES,
        labels=dict(zip(PHASES, ("data", "forward", "backward", "optimizer", "probe", "other"), strict=True)),
        stacked=True,
        remark="host time; optimizer is the update before the step; other has loss, logging, evaluation",
    ),
    ChartSpec(
        id="step_time",
        title="Step time",
        unit="s",
        names=("step_time_s",),
        labels={"step_time_s": "step time"},
        log=True,
    ),
    ChartSpec(
        id="steps_per_s",
        title="Throughput in steps",
        unit="steps/s",
        names=(STEPS_PER_S,),
        labels={STEPS_PER_S: "steps"},
        log=True,
    ),
    ChartSpec(
        id="samples_per_s",
        title="Throughput in samples",
        unit="samples/s",
        names=(SAMPLES_PER_S,),
        labels={SAMPLES_PER_S: "samples"},
        log=True,
    ),
    ChartSpec(
        id="utilisation",
        title="CPU and GPU use",
        unit="0-1",
        names=("process_cpu_fraction", "system_cpu_fraction", "gpu_fraction", "processor_wait"),
        labels={
            "process_cpu_fraction": "process (CPU)",
            "system_cpu_fraction": "machine (CPU)",
            "gpu_fraction": "GPU",
            "processor_wait": "waiting for a processor",
        },
    ),
    ChartSpec(
        id="machine_memory",
        title="Machine memory",
        unit="GiB",
        names=("system_used_bytes", "system_total_bytes"),
        labels={"system_used_bytes": "in use", "system_total_bytes": "of the machine"},
    ),
)
CHARTS: Final = (*_SLOW_AND_LOSS, *_SPEED)

LOGGED: Final = "log/"
"""What the names of the user's own series begin with."""
MAX_LOGGED: Final = 32
"""Series of the user's own that get a chart; the exports have all."""


def logged_chart(name: str) -> ChartSpec:
    """Return the chart of one series that the user logs."""
    label = name.removeprefix(LOGGED)
    return ChartSpec(id=name, title=label, unit="", names=(name,), labels={name: label})


def logged_names(known: Iterable[str]) -> list[str]:
    """Return the user's own series, sorted."""
    return sorted(name for name in known if name.startswith(LOGGED))
