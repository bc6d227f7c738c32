"""Compiles the kernel with the C compiler at hand; at build time only, never while a training runs.

Used by the build hook (`build_kernel.py`), which loads this file by its path: it imports nothing of ours.
In a checkout that was not installed, ``python probe/measure/kernels/compile.py`` puts the library in place.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
LIBRARY_NAME: Final = "_kernel.so"
_SOURCES: Final = (
    *("kernel.c", "passes.h", "sampled.h", "histograms.h", "gather.h", "calls.h", "call_columns.h"),
    *("call_methods.h", "errors.h"),
    *(
        "hot.h",
        "hot_state.h",
        "hot_finish.h",
        "hot_forward.h",
        "hot_backward.h",
        "hot_gradients.h",
        "hot_ring.h",
        "hot_updates.h",
        "hot_late.h",
        "hot_phases.h",
    ),
)
# Without errno a square root is one instruction; -ffast-math would take NaN and Inf for impossible.
_FLAGS: Final = ("-std=gnu11", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-math-errno", "-w")
_TIMEOUT_S: Final = 120


def source_id(folder: Path = FOLDER) -> str:
    """Short digest of the C sources; a library is used only with the sources that it was built from."""
    joined = b"\0".join((folder / name).read_bytes() for name in _SOURCES)
    return hashlib.sha256(joined).hexdigest()[:16]


def find_compiler() -> list[str] | None:
    """Return the command of a C compiler: the environment's CC, else the first of cc, gcc and clang."""
    named = shlex.split(os.environ.get("CC", ""))
    if named:
        return named if shutil.which(named[0]) else None
    return next(([name] for name in ("cc", "gcc", "clang") if shutil.which(name)), None)


def compile_kernel(target: Path, *, extra: Sequence[str] = ()) -> str | None:
    """Compile the library to `target`; return why that was not possible, None when it was.

    Args:
        target: the library.
        extra: further options of the compiler, for the tests.
    """
    compiler = find_compiler()
    if compiler is None:
        return "no C compiler was found"
    # A running process may have the old library mapped: the new one takes its place in one step.
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        built = Path(folder) / LIBRARY_NAME
        source = f'-DSOURCE_ID="{source_id()}"'
        command = [*compiler, *_FLAGS, *extra, source, str(FOLDER / _SOURCES[0]), "-o", str(built), "-lm"]
        try:
            finished = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{compiler[0]} could not run: {error}"
        if finished.returncode:
            return f"{compiler[0]} failed: {finished.stderr.decode(errors='replace')[-500:]}"
        built.replace(target)
    return None


if __name__ == "__main__":
    sys.exit(compile_kernel(FOLDER / LIBRARY_NAME))
