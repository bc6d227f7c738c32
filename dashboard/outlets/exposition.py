"""Writes families in Prometheus' text format, version 0.0.4. Pure.

Names follow the rule by which OpenTelemetry's become Prometheus': dots are underscores, then the unit, then
`_total` of a counter. https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final

from .families import Family, Sample

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_UNITS: Final = {"": "", "s": "_seconds"}


def exposition(families: Iterable[Family]) -> str:
    """Return the whole text; it ends with a line feed."""
    return "".join(f"{line}\n" for family in families for line in _lines(family))


def exposed_name(family: Family) -> str:
    """Return what Prometheus calls a family."""
    total = "_total" if family.kind == "counter" else ""
    return family.name.replace(".", "_") + _UNITS[family.unit] + total


def _lines(family: Family) -> Iterator[str]:
    name = exposed_name(family)
    text = family.text.replace("\\", r"\\").replace("\n", r"\n")
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {family.kind}"
    for sample in family.samples:
        yield f"{name}{_labels(sample)} {_number(sample.value)}"


def _labels(sample: Sample) -> str:
    if not sample.labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in sample.labels) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
