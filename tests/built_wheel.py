"""The wheel of this checkout, built once for all tests of a run, and an environment that has it installed."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def build(folder: Path, **environment: str) -> Path:
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=120, env={**os.environ, **environment})
    (built,) = folder.glob("*.whl")
    return built


def shared_wheel(factory: pytest.TempPathFactory) -> Path:
    """The wheel, which the first of pytest's processes that asks has built."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "dist"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        built = next(folder.glob("*.whl"), None)
        return build(folder) if built is None else built


def install(wheel: Path, home: Path) -> Path:
    """An environment with the wheel, and this one's libraries behind it; returns its Python."""
    venv.create(home, with_pip=False, system_site_packages=False)
    site = next((home / "lib").glob("python*/site-packages"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    libraries = [path for path in sys.path if path.endswith("site-packages")]
    # Behind the wheel's own files; the checkout's editable install is left out by not reading .pth files.
    (site / "libraries.pth").write_text("\n".join(libraries))
    return home / "bin" / "python"


def without_checkout() -> dict[str, str]:
    """The variables of a process that is to find the wheel, not this checkout."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
