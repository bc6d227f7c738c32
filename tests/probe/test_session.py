"""`watch` on real training loops: what is recorded, and that training does not notice."""

import copy
import gc
import io
import logging
import math
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from journals import Journal, read_journal
from torch import Tensor, nn
from torch.nn import functional as F

import probe
from probe import AnomalyError
from probe.columns import unpack_column


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))


def batches(count: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield torch.randn(8, 6, generator=generator), torch.randint(3, (8,), generator=generator)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    losses = []
    for inputs, targets in batches(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def run_of(spool: Path) -> Journal:
    (folder,) = spool.iterdir()
    return read_journal(folder)


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "spool"


def test_training_with_probe_is_bit_identical() -> None:
    plain, watched = make_model(), make_model()
    torch.manual_seed(7)
    expected = train(plain, torch.optim.AdamW(plain.parameters()), 200)
    generator_after = torch.get_rng_state()
    torch.manual_seed(7)
    optimizer = torch.optim.AdamW(watched.parameters())
    with probe.watch(watched, optimizer):
        losses = train(watched, optimizer, 200)
    assert losses == expected
    assert torch.equal(torch.get_rng_state(), generator_after)
    for name, value in plain.state_dict().items():
        assert torch.equal(value, watched.state_dict()[name]), name


def test_watch_records_loss_and_norms_as_torch_has_them(spool: Path) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    norms = []
    optimizer.register_step_pre_hook(
        lambda *_: norms.append([p.grad.double().norm().item() for p in model.parameters()])
    )
    with probe.watch(model, optimizer):
        losses = train(model, optimizer, 12)
    frames = run_of(spool).frames
    assert [frame.step for frame in frames] == list(range(12))
    np.testing.assert_allclose([frame.scalars["loss"] for frame in frames], losses, rtol=1e-7)
    recorded = [unpack_column(next(c for c in f.columns if c.name == "grad_norm")) for f in frames]
    np.testing.assert_allclose(recorded, norms, rtol=1e-6)
    totals = [math.sqrt(sum(v * v for v in row)) for row in norms]
    np.testing.assert_allclose([frame.scalars["grad_norm"] for frame in frames], totals, rtol=1e-6)


def test_parameter_norm_comes_every_tenth_step(spool: Path) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with probe.watch(model, optimizer):
        train(model, optimizer, 21)
    frames = run_of(spool).frames
    steps = [f.step for f in frames if any(c.name == "parameter_norm" for c in f.columns)]
    assert steps == [0, 10, 20]
    column = next(c for c in frames[20].columns if c.name == "parameter_norm")
    np.testing.assert_allclose(
        unpack_column(column), [p.double().norm().item() for p in model.parameters()], rtol=1e-6
    )


def test_layout_names_parameters_and_layers_in_model_order(spool: Path) -> None:
    model = make_model()
    with probe.watch(model):
        pass
    layout = run_of(spool).layouts[0]
    assert [p.name for p in layout.parameters] == [name for name, _ in model.named_parameters()]
    assert [layer.name for layer in layout.layers] == ["0", "1", "4"]
    assert [layer.type for layer in layout.layers] == ["Linear", "BatchNorm1d", "Linear"]


def test_accumulation_is_one_step_with_the_summed_loss(spool: Path) -> None:
    model = make_model()
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
    frames = run_of(spool).frames
    expected = [sum(micro_losses[i : i + 4]) for i in (0, 4, 8)]
    assert [f.step for f in frames] == [0, 1, 2]
    np.testing.assert_allclose([f.scalars["loss"] for f in frames], expected, rtol=1e-6)
    np.testing.assert_allclose([f.scalars["loss_raw"] for f in frames], np.array(expected) / 4, rtol=1e-6)
    assert [f.scalars["samples"] for f in frames] == [32.0] * 3


def test_loss_that_is_divided_by_a_count_is_not_multiplied(spool: Path) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer):
        for inputs, targets in batches(3):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets, reduction="sum") / 8
            loss.backward()
            optimizer.step()
    frames = run_of(spool).frames
    assert all(f.scalars["loss"] == f.scalars["loss_raw"] for f in frames)


def test_log_belongs_to_the_most_recent_backward(spool: Path) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer) as run:
        for step, (inputs, targets) in enumerate(batches(3)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            run.log(before=step)
            optimizer.step()
            run.log(after=torch.tensor(float(step)), loss=100 + step)
    frames = run_of(spool).frames
    assert [f.scalars["log/before"] for f in frames] == [0, 1, 2]
    assert [f.scalars["log/after"] for f in frames] == [0, 1, 2]
    assert [f.scalars["loss"] for f in frames] == [100, 101, 102]


def test_log_of_no_number_is_ignored_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    model = make_model()
    with probe.watch(model) as run:
        run.log(lr="high")
        run.log(lr="high")
    assert [record.message for record in caplog.records if "lr" in record.message] == [
        "nanscope: run.log(lr=...) got str; log one number or tensor (not recorded)"
    ]


def test_closure_optimizer_is_measured_after_its_closure(spool: Path) -> None:
    model = make_model()
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
    model = make_model()
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
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    totals = []
    with probe.watch(model, optimizer):
        for inputs, targets in batches(3):
            optimizer.zero_grad()
            (100 * F.cross_entropy(model(inputs), targets)).backward()
            totals.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
            optimizer.step()
    recorded = [f.scalars["grad_norm"] for f in run_of(spool).frames]
    np.testing.assert_allclose(recorded, totals, rtol=1e-5)


def test_parameter_without_gradient_is_missing_not_zero(spool: Path) -> None:
    model = make_model()
    unused = nn.Linear(2, 2)
    model.register_module("unused", unused)
    model.forward = lambda x: nn.Sequential(*list(model)[:5])(x)  # type: ignore[method-assign]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer):
        train(model, optimizer, 1)
    frame = run_of(spool).frames[0]
    bits = np.unpackbits(np.frombuffer(frame.missing, dtype=np.uint8))[:8]
    assert bits.tolist() == [0, 0, 0, 0, 0, 0, 1, 1]


class SqrtAtZero(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.last = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        return self.last(torch.sqrt(hidden * 0.0))


def test_nan_in_backward_names_its_op_module_and_line(spool: Path) -> None:
    model = SqrtAtZero()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    event = next(e for e in run_of(spool).events if e.kind == "nonfinite_gradient")
    assert event.origin is not None
    assert (event.origin.phase, event.origin.module) == ("backward", "")
    assert "Sqrt" in event.origin.op
    assert event.stacks.forward[-1].function.endswith("forward")
    assert "torch.sqrt(hidden * 0.0)" in event.stacks.forward[-1].code
    assert event.stacks.training_loop[-1].function == "test_nan_in_backward_names_its_op_module_and_line"


def test_nonfinite_loss_and_its_gradients_are_one_event(spool: Path) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer):
        (model(torch.ones(4, 6)).sum() * math.inf).backward()
        optimizer.step()
    kinds = [e.kind for e in run_of(spool).latest_events if e.severity == "critical"]
    assert kinds == ["nonfinite_loss"]


def test_skipped_update_counts_as_a_step(spool: Path) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer):
        for step, (inputs, targets) in enumerate(batches(6)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            (loss * math.nan if step == 3 else loss).backward()
            if torch.isfinite(nn.utils.clip_grad_norm_(model.parameters(), 1.0)):
                optimizer.step()
    journal = run_of(spool)
    assert [f.step for f in journal.frames] == [0, 1, 2, 3, 4, 5]
    assert math.isnan(journal.frames[3].scalars["loss"])
    assert [e.step for e in journal.latest_events if e.kind == "nonfinite_loss"] == [3]


def test_mode_raise_stops_before_the_update() -> None:
    model = SqrtAtZero()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = copy.deepcopy(model.state_dict())
    with (
        probe.watch(model, optimizer, mode="raise"),
        pytest.raises(AnomalyError, match="NaN at step 0 began as Inf in the root module"),
    ):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_mode_warn_warns_once_for_an_episode() -> None:
    model = SqrtAtZero()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(RuntimeWarning, match="nonfinite_gradient: NaN at step 0 began as Inf") as seen:
        with probe.watch(model, optimizer, mode="warn"):
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.ones(2, 4)).sum().backward()
                if torch.isfinite(nn.utils.clip_grad_norm_(model.parameters(), 1.0)):
                    optimizer.step()
    assert len(seen) == 1


def test_exception_in_the_block_is_recorded_and_passes_on(spool: Path) -> None:
    model = make_model()
    with pytest.raises(KeyError, match="lost"), probe.watch(model):
        raise KeyError("lost")
    (event,) = run_of(spool).latest_events
    assert (event.kind, event.severity, event.subject) == ("exception", "critical", "KeyError")
    frame = event.stacks.training_loop[-1]
    assert frame.code.splitlines()[frame.line - frame.code_first_line].strip() == 'raise KeyError("lost")'
    assert run_of(spool).end is not None


def test_second_watch_returns_the_running_session() -> None:
    model = make_model()
    with probe.watch(model) as first:
        assert probe.watch(model) is first


def test_close_takes_everything_back() -> None:
    model = make_model()
    backward, clip = torch.autograd.backward, nn.utils.clip_grad_norm_
    run = probe.watch(model)
    assert "__call__" in nn.Sequential.__dict__
    run.close()
    run.close()
    assert "__call__" not in nn.Sequential.__dict__
    assert (torch.autograd.backward, nn.utils.clip_grad_norm_) == (backward, clip)
    assert sys.excepthook is sys.__excepthook__


def test_model_stays_clean_for_copies_and_pickles() -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer):
        train(model, optimizer, 2)
        buffer = io.BytesIO()
        torch.save(model, buffer)
        twin = copy.deepcopy(model)
    assert b"probe" not in buffer.getvalue()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def test_dropped_model_ends_its_session() -> None:
    run = probe.watch(make_model())
    assert not run.active


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"level": "loud"}, "level='loud' is not available; choose one of 'off', 'basic'"),
        ({"mode": "shout"}, "mode='shout'"),
        ({"parameter_norm_every": 0}, "parameter_norm_every=0 must be a whole number of at least 1"),
        ({"speed": 3}, "unknown option 'speed'"),
    ],
)
def test_watch_of_a_wrong_option_says_what_is_allowed(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        probe.watch(make_model(), **arguments)


def test_watch_of_a_model_without_parameters_says_what_to_pass() -> None:
    with pytest.raises(ValueError, match="ReLU has no trainable parameters; pass the model"):
        probe.watch(nn.ReLU())


def test_watch_of_something_else_says_what_it_got() -> None:
    with pytest.raises(ValueError, match=r"takes a torch.nn.Module, got list"):
        probe.watch([1])  # type: ignore[arg-type]


def test_switched_off_by_environment_is_inert(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANSCOPE_OFF", "1")
    model = make_model()
    run = probe.watch(model)
    run.log(loss=1.0)
    assert not run.active
    assert not spool.exists()


def test_spool_that_cannot_be_written_leaves_training_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with caplog.at_level(logging.ERROR), probe.watch(model, optimizer, spool=blocked / "spool") as run:
        train(model, optimizer, 2)
    assert not run.active
    assert "this run is not recorded" in caplog.text


def test_failure_of_the_probe_is_counted_and_training_goes_on(
    spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer) as run:
        monkeypatch.setattr(run._incidents, "judge_quiet", lambda *_: 1 / 0)
        # Quiet steps are judged together, 32 at most.
        losses = train(model, optimizer, 50)
    frames = run_of(spool).frames
    assert len(losses) == len(frames) == 50
    assert frames[-1].scalars["probe_failures"] == 1.0


def test_untested_torch_is_used_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    model = make_model()
    with probe.watch(model) as run:
        assert run.active
    assert "tested with torch 2.13; this is 2.99.0" in caplog.text


def test_missing_torch_is_one_clear_sentence(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('no torch', name='torch')")
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import probe; probe.watch"
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert finished.stderr.splitlines()[-1] == (
        "ImportError: probe.watch needs PyTorch, which is not installed here: pip install torch==2.13.0"
    )


def scalars_of(spool: Path, name: str) -> list[float | None]:
    return [frame.scalars.get(name) for frame in run_of(spool).frames]


def test_log_of_what_cannot_be_read_does_not_reach_the_script(caplog: pytest.LogCaptureFixture) -> None:
    class Odd:
        def __float__(self) -> float:
            raise RuntimeError("odd")

    model = make_model()
    with probe.watch(model) as run:
        run.log(large=10**400, odd=Odd(), absent=torch.ones(1, device="meta"))
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3


def test_watch_in_a_deleted_folder_records_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    model = make_model()
    with probe.watch(model) as run:
        assert run.active


def test_evaluation_with_gradients_on_belongs_to_no_step(spool: Path) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer):
        for _ in range(100):
            model(torch.ones(8, 6))
        (model(torch.ones(8, 6)).sum() * math.nan).backward()
        optimizer.step()
    assert scalars_of(spool, "samples") == [8.0]
    (event,) = [e for e in run_of(spool).latest_events if e.kind == "nonfinite_loss"]
    assert event.origin is not None


def test_model_dropped_after_an_evaluation_is_freed() -> None:
    model = make_model()
    run = probe.watch(model)
    model(torch.ones(8, 6))
    del model
    assert not run.active


def test_output_is_saved_without_a_warning_of_ours() -> None:
    model = make_model()
    buffer = io.BytesIO()
    with probe.watch(model), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.save(model(torch.ones(8, 6)), buffer)
    assert [str(warning.message) for warning in seen] == []
    assert b"probe" not in buffer.getvalue()


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
    assert scalars_of(spool, "loss") == losses
    assert scalars_of(spool, "samples") == [8.0] * 3


def test_update_that_the_script_skips_by_itself_counts_as_a_step(spool: Path) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    with probe.watch(model, optimizer):
        for step, (inputs, targets) in enumerate(batches(5)):
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            losses.append(loss.item())
            if step not in (2, 3):
                optimizer.step()
    assert scalars_of(spool, "loss") == pytest.approx(losses)
    assert scalars_of(spool, "samples") == [8.0] * 5
    norms = scalars_of(spool, "grad_norm")
    assert [norm is None for norm in norms] == [False, False, True, True, False]
    assert [frame.step for frame in run_of(spool).frames] == [0, 1, 2, 3, 4]


def test_mode_raise_stops_every_bad_step_of_an_episode() -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    caught = []
    with probe.watch(model, optimizer, mode="raise"):
        for step, (inputs, targets) in enumerate(batches(8)):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            if step in (4, 5, 7):
                model[4].weight.grad[0] = math.inf  # type: ignore[index, union-attr]
            try:
                optimizer.step()
            except AnomalyError:
                caught.append(step)
    assert caught == [4, 5, 7]
    assert all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters())


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
    frames = run_of(spool).frames
    recorded = [unpack_column(next(c for c in f.columns if c.name == "grad_norm")) for f in frames]
    np.testing.assert_allclose(recorded, norms, rtol=1e-5)


def test_unfrozen_and_replaced_parameters_get_a_layout_of_their_own(spool: Path) -> None:
    model = make_model()
    model[0].requires_grad_(False)  # type: ignore[index]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer):
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
    norms = unpack_column(next(c for c in journal.frames[-1].columns if c.name == "grad_norm"))
    expected = [p.grad.norm().item() for p in model.parameters() if p.grad is not None]
    np.testing.assert_allclose(norms, expected, rtol=1e-5)


def test_model_collected_by_the_recorders_own_thread_ends_its_session(
    spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model()
    model.cycle = [model]  # type: ignore[assignment]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = probe.watch(model, optimizer)
    train(model, optimizer, 2)
    recorder = run._recorder
    assert recorder is not None
    write_events = recorder._write_events

    def collect_amid_writing() -> None:
        gc.collect()
        write_events()

    monkeypatch.setattr(recorder, "_write_events", collect_amid_writing)
    gc.disable()
    try:
        del model, optimizer
        recorder._thread.join(10)
    finally:
        gc.enable()
    assert not run.active
    assert not recorder._thread.is_alive()
    end = run_of(spool).end
    assert end is not None
    assert (end.outcome, end.step) == ("finished", 1)


def test_close_after_the_model_is_gone_has_written_everything(spool: Path) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = probe.watch(model, optimizer)
    train(model, optimizer, 2)
    del model, optimizer
    run.close()
    assert len(run_of(spool).frames) == 2
    assert run_of(spool).end is not None


def test_events_reach_an_injected_logger(caplog: pytest.LogCaptureFixture) -> None:
    model, logger = make_model(), logging.getLogger("users.own")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer, replay=False, logger=logger), caplog.at_level("INFO"):
        (model(torch.randn(4, 6)) * math.nan).sum().backward()
        optimizer.step()
    assert ("users.own", logging.ERROR) in {(record.name, record.levelno) for record in caplog.records}


def test_clip_gradients_of_a_model_nobody_watches_is_torchs() -> None:
    model, twin = make_model(), make_model()
    for network in (model, twin):
        torch.manual_seed(0)
        network(torch.ones(4, 6)).sum().backward()
    expected = nn.utils.clip_grad_norm_(twin.parameters(), 0.01)
    assert torch.equal(probe.clip_gradients(model, 0.01), expected)
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)  # type: ignore[arg-type]
