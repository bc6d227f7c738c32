"""What every Python below `dashboard run` executes at its start: it waits for torch, and imports nothing.

Found because its folder stands first in PYTHONPATH, which spawned ranks inherit; most of these processes
never train. Takes itself out of the way of a `sitecustomize` of the user's own.
"""

# pathlib would be imported into every one of these processes.
# ruff: noqa: PTH100, PTH113, PTH118, PTH120
from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_MARK = ("calls", "launch", "site", "sitecustomize.py")
"""What only nanscope's own `probe` has; see `alias.py` too."""
_PROBE = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))


class _WaitForTorch:
    """A finder that hands torch's import through, and is told when it is done."""

    def __init__(self) -> None:
        self._is_asking = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch" or self._is_asking:
            return None
        spec = None
        self._is_asking = True
        try:
            for finder in sys.meta_path:
                if hasattr(finder, "find_spec"):
                    spec = spec or finder.find_spec(name, path, target)
        finally:
            self._is_asking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _TorchLoader(spec.loader, self)  # type: ignore[assignment]
        return spec


class _TorchLoader:
    """Stands for torch's own loader until torch has been executed."""

    def __init__(self, loader: Loader, finder: _WaitForTorch) -> None:
        self._loader, self._finder = loader, finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
            _begin()


def _begin() -> None:
    """Load the probe under a private name: research code is full of files called `probe.py`.

    It is the copy that the script itself would import, where that is nanscope's, in a checkout say: a second
    one would know nothing of its sessions.
    """
    try:
        from importlib import import_module, util

        package = "_nanscope.probe"
        existing = sys.modules.get("probe")
        if existing is not None and _copy_of(getattr(existing, "__file__", None)):
            package = "probe"
        elif package not in sys.modules:
            found = util.find_spec("probe") if existing is None else None
            folder = _copy_of(found.origin if found is not None else None) or _PROBE
            init = os.path.join(folder, "__init__.py")
            holder = type(sys)("_nanscope")
            holder.__path__ = []
            spec = util.spec_from_file_location(package, init, submodule_search_locations=[folder])
            if spec is None or spec.loader is None:
                return
            module = util.module_from_spec(spec)
            sys.modules["_nanscope"], sys.modules[package] = holder, module
            spec.loader.exec_module(module)
        import_module(package + ".calls.launch.attach").begin()
    # The script must run whatever is wrong with the probe.
    except Exception as error:  # noqa: BLE001
        if sys.stderr is not None:
            sys.stderr.write(f"nanscope: this process is not recorded: {error}\n")


def _copy_of(init: str | None) -> str | None:
    """Return the folder of a package's `__init__.py` where it is nanscope's own, of whatever version."""
    folder = os.path.dirname(os.path.abspath(init)) if init else ""
    is_ours = bool(folder) and os.path.isfile(os.path.join(folder, *_MARK))
    return folder if is_ours else None


def _is_wanted() -> bool:
    """Whether this is the interpreter that `dashboard run` started, or another process of the same one."""
    launch = os.environ.get("NANSCOPE_LAUNCH", "").split("|", 3)
    return len(launch) == 4 and launch[3] == sys.prefix and os.environ.get("NANSCOPE_OFF", "") in ("", "0")


if __name__ == "sitecustomize":
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]
    if _is_wanted():
        sys.meta_path.insert(0, _WaitForTorch())
    # Without one of the user's this raises what the interpreter expects where there is none.
    del sys.modules["sitecustomize"]
    __import__("sitecustomize")
