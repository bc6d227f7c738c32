"""The command `dashboard`: a handler per command, prints, maps errors to exit codes; imports nothing heavy.

Exit codes: 0 done, 1 the reader of our output went away (or `doctor` found something missing, or `diff` a
difference), 2 a user's mistake (one sentence on stderr), 128 and the number of the signal that ended it: 130
Ctrl-C, 143 SIGTERM (one line on stderr).
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
from collections.abc import Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .commands.ending import Ending

MINIMUM_PYTHON = (3, 11)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; `argv` defaults to the process's arguments."""
    if sys.version_info < MINIMUM_PYTHON:
        return _fail(unsupported_python(sys.version_info[:2]))
    from probe.errors import ProbeError

    from .arguments import command_parser
    from .commands.ending import ended_by_signals
    from .commands.run import split_command
    from .errors import DashboardError

    options, command = split_command(sys.argv[1:] if argv is None else argv)
    arguments = command_parser().parse_args(options, argparse.Namespace(command=command))
    try:
        if arguments.name in _OWN_SIGNALS:
            return _run_handler(arguments)
        with ended_by_signals() as ending:
            try:
                return _run_handler(arguments)
            except BaseException:
                if ending.signal is not None:
                    return _say_ended(ending)
                raise
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


def _run_handler(arguments: argparse.Namespace) -> int:
    code = _HANDLERS[arguments.name](arguments)
    if sys.stdout is not None:  # closed before we began
        sys.stdout.flush()
    return code


def _say_ended(ending: Ending) -> int:
    """Ctrl-C was somebody at the terminal, who knows."""
    if ending.signal is not None and ending.signal != signal.SIGINT:
        _notice(f"ended by {ending.signal.name}; nothing unfinished is left.")
    return ending.exit_code


def unsupported_python(version: tuple[int, ...]) -> str:
    """Say which Python is needed and which one was found."""
    needed, found = (".".join(map(str, part)) for part in (MINIMUM_PYTHON, version))
    return (
        f"nanscope needs Python {needed} or newer; this is {found}. Create the environment with a newer one."
    )


def _fail(sentence: str) -> int:
    print(f"dashboard: {_visible(sentence)}", file=sys.stderr)
    return 2


def _announce(line: str) -> None:
    print(line, flush=True)


def _notice(line: str) -> None:
    print(f"dashboard: {_visible(line)}", file=sys.stderr, flush=True)


def _visible(sentence: str) -> str:
    """Names in it come from trainings: a terminal would obey their control characters."""
    from probe.delivery.visible_text import visible_text

    return visible_text(sentence, keep="\n")


def _tolerate_any_encoding() -> None:
    """Print a question mark where the terminal's encoding lacks a character, rather than fail."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _events(arguments: argparse.Namespace) -> int:
    from .commands.events import events_of_model, json_lines, load_events, notices, one_event, table_lines
    from .runs import problem_lines, run_lines

    _tolerate_any_encoding()
    found = load_events(arguments.target)
    if arguments.event is not None:
        event = one_event(found, arguments.event)
        if arguments.json:
            print(*json_lines([event]))
        else:
            from .page.views.event_report import event_report

            print(event_report(event), end="")
        return 0
    if len(found.runs) > 1 or arguments.target is None:
        which = "the newest run" if arguments.target is None else f"{len(found.runs):,} runs"
        _notice(f"{which}:\n" + "\n".join(run_lines(found.runs)))
    events = found.events if arguments.member is None else events_of_model(found, arguments.member)
    for line in (json_lines if arguments.json else table_lines)(events):
        print(line)
    for line in (*problem_lines(found.runs), *notices(found)):
        _notice(line)
    return 0


def _runs(arguments: argparse.Namespace) -> int:
    from .commands.runs import json_lines, known_runs, table_lines
    from .runs import problem_lines

    _tolerate_any_encoding()
    for line in (json_lines if arguments.json else table_lines)(known_runs(arguments.spool)):
        print(line)
    for line in problem_lines((), spool=arguments.spool):
        _notice(line)
    return 0


def _diff(arguments: argparse.Namespace) -> int:
    from .commands.diff import compare_asked, json_text, text_lines

    _tolerate_any_encoding()
    found = compare_asked(arguments)
    for line in [json_text(found)] if arguments.json else text_lines(found):
        print(line)
    return 0 if found.is_equal else 1


def _serve(arguments: argparse.Namespace) -> int:
    from .outlets.settings import chosen_outlets
    from .runs import require_spool
    from .serving.reach import Reach
    from .serving.running import data_folder, find_server_of
    from .serving.serve import serve

    reach = Reach(
        host=arguments.host,
        certificate=arguments.tls_cert,
        key=arguments.tls_key,
        public=arguments.behind_proxy.rstrip("/"),
    )
    require_spool(arguments.spool)
    outlets = chosen_outlets(arguments.outlets, os.environ)
    if (running := find_server_of(data_folder(arguments.data))) is not None:
        _announce(f"nanscope {running.address}")
        _notice(f"your dashboard serves this data folder already (process {running.pid}).")
        return 0
    serve(
        host=arguments.host,
        port=arguments.port,
        ingest=arguments.ingest,
        data=arguments.data,
        store=arguments.store,
        spool=arguments.spool,
        open_browser=not arguments.no_browser,
        announce=_announce,
        notice=_notice,
        outlets=outlets,
        reach=reach,
        keys=arguments.keys,
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


def _quickstart(arguments: argparse.Namespace) -> int:
    from .commands.quickstart import run_quickstart
    from .runs import require_spool

    _tolerate_any_encoding()
    require_spool(arguments.spool)
    run_quickstart(arguments.scenario, spool=arguments.spool, announce=_announce)
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
        report=arguments.report,
        first_step=arguments.first_step,
        is_quiet=arguments.quiet,
    )
    return 0


def _export(arguments: argparse.Namespace) -> int:
    from .commands.export import export_run, export_to_tracker

    if arguments.format in ("tensorboard", "wandb", "mlflow"):
        place = export_to_tracker(
            arguments.target,
            tracker=arguments.format,
            folder=arguments.output,
            rank=arguments.rank,
            member=arguments.member,
            project=arguments.project,
            tracking_uri=arguments.tracking_uri,
            notice=_notice,
        )
        _notice(f"written: {place}")
        return 0
    file = export_run(
        arguments.target,
        form=arguments.format,
        output=arguments.output,
        rank=arguments.rank,
        member=arguments.member,
        theme=arguments.theme,
        statistic=arguments.heatmap,
        track=arguments.track,
        data=arguments.data,
        notice=_notice,
    )
    if str(file) != "-":
        _notice(f"written: {file}")
    return 0


def _open(arguments: argparse.Namespace) -> int:
    from .commands.open import open_spool
    from .commands.url import open_running

    if arguments.spool is None:
        open_running(open_browser=not arguments.no_browser, announce=_announce)
        return 0
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


def _url(arguments: argparse.Namespace) -> int:
    from .commands.url import running_address

    print(running_address(may_change=not arguments.view))
    return 0


def _token(arguments: argparse.Namespace) -> int:
    from .serving.credentials import end_all_sessions

    end_all_sessions()
    _announce("All sessions have ended; `dashboard url` prints the address that begins a new one.")
    return 0


def _keygen(arguments: argparse.Namespace) -> int:
    from .commands.keygen import make_keys

    make_keys(arguments.out, force=arguments.force, announce=_announce)
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


def _clean(arguments: argparse.Namespace) -> int:
    from .commands.clean import clean

    _tolerate_any_encoding()
    clean(
        arguments.runs,
        older_than_s=arguments.older_than,
        keep=arguments.keep,
        spool=arguments.spool,
        data=arguments.data,
        confirm=(lambda question: True) if arguments.yes else _confirm,
        announce=_announce,
        notice=_notice,
    )
    return 0


def _confirm(question: str) -> bool:
    """Ask on the terminal; where there is none, nobody can be asked."""
    from .errors import DashboardError

    if not sys.stdin.isatty():
        raise DashboardError("There is no terminal to ask on, so nothing was deleted; pass --yes.")
    print(f"{question} [y/N] ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _doctor(arguments: argparse.Namespace) -> int:
    from .commands.doctor import examine, report_json, table_lines

    _tolerate_any_encoding()
    report = examine()
    for line in [report_json(report)] if arguments.json else table_lines(report):
        print(line)
    return 0 if report.is_usable else 1


_OWN_SIGNALS = frozenset({"serve", "demo", "run", "quickstart"})
"""Commands that listen for signals themselves, or whose signals are a training's."""
_HANDLERS = MappingProxyType(
    {
        "serve": _serve,
        "demo": _demo,
        "quickstart": _quickstart,
        "run": _run,
        "events": _events,
        "runs": _runs,
        "diff": _diff,
        "export": _export,
        "open": _open,
        "url": _url,
        "token": _token,
        "keygen": _keygen,
        "replay": _replay,
        "resume": _resume,
        "clean": _clean,
        "doctor": _doctor,
    }
)
