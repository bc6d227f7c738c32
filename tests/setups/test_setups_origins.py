"""Where the first bad value was made, in every set-up that a replay has to cope with; or why it is not said.

Each set-up trains a few steps and plants one fault, on the line that ends in `# ORIGIN`, at the step FAULTY.
"""

from __future__ import annotations

import functools
import linecache
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from journals import read_journal
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import probe
from probe.wire import Event

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
FAULTY = 2
KINDS = ("nonfinite_loss", "nonfinite_gradient")


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def batch(step: int, *, rows: int = 6, columns: int = 4) -> Tensor:
    """Normal values; at the faulty step the second row is 0."""
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(step))
    return x.index_fill(0, torch.tensor([1]), 0.0) if step == FAULTY else x


class Root(nn.Module):
    """Its derivative is infinite at 0."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sqrt(x.abs())  # ORIGIN


class RootInPlace(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.abs()
        y.sqrt_()  # ORIGIN
        return y


class Log(nn.Module):
    """Is -inf at 0; what it does otherwise is of no interest."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.log(x.abs())  # ORIGIN


class Softmax(nn.Module):
    """NaN where a row is masked altogether."""

    def forward(self, x: Tensor) -> Tensor:
        scores = x.masked_fill(x == 0, -math.inf)
        return torch.softmax(scores, -1)  # ORIGIN


class Slope(nn.Module):
    """Returns a derivative, as forces are, of what has none at 0."""

    def forward(self, x: Tensor) -> Tensor:
        energy = x.abs().sqrt()  # ORIGIN
        (force,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
        return x + force


class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * (x / x)  # DERIVATIVE


class OwnFunction(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = Own.apply(x)  # ORIGIN
        return result


class Net(nn.Module):
    """`first -> fault -> last`; without bias a row of 0 stays one."""

    def __init__(self, fault: nn.Module, *more: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 8, bias=False)
        self.fault = fault
        self.last = nn.Sequential(*more, nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(self.fault(self.first(x)))
        return result


@dataclass(kw_only=True)
class Setup:
    """One set-up, and what is to be said of its fault."""

    model: Callable[[], nn.Module]
    step: Callable[..., Tensor | None] = field(default=lambda model, x: model(x).square().mean())
    """Takes the model and a batch, returns the loss, or makes the backward by itself and returns None."""
    update: Callable[[torch.optim.Optimizer], object] = lambda optimizer: optimizer.step()
    origin: tuple[str, str, str | None]
    """Phase, op, module."""
    micro_step: int | None = None


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    step: Callable[..., Tensor | None],
    update: Callable[[torch.optim.Optimizer], object] = lambda optimizer: optimizer.step(),
) -> None:
    """No `assert` in here: pytest would change the code, and its lines could not be run again."""
    SCALER.cache_clear()
    for number in range(FAULTY + 1):
        optimizer.zero_grad()
        loss = step(model, batch(number))
        if loss is not None:
            loss.backward()
        update(optimizer)


def events_of(
    model: nn.Module,
    step: Callable[..., Tensor | None],
    spool: Path,
    update: Callable[[torch.optim.Optimizer], object] = lambda optimizer: optimizer.step(),
    **options: Any,
) -> list[Event]:
    """Train, and return what was recorded."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with probe.watch(model, optimizer, spool=spool, connect="", bundles=0, **options) as run:
        train(model, optimizer, step, update)
        assert run._guard.failures == 0
    (folder,) = spool.iterdir()
    return list(read_journal(folder).latest_events)


def bad_event(*args: Any, **options: Any) -> Event:
    event = next(event for event in events_of(*args, **options) if event.kind in KINDS)
    assert event.step == FAULTY
    return event


def assert_origin(event: Event, *expected: str | None) -> None:
    assert event.origin is not None, event.message
    assert (event.origin.phase, event.origin.op, event.origin.module) == expected
    frame = next(frame for frame in reversed(event.stacks.forward) if frame.file == __file__)
    assert linecache.getline(frame.file, frame.line).rstrip().endswith("# ORIGIN")


# -- models


class Checkpointed(Net):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__(Root())
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        hidden = checkpoint(self.fault, self.first(x), use_reentrant=self.reentrant)
        result: Tensor = self.last(hidden)
        return result


class Packed(nn.Module):
    """Of the second sequence the embedding is 0."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fault, self.lstm, self.head = Root(), nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 3)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        sequences = x[:, None, :].expand(-1, 3, -1) * self.scale
        packed = nn.utils.rnn.pack_padded_sequence(
            self.fault(sequences), lengths, batch_first=True, enforce_sorted=False
        )
        result: Tensor = self.head(self.lstm(packed)[0].data)
        return result


class Attention(nn.Module):
    """A causal mask, and on top of it one that leaves nothing of the sequences that are 0."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.fault, self.last = nn.Linear(4, 8, bias=False), Softmax(), nn.Linear(8, 3)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)[:, None, :].expand(-1, 4, -1)
        causal = torch.full((4, 4), -math.inf).triu(1)
        seen, _ = self.attention(hidden, hidden, hidden, attn_mask=causal, need_weights=False)
        result: Tensor = self.last(seen * self.fault(self.first(x))[:, None, :])
        return result


class WithLoss(nn.Module):
    """Returns its own loss beside the logits, as those of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net(Root())

    def forward(self, x: Tensor, *, labels: Tensor) -> dict[str, Tensor]:
        logits = self.net(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class Pair(nn.Module):
    """Never called itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.decoder = nn.Linear(4, 8, bias=False), nn.Sequential(Root(), nn.Linear(8, 3))


# -- loops


def in_bfloat16(model: nn.Module, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss: Tensor = model(x).float().square().mean()
        return loss


SCALER = functools.cache(lambda: torch.amp.GradScaler("cpu", init_scale=128.0))


def in_scaled_float16(model: nn.Module, x: Tensor) -> None:
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(x).float().square().mean()
    SCALER().scale(loss).backward()


def update_scaled(optimizer: torch.optim.Optimizer) -> None:
    SCALER().step(optimizer)
    SCALER().update()


def accumulated(model: nn.Module, x: Tensor) -> None:
    """The second of three micro-batches is the bad one."""
    for part in (x[2:4], x[0:2], x[4:6]):
        (model(part).square().mean() / 3).backward()


def called_twice(model: nn.Module, x: Tensor) -> Tensor:
    gap: Tensor = model(x[2:]).mean() - model(x[:2]).mean()
    return gap.square()


def through_both(model: nn.Module, x: Tensor) -> Tensor:
    loss: Tensor = model.decoder(model.encoder(x)).square().mean()
    return loss


def with_a_bad_loss(model: nn.Module, x: Tensor) -> Tensor:
    rows = model(x).square().sum(1) * (x.abs().sum(1) > 0)
    return torch.log(rows).mean()  # ORIGIN


SETUPS = {
    "batch norm, dropout, in-place activation": Setup(
        model=lambda: Net(Root(), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Dropout(0.3)),
        origin=("backward", "SqrtBackward0", "fault"),
    ),
    "in-place op": Setup(
        model=lambda: Net(RootInPlace()),
        origin=("backward", "SqrtBackward0", "fault"),
    ),
    "forward": Setup(model=lambda: Net(Log()), origin=("forward", "log", "fault")),
    "checkpoint": Setup(
        model=lambda: Checkpointed(reentrant=False),
        origin=("backward", "SqrtBackward0", "fault"),
    ),
    "reentrant checkpoint": Setup(
        model=lambda: Checkpointed(reentrant=True),
        origin=("backward", "SqrtBackward0", "fault"),
    ),
    "autocast to bfloat16": Setup(
        model=lambda: Net(Root()), step=in_bfloat16, origin=("backward", "SqrtBackward0", "fault")
    ),
    "float16 under a GradScaler": Setup(
        model=lambda: Net(Log()),
        step=in_scaled_float16,
        update=update_scaled,
        origin=("forward", "log", "fault"),
    ),
    "accumulation": Setup(
        model=lambda: Net(Root()),
        step=accumulated,
        origin=("backward", "SqrtBackward0", "fault"),
        micro_step=1,
    ),
    "several roots": Setup(model=Pair, step=through_both, origin=("backward", "SqrtBackward0", "decoder.0")),
    "called twice": Setup(
        model=lambda: Net(Root()), step=called_twice, origin=("backward", "SqrtBackward0", "fault")
    ),
    "model with its loss": Setup(
        model=WithLoss,
        step=lambda model, x: model(x, labels=torch.zeros(6, dtype=torch.long))["loss"],
        origin=("backward", "SqrtBackward0", "net.fault"),
    ),
    "packed sequences": Setup(
        model=Packed,
        step=lambda model, x: model(x, torch.tensor([3, 2, 3, 1, 2, 1])).square().mean(),
        origin=("backward", "SqrtBackward0", "fault"),
    ),
    "masked attention": Setup(model=Attention, origin=("forward", "_softmax", "fault")),
    "derivative in the model": Setup(
        model=lambda: Net(Slope()), origin=("backward", "SqrtBackward0", "fault")
    ),
    "own function": Setup(model=lambda: Net(OwnFunction()), origin=("backward", "OwnBackward", "fault")),
    "loss": Setup(model=lambda: Net(nn.Tanh()), step=with_a_bad_loss, origin=("loss", "log", None)),
}


@pytest.mark.parametrize("name", SETUPS)
@pytest.mark.filterwarnings("ignore:.*None of the inputs have requires_grad")
def test_fault_is_named_with_its_op_module_and_line(name: str, tmp_path: Path) -> None:
    setup = SETUPS[name]
    event = bad_event(setup.model(), setup.step, tmp_path, setup.update)
    assert_origin(event, *setup.origin)
    assert event.micro_step == setup.micro_step


def test_own_derivative_is_named_with_its_own_line(tmp_path: Path) -> None:
    event = bad_event(Net(OwnFunction()), SETUPS["own function"].step, tmp_path)
    line = event.stacks.backward[-1]
    assert linecache.getline(line.file, line.line).rstrip().endswith("# DERIVATIVE")
    assert f"{Path(__file__).name}:{line.line}, backward" in event.message.splitlines()[0]


# -- closures, compilers, other ranks, trainers


def test_closure_of_lbfgs_is_named(tmp_path: Path) -> None:
    model = Net(Root())
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1e-3, max_iter=2)
    with probe.watch(model, optimizer, spool=tmp_path, connect="", bundles=0):
        for number in range(FAULTY + 1):
            x = batch(number)

            def closure(x: Tensor = x) -> Tensor:
                optimizer.zero_grad()
                loss: Tensor = model(x).square().mean()
                loss.backward()
                return loss

            optimizer.step(closure)
    (folder,) = tmp_path.iterdir()
    event = next(e for e in read_journal(folder).latest_events if e.kind in KINDS)
    assert_origin(event, "backward", "SqrtBackward0", "fault")


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_model_is_replayed_eagerly(tmp_path: Path) -> None:
    compiled: Any = torch.compile(Net(Root()), backend="aot_eager")
    event = bad_event(compiled, SETUPS["forward"].step, tmp_path)
    assert_origin(event, "backward", "SqrtBackward0", "fault")


def spoilt(graph: Any, inputs: Any) -> Callable[..., Any]:
    """A compiler with a fault: what it makes returns NaN where the batch has a row of 0."""

    def run(*given: Tensor) -> Any:
        bad = any(tensor.shape == (6, 4) and not tensor[1].any() for tensor in given)
        return tuple(out * math.nan if bad else out for out in graph(*given))

    return run


@pytest.mark.usefixtures("fresh_compiler")
def test_fault_of_the_compiled_code_alone_is_told_as_such(tmp_path: Path) -> None:
    compiled: Any = torch.compile(Net(nn.Tanh()), backend=spoilt)
    event = bad_event(compiled, SETUPS["forward"].step, tmp_path)
    assert event.origin is None
    assert "only in the compiled code" in event.message


@pytest.fixture
def alone_in_a_group(tmp_path: Path) -> Iterator[None]:
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    # glibc 2.36 loses a wakeup now and then: gloo's thread is to sleep before it is told to end.
    time.sleep(0.1)
    torch.distributed.destroy_process_group()


def with_a_sum_over_ranks(model: nn.Module, x: Tensor) -> Tensor:
    rows = model(x).square().sum(1)
    count = torch.tensor(float(len(x)))
    torch.distributed.all_reduce(count)
    return torch.log(rows * (x.abs().sum(1) > 0)).sum() / count


def with_a_barrier(model: nn.Module, x: Tensor) -> Tensor:
    rows = model(x).square().sum(1)
    torch.distributed.monitored_barrier()
    return torch.log(rows * (x.abs().sum(1) > 0)).mean()


@pytest.mark.usefixtures("alone_in_a_group")
def test_fault_in_a_wrapped_model_is_named(tmp_path: Path) -> None:
    wrapped = nn.parallel.DistributedDataParallel(Net(Root(), nn.BatchNorm1d(8)))
    event = bad_event(wrapped, SETUPS["forward"].step, tmp_path / "spool")
    assert_origin(event, "backward", "SqrtBackward0", "fault")


@pytest.mark.usefixtures("alone_in_a_group")
def test_fault_in_the_loss_of_a_wrapped_model_is_named(tmp_path: Path) -> None:
    wrapped = nn.parallel.DistributedDataParallel(Net(nn.Tanh(), nn.BatchNorm1d(8)))
    event = bad_event(wrapped, with_a_bad_loss, tmp_path / "spool")
    assert_origin(event, "loss", "log", None)


def average_with_a_bad_rank(bucket: Any) -> torch.futures.Future[Tensor]:
    averaged: torch.futures.Future[Tensor] = torch.futures.Future()
    averaged.set_result(torch.full_like(bucket.buffer(), torch.nan))
    return averaged


@pytest.mark.usefixtures("alone_in_a_group")
def test_rank_that_only_received_the_bad_values_leaves_the_bundle_to_the_others(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    wrapped = nn.parallel.DistributedDataParallel(Net(nn.Tanh()))
    wrapped.register_comm_hook(None, lambda state, bucket: average_with_a_bad_rank(bucket))
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=1e-3)
    with probe.watch(wrapped, optimizer, spool=spool, connect=""):
        wrapped(batch(0)).square().mean().backward()
        optimizer.step()
    (folder,) = spool.iterdir()
    event = next(event for event in read_journal(folder).latest_events if event.kind == "nonfinite_gradient")
    assert event.severity == "critical"
    assert "came from another rank" in event.message
    assert not (folder / "bundles").exists()


@pytest.mark.usefixtures("alone_in_a_group")
@pytest.mark.parametrize("step", [with_a_sum_over_ranks, with_a_barrier])
def test_loss_that_talks_to_other_ranks_does_so_once_a_step(
    step: Callable[..., Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talks: list[str] = []
    for name in ("all_reduce", "monitored_barrier"):
        original = getattr(torch.distributed, name)

        def counted(*args: Any, original: Any = original, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            talks.append(original.__name__)
            return result

        monkeypatch.setattr(torch.distributed, name, counted)
    wrapped = nn.parallel.DistributedDataParallel(Net(nn.Tanh()))
    event = bad_event(wrapped, step, tmp_path / "spool")
    assert len(talks) == FAULTY + 1
    assert not event.stacks.forward


def test_transformers_model_with_its_loss_is_named(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=11, n_positions=8)
    model = transformers.GPT2LMHeadModel(config)
    model.transformer.ln_f = nn.Sequential(nn.Linear(8, 8, bias=False), Root())

    def step(model: nn.Module, x: Tensor) -> Tensor:
        words = torch.arange(8).reshape(2, 4)
        if not x[1].any():
            with torch.no_grad():
                model.transformer.ln_f[0].weight[0] = 0.0
        loss: Tensor = model(input_ids=words, labels=words).loss
        return loss

    event = bad_event(model, step, tmp_path)
    assert_origin(event, "backward", "SqrtBackward0", "transformer.ln_f.1")


@pytest.mark.filterwarnings("ignore")
def test_lightning_module_is_named(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net(Root())

        def training_step(self, x: Tensor, index: int) -> Tensor:
            loss: Tensor = self.net(x).square().mean()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    model = Module()
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False)
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", enable_model_summary=False, **quiet)
    batches = torch.utils.data.DataLoader([batch(number) for number in range(FAULTY + 1)], batch_size=None)
    with probe.watch(model, spool=tmp_path / "spool", connect="", bundles=0):
        trainer.fit(model, batches)
    (folder,) = (tmp_path / "spool").iterdir()
    event = next(e for e in read_journal(folder).latest_events if e.kind in KINDS)
    assert_origin(event, "backward", "SqrtBackward0", "net.fault")


# -- declined, with the reason


class Noisy(Net):
    def forward(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return super().forward(x * torch.randn(1, generator=generator))


def with_a_generator(model: nn.Module, x: Tensor) -> Tensor:
    loss: Tensor = model(x, torch.Generator().manual_seed(0)).square().mean()
    return loss


def with_a_changed_batch(model: nn.Module, x: Tensor) -> None:
    model(x).square().mean().backward()
    x.fill_(1.0)


def with_a_gradient_for_every_row(model: nn.Module, x: Tensor) -> None:
    def loss_of(parameters: dict[str, Tensor], row: Tensor) -> Tensor:
        output: Tensor = torch.func.functional_call(model, parameters, (row[None],))
        return output.square().mean()

    named = {name: value.detach() for name, value in model.named_parameters()}
    rows = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0))(named, x)
    sum((value * rows[name].mean(0)).sum() for name, value in model.named_parameters()).backward()


def with_an_update_in_between(model: nn.Module, x: Tensor) -> None:
    loss = model(x).square().mean()
    for parameter in model.parameters():
        parameter.data.mul_(0.5)
    loss.backward()


DECLINED = {
    "is a Generator": (Noisy, with_a_generator),
    "changed in place": (Net, with_a_changed_batch),
    "torch.func": (Net, with_a_gradient_for_every_row),
    "weights written since": (Net, with_an_update_in_between),
}


@pytest.mark.parametrize("reason", DECLINED)
def test_step_that_cannot_be_replayed_says_why(reason: str, tmp_path: Path) -> None:
    kind, step = DECLINED[reason]
    event = bad_event(kind(Root()), step, tmp_path)
    assert event.origin is None
    assert reason in event.message


def test_parameter_frozen_in_mid_run_does_not_hide_the_fault(tmp_path: Path) -> None:
    def step(model: nn.Module, x: Tensor) -> Tensor:
        if not x[1].any():
            model.last.requires_grad_(False)
        loss: Tensor = model(x).square().mean()
        return loss

    assert_origin(bad_event(Net(Root()), step, tmp_path), "backward", "SqrtBackward0", "fault")
