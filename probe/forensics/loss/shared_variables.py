"""Variables that the script's functions have in common with a function whose statements are run again.

The statements have a copy of the variables. Inner functions use the cells of the outer one, functions of a
script its module's globals: both are brought up to date after each statement, and put back at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import CellType, FrameType, FunctionType
from typing import Any, Final

from .call_arguments import variables_of
from .loss_effects import cells_of

_GONE: Final = object()


class SharedVariables:
    """Those of a running function.

    Args:
        frame: of the function.
        used: names that its statements, and the functions that they call, read or write.
        assigned: names that inner functions assign by `global` or `nonlocal`.
    """

    def __init__(self, frame: FrameType, used: Iterable[str], assigned: Iterable[str]) -> None:
        self._globals = frame.f_globals
        is_module = frame.f_code.co_name == "<module>"
        self._names = sorted((set(used) if is_module else set(assigned)) & self._globals.keys())
        held = [value for value in variables_of(frame).values() if isinstance(value, FunctionType)]
        own = set(frame.f_code.co_cellvars)
        self._cells: dict[str, CellType] = {
            name: cell for function in held for name, cell in cells_of(function) if name in own
        }
        self._known = self._now()

    def synchronise(self, namespace: dict[str, Any]) -> None:
        """Carry over what the statements, or else the functions, have assigned since the last time."""
        for name, value in self._now().items():
            known, own = self._known[name], namespace.get(name, _GONE)
            if own is not known and own is not _GONE:
                self._set(name, own)
            elif value is not known:
                namespace[name] = value
        self._known = self._now()

    def _now(self) -> dict[str, Any]:
        found = {name: self._globals[name] for name in self._names if name in self._globals}
        return found | {name: cell.cell_contents for name, cell in self._cells.items()}

    def _set(self, name: str, value: Any) -> None:
        if name in self._cells:
            self._cells[name].cell_contents = value
        else:
            self._globals[name] = value

    @contextmanager
    def preserved(self) -> Iterator[None]:
        """Put them back when the block ends."""
        before = self._known = self._now()
        try:
            yield
        finally:
            for name, value in before.items():
                self._set(name, value)
