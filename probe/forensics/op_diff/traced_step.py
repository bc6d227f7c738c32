"""The process that replays one bundle for `compare_ops`: its trace first, then the values that are asked for.

    python -m probe.forensics.op_diff.traced_step FOLDER --entry module:function --into FOLDER

Answers in lines on stdout: `ready` once `trace.json` is there, then `kept` for each line of keys read from
stdin, once `values.safetensors` holds them; `error ...` in place of either. What the model's code prints goes
to stderr.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final, TextIO

import msgspec
from safetensors.torch import save_file
from torch import Tensor

from ...attach.layout import clean_name
from ...errors import BundleError, ReplayError
from ...threads.unnoticed import unnoticed
from ..bundle.entry import build_model
from ..bundle.environment import differences
from ..bundle.reproduce import LIMIT_S, BundledStep, open_step, read_bundle
from ..capture import RootCapture
from ..passes import OUTERMOST, StepReplay
from .op_trace import FROM_THE_LOSS, OpTrace, value_of
from .trace_records import StepTrace, TracedOp, Value

TRACE: Final = "trace.json"
VALUES: Final = "values.safetensors"


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay and answer until stdin ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--entry", required=True)
    parser.add_argument("--into", type=Path, required=True)
    options = parser.parse_args(arguments)
    answers = _own_stdout()
    # As for a script that is started here.
    sys.path.insert(0, str(Path.cwd()))
    try:
        bundle = read_bundle(options.bundle)
        step, _, _ = open_step(bundle, options.bundle, lambda: build_model(options.entry))
        tracer = _Tracer(step)
        trace = tracer.run(())
        told = StepTrace(
            run=bundle.event.run,
            step=bundle.event.step,
            values=trace.values,
            ops=trace.ops,
            difference=trace.difference,
            notes=(*step.notes, *differences(bundle.environment)),
        )
        (options.into / TRACE).write_bytes(msgspec.json.encode(told))
        answers.write("ready\n")
        answers.flush()
        for line in sys.stdin:
            tracer.run(msgspec.json.decode(line, type=list[str]))
            save_file(tracer.kept, options.into / VALUES)
            answers.write("kept\n")
            answers.flush()
    except (BundleError, ReplayError) as error:
        answers.write(f"error {' '.join(str(error).split())}\n")
        answers.flush()
        return 2
    return 0


def _own_stdout() -> TextIO:
    """Keep stdout for the answers: whatever the model's code prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


class _Traced(msgspec.Struct, frozen=True):
    values: tuple[Value, ...]
    ops: tuple[TracedOp, ...]
    difference: str


class _Tracer:
    """Replays one step as often as it is asked to."""

    def __init__(self, step: BundledStep) -> None:
        self._step = step
        self.kept: dict[str, Tensor] = {}
        """What was asked for last."""

    def run(self, keep: Collection[str]) -> _Traced:
        """Replay the step.

        Args:
            keep: keys whose values are put into `kept`.

        Raises:
            ReplayError: it cannot be made again.
        """
        step = self._step
        replay = StepReplay(
            step.naming_root,
            step.captures,
            parameters=step.parameters,
            deadline_s=time.monotonic() + LIMIT_S,
        )
        modes: list[OpTrace] = []

        def make_mode(call: int, writable: list[Tensor]) -> OpTrace:
            modes.append(
                OpTrace(
                    call=call,
                    first=sum(len(mode.ops) for mode in modes),
                    keep=keep,
                    deadline_s=time.monotonic() + LIMIT_S,
                    writable=writable,
                    tracker=replay.tracker,
                    outermost=OUTERMOST,
                )
            )
            return modes[-1]

        values = self._values(keep)
        with unnoticed():
            replay.observe(make_mode)
        for mode in modes:
            self.kept |= mode.kept
        self.kept = {key: tensor.cpu().contiguous() for key, tensor in self.kept.items()}
        ops = tuple(op for mode in modes for op in mode.ops)
        return _Traced(values=values, ops=ops, difference=replay.difference)

    def _values(self, keep: Collection[str]) -> tuple[Value, ...]:
        """What the step starts from; of those in `keep` the values too."""
        self.kept = {}
        found: list[Value] = []
        for name, tensor in self._named():
            key = f"value {len(found)}"
            found.append(value_of(tensor, key=key, name=name))
            if key in keep:
                self.kept[key] = tensor.detach().clone()
        return tuple(found)

    def _named(self) -> list[tuple[str, Tensor]]:
        root = self._step.naming_root
        named: list[tuple[str, Tensor]]
        named = [(f"parameter {clean_name(name)}", value) for name, value in root.named_parameters()]
        named += [(f"buffer {clean_name(name)}", value) for name, value in root.named_buffers()]
        for call, capture in enumerate(self._step.captures):
            named += _values_of_call(capture, f" of call {call}" if len(self._step.captures) > 1 else "")
        return named


def _values_of_call(capture: RootCapture, which: str) -> list[tuple[str, Tensor]]:
    named: list[tuple[str, Tensor]] = []
    if capture.arguments is not None:
        _, _, tensors = capture.arguments.again()
        named += [(f"argument {name}{which}", tensor) for name, tensor in tensors.items()]
    if capture.state is not None:
        named.append((f"random state{which}", capture.state.rng_cpu))
    for back in capture.passes:
        named += [
            (f"gradient {FROM_THE_LOSS} (output {position}){which}", tensor)
            for position, tensor in back.by_output.items()
        ]
    return named


if __name__ == "__main__":
    sys.exit(main())
