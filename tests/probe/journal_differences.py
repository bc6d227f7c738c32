"""In what two journals of the same seeded training differ, beside what no two runs have in common."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
from journals import Journal

from probe.wire import Event, Frame

OWN = (
    "step_time_",
    "probe_fraction",
    "data_wait_s",
    "forward_s",
    "backward_s",
    "optimizer_s",
    "process_",
    "system_",
    "cuda_",
    "gpu_",
    "memory_",
    "before_backward_s",
    "own_backward_s",
    "processor_wait",
)
"""Clock readings, memory and the probe's own cost."""
_OWN_COLUMNS = ("forward_time_s", "forward_self_time_s", "backward_time_s", "backward_self_time_s")
_OF_ONE_RUN = re.compile(r"\d+(\.\d+)? ms\b|\b\d+ bytes\b|/\S+/(bundles/\w+|spool\S*)|0x[0-9a-f]{6,}")
_NAMES_ONE_RUN = ("id", "run", "incarnation", "time")


def differences(expected: Journal, actual: Journal) -> list[str]:
    """Return every number, layout and event that is not the same, one line each; empty where all are."""
    parts = {
        "layouts": lambda journal: [msgspec.to_builtins(layout) for layout in journal.layouts],
        "steps": lambda journal: numbers(journal.frames),
        "events": lambda journal: [said(event) for event in journal.latest_events],
        "end": lambda journal: None if journal.end is None else (journal.end.step, journal.end.outcome),
    }
    return [line for name, read in parts.items() for line in between(name, read(expected), read(actual))]


def numbers(frames: list[Frame]) -> dict[tuple[int, int], dict[str, Any]]:
    """All that frames say of each update: what was added to a step later is put to its newest frame."""
    steps: dict[tuple[int, int], dict[str, Any]] = {}
    counts: dict[int, int] = {}
    for frame in frames:
        if frame.columns or frame.step not in counts:
            counts[frame.step] = counts.get(frame.step, -1) + 1
        known = steps.setdefault((frame.step, counts[frame.step]), {"layout": frame.layout})
        known |= {name: repr(value) for name, value in frame.scalars.items() if not name.startswith(OWN)}
        known |= {f"{column.name} of each": (column.dtype, column.data) for column in frame.columns}
        known |= {
            part.name: msgspec.msgpack.encode(part)
            for part in (*frame.parameter_columns, *frame.module_columns, *frame.histograms)
            if part.name not in _OWN_COLUMNS
        }
        if frame.module_columns:
            known |= {"module_rows": frame.module_rows, "module_states": frame.module_states}
        if frame.columns:
            known |= {"missing": frame.missing, "stage": frame.stage}
    return steps


def said(event: Event) -> dict[str, Any]:
    """What an event says: kind, module, lines, evidence; without times, paths and how long a replay took."""
    told: dict[str, Any] = msgspec.to_builtins(event)
    for name in _NAMES_ONE_RUN:
        told.pop(name, None)
    told["message"] = _OF_ONE_RUN.sub("...", event.message)
    if event.kind == "replayed":
        del told["evidence"]["value"]  # seconds that it took
    return told


def between(where: str, expected: Any, actual: Any) -> Iterator[str]:
    """Yield what is not equal, by its place."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key in [*expected, *(key for key in actual if key not in expected)]:
            yield from between(f"{where}.{key}", expected.get(key, "nothing"), actual.get(key, "nothing"))
    elif isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        for at, (one, other) in enumerate(zip(expected, actual, strict=True)):
            yield from between(f"{where}[{at}]", one, other)
    # As text: a NaN is equal to itself, 0.0 is not -0.0.
    elif repr(expected) != repr(actual):
        yield f"{where}: {_short(actual)}, not {_short(expected)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}..."
