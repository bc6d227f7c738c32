"""What a look at the heap has seen, and what the new items of a container that has grown are.

Used by the leak watch on the training thread, only while memory grows. Keeps numbers and identities, never an
object.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections import deque
from collections.abc import Iterator, Sequence, Sized
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
import torch
from torch import Tensor

from ..compat import torch_engine, torch_memory, torch_nodes
from ..guard import let_pass
from .plain_size import NO_SIZE, PlainSize, plain_size
from .reachable import attributes, kept_by_error
from .time_slices import TimeSlice

LEAST_GROWN: Final = 3
"""Items by which a container has grown; a shorter one that grows has this many soon."""
_SAMPLED: Final = 48
"""New items of a container that are looked into."""
_ITEM_OBJECTS: Final = 64
_ITEM_DEPTH: Final = 4
_MAX_NODES: Final = 3000

_NOT_ENTERED: Final = (Tensor, np.ndarray, type, str, bytes, torch.nn.Module)

TensorKind: TypeAlias = tuple[torch.Size, torch.dtype, torch.device]


class Grown(NamedTuple):
    """A container that has more items than at the look before. Holds it: not to be kept."""

    container: Any
    before: int
    now: int
    steps: int
    """Between the two."""


class Look(msgspec.Struct):
    """What there was at one moment; over some steps, where one slice was not enough."""

    step: int
    """At which it began."""
    sizes: dict[int, int] = msgspec.field(default_factory=dict)
    """Length of each container, by identity."""
    steps: dict[int, int] = msgspec.field(default_factory=dict)
    """At which it had this length."""
    tensors: dict[TensorKind, int] = msgspec.field(default_factory=dict)
    """How many tensors of each kind there were."""
    marks: list[int] = msgspec.field(default_factory=list)
    """Number of the next autograd node: at the look, and at the end of each step after it."""
    is_whole: bool = True
    """Whether nothing had to be left out for lack of time."""

    def tables(self) -> list[Sized]:
        """Return what it keeps; most of its memory is theirs."""
        return [self.sizes, self.steps, self.tensors, self.marks]

    def note_container(self, container: Any, length: int, step: int) -> None:
        """Note the length of a container."""
        self.sizes[id(container)], self.steps[id(container)] = length, step

    def note_tensor(self, tensor: Tensor) -> None:
        """Count a tensor."""
        # One that the garbage collector has just cleared has no dtype; the sizes of one that torch.compile
        # traces are symbols, which cannot be counted by.
        try:
            kind = (tensor.shape, tensor.dtype, tensor.device)
            self.tensors[kind] = self.tensors.get(kind, 0) + 1
        except (RuntimeError, TypeError) as error:
            let_pass(error)

    def growth_of(self, container: Any, length: int, step: int) -> Grown | None:
        """Return by what a container has grown since this look; None where it has not."""
        earlier = self.sizes.get(id(container))
        if earlier is None or length < earlier + LEAST_GROWN or _is_bounded(container):
            return None
        return Grown(container, earlier, length, step - self.steps[id(container)])

    def mark(self) -> None:
        """Note that a step has ended."""
        number = torch_engine.next_sequence_number()
        if number is not None and len(self.marks) < 4096:
            self.marks.append(number)

    def step_of(self, number: int) -> int:
        """Return in which step after the look a node was made; 0: before it."""
        return bisect.bisect_right(self.marks, number)


def _is_bounded(container: Any) -> bool:
    return type(container) is deque and container.maxlen is not None


class Content(NamedTuple):
    """What the new items of a container are."""

    what: str
    """``Tensor``, ``dict`` ..."""
    bytes_per_item: float
    """Of tensors and arrays in them, memory shared by several counted once."""
    steps: int
    """In how many of the steps since the look the graphs were made that hang on tensors in them."""
    has_graph: bool
    """Whether most of them hold the graph that made them."""
    are_errors: bool = False
    """Whether they are exceptions, which keep the variables of the functions that they have left."""
    plain: PlainSize = NO_SIZE
    """Of Python objects other than these, in an item; nothing where it was not asked for."""


def content_of(grown: Grown, before: Look, *, counts_objects: bool = False) -> Content:
    """Look into the items that a container has got; where objects are to be counted, into plain ones, too."""
    items = list(itertools.islice(_newest(grown.container), min(grown.now - grown.before, _SAMPLED)))
    storages: dict[int, int] = {}
    steps: set[int] = set()
    with_graph = 0
    for item in items:
        made_at = set()
        for value in _inside(item):
            if type(value) is np.ndarray:
                storages[id(value)] = int(value.nbytes)
            elif type(value) in (Tensor, torch.nn.Parameter):
                storages[torch_memory.storage_key(value)] = torch_memory.storage_bytes(value)
                number = _graph_number(value)
                if number is not None:
                    made_at.add(before.step_of(number))
        steps |= made_at
        with_graph += bool(made_at)
    count = max(len(items), 1)
    kinds = [type(item).__name__ for item in items]
    return Content(
        what=max(set(kinds), key=kinds.count) if kinds else "object",
        bytes_per_item=sum(storages.values()) / count,
        steps=len(steps - {0}),
        has_graph=2 * with_graph > len(items),
        are_errors=bool(items) and all(issubclass(type(item), BaseException) for item in items),
        plain=plain_size(items) if counts_objects else NO_SIZE,
    )


def _newest(container: Any) -> Iterator[Any]:
    """Iterate from the newest item, for a set in any order."""
    kind = type(container)
    if issubclass(kind, list):
        return list.__reversed__(container)
    if issubclass(kind, dict):
        return iter(reversed(dict.values(container)))
    return reversed(list(deque.__iter__(container))) if issubclass(kind, deque) else set.__iter__(container)


def _inside(item: Any) -> Iterator[Any]:
    """Yield what an item is or holds, a few levels down."""
    waiting: list[tuple[Any, int]] = [(item, 0)]
    plain: dict[type, bool] = {}
    for _ in range(_ITEM_OBJECTS):
        if not waiting:
            return
        value, depth = waiting.pop()
        yield value
        if depth < _ITEM_DEPTH and not issubclass(type(value), _NOT_ENTERED):
            held = itertools.islice(_held(value, plain), _ITEM_OBJECTS)
            waiting += [(inner, depth + 1) for inner in held]


def _held(value: Any, plain: dict[type, bool]) -> Iterator[Any]:
    # Asking an object for its class may run code of its own; asking for its type does not.
    kind = type(value)
    if issubclass(kind, dict):
        return iter(dict.values(value))
    if issubclass(kind, list):
        return list.__iter__(value)
    if issubclass(kind, tuple):
        return tuple.__iter__(value)
    if issubclass(kind, BaseException):
        return iter(kept_by_error(value))
    return iter([inner for _, inner in attributes(value, plain)])


def _graph_number(tensor: Tensor) -> int | None:
    """Number of the node that made a tensor; None without a graph."""
    try:
        node = tensor.grad_fn
    except RuntimeError as error:  # a view whose base was changed in a way that autograd refuses
        let_pass(error)
        return None
    return None if node is None else torch_nodes.node_sequence_number(node)


def has_graph(tensor: Tensor) -> bool:
    """Whether a tensor holds the graph that made it."""
    return _graph_number(tensor) is not None


def steps_behind(
    tensor: Tensor, before: Look, *, wanted: int | None = None, time_slice: TimeSlice | None = None
) -> int | None:
    """Return from how many steps since the look the graph behind a tensor has nodes; 0 if from none before.

    Goes back by the oldest node first, so that a chain through all steps is followed before what hangs on it.

    Args:
        tensor: whose graph it is.
        before: the look, marked at the end of every step since.
        wanted: so many are enough; None: all.
        time_slice: None is returned when it is over before the end of the graph.
    """
    number = _graph_number(tensor)
    if number is None:
        return 0
    enough = len(before.marks) - 1 if wanted is None else wanted
    waiting = [(number, 0, tensor.grad_fn)]
    steps: set[int] = set()
    seen: set[Any] = set()
    ties = itertools.count(1)
    while waiting and len(seen) < _MAX_NODES:
        number, tie, node = heapq.heappop(waiting)
        steps.add(before.step_of(number))
        if 0 in steps and len(steps) > enough:
            break
        if time_slice is not None and not tie & 15 and tie and time_slice.is_over():
            return None
        for following, _ in getattr(node, "next_functions", ()):
            if following is None or following in seen:
                continue
            seen.add(following)
            number_of = torch_nodes.node_sequence_number(following)
            if number_of is not None:
                heapq.heappush(waiting, (number_of, next(ties), following))
    return len(steps - {0}) if 0 in steps else 0


def more_tensors(before: Look, now: Look) -> list[tuple[TensorKind, int]]:
    """Return of which kinds of tensors there are more, by at least one in two steps, most first."""
    least = max(LEAST_GROWN, (now.step - before.step) / 2)
    more = [(kind, count - before.tensors.get(kind, 0)) for kind, count in now.tensors.items()]
    return sorted([item for item in more if item[1] >= least], key=lambda item: -item[1])


def shape_text(kinds: Sequence[tuple[TensorKind, int]]) -> str:
    """Return ``12 of (32, 10) torch.float32 cpu``, the first three kinds."""
    return ", ".join(
        f"{count} of {tuple(shape)} {what} {device}" for (shape, what, device), count in kinds[:3]
    )
