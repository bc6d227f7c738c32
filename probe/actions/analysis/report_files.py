"""Where a report goes and in which form: the file that was asked for, written in one piece."""

from __future__ import annotations

import json
import os
from pathlib import Path

from ...guard import suppressed
from .run_report import RunReport


def report_path(wanted: str | Path | None, *, run: str, rank: int) -> Path:
    """Return the file that a report is written to.

    Args:
        wanted: a file; a folder, or a text that ends in a slash, gets the default name in it; None is the
            default name in the working directory. A name without an ending gets ``.json``.
        run: its id: the default name is ``nanscope-<run>.json``.
        rank: above 0, ``-rank<number>`` is added to the name.
    """
    default = f"nanscope-{run}.json"
    if wanted is None or str(wanted) == "":
        path = Path.cwd() / default
    elif str(wanted).endswith(("/", os.sep)) or Path(wanted).is_dir():
        path = Path(wanted) / default
    else:
        path = Path(wanted)
    if not path.suffix:
        path = path.with_name(f"{path.name}.json")
    return path.with_name(f"{path.stem}-rank{rank}{path.suffix}") if rank else path


def write_report(report: RunReport, path: Path) -> Path:
    """Write a report; its form is told by the ending: ``.txt``, ``.html``, and JSON for every other.

    Raises:
        OSError: it cannot be written; nothing is left of it then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(_text_of(report, path.suffix.lower()), encoding="utf-8", errors="replace")
        unfinished.replace(path)
    except OSError:
        with suppressed(OSError):
            unfinished.unlink(missing_ok=True)
        raise
    return path


def _text_of(report: RunReport, ending: str) -> str:
    if ending == ".txt":
        return f"{report}\n"
    if ending in (".html", ".htm"):
        from .report_html import report_page

        return report_page(report)
    return json.dumps(report.to_dict(), indent=2, allow_nan=False)
