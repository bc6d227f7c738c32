"""`dashboard resume`: lets a training go on that a watchpoint has paused, through its folder in the spool.

Needs no running dashboard. Imports nothing heavy.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from probe.delivery.control.control_files import new_id, put_request, take_answer, withdraw
from probe.delivery.control.control_messages import Ask, Resume, decode_answer, encode_ask
from probe.delivery.journal.run_folders import list_writers

from ..errors import DashboardError
from ..runs import printable, resolve_run

PATIENCE_S: Final = 3.0


def resume_run(target: str | None, *, rank: int | None) -> list[str]:
    """Resume a run's newest trainers on this machine; return one line for each.

    Raises:
        DashboardError: the argument names no one run, or nobody has answered.
    """
    run = resolve_run(target)
    newest = newest_writers(run.path, rank)
    if not newest:
        raise DashboardError(f"run {run.run} has no trainer to resume" + _of_rank(rank))
    answers = _ask(newest)
    if not any(answer is not None for answer in answers.values()):
        raise DashboardError(
            f"no trainer of run {run.run} has answered within {PATIENCE_S:g} s{_of_rank(rank)}: it has "
            "ended, is stopped, or runs on another machine (use this command there, or the page)"
        )
    return [f"rank {number}: {_in_words(answer)}" for number, answer in sorted(answers.items())]


def newest_writers(run_folder: Path, rank: int | None) -> dict[int, Path]:
    """Return the folder of each rank's newest incarnation."""
    found: dict[int, tuple[int, Path]] = {}
    for folder in list_writers(run_folder):
        number, _, incarnation = folder.name.partition("-")
        if not (number.isdecimal() and incarnation.isdecimal()) or rank not in (None, int(number)):
            continue
        found[int(number)] = max(found.get(int(number), (-1, folder)), (int(incarnation), folder))
    return {number: folder for number, (_, folder) in found.items()}


def _ask(folders: dict[int, Path]) -> dict[int, str | None]:
    """Leave the request with all, wait for all; "" where it was followed, a problem, None for no answer."""
    request_id = new_id()
    data = encode_ask(Ask(request=Resume(), source="command"))
    for folder in folders.values():
        put_request(folder, request_id, data)
    answers: dict[int, str | None] = {}
    until_s = time.monotonic() + PATIENCE_S
    while len(answers) < len(folders) and time.monotonic() < until_s:
        for number, folder in folders.items():
            if number not in answers and (answer := take_answer(folder, request_id)) is not None:
                answers[number] = decode_answer(answer).problem or ""
        time.sleep(0.02)
    for number, folder in folders.items():
        if number not in answers:
            withdraw(folder, request_id)
            answers[number] = None
    return answers


def _in_words(answer: str | None) -> str:
    if answer is None:
        return "no answer"
    return printable(answer) or "goes on"


def _of_rank(rank: int | None) -> str:
    return "" if rank is None else f" of rank {rank}"
