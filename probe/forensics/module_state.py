"""What a forward changes besides its output: buffers, attributes, random generators.

Before a call the capture asks what to copy (`StateWatch`); around a replay everything is put back
(`preserved`). Training thread only; nothing is stored on a module.
"""

from __future__ import annotations

import operator
import random
import sys
import types
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import msgspec
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer

from ..compat import torch_memory
from ..compat.torch_modules import own_buffers, own_modules, own_parameters
from .own_generators import generators_preserved
from .plain_containers import PLAIN, content_of, nested, put_back

_LEARNING_CALLS: Final = 2
"""Calls in which all state is compared before and after."""
_UNREAD_WHEN_TRAINING: Final = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
)
"""Modules whose forward in training updates its running statistics without reading them."""

_MOST_OBJECTS: Final = 256
_NOT_PUT_BACK: Final = ("torch", "threading", "queue", "multiprocessing", "asyncio", "probe")
"""Packages whose objects other threads may change meanwhile, or that are no state of the script's."""
_NO_VERSIONS: Final[dict[str, int | None]] = {}


class StateCopy(NamedTuple):
    """The value that a buffer or an attribute of a module had before a call."""

    module: weakref.ref[nn.Module]
    name: str
    value: Any


class _Seen(msgspec.Struct, frozen=True, gc=False):
    """One module before a call, to be compared afterwards.

    Copies of whole dictionaries, which C code makes and compares: 2,500 modules take 3 ms before a call and 2
    after it. A record for each attribute took 13 each, and so many objects that Python's garbage collector
    went through the whole process in the first step (0.15 s); it is not told of this one either.
    """

    module: weakref.ref[nn.Module]
    attributes: dict[str, Any]
    buffers: dict[str, Any] | None
    """None where there are none that are read."""
    versions: dict[str, int | None]
    """Of the tensors among both, by name."""


class StateWatch:
    """Learns from a root's first calls which state of its modules, and which generators, its forward changes.

    State is what a forward may read in the next step: buffers, and attributes that are numbers or tensors.
    """

    def __init__(self) -> None:
        self._calls = 0
        self._before: list[_Seen] = []
        self._random_before: Any = None
        self._numpy_before: Any = None
        self._changed: dict[tuple[int, str], weakref.ref[nn.Module]] = {}
        self.draws_from_python = False
        """Whether the forward drew from Python's `random`."""
        self.draws_from_numpy = False
        """Whether it drew from NumPy's global generator, whose state costs 30 microseconds to read."""

    def before_call(self, root: nn.Module) -> list[StateCopy]:
        """Return what the state that is known to change is now."""
        if self._calls < _LEARNING_CALLS:
            self._before = _look_at(root)
            self._random_before, self._numpy_before = random.getstate(), numpy_state()
        copies: list[StateCopy] = []
        for (_, name), reference in self._changed.items():
            module = reference()
            if module is not None:
                value = _state_of(module).get(name)
                copies.append(StateCopy(reference, name, _copied(value)))
        return copies

    def after_call(self) -> None:
        """Compare, while still learning."""
        if self._calls >= _LEARNING_CALLS:
            return
        self._calls += 1
        for seen in self._before:
            module = seen.module()
            if module is None or _is_as_before(module, seen):
                continue
            for name in _changed_names(module, seen):
                self._changed[id(module), name] = seen.module
        self.draws_from_python |= random.getstate() != self._random_before
        self.draws_from_numpy |= _differ(numpy_state(), self._numpy_before)
        self._before, self._random_before, self._numpy_before = [], None, None


def numpy_state() -> Any:
    """The state of NumPy's global generator; None while NumPy is not imported."""
    numpy = sys.modules.get("numpy")
    return None if numpy is None else numpy.random.get_state()


def set_numpy_state(state: Any) -> None:
    """Put back what `numpy_state` returned."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and state is not None:
        numpy.random.set_state(state)


def _differ(one: Any, other: Any) -> bool:
    """Whether two states of NumPy's generator differ: its kind, its words, the position among these."""
    if one is None or other is None:
        return one is not other
    return bool(one[0] != other[0] or one[2:] != other[2:] or (one[1] != other[1]).any())


def _look_at(root: nn.Module) -> list[_Seen]:
    seen = []
    for module in modules_below(root):
        attributes = module.__dict__.copy()
        buffers = None
        if own_buffers(module) and not _has_unread_buffers(module):
            buffers = dict(own_buffers(module))
        seen.append(_Seen(weakref.ref(module), attributes, buffers, _versions(attributes, buffers)))
    return seen


def _is_as_before(module: nn.Module, seen: _Seen) -> bool:
    """Whether every attribute and buffer is the same object, and no tensor among them was written."""
    now, buffers = module.__dict__, None if seen.buffers is None else own_buffers(module)
    return (
        len(now) == len(seen.attributes)
        and all(map(operator.is_, now.values(), seen.attributes.values()))
        and (buffers is None or _same_items(buffers, seen.buffers))
        and (not seen.versions or _versions(now, buffers) == seen.versions)
    )


def _changed_names(module: nn.Module, seen: _Seen) -> Iterator[str]:
    """Names of the state that is other than it was before the call."""
    now = _state_of(module)
    for name, value in _state(seen.attributes, seen.buffers).items():
        is_written = isinstance(value, Tensor) and _version(value) != seen.versions[name]
        if is_written or now.get(name) is not value:
            yield name


def _versions(attributes: dict[str, Any], buffers: dict[str, Any] | None) -> dict[str, int | None]:
    if not buffers and Tensor not in {*map(type, attributes.values())}:
        return _NO_VERSIONS
    state = _state(attributes, buffers)
    return {name: _version(value) for name, value in state.items() if isinstance(value, Tensor)}


def _state_of(module: nn.Module) -> dict[str, Any]:
    return _state(module.__dict__, None if _has_unread_buffers(module) else own_buffers(module))


def _state(attributes: dict[str, Any], buffers: dict[str, Any] | None) -> dict[str, Any]:
    """Buffers, and attributes that are numbers or tensors."""
    found = {
        name: value
        for name, value in attributes.items()
        if value is None or type(value) in (int, float, Tensor)
    }
    return found | buffers if buffers else found


def _has_unread_buffers(module: nn.Module) -> bool:
    return isinstance(module, _UNREAD_WHEN_TRAINING) and type(module).forward.__module__.startswith("torch.")


def modules_below(root: nn.Module) -> Iterable[nn.Module]:
    """A module and all inside of it, each once, in no order: `modules()` makes a name for each of them."""
    found, left = {root: None}, [root]
    while left:
        for child in own_modules(left.pop()).values():
            if child is not None and child not in found:
                found[child] = None
                left.append(child)
    return found


def _version(value: Any) -> int | None:
    return torch_memory.version_of(value) if isinstance(value, Tensor) else None


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


@contextmanager
def preserved(roots: Sequence[nn.Module]) -> Iterator[None]:
    """Put generators, buffers, gradients, training flags and module attributes back when the block ends.

    Plain containers among the attributes get their content back, at any depth: see `AttributeState`.
    """
    modules = _all_modules(roots)
    attributes = [(module.__dict__, AttributeState(module.__dict__)) for module in modules]
    generators = _Generators()
    # The script's lines may call `zero_grad`, which takes them away; what writes them is refused.
    held = {p for module in modules for p in own_parameters(module).values() if p is not None}
    gradients = [(parameter, parameter.grad) for parameter in held]
    try:
        with generators_preserved(value for module in modules for value in module.__dict__.values()):
            yield
    finally:
        generators.restore()
        for parameter, gradient in gradients:
            if parameter.grad is not gradient:
                parameter.grad = gradient
        for live, saved in attributes:
            saved.restore(live)


@contextmanager
def objects_preserved(objects: Iterable[Any]) -> Iterator[None]:
    """Put attributes of plain objects back, such as those of a trainer, and of the objects that they hold.

    So are plain containers, schedulers, and the options of optimizers. Of classes, functions and packages
    nothing is put back; modules are `preserved`.
    """
    held = list(objects)
    held += [value for one in held if is_plain_object(one) for value in vars(one).values()]
    known = {id(one): one for one in held}.values()
    changing = [one.__dict__ for one in known if is_plain_object(one) or isinstance(one, LRScheduler)]
    changing += [group for one in known if isinstance(one, Optimizer) for group in one.param_groups]
    changing += [{"": one} for one in known if type(one) in PLAIN]
    saved = [(live, AttributeState(live)) for live in changing[:_MOST_OBJECTS]]
    try:
        with generators_preserved(known):
            yield
    finally:
        for live, state in saved:
            state.restore(live)


def is_plain_object(value: Any) -> bool:
    """Whether it is of a class that is not torch's, no module or function, and has attributes."""
    if isinstance(value, nn.Module | type | types.FunctionType | types.ModuleType | Tensor):
        return False
    package = type(value).__module__.partition(".")[0]
    return package not in _NOT_PUT_BACK and type(getattr(value, "__dict__", None)) is dict


@contextmanager
def without_logging(roots: Sequence[nn.Module]) -> Iterator[None]:
    """Let `self.log` of Lightning's modules do nothing: what a step logs counts once."""
    modules = [m for m in _all_modules(roots) if any("lightning" in c.__module__ for c in type(m).__mro__)]
    for module in modules:
        module.__dict__.update(dict.fromkeys(("log", "log_dict"), _log_nothing))
    # `preserved` puts their attributes back.
    yield


def _log_nothing(*values: Any, **options: Any) -> None:
    """Stands in for `log`."""


@contextmanager
def state_as_before(roots: Sequence[nn.Module], copies: Sequence[StateCopy]) -> Iterator[list[Tensor]]:
    """Let the modules use copies of their buffers, and what was captured of them and of attributes.

    The real buffers are not touched, so a graph that still needs them stays valid. To be used inside
    `preserved`, which puts the real ones back; yields the copies, which may be written.
    """
    captured = {(id(copy.module()), copy.name): copy.value for copy in copies}
    stand_ins: dict[int, Tensor] = {}
    for module in _all_modules(roots):
        for name, buffer in own_buffers(module).items():
            if buffer is None:
                continue
            if id(buffer) not in stand_ins:
                value = captured.get((id(module), name), buffer)
                stand_ins[id(buffer)] = value.detach().clone().requires_grad_(buffer.requires_grad)
            own_buffers(module)[name] = stand_ins[id(buffer)]
    writable = list(stand_ins.values())
    for copy in copies:
        owner = copy.module()
        if owner is not None and copy.name not in own_buffers(owner):
            owner.__dict__[copy.name] = value = _copied(copy.value)
            writable += [value] if isinstance(value, Tensor) else []
    yield writable


def _all_modules(roots: Sequence[nn.Module]) -> list[nn.Module]:
    """Every module under the roots, each once."""
    seen: set[nn.Module] = set()
    return [module for root in roots for _, module in root.named_modules(memo=seen)]


class AttributeState:
    """A shallow copy of a module's attributes, and the content of the plain containers in them, at any depth.

    Bounded: of what those containers hold 20,000 items are looked at. What lies behind other objects, or is
    changed by C code, is not seen here; `effects` keeps what the script's own lines write.
    """

    __slots__ = ("_containers", "_values")

    def __init__(self, live: dict[str, Any]) -> None:
        self._values = dict(live)
        self._containers = [(one, content_of(one)) for one in nested(live.values())]

    def restore(self, live: dict[str, Any]) -> None:
        """Give all of it back."""
        for container, content in self._containers:
            put_back(container, content)
        if not _same_items(live, self._values):
            for name in live.keys() - self._values.keys():
                del live[name]
            live.update(self._values)


def _same_items(one: Mapping[str, Any], other: Mapping[str, Any] | None) -> bool:
    """Whether two dictionaries hold the same objects; never compares tensors by value."""
    if other is None or len(one) != len(other):
        return False
    return all(a is b and v is w for (a, v), (b, w) in zip(one.items(), other.items(), strict=True))


class _Generators:
    """The state of every default random generator."""

    def __init__(self) -> None:
        self._cpu = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch_memory.cuda_is_initialised() else None
        self._python = random.getstate()
        self._numpy = numpy_state()

    def restore(self) -> None:
        torch.set_rng_state(self._cpu)
        if self._cuda is not None:
            torch.cuda.set_rng_state_all(self._cuda)
        random.setstate(self._python)
        set_numpy_state(self._numpy)
