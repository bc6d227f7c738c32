"""What torch calls its own functions and files, for who reads a stack: loads no torch (the helper reads too).

A name that torch has changed is not found in a stack, and its frame counts as any other.
"""

from __future__ import annotations

from typing import Any, Final

CALL_PLUMBING: Final = frozenset({"__call__", "_call_impl", "_wrapped_call_impl", "inner"})
"""Functions of `torch/nn/modules/module.py` between a call of a module and its forward."""
DATALOADER: Final = "torch/utils/data/dataloader.py"
OF_WORKERS: Final = frozenset({"__init__", "__iter__", "_get_iterator", "_reset", "_shutdown_workers"})
"""What a DataLoader does to start its workers and to end them, which takes them seconds."""
COMPILERS: Final = (
    "torch/_dynamo/convert_frame.py",
    "torch/_inductor/compile_fx.py",
    "torch/_inductor/async_compile.py",
    "torch/_inductor/codecache.py",
    "torch/utils/cpp_extension.py",
    "triton/compiler/compiler.py",
    "triton/runtime/autotuner.py",
    "triton/runtime/build.py",
)
"""Files whose functions compile, or wait for a compiler."""


def has_given_nothing(iterator: Any) -> bool:
    """Whether a DataLoader's iterator has yet to give its first batch; False where torch does not say."""
    return getattr(iterator, "_num_yielded", None) == 0
