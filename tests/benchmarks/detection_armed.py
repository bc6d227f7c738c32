"""Prints whether the fault bank gives the same events when C follows the steps, the faulty one included.

    python tests/benchmarks/detection_armed.py [--only PATTERN ...] [--jobs N]

Every script runs twice through `dashboard run`: C follows its steps from the third on wherever it can, and C
follows none. Compared are kind, severity, step, subject, origin and the user's line of every event. What the
looks at the first steps of a model find is found in neither: they end with the first step.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from detection import _is_wanted

# `detection` has made these importable.
from bank import Script, load_bank  # isort: skip
from detection_runs import run_recorded
from detection_verdicts import user_frame

SITE = Path(__file__).with_name("armed_site")
OF_THE_CLOCK = frozenset({"performance_degradation", "level_changed", "hang", "memory_leak", "recorder"})
"""Kinds of events that depend on how long steps take, or on what the machine does."""


class Both(NamedTuple):
    """A script in both ways."""

    script: Script
    in_c: list[tuple[Any, ...]]
    slow: list[tuple[Any, ...]]
    followed: int
    is_fault_followed: bool
    endings: tuple[str, str]

    @property
    def is_equal(self) -> bool:
        """Whether the same is said; of what only a sampled step shows the step may be another one.

        A closer look begins when the recorder's thread has judged a step, which takes a moment of the clock.
        """
        said = [[(*event[:2], *event[3:]) for event in events] for events in (self.in_c, self.slow)]
        is_located = [
            [event for event in events if event[4] is not None] for events in (self.in_c, self.slow)
        ]
        is_recorded = not any(ending.endswith("not recorded") for ending in self.endings)
        return (
            said[0] == said[1]
            and is_located[0] == is_located[1]
            and self.endings[0] == self.endings[1]
            and is_recorded
        )

    @property
    def lag(self) -> int:
        """Steps between the same events, at most."""
        return max(
            (abs(one[2] - other[2]) for one, other in zip(self.in_c, self.slow, strict=True)), default=0
        )


def said(event: Mapping[str, Any]) -> tuple[Any, ...]:
    """What an event says of its fault."""
    origin, stacks = event["origin"], event["stacks"]
    # Where the loop stood when a slow fault was seen depends on who has judged it.
    frame = user_frame({**stacks, "training_loop": []}) if stacks["forward"] or stacks["backward"] else None
    return (
        event["kind"],
        event["severity"],
        event["step"],
        event["subject"],
        None if origin is None else (origin["phase"], origin["op"], origin["module"]),
        None if frame is None else (Path(frame["file"]).name, frame["line"]),
    )


def run_both(script: Script) -> Both:
    """Run a script with its steps followed in C, and not."""
    events, endings, followed = [], [], set[int]()
    for armed in ("early", "off"):
        with tempfile.NamedTemporaryFile("r", prefix="nanscope-bank-") as report:
            variables = {"NANSCOPE_BANK_ARMED": armed, "NANSCOPE_BANK_REPORT": report.name}
            outcome = run_recorded(
                script.path, limit_s=script.limit_s, variables=variables, before_path=str(SITE)
            )
            for line in report.read().splitlines():
                followed.update(range(*map(int, line.split())))
        events.append(
            sorted((said(event) for event in outcome.events if event["kind"] not in OF_THE_CLOCK), key=repr)
        )
        # A script that is not recorded has no events either.
        endings.append(outcome.ending if outcome.was_recorded else f"{outcome.ending}, not recorded")
    return Both(script, *events, len(followed), script.step in followed, (endings[0], endings[1]))


def describe(both: Both) -> str:
    """One line, and one below it for each event that only one of the runs has."""
    where = "fault in C" if both.is_fault_followed else "fault not in C"
    where = "healthy" if both.script.is_healthy else where
    verdict = f"{len(both.slow)} events equal" if both.is_equal else "DIFFERENT"
    if both.is_equal and both.lag:
        verdict += f", up to {both.lag} steps apart"
    lines = [f"{both.script.name:34s} {both.followed:5d} steps in C  {where:14s} {verdict}"]
    if not both.is_equal:
        lines += [f"    only in C:     {event}" for event in both.in_c if event not in both.slow]
        lines += [f"    only not in C: {event}" for event in both.slow if event not in both.in_c]
    if both.endings[0] != both.endings[1] or "not recorded" in both.endings[0]:
        lines.append(f"    ended with {both.endings[0]} in C, with {both.endings[1]} else")
    return "\n".join(lines)


def main() -> None:
    """Run what was asked for, print each as it is done, then the sums."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN")
    parser.add_argument("--jobs", type=int, default=1, help="scripts at a time")
    arguments = parser.parse_args()
    chosen = [script for script in load_bank() if _is_wanted(script, arguments.only)]
    found = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for both in pool.map(run_both, chosen):
            print(describe(both), flush=True)
            found.append(both)
    faulty = [both for both in found if not both.script.is_healthy]
    equal = sum(both.is_equal for both in found)
    print(
        f"\n{equal} of {len(found)} scripts with equal events; C has followed steps of "
        f"{sum(both.followed > 0 for both in found)}, and the faulty step of "
        f"{sum(both.is_fault_followed for both in faulty)} of {len(faulty)}"
    )
    sys.exit(equal != len(found))


if __name__ == "__main__":
    main()
