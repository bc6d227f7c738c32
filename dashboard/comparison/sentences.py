"""What a comparison has found, in sentences for a terminal, a screen reader or the page. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from .facts import LayoutDifference
from .parting import Difference, Parting, StepSpan

_NAMES: Final = {"loss": "loss", "grad_norm": "gradient norm", "lr": "learning rate", "samples": "batch size"}
_SHOWN: Final = 5


def headline(parting: Parting) -> str:
    """Return the one sentence that answers whether and where two runs part."""
    count = parting.compared.count
    if parting.step is not None:
        are = "is" if parting.equal == 1 else "are"
        before = f"; the {parting.equal:,} step{_s(parting.equal)} before it {are} equal"
        before = before if parting.equal else ", the first one"
        return f"They differ from step {parting.step:,}{before}."
    if not count:
        return "They have no comparable step in common."
    steps = f"in all {count:,} steps that both have" if count > 1 else "in the one step that both have"
    but = " but for their settings" if parting.settings else ""
    return f"They are equal {steps}{but}."


def parting_sentences(parting: Parting, *, tolerance: float) -> Iterator[str]:
    """Yield the headline and what stands behind it."""
    yield headline(parting)
    yield from _differences(parting)
    settings = ", ".join(sorted({_named(each.name) for each in parting.settings}))
    if parting.compared.count and parting.step is None:
        compared = "loss, gradient norm, learning rate, batch size"
        layers = f" and the gradients of {parting.compared_layers:,} layer{_s(parting.compared_layers)}"
        but = f" except {settings}" if settings else ""
        yield f"Compared: {compared}{layers}{but}, where both have them, to a relative {tolerance:g}."
    yield from _missing(parting)


def layout_sentences(layout: LayoutDifference) -> Iterator[str]:
    """Yield how the models differ; nothing where they do not."""
    for what, names in (
        ("Parameters of the first run's model only", layout.only_first),
        ("Parameters of the second run's model only", layout.only_second),
        ("Parameters of another shape or dtype", layout.reshaped),
    ):
        if names:
            yield f"{what}: {_some([_quoted(name) for name in names])}."


def number(value: float) -> str:
    """Return a number with the nine digits that tell two float32 apart."""
    return {"nan": "NaN", "inf": "Inf", "-inf": "-Inf"}.get(f"{value:.9g}", f"{value:.9g}")


def pair(difference: Difference) -> str:
    """Return both numbers."""
    return f"{number(difference.first)} and {number(difference.second)}"


def _differences(parting: Parting) -> Iterator[str]:
    if parting.layers:
        first, *others = parting.layers
        where = "" if first.step == parting.step else f" at step {first.step:,}"
        yield f"First layer in backward order{where}: {_layer(first.name)}, gradient norm {pair(first)}."
        if others:
            names = _some([_layer(each.name) for each in others])
            differ = "layer differs" if len(others) == 1 else "layers differ"
            yield f"{len(others):,} more {differ} there: {names}."
    elif parting.step is not None:
        compared = parting.compared_layers
        yield (
            "No layer's gradient differs there." if compared else "No layer's gradient is in both runs there."
        )
    for each in parting.scalars:
        yield f"The {_named(each.name)} differs there: {pair(each)}."
    for each in parting.settings:
        yield f"The {_named(each.name)} differs from step {each.step:,} on: {pair(each)}."


def _missing(parting: Parting) -> Iterator[str]:
    up_to = "" if parting.step is None else " before or near it"
    for which, span in (("first", parting.only_first), ("second", parting.only_second)):
        if span.count:
            yield f"In the {which} run only, and not compared{up_to}: {_span(span)}."
    if parting.pooled.count:
        yield f"Only averages are left, and not compared: {_span(parting.pooled)}."


def _span(span: StepSpan) -> str:
    if span.count == 1:
        return f"step {span.first:,}"
    return f"{span.count:,} steps from {span.first:,} to {span.last:,}"


def _named(name: str) -> str:
    if name.startswith("lr/"):
        return f"learning rate of group {name[3:]}"
    return _NAMES.get(name, name)


def _layer(name: str) -> str:
    return _quoted(name) if name else "the model itself"


def _quoted(name: str) -> str:
    return f"`{name}`"


def _some(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more:,} more" if more > 0 else "")


def _s(count: int) -> str:
    return "" if count == 1 else "s"
