"""Levels on real training loops: what each records, that training does not notice, what stays behind."""

import gc
import math
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from journals import Journal, read_journal
from torch import Tensor, nn
from torch.nn import functional as F

import probe
from probe.wire import Frame
from probe.wire.columns import unpack_column
from probe.wire.module_frames import unpack_module_column

LEVELS = ("basic", "advanced", "extreme")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Small(nn.Module):
    """Dropout, normalisation, attention and a layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 16)
        self.norm = nn.LayerNorm(16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True, dropout=0.1)
        self.twice = nn.Linear(16, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.embed(x))
        hidden = hidden + self.attention(hidden, hidden, hidden, need_weights=False)[0]
        hidden = F.dropout(self.twice(F.relu(self.twice(hidden))), 0.1, self.training)
        return self.head(hidden.mean(1))


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return Small()


def train(
    model: Callable[[Tensor], Tensor], optimizer: torch.optim.Optimizer, steps: int, *, bf16: bool = False
) -> list[float]:
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        inputs, targets = (
            torch.randn(8, 5, 6, generator=generator),
            torch.randint(3, (8,), generator=generator),
        )
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = F.cross_entropy(model(inputs).float(), targets)
        loss.backward()
        nn.utils.clip_grad_norm_((p for g in optimizer.param_groups for p in g["params"]), 0.5)
        optimizer.step()
        losses.append(loss.item())
    return losses


def journal_in(spool: Path) -> Journal:
    (folder,) = spool.iterdir()
    return read_journal(folder)


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.mark.parametrize("level", LEVELS)
def test_training_under_autocast_is_bit_identical_at_every_level(level: str) -> None:
    """Other trainings are in test_bit_identity.py."""
    plain, watched = make_model(), make_model()
    torch.manual_seed(7)
    expected = train(plain, torch.optim.AdamW(plain.parameters()), 60, bf16=True)
    generator_after = torch.get_rng_state()
    torch.manual_seed(7)
    optimizer = torch.optim.AdamW(watched.parameters())
    with probe.watch(watched, optimizer, level=level, overhead_limit=0.0) as run:  # type: ignore[arg-type]
        losses = train(watched, optimizer, 60, bf16=True)
        assert run._guard.failures == 0
    assert losses == expected
    assert torch.equal(torch.get_rng_state(), generator_after)
    for ours, theirs in zip(watched.state_dict().values(), plain.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("level", LEVELS)
def test_training_of_a_compiled_model_is_bit_identical(level: str) -> None:
    results = []
    for is_watched in (False, True):
        torch.compiler.reset()
        model = make_model()
        optimizer = torch.optim.AdamW(model.parameters())
        torch.manual_seed(7)
        compiled = torch.compile(model, backend="aot_eager")
        if is_watched:
            with probe.watch(model, optimizer, level=level, overhead_limit=0.0):  # type: ignore[arg-type]
                losses = train(compiled, optimizer, 25)
        else:
            losses = train(compiled, optimizer, 25)
        results.append((losses, [value.clone() for value in model.state_dict().values()]))
    torch.compiler.reset()
    assert results[0][0] == results[1][0]
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(results[0][1], results[1][1], strict=True))


@pytest.mark.capability(35)
def test_basic_records_learning_rate_clipping_and_update_ratio(spool: Path) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    before, after = {}, {}
    optimizer.register_step_pre_hook(
        lambda *_: before.update({n: p.detach().double().clone() for n, p in model.named_parameters()})
    )
    optimizer.register_step_post_hook(
        lambda *_: after.update({n: p.detach().double().clone() for n, p in model.named_parameters()})
    )
    with probe.watch(model, optimizer, features={"update_ratios": 3}):
        train(model, optimizer, 4)
    journal = journal_in(spool)
    frame = journal.frames[3]
    assert frame.scalars["lr"] == 0.25
    clipped = math.sqrt(sum(float(p.grad.double().square().sum()) for p in model.parameters()))
    assert frame.scalars["grad_norm_clipped"] == pytest.approx(clipped, rel=1e-5)
    assert frame.scalars["clip_fired"] == float(frame.scalars["grad_norm"] > 0.5)
    (column,) = [column for column in frame.parameter_columns if column.name == "update_ratio"]
    values, _ = unpack_module_column(column, len(before))
    expected = [float((after[n] - before[n]).norm() / before[n].norm()) for n in before if before[n].norm()]
    np.testing.assert_allclose(values[values > 0], expected, rtol=1e-4)


def names(frame: Frame) -> set[str]:
    return {column.name for column in [*frame.columns, *frame.parameter_columns, *frame.module_columns]}


@pytest.mark.capability(50)
def test_level_is_changed_between_two_steps_and_told(spool: Path) -> None:
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters())
    with probe.watch(model, optimizer, overhead_limit=0.0) as run:
        train(model, optimizer, 3)
        run.set_level("extreme")
        train(model, optimizer, 4)
        run.set_level("basic", parameter_norms=1)
        train(model, optimizer, 3)
    journal = journal_in(spool)
    assert [frame.step for frame in journal.frames] == list(range(10))
    extra = [bool({"activation_rms"} & names(frame)) for frame in journal.frames]
    # Activations are measured at every second step; at basic, at the first few of the run.
    assert extra == [True, True, True, False] + [True, False] * 2 + [True, False]
    assert "parameter_norm" in names(journal.frames[9])
    changes = [event for event in journal.events if event.kind == "level_changed"]
    assert [event.step for event in changes] == [3, 7]
    assert changes[0].message.startswith("Level extreme instead of basic")


def test_level_off_looks_at_nothing_and_counts_the_steps(spool: Path) -> None:
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters())
    with probe.watch(model, optimizer) as run:
        train(model, optimizer, 2)
        run.set_level("off")
        train(model, optimizer, 5)
        run.set_level("basic")
        train(model, optimizer, 3)
    # A command is followed at the end of the step that is under way.
    assert [frame.step for frame in journal_in(spool).frames] == [0, 1, 2, 8, 9]


def test_first_step_after_level_off_has_no_time_of_its_own(spool: Path) -> None:
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters())
    with probe.watch(model, optimizer) as run:
        train(model, optimizer, 2)
        run.set_level("off")
        train(model, optimizer, 5)
        run.set_level("basic")
        train(model, optimizer, 3)
    # Until then steps were made that nobody has timed.
    timed = {frame.step for frame in journal_in(spool).frames if "step_time_s" in frame.scalars}
    assert timed == {1, 2, 9}


def test_set_level_refuses_what_is_none() -> None:
    model = make_model()
    with probe.watch(model) as run:
        with pytest.raises(ValueError, match="basic"):
            run.set_level("everything")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="activations"):
            run.set_level("basic", activation=3)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("turns", [120, pytest.param(3000, marks=pytest.mark.faults)])
def test_attaching_detaching_and_changing_level_leave_nothing(tmp_path: Path, turns: int) -> None:
    model, process = make_model(), psutil.Process()
    optimizer = torch.optim.AdamW(model.parameters())
    call, backward = nn.Module.__call__, torch.autograd.backward
    files = threads = 0
    for turn in range(turns):
        level = LEVELS[turn % 3]
        with probe.watch(model, optimizer, level=level, spool=tmp_path / "s", run="same") as run:  # type: ignore[arg-type]
            if turn % 100 == 0:
                train(model, optimizer, 2)
                run.set_level(LEVELS[(turn + 1) % 3])  # type: ignore[arg-type]
                train(model, optimizer, 2)
        if turn == 20:
            files, threads = process.num_fds(), threading.active_count()
    gc.collect()
    assert process.num_fds() <= files
    assert threading.active_count() <= threads
    assert nn.Module.__call__ is call
    assert torch.autograd.backward is backward
    assert not model._forward_hooks
    assert not model._backward_hooks
    assert not optimizer._optimizer_step_pre_hooks


@pytest.mark.capability(48)
def test_overhead_limit_throttles_what_is_dear_and_says_so(spool: Path) -> None:
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters())
    with probe.watch(model, optimizer, level="extreme", overhead_limit=0.02):
        train(model, optimizer, 200)
    journal = journal_in(spool)
    (throttled,) = [event for event in journal.latest_events if event.kind == "throttled"]
    assert "activations" in throttled.message.splitlines()[0]
    assert throttled.severity == "info"
    assert throttled.count > 1
    early = sum("activation_rms" in names(frame) for frame in journal.frames[:50])
    late = sum("activation_rms" in names(frame) for frame in journal.frames[-50:])
    assert late < early
    # The tripwire never goes.
    assert all(math.isfinite(frame.scalars["grad_norm"]) for frame in journal.frames)


def test_overhead_limit_throttles_many_modules_at_the_second_look_at_them(spool: Path) -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(6, 16), *(nn.Linear(16, 16) for _ in range(300)), nn.Linear(16, 3)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d((1, 3)), nn.Flatten())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    # Far below what any machine can do: two per mille of a step.
    with probe.watch(model, optimizer, level="extreme", overhead_limit=0.002):
        train(model, optimizer, 12)
    throttled = [event for event in journal_in(spool).events if event.kind == "throttled"]
    newest = [(event.last_step, event.message.splitlines()[1]) for event in throttled]
    steps = {line.partition(": ")[2].partition(" are ")[0]: step for step, line in reversed(newest)}
    # At this level the modules are looked at in steps 0, 2, 4, ..., the parameters in every one.
    assert steps["Activations"] == 2
    assert steps["Parameter statistics"] <= 6


def float64_norm(model: nn.Module) -> float:
    squares = [p.grad.double().square().sum() for p in model.parameters() if p.grad is not None]
    return math.sqrt(float(torch.stack(squares).sum()))


@pytest.mark.capability(24)
def test_clip_gradients_gives_the_norm_and_torchs_own_bits() -> None:
    model, twin = make_model(), make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer) as run:
        for network in (model, twin):
            torch.manual_seed(3)
            network(torch.randn(4, 5, 6)).square().sum().backward()
        expected = float64_norm(twin)
        norm = run.clip_gradients(0.01)
        assert float(norm) == pytest.approx(expected, rel=1e-6)
        coefficient = torch.tensor(0.01 / (float(np.float64(expected)) + 1e-6))
        torch._foreach_mul_([p.grad for p in twin.parameters()], coefficient)
        for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            assert torch.equal(ours.grad, theirs.grad)  # type: ignore[arg-type]
        assert float64_norm(model) == pytest.approx(0.01, rel=1e-4)


def test_clip_gradients_below_the_limit_changes_no_bit(spool: Path) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer) as run:
        model(torch.randn(4, 5, 6)).square().sum().backward()
        before = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        run.clip_gradients(1e6)
        optimizer.step()
        after = [p.grad for p in model.parameters() if p.grad is not None]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    frame = journal_in(spool).frames[0]
    assert frame.scalars["clip_fired"] == 0.0
    assert frame.scalars["grad_norm_clipped"] == frame.scalars["grad_norm"]


def test_clip_gradients_leaves_nonfinite_gradients_as_they_are() -> None:
    model = make_model()
    with probe.watch(model, torch.optim.SGD(model.parameters(), lr=0.1), replay=False) as run:
        model(torch.randn(4, 5, 6)).square().sum().backward()
        model.head.bias.grad[0] = math.nan  # type: ignore[union-attr,index]
        finite = model.embed.weight.grad.clone()  # type: ignore[union-attr]
        assert math.isnan(float(run.clip_gradients(1.0)))
        assert torch.equal(model.embed.weight.grad, finite)  # type: ignore[arg-type,union-attr]


def test_clip_gradients_of_an_inert_handle_still_clips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANSCOPE_OFF", "1")
    model = make_model()
    run = probe.watch(model)
    model(torch.randn(4, 5, 6)).square().sum().backward()
    run.clip_gradients(0.01)
    assert float64_norm(model) == pytest.approx(0.01, rel=1e-4)


def test_module_statistics_are_named_by_the_layout(spool: Path) -> None:
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters())
    outputs: list[Tensor] = []
    handle = model.twice.register_forward_hook(lambda *found: outputs.append(found[2].detach().double()))  # type: ignore[union-attr]
    with probe.watch(model, optimizer, level="advanced", overhead_limit=0.0):
        train(model, optimizer, 1)
    handle.remove()
    journal = journal_in(spool)
    frame, layout = journal.frames[0], journal.layouts[-1]
    assert frame.layout == layout.layout
    row = [module.name for module in layout.modules].index("twice")
    (column,) = [column for column in frame.module_columns if column.name == "activation_rms"]
    values, missing = unpack_module_column(column, len(layout.modules))
    both = torch.cat([output.flatten() for output in outputs])
    assert not missing[row]
    assert values[row] == pytest.approx(float(both.square().mean().sqrt()), rel=1e-5)
    assert unpack_column(frame.columns[0]).shape == (len(layout.parameters),)


@pytest.mark.capability(20)
def test_extreme_keeps_the_statistics_of_every_tensor_at_every_step(spool: Path) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    seen: list[dict[str, list[float]]] = []

    def note(*_: object) -> None:
        gradients = [p.grad.double() for p in model.parameters() if p.grad is not None]
        values = [p.detach().double() for p in model.parameters()]
        seen.append(
            {
                "grad_mean": [float(g.mean()) for g in gradients],
                "grad_max_abs": [float(g.abs().max()) for g in gradients],
                "parameter_mean": [float(v.mean()) for v in values],
                "parameter_std": [float(v.std(correction=0)) for v in values],
            }
        )

    optimizer.register_step_pre_hook(note)
    with probe.watch(model, optimizer, level="extreme", overhead_limit=0.0):
        generator = torch.Generator().manual_seed(1)
        for _ in range(6):
            optimizer.zero_grad()
            F.cross_entropy(
                model(torch.randn(8, 5, 6, generator=generator)), torch.ones(8, dtype=torch.long)
            ).backward()
            optimizer.step()
    frames = journal_in(spool).frames
    assert len(frames) == len(seen) == 6
    for frame, expected in zip(frames, seen, strict=True):
        columns = {column.name: unpack_column(column) for column in frame.columns}
        for column in frame.parameter_columns:
            columns[column.name] = unpack_module_column(column, len(expected["grad_mean"]))[0]
        for name, values in expected.items():
            np.testing.assert_allclose(columns[name], values, rtol=1e-4, atol=1e-7, err_msg=name)
    assert sum("activation_rms" in names(frame) for frame in frames) >= 3


LONG_RUN = """
import os, sys, psutil, torch, probe
torch.set_num_threads(1)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
inputs = torch.randn(3, 4)
process = psutil.Process()
steps = int(sys.argv[1])
with probe.watch(model, optimizer):
    for step in range(steps):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        if (step + 1) in (steps // 5, steps * 3 // 5, steps):
            memory = process.memory_info()
            blocks = sys.getallocatedblocks()
            print(blocks, memory.rss - memory.shared, process.num_fds(), process.num_threads())
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("steps", [20_000, pytest.param(200_000, marks=pytest.mark.faults)])
def test_memory_is_flat_over_many_steps(spool: Path, steps: int) -> None:
    import subprocess
    import sys

    finished = subprocess.run(
        [sys.executable, "-c", LONG_RUN, str(steps)],
        capture_output=True,
        text=True,
        env=dict(os.environ),
        timeout=580,
    )
    assert finished.returncode == 0, finished.stderr
    readings = [[int(number) for number in line.split()] for line in finished.stdout.splitlines()]
    blocks, memory, *_ = zip(*readings, strict=True)
    # An object that is kept of each step, or 200 bytes, shows between all readings. Memory is without pages
    # of files, of which some are read late; once, the allocator may take a few MB and not give them back.
    assert min(blocks[1] - blocks[0], blocks[2] - blocks[1]) < 0.4 * steps * 0.75
    assert min(memory[1] - memory[0], memory[2] - memory[1]) < 0.4 * steps * 100
    assert memory[2] - memory[0] < 12 * 1024 * 1024
    assert readings[0][2:] == readings[2][2:]


def test_extreme_says_in_the_event_what_the_modules_returned(spool: Path) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer, level="extreme", overhead_limit=0.0, replay=False):
        optimizer.zero_grad()
        with torch.no_grad():
            model.twice.bias[0] = math.inf  # type: ignore[union-attr,index]
        model(torch.randn(8, 5, 6)).square().mean().backward()
        optimizer.step()
    event = next(event for event in journal_in(spool).events if event.kind == "nonfinite_loss")
    lines = event.message.splitlines()
    heading = next(index for index, line in enumerate(lines) if "outputs of modules were not finite" in line)
    assert lines[heading + 1].startswith("  twice (Linear): ")
