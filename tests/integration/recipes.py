"""The recipes of docs/launchers: read, and started with places of this machine in place of a container's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
LAUNCHERS = ROOT / "docs" / "launchers"
PROGRAMS = {
    "dashboard": "-m dashboard",
    "torchrun": "-m torch.distributed.run",
}
"""Installed beside Python in an image; here whatever copy of the code is tested."""


def manifests() -> list[dict[str, Any]]:
    """The documents of kubernetes.yaml."""
    return list(yaml.safe_load_all((LAUNCHERS / "kubernetes.yaml").read_text()))


def manifest(kind: str, name: str) -> dict[str, Any]:
    """One of them."""
    (found,) = [one for one in manifests() if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def pod_of(one: Mapping[str, Any]) -> dict[str, Any]:
    """The pod's `spec` of a Job or a Deployment."""
    found: dict[str, Any] = one["spec"]["template"]["spec"]
    return found


def compose() -> dict[str, Any]:
    """What compose.yaml says."""
    found: dict[str, Any] = yaml.safe_load((LAUNCHERS / "compose.yaml").read_text())
    return found


def strings_in(value: object) -> Iterator[str]:
    """All strings of a document, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from strings_in(key)
            yield from strings_in(one)
    elif isinstance(value, list):
        for one in value:
            yield from strings_in(one)


def write_programs(folder: Path) -> Path:
    """Write the programs that recipes call; return their folder."""
    for name, what in PROGRAMS.items():
        write_program(folder / name, f'exec "{sys.executable}" {what} "$@"')
    return folder


def write_program(path: Path, text: str) -> None:
    """Write a shell script that can be called by its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


class Machine:
    """Where a recipe's commands run: nothing of ours in the environment, our programs first on PATH.

    Args:
        root: a folder of its own.
        places: what is written in place of a recipe's paths, names and ports; the first that fits goes first.
    """

    def __init__(self, root: Path, places: Mapping[str, str]) -> None:
        self.root, self._places = root, places
        self.programs = write_programs(root / "bin")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("NANSCOPE_")}
        self.environment = {
            **inherited,
            "PATH": f"{self.programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "XDG_STATE_HOME": str(root / "state"),
            "XDG_CACHE_HOME": str(root / "cache"),
        }

    def placed(self, text: str) -> str:
        """A recipe's text with this machine's places."""
        for name, place in self._places.items():
            text = text.replace(name, place)
        return text

    def variables(self, container: Mapping[str, Any]) -> dict[str, str]:
        """The environment of a container, without what Kubernetes itself would fill in."""
        told = {one["name"]: self.placed(one["value"]) for one in container["env"] if "value" in one}
        return {**self.environment, **told}

    def run(
        self, command: list[str], environment: Mapping[str, str] | None = None, *, timeout_s: float = 150
    ) -> subprocess.CompletedProcess[str]:
        """Run a recipe's command to its end."""
        return subprocess.run(
            [self.placed(word) for word in command],
            env={**self.environment, **(environment or {})},
            cwd=self.root, capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip
