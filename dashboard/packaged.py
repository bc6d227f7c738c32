"""Finds files that stand at the top of a checkout and inside the package of a wheel: assets, and scripts that
`dashboard demo` and `dashboard quickstart` train.

Called by the command line and the export; paths only.
"""

from __future__ import annotations

from pathlib import Path

from .errors import DashboardError


def packaged_file(name: str) -> Path:
    """Return the path of `name` (for instance ``assets/event.css``) in the wheel or, else, the checkout.

    Raises:
        DashboardError: it is in neither place, so the installation is damaged.
    """
    package = Path(__file__).resolve().parent
    for folder in (package, package.parent):
        if (folder / name).exists():
            return folder / name
    raise DashboardError(f"{name} is missing from this installation; install nanscope again.")


def script_arguments(name: str) -> list[str]:
    """Python's arguments for a script; in a wheel, not with the dashboard's own modules on its path.

    Raises:
        DashboardError: as for `packaged_file`.
    """
    script = packaged_file(name)
    return ["-P", str(script)] if script.with_name("cli.py").exists() else [str(script)]
