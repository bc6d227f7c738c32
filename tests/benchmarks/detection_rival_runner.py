"""Runs an unmodified script with another tool's detector switched on: `TOOL SCRIPT REPORT.json`.

`anomaly` is autograd's anomaly mode, `underflow` transformers' DebugUnderflowOverflow on every model that is
called outermost. The report says whether it fired, at which step and what it named.
"""

from __future__ import annotations

import json
import re
import runpy
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

Report = dict[str, Any]


class StepCounter:
    """Counts the steps of the script's first optimizer."""

    def __init__(self) -> None:
        self.steps = 0
        self._first: Optimizer | None = None
        register_optimizer_step_post_hook(self._count)

    def _count(self, optimizer: Optimizer, *_: Any) -> None:
        if self._first is None:
            self._first = optimizer
        self.steps += optimizer is self._first


def run_in_anomaly_mode(script: Path, report: Report) -> None:
    """Name the line of its "Traceback of forward call that caused the error"."""
    said: list[str] = []
    warnings.simplefilter("always")
    warnings.showwarning = lambda message, *_, **__: said.append(str(message))  # type: ignore[assignment]
    torch.autograd.set_detect_anomaly(True)
    try:
        runpy.run_path(str(script), run_name="__main__")
    except RuntimeError as error:
        if "returned nan values" not in str(error):
            raise
        report |= {"found": True, "message": str(error)}
        traceback = next((text for text in reversed(said) if "Traceback of forward call" in text), "")
        lines = re.findall(rf'File "[^"]*{re.escape(script.name)}", line (\d+)', traceback)
        report["line"] = int(lines[-1]) if lines else None


def run_with_underflow_debugging(script: Path, report: Report) -> None:
    """Name the module of the last frame that it prints."""
    from transformers.debug_utils import DebugUnderflowOverflow

    class Debugger(DebugUnderflowOverflow):
        def dump_saved_frames(self) -> None:
            report.update(_last_frame(self.frames))

    _attach_to_outermost(Debugger)
    try:
        runpy.run_path(str(script), run_name="__main__")
    except ValueError as error:
        if "DebugUnderflowOverflow" not in str(error):
            raise
        report |= {"found": True}


def _attach_to_outermost(make_debugger: Callable[[nn.Module], object]) -> None:
    """Have each module that is called with no other around it debugged from its first call on."""
    call, seen, depth = nn.Module.__call__, set[int](), [0]
    debuggers: list[object] = []

    def attach_and_call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if depth[0] == 0 and id(module) not in seen:
            debuggers.append(make_debugger(module))
            seen.update(id(child) for child in module.modules())
        depth[0] += 1
        try:
            return call(module, *args, **kwargs)
        finally:
            depth[0] -= 1

    nn.Module.__call__ = attach_and_call  # type: ignore[method-assign]


def _last_frame(frames: Any) -> Report:
    """`abs min, abs max, what` rows under the heading `name Class` of the module that was last to finish."""
    heading = [line for frame in frames for line in frame.splitlines() if _is_heading(line)][-1]
    name, _, kind = heading.strip().rpartition(" ")
    return {"module": name, "message": f"inf/nan in {name or 'the root'} ({kind})"}


def _is_heading(line: str) -> bool:
    return bool(line.strip()) and "***" not in line and not re.match(r"\s*(\d|nan|inf|None|not |abs )", line)


def main() -> None:
    """Run the script; the report is written however it ends."""
    tool, script, target = sys.argv[1], Path(sys.argv[2]).resolve(), Path(sys.argv[3])
    report: Report = {"tool": tool, "found": False, "step": 0, "message": "", "module": None, "line": None}
    counter = StepCounter()
    sys.argv = [str(script)]
    try:
        (run_in_anomaly_mode if tool == "anomaly" else run_with_underflow_debugging)(script, report)
    finally:
        if (error := sys.exc_info()[1]) is not None:  # the tool's own, or the script's
            report["problem"] = f"{type(error).__name__}: {error}"
        report["step"] = counter.steps
        target.write_text(json.dumps(report))


if __name__ == "__main__":
    main()
