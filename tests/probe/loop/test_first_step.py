"""`watch(first_step=N)`: a resumed training counts on, and everything else is as in one that begins at 0."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from early_arming import early_arming
from journal_differences import differences
from journals import Journal
from progress_documents import progress_of
from run_numbers import run_of, steps_of
from small_training import batches, seeded_model, train
from torch import nn
from torch.nn import functional as F

import probe
from probe.wire import Event, Frame

pytestmark = pytest.mark.usefixtures("one_thread")
FIRST = 41_000  # a multiple of all periods, so that the same is due as at 0
STEPS = 30


def trained(folder: Path | None, **options: Any) -> dict[str, torch.Tensor]:
    """Train the small model, watched where there is a folder; returns its weights."""
    model = seeded_model()
    optimizer = torch.optim.AdamW(model.parameters())
    if folder is None:
        train(model, optimizer, STEPS)
    else:
        with probe.watch(model, optimizer, spool=folder, run="run", **options):
            train(model, optimizer, STEPS)
    return model.state_dict()


def moved_back(journal: Journal, by: int) -> Journal:
    """The same journal as if its steps had begun at 0."""
    for name in ("frames", "events"):
        records: list[Frame] | list[Event] = getattr(journal, name)
        records[:] = [msgspec.structs.replace(one, step=one.step - by) for one in records]  # type: ignore
    assert journal.end is not None
    end = msgspec.structs.replace(journal.end, step=journal.end.step - by)
    return dataclasses.replace(journal, end=end)


@pytest.mark.parametrize("in_c", [False, True])
def test_first_step_moves_the_numbers_and_nothing_else(tmp_path: Path, in_c: bool) -> None:
    plain = trained(None)
    with early_arming(in_c=in_c) as followed:
        from_zero = trained(tmp_path / "zero")
        from_there = trained(tmp_path / "there", first_step=FIRST)
    assert bool(followed.steps) == in_c
    assert all(torch.equal(plain[name], from_there[name]) for name in plain)
    assert all(torch.equal(from_zero[name], from_there[name]) for name in plain)
    there = run_of(tmp_path / "there")
    assert steps_of(there) == list(range(FIRST, FIRST + STEPS))
    assert there.end is not None and there.end.step == FIRST + STEPS - 1
    assert differences(run_of(tmp_path / "zero"), moved_back(there, FIRST)) == []


def test_first_looks_are_at_the_first_steps_of_a_resumed_training(spool: Path) -> None:
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer, first_step=1003, overhead_limit=0.0):
        train(model, optimizer, 22)
    frames = run_of(spool).frames
    assert [f.step for f in frames if f.module_columns] == [1003, 1004, 1005, 1007, 1011, 1019]
    norms = [f.step for f in frames if any(c.name == "parameter_norm" for c in f.columns)]
    assert norms == [1010, 1020]


def test_event_of_a_resumed_training_has_its_own_step(spool: Path) -> None:
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer, first_step=500) as run:
        for step, (inputs, targets) in enumerate(batches(4)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            (loss * math.nan if step == 2 else loss).backward()
            if step != 2:
                optimizer.step()
        assert (run.steps_made, "4 steps" in repr(run)) == (4, True)
    (event,) = [event for event in run_of(spool).latest_events if event.severity == "critical"]
    assert event.step == 502 and "step 502" in event.message


def test_event_before_the_first_step_of_a_resumed_training_has_its_number(spool: Path) -> None:
    model = seeded_model()
    with probe.watch(model, first_step=500) as run:
        assert run.steps_made == 0
        run.record_event("Nothing was trained yet")
        run.clear(report=False)
    events = {event.kind: event for event in run_of(spool).latest_events}
    assert events["cleared"].step == 500 and events["cleared"].message.startswith("Cleared after 0 steps")
    assert {event.step for event in events.values()} == {500}


def test_level_off_of_a_resumed_training_counts_on(spool: Path) -> None:
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer, level="off", first_step=70) as run:
        train(model, optimizer, 3)
        run.set_level("basic")
        train(model, optimizer, 2)
    assert steps_of(run_of(spool)) == [74] or steps_of(run_of(spool)) == [73, 74]


def test_epoch_and_progress_of_a_resumed_training_count_its_own_steps(spool: Path) -> None:
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer, first_step=300) as run:
        run.start_training(total_steps=1000)
        train(model, optimizer, 5)
        run.end_epoch()
        run.update_progress(step=305)
        state = run._tracker.epochs.count  # type: ignore[union-attr]
        assert (state.ended, state.steps, state.newest_steps) == (1, 305, 5)
    told = progress_of(spool)[-1]
    assert (told.step, told.steps_before, told.total_steps) == (305, 0, 1000)


def test_second_watch_with_another_first_step_is_refused() -> None:
    model = nn.Linear(2, 1)
    with probe.watch(model, first_step=10):
        assert probe.watch(model, first_step=10) is probe.watch(model)
        with pytest.raises(ValueError, match=r"first_step=11 cannot change while a session runs, .* is 10"):
            probe.watch(model, first_step=11)
