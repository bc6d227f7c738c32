"""Judges what was recorded of a script of the fault bank against its header. Pure: no process, no file."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bank import LOCATED_KINDS, Script

_LIBRARY: Final = re.compile(r"^<|[/\\](?:site|dist)-packages[/\\]|[/\\]lib(?:64)?[/\\]python\d")
"""As the page has it, which shows the innermost other frame as the event's line."""
ALARMING: Final = frozenset({"warning", "critical"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """One event in short."""

    kind: str
    severity: str
    step: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one tool made of one script."""

    name: str
    family: str
    half: str
    is_nonfinite: bool
    is_found: bool = False
    delay: int | None = None
    """Steps from the fault to the first event that names it."""
    is_module_right: bool | None = None
    """None where the script has no origin."""
    is_line_right: bool | None = None
    found: Alarm | None = None
    named_module: str | None = None
    named_line: str | None = None
    false_alarms: tuple[Alarm, ...] = ()
    """Of a healthy script all at warning or above, of a faulty one those before the fault."""
    steps: int = 0
    """Steps of a healthy script, or before the fault, that could have raised a false alarm."""
    problem: str | None = None
    """The script itself did not do what its header says."""
    seconds: float = 0.0


@dataclass(slots=True)
class Score:
    """Sums over scripts."""

    scripts: int = 0
    found: int = 0
    module_right: int = 0
    modules: int = 0
    line_right: int = 0
    lines: int = 0
    delays: list[int] = field(default_factory=list)
    silent: int = 0
    steps: int = 0
    false_alarms: int = 0

    @property
    def median_delay(self) -> float | None:
        return statistics.median(self.delays) if self.delays else None

    @property
    def false_alarms_per_thousand(self) -> float | None:
        return 1000 * self.false_alarms / self.steps if self.steps else None


def judge(script: Script, events: Iterable[Mapping[str, Any]], *, steps: int) -> Verdict:
    """Compare events, as `dashboard events --json` gives them, with the truth.

    Found is a fault with an event of an accepted kind, at warning or above, not before the fault began. The
    first such event counts, of the same step one that names an origin.
    """
    alarms = [event for event in events if event["severity"] in ALARMING]
    if script.is_healthy:
        return _verdict(script, false_alarms=tuple(map(_alarm, alarms)), steps=steps)
    early = tuple(_alarm(event) for event in alarms if not _is_in_time(script, event))
    hits = [event for event in alarms if event["kind"] in script.kinds and _is_in_time(script, event)]
    if not hits:
        return _verdict(script, false_alarms=early, steps=min(steps, script.step))
    first = min(hits, key=lambda event: (event["step"], event["origin"] is None, event["time"]))
    frame = user_frame(first["stacks"])
    return _verdict(
        script,
        is_found=True,
        delay=max(0, first["step"] - script.step),
        found=_alarm(first),
        is_module_right=_is_module_right(script, first["origin"]),
        is_line_right=_is_line_right(script, frame),
        named_module=_named_module(first["origin"]),
        named_line=None if frame is None else f"{frame['file'].rpartition('/')[2]}:{frame['line']}",
        false_alarms=early,
        steps=min(steps, script.step),
    )


def judge_rival(script: Script, report: Mapping[str, Any]) -> Verdict:
    """Compare what another tool said, as `detection_rival_runner.py` writes it, with the truth."""
    if script.is_healthy or not report["found"] or report["step"] < script.step:
        alarms = [
            Alarm(kind=report["tool"], severity="critical", step=report["step"], message=report["message"])
            for _ in range(bool(report["found"]))
        ]
        steps = script.steps if script.is_healthy else script.step
        return _verdict(script, false_alarms=tuple(alarms), steps=steps, problem=report.get("problem"))
    module, line = report.get("module"), report.get("line")
    return _verdict(
        script,
        is_found=True,
        delay=report["step"] - script.step,
        is_module_right=module is not None and module in script.modules,
        is_line_right=line in script.right_lines,
        named_module=module,
        named_line=None if line is None else f"{script.path.name}:{line}",
        steps=script.step,
    )


def user_frame(stacks: Mapping[str, Sequence[Mapping[str, Any]]]) -> Mapping[str, Any] | None:
    """Return the innermost frame of the user's own code: of forward, else of backward, else of the loop."""
    for stack in (stacks["forward"], stacks["backward"], stacks["training_loop"]):
        for frame in reversed(stack):
            if not _LIBRARY.search(frame["file"]):
                return frame
    return None


def add_up(verdicts: Iterable[Verdict]) -> Score:
    """Sum verdicts; what a missed fault did not name counts as not right."""
    score = Score()
    for verdict in verdicts:
        score.scripts += 1
        score.found += verdict.is_found
        score.modules += verdict.is_module_right is not None
        score.module_right += bool(verdict.is_module_right)
        score.lines += verdict.is_line_right is not None
        score.line_right += bool(verdict.is_line_right)
        if verdict.delay is not None:
            score.delays.append(verdict.delay)
        score.silent += not verdict.false_alarms
        score.steps += verdict.steps
        score.false_alarms += len(verdict.false_alarms)
    return score


def _verdict(script: Script, **values: Any) -> Verdict:
    """A verdict in which what was not named is wrong wherever there was something to name."""
    if script.modules:
        values["is_module_right"] = bool(values.get("is_module_right"))
    if script.has_line:
        values["is_line_right"] = bool(values.get("is_line_right"))
    return Verdict(
        name=script.name,
        family=script.family,
        half=script.half,
        is_nonfinite=script.is_nonfinite,
        **values,
    )


def _is_in_time(script: Script, event: Mapping[str, Any]) -> bool:
    """What ends a script belongs to the step that never came about: no number is too early for it."""
    return event["step"] >= script.step or (event["kind"] in LOCATED_KINDS and event["kind"] in script.kinds)


def _is_module_right(script: Script, origin: Mapping[str, Any] | None) -> bool | None:
    return (origin is not None and origin["module"] in script.modules) if script.modules else None


def _named_module(origin: Mapping[str, Any] | None) -> str | None:
    """As in a header: outside is code in no module; None where no origin was named."""
    if origin is None:
        return None
    return "outside" if origin["module"] is None else str(origin["module"])


def _is_line_right(script: Script, frame: Mapping[str, Any] | None) -> bool | None:
    if not script.has_line:
        return None
    is_own = frame is not None and frame["file"].rpartition("/")[2] == script.path.name
    return is_own and frame is not None and frame["line"] in script.right_lines


def _alarm(event: Mapping[str, Any]) -> Alarm:
    return Alarm(
        kind=event["kind"],
        severity=event["severity"],
        step=event["step"],
        message=event["message"],
    )
