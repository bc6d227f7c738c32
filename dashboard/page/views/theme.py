"""Colours, severity marks and the one figure layout that all charts share, so that their x-axes line up.

Pure data; called by every view and by the exports, on any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from probe.wire import Severity

from ...store.protocol import StepRange

Theme: TypeAlias = Literal["dark", "light"]
THEMES: Final[tuple[Theme, ...]] = ("dark", "light")

ALL_STEPS: Final = StepRange()
"""Open at both ends: the whole run."""

FONT: Final = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'DejaVu Sans', sans-serif"
MARGIN_LEFT: Final = 136
"""Pixels; wide enough for layer names, and the same for every chart."""
MARGIN_RIGHT: Final = 64
MARGIN_TOP: Final = 24
MARGIN_BOTTOM: Final = 20
FEW_STEPS: Final = 12
"""Up to this many steps in view every one gets a tick: Plotly would put several on one step."""

SEVERITY_SYMBOLS: Final[dict[Severity, str]] = {
    "critical": "diamond",
    "warning": "triangle-up",
    "info": "circle",
}
"""Plotly marker symbols: severity is told by shape and lane as well as by colour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Colours:
    """One theme. Text has a contrast of at least 4.5:1 on `background` and `surface`, marks 3:1."""

    background: str
    surface: str
    border: str
    text: str
    muted: str
    grid: str
    critical: str
    warning: str
    info: str
    good: str
    series: tuple[str, ...]
    """Lines in order; distinguishable with colour-blindness (Okabe-Ito, lightened or darkened)."""
    kinds: tuple[str, ...]
    """Areas of a stacked chart from the bottom up: five kinds of memory, six phases of a step."""
    nan: str
    inf: str
    unmeasured: str
    gap: str

    def severity(self, severity: Severity) -> str:
        """Return the colour of a severity."""
        return {"critical": self.critical, "warning": self.warning, "info": self.info}[severity]


_KINDS: Final = ("#5b8def", "#4fb3a5", "#a08be0", "#54718f", "#c9a23a", "#c4708f")
_DARK: Final = Colours(
    background="#17181b",
    surface="#1e2023",
    border="#3b3e44",
    text="#ececee",
    muted="#a8abb2",
    grid="#232529",
    critical="#ff8787",
    warning="#ffd43b",
    info="#74c0fc",
    good="#63e6be",
    series=("#74c0fc", "#ffa94d", "#63e6be", "#e599f7", "#ffd43b"),
    kinds=_KINDS,
    nan="#ff8787",
    inf="#ffa94d",
    unmeasured="#232529",
    gap="rgba(168,171,178,0.22)",
)
_LIGHT: Final = Colours(
    background="#ffffff",
    surface="#ffffff",
    border="#cfd2d7",
    text="#1b1c1f",
    muted="#555960",
    grid="#f0f1f3",
    critical="#c92a2a",
    warning="#a05a00",
    info="#1864ab",
    good="#087f5b",
    series=("#1864ab", "#b35400", "#087f5b", "#862e9c", "#7a5d00"),
    kinds=_KINDS,
    nan="#c92a2a",
    inf="#b8560b",
    unmeasured="#f0f1f3",
    gap="rgba(85,89,96,0.20)",
)


def colours(theme: Theme) -> Colours:
    """Return the colours of a theme."""
    return _DARK if theme == "dark" else _LIGHT


def figure_layout(
    theme: Theme,
    *,
    title: str = "",
    height: int | None = None,
    steps: StepRange = ALL_STEPS,
    note: str = "",
) -> dict[str, Any]:
    """Return the layout that every chart starts from: equal margins, transparent ground, step axis.

    Args:
        theme: Dark or light.
        title: Short name, put above the plot's left end.
        height: Pixels; None leaves it to the container.
        steps: Fixed x-range; an open end is left to Plotly.
        note: Small print above the plot's right end, for instance "max of 16 steps".
    """
    palette = colours(theme)
    layout: dict[str, Any] = {
        "margin": {"l": MARGIN_LEFT, "r": MARGIN_RIGHT, "t": MARGIN_TOP, "b": MARGIN_BOTTOM, "pad": 0},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": 11, "color": palette.muted},
        "showlegend": False,
        "hovermode": "x",
        "hoverlabel": {
            "bgcolor": palette.surface,
            "bordercolor": palette.border,
            "font": {"color": palette.text, "family": FONT, "size": 12},
        },
        "dragmode": "zoom",
        "uirevision": "nanscope",
        "xaxis": step_axis(theme, steps=steps),
        "annotations": _captions(palette, title=title, note=note),
    }
    if height is not None:
        layout["height"] = height
    return layout


def step_axis(theme: Theme, *, steps: StepRange = ALL_STEPS) -> dict[str, Any]:
    """Return the x-axis all charts have in common."""
    palette = colours(theme)
    axis: dict[str, Any] = {
        "gridcolor": palette.grid,
        "linecolor": palette.border,
        "zeroline": False,
        "showline": True,
        "tickformat": ",d",
        "ticks": "",
        "nticks": 12,
        "automargin": False,
        "hoverformat": ",d",
    }
    if steps.first is not None and steps.end is not None:
        axis |= {"range": [steps.first - 0.5, steps.end - 0.5], "autorange": False}
        if steps.end - steps.first <= FEW_STEPS:
            axis |= {"tick0": 0, "dtick": 1}
    return axis


def value_axis(theme: Theme, *, log: bool = False) -> dict[str, Any]:
    """Return a y-axis of few, short tick labels."""
    palette = colours(theme)
    return {
        "gridcolor": palette.grid,
        "zeroline": False,
        "nticks": 3 if log else 4,
        "type": "log" if log else "linear",
        # On a log axis Plotly would otherwise mix powers of ten with bare 2 and 5.
        "tickformat": ".3~g" if log else "",
        "exponentformat": "SI",
        "fixedrange": True,
        "automargin": False,
        "ticks": "",
    }


def _captions(palette: Colours, *, title: str, note: str) -> list[dict[str, Any]]:
    """Title and small print as annotations: a Plotly title would move with the container."""
    place = {"xref": "paper", "yref": "paper", "y": 1, "yanchor": "bottom", "showarrow": False, "yshift": 3}
    captions = []
    if title:
        font = {"size": 12, "color": palette.text, "weight": 600}
        captions.append(place | {"x": 0, "xanchor": "left", "text": title, "font": font, "name": "title"})
    if note:
        font = {"size": 11, "color": palette.muted}
        captions.append(place | {"x": 1, "xanchor": "right", "text": note, "font": font, "name": "note"})
    return captions
