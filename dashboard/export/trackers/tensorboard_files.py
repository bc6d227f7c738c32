"""Writes a run as an event file of TensorBoard: scalars by step, events and facts as texts.

One file a rank, whole or not at all; written again, it takes the place of the one before.
TensorBoard's scalars are float32.
"""

from __future__ import annotations

import html
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from ...page.views.event_facts import heading
from .tracked_run import TrackedRun

_MOST_TEXT: Final = 16_000


def write_tensorboard(run: TrackedRun, folder: Path) -> Path:
    """Write the file into a folder, which is made, and return its path.

    Raises:
        OSError: the file cannot be written.
    """
    from tensorboard.summary.writer.record_writer import RecordWriter

    folder.mkdir(parents=True, exist_ok=True)
    began = int(run.run.started)
    # TensorBoard takes what has "tfevents" in its name, in the order of the names.
    name = f"events.out.tfevents.{began:010d}.{socket.gethostname()}.nanscope-{run.run.run}-{run.rank.rank}"
    partial = folder / f".nanscope-{run.run.run}-{os.getpid()}.part"
    try:
        with partial.open("wb") as file:
            writer = RecordWriter(file)
            for event in _records(run):
                writer.write(event.SerializeToString())
            writer.flush()
        return partial.replace(folder / name)
    finally:
        partial.unlink(missing_ok=True)


def _records(run: TrackedRun) -> Iterator[Any]:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    began = run.run.started
    yield Event(wall_time=began, file_version="brain.Event:2")
    for tag, facts in (("run/facts", run.facts()), ("run/config", run.parameters())):
        if facts:
            yield Event(wall_time=began, step=0, summary=_text(tag, _table(facts)))
    for (kind, step), lines in _event_lines(run).items():
        time = next(event.time for event in run.events if (event.kind, event.step) == (kind, step))
        yield Event(wall_time=time, step=step, summary=_text(f"events/{kind}", lines))
    for numbers in run.steps():
        values = [
            Summary.Value(tag=name, simple_value=value) for name, value in sorted(numbers.values.items())
        ]
        yield Event(wall_time=numbers.time, step=numbers.step, summary=Summary(value=values))


def _event_lines(run: TrackedRun) -> Mapping[tuple[str, int], str]:
    """(kind, step) -> a list of its events: TensorBoard keeps one text of a tag and step."""
    lines: dict[tuple[str, int], str] = {}
    for event in run.events:
        key = (event.kind, event.step)
        line = f"- {event.severity}: {html.escape(heading(event))}"
        lines[key] = f"{lines[key]}\n{line}" if key in lines else line
    return lines


def _table(facts: Mapping[str, str]) -> str:
    rows = (f"| {_cell(name)} | {_cell(text)} |" for name, text in facts.items())
    return "\n".join(["| name | value |", "|---|---|", *rows])


def _cell(text: str) -> str:
    return html.escape(" ".join(text.split())).replace("|", "&#124;")


def _text(tag: str, text: str) -> Any:
    """A summary of the text plugin."""
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING

    plugin = SummaryMetadata.PluginData(plugin_name="text")
    tensor = TensorProto(
        dtype=DT_STRING,
        string_val=[text[:_MOST_TEXT].encode("utf-8", "replace")],
        tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]),
    )
    value = Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=plugin), tensor=tensor)
    return Summary(value=[value])
