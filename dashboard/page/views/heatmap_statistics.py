"""What the heatmap can show, of layers or of modules. Pure data, light enough for the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistic:
    """One thing that the heatmap can show."""

    id: str
    """As `Store.heatmap` takes it."""
    label: str
    group: str
    """Heading in the page's selector."""
    unit: str = ""
    of: Literal["layer", "module"] = "layer"

    @property
    def title(self) -> str:
        """Heading, for instance "Gradient norm per layer"."""
        return f"{self.label} per {self.of}"

    @property
    def is_count(self) -> bool:
        """Whether 1 is to be told from 0, which has the darkest colour."""
        return self.unit in ("count", "elements")

    @property
    def scale(self) -> str:
        """Unit and scale of the colours."""
        return f"{self.unit}, log colour" if self.unit else "log colour"


def _of_modules(group: str, *named: tuple[str, str, str]) -> tuple[Statistic, ...]:
    """Return statistics of modules, given as (id, label, unit)."""
    return tuple(
        Statistic(id=id_, label=label, group=group, unit=unit, of="module") for id_, label, unit in named
    )


STATISTICS: Final = (
    Statistic(id="grad_norm", label="Gradient norm", group="Gradients", unit="L2"),
    Statistic(id="grad_max_abs", label="Largest gradient", group="Gradients"),
    Statistic(id="update_ratio", label="Update-to-weight ratio", group="Parameters"),
    Statistic(id="parameter_norm", label="Parameter norm", group="Parameters", unit="L2"),
    Statistic(id="parameter_max_abs", label="Largest parameter", group="Parameters"),
    Statistic(id="first_moment_norm", label="First-moment norm", group="Parameters", unit="L2"),
    Statistic(id="second_moment_norm", label="Second-moment norm", group="Parameters", unit="L2"),
    *_of_modules(
        "Activations",
        ("activation_rms", "Activation RMS", ""),
        ("activation_max_abs", "Largest activation", ""),
        ("activation_std", "Activation deviation", ""),
        ("activation_zero_fraction", "Zero activations", "share"),
        ("activation_saturated_fraction", "Saturated activations", "share"),
        ("dead_units", "Dead units", "count"),
        ("activation_nan_count", "NaN activations", "elements"),
        ("activation_inf_count", "Inf activations", "elements"),
    ),
    *_of_modules(
        "Activation gradients",
        ("activation_gradient_norm", "Activation-gradient norm", "L2"),
        ("activation_gradient_max_abs", "Largest activation gradient", ""),
        ("activation_gradient_nan_count", "NaN activation gradients", "elements"),
        ("activation_gradient_inf_count", "Inf activation gradients", "elements"),
    ),
    *_of_modules(
        "Time",
        ("forward_time_s", "Forward time", "s"),
        ("forward_self_time_s", "Forward time without children", "s"),
        ("backward_time_s", "Backward time", "s"),
        ("backward_self_time_s", "Backward time without children", "s"),
    ),
    *_of_modules(
        "Memory",
        ("output_bytes", "New output memory", "bytes"),
        ("saved_bytes", "Memory kept for backward", "bytes"),
        ("parameter_bytes", "Own parameters and buffers", "bytes"),
        ("allocated_bytes", "CUDA memory growth", "bytes"),
    ),
)
"""In the order of the page's selector; the first is what it shows unasked."""
GROUPS: Final = tuple(dict.fromkeys(statistic.group for statistic in STATISTICS))
DEFAULT_STATISTIC: Final = STATISTICS[0].id
_BY_ID: Final = {statistic.id: statistic for statistic in STATISTICS}


def statistic_of(wanted: str) -> Statistic:
    """Return a statistic by its id; of an unknown one the default."""
    return _BY_ID.get(wanted, STATISTICS[0])
