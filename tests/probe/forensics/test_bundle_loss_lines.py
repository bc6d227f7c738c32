"""Which losses of a script can be made again from a bundle, and what is said of the others."""

import sys
from collections.abc import Callable
from pathlib import Path

import bundled_losses
import pytest
import torch
from journals import read_journal

import probe
from probe.errors import BundleError
from probe.forensics.bundle import loss_lines
from probe.forensics.bundle.reproduce import Reproduction, read_bundle, reproduce
from probe.forensics.bundle.schema import Bundle, LossMaker
from probe.forensics.bundle.values import Decoder
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


def test_loss_module_of_a_stranger_sets_neither_hooks_nor_methods():
    theirs = ["forward", "_forward_pre_hooks", "_backward_hooks", "__class__", "_call_impl"]
    pairs = [[key, {"module": "0"}] for key in theirs] + [["reduction", "sum"], ["training", False]]
    described = {"tuple": [{"dict": pairs}, {"dict": []}]}
    model = bundled_losses.build()
    decoder = Decoder(lambda _: torch.zeros(1), named={("module", "0"): model[0]})
    made = loss_lines._decoded({"loss module": ["MSELoss", described]}, decoder)
    assert (type(made), made.reduction, made.training) == (torch.nn.MSELoss, "sum", False)
    assert made.forward.__func__ is torch.nn.MSELoss.forward
    assert not (made._forward_pre_hooks or made._backward_hooks)
    assert made(torch.ones(3), torch.zeros(3)) == 3.0


@pytest.mark.parametrize("content", [[], ["MSELoss"], [["MSELoss"], {}], ["Linear", 1], 5])
def test_loss_module_that_is_none_is_refused(content):
    with pytest.raises(BundleError):
        loss_lines._decoded({"loss module": content}, Decoder(lambda _: torch.zeros(1)))


def test_lines_of_installed_packages_are_nobodys_script():
    found = LossMaker(
        file="checkpoint.py",
        function="CheckpointFunction.backward",
        lines=(1, 2, 3),
        text="",
        values=[],
        outside=[],
    )
    assert "torch.utils.checkpoint" in sys.modules
    with pytest.raises(BundleError, match="no script that is loaded here"):
        loss_lines.loss_code_of(found, Decoder(lambda _: torch.zeros(1)))
