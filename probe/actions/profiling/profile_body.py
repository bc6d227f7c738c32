"""Puts the document of a profile together out of its trace. Pure but for what it is given; no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ...wire.profiles import MAX_ROWS, MAX_TRACE_BYTES, OpRow, PlaceRow, ProfileBody
from .profile_findings import find_bottlenecks
from .profile_table import ProfileTable, Total, build_table, total_by_line, total_by_module, total_by_op
from .trace_events import cut_trace, read_trace

_TEXT: Final = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedProfile:
    """What a profiler has recorded, before anybody looked at it."""

    trace: bytes
    """Chrome trace, JSON."""
    began_us: float
    """On the trace's axis."""
    ends_us: tuple[float, ...]
    """When each step ended; one for a block."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """See `compat.torch_profiler.PythonCalls`."""
    calling_lines: Mapping[int, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeProfile:
    """A profile that somebody can look at."""

    body: ProfileBody
    trace: bytes
    """As it is to be kept."""


def make_profile(
    recorded: RecordedProfile,
    *,
    first_step: int | None,
    asked_steps: int | None,
    asked_by: str,
    steps: int | None = None,
    notes: Sequence[str] = (),
    most_bytes: int = MAX_TRACE_BYTES,
) -> MadeProfile:
    """Cut the trace to its size, and look at what is left.

    Args:
        recorded: what there is.
        first_step: number of the first step; None for a block.
        asked_steps: how many were asked for; None for a block.
        asked_by: who asked.
        steps: that the block has run, by which the findings' numbers are divided; counted by default.
        notes: what a reader has to know besides.
        most_bytes: of the trace.

    Raises:
        WireError: the trace cannot be read.
    """
    data, kept = cut_trace(recorded.trace, recorded.ends_us, most_bytes=most_bytes)
    said = [*recorded.notes, *notes]
    if data is not recorded.trace:
        said.append(
            f"The trace was {len(recorded.trace) / 2**20:,.0f} MiB (limit {most_bytes / 2**20:,.0f} MiB), "
            f"so it holds {kept} of {len(recorded.ends_us)} steps"
            + (" without Python functions" if kept <= 1 else "")
            + ". Ask for fewer steps."
        )
    wall_us = recorded.ends_us[kept - 1] - recorded.began_us if kept else 0.0
    table = build_table(
        read_trace(data),
        wall_us=wall_us,
        steps=steps or (kept if asked_steps else None),
        modules=recorded.modules,
        calling_lines=recorded.calling_lines,
    )
    body = _body(table, first_step=first_step, asked_steps=asked_steps, asked_by=asked_by, notes=said)
    return MadeProfile(body=body, trace=data)


def _body(
    table: ProfileTable,
    *,
    first_step: int | None,
    asked_steps: int | None,
    asked_by: str,
    notes: list[str],
) -> ProfileBody:
    return ProfileBody(
        first_step=first_step,
        steps=table.steps,
        asked_steps=asked_steps,
        asked_by=asked_by,
        wall_s=table.wall_us / 1e6,
        cpu_s=sum(call.self_us for call in table.script_calls) / 1e6,
        cuda_s=table.device_us / 1e6,
        has_cuda=table.has_device,
        own_s=sum(call.self_us for call in table.calls if call.place.is_ours) / 1e6,
        input_wait_s=table.input_wait_us / 1e6,
        ops=_op_rows(table),
        modules=_place_rows(table, total_by_module),
        lines=_place_rows(table, total_by_line),
        findings=find_bottlenecks(table),
        notes=[note[:_TEXT] for note in notes],
    )


def _op_rows(table: ProfileTable) -> list[OpRow]:
    """The dearest ones by CPU time, by device time and by memory, together at most `MAX_ROWS`."""
    totals = total_by_op(table)
    return [
        OpRow(
            name=name[:_TEXT],
            calls=total.calls,
            self_cpu_s=total.self_us / 1e6,
            cpu_s=total.whole_us / 1e6,
            self_cuda_s=total.cuda_us / 1e6,
            allocated_bytes=total.allocated_bytes,
            module=None if total.module is None else total.module[:_TEXT],
            line=None if total.line is None else total.line[:_TEXT],
        )
        for name, total in _dearest(totals, table)
    ]


def _place_rows(table: ProfileTable, sum_up: Callable[[ProfileTable], dict[str, Total]]) -> list[PlaceRow]:
    return [
        PlaceRow(
            name=name[:_TEXT],
            calls=total.calls,
            self_cpu_s=total.self_us / 1e6,
            backward_cpu_s=total.backward_us / 1e6,
            self_cuda_s=total.cuda_us / 1e6,
            allocated_bytes=total.allocated_bytes,
        )
        for name, total in _dearest(sum_up(table), table)
    ]


def _dearest(totals: dict[str, Total], table: ProfileTable) -> list[tuple[str, Total]]:
    by_time = sorted(totals, key=lambda name: -totals[name].self_us)
    by_memory = sorted(totals, key=lambda name: -totals[name].allocated_bytes)
    by_device = sorted(totals, key=lambda name: -totals[name].cuda_us) if table.has_device else []
    third = MAX_ROWS // 3
    chosen = dict.fromkeys([*by_device[:third], *by_time[:third], *by_memory[:third], *by_time])
    kept = list(chosen)[:MAX_ROWS]
    key = (lambda name: -totals[name].cuda_us) if table.has_device else (lambda name: -totals[name].self_us)
    return [(name, totals[name]) for name in sorted(kept, key=key)]
