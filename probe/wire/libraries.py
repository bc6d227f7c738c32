"""Which installed packages are libraries by name: of a file's path, on whichever machine. Pure.

The replay judges what these do by the name of the function; what any other package does it watches, as it
does with the script's own functions. The page shows the line of the innermost function that is not theirs.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import Final

from .records import StackFrame

FRAMEWORKS: Final = frozenset(
    "torchvision torchaudio transformers lightning pytorch_lightning lightning_fabric lightning_utilities "
    "torchmetrics accelerate timm diffusers peft scipy jaxtyping".split()
)
"""Whose models, metrics and losses are commonly run in a step."""
LIBRARIES: Final = FRAMEWORKS | frozenset("torch numpy einops typing_extensions probe _pytest".split())
"""Pytest's import hook runs wherever a test imports; it changes nothing of a training."""
_PACKAGE: Final = re.compile(r".*[/\\](?:site|dist)-packages[/\\]([^/\\]+)")
_PYTHON: Final = re.compile(r"^<frozen|[/\\]lib(?:64)?[/\\]python\d")
_INSTALLED: Final = re.compile(r"^<|[/\\](?:site|dist)-packages[/\\]|[/\\]lib(?:64)?[/\\]python\d")
_KEPT_FILES: Final = 1024


def package_of(file: str) -> str:
    """Return the folder or module right below the innermost `site-packages`; "" of a file in none."""
    found = _PACKAGE.match(file)
    return found[1].removesuffix(".py") if found else ""


def is_installed_there(file: str) -> bool:
    """Whether a path is that of Python itself or of an installed package; also of code without a file."""
    return bool(_INSTALLED.search(file))


@functools.lru_cache(_KEPT_FILES)
def is_of_library(file: str) -> bool:
    """Whether a file is Python's own or one of a known library; not of another installed package."""
    package = package_of(file)
    return package in LIBRARIES if package else bool(_PYTHON.search(file))


def first_own(frames: Iterable[StackFrame], *, is_of_op: bool = False) -> StackFrame | None:
    """Return the first frame of the user's own code; else the first of a package that is no known library.

    Args:
        frames: innermost first.
        is_of_op: the innermost line that ran an operation is wanted, in whose package it may be.
    """
    kept = [frame for frame in frames if not (frame.file.startswith("<") or is_of_library(frame.file))]
    own = kept if is_of_op else [frame for frame in kept if not is_installed_there(frame.file)]
    return next(iter(own or kept), None)
