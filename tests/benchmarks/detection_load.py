"""Prints which events of the fault bank depend on the machine's load; the list has to become empty.

    python tests/benchmarks/detection_load.py [--only PATTERN ...] [--busy 3] [--json FILE]

Each of 20 scripts, whose faults are judged on sampled steps, runs once alone and once beside busy loops.
Compared are events at warning or above: kind, subject and first step. Exit code 1: some differ.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))

from bank import Script, load_bank
from detection_runs import run_recorded

CHOSEN = (
    *("all_zero_initialisation", "clamped_output", "clipped_to_nothing", "dead_from_the_start"),
    *("deep_sigmoid_net", "detached_in_the_middle", "gate_stuck_at_zero", "images_went_blank"),
    *("inputs_not_normalised", "labels_out_of_range", "learning_rate_thousandfold", "memorises_a_tiny_set"),
    *("momentum_above_one", "output_relu_dies", "rounding_in_the_path", "saturated_tanh"),
    *("scheduler_decays_to_nothing", "softmax_over_the_batch", "weight_decay_typo", "zero_grad_forgotten"),
)
BUSY_LOOP = "while True: pass"
Place = tuple[str, str, int]
"""Kind, subject and first step of an event."""


def places_of(events: list[dict[str, Any]]) -> Counter[Place]:
    """Count the events that a user has to look at."""
    chosen = [event for event in events if event["severity"] != "info"]
    return Counter((event["kind"], event["subject"], event["step"]) for event in chosen)


def difference(alone: Counter[Place], loaded: Counter[Place]) -> list[str]:
    """Return a line for each event that only one of two runs has, by kind, subject and step."""
    lines = [("only alone", place) for place in (alone - loaded).elements()]
    lines += [("only beside busy loops", place) for place in (loaded - alone).elements()]
    ordered = sorted(lines, key=lambda line: (line[1], line[0]))
    return [
        f"{where}: {kind} of {subject or 'the root'!r} at step {step}"
        for where, (kind, subject, step) in ordered
    ]


@contextlib.contextmanager
def busy(loops: int) -> Iterator[None]:
    """Keep processors busy with so many endless loops."""
    started = [subprocess.Popen([sys.executable, "-c", BUSY_LOOP]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def compare(script: Script, *, loops: int) -> list[str]:
    """Run a script alone and beside busy loops; return what differs."""
    limit_s = script.limit_s * (loops + 1)
    alone = run_recorded(script.path, limit_s=limit_s)
    with busy(loops):
        loaded = run_recorded(script.path, limit_s=limit_s)
    lines = difference(places_of(alone.events), places_of(loaded.events))
    if alone.steps != loaded.steps:
        lines.append(f"{alone.steps} steps were recorded alone, {loaded.steps} beside busy loops")
    return lines


def main() -> int:
    """Compare what was asked for and print what differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="globs of script names")
    parser.add_argument("--busy", type=int, default=3, help="busy loops beside the second run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write what differs, by script")
    arguments = parser.parse_args()
    found: dict[str, list[str]] = {}
    for script in load_bank():
        if script.name in CHOSEN and any(fnmatch.fnmatch(script.name, one) for one in arguments.only):
            found[script.name] = lines = compare(script, loops=arguments.busy)
            print(f"{script.name:34s} {'the same' if not lines else f'{len(lines)} differ'}")
            print("".join(f"    {line}\n" for line in lines), end="", flush=True)
    differ = sum(map(bool, found.values()))
    print(f"\nEvents depend on the load in {differ} of {len(found)} scripts")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
