"""Keeps what something was before a replay changes it, and gives all of it back, newest first."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer

from ..module_state import AttributeState, modules_below
from ..own_generators import restoring
from ..plain_containers import content_of, put_back

_MISSING: Final = object()


class Ledger:
    """What is to be put back; each thing is kept once, as it was first."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, str], tuple[Any, Callable[[], Any]]] = {}

    def put_back(self) -> None:
        """Give everything back."""
        while self._kept:
            _, (_, restore) = self._kept.popitem()
            restore()

    def _keep(self, owner: Any, what: str, make: Callable[[], Callable[[], Any] | None]) -> None:
        if (id(owner), what) not in self._kept and (restore := make()) is not None:
            # The owner stays alive, so its id is no other's.
            self._kept[id(owner), what] = owner, restore

    def container(self, container: Any) -> None:
        """A list, dictionary, set, deque or bytearray."""
        self._keep(container, "content", lambda: partial(put_back, container, content_of(container)))

    def attributes(self, owner: Any) -> None:
        """All attributes in an object's `__dict__`, and the plain containers among them."""
        live = getattr(owner, "__dict__", None)
        if type(live) is dict:
            self._keep(owner, "attributes", lambda: partial(AttributeState(live).restore, live))

    def modules(self, root: nn.Module) -> None:
        """Attributes of a module and of all below it."""
        if (id(root), "below") not in self._kept:
            self._keep(root, "below", lambda: _nothing)
            for module in modules_below(root):
                self.attributes(module)

    def slot(self, owner: Any, name: str, descriptor: Any) -> None:
        """One of an object's `__slots__`."""
        kept = _read(descriptor.__get__, owner)
        self._keep(owner, f".{name}", lambda: partial(_set_slot, owner, descriptor, kept))

    def of_namespace(self, owner: Any, name: str) -> None:
        """One attribute of a class, a function or a module of Python's."""
        kept = vars(owner).get(name, _MISSING)
        self._keep(owner, f".{name}", lambda: partial(_set_attribute, owner, name, kept))

    def variable(self, variables: dict[str, Any], name: str) -> None:
        """One global variable."""
        kept = variables.get(name, _MISSING)
        self._keep(variables, f".{name}", lambda: partial(_set_variable, variables, name, kept))

    def of_tensor(self, tensor: Tensor, name: str) -> None:
        """Its `grad` or `requires_grad`."""
        kept = getattr(tensor, name)
        self._keep(tensor, f".{name}", lambda: partial(_set_if_changed, tensor, name, kept))

    def cell(self, cell: Any) -> None:
        """A variable of an outer function."""
        kept = _read(getattr, cell, "cell_contents")
        if kept is not _MISSING:
            self._keep(cell, "cell", lambda: partial(setattr, cell, "cell_contents", kept))

    def array(self, array: Any) -> None:
        """The elements of an array of NumPy's, and its shape."""
        self._keep(array, "elements", lambda: partial(_fill_array, array, array.copy()))

    def generator(self, generator: Any) -> None:
        """A random generator's state."""
        self._keep(generator, "generator", lambda: restoring(generator))

    def optimizer(self, optimizer: Optimizer) -> None:
        """Attributes and options of an optimizer, and the gradients of its parameters."""
        self.attributes(optimizer)
        for group in optimizer.param_groups:
            self.container(group)
            for parameter in group["params"]:
                self.of_tensor(parameter, "grad")

    def scheduler(self, scheduler: LRScheduler) -> None:
        """Attributes of a scheduler, and its optimizer."""
        self.attributes(scheduler)
        self.optimizer(scheduler.optimizer)


def _nothing() -> None:
    """What there is to be put back of a mark."""


def _read(read: Callable[..., Any], *args: Any) -> Any:
    try:
        return read(*args)
    except (AttributeError, ValueError):
        return _MISSING


def _set_slot(owner: Any, descriptor: Any, value: Any) -> None:
    if value is not _MISSING:
        descriptor.__set__(owner, value)
    elif _read(descriptor.__get__, owner) is not _MISSING:
        descriptor.__delete__(owner)


def _set_attribute(owner: Any, name: str, value: Any) -> None:
    if vars(owner).get(name, _MISSING) is value:
        return
    if value is _MISSING:
        delattr(owner, name)
    else:
        setattr(owner, name, value)


def _set_variable(variables: dict[str, Any], name: str, value: Any) -> None:
    if value is _MISSING:
        variables.pop(name, None)
    elif variables.get(name) is not value:
        variables[name] = value


def _set_if_changed(tensor: Tensor, name: str, value: Any) -> None:
    if getattr(tensor, name) is not value:
        setattr(tensor, name, value)


def _fill_array(array: Any, content: Any) -> None:
    if array.shape != content.shape:
        array.resize(content.shape, refcheck=False)
    array[...] = content
