"""Arguments of the commands that read a run, or list them. Used by `arguments.py`; imports nothing heavy."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import TypeAlias

    Commands: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]


def add_command(
    commands: Commands, name: str, purpose: str, more: str = "", **options: Any
) -> argparse.ArgumentParser:
    """One line in the list of commands, and the same with more to it in the command's own help."""
    description = f"{purpose[0].upper()}{purpose[1:]}. {more}".strip()
    parser = commands.add_parser(name, help=purpose, description=description, **options)
    parser.set_defaults(name=name)
    return parser


def add_target(parser: argparse.ArgumentParser) -> None:
    """RUN|SPOOL."""
    parser.add_argument(
        "target",
        nargs="?",
        metavar="RUN|SPOOL",
        help="a spool's folder, or a run's id, unique prefix of one, or name (default: the newest run)",
    )


def add_member(parser: argparse.ArgumentParser, default: str) -> None:
    """Which of a run's models."""
    parser.add_argument(
        "--member",
        type=int,
        metavar="N",
        help=f"which of the run's models, made one after the other, from 0 ({default})",
    )


def add_events(commands: Commands) -> None:
    """`dashboard events`."""
    events = add_command(
        commands,
        "events",
        "list a run's events from its journals, or show one whole",
        "Needs no running server. Of several runs in a spool, all are listed.",
    )
    add_target(events)
    events.add_argument(
        "event",
        nargs="?",
        metavar="EVENT",
        help="id of an event, or a unique prefix of one: all that the page's panel says of it",
    )
    events.add_argument("--json", action="store_true", help="one JSON object per line")
    add_member(events, "default: all of them")


def add_runs(commands: Commands) -> None:
    """`dashboard runs`."""
    runs = add_command(
        commands,
        "runs",
        "list recorded runs, newest first",
        "Needs no running server. The models of one training are one run.",
    )
    runs.add_argument("--json", action="store_true", help="one JSON object per line, all runs")
    runs.add_argument(
        "--spool",
        type=Path,
        metavar="FOLDER",
        help="folder of the journals (default: NANSCOPE_SPOOL, else in the user's cache folder)",
    )


def add_export(commands: Commands) -> None:
    """`dashboard export`."""
    from ..page.views.heatmap_statistics import DEFAULT_STATISTIC, STATISTICS

    export = add_command(
        commands,
        "export",
        "write a run as one file, or for another tracker",
        "Needs no server.",
    )
    add_target(export)
    export.add_argument(
        "--format",
        choices=("html", "json", "csv", "parquet", "tensorboard", "wandb", "mlflow"),
        default="html",
        help="(default: %(default)s); each of the last three needs the extra of its name",
    )
    export.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="file to write, - is stdout; the folder of tensorboard, wandb, or mlflow's database "
        "(default: nanscope-RUN with the ending of the format, in the current folder)",
    )
    export.add_argument("--rank", type=int, default=0, help="rank to export (default: 0)")
    add_member(export, "default: 0")
    export.add_argument(
        "--theme",
        choices=("dark", "light", "system"),
        default="system",
        help="of the HTML file (default: %(default)s)",
    )
    names = [statistic.id for statistic in STATISTICS]
    export.add_argument(
        "--heatmap",
        choices=names,
        default=DEFAULT_STATISTIC,
        metavar="STATISTIC",
        help=f"what its heatmap shows (default: %(default)s): {', '.join(names)}",
    )
    export.add_argument(
        "--track",
        metavar="TRACK",
        help="this track alone: a chart such as loss or grad_norm, heatmap, or log/NAME (default: all)",
    )
    export.add_argument(
        "--data",
        type=Path,
        metavar="FOLDER",
        help="folder of the store that has the notes (default: of the running dashboard, else the user's)",
    )
    export.add_argument(
        "--project", default="nanscope", help="wandb's project, mlflow's experiment (default: %(default)s)"
    )
    export.add_argument(
        "--tracking-uri",
        metavar="URI",
        help="mlflow's server or database, no user in it (default: MLFLOW_TRACKING_URI, else one in -o)",
    )
