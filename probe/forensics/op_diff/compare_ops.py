"""``python -m probe.forensics.op_diff.compare_ops ONE OTHER --entry module:function [--entry ...]``.

What `dashboard diff --op` becomes. Each bundle is replayed in a process of its own, whose settings are those
of its run. Exit codes: 0 nothing differs, 1 something does, 2 a bundle or an entry cannot be used.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from safetensors.torch import load_file
from torch import Tensor

from ...errors import BundleError
from ...wire.event_json import jsonable
from ...wire.progress import Progress
from . import traced_step
from .op_difference import Candidates, Finding, candidates, finding, sentences
from .trace_records import StepTrace

_SIDES = ("first", "second")


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print, and return the exit code."""
    parser = argparse.ArgumentParser(prog="dashboard diff --op")
    parser.add_argument("bundles", type=Path, nargs=2)
    parser.add_argument("--entry", action="append", required=True)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    entries = options.entry * 2 if len(options.entry) == 1 else options.entry
    try:
        found = compare_bundles(options.bundles, entries)
    except KeyboardInterrupt:
        return 130
    except BundleError as error:
        sys.stderr.write(f"dashboard: {_printable(str(error))}\n")
        return 2
    if options.json:
        sys.stdout.write(json.dumps(_as_json(found, options.bundles), allow_nan=False) + "\n")
    else:
        sys.stdout.writelines(f"{_printable(line)}\n" for line in sentences(found))
    return 0 if found.is_equal else 1


def compare_bundles(bundles: Sequence[Path], entries: Sequence[str]) -> Finding:
    """Replay the step of two bundles and compare it op by op.

    Raises:
        BundleError: one cannot be replayed, or its replay is not the step of its run.
    """
    with Progress("Running both steps again") as progress, ExitStack() as stack:
        sides = [
            stack.enter_context(_traced(bundle, entry, which))
            for bundle, entry, which in zip(bundles, entries, _SIDES, strict=True)
        ]
        one, other = (side.trace() for side in sides)
        if one.step != other.step:
            raise BundleError(
                f"the bundles are of different steps, {one.step} and {other.step}, and cannot be compared"
            )
        progress.advance(label="Comparing what differs")
        seen = candidates(one, other)
        mine, theirs = (side.values(seen, place) for place, side in enumerate(sides))
        return finding(one, other, seen, (mine, theirs))


class _Side:
    """One bundle in its process."""

    def __init__(self, process: subprocess.Popen[str], into: Path, which: str, entry: str) -> None:
        self._process, self._into, self._which, self._entry = process, into, which, entry

    def trace(self) -> StepTrace:
        """Wait for the trace.

        Raises:
            BundleError: there is none, or it is not the run's step.
        """
        self._expect("ready")
        try:
            trace = msgspec.json.decode((self._into / traced_step.TRACE).read_bytes(), type=StepTrace)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BundleError(f"the trace of the {self._which} run cannot be read: {error}") from error
        if trace.difference:
            raise BundleError(
                f"the step of the {self._which} run is not reproduced with --entry {self._entry}: "
                f"{trace.difference}; name the code that it ran with, the second run's with a second --entry"
            )
        return trace

    def values(self, seen: Candidates, place: int) -> Mapping[str, Tensor]:
        """Have the values of what differs made once more."""
        keys = seen.keys(place)
        if not keys:
            return {}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(keys) + "\n")
        self._process.stdin.flush()
        self._expect("kept")
        return load_file(self._into / traced_step.VALUES)

    def _expect(self, word: str) -> None:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline().strip()
        if answer == word:
            return
        if answer.startswith("error "):
            raise BundleError(f"the {self._which} run: {answer.removeprefix('error ')}")
        raise BundleError(f"the replay of the {self._which} run has ended; its output is above")


@contextmanager
def _traced(bundle: Path, entry: str, which: str) -> Iterator[_Side]:
    """Start the replay of one bundle; its process ends with the block."""
    with TemporaryDirectory() as into:
        # -P: the current folder comes behind our own imports, as `dashboard replay` has it.
        code = (
            f"import sys; sys.path.insert(0, {str(Path(__file__).parents[3])!r}); import probe; "
            "del sys.path[0]; from probe.forensics.op_diff.traced_step import main; "
            "sys.exit(main(sys.argv[1:]))"
        )
        command = [sys.executable, "-P", "-c", code, str(bundle), "--entry", entry, "--into", into]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            yield _Side(process, Path(into), which, entry)
        finally:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.close()
            process.stdout.close()
            process.terminate()
            process.wait()


def _as_json(found: Finding, bundles: Sequence[Path]) -> object:
    return jsonable(
        {
            "v": 1,
            "equal": found.is_equal,
            "step": found.step,
            "runs": found.runs,
            "bundles": [str(bundle) for bundle in bundles],
            "ops": found.ops,
            "equal_ops": found.equal_ops,
            "first": msgspec.to_builtins(found.first),
            "beyond_rounding": msgspec.to_builtins(found.beyond or found.first)
            if found.beyond or (found.first and _is_beyond(found))
            else None,
            "started_from": [
                {"name": name, **msgspec.structs.asdict(distance)} for name, distance in found.values
            ],
            "started_from_count": found.values_differ,
            "in_one_alone": found.alone,
            "notes": found.notes,
        }
    )


def _is_beyond(found: Finding) -> bool:
    distance = found.first.distance if found.first else None
    return distance is None or distance.is_beyond_rounding


def _printable(text: str) -> str:
    """Without control characters, which a terminal would obey."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


if __name__ == "__main__":
    sys.exit(main())
