"""What `watch` records of real training loops: each step once, with the numbers that torch has."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_numbers import column_of, norms_of, run_of, scalars_of, steps_of
from small_training import batches, seeded_model, train
from torch import Tensor, nn
from torch.nn import functional as F

import probe
from probe.delivery.recorder.series_names import MAX_LOGGED_NAMES
from probe.wire.records import MAX_SCALAR_NAME, MAX_SCALARS

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.capability(21)
def test_watch_records_loss_and_norms_as_torch_has_them(spool: Path) -> None:
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    norms = []
    optimizer.register_step_pre_hook(
        lambda *_: norms.append([p.grad.double().norm().item() for p in model.parameters()])
    )
    with probe.watch(model, optimizer):
        losses = train(model, optimizer, 12)
    run = run_of(spool)
    assert steps_of(run) == list(range(12))
    np.testing.assert_allclose(scalars_of(run, "loss"), losses, rtol=1e-7)
    np.testing.assert_allclose(norms_of(run), norms, rtol=1e-6)
    totals = [math.sqrt(sum(v * v for v in row)) for row in norms]
    np.testing.assert_allclose(scalars_of(run, "grad_norm"), totals, rtol=1e-6)


def test_parameter_norm_comes_every_tenth_step(spool: Path) -> None:
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with probe.watch(model, optimizer, overhead_limit=0.0):
        train(model, optimizer, 21)
    frames = run_of(spool).frames
    steps = [f.step for f in frames if any(c.name == "parameter_norm" for c in f.columns)]
    assert steps == [0, 10, 20]
    expected = [p.double().norm().item() for p in model.parameters()]
    np.testing.assert_allclose(column_of(frames[20], "parameter_norm"), expected, rtol=1e-6)


def test_layout_names_parameters_and_layers_in_model_order(spool: Path) -> None:
    model = seeded_model()
    with probe.watch(model):
        pass
    layout = run_of(spool).layouts[0]
    assert [p.name for p in layout.parameters] == [name for name, _ in model.named_parameters()]
    assert [layer.name for layer in layout.layers] == ["0", "1", "4"]
    assert [layer.type for layer in layout.layers] == ["Linear", "BatchNorm1d", "Linear"]


def test_accumulation_is_one_step_with_the_mean_loss(spool: Path) -> None:
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    micro_losses = []
    with probe.watch(model, optimizer):
        for index, (inputs, targets) in enumerate(batches(12)):
            loss = F.cross_entropy(model(inputs), targets)
            micro_losses.append(loss.item())
            (loss / 4).backward()
            if index % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
    run = run_of(spool)
    expected = [sum(micro_losses[i : i + 4]) / 4 for i in (0, 4, 8)]
    assert steps_of(run) == [0, 1, 2]
    np.testing.assert_allclose(scalars_of(run, "loss"), expected, rtol=1e-6)
    np.testing.assert_allclose(scalars_of(run, "loss_raw"), np.array(expected), rtol=1e-6)
    assert scalars_of(run, "samples") == [32.0] * 3


def test_loss_that_is_divided_by_a_count_is_not_multiplied(spool: Path) -> None:
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer):
        for inputs, targets in batches(3):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets, reduction="sum") / 8
            loss.backward()
            optimizer.step()
    run = run_of(spool)
    assert steps_of(run) == [0, 1, 2]
    assert scalars_of(run, "loss") == scalars_of(run, "loss_raw")


def test_log_belongs_to_the_most_recent_backward(spool: Path) -> None:
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer) as run:
        for step, (inputs, targets) in enumerate(batches(3)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            run.log(before=step)
            optimizer.step()
            run.log(after=torch.tensor(float(step)), loss=100 + step)
    recorded = run_of(spool)
    assert scalars_of(recorded, "log/before") == [0, 1, 2]
    assert scalars_of(recorded, "log/after") == [0, 1, 2]
    assert scalars_of(recorded, "loss") == [100, 101, 102]


def test_log_of_too_long_or_too_many_names_keeps_every_loss(spool: Path) -> None:
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer) as run:
        for step, (inputs, targets) in enumerate(batches(4)):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            if step == 1:
                run.log(**{"n" * 2000: 4.0})
            if step == 2:  # several calls are one frame
                run.log(**{f"a{number}": 1.0 for number in range(3000)})
                run.log(**{f"b{number}": 1.0 for number in range(3000)})
            optimizer.step()
    recorded = run_of(spool)
    assert len(scalars_of(recorded, "loss")) == 4
    assert all(len(frame.scalars) <= MAX_SCALARS for frame in recorded.frames)
    (cut,) = (name for name in recorded.frames[1].scalars if "nnnn" in name)
    assert len(cut) <= MAX_SCALAR_NAME
    told = {event.severity: event for event in recorded.events if event.kind == "data_gap"}
    assert told["info"].evidence.value == 1
    assert told["warning"].evidence.value == 6000 + 1 - MAX_LOGGED_NAMES


def test_log_of_no_number_is_ignored_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    model = seeded_model()
    with probe.watch(model) as run:
        run.log(lr="high")
        run.log(lr="high")
    assert [record.message for record in caplog.records if "lr" in record.message] == [
        "nanscope: run.log(lr=...) got str; log one number or tensor (not recorded)"
    ]


def test_log_of_what_cannot_be_read_does_not_reach_the_script(caplog: pytest.LogCaptureFixture) -> None:
    class Odd:
        def __float__(self) -> float:
            raise RuntimeError("odd")

    model = seeded_model()
    with probe.watch(model) as run:
        run.log(large=10**400, odd=Odd(), absent=torch.ones(1, device="meta"))
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3


def test_closure_optimizer_is_measured_after_its_closure(spool: Path) -> None:
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer):
        for inputs, targets in batches(3):

            def closure(inputs: Tensor = inputs, targets: Tensor = targets) -> Tensor:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(inputs), targets)
                loss.backward()
                return loss

            optimizer.step(closure)
    frames = run_of(spool).frames
    assert [f.step for f in frames] == [0, 1, 2]
    assert all("loss" in f.scalars and f.scalars["grad_norm"] > 0 for f in frames)


def test_manual_update_without_optimizer_makes_steps(spool: Path) -> None:
    model = seeded_model()
    with probe.watch(model):
        for inputs, targets in batches(5):
            F.cross_entropy(model(inputs), targets).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter -= 0.1 * parameter.grad
                    parameter.grad = None
    frames = run_of(spool).frames
    assert [f.step for f in frames][:3] == [0, 1, 2]
    assert all(f.scalars["grad_norm"] > 0 for f in frames[1:])


def test_clipped_gradients_are_measured_before_clipping(spool: Path) -> None:
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    totals = []
    with probe.watch(model, optimizer):
        for inputs, targets in batches(3):
            optimizer.zero_grad()
            (100 * F.cross_entropy(model(inputs), targets)).backward()
            totals.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
            optimizer.step()
    assert min(totals) > 1.0
    assert scalars_of(run_of(spool), "grad_norm") == pytest.approx(totals, rel=1e-5)


def test_clip_gradients_of_a_model_nobody_watches_is_torchs() -> None:
    model, twin = seeded_model(), seeded_model()
    for network in (model, twin):
        torch.manual_seed(0)
        network(torch.ones(4, 6)).sum().backward()
    expected = nn.utils.clip_grad_norm_(twin.parameters(), 0.01)
    assert torch.equal(probe.clip_gradients(model, 0.01), expected)
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)  # type: ignore[arg-type]


def test_parameter_without_gradient_is_missing_not_zero(spool: Path) -> None:
    model = seeded_model()
    unused = nn.Linear(2, 2)
    model.register_module("unused", unused)
    model.forward = lambda x: nn.Sequential(*list(model)[:5])(x)  # type: ignore[method-assign]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer):
        train(model, optimizer, 1)
    frame = run_of(spool).frames[0]
    bits = np.unpackbits(np.frombuffer(frame.missing, dtype=np.uint8))[:8]
    assert bits.tolist() == [0, 0, 0, 0, 0, 0, 1, 1]


def test_evaluation_with_gradients_on_belongs_to_no_step(spool: Path) -> None:
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer):
        for _ in range(100):
            model(torch.ones(8, 6))
        (model(torch.ones(8, 6)).sum() * math.nan).backward()
        optimizer.step()
    run = run_of(spool)
    assert scalars_of(run, "samples") == [8.0]
    (event,) = [e for e in run.latest_events if e.kind == "nonfinite_loss"]
    assert event.origin is not None


def test_forward_and_backward_that_raise_are_taken_back(spool: Path) -> None:
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            raise MemoryError("backward")

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 2)

        def forward(self, x: Tensor, fault: str) -> Tensor:
            if fault == "forward":
                raise MemoryError("forward")
            return Broken.apply(self.layer(x)) if fault == "backward" else self.layer(x)

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    losses = []
    with probe.watch(model, optimizer):
        for fault in ("", "forward", "backward", "", ""):
            try:
                optimizer.zero_grad()
                loss = model(torch.ones(8, 6), fault).sum()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            except MemoryError as error:
                assert str(error) == fault
    run = run_of(spool)
    assert scalars_of(run, "loss") == losses
    assert scalars_of(run, "samples") == [8.0] * 3


def test_update_that_the_script_skips_by_itself_counts_as_a_step(spool: Path) -> None:
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses, norms = [], []
    with probe.watch(model, optimizer):
        for step, (inputs, targets) in enumerate(batches(5)):
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            losses.append(loss.item())
            norms.append(nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))
            if step not in (2, 3):
                optimizer.step()
    run = run_of(spool)
    assert steps_of(run) == [0, 1, 2, 3, 4]
    assert scalars_of(run, "loss") == pytest.approx(losses)
    assert scalars_of(run, "samples") == [8.0] * 5
    assert scalars_of(run, "grad_norm") == pytest.approx([float(norm) for norm in norms])


def test_resized_and_converted_parameters_keep_their_rows(spool: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 150), nn.Linear(150, 150), nn.Linear(150, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    inputs = torch.ones(8, 6)
    norms = []
    with probe.watch(model, optimizer):
        for step in range(4):
            if step == 1:
                model.double()
                inputs = inputs.double()
            if step == 2:
                model[0].weight.data = torch.ones(9, 6).double()  # type: ignore[union-attr]
                model[0].bias.data = torch.ones(9).double()  # type: ignore[union-attr]
                model[1].weight.data = torch.ones(150, 9).double()  # type: ignore[union-attr]
            optimizer.zero_grad()
            model(inputs).sum().backward()
            norms.append([p.grad.double().norm().item() for p in model.parameters() if p.grad is not None])
            optimizer.step()
    run = run_of(spool)
    assert steps_of(run) == [0, 1, 2, 3]
    np.testing.assert_allclose(norms_of(run), norms, rtol=1e-5)


def test_unfrozen_and_replaced_parameters_get_a_layout_of_their_own(spool: Path) -> None:
    model = seeded_model()
    model[0].requires_grad_(False)  # type: ignore[index]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer, features={"activations": 0}):
        train(model, optimizer, 3)
        model[0].requires_grad_(True)  # type: ignore[index]
        train(model, optimizer, 22)
        model[4] = nn.Linear(16, 3)  # type: ignore[index]
        train(model, torch.optim.Adam(model.parameters()), 2)
    journal = run_of(spool)
    names = [[parameter.name for parameter in layout.parameters] for layout in journal.layouts]
    trainable = [name for name, _ in model.named_parameters()]
    assert names == [trainable[2:], trainable, trainable]
    assert [frame.layout for frame in journal.frames] == [0] * 3 + [1] * 22 + [2] * 2
    norms = column_of(journal.frames[-1], "grad_norm")
    expected = [p.grad.norm().item() for p in model.parameters() if p.grad is not None]
    np.testing.assert_allclose(norms, expected, rtol=1e-5)
