"""What leaks: a container, or a value carried on from step to step, by its name and the line that feeds it.

Used by the leak watch on the training thread, with two looks at the heap some steps apart.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType, FrameType, ModuleType
from typing import Any, Final

from torch import Tensor
from torch.utils.data import Dataset

from .growth_lines import GrowthLine, find_growth
from .heap_looks import Content, Grown, Look, content_of, steps_behind
from .reachable import Access, attributes, is_own_or_torch, user_frames, variables, walk

_LEAST_STEPS: Final = 3
"""Steps whose graphs a container holds before it counts as one that holds every step's."""
_CHAIN_SHARE: Final = 0.6
"""Of the steps between two looks: a value whose graph goes back through so many is carried on."""
_MAX_CARRIED: Final = 8
_MAX_TENSORS: Final = 256
_MAX_UNNAMED: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """Something that holds more at every step. Numbers and texts: keeps nothing alive but code."""

    identity: int
    """Of the container; 0 of a carried value."""
    subject: str
    """``losses``, ``model.head.cache['x']``."""
    place: str
    """``in train(), train.py``; "" where no variable leads to it."""
    kind: str
    """Type of the container or of the value."""
    per_step: float
    """Items a step."""
    length: int
    """Items now."""
    content: Content | None
    """None of a carried value."""
    line: GrowthLine | None
    is_dataset: bool = False
    """Held by a `Dataset`: a cache, which is full after an epoch."""

    @property
    def has_graph(self) -> bool:
        """Whether it keeps the graphs of all steps."""
        return self.content is None or (self.content.has_graph and self.content.steps >= _LEAST_STEPS)

    @property
    def held_bytes(self) -> float:
        """Estimated bytes of tensors and arrays in it."""
        return 0.0 if self.content is None else self.content.bytes_per_item * self.length

    def sentence(self) -> str:
        """Say what grows, where, and what with, in one line."""
        where = f" {self.place}" if self.place else ""
        at = f": {self.line.at()}" if self.line else ""
        if self.content is None:
            return (
                f"`{self.subject}`{where} carries its graph on from step to step, so that every step's is "
                f"kept{at}"
            )
        graph = ", each with the graph that made it" if self.has_graph else ""
        return (
            f"`{self.subject}` ({self.kind}){where} gets {_rate(self.per_step, self.content.what)}{graph}{at}"
        )

    def remedy(self) -> str:
        """Say what to do about it."""
        if self.content is None:
            return "Carry on `.detach()` of it (a sum for the log: `.item()`), or truncate every few steps."
        if self.has_graph:
            return "Keep `.item()` or `.detach()` of it: a tensor that needs gradients keeps its whole graph."
        return "Bound it (`collections.deque(maxlen=...)`), clear it, or write it to disk as it comes."


def _rate(per_step: float, what: str) -> str:
    if per_step >= 0.95:
        count = f"{per_step:.3g}"
        return f"{count} {what} a step" if count == "1" else f"{count} of {what} a step"
    return f"1 {what} in {1 / per_step:.3g} steps"


def find_leaks(
    before: Look, now: Look, grown: Sequence[Grown], frame: FrameType | None, *, limit_ns: int
) -> list[Leak]:
    """Name what has grown between two looks, what keeps graphs first, then by bytes.

    Args:
        before: the earlier look, marked at the end of every step since.
        now: the later one.
        grown: containers that have grown.
        frame: where the training thread is.
        limit_ns: of CPU time: what is not reached within it has no name.
    """
    contents = [(item, content_of(item, before)) for item in grown]
    wanted = {id(item.container): (item, content) for item, content in contents if _matters(content)}
    frames = user_frames(frame)
    files = list(dict.fromkeys(each.f_code.co_filename for each in frames))
    leaks: list[Leak] = []
    carried: list[Access] = []
    tensors = 0
    for value, access in walk(variables(frames), deadline_ns=time.thread_time_ns() + limit_ns):
        if id(value) in wanted:
            leaks.append(_named(*wanted.pop(id(value)), access, now.step - before.step, files))
        elif type(value) is Tensor and tensors < _MAX_TENSORS and value.grad_fn is not None:
            tensors += 1
            if steps_behind(value, before) >= max(_CHAIN_SHARE * (len(before.marks) - 1), _LEAST_STEPS):
                carried.append(access)
    largest = sorted(wanted.values(), key=lambda pair: (-pair[1].steps, -pair[1].bytes_per_item))
    for item, content in largest[:_MAX_UNNAMED]:
        leaks.append(_unnamed(item, content, now.step - before.step, files))
    if not any(leak.has_graph for leak in leaks) and (found := _carried(carried, files)) is not None:
        leaks.append(found)
    return sorted(leaks, key=lambda leak: (not leak.has_graph, -leak.held_bytes))


def _matters(content: Content) -> bool:
    return content.bytes_per_item > 0 or content.has_graph


def _named(item: Grown, content: Content, access: Access, steps: int, files: Sequence[str]) -> Leak:
    owners = access.owners()
    return Leak(
        identity=id(item.container),
        subject=access.text(),
        place=access.root.place,
        kind=type(item.container).__name__,
        per_step=(item.now - item.before) / max(steps, 1),
        length=item.now,
        content=content,
        line=_line(access, files),
        is_dataset=any(issubclass(owner, Dataset) for owner in owners),
    )


def _carried(found: Sequence[Access], files: Sequence[str]) -> Leak | None:
    """Of the values whose graphs go back through all steps, the one that is made of its own last value."""
    if not found:
        return None
    lines = [(access, _line(access, files, carried=True)) for access in found[:_MAX_CARRIED]]
    # What outlives a step by itself: an attribute, rather than a variable that came out of it.
    lines.sort(key=lambda pair: (pair[1] is None, not pair[0].owners()))
    access, line = lines[0]
    return Leak(
        identity=0,
        subject=access.text(),
        place=access.root.place,
        kind="Tensor",
        per_step=1.0,
        length=1,
        content=None,
        line=line,
    )


def _line(access: Access, files: Sequence[str], *, carried: bool = False) -> GrowthLine | None:
    """The statement that feeds it: in its function, its classes' files, then the files of the stack."""
    name, root = access.name(), access.root
    key = access.key if access.part == "item" and type(access.key) in (str, int) else None
    if access.parent is None or not access.owners():
        file = root.code.co_filename
        within = None if root.is_global else root.code.co_firstlineno
        if (line := find_growth(name, file, within=within, carried=carried, key=key)) is not None:
            return line
        candidates = [file, *files]
    else:
        candidates = [*_class_files(access.owners()), *files]
    return _first_line(name, candidates, carried=carried, key=key)


def _first_line(
    name: str, files: Sequence[str], *, carried: bool = False, key: str | int | None = None
) -> GrowthLine | None:
    for file in dict.fromkeys(files):
        if is_own_or_torch(file):
            continue
        if (line := find_growth(name, file, carried=carried, key=key)) is not None:
            return line
    return None


def _class_files(owners: Sequence[type]) -> list[str]:
    found = []
    for owner in owners:
        file = getattr(sys.modules.get(str(owner.__module__)), "__file__", None)
        if isinstance(file, str):
            found.append(file)
    return found


def _unnamed(item: Grown, content: Content, steps: int, files: Sequence[str]) -> Leak:
    """A container that no variable of the script leads to: named by the object or module that holds it."""
    subject, owner = _holder(item.container)
    name = subject.rpartition(".")[2]
    line = _first_line(name, [*_class_files([owner] if owner else []), *files]) if subject else None
    return Leak(
        identity=id(item.container),
        subject=subject or f"a {type(item.container).__name__}",
        place="",
        kind=type(item.container).__name__,
        per_step=(item.now - item.before) / max(steps, 1),
        length=item.now,
        content=content,
        line=line,
        is_dataset=owner is not None and issubclass(owner, Dataset),
    )


def _holder(container: Any) -> tuple[str, type | None]:
    """``Meter.history`` and the class, or ``package.module.name`` and None; "" where neither holds it."""
    plain: dict[type, bool] = {}
    for holder in gc.get_referrers(container):
        kind = type(holder)
        if kind is not dict:
            if issubclass(kind, list | tuple | FrameType | CodeType):
                continue
            for name, value in attributes(holder, plain):
                if value is container:
                    return f"{kind.__name__}.{name}", kind
            continue
        key = next((key for key, value in dict.items(holder) if value is container), None)
        if type(key) is not str:
            continue
        for owner in gc.get_referrers(holder):
            if type(owner) is ModuleType and vars(owner) is holder:
                return f"{owner.__name__}.{key}", None
            if any(value is container for _, value in attributes(owner, plain)):
                return f"{type(owner).__name__}.{key}", type(owner)
    return "", None
