"""``python -m probe.forensics.bundle FOLDER --entry module:function``: replays a bundle, prints the result.

What `dashboard replay` becomes. Exit codes: 0 the step was reproduced, 1 it was not, 2 the bundle, the entry
or its model is not one that can be used.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import msgspec

from ...delivery.visible_text import visible_text
from ...errors import BundleError
from ...threads.user_lines import at_line, at_op_line
from ...wire import Origin, StackFrame
from ...wire.event_json import jsonable
from ...wire.progress import Progress
from .batches import batches_of, table
from .entry import build_model
from .reproduce import Reproduction, read_bundle, reproduce
from .schema import Bundle

_MOST_INPUTS: Final = 64


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay, print, and return the exit code."""
    options = _parser().parse_args(arguments)
    # As for a script that is started here.
    sys.path.insert(0, str(Path.cwd()))
    try:
        with Progress("Reading the bundle") as progress:
            bundle = read_bundle(options.bundle)
            progress.advance(label="Running the step again")
            done = reproduce(bundle, options.bundle, lambda: build_model(options.entry))
            progress.advance(label="Comparing the inputs")
            inputs = _inputs(bundle, options.bundle)
    except KeyboardInterrupt:
        return 130
    except BundleError as error:
        sys.stderr.write(f"dashboard: {visible_text(str(error))}\n")
        return 2
    if options.json:
        sys.stdout.write(json.dumps(_as_json(bundle, done, inputs), allow_nan=False) + "\n")
    else:
        # A bundle may come from anywhere, and a terminal would obey its control characters.
        sys.stdout.writelines(f"{visible_text(line)}\n" for line in _lines(bundle, done, inputs))
    return 0 if done.is_reproduced else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dashboard replay", description="Replay the step of a bundle.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--entry", required=True)
    parser.add_argument("--json", action="store_true")
    return parser


def _inputs(bundle: Bundle, folder: Path) -> list[str]:
    """A line for each input of the newest steps; none where they name parts of the model."""
    try:
        return list(table(batches_of(bundle, folder)))[-_MOST_INPUTS:]
    except BundleError:
        return []


def _lines(bundle: Bundle, done: Reproduction, inputs: Sequence[str]) -> Iterator[str]:
    event, replay = bundle.event, done.replay
    raised = f"raised {replay.reason}{at_line(replay.forward)}" if done.has_raised else ""
    yield f"{event.kind} at step {event.step} of {event.run}"
    yield f"  in the run: {event.message.splitlines()[0] if event.message else event.kind}"
    yield f"  replayed:   {raised or _verdict(replay.origin, replay.forward, replay.reason)}"
    yield from (f"  {operand}" for operand in replay.operands)
    if replay.origin is not None and replay.origin.phase == "loss" and not done.has_loss:
        yield "  Only the model runs again; what its outputs went into is as the run saw it."
    yield f"Fidelity: {_fidelity(done)}"
    if replay.fidelity not in ("exact", "confirmed"):
        yield f"  {replay.reason}"
    if not done.has_raised:
        yield from _comparison(done)
    yield from (f"  {note}" for note in done.notes)
    yield from (f"  not in the bundle: {part}" for part in bundle.left_out)
    if inputs:
        yield "Inputs, the step's own last:"
        yield from (f"  {line}" for line in inputs)
    for title, frames in (("Forward", replay.forward), ("Backward", replay.backward)):
        yield from _stack(title, frames)
    yield from _stack("Training loop, in the run", event.stacks.training_loop)


def _comparison(done: Reproduction) -> Iterator[str]:
    outputs = done.outputs
    yield f"  outputs: {_compared(outputs.identical, outputs.different, outputs.unknown)}" + (
        f"; largest difference {outputs.largest_difference:.3g}" if outputs.different else ""
    )
    if done.has_loss:
        yield "  loss: bit for bit as in the run, by the script's own lines"
    if done.gradients:
        yield f"  gradients: {done.gradients}, {_gradients(done.replay.fidelity)}"
    else:
        yield "  gradients: none in the bundle"


def _verdict(origin: Origin | None, forward: Sequence[StackFrame], reason: str) -> str:
    if origin is None:
        return f"no origin: {reason}"
    if origin.phase == "input":
        return f"began in the input of {origin.module or 'the root module'}{at_op_line(forward)}"
    where = "outside the model" if origin.module is None else f"in {origin.module or 'the root module'}"
    return f"began {where}{at_op_line(forward)}, {origin.phase} ({origin.op})"


def _fidelity(done: Reproduction) -> str:
    if done.is_exact:
        return f"exact: every output{' and every gradient' * bool(done.gradients)} is the same bit for bit"
    if not done.is_reproduced:
        return f"{done.replay.fidelity}: this was not the step"
    if done.has_raised:
        return "confirmed: the forward raised the same exception"
    if done.replay.fidelity == "exact":
        return "exact: every gradient is the same bit for bit"
    return "confirmed: the same elements are NaN and infinite, or all agree up to one factor"


def _compared(identical: int, different: int, unknown: int) -> str:
    counts = (
        (identical, "bit for bit as in the run"),
        (different, "different"),
        (unknown, "not in the bundle"),
    )
    return ", ".join(f"{count} {words}" for count, words in counts if count) or "none"


def _gradients(fidelity: str) -> str:
    if fidelity == "exact":
        return "all bit for bit as in the run"
    return "confirmed" if fidelity == "confirmed" else "not those of the run"


def _stack(title: str, frames: Sequence[StackFrame]) -> Iterator[str]:
    if not frames:
        return
    yield f"{title} (innermost frame last):"
    for frame in frames:
        yield f"  {frame.file}:{frame.line} in {frame.function}"
        lines = frame.code.splitlines()
        position = frame.line - frame.code_first_line
        if 0 <= position < len(lines):
            yield f"    {lines[position].strip()}"


def _as_json(bundle: Bundle, done: Reproduction, inputs: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = jsonable(
        {
            "event": bundle.event.id,
            "run": bundle.event.run,
            "step": bundle.event.step,
            "reproduced": done.is_reproduced,
            "exact": done.is_exact,
            "fidelity": done.replay.fidelity,
            "reason": done.replay.reason,
            "origin": msgspec.to_builtins(done.replay.origin),
            "recorded_origin": msgspec.to_builtins(bundle.event.origin),
            "operands": done.replay.operands,
            "propagated_to": done.replay.propagated_to,
            "forward": msgspec.to_builtins(done.replay.forward),
            "backward": msgspec.to_builtins(done.replay.backward),
            "outputs": asdict(done.outputs),
            "gradients": done.gradients,
            "loss": done.has_loss,
            "inputs": inputs,
            "notes": done.notes,
        }
    )
    return found


if __name__ == "__main__":
    sys.exit(main())
