"""A session writes bundles of critical events whose step is at hand, and of exceptions."""

import json

import pytest
import torch
from bundle_models import Planted
from journals import read_journal
from replayed_step import batch

import probe
from probe.forensics.bundle.batches import load_batches
from probe.forensics.bundle.reproduce import read_bundle, reproduce

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_switched_off")


def train(model, optimizer, *, steps=4, fails_at=None, columns=4):
    for step in range(steps):
        fails = step == fails_at
        output = model(batch(16, columns if fails else 4), 1.0 if fails and columns == 4 else 0.0)
        output.pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def session(**options):
    torch.manual_seed(3)
    model = Planted()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    return model, optimizer, probe.watch(model, optimizer, connect="", **options)


def bundles_of(spool):
    (run,) = spool.iterdir()
    return run, sorted((run / "bundles").glob("*"))


def again(folder):
    return reproduce(read_bundle(folder), folder, Planted)


def test_nan_leaves_one_bundle_that_its_event_names(spool):
    model, optimizer, run = session()
    with run:
        train(model, optimizer, fails_at=3)
    folder, (bundle,) = bundles_of(spool)
    event = next(event for event in read_journal(folder).latest_events if event.id == bundle.name)
    assert event.message.splitlines()[-1] == f"Bundle for dashboard replay: {bundle}"
    steps = json.loads((bundle / "statistics.json").read_text(encoding="utf-8"))
    assert [step["step"] for step in steps] == [0, 1, 2, 3]
    done = again(bundle)
    assert (done.is_exact, done.replay.origin) == (True, event.origin)
    assert event.origin.op == "sqrt"


def test_event_is_in_the_journal_before_its_bundle_is_written(spool):
    model, optimizer, run = session()
    with run:
        train(model, optimizer, fails_at=3)
    folder, (bundle,) = bundles_of(spool)
    states = [event for event in read_journal(folder).events if event.id == bundle.name]
    assert ["undle " in state.message.splitlines()[-1] for state in states[:2]] == [False, True]


def test_exception_of_a_forward_leaves_a_bundle_that_raises_it(spool):
    model, optimizer, run = session()
    with pytest.raises(RuntimeError, match="mat1"), run:
        train(model, optimizer, fails_at=3, columns=5)
    _, (bundle,) = bundles_of(spool)
    assert again(bundle).has_raised
    assert not list(bundle.parent.glob(".*"))


def test_exception_after_a_forward_leaves_the_inputs_of_its_step(spool):
    model, optimizer, run = session()
    given = batch(6, 4)
    with pytest.raises(IndexError), run:
        train(model, optimizer)
        output = model(given)
        torch.nn.functional.cross_entropy(output.reshape(1, -1), torch.tensor([10_000]))
    _, (bundle,) = bundles_of(spool)
    done = again(bundle)
    assert (done.is_exact, done.outputs.identical, done.gradients) == (True, 1, 0)
    assert torch.equal(load_batches(bundle)[-1].args[0], given)


def test_exception_elsewhere_leaves_its_statistics(spool):
    model, optimizer, run = session()
    with pytest.raises(KeyError), run:
        train(model, optimizer)
        raise KeyError("elsewhere")
    _, (bundle,) = bundles_of(spool)
    assert read_bundle(bundle).not_replayable == "nothing of the step was at hand"


def test_exception_that_the_script_handled_is_not_taken_for_a_later_one(spool):
    model, optimizer, run = session()
    with pytest.raises(KeyError), run:
        train(model, optimizer)
        with pytest.raises(RuntimeError, match="mat1"):
            model(batch(6, 5))
        raise KeyError("elsewhere")
    _, (bundle,) = bundles_of(spool)
    assert read_bundle(bundle).contents is None


def test_exception_of_another_model_leaves_no_inputs_of_this_one(spool):
    model, optimizer, run = session()
    with pytest.raises(RuntimeError, match="mat1"), run:
        train(model, optimizer)
        torch.nn.Linear(4, 4)(batch(6, 5))
    _, (bundle,) = bundles_of(spool)
    assert read_bundle(bundle).contents is None


def test_anomaly_that_is_raised_has_its_bundle(spool):
    model, optimizer, run = session(mode="raise")
    with pytest.raises(probe.AnomalyError), run:
        train(model, optimizer, fails_at=3)
    _, bundles = bundles_of(spool)
    assert again(next(folder for folder in bundles if not read_bundle(folder).not_replayable)).is_exact


@pytest.mark.parametrize("options", [{"bundles": 0}, {}])
def test_healthy_run_and_one_that_wants_none_have_no_bundle(spool, options):
    model, optimizer, run = session(**options)
    with run:
        train(model, optimizer, fails_at=3 if options else None)
    assert bundles_of(spool)[1] == []


def test_inputs_are_left_out_where_they_must_be(spool):
    model, optimizer, run = session(bundle_inputs=False)
    with run:
        train(model, optimizer, fails_at=3)
    _, (bundle,) = bundles_of(spool)
    assert read_bundle(bundle).contents.calls == []


@pytest.mark.parametrize("option", [{"bundles": -1}, {"bundle_limit_bytes": 0}, {"bundle_inputs": 1}])
def test_option_out_of_its_range_is_refused(option):
    with pytest.raises(ValueError, match=next(iter(option))):
        probe.watch(Planted(), **option)


def test_exception_of_half_a_character_is_told(spool):
    model, optimizer, run = session()
    with pytest.raises(OSError, match="no such picture"), run:
        train(model, optimizer)
        raise OSError("no such picture: \udcff.png")
    folder, (bundle,) = bundles_of(spool)
    (event,) = (event for event in read_journal(folder).latest_events if event.kind == "exception")
    assert event.message.startswith("OSError: no such picture: ?.png")
    assert read_bundle(bundle).event.message.startswith("OSError: no such picture: ?.png")
