"""What leaks: a container, or a value carried on from step to step, by its name and the line that feeds it.

Used by the leak watch on the training thread, with what two looks at the heap some steps apart have found.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from typing import Final, TypeAlias

import msgspec
from msgspec.structs import replace
from torch.utils.data import Dataset

from .bounded import is_asked, is_bounded
from .growth_lines import GrowthLine, Search, search_growth
from .heap_looks import Content
from .object_watch import ASKED_BYTES, LEAST_BYTES_PER_STEP, LEAST_PER_STEP
from .reachable import Access, is_own_or_torch

LEAST_STEPS: Final = 3
"""Steps whose graphs a container holds before it counts as one that holds every step's."""
_MAX_CARRIED: Final = 8
_MAX_UNNAMED: Final = 3
_NAMED_LINES: Final = 4
"""Leaks that an event names."""


class Leak(msgspec.Struct, frozen=True, kw_only=True):
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
    is_group: bool = False
    """Several containers in another one, together."""

    @property
    def has_graph(self) -> bool:
        """Whether it keeps the graphs of all steps."""
        return self.content is None or (self.content.has_graph and self.content.steps >= LEAST_STEPS)

    @property
    def held_bytes(self) -> float:
        """Estimated bytes of tensors and arrays in it."""
        return 0.0 if self.content is None else self.content.bytes_per_item * self.length

    @property
    def is_plain(self) -> bool:
        """Whether it holds Python objects, and neither tensors nor arrays."""
        return self.content is not None and not self.has_graph and not self.content.bytes_per_item

    @property
    def plain_bytes(self) -> float:
        """Estimated bytes of plain Python objects in it."""
        return 0.0 if self.content is None else self.content.plain.num_bytes * self.length

    @property
    def objects_per_step(self) -> float:
        """Plain Python objects that it gets in a step."""
        return 0.0 if self.content is None else self.content.plain.objects * self.per_step

    @property
    def bytes_per_step(self) -> float:
        """Estimated bytes that it gets in a step: of tensors where there are some, else of plain objects."""
        if self.content is None:
            return 0.0
        return (self.content.bytes_per_item or self.content.plain.num_bytes) * self.per_step

    def sentence(self) -> str:
        """Say what grows, where, and what with, in one line."""
        where = f" {self.place}" if self.place else ""
        at = f": {self.line.at()}" if self.line else ""
        if self.content is None:
            return (
                f"`{self.subject}`{where} carries its graph on from step to step, so that the graphs of all "
                f"steps are kept{at}"
            )
        graph = ", each with the graph that made it" if self.has_graph else ""
        if self.is_plain:
            graph = f", about {self._plain_rate()} per step"
        kind = f"{'an' if self.kind[:1].lower() in 'aeiou' else 'a'} {self.kind}{where}"
        return f"`{self.subject}` ({kind}) grows by {_rate(self.per_step, self.content.what)}{graph}{at}"

    def _plain_rate(self) -> str:
        if self.objects_per_step >= LEAST_PER_STEP:
            return f"{self.objects_per_step:,.0f} objects"
        return f"{self.bytes_per_step / 1024:,.0f} KiB of text or bytes"

    def remedy(self) -> str:
        """Say what to do about it."""
        if self.content is None:
            return "Carry on `.detach()` of it (a sum for the log: `.item()`), or truncate every few steps."
        if self.content.are_errors:
            return (
                "An exception keeps its traceback, and that all variables of the functions it has left: keep "
                "`repr(error)`, or `error.with_traceback(None)`."
            )
        if self.has_graph:
            return "Keep `.item()` or `.detach()` of it: a tensor that needs gradients keeps its whole graph."
        if self.is_plain:
            return (
                "Keep sums or means of it, bound it (`deque(maxlen=...)`), or write it to disk as it comes."
            )
        return "Bound it (`collections.deque(maxlen=...)`), clear it, or write it to disk as it comes."


def _rate(per_step: float, what: str) -> str:
    if per_step < 0.95:
        return f"one {what} every {1 / per_step:.2g} steps"
    count = float(f"{per_step:.2g}") if per_step >= 10 else round(per_step)
    return f"about one {what} per step" if count == 1 else f"about {count:,.0f} {what}s per step"


class Suspect(msgspec.Struct, frozen=True):
    """A container with tensors that has grown between two looks. Keeps nothing alive but code and classes."""

    identity: int
    kind: str
    access: Access
    content: Content
    grown: int
    """Items that it has got."""
    steps: int
    """In so many steps."""
    length: int
    is_group: bool = False
    """Several containers in another one, together: the way to it ends at any of them."""

    @property
    def is_named(self) -> bool:
        """Whether a variable leads to it."""
        return self.access.root.code is not None

    def leak(self, line: GrowthLine | None = None) -> Leak:
        """Return what is said of it."""
        return Leak(
            identity=self.identity,
            subject=self.access.text(),
            place=self.access.root.place,
            kind=self.kind,
            per_step=self.grown / max(self.steps, 1),
            length=self.length,
            content=self.content,
            line=line,
            is_dataset=any(issubclass(owner, Dataset) for owner in self.access.owners()),
            is_group=self.is_group,
        )


LeakSearch: TypeAlias = Generator[None, None, list[Leak]]


def find_leaks(
    suspects: Sequence[Suspect],
    carried: Sequence[Access],
    files: Sequence[str],
    *,
    is_certain: Callable[[Leak], bool],
) -> LeakSearch:
    """Return the leaks that are certain, what keeps graphs first, then by bytes; the worst with their lines.

    Yields where it can go on in another step.

    Args:
        suspects: what has grown.
        carried: values whose graphs go back through all steps.
        files: of the frames of the training loop.
        is_certain: whether it is a leak, whatever comes.
    """
    pairs = [(suspect, suspect.leak()) for suspect in _worst(suspects)]
    has_graph = any(leak.has_graph for _, leak in pairs)
    pairs.sort(key=lambda pair: (not pair[1].has_graph, -pair[1].held_bytes, -pair[1].plain_bytes))
    pairs = [pair for pair in pairs if is_certain(pair[1])]
    found = []
    for suspect, leak in pairs[:_NAMED_LINES]:
        line = yield from _line(suspect.access, files)
        if leak.is_plain and line is not None and _is_meant(leak, suspect.access.name(), line.file):
            continue
        found.append(replace(leak, line=line))
    found += [leak for _, leak in pairs[_NAMED_LINES:] if not leak.is_plain]
    if not has_graph:
        value = yield from _carried(carried, files)
        found = [value, *found] if value is not None and is_certain(value) else found
    return found


def _is_meant(leak: Leak, name: str, file: str) -> bool:
    """Whether the script bounds it, or asks it like a cache that may be full soon."""
    return is_bounded(name, file) or (leak.plain_bytes < ASKED_BYTES and is_asked(name, file))


def _worst(suspects: Sequence[Suspect]) -> list[Suspect]:
    """All that variables lead to, and of the others those that keep most."""
    unnamed = [suspect for suspect in suspects if not suspect.is_named]
    unnamed.sort(key=lambda suspect: (-suspect.content.steps, -suspect.content.bytes_per_item))
    return [*(suspect for suspect in suspects if suspect.is_named), *unnamed[:_MAX_UNNAMED]]


def matters(content: Content, per_step: float) -> bool:
    """Whether the new items of a container keep tensors, arrays or graphs, are many objects or large ones.

    Args:
        content: of the items.
        per_step: items that come in a step.
    """
    plain = content.plain
    are_many = plain.objects * per_step >= LEAST_PER_STEP
    is_much = are_many or plain.num_bytes * per_step >= LEAST_BYTES_PER_STEP
    return content.bytes_per_item > 0 or content.has_graph or is_much


def _carried(found: Sequence[Access], files: Sequence[str]) -> Generator[None, None, Leak | None]:
    """Of the values whose graphs go back through all steps, the one that is made of its own last value."""
    lines = []
    for access in found[:_MAX_CARRIED]:
        line = yield from _line(access, files, carried=True)
        lines.append((access, line))
    if not lines:
        return None
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


def _line(access: Access, files: Sequence[str], *, carried: bool = False) -> Search:
    """The statement that feeds it: in its function, its classes' files, then the files of the stack."""
    name, root = access.name(), access.root
    if access.parent is None and root.code is None:
        return None
    key = access.key if access.part == "item" and type(access.key) in (str, int) else None
    candidates = [*_class_files(access.owners()), *files]
    if root.code is not None and (access.parent is None or not access.owners()):
        file = root.code.co_filename
        within = None if root.is_global else root.code.co_firstlineno
        line = yield from search_growth(name, file, within=within, carried=carried, key=key)
        if line is not None:
            return line
        candidates = [file, *files]
    elif root.code is None and root.is_global:
        candidates = [root.file, *candidates]
    for file in dict.fromkeys(candidates):
        if not file or is_own_or_torch(file):
            continue
        line = yield from search_growth(name, file, carried=carried, key=key)
        if line is not None:
            return line
    return None


def _class_files(owners: Sequence[type]) -> list[str]:
    found = []
    for owner in owners:
        file = getattr(sys.modules.get(str(owner.__module__)), "__file__", None)
        if isinstance(file, str):
            found.append(file)
    return found
