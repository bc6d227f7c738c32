"""`analyze_gradient_flow`: how the gradient changes from layer to layer. Waits for the device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from torch import nn

from . import tables
from .call_results import Result
from .default_limits import DEFAULT_RATIO
from .gradient_checks import GradientReport, check_gradients, require_layout

FlowState: TypeAlias = Literal["ok", "weak", "dead", "strong", "nonfinite", "missing"]

_BAR_DECADES: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFlow(Result):
    """The gradient of one layer: of all trainable parameters that one module owns itself."""

    layer: str
    type: str
    """Class of the module."""
    norm: float | None
    """L2 norm over the layer's parameters; None when none of them has a gradient."""
    rms: float | None
    """Root mean square over the layer's elements."""
    ratio: float | None
    """This layer's norm over that of the next layer towards the loss that has a gradient."""
    state: FlowState
    """weak: far below layers nearer the loss; strong: far above them; dead: exactly 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientFlow(Result):
    """Gradients layer by layer, in model order: input first, loss last.

    Model order is the order in which modules were registered; where a model calls them in another order,
    the ratios follow the registration. With NaN or Inf, the layers that hold them are not where they began:
    a replay (see `watch`) names that.
    """

    _derived = ("ok",)

    model: str
    total_norm: float | None
    ratio_limit: float
    layers: tuple[LayerFlow, ...]
    dies_at: str | None
    """The layer nearest to the loss from which on, towards the input, every gradient is dead or weak."""
    blows_up_at: str | None
    """The strong layer nearest to the loss."""
    note: str = ""

    @property
    def ok(self) -> bool:
        """The gradient neither dies nor blows up on its way, and is finite everywhere."""
        bad = ("dead", "strong", "nonfinite")
        return self.dies_at is None and not any(layer.state in bad for layer in self.layers)

    def in_state(self, state: FlowState) -> tuple[str, ...]:
        """Names of the layers in one state."""
        return tuple(layer.layer for layer in self.layers if layer.state == state)

    def __str__(self) -> str:
        """A verdict, and a row for each layer with a bar of the ten decades below the largest norm."""
        if not self.layers:
            return f"gradient flow: {self.note or 'no problem found'}"
        lines = [
            f"gradient flow of {self.model}, input to loss: {'ok' if self.ok else 'NOT OK'}, "
            f"total norm {tables.number(self.total_norm)}"
        ]
        if self.dies_at is not None:
            lines.append(
                f"  dies at {tables.root_or(self.dies_at)}: this layer and all before it get "
                "almost no gradient"
            )
        if self.blows_up_at is not None:
            lines.append(
                f"  blows up at {tables.root_or(self.blows_up_at)}: over {tables.number(self.ratio_limit)}x "
                "a layer nearer the loss"
            )
        for state in ("nonfinite", "dead", "missing"):
            if found := self.in_state(state):
                lines.append(f"  {state}: {tables.names(found)}")
        if self.note:
            lines.append(f"  {self.note}")
        finite = [row.norm for row in self.layers if row.norm is not None and math.isfinite(row.norm)]
        largest = max(finite, default=0.0)
        rows = [
            (
                tables.root_or(row.layer),
                row.type,
                _bar(row.norm, largest),
                tables.number(row.norm),
                tables.number(row.rms),
                tables.number(row.ratio),
                "" if row.state == "ok" else row.state,
            )
            for row in self.layers
        ]
        header = ("layer", "type", "log norm", "norm", "rms", "x next", "")
        return "\n".join([*lines, *tables.table(header, rows, left=3)])


def analyze_gradient_flow(
    model: nn.Module, *, ratio_limit: float = DEFAULT_RATIO, loss_scale: float = 1.0
) -> GradientFlow:
    """Follow the gradient from the loss to the input, layer by layer. Waits for the device.

    Args:
        model: call this after its backward and before `zero_grad`.
        ratio_limit: see `DEFAULT_RATIO`.
        loss_scale: the gradients are divided by this: `scaler.get_scale()` before `scaler.unscale_`.

    Raises:
        ValueError: as `check_gradients`; or `ratio_limit` is not above 1.
    """
    if not ratio_limit > 1:
        raise ValueError(f"ratio_limit={ratio_limit!r} must be above 1")
    report = check_gradients(model, loss_scale=loss_scale)
    return flow_of(report, _types(model), ratio_limit=ratio_limit)


def flow_of(
    report: GradientReport, types: dict[str, str], *, ratio_limit: float = DEFAULT_RATIO
) -> GradientFlow:
    """Arrange gradients measured before by layer.

    Args:
        report: of `check_gradients`.
        types: class of each layer by its qualified name.
        ratio_limit: see `DEFAULT_RATIO`.
    """
    rows = _by_layer(report)
    layers = tuple(
        LayerFlow(
            layer=row.name, type=types.get(row.name, ""), norm=row.norm, rms=row.rms, ratio=ratio, state=state
        )
        for row, ratio, state in zip(rows, _ratios(rows), _states(rows, ratio_limit), strict=True)
    )
    return GradientFlow(
        model=report.model,
        total_norm=report.total_norm,
        ratio_limit=ratio_limit,
        layers=layers,
        dies_at=_dies_at(layers),
        blows_up_at=next((layer.layer for layer in reversed(layers) if layer.state == "strong"), None),
        note=report.note,
    )


def _types(model: nn.Module) -> dict[str, str]:
    return {layer.name: layer.type for layer in require_layout(model).record.layers}


@dataclass(frozen=True, slots=True)
class _Layer:
    """Gradient of one layer; None is missing, NaN where any parameter's norm is."""

    name: str
    norm: float | None
    rms: float | None

    @property
    def is_finite(self) -> bool:
        return self.norm is None or math.isfinite(self.norm)


def _by_layer(report: GradientReport) -> list[_Layer]:
    """In model order."""
    grouped: dict[str, list[tuple[float, int]]] = {}
    for parameter in report.parameters:
        members = grouped.setdefault(parameter.layer, [])
        if parameter.norm is not None:
            members.append((parameter.norm, math.prod(parameter.shape)))
    return [_layer(name, members) for name, members in grouped.items()]


def _layer(name: str, members: list[tuple[float, int]]) -> _Layer:
    if not members:
        return _Layer(name, None, None)
    # hypot() of Inf and NaN is Inf.
    norm = sum(norm for norm, _ in members)
    if math.isfinite(norm):
        norm = math.hypot(*(norm for norm, _ in members))
    return _Layer(name, norm, norm / math.sqrt(sum(count for _, count in members)))


def _states(layers: list[_Layer], limit: float) -> list[FlowState]:
    """Judge each layer against those between it and the loss, beginning at the loss."""
    states: list[FlowState] = []
    largest, smallest = 0.0, math.inf
    for layer in reversed(layers):
        state = _state(layer, largest, smallest, limit)
        states.append(state)
        if layer.norm is not None and state in ("ok", "strong"):
            largest = max(largest, layer.norm)
            smallest = min(smallest, layer.norm)
    return states[::-1]


def _state(layer: _Layer, largest: float, smallest: float, limit: float) -> FlowState:
    if layer.norm is None:
        return "missing"
    if not layer.is_finite:
        return "nonfinite"
    if layer.norm == 0:
        return "dead"
    if layer.norm * limit < largest:
        return "weak"
    return "strong" if layer.norm > limit * smallest else "ok"


def _ratios(layers: list[_Layer]) -> list[float | None]:
    """Each layer's norm over that of the next one towards the loss; Inf over a dead one."""
    ratios: list[float | None] = []
    following: float | None = None
    for layer in reversed(layers):
        is_known = layer.norm is not None and following is not None
        ratios.append(_quotient(layer.norm or 0.0, following or 0.0) if is_known else None)
        following = layer.norm if layer.norm is not None else following
    return ratios[::-1]


def _quotient(value: float, by: float) -> float:
    if by == 0:
        return math.nan if value == 0 or math.isnan(value) else math.inf
    return value / by


def _dies_at(layers: tuple[LayerFlow, ...]) -> str | None:
    """The last of the leading layers that are all dead or weak; missing ones say nothing."""
    found: str | None = None
    for layer in layers:
        if layer.state in ("dead", "weak"):
            found = layer.layer
        elif layer.state != "missing":
            break
    return found


def _bar(norm: float | None, largest: float) -> str:
    """One mark for each decade that the norm is above `largest` / 10**10; "!" for NaN and Inf."""
    if norm is None:
        return ""
    if not math.isfinite(norm):
        return "!" * _BAR_DECADES
    if norm == 0 or largest == 0:
        return "."
    return "#" * max(1, min(_BAR_DECADES, round(_BAR_DECADES + math.log10(norm / largest))))
