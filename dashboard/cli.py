"""The command `dashboard`: reads arguments, prints, and maps errors to exit codes; imports nothing heavy.

Exit codes: 0 done, 1 the reader of our output went away (or `doctor` found something missing), 2 a user's
mistake (one sentence on stderr), 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TypeAlias

    Commands: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]

MINIMUM_PYTHON = (3, 11)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; `argv` defaults to the process's arguments."""
    if sys.version_info < MINIMUM_PYTHON:
        return _fail(unsupported_python(sys.version_info[:2]))
    from probe.errors import ProbeError

    from .commands.run import split_command
    from .errors import DashboardError

    options, command = split_command(sys.argv[1:] if argv is None else argv)
    arguments = _parser().parse_args(options, argparse.Namespace(command=command))
    try:
        code: int = arguments.handler(arguments)
        sys.stdout.flush()
        return code
    except (DashboardError, ProbeError) as error:
        return _fail(str(error))
    except BrokenPipeError:
        # The interpreter flushes stdout once more at its end; that must not raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        return _fail(f"{place}{error.strerror or error}")
    except KeyboardInterrupt:
        return 130


def unsupported_python(version: tuple[int, ...]) -> str:
    """Say which Python is needed and which one was found."""
    needed, found = (".".join(map(str, part)) for part in (MINIMUM_PYTHON, version))
    return (
        f"nanscope needs Python {needed} or newer; this is {found}. Create the environment with a newer one."
    )


def _fail(sentence: str) -> int:
    print(f"dashboard: {sentence}", file=sys.stderr)
    return 2


def _announce(line: str) -> None:
    print(line, flush=True)


def _notice(line: str) -> None:
    print(f"dashboard: {line}", file=sys.stderr, flush=True)


def _tolerate_any_encoding() -> None:
    """Print a question mark where the terminal's encoding lacks a character, rather than fail."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _version() -> str:
    from probe import __version__

    return f"nanscope {__version__}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dashboard", description="Live debugger for PyTorch training.")
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_serve(commands)
    _add_demo(commands)
    _add_run(commands)
    _add_events(commands)
    _add_export(commands)
    _add_open(commands)
    _add_replay(commands)
    _add_resume(commands)
    _add_doctor(commands)
    return parser


def _add_serve(commands: Commands) -> None:
    serve = commands.add_parser("serve", help="collect running trainings and show them")
    _add_page_options(serve)
    _add_folders(serve)
    serve.set_defaults(handler=_serve)


def _add_demo(commands: Commands) -> None:
    demo = commands.add_parser("demo", help="serve, and train a small real model beside it")
    _add_page_options(demo)
    _add_folders(demo)
    demo.add_argument("script_arguments", nargs="*", metavar="-- ARGS", help="arguments for demo_train.py")
    demo.set_defaults(handler=_demo)


def _add_run(commands: Commands) -> None:
    from .commands.run import LEVELS

    run = commands.add_parser(
        "run",
        help="run a training script unchanged, and record it",
        allow_abbrev=False,
        usage="dashboard run [OPTIONS] script.py [ARGS]\n       dashboard run [OPTIONS] -m MODULE [ARGS]",
    )
    run.add_argument(
        "--level", choices=LEVELS, help="how much is recorded (default: NANSCOPE_LEVEL, or basic)"
    )
    run.add_argument("--spool", type=Path, help="folder for the journals (default: NANSCOPE_SPOOL)")
    run.add_argument("--connect", metavar="ADDRESS", help="dashboard to ship to (default: the local one)")
    run.add_argument("--quiet", action="store_true", help="say nothing on stderr")
    run.set_defaults(handler=_run, parser=run)


def _add_events(commands: Commands) -> None:
    events = commands.add_parser("events", help="list a run's events from its journals")
    _add_target(events)
    events.add_argument("--json", action="store_true", help="one JSON object a line")
    events.set_defaults(handler=_events)


def _add_export(commands: Commands) -> None:
    from .views.heatmap_statistics import DEFAULT_STATISTIC, STATISTICS

    export = commands.add_parser("export", help="write a run as one file that needs no network and no server")
    _add_target(export)
    export.add_argument("--format", choices=("html", "json"), default="html")
    export.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="- is stdout")
    export.add_argument("--rank", type=int, default=0, help="rank to export (default: 0)")
    export.add_argument("--theme", choices=("dark", "light", "system"), default="system")
    export.add_argument(
        "--heatmap",
        choices=[statistic.id for statistic in STATISTICS],
        default=DEFAULT_STATISTIC,
        help="what its heatmap shows (default: %(default)s)",
    )
    export.set_defaults(handler=_export)


def _add_open(commands: Commands) -> None:
    command = commands.add_parser(
        "open", help="show a bundle, or a finished spool that never had a dashboard"
    )
    command.add_argument("spool", metavar="SPOOL|BUNDLE")
    _add_page_options(command, ingest="tcp://127.0.0.1:*")
    command.set_defaults(handler=_open)


def _add_replay(commands: Commands) -> None:
    replay = commands.add_parser("replay", help="run the step of a bundle again, and say where it went wrong")
    replay.add_argument("bundle", type=Path, metavar="BUNDLE", help="a bundle's folder")
    replay.add_argument(
        "--entry",
        required=True,
        metavar="MODULE:FUNCTION",
        help="builds the model, for instance train:build_model; the current folder is looked in first",
    )
    replay.add_argument("--json", action="store_true", help="one JSON object")
    replay.set_defaults(handler=_replay)


def _add_resume(commands: Commands) -> None:
    resume = commands.add_parser("resume", help="let a training go on that a watchpoint has paused")
    _add_target(resume)
    resume.add_argument("--rank", type=int, help="one rank only")
    resume.set_defaults(handler=_resume)


def _add_doctor(commands: Commands) -> None:
    doctor = commands.add_parser("doctor", help="say what works on this machine, what cannot, and why")
    doctor.add_argument("--json", action="store_true", help="one JSON object")
    doctor.set_defaults(handler=_doctor)


def _add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target", metavar="RUN|SPOOL", help="a spool's folder, or a run's id, unique prefix of one, or name"
    )


def _add_page_options(parser: argparse.ArgumentParser, *, ingest: str | None = None) -> None:
    from probe.places import DEFAULT_INGEST, DEFAULT_PAGE_PORT

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
    parser.add_argument("--data", type=Path, help="folder of the store (default: in the user's state folder)")
    parser.add_argument(
        "--spool", type=Path, help="spool whose finished runs are read in (default: NANSCOPE_SPOOL)"
    )


def _port(text: str) -> int:
    if not (text.isdecimal() and int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text} is no port; give a number from 0 to 65535")
    return int(text)


def _events(arguments: argparse.Namespace) -> int:
    from .commands.events import json_lines, load_events, table_lines

    _tolerate_any_encoding()
    found = load_events(arguments.target)
    for line in (json_lines if arguments.json else table_lines)(found.events):
        print(line)
    if found.unreadable:
        _notice(f"Missing or damaged records of the journal: {found.unreadable:,}; the rest is shown.")
    return 0


def _serve(arguments: argparse.Namespace) -> int:
    from .runs import require_spool
    from .server import serve

    require_spool(arguments.spool)
    serve(
        host=arguments.host,
        port=arguments.port,
        ingest=arguments.ingest,
        data=arguments.data,
        spool=arguments.spool,
        open_browser=not arguments.no_browser,
        announce=_announce,
    )
    return 0


def _demo(arguments: argparse.Namespace) -> int:
    from .commands.demo import DemoOptions, run_demo
    from .runs import require_spool

    require_spool(arguments.spool)
    options = DemoOptions(
        host=arguments.host,
        port=arguments.port,
        ingest=arguments.ingest,
        data=arguments.data,
        spool=arguments.spool,
        open_browser=not arguments.no_browser,
        script_arguments=arguments.script_arguments,
        ends_by_itself=os.environ.get("DEMO_EXIT") == "1",
    )
    run_demo(options, announce=_announce, notice=_notice)
    return 0


def _run(arguments: argparse.Namespace) -> int:
    from .commands.run import run_script

    if not arguments.command:
        arguments.parser.error("which script? Give its file, or -m and a module")
    run_script(
        arguments.command,
        level=arguments.level,
        spool=arguments.spool,
        connect=arguments.connect,
        is_quiet=arguments.quiet,
    )
    return 0


def _export(arguments: argparse.Namespace) -> int:
    from .commands.export import export_run

    export_run(
        arguments.target,
        form=arguments.format,
        output=arguments.output,
        rank=arguments.rank,
        theme=arguments.theme,
        statistic=arguments.heatmap,
        notice=_notice,
    )
    return 0


def _open(arguments: argparse.Namespace) -> int:
    from .commands.open import open_spool

    open_spool(
        arguments.spool,
        host=arguments.host,
        port=arguments.port,
        ingest=arguments.ingest,
        open_browser=not arguments.no_browser,
        announce=_announce,
        notice=_notice,
    )
    return 0


def _replay(arguments: argparse.Namespace) -> int:
    from .commands.replay import replay_bundle

    replay_bundle(arguments.bundle, entry=arguments.entry, as_json=arguments.json)
    return 0


def _resume(arguments: argparse.Namespace) -> int:
    from .commands.resume import resume_run

    for line in resume_run(arguments.target, rank=arguments.rank):
        print(line)
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    from .commands.doctor import examine, report_json, table_lines

    _tolerate_any_encoding()
    report = examine()
    for line in [report_json(report)] if arguments.json else table_lines(report):
        print(line)
    return 0 if report.is_usable else 1
