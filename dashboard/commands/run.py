"""`dashboard run`: becomes the script's own Python, which records by itself what the script trains.

The process is replaced: arguments, exit code, signals and tracebacks are those of ``python script.py``. What
attaches is the probe's `sitecustomize`, through the environment, so that ranks which the script spawns have
it too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import probe

_WITH_VALUE = frozenset({"--level", "--spool", "--connect", "--first-step", "--report"})
LEVELS = ("off", "basic", "advanced", "extreme")
_SITE = Path(probe.__file__).parent / "calls" / "launch" / "site"


def split_command(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the command line of `dashboard run` before the script, or the -m: the rest is the script's own.

    Returns:
        The arguments that are ours, and those of ``python``; all are ours for another command.
    """
    arguments = list(argv)
    if arguments[:1] != ["run"]:
        return arguments, []
    position = 1
    while position < len(arguments):
        argument = arguments[position]
        if argument == "--":
            return arguments[:position], arguments[position + 1 :]
        if argument == "-m" or not argument.startswith("-"):
            break
        position += 2 if argument in _WITH_VALUE else 1
    return arguments[:position], arguments[position:]


def run_script(
    command: Sequence[str],
    *,
    level: str | None = None,
    spool: Path | None = None,
    connect: str | None = None,
    report: str | None = None,
    first_step: int | None = None,
    is_quiet: bool = False,
) -> None:
    """Replace this process by ``python COMMAND``; does not return.

    Args:
        command: the script and its arguments, or ``-m``, the module and its arguments.
        level: of recording; None leaves it to NANSCOPE_LEVEL.
        spool: folder for the journals; None leaves it to NANSCOPE_SPOOL.
        connect: address of a dashboard; None leaves it to NANSCOPE_CONNECT.
        report: file or folder for a report at the end; None leaves it to NANSCOPE_REPORT.
        first_step: number of the first step; None leaves it to NANSCOPE_FIRST_STEP.
        is_quiet: say nothing on stderr.
    """
    environment = dict(os.environ)
    # Absolute, so that programs which the script starts elsewhere take the same folder.
    if spool is None and environment.get("NANSCOPE_SPOOL"):
        spool = Path(environment["NANSCOPE_SPOOL"])
    folder = None if spool is None else str(spool.absolute())
    chosen = {"LEVEL": level, "SPOOL": folder, "CONNECT": connect, "QUIET": "1" if is_quiet else None}
    chosen["FIRST_STEP"] = None if first_step is None else str(first_step)
    if report is not None:
        # The slash that says "folder" has to stay.
        chosen["REPORT"] = f"{Path.cwd() / report}{'/' if report.endswith('/') else ''}"
    environment |= {f"NANSCOPE_{name}": value for name, value in chosen.items() if value is not None}
    if environment.get("NANSCOPE_LEVEL") != "off":
        environment |= launch_environment(environment, is_quiet=is_quiet)
    if sys.stdout is not None:  # closed before we began
        sys.stdout.flush()
    # Options of the interpreter itself, such as -u, hold for the script as well.
    options = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    os.execve(sys.executable, [sys.executable, *options, *command], environment)


def launch_environment(environment: Mapping[str, str], *, is_quiet: bool) -> dict[str, str]:
    """Return the variables by which the script and its children find the probe."""
    ours = str(_SITE)
    paths = [
        entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry not in ("", ours)
    ]
    run = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(4).hex()}"
    return {
        "PYTHONPATH": os.pathsep.join([ours, *paths]),
        "NANSCOPE_LAUNCH": "|".join([run, str(os.getpid()), "1" if is_quiet else "0", sys.prefix]),
    }
