"""A Chrome trace as torch.profiler writes it: decoded, cut to a size, and its calls nested. Pure; no torch.

The format is that of https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU with the
arguments of torch's Kineto (`External id`, `Sequence number`, `Bytes`, ...).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ...errors import WireError

_Id = int | str | None


class TraceArguments(msgspec.Struct, frozen=True, gc=False):
    """What is known of an event beside its time; what is not named here is passed over."""

    external_id: _Id = msgspec.field(default=None, name="External id")
    sequence: _Id = msgspec.field(default=None, name="Sequence number")
    forward_thread: _Id = msgspec.field(default=None, name="Fwd thread id")
    bytes: int | str | None = msgspec.field(default=None, name="Bytes")


_NO_ARGUMENTS: Final = TraceArguments()


class TraceEvent(msgspec.Struct, frozen=True, gc=False):
    """One event; times are microseconds."""

    ph: str = ""
    name: str = ""
    cat: str | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    ts: float = 0.0
    dur: float = 0.0
    args: TraceArguments = _NO_ARGUMENTS

    @property
    def end(self) -> float:
        """When it ended, in microseconds."""
        return self.ts + self.dur


class Trace(msgspec.Struct, frozen=True):
    """A whole trace."""

    events: list[TraceEvent] = msgspec.field(name="traceEvents")
    base_ns: int = msgspec.field(default=0, name="baseTimeNanoseconds")
    """What `ts` is counted from."""


class _RawTrace(msgspec.Struct):
    traceEvents: list[msgspec.Raw]  # noqa: N815 - the format's name


class _Head(msgspec.Struct):
    baseTimeNanoseconds: int = 0  # noqa: N815 - the format's name


class _Timed(msgspec.Struct, gc=False):
    ts: float = 0.0
    cat: str | None = None


def read_trace(data: bytes) -> Trace:
    """Decode a trace.

    Raises:
        WireError: it is none.
    """
    try:
        return msgspec.json.decode(data, type=Trace)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"this is not a torch.profiler trace: {error}") from error


def read_base(data: bytes) -> int:
    """What the times of a trace are counted from, in ns of UNIX time.

    Raises:
        WireError: it is no trace.
    """
    try:
        return msgspec.json.decode(data, type=_Head).baseTimeNanoseconds
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"this is not a torch.profiler trace: {error}") from error


def cut_trace(data: bytes, ends_us: Sequence[float], *, most_bytes: int) -> tuple[bytes, int]:
    """Leave out the last steps of a trace until it is small enough.

    Of one step that is too large by itself the Python functions are left out, then its end.

    Args:
        data: a trace.
        ends_us: `ts` at which each step ended, ascending.
        most_bytes: that it may take.

    Returns:
        The trace, and how many of the steps are in it.

    Raises:
        WireError: it is none.
    """
    if len(data) <= most_bytes:
        return data, len(ends_us)
    try:
        fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        raw = msgspec.json.decode(data, type=_RawTrace).traceEvents
        timed = [msgspec.json.decode(event, type=_Timed) for event in raw]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"this is not a torch.profiler trace: {error}") from error
    room = most_bytes - sum(
        len(key) + len(value) + 8 for key, value in fields.items() if key != "traceEvents"
    )
    sizes = [len(event) + 1 for event in raw]
    for kept in range(len(ends_us) - 1, 0, -1):
        until = ends_us[kept - 1]
        chosen = [at for at, event in enumerate(timed) if event.ts < until]
        if sum(sizes[at] for at in chosen) <= room:
            return _write(fields, [raw[at] for at in chosen]), kept
    until = ends_us[0] if ends_us else float("inf")
    chosen = [at for at, one in enumerate(timed) if one.ts < until and one.cat != "python_function"]
    chosen.sort(key=lambda at: timed[at].ts)
    used, fitting = 0, []
    for at in chosen:
        used += sizes[at]
        if used > room:
            break
        fitting.append(raw[at])
    return _write(fields, fitting), min(1, len(ends_us))


def _write(fields: dict[str, msgspec.Raw], events: list[msgspec.Raw]) -> bytes:
    return msgspec.json.encode({**fields, "traceEvents": events})
