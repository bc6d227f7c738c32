"""What an event says of tensors, and what the script gave with it, as rows of text. Pure, on any thread.

The panel, the text to paste and the export take their rows from here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from probe.wire import Event, TensorFacts
from probe.wire.event_json import jsonable

from .evidence import Fact
from .quantities import number_text

TENSOR_COLUMNS: Final = (
    *("tensor", "shape", "type", "NaN", "Inf", "zeros", "min", "max", "mean", "std", "device"),
)
SHOWN_TEXT: Final = 300
"""Characters of a value that are shown; the rest stands in the downloaded JSON."""
SHOWN_ROWS: Final = 200


def tensor_rows(event: Event) -> tuple[tuple[str, ...], ...]:
    """One row per tensor, in the order of `TENSOR_COLUMNS`; the range is that of the finite elements."""
    return tuple(map(_row, event.evidence.tensors))


def _row(facts: TensorFacts) -> tuple[str, ...]:
    name = facts.name or "not named"
    counts = (facts.nan, facts.inf, facts.zero)
    return (
        f"{facts.role} {name}",
        "×".join(map(str, facts.shape)) or "scalar",
        facts.dtype,
        *("–" if count is None else f"{count:,}" for count in counts),
        *(
            "–" if number is None else number_text(number)
            for number in (facts.finite_min, facts.finite_max, facts.mean, facts.std)
        ),
        facts.device,
    )


def tensor_lines(event: Event) -> list[str]:
    """The rows as text, one a line."""
    return [
        ", ".join(f"{column} {value}" for column, value in zip(TENSOR_COLUMNS, row, strict=True))
        for row in tensor_rows(event)
    ]


def data_facts(event: Event) -> tuple[Fact, ...]:
    """One row per value; what lies in a dictionary has the path to it, a list stands in one row."""
    rows = [_fact(path, value) for path, value in _leaves(jsonable(event.data or {}), "")]
    left = len(rows) - SHOWN_ROWS
    more = (Fact(label="more", value=f"{left:,} values, in the JSON"),) if left > 0 else ()
    return (*rows[:SHOWN_ROWS], *more)


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and (value or not path):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else key)
    else:
        yield path, value


def _fact(path: str, value: Any) -> Fact:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(text) <= SHOWN_TEXT:
        return Fact(label=path, value=text)
    return Fact(label=path, value=f"{text[:SHOWN_TEXT]}…", detail=text)
