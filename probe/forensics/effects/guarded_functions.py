"""The script's functions run code that asks the guard while a replay lasts, and their own afterwards.

So it does not matter which way they are called: by name, as a property, an operator, a hook or a callback.
Running functions are not touched; other threads run the same code, which asks nothing of them.
"""

from __future__ import annotations

import ast
import dis
import functools
import itertools
import linecache
from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import CodeType, FunctionType
from typing import Final, TypeAlias

from .guarded_source import compile_guarded
from .put_back import Ledger

_MOST_FILES: Final = 400
_WRITES: Final = frozenset({"STORE_DEREF", "DELETE_DEREF"})
_Key: TypeAlias = tuple[str, int]


class GuardedFunctions:
    """Gives the script's functions guarded code, and their own back.

    Args:
        ledger: keeps the variables of outer functions that they write.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._swapped: list[tuple[FunctionType, CodeType]] = []
        self._known: dict[str, Mapping[_Key, list[tuple[CodeType, CodeType]]]] = {}

    def take(self, function: FunctionType) -> bool:
        """Guard one function; False where its source is not at hand."""
        own = function.__code__
        code = _guarded_of(own, self._of_file(own.co_filename).get((own.co_qualname, own.co_firstlineno), ()))
        if code is None or code.co_freevars != own.co_freevars:
            return False
        self._swapped.append((function, own))
        function.__code__ = code
        written = _written_of_outer(own)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            if name in written:
                self._ledger.cell(cell)
        return True

    def _of_file(self, file: str) -> Mapping[_Key, list[tuple[CodeType, CodeType]]]:
        if file not in self._known:
            is_read = len(self._known) < _MOST_FILES
            self._known[file] = _codes_of("".join(linecache.getlines(file)), file) if is_read else {}
        return self._known[file]

    def give_back(self) -> None:
        """Let all functions run their own code again."""
        while self._swapped:
            function, own = self._swapped.pop()
            function.__code__ = own


@functools.lru_cache(4 * _MOST_FILES)
def _written_of_outer(code: CodeType) -> frozenset[str]:
    """The variables of outer functions that a function assigns or deletes, itself or by an inner one."""
    inner = (_written_of_outer(one) for one in code.co_consts if isinstance(one, CodeType))
    own = (one.argval for one in dis.get_instructions(code) if one.opname in _WRITES)
    return frozenset(itertools.chain(own, *inner)) & frozenset(code.co_freevars)


def _guarded_of(own: CodeType, known: Sequence[tuple[CodeType, CodeType]]) -> CodeType | None:
    """The guarded one of a code object; None where its source is no longer what runs."""
    like = [pair for pair in known if (pair[0].co_code, pair[0].co_names) == (own.co_code, own.co_names)]
    if len(like) > 1:
        # Equal functions of one line differ in their columns alone.
        like = [pair for pair in like if pair[0].co_linetable == own.co_linetable]
    return like[0][1] if like else None


@functools.lru_cache(_MOST_FILES)
def _codes_of(source: str, file: str) -> Mapping[_Key, list[tuple[CodeType, CodeType]]]:
    """Every code object of a file, by qualified name and first line, with its guarded one."""
    try:
        tree = ast.parse(source)
        plain = _by_key(compile(source, file, "exec", dont_inherit=True))
        guarded = _by_key(compile_guarded(tree, file))
    except (SyntaxError, ValueError, RecursionError):
        return {}
    return {
        key: list(zip(codes, guarded[key], strict=True))
        for key, codes in plain.items()
        if len(codes) == len(guarded.get(key, ()))
    }


def _by_key(code: CodeType) -> dict[_Key, list[CodeType]]:
    """Those of one line with one name stand in the order of the source."""
    found: dict[_Key, list[CodeType]] = defaultdict(list)
    waiting = [code]
    while waiting:
        one = waiting.pop()
        found[one.co_qualname, one.co_firstlineno].append(one)
        waiting += [constant for constant in one.co_consts if isinstance(constant, CodeType)]
    return found
