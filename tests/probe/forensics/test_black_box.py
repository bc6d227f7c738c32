"""Inputs of the newest steps: held within limits, written into bundles, and named when they moved."""

import pytest
import torch
from bundle_models import Planted
from bundled_step import Bundles, content_of, event_of
from journals import read_journal
from replayed_step import batch, run_step

import probe
from probe.errors import BundleError
from probe.forensics.arguments import HeldArguments
from probe.forensics.bundle.batches import load_batches
from probe.forensics.bundle.black_box import BlackBox
from probe.forensics.bundle.reproduce import read_bundle
from probe.forensics.capture import RootCapture

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_switched_off")


def capture_of(*args) -> RootCapture:
    capture = RootCapture(torch.nn.Identity(), size_cap_bytes=0, parameter_stamp=None)
    capture.arguments = HeldArguments(args, {})
    return capture


def box_of(tensors, *, steps=8, limit_bytes=1 << 20) -> BlackBox:
    box = BlackBox(steps=steps, limit_bytes=limit_bytes)
    for step, tensor in enumerate(tensors):
        box.keep(step, [capture_of(tensor)])
    return box


def steps_in(box: BlackBox) -> list[int]:
    return [held.step for held in box.before(10**9)]


def test_newest_steps_are_held_in_the_same_memory():
    tensors = [torch.full((4,), float(step)) for step in range(6)]
    box = box_of(tensors, steps=3)
    assert steps_in(box) == [3, 4, 5]
    held = [batch.arguments[0].again()[0][0].data_ptr() for batch in box.before(5)]
    assert held == [tensors[3].data_ptr(), tensors[4].data_ptr()]


@pytest.mark.parametrize(("limit", "left"), [(32, [4, 5]), (31, [5]), (16, [5]), (15, [])])
def test_bytes_are_limited(limit, left):
    assert steps_in(box_of([torch.zeros(4)] * 6, limit_bytes=limit)) == left


def test_memory_that_an_input_is_a_part_of_counts_unless_it_stays():
    hidden = [torch.zeros(8, 16, 4) for _ in range(4)]
    assert steps_in(box_of([whole[:, 0] for whole in hidden], limit_bytes=8 * 16 * 4 * 4 - 1)) == []
    rows = torch.zeros(64, 4).split(4)[:6]
    assert steps_in(box_of(rows, limit_bytes=256)) == [2, 3, 4, 5]


@pytest.mark.parametrize(("columns", "limit"), [(16, 1 << 12), (16, 256), (4, 700), (15, 1 << 12)])
def test_inputs_of_followed_steps_are_held_like_those_of_others(columns: int, limit: int) -> None:
    """Tokens are often a part of the batch: `rows[:, :-1]`."""
    batches = [torch.zeros(2, 16) for _ in range(6)]
    followed = BlackBox(steps=4, limit_bytes=limit)
    for step, whole in enumerate(batches):
        followed.keep_held(step, [HeldArguments((whole[:, :columns],), {})])

    expected = steps_in(box_of([whole[:, :columns] for whole in batches], steps=4, limit_bytes=limit))
    assert steps_in(followed) == expected
    assert expected


def test_two_parts_of_the_same_memory_count_it_once():
    box = BlackBox(steps=8, limit_bytes=32 * 4)
    for step in range(3):
        halves = torch.zeros(32).chunk(2)
        box.keep(step, [capture_of(half) for half in halves])
    assert steps_in(box) == [2]


def test_a_step_that_is_too_large_leaves_the_others():
    box = box_of([torch.zeros(4), torch.zeros(100), torch.zeros(4)], limit_bytes=64)
    assert steps_in(box) == [0, 2]


def test_nothing_is_held_where_that_is_asked_for_and_after_forgetting():
    assert steps_in(box_of([torch.zeros(4)], steps=0)) == []
    box = box_of([torch.zeros(4)])
    box.forget()
    assert steps_in(box) == []


def test_input_that_grew_is_named_with_its_size():
    scales = [1.0, 1.2, 0.9, 1.1, 40.0, 1.0]
    box = box_of([torch.tensor([0.1, -scale]) for scale in scales])
    (move,) = box.moves(5)
    assert (move.series, move.step, move.what) == ("args[0]", 4, "input")
    assert move.times == pytest.approx(40.0 / 1.1)
    assert box.moves(3) == []


@pytest.mark.parametrize(
    "tensors",
    [
        [torch.randn(64) * 2.0**step for step in range(6)],
        [torch.zeros(3)] * 6,
        [torch.arange(3) * 100**step for step in range(6)],
        [torch.ones(2), torch.ones(2), torch.ones(2) * 100],
    ],
    ids=["grows slowly", "zeros", "token ids", "too few"],
)
def test_input_that_is_no_surprise_is_not_named(tensors):
    assert box_of(tensors).moves(10) == []


def test_input_that_is_not_finite_is_named():
    box = box_of([torch.ones(2)] * 4 + [torch.tensor([1.0, float("nan")])])
    assert [move.series for move in box.moves(4)] == ["args[0]"]


def train(model, optimizer, inputs, *, fails_at):
    for step, given in enumerate(inputs):
        output = model(given, 1.0 if step == fails_at else 0.0)
        output.pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def bundle_of_training(spool, inputs, *, fails_at, **options):
    torch.manual_seed(3)
    model = Planted()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with probe.watch(model, optimizer, connect="", **options):
        train(model, optimizer, inputs, fails_at=fails_at)
    (run,) = spool.iterdir()
    (folder,) = (run / "bundles").iterdir()
    return run, folder


def test_bundle_has_the_inputs_of_the_steps_before(spool):
    torch.manual_seed(5)
    inputs = [torch.randn(16, 4) for _ in range(12)]
    _, folder = bundle_of_training(spool, inputs, fails_at=11, black_box_steps=3)
    found = load_batches(folder)
    # The failing step is one of the three that are held.
    assert [held.step for held in found] == [9, 10, 11]
    assert all(torch.equal(held.args[0], inputs[held.step]) for held in found)
    assert [held.args[1] for held in found] == [0.0, 0.0, 1.0]


def test_event_says_that_an_input_moved_first(spool):
    torch.manual_seed(5)
    inputs = [torch.randn(16, 4).clamp(-2, 2) * (300.0 if step == 39 else 1.0) for step in range(40)]
    run, _ = bundle_of_training(spool, inputs, fails_at=39)
    event = next(event for event in read_journal(run).latest_events if event.kind == "nonfinite_loss")
    (why,) = [line for line in event.message.splitlines() if line.startswith("What changed before")]
    assert why.endswith("x its median at step 39")
    assert " <- largest element of input args[0] " in why


def test_memory_that_is_filled_anew_is_left_out_and_said(spool):
    memory = torch.zeros(16, 4)

    def filled(step):
        return memory.normal_(generator=torch.Generator().manual_seed(step))

    _, folder = bundle_of_training(spool, (filled(step) for step in range(4)), fails_at=3)
    assert [held.step for held in load_batches(folder)] == [3]
    left_out = read_bundle(folder).left_out
    assert [line.partition(":")[0] for line in left_out] == [f"the inputs of step {n}" for n in range(3)]
    assert all("changed in place" in line for line in left_out)


def test_no_inputs_are_written_where_they_are_not_to_be(spool):
    inputs = [torch.randn(16, 4) for _ in range(4)]
    _, folder = bundle_of_training(spool, inputs, fails_at=3, bundle_inputs=False)
    with pytest.raises(BundleError, match="holds no inputs"):
        load_batches(folder)


def test_inputs_of_earlier_steps_go_first_where_there_is_no_room(spool):
    torch.manual_seed(3)
    step = run_step(Planted(), batch(32), shift=1.0)
    bundles = Bundles(spool)
    plain = bundles.writer.write(event_of(bundles.start, step=7), content_of(step))
    folder = bundles.recorder.folder.parent / "bundles" / event_of(bundles.start, step=7).id
    size = read_bundle(folder).contents.tensors_bytes
    limited = type(bundles.writer)(bundles.recorder, bundles.start, limit_bytes=size)
    past = box_of([torch.randn(4096)]).before(7)
    event = event_of(bundles.start, step=8)
    limited.write(event, content_of(step, past))
    bundles.close()
    found = read_bundle(folder.with_name(event.id))
    (left_out,) = [line for line in found.left_out if line.startswith("the inputs")]
    assert "the steps before: " in left_out and " more than bundle_limit_bytes (" in left_out
    assert found.contents.gradients
    assert found.contents.batches == []
    assert "dashboard replay" in plain
