"""Where a thread that does not train on stands: in the loop that trains, at other work, or through with it.

Lists of lines in, a place out; reads source files for the extent of loops. Called by the recorder's thread
and by the helper, only once a training stands still. No torch: the helper has none.
"""

from __future__ import annotations

import ast
import functools
import linecache
import os
import re
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

from ..compat.torch_frames import COMPILERS, DATALOADER, OF_WORKERS
from ..guard import let_pass
from ..wire.libraries import LIBRARIES, is_of_library, package_of
from .notebook_cells import shown_name

Place: TypeAlias = Literal["step", "other_work", "away"]
"""`step`: in the loop that trains. `other_work`: where scripts may take long without training: between two
rounds of that loop, saving, evaluating, waiting for the first batch or at a barrier. `away`: through with
training, compiling, or in the hands of a person."""


class Line(NamedTuple):
    """One frame of a stack."""

    file: str
    line: int
    function: str
    """Bare name."""


Loop: TypeAlias = tuple[int, int]
"""First and last line, both of it."""

_PROBE: Final = f"{Path(__file__).resolve().parents[1]}/"
_SELF: Final = (_PROBE, f"{Path(_PROBE).with_name('dashboard')}/")


def _with_links_followed(folders: Iterable[str]) -> tuple[str, ...]:
    return tuple({f"{path}/" for folder in folders for path in (folder, Path(folder).resolve())})


def _holds_packages(folder: str) -> bool:
    """Whether pip has put packages there (`pip install --target`); a project has none of these."""
    try:
        with os.scandir(folder) as entries:
            return any(entry.name.endswith(".dist-info") for entry in entries)
    except OSError as error:
        let_pass(error)
        return False


_PYTHON: Final = _with_links_followed(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
_OF_PACKAGES: Final = _with_links_followed(
    [
        *(sysconfig.get_path(name) for name in ("purelib", "platlib")),
        *site.getsitepackages(),
        site.getusersitepackages(),
        # On a cluster packages come by PYTHONPATH, in a stack of environments by .pth files.
        *(folder for folder in sys.path if folder and _holds_packages(folder)),
    ]
)
# Among the scripts are the commands that pip writes for packages.
_INSTALLED: Final = (*_PYTHON, *_OF_PACKAGES, *_with_links_followed([sysconfig.get_path("scripts")]))
_FILES_KNOWN: Final = 1 << 15
"""More than a large program has: a replay asks for the file of each module, always in the same order."""
_PACKAGES: Final = ("/site-packages/", "/dist-packages/")
"""Folders of packages by name, whichever environment's they are."""
_PERSON: Final = re.compile(
    r"(/pdb|/bdb|/code|/pydevd[^/]*|/debugpy/.*|/core/debugger|/pudb/.*|/tkinter/__init__)\.py$"
)
"""Debuggers, consoles and windows: a thread that stands there waits for a person."""
_ASKING: Final = re.compile(r"(?<![\w.])(input|getpass)\s*\(")
_OTHER_WORK: Final = re.compile(
    r"(^|_)(save|saves|saving|checkpoint|checkpointing|ckpt|upload|download"
    r"|eval|evals|evaluate|evaluation|valid|validate|validation|test|infer|inference|generate|sample|predict"
    r"|barrier|plot|log_images|metric|metrics)(_|$)"
)
_SAVERS: Final = ("torch/serialization.py", "torch/distributed/checkpoint/", "safetensors/", "/pickle.py")
_NO_CHECKPOINT_FILE: Final = "torch/utils/checkpoint.py"


def is_installed(file: str) -> bool:
    """Whether a file belongs to Python, to an installed package or to this one, not to the script."""
    return file.startswith(("<frozen", *_INSTALLED, *_SELF)) or any(name in file for name in _PACKAGES)


@functools.lru_cache(_FILES_KNOWN)
def is_library(file: str) -> bool:
    """Whether a file is Python's own, the probe's, or of a library that is known by its name.

    Any other installed package may be the program that trains: its functions are judged by what they do.
    """
    if file.startswith(("<frozen", _PROBE)):
        return True
    package = _package_in(file)
    return package in LIBRARIES if package else file.startswith(_PYTHON) or is_of_library(file)


def installed_package(file: str) -> str:
    """Return the folder of the installed package that a file is in; "" of the script's and of libraries'."""
    if not is_installed(file) or is_library(file):
        return ""
    package = _package_in(file)
    return file[: file.rindex(f"/{package}") + 1 + len(package)] if package else file


def _package_in(file: str) -> str:
    """The name of an installed package, by where its folder lies; "" of a file that is in none."""
    if package := package_of(file):
        return package
    root = next((root for root in _OF_PACKAGES if file.startswith(root)), "")
    return file[len(root) :].partition("/")[0].removesuffix(".py") if root else ""


def is_compiling(stack: Iterable[Line]) -> bool:
    """Whether a thread with this stack compiles, or waits for a compiler."""
    return any(line.file.endswith(COMPILERS) for line in stack)


def is_with_a_person(stack: Sequence[Line]) -> bool:
    """Whether a thread waits for what somebody types or clicks."""
    # Not what is outside of the script: an editor that starts it in its debugger does so for every run.
    inner = stack[_first_of_the_script(stack) :]
    if any(_PERSON.search(line.file) and is_installed(line.file) for line in inner):
        return True
    return bool(stack and _ASKING.search(linecache.getline(stack[-1].file, stack[-1].line)))


def place_of(stack: Sequence[Line], mark: Sequence[Line]) -> Place:
    """Say where a thread stands, by where it stood while it trained.

    Args:
        stack: of the thread now, outermost first.
        mark: of the same thread at the end of a backward.
    """
    if is_with_a_person(stack) or is_compiling(stack):
        return "away"
    first = _first_of_the_script(mark)
    loops = [
        (depth, loop)
        for depth in range(first, len(mark))
        if not _is_below_the_loop(mark[depth].file)
        for loop in _loops_round(mark[depth])
    ]
    around = _common_depth(stack, mark)
    if around < 0 or (loops and not any(_is_inside(stack, around, *place) for place in loops)):
        return "away"
    if not loops or not _is_inside(stack, around, *loops[-1]) or _is_other_work(stack[around + 1 :]):
        return "other_work"
    return "step"


def _is_below_the_loop(file: str) -> bool:
    """Whether a file is torch's or ours: their loops are inside of a step (L-BFGS, several listeners)."""
    return file.startswith(_PROBE) or ("/torch/" in file and is_installed(file))


def _first_of_the_script(stack: Sequence[Line]) -> int:
    """Where the script begins: what is outside of it (a notebook's kernel, a launcher) loops for ever."""
    for is_outside in (is_installed, is_library):
        for index, line in enumerate(stack):
            if not is_outside(line.file):
                return index
    return 0


def _common_depth(stack: Sequence[Line], mark: Sequence[Line]) -> int:
    """Index of the innermost frame that both stacks have; -1 when they have none. Its line may differ."""
    depth = -1
    for now, then in zip(stack, mark, strict=False):
        if (now.file, now.function) != (then.file, then.function):
            break
        depth += 1
        if now.line != then.line:
            break
    return depth


def _is_inside(stack: Sequence[Line], around: int, depth: int, loop: Loop) -> bool:
    """Whether the thread is still inside a loop that it trained in, `depth` frames from the outermost."""
    return depth <= around and loop[0] <= stack[depth].line <= loop[1]


def _is_other_work(inner: Sequence[Line]) -> bool:
    """Whether calls that are not part of the training step say by their names that they may take long."""
    return any(map(_may_take_long, inner))


def _may_take_long(line: Line) -> bool:
    if line.file.endswith(DATALOADER):
        return line.function in OF_WORKERS
    if line.file.endswith(_NO_CHECKPOINT_FILE):
        return False
    return bool(_OTHER_WORK.search(line.function.lower())) or any(part in line.file for part in _SAVERS)


def _loops_round(line: Line) -> list[Loop]:
    """Loops of a frame's own function round its line, outermost first; none where there is no source."""
    try:
        tree = ast.parse("".join(linecache.getlines(line.file)))
    except (SyntaxError, ValueError, RecursionError):
        return []
    return list(_loops_in(tree, line.line))


def _loops_in(node: ast.AST, line: int) -> Iterator[Loop]:
    found: list[Loop] = []
    scope: ast.AST | None = node
    while scope is not None:
        scope = next((child for child in ast.iter_child_nodes(scope) if _has(child, line)), None)
        if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            found.clear()
        elif isinstance(scope, ast.For | ast.AsyncFor | ast.While):
            last = scope.body[-1].end_lineno or scope.lineno
            if line <= last:
                found.append((scope.lineno, last))
        elif isinstance(scope, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            found.append((scope.lineno, scope.end_lineno or scope.lineno))
    yield from found


def _has(node: ast.AST, line: int) -> bool:
    first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    return first is not None and last is not None and first <= line <= last


# -- what the thread is at, in words


def describe(stack: Sequence[Line]) -> str:
    """Say what a thread is at: "waiting for the next batch of the DataLoader at train.py:88"."""
    where = at_line(stack)
    is_inner = True
    for line in reversed(stack):
        if line.file.endswith("torch/distributed/distributed_c10d.py"):
            return f"waiting for the other ranks in a collective ({line.function}){where}"
        if line.file.endswith(DATALOADER):
            return f"waiting for the next batch of the DataLoader{where}"
        is_inner = is_inner and is_installed(line.file)
        if is_inner and line.file.endswith("torch/autograd/graph.py"):
            return f"in backward{where}"
        if is_inner and "torch/optim/" in line.file:
            return f"in the optimizer's update{where}"
    return where.strip() or "where no Python is"


def at_line(stack: Sequence[Line]) -> str:
    """Write " at train.py:88", the innermost line of the script; nothing without frames."""
    line = innermost(stack)
    return "" if line is None else f" at {shown_name(line.file)}:{line.line}"


def waiting_place(stack: Sequence[Line]) -> Line | None:
    """Return the line that what a thread is at is known by: of the script, outside of a DataLoader.

    A slow dataset is one matter, whichever of its lines is met.
    """
    outside = next((depth for depth, line in enumerate(stack) if line.file.endswith(DATALOADER)), len(stack))
    return innermost(stack[:outside]) or innermost(stack)


def innermost(stack: Sequence[Line]) -> Line | None:
    """Return the script's innermost line; an installed program's, else of all, where none is the script's."""
    for is_outside in (is_installed, is_library):
        if own := [line for line in stack if not is_outside(line.file)]:
            return own[-1]
    return stack[-1] if stack else None
