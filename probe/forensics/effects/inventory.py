"""All objects that there are before a replay, and the script's functions among them."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress, repeat
from operator import is_
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final

import torch
from torch import nn

from ...compat import all_objects
from ...compat.torch_modules import forward_hooks
from ...threads.whereabouts import installed_package, is_installed, is_library

_identity: Final = object.__hash__
"""By the address, as `id` is; that would tell audit hooks of each of a million objects."""
_WRAPPERS: Final = (property, classmethod, staticmethod, MethodType)
_MOST_FILES: Final = 24
"""Of the script, whose functions are guarded from the beginning; those of a large project take seconds."""


class Inventory:
    """Keeps what it knows alive, so that nothing new has the address of one that is gone.

    Args:
        objects: all that Python's collector knows.
    """

    def __init__(self, objects: list[Any]) -> None:
        self._objects = objects
        # Torch has been there for long; to count what was frozen takes several times as long.
        self._is_frozen = not any(map(is_, self._objects, repeat(torch)))
        self._near: list[FunctionType] | None = None

    def is_new(self, value: Any) -> bool:
        """Whether a value was made since; False of what Python's collector does not know."""
        if not gc.is_tracked(value) or _identity(value) in self._addresses:
            return False
        # What was frozen (`gc.freeze`) is tracked, and in no list.
        return not self._is_frozen or bool(all_objects.faults.has(value))

    @functools.cached_property
    def _addresses(self) -> frozenset[int]:
        return frozenset(map(_identity, self._objects))

    def functions_near(self, roots: Sequence[nn.Module]) -> list[FunctionType]:
        """The functions of the files that take part in a step: those of the models and of who trains them.

        And of the files that these import, up to a number. Others are guarded when they are called by name.
        """
        if self._near is None:
            files = files_near(roots, self._by_file)
            self._near = [one for file in files for one in self.functions_of(file)]
        return self._near

    def functions_of(self, file: str) -> Sequence[FunctionType]:
        """The functions of one file of the script, or of a package that is no library."""
        return self._by_file.get(file, ())

    @functools.cached_property
    def _by_file(self) -> dict[str, list[FunctionType]]:
        """Those of no library; of those that were frozen only what modules and their classes hold."""
        found = _functions_among(self._objects)
        if not self._is_frozen:
            return _of_the_script(found)
        own, installed = _modules_of_no_library()
        others = _of_packages.functions(installed, self._objects)
        mine = _of_the_script(chain(found, _held_by(own)))
        both = {
            file: list(dict.fromkeys([*mine[file], *others[file]])) for file in mine.keys() & others.keys()
        }
        return others | mine | both


class _OfPackages:
    """The functions of installed packages: they stay the same, or are new objects, until more is frozen."""

    def __init__(self) -> None:
        self._mark: list[Any] | None = None
        self._functions: dict[str, list[FunctionType]] = {}

    def functions(
        self, modules: Sequence[ModuleType], objects: Sequence[Any]
    ) -> dict[str, list[FunctionType]]:
        """Return what the modules hold, by file; what was made since may be among `objects` alone."""
        if self._mark is None or not any(map(is_, objects, repeat(self._mark))):
            self._mark = []
            self._functions = _of_the_script(_held_by(modules))
        return self._functions


_of_packages: Final = _OfPackages()


def take_inventory() -> Inventory | None:
    """Look through all objects; None where that would cost too much now."""
    objects = all_objects.faults.everything()
    return None if objects is None else Inventory(objects)


def files_near(roots: Sequence[nn.Module], functions: Mapping[str, Sequence[FunctionType]]) -> frozenset[str]:
    """Files of the script whose code a step runs: what runs now, the models' classes and hooks, imports.

    Of installed packages only those that run now, or that a model is of: the program may be one.

    Args:
        roots: the models.
        functions: of the script, by file.
    """
    files = dict.fromkeys([*_running_files(), *_files_of(roots)])
    programs = {package for file in files if (package := installed_package(file))}
    taking_part = [one.__globals__ for file in files for one in functions.get(file, ())]
    # All functions of a module have one dictionary.
    for variables in {_identity(one): one for one in taking_part}.values():
        for value in list(variables.values()):
            if len(files) >= _MOST_FILES:
                return frozenset(files)
            file = _file_of(value) if type(value) is ModuleType else _file_of_code(value)
            if file and (not is_installed(file) or installed_package(file) in programs):
                files.setdefault(file)
    return frozenset(files)


def _running_files() -> Iterator[str]:
    frame = sys._getframe()
    while (before := frame.f_back) is not None:
        frame = before
        if not is_library(frame.f_code.co_filename):
            yield frame.f_code.co_filename


def _files_of(roots: Sequence[nn.Module]) -> Iterator[str]:
    """Files of the forwards and of the hooks of all modules."""
    modules = {one for root in roots for one in root.modules()}
    values = [vars(kind).get("forward") for kind in {kind for one in modules for kind in type(one).__mro__}]
    for module in modules:
        values += [module.__dict__.get("forward"), *forward_hooks(module)]
    yield from (file for value in values if (file := _file_of_code(value)) and not is_library(file))


def _file_of_code(value: Any) -> str:
    """File of a function, a method or a class of Python's; "" of anything else."""
    if isinstance(value, type):
        module = sys.modules.get(value.__module__)
        return _file_of(module) if type(module) is ModuleType else ""
    function = value.__func__ if type(value) is MethodType else value
    return function.__code__.co_filename if type(function) is FunctionType else ""


def _functions_among(values: Sequence[Any]) -> Iterator[FunctionType]:
    """Without a line of Python for each of what may be a million."""
    return compress(values, map(is_, map(type, values), repeat(FunctionType)))


def _of_the_script(functions: Iterable[FunctionType]) -> dict[str, list[FunctionType]]:
    """Those among some, each once, by file."""
    found: dict[str, list[FunctionType] | None] = {}
    # One dictionary for all: `id` would tell audit hooks of each.
    for one in dict.fromkeys(functions):
        file = one.__code__.co_filename
        if file not in found:
            found[file] = None if file.startswith("<string>") or is_library(file) else []
        if (known := found[file]) is not None:
            known.append(one)
    return {file: known for file, known in found.items() if known is not None}


def _modules_of_no_library() -> tuple[list[ModuleType], list[ModuleType]]:
    """Those of the script, and those of installed packages."""
    own: list[ModuleType] = []
    installed: list[ModuleType] = []
    for module in [one for one in list(sys.modules.values()) if type(one) is ModuleType]:
        if not is_library(file := _file_of(module)):
            (installed if is_installed(file) else own).append(module)
    return own, installed


def _held_by(modules: Sequence[ModuleType]) -> Iterator[FunctionType]:
    """The functions of modules and of their classes."""
    held = list(chain.from_iterable([*vars(module).values()] for module in modules))
    kinds = compress(held, map(issubclass, map(type, held), repeat(type)))
    classes = {_identity(kind): kind for kind in kinds}  # many modules have imported it
    parts = list(chain.from_iterable([*vars(kind).values()] for kind in classes.values()))
    wrapped = compress(parts, map(issubclass, map(type, parts), repeat(_WRAPPERS)))
    return _functions_among([*held, *parts, *chain.from_iterable(map(_in_part, wrapped))])


def _in_part(part: Any) -> tuple[Any, ...]:
    return (part.fget, part.fset, part.fdel) if isinstance(part, property) else (part.__func__,)


def _file_of(module: ModuleType) -> str:
    """Its file; "<frozen" of those without one, except the script's own."""
    is_script = module.__name__ == "__main__"
    return getattr(module, "__file__", None) or ("" if is_script else "<frozen")
