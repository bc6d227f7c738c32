"""Stacks are whole for the first 20 events of a kind and subject; later ones name the lines alone."""

import pytest
import torch
from journals import read_journal
from torch import nn

import probe

pytestmark = pytest.mark.usefixtures("nothing_switched_off")


def test_first_twenty_stacks_have_source_and_later_ones_lines(spool):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with probe.watch(model, optimizer, connect="", replay=False, bundles=0) as run:
        for _ in range(23):
            run.record_event("again")
        run.record_event("another")
    (folder,) = spool.iterdir()
    events = [event for event in read_journal(folder).latest_events if event.kind == "custom"]
    own = [event.stacks.training_loop[-1] for event in events if event.subject == "again"]
    assert [bool(frame.code) for frame in own] == [True] * 20 + [False] * 3
    assert {frame.file for frame in own} == {__file__}
    (other,) = (event for event in events if event.subject == "another")
    assert "run.record_event(" in other.stacks.training_loop[-1].code


def test_source_is_left_out_from_the_twenty_first_episode_on(spool):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with probe.watch(model, optimizer, connect="", replay=False, bundles=0) as run:
        for _ in range(25):
            model(torch.zeros(1, 2)).sum().backward()
            optimizer.step()
            run.record_event("at every step")
    (folder,) = spool.iterdir()
    events = [event for event in read_journal(folder).latest_events if event.kind == "custom"]
    assert [bool(event.stacks.training_loop[-1].code) for event in events] == [True] * 20 + [False] * 5
    assert len({event.stacks.training_loop[-1].line for event in events}) == 1
