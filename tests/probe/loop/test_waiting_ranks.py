"""Two real ranks of which one is paused or slow, while the other waits for it in an all-reduce."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
import waiting_ranks
from forked_scripts import ForkedScript, ForkedScripts
from journals import Journal, events_so_far, read_journal
from waiting_ranks import LOOPS, PAUSED, RUN, SHORT_TIMEOUT_S, SLOW_S, STEPS

from dashboard.commands.resume import resume_run
from dashboard.errors import DashboardError
from probe.wire import Event


def wait_for_pause(ranks: ForkedScript, run: Path) -> None:
    """Wait until the first loop's second rank says that it is paused."""
    until = time.monotonic() + 60
    while time.monotonic() < until and ranks.poll() is None:
        if any(event.subject == "pause: stop" for event in events_so_far(run, 1)):
            return
        time.sleep(0.05)
    raise AssertionError("rank 1 was not paused")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, forked: ForkedScripts) -> tuple[Path, list[str]]:
    """The folder of all loops, and what `dashboard resume` said in the first."""
    folder = tmp_path_factory.mktemp("ranks")
    ranks = forked.start([waiting_ranks.__file__, str(folder)], folder, {"XDG_STATE_HOME": str(folder)})
    try:
        run = folder / "resumed" / "spool" / RUN
        wait_for_pause(ranks, run)
        said = resume_run(str(run), rank=None)
        assert ranks.wait(90) == 0
    except (AssertionError, DashboardError) as error:
        ranks.kill()
        raise AssertionError(ranks.finish()[2]) from error
    return folder, said


def journal_of(trained: tuple[Path, list[str]], loop: str, rank: int) -> Journal:
    return read_journal(trained[0] / loop / "spool" / RUN, rank)


def watchpoint_events(trained: tuple[Path, list[str]], loop: str) -> list[Event]:
    return [event for event in journal_of(trained, loop, 1).latest_events if event.kind == "custom"]


@pytest.mark.slow
@pytest.mark.parametrize("loop", LOOPS)
def test_both_ranks_make_every_step_and_end_with_the_same_weights(
    trained: tuple[Path, list[str]], loop: str
) -> None:
    for rank in (0, 1):
        assert [frame.step for frame in journal_of(trained, loop, rank).frames] == list(range(STEPS))
    here, there = (torch.load(trained[0] / f"{loop}-{rank}.pt") for rank in (0, 1))
    assert all(torch.equal(a, b) for a, b in zip(here, there, strict=True))


def test_command_lets_the_paused_rank_go_on_and_with_it_the_other(trained: tuple[Path, list[str]]) -> None:
    assert trained[1] == ["rank 0: the training is not paused", "rank 1: goes on"]
    cause, pause = watchpoint_events(trained, "resumed")
    assert (cause.step, pause.step, pause.ended) == (PAUSED, PAUSED, True)
    assert "resumed by `dashboard resume`" in pause.message


def test_pause_of_a_rank_ends_before_the_others_time_out(trained: tuple[Path, list[str]]) -> None:
    cause, pause = watchpoint_events(trained, "left alone")
    limit = f"{SHORT_TIMEOUT_S / 3:.1f} s"
    assert (
        f"Without that it continues after {limit}: collectives of the other ranks time out" in cause.message
    )
    assert "resumed by the time limit" in pause.message
    # What is left unsaid where the user's own limit, of one hour, is the shorter one.
    assert "Without that it continues after 20.0 s" in watchpoint_events(trained, "resumed")[0].message


def test_backward_of_a_slow_rank_is_told_from_the_wait_of_the_other(trained: tuple[Path, list[str]]) -> None:
    own = [
        [frame.scalars.get("own_backward_s") for frame in journal_of(trained, "slow backward", rank).frames]
        for rank in (0, 1)
    ]
    assert own[0][0] is own[1][0] is None, "nothing was there to be waited for"
    fast, slow = (sorted(value for value in values if value is not None) for values in own)
    assert len(fast) == len(slow) == STEPS - 1
    assert slow[0] >= SLOW_S
    assert fast[len(fast) // 2] < SLOW_S
    steps = sorted(
        frame.scalars["step_time_s"] for frame in journal_of(trained, "slow backward", 0).frames[1:]
    )
    assert steps[len(steps) // 2] > SLOW_S / 2, "it has waited for the other"
