"""The probe's self-check, ``python -m probe.self_check --json``: what works here, what cannot, and why.

Run it in a process of its own (`dashboard doctor` does): it imports torch. At import it loads the standard
library alone, so that it can say what else is missing.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from .wire.findings import Finding, Library, check_library

LIBRARIES: Final = (
    Library(name="msgspec", minimum="0.19"),
    Library(name="pyzmq", minimum="26", module="zmq"),
    Library(name="numpy", minimum="1.26"),
    Library(name="psutil", minimum="5.9"),
    Library(name="safetensors", minimum="0.6"),
)
INTEGRATIONS: Final = (
    Library(name="lightning", minimum="2.6"),
    Library(name="transformers", minimum="5.23"),
    Library(name="accelerate", minimum="1.15"),
)
_MINIMUM_PYTHON: Final = (3, 11)
_TESTED_PYTHON: Final = ((3, 11), (3, 13))


def check_everything(environment: Mapping[str, str] = os.environ) -> list[Finding]:
    """Check all that a training in this interpreter needs; imports torch, where it is."""
    return [
        check_python(),
        check_platform(),
        *(check_library(library) for library in LIBRARIES),
        *check_torch(),
        *_with_libraries("places", lambda: _place_findings(environment)),
        *(check_library(library, is_needed=False) for library in INTEGRATIONS),
        *check_working_folder(),
    ]


def check_python() -> Finding:
    """Say which Python this is."""
    found = f"{platform.python_version()}, {sys.executable}"
    version = sys.version_info[:2]
    if version < _MINIMUM_PYTHON:
        return Finding(
            name="Python",
            state="missing",
            found=found,
            advice=f"nanscope needs Python {_dotted(_MINIMUM_PYTHON)} or newer",
        )
    first, last = _TESTED_PYTHON
    tested = f"; nanscope is tested with {_dotted(first)} to {_dotted(last)}"
    tested = "" if first <= version <= last else tested
    return Finding(name="Python", state="ok", found=found + tested)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def check_platform() -> Finding:
    """Say whether the journal and its helper work on this system."""
    name, found = "system", f"{platform.system()} {platform.release()}, {platform.machine()}"
    if importlib.util.find_spec("fcntl") is None:
        advice = "Trainings cannot be recorded on this system; Linux and its subsystem on Windows can"
        return Finding(name=name, state="missing", found=found, advice=advice)
    if platform.system() != "Linux":
        advice = "nanscope is tested on Linux alone; here, look at a run after its end with `dashboard open`"
        return Finding(name=name, state="limited", found=found, advice=advice)
    return Finding(name=name, state="ok", found=found)


def check_torch() -> list[Finding]:
    """Check torch and what stands on it; a machine without it can still show what others record."""
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name == "torch":
            advice = "No training can be recorded here, only shown. To record: pip install torch==2.13.0"
            return [Finding(name="torch", state="limited", found="not installed", advice=advice)]
        return [_broken_torch(error)]
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        return [_broken_torch(error)]
    return _with_libraries("torch", _torch_findings)


def _broken_torch(error: Exception) -> Finding:
    return Finding(
        name="torch",
        state="missing",
        found=f"its import fails: {type(error).__name__}: {error}",
        advice="No training can run here: install torch again",
    )


def _torch_findings() -> list[Finding]:
    from .forensics.torch_check import torch_findings

    return torch_findings()


def _place_findings(environment: Mapping[str, str]) -> list[Finding]:
    from .delivery.control.place_check import place_findings

    return place_findings(environment)


def _with_libraries(name: str, check: Callable[[], list[Finding]]) -> list[Finding]:
    """Run a check that needs more than the standard library; what is missing may be named above already."""
    try:
        return check()
    except ImportError as error:
        advice = (
            "No training can be recorded here: install nanscope again, with the torch that it is tested with"
        )
        return [Finding(name=name, state="missing", found=f"cannot be checked: {error}", advice=advice)]


def check_working_folder() -> list[Finding]:
    """Say if scripts that start in this folder would import a `probe` of their own instead of ours."""
    try:
        folder = Path.cwd()
    except OSError:
        return []
    own = Path(__file__).resolve().parent
    found = [
        path
        for path in (folder / "probe.py", folder / "probe" / "__init__.py")
        if path.is_file() and path.resolve().parent != own
    ]
    return [
        Finding(
            name="this folder",
            state="limited",
            found=f"{path} stands in the way of `import probe`",
            advice="Scripts in this folder get it instead of nanscope: rename it to use `probe.watch` there",
        )
        for path in found
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the findings, with ``--json`` as a JSON list in one line; 1 if something is missing, else 0."""
    as_json = "--json" in (sys.argv[1:] if arguments is None else arguments)
    findings = check_everything()
    if as_json:
        sys.stdout.write(json.dumps([asdict(finding) for finding in findings]) + "\n")
    else:
        for finding in findings:
            advice = f". {finding.advice}" if finding.advice else ""
            sys.stdout.write(f"{finding.state:<8} {finding.name}: {finding.found}{advice}\n")
    return int(any(finding.state == "missing" for finding in findings))


if __name__ == "__main__":
    sys.exit(main())
