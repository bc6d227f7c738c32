"""Compares what two commits record of the same programs.

    python tests/golden.py OLD [--loops mlp gan ...] [--setups] [--bank 20]

OLD is checked out beside this tree, and both record the loops of `tests/loops`, all set-ups of `tests/setups`
and scripts of the fault bank drawn by a seed. Equal have to be weights, to the bit, and of what was recorded
steps, losses, norms, rates, stages, phases and events with their origins: neither clock readings nor what is
measured at some steps only. `EXCUSED` names the differences that are errors of the old commit. Loops whose
package is not installed are left out, and that is said. Exit code 1: something differs.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent / "integration"))
sys.path.insert(0, str(Path(__file__).parent / "probe"))
sys.path.insert(0, str(Path(__file__).parent / "faults"))
sys.path.insert(0, str(Path(__file__).parent / "loops"))

from bank import load_bank
from journal_differences import between, numbers, said
from journals import Journal, read_journal
from run_loop import NAMES, NEEDED

from probe.delivery.journal.run_folders import list_runs

HERE = Path(__file__).parent
ROOT = HERE.parent
EXCUSED: dict[str, str] = {}
"""Differences that are errors of the old commit: a pattern of `program: line`, and why. At most 20."""
EVERY_STEP = ("loss", "grad_", "lr", "samples", "updates", "micro_steps", "forwards", "missing", "stage")
"""What is recorded at each step, whatever the machine's load."""
PHASES = ("forward_s", "backward_s", "optimizer_s", "data_wait_s")
LIMIT_S = 900


@dataclass(frozen=True)
class Program:
    """Something that records, in a folder of its own.

    Attributes:
        name: of it, in what is printed.
        command: arguments of Python; ``{tree}`` is the checkout, ``{folder}`` the folder.
        prints_weights: whether its last line is the hash of its weights.
    """

    name: str
    command: tuple[str, ...]
    prints_weights: bool = False


def loops(names: list[str]) -> Iterator[Program]:
    """Those of `tests/loops` that can run here."""
    for name in names:
        if find_spec(NEEDED.get(name, "torch")) is None:
            print(f"{name}: left out, {NEEDED[name]} is not installed")
        else:
            command = (str(HERE / "loops" / "run_loop.py"), name, "--spool", "{folder}")
            yield Program(name, command, prints_weights=True)


def setups() -> Iterator[Program]:
    """A file of set-ups each: what its tests leave in their folders is compared."""
    for path in sorted((HERE / "setups").glob("test_*.py")):
        options = ("-n0", "-q", "--basetemp={folder}/tests", "-o", "tmp_path_retention_policy=all")
        yield Program(path.stem, ("-m", "pytest", *options, f"{{tree}}/tests/setups/{path.name}"))


def bank(count: int) -> Iterator[Program]:
    """Some scripts of the fault bank."""
    scripts = random.Random(7).sample(sorted(load_bank(), key=lambda script: script.name), count)
    for script in scripts:
        command = ("-m", "dashboard", "run", "--quiet", "--spool", "{folder}", str(script.path))
        yield Program(f"bank {script.name}", command)


def record(program: Program, tree: Path, folder: Path) -> str:
    """Run a program with the packages of a checkout; return the hash of its weights, if it prints one."""
    folder.mkdir(parents=True)
    command = [word.format(tree=tree, folder=folder) for word in program.command]
    silent = {"NANSCOPE_QUIET": "1", "NANSCOPE_CONNECT": "tcp://127.0.0.1:9", "HF_HUB_OFFLINE": "1"}
    environment = os.environ | silent | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    with (folder / "said").open("w") as file:
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [sys.executable, *command],
                cwd=folder,
                env=environment,
                stdout=file,
                stderr=file,
                timeout=LIMIT_S,
                check=False,
            )
    if not program.prints_weights:
        return ""
    found = re.findall(r'^\{"weights": "(\w+)"\}$', (folder / "said").read_text(), re.MULTILINE)
    return found[-1] if found else f"none: {(folder / 'said').read_text()[-300:]}"


def journals_of(folder: Path) -> dict[str, Journal]:
    """What was recorded, by the place and, at one place, in the order of the beginnings."""
    spools = sorted({path.parent.parent for path in folder.rglob("run.json")})
    found = {}
    for spool in spools:
        read = [read_journal(run) for run in list_runs(spool)]
        for at, journal in enumerate(sorted(read, key=lambda one: one.start.time)):
            found[f"{spool.relative_to(folder)} {at}"] = journal
    return found


def essence(journal: Journal) -> dict[str, Any]:
    """What has to be equal of a run: the numbers of every step, and its events."""
    steps = {
        place: {name: value for name, value in known.items() if name.startswith(EVERY_STEP)}
        for place, known in numbers(journal.frames).items()
    }
    for frame in journal.frames:
        if frame.columns and (frame.step, 0) in steps:
            steps[frame.step, 0]["phases"] = sorted(set(PHASES) & frame.scalars.keys())
    events = [said(event) for event in journal.latest_events if event.severity != "info"]
    kept = ("kind", "severity", "step", "subject", "origin", "count")
    return {
        "steps": steps,
        "events": [{name: event.get(name) for name in kept} for event in events],
        "end": None if journal.end is None else (journal.end.step, journal.end.outcome),
    }


def compare(program: Program, old: Path, folder: Path) -> list[str]:
    """Record a program twice; return what differs, a line each."""
    weights = [record(program, tree, folder / name) for name, tree in (("old", old), ("new", ROOT))]
    found = [] if weights[0] == weights[1] else [f"weights: {weights[1]}, not {weights[0]}"]
    before, after = journals_of(folder / "old"), journals_of(folder / "new")
    for place in sorted(before.keys() | after.keys()):
        if place not in after or place not in before:
            found.append(f"{place}: is recorded by the {'old' if place in before else 'new'} commit only")
        else:
            found += between(place, essence(before[place]), essence(after[place]))
    if not before:
        found.append("nothing was recorded")
    return [line for line in found if not is_excused(f"{program.name}: {line}")]


def is_excused(line: str) -> bool:
    """Whether a difference is a known error of the old commit."""
    return any(fnmatch.fnmatch(line, pattern) for pattern in EXCUSED)


@contextlib.contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A checkout with a compiled kernel."""
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        tree = Path(folder) / "tree"
        subprocess.run(
            ["git", "-C", str(ROOT), "worktree", "add", "-q", "--detach", str(tree), commit], check=True
        )
        try:
            compiler = tree / "probe" / "measure" / "kernels" / "compile.py"
            subprocess.run([sys.executable, str(compiler)], cwd=tree, check=True, stdout=subprocess.DEVNULL)
            yield tree
        finally:
            subprocess.run(["git", "-C", str(ROOT), "worktree", "remove", "--force", str(tree)], check=True)


def main() -> int:
    """Compare what was asked for, and print what differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", help="a commit")
    parser.add_argument("--loops", nargs="*", choices=NAMES, default=NAMES)
    parser.add_argument("--setups", action="store_true")
    parser.add_argument("--bank", type=int, default=0, metavar="SCRIPTS")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write what differs, by program")
    options = parser.parse_args()
    programs = [*loops(options.loops), *(setups() if options.setups else ()), *bank(options.bank)]
    differ: dict[str, list[str]] = {}
    with (
        checked_out(options.old) as tree,
        tempfile.TemporaryDirectory(prefix="golden-", ignore_cleanup_errors=True) as scratch,
    ):
        for at, program in enumerate(programs):
            lines = compare(program, tree, Path(scratch) / str(at))
            print(f"{program.name:40s} {'equal' if not lines else f'{len(lines)} differ'}", flush=True)
            print("".join(f"    {line}\n" for line in lines[:20]), end="", flush=True)
            if lines:
                differ[program.name] = lines
    print(f"\n{len(programs) - len(differ)} of {len(programs)} programs are recorded as before")
    if options.json:
        options.json.write_text(json.dumps(differ, indent=1))
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
