"""Starts as its own process, by this file's path: loads this copy of the probe and runs the helper.

The package is loaded under a private name, because research code is full of files called `probe.py`.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from pathlib import Path

_PACKAGE = "_nanscope_probe"


def main() -> int:
    """Parse the arguments, wait for the run's lock, ship until there is nothing left to do."""
    parser = argparse.ArgumentParser(description="Ships one run's journals to the dashboard.")
    parser.add_argument("run_folder", type=Path)
    parser.add_argument("--connect", default=None)
    arguments = parser.parse_args()
    here = Path(__file__).resolve().parents[2]
    spec = importlib.util.spec_from_file_location(
        _PACKAGE, here / "__init__.py", submodule_search_locations=[str(here)]
    )
    if spec is None or spec.loader is None:
        return 1
    package = importlib.util.module_from_spec(spec)
    sys.modules[_PACKAGE] = package
    spec.loader.exec_module(package)
    helper = importlib.import_module(f"{_PACKAGE}.delivery.helper.helper")
    with helper.hold_lock(arguments.run_folder) as is_held:
        importlib.import_module(f"{_PACKAGE}.delivery.helper.shipper").ship(
            arguments.run_folder, arguments.connect, is_held=is_held
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
