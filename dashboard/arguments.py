"""The arguments and the help of the command `dashboard`. Used by `cli.py`; imports nothing heavy."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from .commands.run_arguments import add_command, add_events, add_export, add_runs, add_target

if TYPE_CHECKING:
    from .commands.run_arguments import Commands

_SCENARIOS = ("autograd", "gradient", "memory", "training", "comprehensive")
_USERS_SPOOL = "(default: NANSCOPE_SPOOL, else in the user's cache folder)"


def _version() -> str:
    from probe import __version__

    return f"nanscope {__version__}"


def command_parser() -> argparse.ArgumentParser:
    """Return the parser; what it parses has the command's `name`."""
    parser = argparse.ArgumentParser(
        prog="dashboard",
        description="Live debugger for PyTorch training.",
        epilog="Begin with `dashboard serve`, and in the script with `import probe; probe.watch(model, "
        "optimizer)`; or with `dashboard run script.py`. Each command has a --help of its own.",
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(metavar="COMMAND", title="commands", required=True)
    _add_serve(commands)
    _add_demo(commands)
    _add_quickstart(commands)
    _add_run(commands)
    add_events(commands)
    add_runs(commands)
    _add_diff(commands)
    add_export(commands)
    _add_open(commands)
    _add_url(commands)
    _add_token(commands)
    _add_keygen(commands)
    _add_replay(commands)
    _add_resume(commands)
    _add_clean(commands)
    _add_doctor(commands)
    return parser


def _add_serve(commands: Commands) -> None:
    serve = add_command(
        commands,
        "serve",
        "collect running trainings and show them",
        "Prints the page's address with its token, and serves until Ctrl-C. Trainings may start before it.",
    )
    _add_page_options(serve)
    _add_folders(serve)
    serve.add_argument(
        "--store",
        metavar="URL",
        help="a ClickHouse database in place of a file, clickhouse://user@host:9000/nanscope, which several "
        "dashboards may share; the password comes from NANSCOPE_STORE_PASSWORD, or from the file that "
        "NANSCOPE_STORE_PASSWORD_FILE names (default: NANSCOPE_STORE, or the file)",
    )
    serve.add_argument(
        "--outlets",
        type=Path,
        metavar="FILE",
        help="webhooks and OpenTelemetry, see docs/outlets.md (default: NANSCOPE_OUTLETS, or none)",
    )
    beyond = serve.add_argument_group("for other machines, see docs/security.md")
    beyond.add_argument("--tls-cert", type=Path, metavar="FILE", help="certificate of the page, PEM")
    beyond.add_argument("--tls-key", type=Path, metavar="FILE", help="its key, PEM (default: in --tls-cert)")
    beyond.add_argument(
        "--behind-proxy",
        default="",
        metavar="https://NAME",
        help="address under which a proxy with TLS shows the page",
    )
    beyond.add_argument(
        "--keys",
        type=Path,
        metavar="FILE",
        help="keys of the ingest, from `dashboard keygen` (default: in the user's state folder)",
    )


def _add_demo(commands: Commands) -> None:
    demo = add_command(
        commands,
        "demo",
        "serve, and train a small real model beside it",
        "Until Ctrl-C; with DEMO_EXIT=1 in the environment, until the training is over and stored. "
        "`dashboard demo -- --fault explode` plants another fault.",
    )
    _add_page_options(demo)
    _add_folders(demo)
    demo.add_argument("script_arguments", nargs="*", metavar="-- ARGS", help="arguments for demo_train.py")


def _add_quickstart(commands: Commands) -> None:
    quickstart = add_command(
        commands,
        "quickstart",
        "run a short training with a known fault and show what is found",
        "autograd: a NaN that begins in the backward; gradient: gradients that vanish, and explode later; "
        "memory: a list that keeps graphs; training: nothing is wrong; comprehensive: one after the other.",
    )
    quickstart.add_argument("scenario", choices=_SCENARIOS, help="what to train")
    quickstart.add_argument(
        "--spool", type=Path, metavar="FOLDER", help=f"folder for the journals {_USERS_SPOOL}"
    )


def _add_run(commands: Commands) -> None:
    from .commands.run import LEVELS

    run = add_command(
        commands,
        "run",
        "record an unmodified training script",
        "Everything after the script's name is passed to it; output, exit code and signals are unchanged.",
        allow_abbrev=False,
        usage="dashboard run [OPTIONS] script.py [ARGS]\n       dashboard run [OPTIONS] -m MODULE [ARGS]",
    )
    run.add_argument(
        "--level", choices=LEVELS, help="how much is recorded (default: NANSCOPE_LEVEL, or basic)"
    )
    run.add_argument("--spool", type=Path, metavar="FOLDER", help=f"folder for the journals {_USERS_SPOOL}")
    run.add_argument(
        "--connect", type=_address, metavar="ADDRESS", help="dashboard to ship to (default: the local one)"
    )
    run.add_argument(
        "--first-step",
        type=_step,
        metavar="N",
        help="number of the first step, for a training that continues from a checkpoint "
        "(default: NANSCOPE_FIRST_STEP, or 0)",
    )
    run.add_argument(
        "--report",
        metavar="FILE",
        help="write a report when the training ends (.json, .txt or .html; a folder gets nanscope-RUN.json)",
    )
    run.add_argument("--quiet", action="store_true", help="write no line of nanscope's own to stderr")
    run.set_defaults(parser=run)


def _add_diff(commands: Commands) -> None:
    diff = add_command(
        commands,
        "diff",
        "find the first step and layer at which two runs differ",
        "Reads their journals; needs no running server. Exit code 0: equal in all that both have recorded; "
        "1: not; 2: they cannot be compared.",
    )
    for name in ("first", "second"):
        diff.add_argument(
            name, metavar="RUN", help="a run's id, unique prefix of one, name, or folder in a spool"
        )
    diff.add_argument(
        "--tolerance",
        type=_tolerance,
        default=1e-6,
        metavar="X",
        help="relative difference up to which two numbers are the same (default: %(default)s)",
    )
    diff.add_argument("--rank", type=_count, default=0, metavar="N", help="rank to compare (default: 0)")
    diff.add_argument(
        "--member",
        type=_count,
        action="append",
        default=[],
        metavar="N",
        help="which of a run's models, made one after the other, from 0; given twice, the first and the "
        "second run's (default: 0)",
    )
    diff.add_argument(
        "--op",
        action="store_true",
        help="replay the same step of both from their bundles, and name the first op whose output differs",
    )
    diff.add_argument(
        "--entry",
        action="append",
        default=[],
        metavar="MODULE:FUNCTION",
        help="with --op: builds the model, as for replay; given twice, the first and the second run's",
    )
    diff.add_argument(
        "--step", type=_count, metavar="N", help="with --op: which step (default: the first of both)"
    )
    diff.add_argument("--json", action="store_true", help="one JSON object")


def _add_open(commands: Commands) -> None:
    command = add_command(
        commands,
        "open",
        "show a bundle, or a finished spool that never had a dashboard",
        "Reads it into a temporary store and serves that until Ctrl-C; running trainings do not ship to it. "
        "Without a folder: opens the running dashboard.",
    )
    command.add_argument(
        "spool",
        nargs="?",
        metavar="SPOOL|BUNDLE",
        help="folder of a spool, of one run in it, or of a bundle (default: the running dashboard)",
    )
    _add_page_options(command, ingest="tcp://127.0.0.1:*")


def _add_url(commands: Commands) -> None:
    url = add_command(
        commands,
        "url",
        "print the address of the running dashboard, with its token",
        "For the browser; a run's own output never has the token. Exit code 2 where none runs.",
    )
    url.add_argument(
        "--view", action="store_true", help="the address for viewers, who cannot change anything"
    )


def _add_token(commands: Commands) -> None:
    token = add_command(
        commands,
        "token",
        "end the sessions of all browsers",
        "Each needs the address of `dashboard url` again, at a running dashboard too. The tokens stay.",
    )
    token.add_argument("--revoke", action="store_true", required=True, help="end them")


def _add_keygen(commands: Commands) -> None:
    keygen = add_command(
        commands,
        "keygen",
        "make keys, so that trainings on other machines can ship to this one",
        "Writes a file for `dashboard serve --ingest tcp://0.0.0.0:8051`, and one to copy to the trainings, "
        "which NANSCOPE_KEYS names there. Both are secret (0600).",
    )
    keygen.add_argument("--out", type=Path, metavar="FOLDER", help="(default: in the user's state folder)")
    keygen.add_argument("--force", action="store_true", help="replace keys that are there")


def _add_replay(commands: Commands) -> None:
    replay = add_command(
        commands,
        "replay",
        "run a bundle's step again and show where it went wrong",
        "Exit code 0: the step was reproduced; 1: it was not (the reason is printed); 2: it cannot be run.",
    )
    replay.add_argument(
        "bundle",
        type=Path,
        metavar="BUNDLE",
        help="a bundle's folder: the last line of its event's message names it",
    )
    replay.add_argument(
        "--entry",
        required=True,
        metavar="MODULE:FUNCTION",
        help="builds the model, for instance train:build_model; the current folder is looked in first",
    )
    replay.add_argument("--json", action="store_true", help="one JSON object")


def _add_resume(commands: Commands) -> None:
    resume = add_command(
        commands,
        "resume",
        "resume a training that a watchpoint has paused",
        "The training has to run on this machine; no server is needed.",
    )
    add_target(resume)
    resume.add_argument("--rank", type=int, metavar="N", help="this rank only (default: all)")


def _add_clean(commands: Commands) -> None:
    clean = add_command(
        commands,
        "clean",
        "delete runs from the spool and the store",
        "Lists what would be deleted and asks. Running trainings are kept, and so are starred runs unless "
        "they are named.",
    )
    clean.add_argument("runs", nargs="*", metavar="RUN", help="a run's id, unique prefix of one, or name")
    older = "only runs that were last written longer ago than this, such as 14d or 36h"
    clean.add_argument("--older-than", type=_age, metavar="AGE", help=older)
    clean.add_argument("--keep", type=_count, metavar="N", help="keep the newest N trainings")
    clean.add_argument("--yes", action="store_true", help="do not ask")
    _add_folders(clean)


def _add_doctor(commands: Commands) -> None:
    doctor = add_command(
        commands,
        "doctor",
        "check what works on this machine, and why not",
        "Exit code 1 where something is missing without which nothing can be recorded or served.",
    )
    doctor.add_argument("--json", action="store_true", help="one JSON object")


def _add_page_options(parser: argparse.ArgumentParser, *, ingest: str | None = None) -> None:
    from probe.settings.places import DEFAULT_INGEST, DEFAULT_PAGE_PORT

    shown = "(default: %(default)s)"
    parser.add_argument("--host", default="127.0.0.1", help=f"address of the page {shown}")
    parser.add_argument(
        "--port", type=_port, default=DEFAULT_PAGE_PORT, help=f"port of the page; 0 takes a free one {shown}"
    )
    parser.add_argument(
        "--ingest", default=ingest or DEFAULT_INGEST, help=f"ZeroMQ address that trainings ship to {shown}"
    )
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")


def _add_folders(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FOLDER",
        help="folder of the store (default: in the user's state folder)",
    )
    parser.add_argument(
        "--spool",
        type=Path,
        metavar="FOLDER",
        help=f"spool whose finished runs are read in {_USERS_SPOOL}",
    )


def _address(text: str) -> str:
    from probe.settings.places import check_connect

    try:
        check_connect(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _step(text: str) -> int:
    if not (text.isdecimal() and int(text) < 2**53):
        raise argparse.ArgumentTypeError(f"{text} is not a step; give a whole number from 0 to {2**53 - 1}")
    return int(text)


def _port(text: str) -> int:
    if not (text.isdecimal() and int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text} is not a port; give a number from 0 to 65535")
    return int(text)


def _tolerance(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(
            f"{text} is not a tolerance; give a number from 0 to below 1, such as 1e-6"
        )
    return value


def _age(text: str) -> float:
    from .commands.clean import age_seconds

    try:
        return age_seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is not a count; give a whole number")
    return int(text)
