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
    unit: str = ""
    of: Literal["layer", "module"] = "layer"

    @property
    def title(self) -> str:
        """Heading, for instance "Gradient norm per layer"."""
        return f"{self.label} per {self.of}"

    @property
    def scale(self) -> str:
        """Unit and scale of the colours."""
        return f"{self.unit}, log colour" if self.unit else "log colour"


STATISTICS: Final = (
    Statistic(id="grad_norm", label="Gradient norm", unit="L2"),
    Statistic(id="update_ratio", label="Update-to-weight ratio"),
    Statistic(id="parameter_norm", label="Parameter norm", unit="L2"),
    Statistic(id="activation_rms", label="Activation RMS", of="module"),
    Statistic(id="activation_zero_fraction", label="Zero activations", unit="share", of="module"),
    Statistic(id="activation_saturated_fraction", label="Saturated activations", unit="share", of="module"),
    Statistic(id="dead_units", label="Dead units", unit="count", of="module"),
    Statistic(id="activation_gradient_norm", label="Activation-gradient norm", unit="L2", of="module"),
    Statistic(id="forward_time_s", label="Forward time", unit="s", of="module"),
    Statistic(id="backward_time_s", label="Backward time", unit="s", of="module"),
)
"""In the order of the page's selector; the first is what it shows unasked."""
DEFAULT_STATISTIC: Final = STATISTICS[0].id
_BY_ID: Final = {statistic.id: statistic for statistic in STATISTICS}


def statistic_of(wanted: str) -> Statistic:
    """Return a statistic by its id; of an unknown one the default."""
    return _BY_ID.get(wanted, STATISTICS[0])
