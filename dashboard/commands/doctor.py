"""`dashboard doctor`: what works on this machine, what cannot and why, as a table or as JSON.

The checks are in `serving/doctor_checks.py`, which the page uses too.
"""

from __future__ import annotations

import json
import os
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from probe import __version__
from probe.wire.findings import Finding

from ..runs import printable
from ..serving.doctor_checks import probe_findings, serving_findings


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that was checked."""

    recording: tuple[Finding, ...]
    serving: tuple[Finding, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Of both sides."""
        return self.recording + self.serving

    @property
    def is_usable(self) -> bool:
        """Whether nothing is missing that stops recording or serving."""
        return all(finding.state != "missing" for finding in self.findings)


def examine(environment: Mapping[str, str] = os.environ) -> Report:
    """Check the probe's side in a process of its own, and the dashboard's in this one."""
    return Report(recording=tuple(probe_findings(environment)), serving=tuple(serving_findings(environment)))


def report_json(report: Report) -> str:
    """One JSON object: ``{version, usable, recording: [...], serving: [...]}``."""
    sides = {"recording": report.recording, "serving": report.serving}
    return json.dumps(
        {
            "version": __version__,
            "usable": report.is_usable,
            **{side: [asdict(finding) for finding in found] for side, found in sides.items()},
        }
    )


def table_lines(report: Report, *, width: int | None = None) -> Iterator[str]:
    """The report for reading: a line or more per finding, and a last one that says what to do.

    Args:
        width: characters a line; None takes the terminal's.
    """
    width = shutil.get_terminal_size((100, 24)).columns if width is None else width
    name_width = max(len(finding.name) for finding in report.findings)
    for title, side in (("Recording", report.recording), ("Serving", report.serving)):
        yield f"{title} (nanscope {__version__})" if side is report.recording else title
        for finding in side:
            yield from _finding_lines(finding, name_width, max(width, name_width + 40))
        yield ""
    yield what_to_do(report.findings)


def _finding_lines(finding: Finding, name_width: int, width: int) -> Iterator[str]:
    margin = f"  {finding.state:<7}  {finding.name:<{name_width}}  "
    blank = " " * len(margin)
    # Paths and addresses stay whole, so that they can be copied.
    wrap = textwrap.TextWrapper(width=width, break_long_words=False, break_on_hyphens=False)
    for first, text in ((margin, finding.found), (blank, finding.advice and f"-> {finding.advice}")):
        if text:
            wrap.initial_indent, wrap.subsequent_indent = first, blank
            yield from wrap.wrap(printable(text))


def what_to_do(found: Sequence[Finding]) -> str:
    """One sentence: the next thing to do."""
    missing = [finding for finding in found if finding.state == "missing"]
    limited = [finding for finding in found if finding.state == "limited"]
    if missing:
        first = missing[0]
        more = f" ({len(missing) - 1} more above)" if len(missing) > 1 else ""
        return f"To do: {printable(first.name)}: {printable(first.advice or first.found)}{more}"
    if limited:
        names = ", ".join(dict.fromkeys(printable(finding.name) for finding in limited))
        return f"Nothing to do. What is limited, and why, is listed above: {names}."
    return "Nothing to do: `dashboard serve`, and `probe.watch(model)` in the training."
