"""In whose call an exception was raised: the module and the op; whether its line is only where it arrived.

Reads the traceback and the source, runs nothing and asks no device.
"""

from __future__ import annotations

import ast
import linecache
import shlex
import sys
from types import CodeType, TracebackType
from typing import Any, Final

from torch import nn

from ..memory.reachable import function_variables
from ..threads.whereabouts import is_installed
from ..wire import Origin

_LATE: Final = (
    "might be asynchronously reported",
    "CUDA error",
    "CUDA driver error",
    "Triton Error [CUDA]",
    "device-side assert",
    "CUBLAS_STATUS_",
    "CUDNN_STATUS_",
    "cuDNN error",
    "cusolver error",
    "cuFFT error",
    "HIP error",
)
OPERATORS: Final = {
    ast.MatMult: "matmul",
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.FloorDiv: "floor_divide",
    ast.Pow: "pow",
    ast.Mod: "remainder",
}


def arrives_late(error: BaseException) -> bool:
    """Whether a device reports it: its kernels run later than the lines that launched them."""
    return isinstance(error, RuntimeError) and any(part in str(error) for part in _LATE)


def blocking_command(error: BaseException) -> str:
    """The command of this script, with which a device reports an error at the line that made it."""
    setting = "AMD_SERIALIZE_KERNEL=3" if "HIP error" in str(error) else "CUDA_LAUNCH_BLOCKING=1"
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if main is None:
        return f"{setting} python {shlex.join(sys.argv)}"
    module = main.name.removesuffix(".__main__")
    return f"{setting} python -m {shlex.join([module, *sys.argv[1:]])}"


def failed_call(trace: TracebackType | None, model: nn.Module | None) -> Origin | None:
    """Return the innermost of the model's modules whose forward was left, and the op that was called there.

    Args:
        trace: of the exception.
        model: the naming root.

    Returns:
        None where no forward of the model's was running.
    """
    names = {} if model is None else {id(module): name for name, module in model.named_modules()}
    module: str | None = None
    op = ""
    while trace is not None:
        frame = trace.tb_frame
        code = frame.f_code
        # Whatever it is called: `self` is only a habit.
        held = function_variables(frame).get(code.co_varnames[0]) if code.co_argcount else None
        if code.co_name == "forward" and id(held) in names:
            module, op = names[id(held)], ""
        # The call of the script's own, or of torch's own module: what is inside of it is detail.
        is_own = not is_installed(code.co_filename)
        if (is_own or not op) and (called := operation_at(code, trace.tb_lasti)):
            op = called
        trace = trace.tb_next
    return None if module is None or not op else Origin(phase="forward", op=op, module=module)


def operation_at(code: CodeType, offset: int) -> str:
    """The call, operator or assertion of the source that an instruction belongs to."""
    positions = list(code.co_positions())
    first, last, begin, end = positions[offset // 2] if offset // 2 < len(positions) else (None,) * 4
    if first is None or last is None or begin is None or end is None:
        return ""
    lines = linecache.getlines(code.co_filename)[first - 1 : last]
    try:
        expression = ast.parse(f"({_part(lines, begin, end)})", mode="eval").body
    except (SyntaxError, ValueError):
        return "assert" if lines and lines[0].lstrip().startswith("assert") else ""
    return _named(expression)


def _part(lines: list[str], begin: int, end: int) -> str:
    """The text from a column of the first line to one of the last; columns count bytes."""
    if not lines:
        return ""
    raw = [line.encode() for line in lines]
    raw[-1] = raw[-1][:end]
    raw[0] = raw[0][begin:]
    return b"".join(raw).decode(errors="replace")


def _named(expression: Any) -> str:
    if isinstance(expression, ast.Call):
        called = expression.func
        if isinstance(called, ast.Attribute):
            return ast.unparse(called) if isinstance(called.value, ast.Name) else called.attr
        return called.id if isinstance(called, ast.Name) else ""
    return OPERATORS.get(type(expression.op), "") if isinstance(expression, ast.BinOp) else ""
