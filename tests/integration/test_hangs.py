"""What only the helper can see of a training: stuck in C code with Python's lock, stopped, killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from delivery_processes import Site, wait_until
from journals import read_journal
from torch import nn

import probe
from dashboard.runs import read_events
from probe.threads.life_sign import read_life_sign
from probe.wire import Event

RUN = "hangs"
SCRIPT = Path(__file__).with_name("scripts") / "hangs.py"
GUILTY = next(n for n, line in enumerate(SCRIPT.read_text().splitlines(), 1) if "# guilty" in line)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    root = tmp_path_factory.mktemp("hangs")
    settings = {"NANSCOPE_RUN": RUN, "NANSCOPE_SPOOL": str(root / "spool"), "OMP_NUM_THREADS": "1"}
    site = Site(root, NANSCOPE_LINGER_S="1", **settings)
    yield site
    site.close()


def hangs(site: Site, subject: str) -> list[Event]:
    """Events as every reader of the journals has them."""
    found = read_events([site.spool / RUN]).events
    kind = "killed" if subject.startswith("SIG") else "hang"
    return [event for event in found if (event.kind, event.subject) == (kind, subject)]


def wait_for(site: Site, subject: str, condition: Callable[[Event], bool]) -> Event:
    def has_come() -> bool:
        return any(map(condition, hangs(site, subject)))

    wait_until(has_come, f"no such event, {subject}: {hangs(site, subject)}", timeout_s=120.0)
    return next(filter(condition, hangs(site, subject)))


@pytest.mark.slow
def test_hang_states_are_told_apart_from_outside(site: Site) -> None:
    """One process for all of them: torch takes its time to be imported."""
    trainer = subprocess.Popen(
        [sys.executable, str(SCRIPT)],
        env={**site.environment, "NANSCOPE_QUIET": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        is_stuck_where_it_holds_the_lock(site)
        lets_it_go_on(trainer)
        wait_for(site, "stuck", lambda event: event.ended)
        is_stopped_and_goes_on(site, trainer)
        is_dead(site, trainer)
    finally:
        trainer.kill()
        trainer.communicate(timeout=30)
    site.wait_for_helper_to_leave(60)


def is_stuck_where_it_holds_the_lock(site: Site) -> None:
    event = wait_for(site, "stuck", lambda _: True)
    assert (event.severity, event.model) == ("warning", "Linear")
    assert event.step == 31, "the steps of the last second are in the ring alone"
    frame = event.stacks.training_loop[-1]
    assert (frame.file, frame.line, frame.function) == (str(SCRIPT), GUILTY, "train")
    assert ".read(0" in frame.code
    assert "C code that lets no other thread of Python run at hangs.py" in event.message


def lets_it_go_on(trainer: subprocess.Popen[str]) -> None:
    assert trainer.stdin is not None
    assert trainer.stdout is not None
    trainer.stdin.write("x")
    trainer.stdin.flush()
    assert trainer.stdout.readline() == "read 1\n", "our signal has interrupted what the script called"


def is_stopped_and_goes_on(site: Site, trainer: subprocess.Popen[str]) -> None:
    trainer.send_signal(signal.SIGSTOP)
    event = wait_for(site, "stopped", lambda event: not event.ended)
    assert (event.severity, event.rank) == ("warning", 0)
    assert f"process {trainer.pid} stopped by a signal" in event.message
    trainer.send_signal(signal.SIGCONT)
    ended = wait_for(site, "stopped", lambda event: event.ended)
    assert ended.id == event.id
    assert ended.evidence.value is not None
    assert event.evidence.value is not None
    assert ended.evidence.value >= event.evidence.value


def is_dead(site: Site, trainer: subprocess.Popen[str]) -> None:
    trainer.kill()
    event = wait_for(site, "SIGKILL", lambda _: True)
    assert (event.severity, event.ended) == ("critical", True)
    # Nobody has waited for it yet: the kernel still knows how it ended.
    assert event.message.splitlines()[0].endswith(": SIGKILL")
    # Of a step that has just been finished the sign of life tells before its frame is in the journal.
    (folder,) = (site.spool / RUN).glob("0-*")
    sign = read_life_sign(folder)
    assert sign is not None
    assert sign.step is not None
    assert event.step == max(sign.step, read_journal(site.spool / RUN).frames[-1].step)


def train_in_a_child(run: str, *, fails: bool) -> None:
    model = nn.Linear(2, 1)
    probe.watch(model, run=run, connect="")
    if fails:
        raise RuntimeError("the data is gone")


@pytest.mark.parametrize(("fails", "outcome"), [(False, "finished"), (True, "exception")])
def test_forked_process_of_multiprocessing_ends_in_an_orderly_way(
    spool: Path, fails: bool, outcome: str
) -> None:
    """It leaves past `atexit`; without an end in its journal it would be taken for dead."""
    context = multiprocessing.get_context("fork")
    child = context.Process(target=train_in_a_child, args=("forked",), kwargs={"fails": fails})
    child.start()
    child.join(60)
    assert child.exitcode == int(fails)
    journal = read_journal(spool / "forked")
    assert journal.end is not None
    assert journal.end.outcome == outcome
    assert {event.kind for event in journal.events} == ({"exception"} if fails else set())


def test_signal_for_the_stacks_is_given_back(spool: Path) -> None:
    from probe.threads.life_sign import LifeSignWriter, _free_signal

    folder = spool / "run" / "0-1"
    folder.mkdir(parents=True)
    free = _free_signal()
    writer = LifeSignWriter(folder, takes_signal=True)
    assert writer.signal == free
    assert _free_signal() != free
    writer.close()
    writer.close()
    assert _free_signal() == free
    assert list(folder.iterdir()) == []


def test_signal_is_not_taken_where_that_is_not_wanted(spool: Path) -> None:
    from probe.threads.life_sign import LifeSignWriter, _free_signal

    folder = spool / "run" / "0-1"
    folder.mkdir(parents=True)
    free = _free_signal()
    writer = LifeSignWriter(folder, takes_signal=False)
    assert (writer.signal, _free_signal()) == (0, free)
    assert os.listdir(folder) == ["life.json"]
    writer.close()
