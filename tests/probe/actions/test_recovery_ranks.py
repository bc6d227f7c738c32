"""A recovery on two ranks, where all do the same or none does anything; and one under a limit of memory."""

from pathlib import Path

import pytest
import recovered_ranks
import torch
from forked_scripts import ForkedScripts
from journals import read_journal
from recovered_ranks import BAD, SHARDED, STEPS

from probe.wire import Event

ACTIONS = [name for name, recovery in SHARDED.items() if recovery is not None]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, forked: ForkedScripts) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    ranks = forked.start([recovered_ranks.__file__, str(folder)], folder, {"XDG_STATE_HOME": str(folder)})
    code, out, err = ranks.finish()
    assert code == 0, err
    (folder / "printed").write_text(out, encoding="utf-8")
    return folder


def states(folder: Path, loop: str, rank: int) -> list[list[torch.Tensor]]:
    loaded: list[list[torch.Tensor]] = torch.load(folder / f"{loop}-{rank}.pt")
    return loaded


def recoveries(folder: Path, loop: str, rank: int) -> list[Event]:
    events = read_journal(folder / loop / "spool" / "ranks", rank).latest_events
    return [event for event in events if event.kind == "recovery"]


def are_equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_averaged_gradients_are_skipped_on_every_rank(trained: Path) -> None:
    here, there = states(trained, "averaged", 0), states(trained, "averaged", 1)
    assert all(are_equal(one, other) for one, other in zip(here, there, strict=True))
    assert are_equal(here[BAD], here[BAD - 1]) and not are_equal(here[BAD + 1], here[BAD])
    for rank in (0, 1):
        assert [(e.subject, e.step) for e in recoveries(trained, "averaged", rank)] == [("skip", BAD)]


def test_loss_that_only_one_rank_sees_is_no_reason_to_skip_and_that_is_said(trained: Path) -> None:
    here, there = states(trained, "bad loss alone", 0), states(trained, "bad loss alone", 1)
    assert are_equal(here[-1], there[-1]) and not are_equal(here[BAD], here[BAD - 1])
    unaware, (event,) = (
        [e for e in recoveries(trained, "bad loss alone", r) if e.step == BAD] for r in (0, 1)
    )
    assert unaware == []
    assert (event.subject, event.severity) == ("declined", "warning")
    assert "the gradients, which all ranks share, are finite" in event.message


def test_every_rank_goes_back_to_the_same_step(trained: Path) -> None:
    here, there = states(trained, "rolled back", 0), states(trained, "rolled back", 1)
    assert all(are_equal(one, other) for one, other in zip(here, there, strict=True))
    # What was there before the update of the step before, whose loss one rank alone found bad.
    assert are_equal(here[BAD], here[BAD - 2])
    told = [[(e.subject, e.step) for e in recoveries(trained, "rolled back", rank)] for rank in (0, 1)]
    assert told == [[("rollback", BAD)], [("declined", BAD - 1), ("rollback", BAD)]]


def test_lack_of_memory_is_raised_on_where_others_would_wait(trained: Path) -> None:
    for rank in (0, 1):
        training, inference = [e for e in recoveries(trained, "bad loss alone", rank) if e.step != BAD]
        assert (training.subject, training.step) == ("declined 1", STEPS)
        assert "leaves the others waiting in a collective" in training.message
        assert inference.subject == "declined 2"
        assert "the model's forward talks to other ranks" in inference.message


def test_gradients_of_one_rank_are_declined_with_the_reason(trained: Path) -> None:
    assert recoveries(trained, "never averaged", 0) == []
    (event,) = recoveries(trained, "never averaged", 1)
    assert (event.subject, event.severity, event.step) == ("declined", "warning", BAD)
    assert "not averaged over the ranks" in event.message
    assert not torch.isfinite(states(trained, "never averaged", 1)[BAD][0]).any()


def test_step_under_a_real_limit_of_memory_is_skipped_and_the_next_one_trains(trained: Path) -> None:
    printed = (trained / "printed").read_text(encoding="utf-8").splitlines()
    assert printed == ["small 1024", "large skipped", "small 1024"]


@pytest.mark.parametrize("action", ACTIONS)
def test_sharded_model_is_declined_and_updated_as_without_a_recovery(trained: Path, action: str) -> None:
    """Rank 1 alone sees the NaN: what it did by itself would leave rank 0 with another model."""
    for rank in (0, 1):
        found = torch.load(trained / f"{action}-{rank}.pt")
        expected = torch.load(trained / f"left alone-{rank}.pt")
        assert all(torch.equal(a.isnan(), b.isnan()) for a, b in zip(found, expected, strict=True))
        assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(found, expected, strict=True))
    assert recoveries(trained, action, 0) == []
    (event,) = recoveries(trained, action, 1)
    assert (event.subject, event.severity, event.step) == ("declined", "warning", BAD)
    assert "cannot decide for the others" in event.message
    assert "all-reduce whether the loss and the gradient norm are finite" in event.message


@pytest.mark.parametrize("action", ACTIONS)
def test_bad_micro_step_of_one_rank_is_recovered_on_all_with_accelerate(trained: Path, action: str) -> None:
    name = f"accelerate {action}"
    here, there = states(trained, name, 0), states(trained, name, 1)
    assert all(are_equal(one, other) for one, other in zip(here, there, strict=True))
    assert all(bool(parameter.isfinite().all()) for parameter in here[-1])
    assert are_equal(here[BAD], here[BAD - 1]) == (action == "skip") and not are_equal(here[-1], here[BAD])
    # A rollback goes back to what was there before the newest good update.
    assert are_equal(here[BAD], here[BAD - 2]) == (action == "rollback")
    for rank in (0, 1):
        assert [(e.subject, e.step) for e in recoveries(trained, name, rank)] == [(action, BAD)]
