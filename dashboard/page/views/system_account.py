"""The view of the system: what the machine does now, and whether all that was written has arrived. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dash import html
from dash.development.base_component import Component

from probe.wire import RunStart

from .quantities import bytes_text, duration_text, percent_text
from .tracked_table import moment_text


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamAccount:
    """Records of one stream."""

    writer: str
    """``0-1700000000000000000``: rank and start, or ``host-NAME``."""
    stream: str
    written: int | None
    """In the journal; None where that is not on this machine."""
    stored: int
    gaps: int
    """The journal no longer had them when they were to be sent."""
    dropped: int
    """They arrived, and do not decode or break a limit."""

    @property
    def known(self) -> int:
        """Those that the store can account for."""
        return self.stored + self.gaps + self.dropped


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemFacts:
    """What the sections are made of."""

    start: RunStart | None
    now: float
    """UNIX seconds."""
    readings: Mapping[str, float]
    """Newest value of each series that `NEWEST` names."""
    accounts: Sequence[StreamAccount]
    lost_before_write: int
    throttled: str
    """What the probe measures less often to keep to its limit, in a sentence; empty where nothing."""
    is_running: bool
    helper_pid: int | None
    """Of the helper of this run on this machine; None where none runs."""
    is_listened_to: bool
    """Whether a dashboard takes what that helper sends."""
    has_journal: bool
    """Whether the run's folder is in this machine's spool."""


NEWEST = (
    *("process_cpu_fraction", "system_cpu_fraction", "processor_wait", "gpu_fraction"),
    *("process_rss_bytes", "system_used_bytes", "system_total_bytes"),
    *("cuda_allocated_bytes", "cuda_reserved_bytes", "probe_failures"),
)
"""Series whose newest values stand beside the charts."""


def system_account(facts: SystemFacts) -> list[Component]:
    """Return the sections."""
    return [
        _section("Machine", [_pairs(_machine(facts))]),
        _section("Delivery", [*(_said(text) for text in delivery_sentences(facts)), *_streams(facts)]),
    ]


def _machine(facts: SystemFacts) -> list[tuple[str, str, str]]:
    """(name, value, what hovering shows) of what is known."""
    found: list[tuple[str, str, str]] = []
    if (start := facts.start) is not None:
        process = f"process {start.pid}" if start.pid else ""
        where = ", ".join(filter(None, [start.host, process, *start.devices[:8]]))
        ago_s = facts.now - start.time
        ago = f"{duration_text(ago_s)} ago" if ago_s >= 0 else moment_text(start.time)
        versions = ", ".join(f"{name} {version}" for name, version in start.versions.items())
        told = [("Runs on", where, ""), ("Started", ago, moment_text(start.time)), ("Versions", versions, "")]
        found += [one for one in told if one[1]]
    return [*found, *((name, value, "") for name, value in _uses(facts.readings))]


def _uses(readings: Mapping[str, float]) -> list[tuple[str, str]]:
    shares = {
        "process_cpu_fraction": "Processors, this process",
        "system_cpu_fraction": "Processors, all",
        "processor_wait": "Waiting for processors",
        "gpu_fraction": "GPU busy",
    }
    found = [(label, percent_text(readings[name])) for name, label in shares.items() if name in readings]
    if "process_rss_bytes" in readings:
        found.append(("Memory of the process", bytes_text(readings["process_rss_bytes"])))
    if "system_used_bytes" in readings:
        total = readings.get("system_total_bytes")
        of = f" of {bytes_text(total)}" if total else ""
        found.append(("Memory of the machine", f"{bytes_text(readings['system_used_bytes'])}{of} in use"))
    if (reserved := readings.get("cuda_reserved_bytes")) is not None:
        allocated = readings.get("cuda_allocated_bytes", 0.0)
        share = f", {percent_text(1 - allocated / reserved)} of it in no tensor" if reserved else ""
        found.append(("CUDA memory", f"{bytes_text(allocated)} in {bytes_text(reserved)} reserved{share}"))
    return found


def delivery_sentences(facts: SystemFacts) -> list[str]:
    """Return whether the account balances, what was lost, and how the helper and the probe are."""
    said = [_balance(facts)]
    if lost := facts.lost_before_write:
        frames = "step was" if lost == 1 else "steps were"
        said.append(f"{lost:,} {frames} lost before being written (a full disk, for example).")
    if facts.is_running and facts.has_journal:
        said.append(_helper(facts))
    if facts.throttled:
        said.append(f"{facts.throttled}.")
    if failures := int(facts.readings.get("probe_failures", 0)):
        times = "once" if failures == 1 else f"{failures:,} times"
        said.append(f"The probe's own code failed {times}; the parts that failed are switched off.")
    return said


def _balance(facts: SystemFacts) -> str:
    accounts = facts.accounts
    if not accounts:
        return "Nothing of this run has arrived yet."
    stored, gaps, dropped = (
        sum(getattr(one, name) for one in accounts) for name in ("stored", "gaps", "dropped")
    )
    parts = f"{stored:,} stored + {gaps:,} in gaps + {dropped:,} dropped"
    if any(one.written is None for one in accounts):
        return f"{stored + gaps + dropped:,} records received = {parts}. The journal is not on this machine."
    written = sum(one.written or 0 for one in accounts)
    missing = written - stored - gaps - dropped
    if missing == 0:
        return (
            f"{written:,} records written: {parts}."
            if gaps + dropped
            else f"All {written:,} records arrived."
        )
    if missing > 0 and facts.is_running:
        return f"{written:,} records written: {parts} + {missing:,} on their way."
    many = "record is" if abs(missing) == 1 else "records are"
    if missing > 0:
        return f"{written:,} records written, {parts}: {missing:,} {many} not stored yet."
    return (
        f"{written:,} records in the journal, {parts}: {-missing:,} {many} stored here that it no longer has."
    )


def _helper(facts: SystemFacts) -> str:
    if facts.helper_pid is None:
        return "No helper of this run is running on this machine; the probe starts one within seconds."
    sends = "a dashboard receives its data" if facts.is_listened_to else "no dashboard receives its data"
    return f"The helper of this run is process {facts.helper_pid} on this machine; {sends}."


def _streams(facts: SystemFacts) -> list[Component]:
    if not facts.accounts:
        return []
    heads = ("Writer", "Stream", "Written", "Stored", "In gaps", "Dropped", "On their way")
    table = html.Table(
        [
            html.Thead(html.Tr([html.Th(head, scope="col") for head in heads])),
            html.Tbody([_stream(one) for one in facts.accounts]),
        ],
        className="ns-memory-table ns-streams",
    )
    scroll = {"tabIndex": 0, "role": "group", "aria-label": "Streams"}
    return [html.Div(table, className="ns-memory", **scroll)]


def _stream(one: StreamAccount) -> Component:
    rest = "-" if one.written is None else f"{one.written - one.known:,}"
    written = "-" if one.written is None else f"{one.written:,}"
    cells = (one.stream, written, f"{one.stored:,}", f"{one.gaps:,}", f"{one.dropped:,}", rest)
    name = _writer_name(one.writer)
    return html.Tr(
        [html.Th(name, scope="row", title=one.writer), *(html.Td(cell) for cell in cells)],
    )


def _writer_name(writer: str) -> str:
    """``rank 0`` of a rank's writer; a helper's is its host."""
    rank, _, start = writer.partition("-")
    if rank.isdecimal() and start.isdecimal():
        return f"rank {rank}"
    return f"helper on {start}" if rank == "host" else writer


def _pairs(pairs: Sequence[tuple[str, str, str]]) -> Component:
    rows = [
        html.Tr([html.Th(name, scope="row"), html.Td(value, title=hover)]) for name, value, hover in pairs
    ]
    return html.Table(html.Tbody(rows), className="ns-pairs")


def _said(text: str) -> Component:
    return html.P(text, className="ns-small")


def _section(title: str, children: Sequence[Component]) -> Component:
    return html.Section([html.H2(title), *children], **{"aria-label": title})
