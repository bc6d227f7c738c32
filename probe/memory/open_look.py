"""A look at the heap while it is taken, slice by slice: what there is, and what has grown since another.

Used by the leak watch on the training thread. Keeps numbers, names and identities from one slice to the next.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Sized
from types import FrameType
from typing import Any, Final

from msgspec.structs import replace
from torch import Tensor

from .heap_kinds import MAX_ITEMS
from .heap_looks import Grown, Look, content_of, has_graph, steps_behind
from .heap_names import access_of
from .heap_walk import HeapWalk
from .leaks import LEAST_STEPS, Suspect, matters
from .reachable import Access, user_frames, value_at
from .time_slices import TimeSlice

_MAX_GROWN: Final = 200
"""Containers looked into."""
_AT_LEAST: Final = 8
"""Of the containers and of the tensors that a slice has found, however late it is: about 0.1 ms each."""
_MOST_COME_TO: Final = 0.9
"""Of so many that a walk comes to at most, where the others are taken to be like them."""
_GROUP: Final = 2
"""So many are spoken of together."""
_MAX_TENSORS: Final = 64
"""Tensors whose graphs are followed."""
_CHAIN_SHARE: Final = 0.6
"""Of the steps between two looks: a value whose graph goes back through so many is carried on."""


class OpenLook:
    """One look.

    Args:
        step: number of the step that has just ended.
        before: an earlier look; None at the first one.
        is_wide: also look at what only the modules of libraries lead to.
        counts_objects: also look for containers of many plain objects.

    Attributes:
        look: what there is.
        grown: length of each container that has grown, by identity.
        suspects: those of them that keep tensors or graphs.
        carried: values whose graphs go back through the steps since the earlier look.
    """

    def __init__(
        self, step: int, *, before: Look | None = None, is_wide: bool = False, counts_objects: bool = False
    ) -> None:
        self.look = Look(step)
        self.grown: dict[int, int] = {}
        self.suspects: list[Suspect] = []
        self.carried: list[Access] = []
        self._before = before
        self._walk = HeapWalk(is_wide=is_wide)
        self._counts_objects = counts_objects
        self._together: dict[int, Together] = {}
        self._groups: dict[int, Together] = {}
        """By the number of the suspect that stands for one."""
        self._graphs: list[Access] = []
        """Tensors whose graphs are still to be followed."""
        self._is_second_try = False

    def tables(self) -> list[Sized]:
        """Return what it keeps; most of its memory is theirs."""
        own = [self.grown, self.suspects, self.carried, self._graphs]
        return [*own, *self.look.tables(), *self._walk.tables()]

    def go_on(self, step: int, frame: FrameType | None, time_slice: TimeSlice) -> bool:
        """Look for one slice; return whether that was the last one.

        Args:
            step: number of the step that has just ended.
            frame: where the training thread is.
            time_slice: how long.
        """
        is_fresh = self._walk.is_done
        if not is_fresh:
            self._walk_on(step, frame, time_slice)
        while self._walk.is_done and self._graphs and (is_fresh or not time_slice.is_over()):
            is_fresh = False  # one at least in every slice, however short
            self._follow_graph(frame, time_slice)
        self.look.is_whole = self._walk.is_whole
        if not self._walk.is_done or self._graphs:
            return False
        for number, together in self._groups.items():
            self.suspects[number] = together.of(self.suspects[number])
        return True

    def _walk_on(self, step: int, frame: FrameType | None, time_slice: TimeSlice) -> None:
        seen = _Seen(self.look, self._before, step)
        self._walk.go_on(frame, time_slice, seen)
        if not (seen.grown or seen.tensors):
            return
        roots = self._walk.live_roots(frame)
        self._add_up(seen.grown)
        seen.grown.sort(key=lambda grown: grown.before - grown.now)
        for number, grown in enumerate(seen.grown):
            if len(self.grown) >= _MAX_GROWN or (number >= _AT_LEAST and time_slice.is_late()):
                break
            self._look_into(grown, roots)
        for number, tensor in enumerate(seen.tensors[:_MAX_TENSORS]):
            if number >= _AT_LEAST and time_slice.is_late():
                break
            self._note_graph(tensor, roots, time_slice)

    def _note_graph(self, tensor: Tensor, roots: Mapping[int, Any], time_slice: TimeSlice) -> None:
        """Follow a tensor's graph now, or in a slice of its own where a variable leads to it."""
        steps = None if time_slice.is_over() else self._steps_behind(tensor, time_slice)
        if steps is not None and steps < self._least_steps:
            return
        access = access_of(self._walk, roots, tensor)
        if access is not None and access.root.code is not None:
            (self._graphs if steps is None else self.carried).append(access)

    @property
    def _least_steps(self) -> float:
        """Steps that the graph of a value that is carried on goes back through."""
        return max(_CHAIN_SHARE * (len(self._before.marks) - 1), LEAST_STEPS) if self._before else 0.0

    def _steps_behind(self, tensor: Tensor, time_slice: TimeSlice) -> int | None:
        assert self._before is not None
        return steps_behind(tensor, self._before, wanted=math.ceil(self._least_steps), time_slice=time_slice)

    def _add_up(self, grown: Sequence[Grown]) -> None:
        """Add up, for each container, by what those in it have grown."""
        if not self._counts_objects:
            return
        for each in grown:
            parent = self._walk.parents.get(id(each.container), 0)
            together = self._together.setdefault(parent, Together(self.look.sizes.get(parent, 0)))
            together.count += 1
            together.grown += each.now - each.before
            together.length += each.now

    def _look_into(self, grown: Grown, roots: Mapping[int, Any]) -> None:
        assert self._before is not None
        identity = id(grown.container)
        self.grown[identity] = grown.now
        content = content_of(grown, self._before, counts_objects=self._counts_objects)
        is_plain = not (content.bytes_per_item or content.has_graph)
        together = self._together.get(self._walk.parents.get(identity, 0)) if is_plain else None
        items = grown.now - grown.before
        if together is not None:
            items = max(items, round(together.share * together.grown))
        if not matters(content, items / max(grown.steps, 1)):
            return
        if together is not None and together.is_said:
            return
        access = access_of(self._walk, roots, grown.container)
        if access is None:
            return
        suspect = Suspect(
            identity=identity,
            kind=type(grown.container).__name__,
            access=access,
            content=content,
            grown=grown.now - grown.before,
            steps=grown.steps,
            length=grown.now,
        )
        if together is not None and together.count >= _GROUP and access.part == "item" and access.parent:
            together.is_said = True
            self._groups[len(self.suspects)] = together
        self.suspects.append(suspect)

    def _follow_graph(self, frame: FrameType | None, time_slice: TimeSlice) -> None:
        """Follow the graph of one tensor; one that a whole slice is not enough for is left out."""
        access = self._graphs[0]
        value = value_at(access, user_frames(frame))
        steps = self._steps_behind(value, time_slice) if type(value) is Tensor else 0
        if steps is None and not self._is_second_try:
            self._is_second_try = True
            return
        self._is_second_try = False
        del self._graphs[0]
        if steps is not None and steps >= self._least_steps:
            self.carried.append(access)


class Together:
    """Containers in one other container that have grown, as the lists in a dict of lists.

    Args:
        holder_length: how many there are in the other one; 0 where that is none.

    Attributes:
        count: of them.
        grown: items that they have got.
        length: items in them.
        is_said: whether one of them stands for all.
    """

    def __init__(self, holder_length: int) -> None:
        self._holder_length = holder_length
        self.count = self.grown = self.length = 0
        self.is_said = False

    @property
    def share(self) -> float:
        """All of them to those that were come to: of many, a walk comes to the first and the last."""
        if _MOST_COME_TO * MAX_ITEMS <= self.count <= MAX_ITEMS < self._holder_length:
            return self._holder_length / self.count
        return 1.0

    def of(self, suspect: Suspect) -> Suspect:
        """Return what one of them stands for: all together."""
        assert suspect.access.parent is not None
        access = suspect.access.parent.then("item", None)
        grown, length = round(self.share * self.grown), round(self.share * self.length)
        return replace(suspect, access=access, grown=grown, length=length, is_group=True)


class _Seen:
    """What one slice has come to that is to be looked into. Holds objects: lives no longer than the slice."""

    def __init__(self, look: Look, before: Look | None, step: int) -> None:
        self._look, self._before, self._step = look, before, step
        self.grown: list[Grown] = []
        self.tensors: list[Tensor] = []

    def container(self, value: Any, length: int) -> None:
        """Note its length, and by what it has grown."""
        self._look.note_container(value, length, self._step)
        grown = None if self._before is None else self._before.growth_of(value, length, self._step)
        if grown is not None:
            self.grown.append(grown)

    def tensor(self, value: Tensor) -> None:
        """Count it; its graph is followed later."""
        self._look.note_tensor(value)
        if self._before is not None and type(value) is Tensor and has_graph(value):
            self.tensors.append(value)
