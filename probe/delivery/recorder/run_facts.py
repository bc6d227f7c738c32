"""What is written down about a run when it starts: who, where, which versions. Called once at attach."""

from __future__ import annotations

import os
import platform
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Final

import torch

from ...compat import torch_memory
from ...guard import let_pass, suppressed
from ...wire import RunStart
from .hyperparameters import HIDDEN, is_secret, seeds
from .process_identity import own_identity

_VERSIONS_OF: Final = ("torch", "nanscope", "numpy", "lightning", "transformers", "accelerate")
_TEXT_LIMIT: Final = 4000
LARGEST_INCARNATION: Final = 2**62
"""A folder of a larger number is none of ours: the store takes none."""


def describe_run(
    *,
    run: str,
    name: str | None,
    level: str,
    group: str,
    model: str,
    options: Mapping[str, str] = MappingProxyType({}),
    config: tuple[Mapping[str, str], str] = (MappingProxyType({}), ""),
    environment: Mapping[str, str] = os.environ,
    run_folder: Path | None = None,
) -> RunStart:
    """Describe this process as one rank of a run; `incarnation` is now, in nanoseconds.

    Where the clock has gone back since an earlier start of the rank, it is one more than that start's: what
    comes later has the larger number. Starts that share no folder are told apart by their clocks alone.

    Args:
        run, name, level, group, model: as in `RunStart`.
        options: of `watch`, as texts.
        config: hyperparameters as texts, and where they are from.
        environment: where a launcher says rank and world size.
        run_folder: where earlier starts of the rank have their folders.
    """
    now_ns, owner = time.time_ns(), own_identity()
    folder = _working_directory()
    rank, world_size = rank_and_world_size(environment)
    above = 1 + newest_incarnation(run_folder, rank) if run_folder is not None else 0
    return RunStart(
        run=run,
        rank=rank,
        incarnation=max(now_ns, above),
        world_size=world_size,
        name=(name or _script_name())[:_TEXT_LIMIT],
        host=socket.gethostname(),
        pid=os.getpid(),
        time=now_ns / 1e9,
        argv=_arguments(sys.argv[:100]),
        working_directory=str(folder or "")[:_TEXT_LIMIT],
        versions=_versions(),
        git_commit=None if folder is None else git_commit(folder),
        level=level,
        devices=_devices(),
        torch_seed=torch.initial_seed(),
        group=group,
        model=model[:_TEXT_LIMIT],
        options=dict(options),
        config=dict(config[0]),
        config_source=config[1],
        seeds=seeds(),
        boot=owner.boot,
        started_ticks=owner.started_ticks,
    )


def newest_incarnation(run_folder: Path, rank: int) -> int:
    """Return the largest number that a start of the rank has in a run's folder; -1 where there is none."""
    found = [-1]
    with suppressed(OSError):
        for name in os.listdir(run_folder):  # noqa: PTH208 - names alone
            of_rank, _, number = name.partition("-")
            if of_rank == str(rank) and number.isdecimal() and int(number) < LARGEST_INCARNATION:
                found.append(int(number))
    return max(found)


def _arguments(argv: Sequence[str]) -> list[str]:
    """The command line; values of options such as ``--api-key`` are hidden."""
    shown, hides = [], False
    for argument in argv:
        name, separator, _ = argument.partition("=")
        is_option = argument.startswith("-")
        if hides and not is_option:
            shown.append(HIDDEN)
        elif is_option and separator and is_secret(name.lstrip("-")):
            shown.append(f"{name}={HIDDEN}"[:_TEXT_LIMIT])
        else:
            shown.append(argument[:_TEXT_LIMIT])
        hides = is_option and not separator and is_secret(name.lstrip("-"))
    return shown


def _working_directory() -> Path | None:
    """Return the current folder; None where it has been deleted."""
    try:
        return Path.cwd()
    except OSError as error:
        let_pass(error)
        return None


def rank_and_world_size(environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Return (rank, world size) of an initialised process group, else of the launcher's environment."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    rank, size = environment.get("RANK", "0"), environment.get("WORLD_SIZE", "1")
    return (int(rank) if rank.isdecimal() else 0), max(int(size) if size.isdecimal() else 1, 1)


def git_commit(folder: Path) -> str | None:
    """Return the commit checked out above `folder`, by reading files (no git process); None without one."""
    for candidate in (folder, *folder.parents):
        head = candidate / ".git" / "HEAD"
        try:
            content = head.read_text(encoding="utf-8").strip()
            if not content.startswith("ref: "):
                return content[:64] or None
            return _resolve_reference(candidate / ".git", content.removeprefix("ref: "))
        except (OSError, UnicodeDecodeError) as error:
            let_pass(error)
            continue
    return None


def _resolve_reference(git_folder: Path, reference: str) -> str | None:
    loose = git_folder / reference
    if loose.is_file():
        return loose.read_text(encoding="utf-8").strip()[:64]
    packed = git_folder / "packed-refs"
    if packed.is_file():
        for line in packed.read_text(encoding="utf-8").splitlines():
            commit, _, name = line.partition(" ")
            if name == reference:
                return commit[:64]
    return None


def _script_name() -> str:
    if (cell := notebook_cell()) is not None:
        return cell
    script = sys.argv[0] if sys.argv else ""
    return Path(script).name or "python"


def notebook_cell(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return ``train.ipynb [7]``, or ``ipython [7]``: the notebook and the cell that is being executed.

    None in a script, also where IPython runs it.
    """
    ipython, main = sys.modules.get("IPython"), sys.modules.get("__main__")
    shell = getattr(ipython, "get_ipython", lambda: None)()
    if shell is None or hasattr(main, "__file__"):
        return None
    variables = getattr(shell, "user_ns", {})
    # VS Code tells its name as a variable, Jupyter's server (2.0 and newer) in the environment.
    told = variables.get("__vsc_ipynb_file__") or environment.get("JPY_SESSION_NAME", "")
    kind = "notebook" if "ipykernel" in sys.modules else "ipython"
    # Not `execution_count`, which IPython 9 raises before a cell is executed, and IPython 8 after it.
    return f"{Path(str(told)).name or kind} [{len(variables.get('In', ())) - 1}]"


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for distribution in _VERSIONS_OF:
        try:
            found[distribution] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return found


def _devices() -> list[str]:
    """Name the CUDA devices if the script has already initialised CUDA; never initialises it."""
    if not torch_memory.cuda_is_initialised():
        return [f"cpu x {os.cpu_count()}"]
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
