"""All objects that a training script can reach, visited in slices of a step: containers and tensors.

Used by the leak watch on the training thread. Asking the garbage collector for all objects takes 10 to 30 ms
in one piece; what is reached from the script's variables is a hundredth of them. Runs no code of the script's
classes. Between two slices it keeps identities and weak references: nothing lives longer for it.
"""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections import deque
from collections.abc import Sequence, Sized
from types import CodeType, FrameType, ModuleType
from typing import Any, Final, Protocol

from torch import Tensor

from ..threads.whereabouts import is_installed
from .heap_kinds import FEW, LIBRARIES, OWN, Kind
from .reachable import Access, user_frames, variables
from .time_slices import TimeSlice

_MAX_PUT_OFF: Final = 64
"""Times in a row that what an object holds is put off to the next slice before it is dropped."""
_LEAST_MODULE: Final = 8
"""Names that every module has."""
_TOGETHER: Final = 256
"""Objects found between two looks at the clock; about 1 us each."""
_KNOWN_SHARE: Final = 16
"""So many that are known already take as long as one that is not."""


class Visitor(Protocol):
    """What is told of everything that the walk comes to, each once."""

    def container(self, value: Any, length: int) -> None:
        """A list, dict, set or deque that is not empty. Must not be kept."""

    def tensor(self, value: Tensor) -> None:
        """A tensor. Must not be kept."""


class HeapWalk:
    """One walk, nearest first: the variables of the script, its modules, then (if wide) all others.

    Args:
        is_wide: also enter the modules of libraries.

    Attributes:
        parents: by the identity of what was found, that of what holds it; 0: a root.
        accesses: by the identity of a root, the variable that it is the value of.
        modules: by the identity of a module's dict, its name.
        is_done: nothing is left.
        is_whole: nothing had to be dropped, so far.
        put_off: what was put off to another slice, and how often in a row.
        roots_again: identities of roots that are to be entered again.
        data: identities of what long containers hold.
        opened: by the identity of a container, its length when it was first entered. What it gets between two
            slices is not walked: that may be as much as a slice has time for, and the walk would not end.
        taken: by the identity of a container, how many of its items were come to: of these, only what was put
            off is found in a later slice ...
        again: ... which is this, by identity.
        waiting: what is to be entered, nearest first.
        kinds: types of libraries, which are there for good.
    """

    def __init__(self, *, is_wide: bool = False) -> None:
        self.parents: dict[int, int] = {}
        self.accesses: dict[int, Access] = {}
        self.modules: dict[int, str] = {}
        self.is_done, self.is_whole = False, True
        self.put_off = 0, 0
        self.roots_again: set[int] = set()
        self.data: set[int] = set()
        self.opened: dict[int, int] = {}
        self.taken: dict[int, int] = {}
        self.again: set[int] = set()
        self.waiting: deque[weakref.ref[Any]] = deque()
        self.kinds: dict[type, Kind] = {}
        self._is_begun = False
        self._is_wide = is_wide
        self._names: deque[str] = deque()

    def tables(self) -> list[Sized]:
        """Return what it keeps; most of its memory is theirs."""
        known: list[Sized] = [self.parents, self.accesses, self.modules, self.data, self.opened, self.taken]
        later: list[Sized] = [self.roots_again, self.again, self.waiting, self._names]
        return [*known, *later, self.kinds]

    def go_on(self, frame: FrameType | None, time_slice: TimeSlice, visitor: Visitor) -> None:
        """Visit what is left until the slice is over.

        Args:
            frame: where the training thread is: its variables are the first roots.
            time_slice: how long.
            visitor: is told of what is found.
        """
        work = _Slice(self, visitor, time_slice)
        if not self._is_begun:
            self._is_begun = True
            self._names = deque(module_names(is_wide=self._is_wide))
            self._find_roots(work, frame)
        elif self.roots_again:
            again, self.roots_again = self.roots_again, set()
            work.enter_again([root for identity, root in self.live_roots(frame).items() if identity in again])
        work.run()

    def _find_roots(self, work: _Slice, frame: FrameType | None) -> None:
        for value, access in variables(_all_frames(frame)):
            if id(value) not in self.parents:
                self.parents[id(value)] = 0
                self.accesses[id(value)] = access
                work.find(value)

    def next_module(self) -> dict[str, Any] | None:
        """Return the names of the next module; None when there is none."""
        while self._names:
            name = self._names.popleft()
            module = sys.modules.get(name)
            space = module.__dict__ if type(module) is ModuleType else None
            if space is not None and id(space) not in self.parents:
                self.parents[id(space)] = 0
                self.modules[id(space)] = name
                return space
        return None

    def live_roots(self, frame: FrameType | None) -> dict[int, Any]:
        """Return those of the roots that are there now, by their identities. Not to be kept."""
        found = {id(value): value for value, _ in variables(_all_frames(frame)) if id(value) in self.accesses}
        spaces = ((identity, sys.modules.get(name)) for identity, name in self.modules.items())
        return found | {
            identity: module.__dict__ for identity, module in spaces if type(module) is ModuleType
        }

    def chain(self, identity: int) -> list[int]:
        """Return the identities on the way from a root to what was found, the root first."""
        found = [identity]
        while (parent := self.parents.get(found[-1], 0)) and len(found) < len(self.parents):
            found.append(parent)
        return found[::-1]


class _Slice:
    """What a walk does in one slice. Holds objects: lives no longer than the slice."""

    def __init__(self, walk: HeapWalk, visitor: Visitor, time_slice: TimeSlice) -> None:
        self._walk, self._visitor, self._time = walk, visitor, time_slice
        self._kinds = dict(walk.kinds)
        self._anchors: deque[Any] = deque()
        """What a weak reference can be kept to until another slice."""
        self._plain: deque[Any] = deque()
        """Lists, dicts and tuples, to which there is none: entered at once."""
        self._anchor: Any = None
        """What was entered last of what a weak reference leads to."""
        # What one slice is too short for is entered to the bottom piece by piece: the next gets further.
        self._is_deep = walk.put_off[1] > 0

    def run(self) -> None:
        """Visit until the slice is over."""
        walk = self._walk
        while self._go_on():
            if self._time.is_over() and (not self._plain or self._time.is_late()):
                self._put_off()
                break
        else:
            walk.is_done = True
        walk.waiting.extend(map(weakref.ref, self._anchors))
        walk.kinds |= {kind: value for kind, value in self._kinds.items() if value.is_of_library}

    def enter_again(self, roots: Sequence[Any]) -> None:
        """Have roots entered that have been told of before."""
        self._plain.extend(roots)

    def _go_on(self) -> bool:
        """Enter the next few objects; return whether there are more."""
        walk = self._walk
        seen = 0
        while seen < _TOGETHER:
            if self._plain:
                value = self._plain.pop() if self._is_deep else self._plain.popleft()
            elif walk.waiting:
                value = self._anchor = walk.waiting.popleft()()
            elif self._anchors:
                value = self._anchor = self._anchors.popleft()
            elif (value := walk.next_module()) is not None:
                self._anchor = None
                self._visitor.container(value, len(value))
            else:
                return False
            if value is not None:
                seen += self._enter(value)
        return True

    def _put_off(self) -> None:
        """Have lists and dicts for which there was no time found again in the next slice, by their holder."""
        walk, anchor = self._walk, self._anchor
        if not self._plain:
            walk.put_off = 0, 0
            return
        before, times = walk.put_off
        walk.put_off = id(anchor), times + 1 if before == id(anchor) else 1
        if walk.put_off[1] > _MAX_PUT_OFF:
            walk.is_whole = False
            return
        for value in self._plain:
            identity = id(value.holder if type(value) is _Rest else value)
            while identity != id(anchor) and (parent := walk.parents.get(identity, 0)):
                del walk.parents[identity]
                walk.again.add(identity)
                identity = parent
            if identity != id(anchor):
                walk.roots_again.add(identity)
        if anchor is not None:
            walk.waiting.appendleft(weakref.ref(anchor))

    def find(self, value: Any) -> None:
        """Tell of something new, and have it entered later."""
        kind = self._kind(type(value))
        if kind.referents is None:
            return
        if kind.length is not None:
            length = kind.length(value)
            if not length or (length > _LEAST_MODULE and type(value) is dict and "__builtins__" in value):
                return
            if kind.is_container:
                self._visitor.container(value, length)
        elif kind.is_tensor:
            self._visitor.tensor(value)
            if not gc.get_referents(value):
                return
        (self._anchors if kind.is_kept_weakly else self._plain).append(value)

    def _kind(self, of: type) -> Kind:
        kind = self._kinds.get(of)
        if kind is None:
            kind = self._kinds[of] = Kind(of)
        return kind

    def _enter(self, value: Any) -> int:
        """Find what an object holds and has not been found before; return how much work it was."""
        rest = value if type(value) is _Rest else self._open(value)
        held = rest.take(_TOGETHER)
        walk, parents, identity = self._walk, self._walk.parents, id(rest.holder)
        was_taken = rest.taken <= walk.taken.get(identity, 0)
        work = 1 + len(held) // _KNOWN_SHARE
        if rest.is_left() and self._is_deep:
            self._plain.append(rest)
        for inner in held:
            if type(inner) in _ATOMS or id(inner) in parents:
                continue
            if was_taken and id(inner) not in walk.again:
                continue
            walk.again.discard(id(inner))
            parents[id(inner)] = identity
            if rest.is_data:
                walk.data.add(id(inner))
            self.find(inner)
            work += 1
        if not was_taken:
            walk.taken[identity] = rest.taken
        if rest.is_left() and not self._is_deep:
            self._plain.append(rest)
        return work

    def _open(self, value: Any) -> _Rest:
        kind = self._kind(type(value))
        if kind.length is None:
            return _Rest(value, kind.held_by(value), is_data=False)
        is_inside = id(value) in self._walk.data
        first = self._walk.opened.setdefault(id(value), kind.length(value))
        held = kind.held_by(value, most=FEW if is_inside else None, first=first)
        return _Rest(value, held, is_data=is_inside or kind.is_data(value))


class _Rest:
    """What a container holds, as far as it has not been looked at."""

    __slots__ = ("_held", "holder", "is_data", "taken")

    def __init__(self, holder: Any, held: Sequence[Any], *, is_data: bool) -> None:
        self.holder, self._held, self.taken = holder, held, 0
        self.is_data = is_data

    def take(self, count: int) -> Sequence[Any]:
        """Return the next items."""
        start, self.taken = self.taken, self.taken + count
        return self._held[start : self.taken]

    def is_left(self) -> bool:
        """Whether there are more."""
        return self.taken < len(self._held)


_ATOMS: Final = frozenset({str, int, float, bool, bytes, type(None), CodeType, ModuleType})


def _all_frames(frame: FrameType | None) -> list[FrameType]:
    """The frames of the script: of this thread from `frame` outwards, then of the others."""
    own = threading.get_ident()
    starts = [frame, *(other for thread, other in sys._current_frames().items() if thread != own)]
    return [outer for start in starts for outer in user_frames(start)]


def module_names(*, is_wide: bool) -> list[str]:
    """Return the names of the script's own modules, and of all others behind them if wide."""
    own: list[str] = []
    others: list[str] = []
    for name in list(sys.modules):
        top = name.partition(".")[0]
        is_library = _IS_LIBRARY.get(top)
        if is_library is None:
            is_library = _IS_LIBRARY[top] = _is_library(top)
        if top == OWN:
            continue
        if is_library:
            others.append(name)
        else:
            own.append(name)
    return own + others if is_wide else own


_IS_LIBRARY: Final[dict[str, bool]] = {}
"""By the first part of modules' names: asked 1,500 times a look."""


def _is_library(top: str) -> bool:
    module = sys.modules.get(top)
    file = module.__dict__.get("__file__") if type(module) is ModuleType else None
    return type(file) is not str or top in LIBRARIES or is_installed(file)
