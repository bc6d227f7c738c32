"""Which losses of a script can be made again from a bundle, and what is said of the others."""

from collections.abc import Callable
from pathlib import Path

import bundled_losses
import pytest
import torch
from journals import read_journal

import probe
from probe.bundle.reproduce import Reproduction, read_bundle, reproduce
from probe.bundle.schema import Bundle
from probe.wire import Event

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_switched_off")


def replayed(spool: Path, train: Callable) -> tuple[Reproduction, Bundle, Event]:
    """Train until the loss is infinite; what came of the replay of that step, its bundle and its event."""
    torch.manual_seed(3)
    model = bundled_losses.build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def update():
        optimizer.step()
        optimizer.zero_grad()

    with probe.watch(model, optimizer, connect="", bundles=1):
        train(model, update)
    (folder,) = spool.iterdir()
    (bundle,) = (folder / "bundles").iterdir()
    (event,) = [event for event in read_journal(folder).latest_events if event.id == bundle.name]
    described = read_bundle(bundle)
    done = reproduce(described, bundle, bundled_losses.build)
    assert done.is_exact, done.replay.reason
    return done, described, event


@pytest.mark.parametrize(
    "train",
    [
        bundled_losses.with_loss_module,
        bundled_losses.with_several_calls,
        bundled_losses.with_accumulation,
        bundled_losses.with_function_of_the_module,
    ],
)
def test_loss_comes_again_with_its_origin(spool, train):
    done, described, event = replayed(spool, train)
    assert (done.has_loss, done.notes, described.left_out) == (True, (), [])
    assert done.replay.origin == event.origin is not None
    assert described.contents.loss_maker.function == train.__name__
    here, there = ([frame.line for frame in stack] for stack in (done.replay.forward, event.stacks.forward))
    assert here[-1:] == there[-1:]


def test_what_the_module_has_is_not_written(spool):
    _, described, _ = replayed(spool, bundled_losses.with_function_of_the_module)
    assert described.contents.loss_maker.outside == ["distance"]


def test_function_of_the_loop_itself_is_left_out_and_said(spool):
    done, described, event = replayed(spool, bundled_losses.with_function_of_its_own)
    reason = "penalty is a function, which a bundle cannot hold"
    assert described.left_out == [f"the lines that made the loss: {reason}"]
    assert not done.has_loss
    assert done.replay.origin.op == event.origin.op
