"""Whether torch.compile can work here, and how many graphs it has made: what torch does not say in public."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Final

import torch

DEFAULT: Final = "clang++" if sys.platform == "darwin" else "g++"
"""What Inductor takes where `CXX` is not set."""
MISSING: Final = (
    f"torch.compile needs a C++ compiler, and there is none on the PATH ({DEFAULT}, or what CXX names): "
    "apt-get install g++"
)


def cpp_compiler() -> str | None:
    """Path of the C++ compiler that torch.compile takes (`CXX`, else `DEFAULT`); None if there is none."""
    named = os.environ.get("CXX", "").split()
    return shutil.which(named[0] if named else DEFAULT)


def graphs_compiled() -> int | None:
    """Graphs that dynamo has handed to a compiler so far; None where this torch does not count them."""
    utils = sys.modules.get("torch._dynamo.utils")
    counters = getattr(utils, "counters", None)
    if "torch._dynamo" not in sys.modules:
        return 0
    return None if counters is None else int(counters["stats"]["unique_graphs"])


def compiled(model: torch.nn.Module) -> torch.nn.Module:
    """Return `torch.compile(model)`.

    Raises:
        RuntimeError: there is no C++ compiler.
    """
    if cpp_compiler() is None:
        raise RuntimeError(MISSING)
    return torch.compile(model)  # type: ignore[return-value]
