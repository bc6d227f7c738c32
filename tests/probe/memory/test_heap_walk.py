"""What a walk comes to, slice by slice, what it keeps meanwhile, and what leads to what it has found."""

from __future__ import annotations

import functools
import gc
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from probe.memory import heap_walk
from probe.memory.heap_names import access_of
from probe.memory.heap_walk import HeapWalk, module_names
from probe.memory.time_slices import TimeSlice


class Seen:
    """Notes what a walk tells of."""

    def __init__(self) -> None:
        self.lengths: dict[int, int] = {}
        self.tensors: list[int] = []

    def container(self, value: Any, length: int) -> None:
        self.lengths[id(value)] = length

    def tensor(self, value: Tensor) -> None:
        self.tensors.append(id(value))


class Pieces(TimeSlice):
    """Over after so many looks at the clock."""

    def __init__(self, pieces: int, late: int = 10**9) -> None:
        super().__init__()
        self.pieces, self.late, self.asked = pieces, late, 0

    def is_over(self) -> bool:
        self.asked += 1
        return self.asked >= self.pieces

    def is_late(self) -> bool:
        return self.asked >= self.late


def walked(frame: Any, *, pieces: int = 10**9, late: int = 10**9) -> tuple[HeapWalk, Seen, int]:
    """Walk from a frame to the end."""
    walk, seen, slices = HeapWalk(), Seen(), 0
    while not walk.is_done:
        walk.go_on(frame, Pieces(pieces, late), seen)
        slices += 1
    return walk, seen, slices


@pytest.fixture
def frame_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What all other tests and their libraries hold is not walked: it takes a second each time."""
    monkeypatch.setattr(heap_walk, "_all_frames", lambda frame: [frame])
    monkeypatch.setattr(heap_walk, "module_names", lambda *, is_wide: [])


class Holder:
    """Has one attribute."""

    def __init__(self, inside: Any) -> None:
        self.inside = inside


class Slotted:
    __slots__ = ("inside",)


def holders(target: list[int]) -> Iterator[tuple[Any, str]]:
    """Objects that lead to a list, and how."""
    model = nn.Sequential(nn.Linear(2, 2), nn.ModuleDict({"head": nn.Linear(2, 1)}))
    model[1]["head"].cache = target
    slotted = Slotted()
    slotted.inside = target
    yield {"a": [1, target]}, "holder['a'][1]"
    yield deque([(target,)]), "holder[0][0]"
    yield Holder({"x": target}), "holder.inside['x']"
    yield model, "holder.1.head.cache"
    yield functools.partial(Holder(target).__repr__), "Holder.inside"
    yield (lambda: target), "target"
    yield slotted, "a list"


@pytest.mark.usefixtures("frame_alone")
@pytest.mark.parametrize("number", range(7))
def test_walk_comes_to_what_is_held_and_names_it(number: int) -> None:
    def check() -> None:
        made: list[int] = [1, 2, 3, 4, 5]
        _holder, expected = list(holders(made))[number]
        wanted, made = made, []
        identity = id(wanted)
        reference = [wanted]
        del wanted
        frame = sys._getframe()
        walk, seen, _ = walked(frame)
        assert seen.lengths[identity] == 5
        found = access_of(walk, walk.live_roots(frame), reference[0])
        assert found is not None
        assert found.text() in (expected, "reference[0]")

    check()


def test_walk_in_many_slices_sees_what_one_slice_sees() -> None:
    model = nn.Sequential(*[nn.Linear(2, 2) for _ in range(200)])
    nested = {str(number): [[number, [number, number]]] for number in range(500)}
    frame = sys._getframe()
    _, at_once, one = walked(frame)
    walk, in_slices, many = walked(frame, pieces=2)
    assert (one, many > 10, walk.is_whole) == (1, True, True)
    mine = {id(value) for value in nested.values()} | {id(module._parameters) for module in model}
    assert mine <= at_once.lengths.keys()
    assert mine <= in_slices.lengths.keys()
    assert {id(parameter) for parameter in model.parameters()} <= set(in_slices.tensors)


@pytest.mark.usefixtures("frame_alone")
def test_walk_out_of_time_goes_on_in_the_next_slice() -> None:
    holder = Holder({str(number): [[number]] for number in range(3000)})
    _, seen, slices = walked(sys._getframe(), pieces=1, late=20)
    assert slices > 2, "the test's slices are too long"
    assert sum(id(value) in seen.lengths for value in holder.inside.values()) == 3000


@pytest.mark.usefixtures("frame_alone")
def test_walk_keeps_nothing_alive_between_slices() -> None:
    kept = [Holder([Holder([number])]) for number in range(2000)]
    references = [weakref.ref(holder.inside[0]) for holder in kept]
    walk = HeapWalk()
    walk.go_on(sys._getframe(), Pieces(1, 1), Seen())
    assert not walk.is_done
    gc.disable()
    try:
        kept.clear()
        assert {reference() for reference in references} == {None}
    finally:
        gc.enable()
    walk.go_on(sys._getframe(), TimeSlice(10**11), Seen())
    assert walk.is_done


@pytest.mark.usefixtures("frame_alone")
def test_walk_enters_a_long_list_at_both_ends() -> None:
    items = [[number, number] for number in range(20_000)]
    _, seen, _ = walked(sys._getframe())
    assert seen.lengths[id(items)] == 20_000
    assert id(items[0]) in seen.lengths and id(items[-1]) in seen.lengths
    assert id(items[10_000]) not in seen.lengths


@pytest.mark.usefixtures("frame_alone")
def test_walk_does_not_read_a_data_set_through() -> None:
    samples = [[(number, [number]) for number in range(100)] for _ in range(1000)]
    walk, seen, _ = walked(sys._getframe())
    assert all(id(sample) in seen.lengths for sample in (samples[0], samples[255], samples[-1]))
    assert sum(id(item) in walk.parents for sample in samples for item in sample) < 20 * 512


@pytest.mark.usefixtures("frame_alone")
def test_walk_enters_all_modules_of_a_long_list() -> None:
    model = nn.Sequential(*[nn.ReLU() for _ in range(3000)])
    for module in model:
        module.kept = [module]
    _, seen, _ = walked(sys._getframe())
    assert all(id(module.kept) in seen.lengths for module in model)


@pytest.mark.usefixtures("frame_alone")
def test_walk_runs_no_code_of_classes() -> None:
    class Hostile(type):
        def __getattribute__(cls, name: str) -> Any:
            raise AssertionError(name)

    class Odd(metaclass=Hostile):
        kept: ClassVar = [1, 2, 3]

        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

        def __eq__(self, other: object) -> bool:
            raise AssertionError

        def __len__(self) -> int:
            raise AssertionError

    class OddDict(dict[Any, Any]):
        def values(self) -> Any:
            raise AssertionError

        def __len__(self) -> int:
            raise AssertionError

    holder = [Odd(), OddDict(a=[1, 2])]
    _, seen, _ = walked(sys._getframe())
    assert seen.lengths[id(dict.__getitem__(holder[1], "a"))] == 2


def test_walk_comes_to_other_modules_and_names_what_they_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("of_the_script")
    module.__file__ = "/of_the_script.py"
    module.history = [torch.zeros(1)] * 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "of_the_script", module)
    assert "of_the_script" in module_names(is_wide=False)
    del module
    frame = sys._getframe()
    walk, _, _ = walked(frame)
    found = access_of(walk, walk.live_roots(frame), sys.modules["of_the_script"].history)
    assert found is not None
    assert (found.text(), found.root.place, found.root.file) == (
        "of_the_script.history",
        "",
        "/of_the_script.py",
    )


def test_module_names_are_of_libraries_only_when_wide() -> None:
    near, wide = module_names(is_wide=False), module_names(is_wide=True)
    assert "torch" not in near and "probe" not in near
    assert "torch" in wide and "probe" not in wide
    assert wide[: len(near)] == near


def _of_floats(start: float) -> dict[int, float]:
    return {index: start + index / 7 for index in range(20)}


def _append(holder: list[Any], number: int, item: Any) -> None:
    holder.append(item)


def _put(holder: dict[int, Any], number: int, item: Any) -> None:
    holder[number] = item


def _replace(holder: dict[int, Any], number: int, item: Any) -> None:
    holder[number % 200] = item


def _append_left(holder: deque[Any], number: int, item: Any) -> None:
    holder.appendleft(item)


GROWING = [(list, _append), (dict, _put), (dict, _replace), (deque, _append_left)]


@pytest.mark.usefixtures("frame_alone")
@pytest.mark.parametrize(("kind", "add"), GROWING)
@pytest.mark.parametrize("before", [1, 30, 200])
def test_walk_ends_though_a_container_gets_as_much_as_a_slice_visits(
    kind: type[Any], add: Callable[[Any, int, Any], None], before: int
) -> None:
    holder = kind()
    items = [[_of_floats(number + layer) for layer in range(20)] for number in range(before + 80 * 40)]
    for number in range(before):
        add(holder, number, items[number])
    identities = {id(item) for item in items[:before]}
    del items[:before]
    walk, seen, slices = HeapWalk(), Seen(), 0
    while not walk.is_done and slices < 40:
        walk.go_on(_frame_with(holder), Pieces(4, late=4), seen)
        for number in range(80 * slices, 80 * (slices + 1)):
            add(holder, before + number, items[number])
        slices += 1
    assert walk.is_done and walk.is_whole
    assert add in (_replace, _append_left) or identities <= walk.parents.keys()


def _frame_with(holder: Any) -> Any:
    return sys._getframe()
