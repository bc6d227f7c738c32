"""What the panel of a tensor shows of its statistics: tracks, newest values, and what is not recorded. Pure.

Data for `assets/ns_75_tensor_tracks.js`, and sentences for what a level leaves out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from dash import html
from dash.development.base_component import Component

from probe.settings.levels import LEVEL_FEATURES, LEVELS

from ...store.protocol import TensorTrack
from .heatmap_statistics import STATISTICS

MAX_COLUMNS: Final = 256
"""A track is some 250 pixels wide in the panel, and twice that over the whole page."""
NEWEST: Final = 20
"""Values in the table."""
NEWEST_STEPS: Final = 200
"""How far back they are looked for: most statistics are measured at some steps only."""
TRACKS: Final = (
    "grad_norm",
    "grad_max_abs",
    "grad_nan_count",
    "grad_inf_count",
    "update_ratio",
    "parameter_norm",
    "parameter_max_abs",
    "first_moment_norm",
    "second_moment_norm",
    "activation_rms",
    "activation_max_abs",
    "activation_nan_count",
    "activation_inf_count",
    "activation_zero_fraction",
    "activation_saturated_fraction",
    "dead_units",
    "activation_gradient_norm",
    "activation_gradient_max_abs",
    "activation_gradient_nan_count",
    "activation_gradient_inf_count",
)
"""In this order; other statistics of a tensor are in the exports only."""
_LABELS: Final = {each.id: each.label for each in STATISTICS} | {
    "grad_nan_count": "NaN in the gradient",
    "grad_inf_count": "Inf in the gradient",
    "activation_nan_count": "NaN in the output",
    "activation_inf_count": "Inf in the output",
    "activation_gradient_nan_count": "NaN in the output's gradient",
    "activation_gradient_inf_count": "Inf in the output's gradient",
}
_UNITS: Final = {each.id: each.unit for each in STATISTICS} | {
    "grad_nan_count": "elements",
    "grad_inf_count": "elements",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A feature of the probe, and how the panel knows that there is nothing of it."""

    feature: str
    what: str
    """Begins a sentence, in the plural."""
    name: str
    """The statistic that it would have; `histogram` stands for any histogram."""
    kinds: tuple[str, ...]
    """Of which rows."""


_OF_PARAMETERS: Final = ("parameter", "layer")
RECORDED: Final = (
    Recorded(feature="histograms", what="Histograms", name="histogram", kinds=(*_OF_PARAMETERS, "module")),
    Recorded(feature="gradients", what="Gradient norms", name="grad_norm", kinds=_OF_PARAMETERS),
    Recorded(
        feature="update_ratios",
        what="Update-to-weight ratios",
        name="update_ratio",
        kinds=_OF_PARAMETERS,
    ),
    Recorded(feature="parameter_norms", what="Parameter norms", name="parameter_norm", kinds=_OF_PARAMETERS),
    Recorded(
        feature="parameter_statistics",
        what="Largest elements of parameters",
        name="parameter_max_abs",
        kinds=_OF_PARAMETERS,
    ),
    Recorded(feature="activations", what="Statistics of outputs", name="activation_rms", kinds=("module",)),
    Recorded(
        feature="activation_gradients",
        what="Gradients of outputs",
        name="activation_gradient_norm",
        kinds=("module",),
    ),
)


def tracks_data(tracks: Sequence[TensorTrack], newest: Sequence[TensorTrack]) -> dict[str, Any]:
    """Return what the scripts draw: tracks in order, and the newest values.

    Args:
        tracks: of the steps in view.
        newest: of the last steps of them.
    """
    return {
        "tracks": [_track(each) for each in _ordered(tracks) if not _is_silent(each)],
        "newest": newest_values([each for each in _ordered(newest) if not _is_silent(each)]),
    }


def _ordered(tracks: Iterable[TensorTrack]) -> list[TensorTrack]:
    """Return the tracks that are shown; of a parameter and a layer of one name both, one after the other."""
    chosen = [each for each in tracks if each.name in TRACKS]
    return sorted(chosen, key=lambda each: TRACKS.index(each.name))


def _is_silent(track: TensorTrack) -> bool:
    """Whether a track says nothing: Inf that has never been. That there was no NaN is said."""
    return track.name.endswith("_inf_count") and not np.any(track.values > 0)


def _track(track: TensorTrack) -> dict[str, Any]:
    measured = np.flatnonzero(track.flags).tolist()
    return {
        "name": track.name,
        "label": label_of(track),
        "unit": _UNITS.get(track.name, ""),
        "size": track.steps_per_column,
        "steps": track.steps[measured].tolist(),
        "values": [_number(value) for value in track.values[measured].tolist()],
        "flags": track.flags[measured].tolist(),
    }


def newest_values(tracks: Sequence[TensorTrack]) -> dict[str, Any]:
    """Return the last columns in which anything was measured, newest first, as a table of numbers."""
    at: dict[int, list[list[Any] | None]] = {}
    for place, track in enumerate(tracks):
        for column in np.flatnonzero(track.flags).tolist():
            cells = at.setdefault(int(track.steps[column]), [None] * len(tracks))
            cells[place] = [_number(float(track.values[column])), int(track.flags[column])]
    steps = sorted(at, reverse=True)[:NEWEST]
    return {
        "columns": [[label_of(each), _UNITS.get(each.name, "")] for each in tracks],
        "size": max((each.steps_per_column for each in tracks), default=1),
        "rows": [[step, at[step]] for step in steps],
    }


def _number(value: float) -> float | None:
    """Five digits: JSON has no NaN, and flags say which it was."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


def label_of(track: TensorTrack) -> str:
    """Return what a track is called."""
    return _LABELS.get(track.name, track.name)


def not_recorded(present: Iterable[str], kinds: Iterable[str]) -> list[Component]:
    """Say of what there is nothing in these steps from which level on it is recorded.

    Args:
        present: names of the statistics that there are; `histogram` where there are histograms.
        kinds: what the name is of: `parameter`, `layer`, `module`.
    """
    there, of = set(present), set(kinds)
    lines = []
    for each in RECORDED:
        if each.name in there or not of.intersection(each.kinds):
            continue
        level = next(level for level in LEVELS if getattr(LEVEL_FEATURES[level], each.feature))
        every = getattr(LEVEL_FEATURES[level], each.feature)
        often = "at each step" if every == 1 else f"every {every} steps"
        text = f"{each.what}: none in these steps. They are recorded from level {level} on, {often}. "
        button = html.Button("Choose it in Controls", className="ns-link", type="button")
        lines.append(html.P([text, button], className="tensor-absent"))
    return lines
