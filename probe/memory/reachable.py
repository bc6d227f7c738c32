"""What a training script holds, and by which names: a walk from its frames through plain containers.

Used at a leak or at an exhausted memory, on the training thread. Runs none of the user's code: attributes are
read where the interpreter keeps them, containers by the methods of Python's own types. Keeps nothing alive.
"""

from __future__ import annotations

import inspect
import itertools
import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import (
    CodeType,
    FrameType,
    FunctionType,
    GetSetDescriptorType,
    MethodType,
    ModuleType,
    TracebackType,
)
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from ..compat.torch_modules import registries
from ..guard import let_pass
from ..threads.notebook_cells import shown_name

_MAX_ITEMS: Final = 256
"""Of one container; a longer one is looked at from both ends."""
_MAX_OBJECTS: Final = 50_000
_MAX_WAITING: Final = 200_000
_MAX_FRAMES: Final = 64
_MAX_DEPTH: Final = 8
_ATOMS: Final = frozenset(
    {
        *(int, float, str, bytes, bool, complex, type(None), range),
        *(np.ndarray, torch.dtype, torch.device, torch.Size),
    }
)
_FOLDERS: Final = tuple(
    dict.fromkeys(
        str(folder) + os.sep
        for file in (Path(__file__).parent, Path(torch.__file__))
        for folder in (file.parent, file.resolve().parent)
    )
)
"""Of the probe and of torch."""
_IS_FUNCTION: Final = inspect.CO_OPTIMIZED | inspect.CO_NEWLOCALS

Part: TypeAlias = Literal["attribute", "item", "member"]


class Root(NamedTuple):
    """A variable of the script."""

    name: str
    code: CodeType | None
    """Of the function that has it; of the module for a global variable. None where no variable leads to it:
    the name is that of a module or of a class then."""
    is_global: bool
    file: str = ""
    """Where there is no code."""

    @property
    def place(self) -> str:
        """Say where it is, such as ``in train(), train.py``; nothing where no variable leads to it."""
        if self.code is None:
            return ""
        file = shown_name(self.code.co_filename)
        return f"in {file}" if self.is_global else f"in {self.code.co_qualname}(), {file}"


class Access(NamedTuple):
    """How an object is reached from a variable."""

    root: Root
    parent: Access | None = None
    part: Part = "attribute"
    key: Any = None
    """Name of the attribute, key or index of the item; None for a member that has neither."""
    owner: type | None = None
    """Class of the object that has the attribute."""
    depth: int = 0

    def then(self, part: Part, key: Any, owner: type | None = None) -> Access:
        """Return the path of something that this object holds."""
        return Access(self.root, self, part, key, owner, self.depth + 1)

    def text(self) -> str:
        """Return it as one would write it: ``model.head.cache['x']``."""
        if self.parent is None:
            return self.root.name
        before = self.parent.text()
        if self.part == "attribute":
            return f"{before}.{self.key}"
        key = self.key if type(self.key) in (str, int) else None
        return f"{before}[{'...' if key is None else repr(key)[:40]}]"

    def name(self) -> str:
        """Return the last variable or attribute on it, which statements that change the object name."""
        if self.parent is None:
            return self.root.name
        return str(self.key) if self.part == "attribute" else self.parent.name()

    def owners(self) -> list[type]:
        """Return the classes of the objects on the way, innermost first."""
        above = [] if self.parent is None else self.parent.owners()
        return above if self.owner is None else [self.owner, *above]


def user_frames(frame: FrameType | None) -> list[FrameType]:
    """Return the frames from `frame` outwards, innermost first, without the probe's and torch's."""
    frames: list[FrameType] = []
    while frame is not None and len(frames) < _MAX_FRAMES:
        if is_of_user(frame):
            frames.append(frame)
        frame = frame.f_back
    return frames


def is_of_user(frame: FrameType) -> bool:
    """Whether a frame is neither the probe's nor torch's."""
    return not frame.f_code.co_filename.startswith(_FOLDERS)


def function_variables(frame: FrameType) -> dict[str, Any]:
    """Return the variables of a function's frame, or of a module's, which is not kept alive by it."""
    local = frame.f_locals
    found = dict(local)
    _let_go(frame, local)
    return found


def traceback_frames(trace: TracebackType | None) -> list[FrameType]:
    """Return the frames of an exception, innermost first, torch's own included."""
    frames: list[FrameType] = []
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    return frames[::-1][:_MAX_FRAMES]


def kept_by_error(error: BaseException) -> list[Any]:
    """Return what an exception that is over keeps alive: the variables of the functions that it has left.

    Not of those that still run, and not of modules.
    """
    running, frame = set[int](), sys._getframe(1)
    while frame is not None and len(running) < _MAX_FRAMES:
        running.add(id(frame))
        frame = frame.f_back  # type: ignore[assignment]
    kept: list[Any] = [item for item in (error.__cause__, error.__context__) if item is not None]
    for left in traceback_frames(error.__traceback__):
        if id(left) not in running and left.f_code.co_flags & _IS_FUNCTION == _IS_FUNCTION:
            kept += function_variables(left).values()
    return kept


def variables(frames: Iterable[FrameType]) -> list[tuple[Any, Access]]:
    """Return the variables of functions, and the global ones of their modules, each once."""
    found: list[tuple[Any, Access]] = []
    modules: dict[int, tuple[dict[str, Any], CodeType]] = {}
    for frame in frames:
        code = frame.f_code
        if id(frame.f_globals) not in modules:
            modules[id(frame.f_globals)] = (frame.f_globals, code)
        if code.co_flags & _IS_FUNCTION == _IS_FUNCTION:
            local = frame.f_locals
            found += [(value, Access(Root(name, code, False))) for name, value in list(local.items())]
            _let_go(frame, local)
    for names, code in modules.values():
        found += [
            (value, Access(Root(name, code, True)))
            for name, value in list(names.items())
            if not name.startswith("__")
        ]
    return found


def value_at(access: Access, frames: Sequence[FrameType]) -> Any:
    """Return what is now where a way leads to; None where it ends before."""
    parts = []
    while access.parent is not None:
        parts.append((access.part, access.key))
        access = access.parent
    value = _value_of(access.root, frames)
    for part, key in reversed(parts):
        value = _part_of(value, part, key)
    return value


def _value_of(root: Root, frames: Sequence[FrameType]) -> Any:
    for frame in frames:
        if root.is_global and root.code is not None:
            if frame.f_code.co_filename == root.code.co_filename and root.name in frame.f_globals:
                return frame.f_globals[root.name]
        elif frame.f_code is root.code:
            return function_variables(frame).get(root.name)
    return None


def _part_of(value: Any, part: Part, key: Any) -> Any:
    kind = type(value)
    if part == "attribute":
        return next((item for name, item in attributes(value, {}) if name == key), None)
    if part == "item" and issubclass(kind, dict):
        return dict.get(value, key)
    if part == "item" and type(key) is int and issubclass(kind, list | tuple | deque):
        base: Any = next(base for base in (list, tuple, deque) if issubclass(kind, base))
        return base.__getitem__(value, key) if key < base.__len__(value) else None
    return None


def _let_go(frame: FrameType, local: Any) -> None:
    """Empty the copy of the variables that the interpreter keeps with a frame once somebody has read them.

    Up to Python 3.12 it would keep the step's tensors alive until the function ends. One that the script has
    got from `locals()` is its own.
    """
    # Read by us, by the caller, by the frame and by the call itself.
    if type(local) is dict and local is not frame.f_globals and _references(local) <= 4:
        local.clear()


def _references(value: Any) -> int:
    return sys.getrefcount(value) - 1


def walk(starts: Iterable[tuple[Any, Access]], *, deadline_ns: int) -> Iterator[tuple[Any, Access]]:
    """Yield what can be reached, nearest first and each object once, with the path to it.

    Args:
        starts: where from.
        deadline_ns: on the clock of `time.thread_time_ns`; what is further away is left out.
    """
    waiting: deque[tuple[Any, Access]] = deque(starts)
    seen: set[int] = set()
    plain: dict[type, bool] = {}
    while waiting and len(seen) < _MAX_OBJECTS:
        if not len(seen) & 255 and time.thread_time_ns() > deadline_ns:
            return
        value, path = waiting.popleft()
        if type(value) in _ATOMS or id(value) in seen:
            continue
        seen.add(id(value))
        yield value, path
        if path.depth < _MAX_DEPTH and len(waiting) < _MAX_WAITING:
            waiting.extend(_inside(value, path, plain))


def _inside(value: Any, path: Access, plain: dict[type, bool]) -> list[tuple[Any, Access]]:
    """What an object holds directly."""
    kind = type(value)
    if issubclass(kind, type | Tensor | ModuleType):
        return []
    try:
        if issubclass(kind, dict):
            return [(item, path.then("item", key)) for key, item in _ends(dict.items(value))]
        if issubclass(kind, list | tuple | deque):
            return [(item, path.then("item", index)) for index, item in _numbered(value, kind)]
        if issubclass(kind, set | frozenset):
            members = itertools.islice(_members(value), _MAX_ITEMS)
            return [(item, path.then("member", None)) for item in members]
    except RuntimeError as error:  # changed by another thread meanwhile
        let_pass(error)
        return []
    if kind is FunctionType:
        return _of_function(value, path)
    if kind is MethodType:
        return [(value.__self__, path.then("attribute", "__self__"))]
    own = attributes(value, plain)
    return [(item, path.then("attribute", name, kind)) for name, item in own if item is not None]


def _ends(items: Any) -> list[Any]:
    if len(items) <= _MAX_ITEMS:
        return list(items)
    half = _MAX_ITEMS // 2
    return [*itertools.islice(items, half), *itertools.islice(reversed(items), half)]


def _numbered(value: Any, kind: type) -> list[tuple[int, Any]]:
    base = next(base for base in (list, tuple, deque) if issubclass(kind, base))
    count = base.__len__(value)
    half = _MAX_ITEMS // 2
    numbers = range(count) if count <= _MAX_ITEMS else [*range(half), *range(count - half, count)]
    return [(number, base.__getitem__(value, number)) for number in numbers]


def _members(value: Any) -> Iterator[Any]:
    return set.__iter__(value) if isinstance(value, set) else frozenset.__iter__(value)


def _of_function(function: FunctionType, path: Access) -> list[tuple[Any, Access]]:
    """What a closure has kept of the function round it."""
    found = []
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            root = Root(name, function.__code__, False)
            found.append((cell.cell_contents, Access(root, depth=path.depth + 1)))
        except ValueError:  # not assigned yet
            continue
    return found


def attributes(value: Any, plain: dict[type, bool]) -> list[tuple[str, Any]]:
    """Return an instance's attributes, a module's children among them, without running code of its class."""
    kind = type(value)
    if kind not in plain:
        plain[kind] = _has_plain_dict(kind)
    if not plain[kind]:
        return []
    own: dict[str, Any] = object.__getattribute__(value, "__dict__")
    if not issubclass(kind, nn.Module):
        return list(own.items())
    names = [pair for part in registries(own) for pair in dict.items(part)]
    return [*own.items(), *names]


def _has_plain_dict(kind: type) -> bool:
    for base in kind.__mro__:
        if "__dict__" in base.__dict__:
            return type(base.__dict__["__dict__"]) is GetSetDescriptorType
    return False


def is_own_or_torch(file: str) -> bool:
    """Whether a source file is the probe's or torch's."""
    return file.startswith(_FOLDERS)
