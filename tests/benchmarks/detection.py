"""Prints what is found in the fault bank, and what is said of healthy training: `make detection`.

    python tests/benchmarks/detection.py [--only PATTERN ...] [--rivals none|faulty|all] [--json FILE]

Every script of `tests/faults/` runs unmodified through `dashboard run`, in a spool of its own and without a
dashboard; its header holds the truth. Half of the bank, chosen by the scripts' names, is for tuning; the
other half is only reported. Columns:

- *found*: faults with an event of an accepted kind, at warning or above, not before the fault;
- *module*, *line*: faults whose first such event names the right module of origin, the right line;
- *delay*: median steps from the fault to that event;
- *early*: false alarms in faulty scripts before their fault; of healthy scripts, all at warning or above.

Autograd's anomaly mode and transformers' DebugUnderflowOverflow run on the non-finite faults for comparison.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))

from bank import FAMILIES, Script, load_bank
from detection_runs import run_recorded, run_rival
from detection_verdicts import Score, Verdict, add_up, judge, judge_rival

RIVALS = {"anomaly": "autograd's anomaly mode", "underflow": "DebugUnderflowOverflow"}
RIVAL_FAMILIES = frozenset({"forward", "backward", "data"})
HEADINGS = ("", "scripts", "found", "module", "line", "delay", "early", "steps", "per 1,000")


def measure(script: Script) -> Verdict:
    """Run a script through `dashboard run` and judge what was recorded."""
    outcome = run_recorded(script.path, limit_s=script.limit_s)
    verdict = judge(script, outcome.events, steps=outcome.steps)
    problem = outcome.complaint or None
    if outcome.ending != script.ends:
        problem = f"ended with {outcome.ending}, not {script.ends}: {outcome.error_tail}"
    elif script.is_healthy and outcome.steps != script.steps:
        problem = f"{outcome.steps} steps were recorded of {script.steps}"
    return replace(verdict, problem=problem, seconds=round(outcome.seconds, 1))


def measure_rival(script: Script, rival: str) -> Verdict:
    """Run a script with another tool and judge what it said."""
    return judge_rival(script, run_rival(script.path, rival, limit_s=script.limit_s))


def describe(verdict: Verdict) -> str:
    """One line of progress, and one below it for each thing to look at."""
    if verdict.family == "healthy":
        said = "silent" if not verdict.false_alarms else "FALSE ALARM"
    elif verdict.is_found:
        found = "" if verdict.found is None else verdict.found.kind
        said = f"found {found} after {verdict.delay}"
        module = "no origin" if verdict.named_module is None else f"module {verdict.named_module!r}"
        said += "" if verdict.is_module_right is not False else f", {module} WRONG"
        said += "" if verdict.is_line_right is not False else f", line {verdict.named_line} WRONG"
    else:
        said = "MISSED"
    lines = [f"{verdict.name:34s} {verdict.family:14s} {verdict.half:8s} {verdict.seconds:5.1f} s  {said}"]
    if verdict.problem:
        lines.append(f"    SCRIPT: {verdict.problem}")
    lines += [
        f"    false alarm at {alarm.step}: {alarm.severity} {alarm.kind}: {alarm.message.splitlines()[0]}"
        for alarm in verdict.false_alarms
    ]
    if verdict.found is not None and verdict.is_module_right is False:
        reasons = [line for line in verdict.found.message.splitlines() if line.startswith("Origin not")]
        lines += [f"    {reason}" for reason in reasons]
    return "\n".join(lines)


def table_of(verdicts: Sequence[Verdict]) -> list[str]:
    """Rows by family, then non-finite faults, the rest, all and the healthy ones."""
    faulty = [verdict for verdict in verdicts if verdict.family != "healthy"]
    rows = [(family, [v for v in faulty if v.family == family]) for family in FAMILIES]
    rows += [
        ("non-finite", [v for v in faulty if v.is_nonfinite]),
        ("the rest", [v for v in faulty if not v.is_nonfinite]),
        ("all faults", faulty),
        ("healthy", [v for v in verdicts if v.family == "healthy"]),
    ]
    body = [_cells(name, add_up(chosen), chosen) for name, chosen in rows if chosen]
    widths = [max(len(row[column]) for row in [HEADINGS, *body]) for column in range(len(HEADINGS))]
    return [
        "  ".join(cell.ljust(width) if not column else cell.rjust(width) for column, (cell, width) in pairs)
        for row in [HEADINGS, *body]
        for pairs in [list(enumerate(zip(row, widths, strict=True)))]
    ]


def _cells(name: str, score: Score, verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    is_healthy = verdicts[0].family == "healthy"
    rate = score.false_alarms_per_thousand
    return (
        name,
        str(score.scripts),
        f"{score.silent}/{score.scripts} silent" if is_healthy else f"{score.found}/{score.scripts}",
        _share(score.module_right, score.modules),
        _share(score.line_right, score.lines),
        "-" if score.median_delay is None else f"{score.median_delay:g}",
        str(score.false_alarms),
        f"{score.steps:,}",
        "-" if rate is None else f"{rate:.2f}",
    )


def _share(right: int, of: int) -> str:
    return f"{right}/{of}" if of else "-"


def print_tables(title: str, verdicts: Sequence[Verdict]) -> None:
    """All, then each half."""
    for name, chosen in (
        ("all", verdicts),
        ("half used for tuning", [v for v in verdicts if v.half == "tuning"]),
        ("half only reported", [v for v in verdicts if v.half == "reported"]),
    ):
        if chosen:
            print(f"\n{title}, {name}")
            print("\n".join(table_of(chosen)))


def run_all(
    scripts: Iterable[Script], run: Callable[[Script], Verdict], *, jobs: int, title: str
) -> list[Verdict]:
    """Run scripts, a few at a time, and print each as it is done."""
    print(f"\n{title}")
    verdicts = []
    with ThreadPoolExecutor(jobs) as pool:
        for verdict in pool.map(run, scripts):
            print(describe(verdict), flush=True)
            verdicts.append(verdict)
    return verdicts


def _is_wanted(script: Script, patterns: Sequence[str]) -> bool:
    words = (script.name, script.family, script.half)
    return any(fnmatch.fnmatch(word, pattern) for word in words for pattern in patterns)


def main() -> None:
    """Run what was asked for, then print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=["*"],
        metavar="PATTERN",
        help="globs of names, families or halves to run",
    )
    parser.add_argument("--rivals", choices=["none", "faulty", "all"], default="faulty")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write every verdict")
    parser.add_argument("--jobs", type=int, default=1, help="scripts at a time")
    arguments = parser.parse_args()
    chosen = [script for script in load_bank() if _is_wanted(script, arguments.only)]
    results = {"nanscope": run_all(chosen, measure, jobs=arguments.jobs, title="dashboard run")}
    for rival, title in RIVALS.items() if arguments.rivals != "none" else ():
        if rival == "underflow" and find_spec("transformers") is None:
            print(f"\n{title}: transformers is not installed")
            continue
        judged = [
            script
            for script in chosen
            if (script.is_nonfinite and script.family in RIVAL_FAMILIES)
            or (script.is_healthy and arguments.rivals == "all")
        ]
        results[rival] = run_all(
            judged, lambda script, rival=rival: measure_rival(script, rival), jobs=arguments.jobs, title=title
        )
    for tool, verdicts in results.items():
        if verdicts:
            print_tables(RIVALS.get(tool, "nanscope"), verdicts)
    if arguments.json:
        document = {tool: [asdict(verdict) for verdict in verdicts] for tool, verdicts in results.items()}
        arguments.json.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
