"""`dashboard diff --op`: finds bundles of two runs at one step, and becomes the process that compares ops.

The replays need torch; this process has none. Bundles are looked for in the runs' folders of the spool.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec

import probe
from probe.errors import BundleError
from probe.wire.bundle_format import check_format, read_description

from ..errors import DashboardError
from ..runs import RunFolder, resolve_run

FOLDER: Final = "bundles"
HOW: Final = (
    '`run.save_bundle()` keeps the next step, `run.watchpoint("step == 100", "bundle")` a step of your choice'
)
# A script's own `probe.py` must not be taken for ours: the folder is on the path for this import alone.
_COMPARE: Final = """
import sys
sys.path.insert(0, sys.argv[1])
import probe
del sys.path[0]
from probe.forensics.op_diff.compare_ops import main
sys.exit(main(sys.argv[2:]))
"""


class _Event(msgspec.Struct, frozen=True):
    step: int


class _Run(msgspec.Struct, frozen=True):
    rank: int = 0


class _Head(msgspec.Struct, frozen=True):
    """Of `bundle.json` what says which step it is."""

    event: _Event
    run: _Run


def compare_ops(
    first: str, second: str, *, entries: Sequence[str], rank: int, step: int | None, as_json: bool
) -> None:
    """Replace this process by the comparison; does not return.

    Args:
        first: RUN, or the folder of a bundle.
        second: likewise.
        entries: ``module:function`` that builds the model: one for both, or one each.
        rank: whose bundles are meant.
        step: which step; None takes the first that both have a bundle of.

    Raises:
        DashboardError: there is no such pair of bundles, no entry, or no torch here.
    """
    if not 1 <= len(entries) <= 2:
        raise DashboardError(
            "diff --op runs the models again: give --entry module:function, which builds the model, and a "
            "second --entry where the second run's model is built by other code"
        )
    if find_spec("torch") is None:
        raise DashboardError("diff --op runs the models with PyTorch, which is not installed here.")
    pair = choose_bundles(bundles_of(first, rank=rank), bundles_of(second, rank=rank), step=step)
    ours = str(Path(probe.__file__).parent.parent)
    options = [word for entry in entries for word in ("--entry", entry)] + ["--json"] * as_json
    # What the entry's module imports or does must not be recorded as a run.
    environment = {**os.environ, "NANSCOPE_OFF": "1"}
    sys.stdout.flush()
    command = [sys.executable, "-P", "-c", _COMPARE, ours, *map(str, pair), *options]
    os.execve(sys.executable, command, environment)


def bundles_of(argument: str, *, rank: int) -> dict[int, Path]:
    """Return the bundles that an argument means, by step; of several of one step the first.

    Raises:
        DashboardError: it names no run, or one without a bundle.
    """
    folder = Path(argument).expanduser()
    if (folder / "bundle.json").is_file():
        return {_head(folder).event.step: folder}
    run = resolve_run(argument)
    found: dict[int, Path] = {}
    unreadable = ""
    for path in sorted(run.path.glob(f"{FOLDER}/*/bundle.json")):
        try:
            head = _head(path.parent)
        except DashboardError as error:
            unreadable = f" {error}."
            continue
        if head.run.rank == rank:
            found.setdefault(head.event.step, path.parent)
    if not found:
        raise DashboardError(f"The run {_called(run)} has no bundle of rank {rank}. {HOW}.{unreadable}")
    return found


def choose_bundles(one: dict[int, Path], other: dict[int, Path], *, step: int | None) -> tuple[Path, Path]:
    """Return the bundles of one step.

    Raises:
        DashboardError: no step has one of each run, or not the one asked for.
    """
    common = sorted(set(one) & set(other))
    steps = f"the first has step {_listed(one)}, the second {_listed(other)}"
    if not common:
        raise DashboardError(f"The runs have no bundles of the same step: {steps}. {HOW}.")
    if step is not None and step not in common:
        raise DashboardError(f"There are not two bundles of step {step}: {steps}.")
    chosen = common[0] if step is None else step
    return one[chosen], other[chosen]


def _head(folder: Path) -> _Head:
    try:
        data = read_description(folder)
        check_format(data)
        return msgspec.json.decode(data, type=_Head)
    except (BundleError, ValueError, OSError, msgspec.MsgspecError, RecursionError) as error:
        raise DashboardError(f"The bundle {folder} cannot be read: {error}") from error


def _called(run: RunFolder) -> str:
    return f"{run.run} ({run.name})" if run.name else run.run


def _listed(bundles: dict[int, Path]) -> str:
    return ", ".join(map(str, sorted(bundles)))
