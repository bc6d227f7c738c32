"""Gives a script that imports `probe`, and has none of its own, the probe that is already loaded.

`dashboard run` loads the package under a private name; a second copy would know nothing of its sessions.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Final

_PUBLIC: Final = "probe"
_MARK: Final = Path("calls", "launch", "site", "sitecustomize.py")
"""What only nanscope's own `probe` has, of whatever version and wherever it lies."""


class OneProbe:
    """A finder for `probe` and what is in it; every other import passes."""

    def __init__(self, package: str) -> None:
        self._package = package
        self._is_asking = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec whose module is the loaded one, where the script would get a copy of the probe."""
        if name != _PUBLIC and not name.startswith(f"{_PUBLIC}."):
            return None
        if name == _PUBLIC:
            is_ours = self._leads_to_a_copy()
        else:
            is_ours = sys.modules.get(_PUBLIC) is sys.modules[self._package]
        return spec_from_loader(name, _Alias(self._package)) if is_ours else None

    def _leads_to_a_copy(self) -> bool:
        if self._is_asking:
            return False
        self._is_asking = True
        try:
            for finder in sys.meta_path:
                spec = finder.find_spec(_PUBLIC, None) if finder is not self else None
                if spec is not None:
                    return spec.origin is not None and (Path(spec.origin).parent / _MARK).is_file()
        finally:
            self._is_asking = False
        return False


class _Alias(Loader):
    """Loads nothing: puts the module of the private name in the place of the public one."""

    def __init__(self, package: str) -> None:
        self._package = package

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Leave it to the import system: what it makes is replaced at once."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Put the real module in place."""
        sys.modules[module.__name__] = import_module(self._package + module.__name__.removeprefix(_PUBLIC))


def share_loaded_probe(package: str) -> None:
    """Have `import probe` lead to `package`, this very copy, where it would lead to nanscope's own files."""
    if package != _PUBLIC:
        sys.meta_path.insert(0, OneProbe(package))
