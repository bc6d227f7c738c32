"""Build hook: compiles the native kernel into the wheel where there is a C compiler, and is silent elsewhere.

An editable install gets the library in the source tree. Without a compiler the wheel is pure and tagged so.
"""

from __future__ import annotations

import importlib.util
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_KERNELS = Path("probe") / "measure" / "kernels"


class KernelBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the compiled library, and the platform to the tag, to a wheel that is being built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before the files are collected; `version` is ``standard`` or ``editable``."""
        if self.target_name != "wheel":
            return
        kernels = Path(self.root) / _KERNELS
        compiler = _load(kernels / "compile.py")
        if version == "editable":
            compiler.compile_kernel(kernels / compiler.LIBRARY_NAME)
            return
        self._folder = tempfile.TemporaryDirectory()
        built = Path(self._folder.name) / compiler.LIBRARY_NAME
        problem = compiler.compile_kernel(built)
        if problem is None:
            build_data["force_include"][str(built)] = str(_KERNELS / compiler.LIBRARY_NAME)
            build_data["pure_python"] = False
            # Loaded through ctypes: bound to the platform, to no version of Python.
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = f"py3-none-{platform}"
        else:
            self.app.display_debug(f"no native kernel: {problem}")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled for the wheel."""
        folder = getattr(self, "_folder", None)
        if folder is not None:
            folder.cleanup()


def _load(path: Path) -> ModuleType:
    """Import one file by its path: the package around it needs torch, which a build has not."""
    specification = importlib.util.spec_from_file_location("nanscope_compile", path)
    if specification is None or specification.loader is None:
        raise ImportError(f"cannot load {path}")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module
