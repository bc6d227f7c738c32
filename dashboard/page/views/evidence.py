"""The numbers of an event in words: what each of them is, its unit, sensible digits. Pure, on any thread.

The panel and the export take the rows of their tables from here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from probe.wire import Event

from .quantities import bytes_text, duration_text, number_text, percent_text

Unit = Literal["", "share", "bytes", "s"]
_LABELS: Final = {
    "median": "median of this run",
    "mad": "median absolute deviation (MAD)",
    "mad_log": "MAD of the logarithm",
    "last_finite": "last finite value",
    "lowest": "lowest so far",
    "step": "at step",
    "training": "training loss then",
    "baseline_bytes": "process at first",
    "bytes": "process now",
    "rest_bytes": "not held by tensors of the script",
    "free_bytes": "free",
    "total_bytes": "in all",
}
_COUNTS: Final = frozenset({"steps", "step", "samples", "items", "items_per_step"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One labelled line.

    `detail` is the whole text where `value` is a short form of it, `code` a line of source of it.
    """

    label: str
    value: str
    detail: str = ""
    code: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """What the number of a kind of events is."""

    name: str
    unit: Unit = ""
    value: str = "at this event"
    threshold: str = "threshold"
    """Empty where there is none, or where the baseline says it."""
    neighbours: str = ""
    """What the numbers of the steps before are, where they are something else."""


_GRADIENT: Final = Measure(name="gradient L2 norm")
_LOSS: Final = Measure(name="loss")
_PLAIN: Final = Measure(name="value")
_MEASURES: Final[dict[str, Measure]] = {
    **dict.fromkeys(("nonfinite_loss", "loss_spike", "loss_divergence", "loss_plateau"), _LOSS),
    **dict.fromkeys(("nonfinite_gradient", "gradient_explosion", "gradient_vanishing"), _GRADIENT),
    **dict.fromkeys(("zero_gradient", "amp_overflow"), _GRADIENT),
    "overfitting": Measure(name="validation loss"),
    "parameter_not_updated": Measure(name="change of the parameter's norm"),
    "nonfinite_parameter": Measure(name="parameter L2 norm"),
    "dead_units": Measure(name="share of units that give only 0", unit="share"),
    "saturated_activation": Measure(name="share of outputs at the limits", unit="share"),
    "update_ratio_high": Measure(name="size of the update / size of the weights"),
    "update_ratio_low": Measure(name="size of the update / size of the weights"),
    "accumulated_gradient": Measure(name="updates without clearing"),
    "memory_leak": Measure(name="memory", unit="bytes", value="growth per step", neighbours="process memory"),
    "out_of_memory": Measure(name="memory", unit="bytes", value="asked for", threshold=""),
    "high_resource_use": Measure(name="share in use", unit="share"),
    "throttled": Measure(name="share of a step that the probe takes", unit="share"),
    "high_anomaly_rate": Measure(name="share of steps with a warning", unit="share"),
    "replayed": Measure(name="time", unit="s"),
    "hang": Measure(name="time", unit="s", value="stood still for"),
    "performance_degradation": Measure(name="time", unit="s"),
    "rank_divergence": Measure(name="relative difference"),
    "output_degenerate": Measure(name="deviation of the outputs"),
    "input_out_of_range": Measure(name="largest magnitude"),
    "diffusion_nonfinite": Measure(name="elements that are NaN or Inf", threshold=""),
    "diffusion_drift": Measure(name="deviation of the latents / what the scheduler implies"),
    "data_gap": Measure(name="records lost"),
    "poor_initialization": Measure(name="ratio of the ends", neighbours="rms, or norm of the gradient"),
}
_PARAMETERS: Final = Measure(name="parameters", value="concerned", threshold="")
_BLANK_INPUT: Final = Measure(name="deviation of the input's elements")
_POLICY: Final = Measure(name="value", threshold="limit")
_RECOVERIES: Final = Measure(name="recoveries", value="so far", threshold="at most")
_ATTEMPTS: Final = Measure(name="attempts", value="failed", threshold="")
"""Their limit is one of attempts or of retries, as the message says."""
_MEDIAN_RATIO: Final = Measure(
    name="size of the update / size of the weights",
    value="median of the parameters",
    neighbours="whole model",
)
_OF_SUBJECT: Final[dict[tuple[str, str], Measure]] = {
    ("update_ratio_low", "lr"): Measure(name="learning rate"),
    ("update_ratio_low", "update_ratio"): _MEDIAN_RATIO,
    ("output_degenerate", "loss"): Measure(name="elements of the loss"),
    ("rank_divergence", "non-finite values"): Measure(name="ranks with non-finite values"),
}
"""Kinds with several rules, whose numbers are not the same thing."""
_OF_KIND: Final[dict[tuple[str, str], str]] = {
    ("loss_divergence", "median"): "median around that step",
    ("loss_divergence", "step"): "before it, at step",
    ("overfitting", "lowest"): "lowest median of three",
}
"""(kind, key of the baseline): what it is there."""


def measure(event: Event) -> Measure:
    """Say what the event's value, threshold and neighbours are."""
    if event.kind == "parameter_not_updated" and event.evidence.value:
        return _PARAMETERS
    if event.subject.startswith("policy: "):
        return _POLICY
    if event.kind == "recovery":
        return _measure_of_recovery(event.subject)
    baseline = event.evidence.baseline or {}
    if event.kind == "input_out_of_range" and "samples" in baseline and "median" not in baseline:
        return _BLANK_INPUT
    return _OF_SUBJECT.get((event.kind, event.subject)) or _MEASURES.get(event.kind, _PLAIN)


def _measure_of_recovery(subject: str) -> Measure:
    """A step or an inference that is tried again numbers its events, the recovery of a run does not."""
    what, _, number = subject.partition(" ")
    if what in ("input", "output"):
        return _POLICY
    return _ATTEMPTS if number.isdecimal() else _RECOVERIES


def evidence_facts(event: Event) -> tuple[Fact, ...]:
    """The number that tripped against the run's own baseline, one row per number that is known.

    A lone NaN or Inf is no row: that it is one is what the whole event says.
    """
    evidence, baseline = event.evidence, event.evidence.baseline or {}
    measured = measure(event)
    value, median = evidence.value, baseline.get("median")
    rows: list[Fact] = []
    if value is not None:
        rows.append(_row(measured.value, value, measured.unit))
    if evidence.threshold is not None and measured.threshold:
        rows.append(_row(measured.threshold, evidence.threshold, measured.unit))
    rows.extend(_baseline_row(event, key, number) for key, number in baseline.items())
    if value is not None and median and value != median and 0 <= value / median < math.inf:
        ratio = value / median
        rows.append(Fact(label="ratio to the median", value=f"× {number_text(ratio)}", detail=repr(ratio)))
    if len(rows) == 1 and value is not None and not math.isfinite(value) and not evidence.neighbours:
        return ()
    return tuple(rows)


def neighbour_facts(event: Event) -> tuple[Fact, ...]:
    """The values of the steps before, newest last; of an initialization those of the layers, in order."""
    unit, what = measure(event).unit, neighbour_word(event)
    return tuple(_row(f"{what} {number:,}", value, unit) for number, value in event.evidence.neighbours)


def neighbour_word(event: Event) -> str:
    """What each of the neighbours is of."""
    return "layer" if event.kind == "poor_initialization" else "step"


def neighbour_title(event: Event) -> str:
    """The heading over them."""
    count = len(event.evidence.neighbours)
    if neighbour_word(event) == "layer":
        return f"The {count:,} layers"
    # What is measured now and then has the event's own value among them.
    when = "up to this one" if event.evidence.neighbours[-1][0] == event.step else "before"
    return f"The {count:,} steps {when}" if count > 1 else f"The step {when}"


def _baseline_row(event: Event, key: str, value: float) -> Fact:
    """A number of the baseline; those of an event of the script's own have the names that it gave them."""
    if event.kind in ("custom", "snapshot"):
        return _row(_LABELS[key] if key in ("median", "mad") else key, value, "")
    label = _OF_KIND.get((event.kind, key)) or _LABELS.get(key) or _words(key)
    if key == "steps" and "median" in (event.evidence.baseline or {}):
        label = "steps of the median"
    if key.startswith("share_"):
        return _row(_words(key), value, "share")
    if key.endswith("_bytes") or key == "bytes":
        return _row(_LABELS.get(key) or _words(key.removesuffix("_bytes")), value, "bytes")
    if key.endswith("_s"):
        return _row(_words(key.removesuffix("_s")), value, "s")
    if key in _COUNTS or key.endswith(("_steps", "_step")) or key.startswith("ranks"):
        text = f"{value:,.0f}" if float(value).is_integer() else number_text(value)
        return Fact(label=label, value=text, detail=repr(value))
    return _row(label, value, measure(event).unit)


def _words(key: str) -> str:
    return key.replace("_", " ")


def _row(label: str, value: float, unit: Unit) -> Fact:
    texts = {"": number_text, "share": percent_text, "bytes": bytes_text, "s": duration_text}
    return Fact(label=label, value=texts[unit](value), detail=repr(value))
