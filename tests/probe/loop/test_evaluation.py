"""The validation loss that the probe finds by itself, in real loops; the expected means are plain torch's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from cuda_waits import cuda_waits_are_errors
from run_numbers import run_of
from small_training import seeded_model
from torch import Tensor, nn
from torch._C import _nn
from torch._dynamo.testing import CompileCounter
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import probe
from probe.attach.loss_functions import NAMES, loss_functions

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_switched_off")
TORCHS_OWN = {name: vars(F)[name].__code__ for name in NAMES}
F_CROSS_ENTROPY = F.cross_entropy
Evaluate = Callable[[nn.Module], object]


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    """Batches of 8, 7, 6, ... samples."""
    generator = torch.Generator().manual_seed(3)
    sizes = [8 - index for index in range(count)]
    return [(torch.randn(size, 6, generator=generator), torch.arange(size) % 3) for size in sizes]


def train(spool: Path, evaluate: Evaluate, *, epochs: int = 2) -> dict[int, float]:
    """Train with an evaluation after every epoch of 3 steps; return the recorded series `val_loss`."""
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer):
        for _ in range(epochs):
            model.train()
            for x, y in batches(3):
                loss = F.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            evaluate(model)
    assert has_torchs_own()
    return series_of(spool)


def has_torchs_own() -> bool:
    return all(vars(F)[name].__code__ is code for name, code in TORCHS_OWN.items())


def series_of(spool: Path) -> dict[int, float]:
    frames = run_of(spool).frames
    return {frame.step: frame.scalars["val_loss"] for frame in frames if "val_loss" in frame.scalars}


def test_losses_seen_without_gradients_are_the_validation_loss_of_the_newest_step(spool: Path) -> None:
    expected = []

    def evaluate(model: nn.Module) -> None:
        model.eval()
        with torch.no_grad():
            losses = [(F.cross_entropy(model(x), y).item(), len(y)) for x, y in batches(4)]
        expected.append(sum(loss * count for loss, count in losses) / sum(count for _, count in losses))

    assert train(spool, evaluate) == pytest.approx(dict(zip([2, 5], expected, strict=True)), rel=1e-6)


def test_losses_of_modules_in_eval_mode_with_gradients_are_taken(spool: Path) -> None:
    expected, criterion = [], nn.CrossEntropyLoss()

    def evaluate(model: nn.Module) -> None:
        ((x, y),) = batches(1)
        expected.append(criterion(model.eval()(x), y).item())

    assert train(spool, evaluate) == pytest.approx(dict(zip([2, 5], expected, strict=True)), rel=1e-6)


def test_sums_over_batches_become_a_mean_over_samples(spool: Path) -> None:
    expected = []

    def evaluate(model: nn.Module) -> None:
        model.eval()
        with torch.inference_mode():
            losses = [F.nll_loss(model(x).log_softmax(-1), y, reduction="sum") for x, y in batches(3)]
        expected.append(float(torch.stack(losses).double().sum()) / (8 + 7 + 6))

    assert train(spool, evaluate) == pytest.approx(dict(zip([2, 5], expected, strict=True)), rel=1e-6)


def test_a_second_loss_function_is_taken_for_a_measure_beside_the_loss(spool: Path) -> None:
    expected = []

    def evaluate(model: nn.Module) -> None:
        model.eval()
        with torch.no_grad():
            ((x, y),) = batches(1)
            expected.append(F.cross_entropy(model(x), y).item())
            F.l1_loss(model(x).argmax(-1).float(), y.float())

    assert train(spool, evaluate) == pytest.approx(dict(zip([2, 5], expected, strict=True)), rel=1e-6)


def test_what_the_script_logs_wins(spool: Path) -> None:
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ((x, y),) = batches(1)
    with probe.watch(model, optimizer) as run:
        for step in range(4):
            F.cross_entropy(model.train()(x), y).backward()
            optimizer.step()
            with torch.no_grad():
                F.cross_entropy(model.eval()(x), y)
            run.log(val_loss=float(step))
    assert series_of(spool) == {}
    logged = [frame.scalars.get("log/val_loss") for frame in run_of(spool).frames]
    assert logged == [0.0, 1.0, 2.0, 3.0]


def test_training_in_eval_mode_is_no_evaluation(spool: Path) -> None:
    """A fine-tuning that keeps BatchNorm as it is."""
    model = seeded_model().eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer):
        for x, y in batches(4):
            F.cross_entropy(model(x), y).backward()
            assert has_torchs_own()
            optimizer.step()
    assert series_of(spool) == {}


def test_targets_computed_without_gradients_within_a_step_are_no_evaluation(spool: Path) -> None:
    """Q-learning: the loss itself has gradients."""
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer):
        for x, _ in batches(4):
            values = model(x)
            with torch.no_grad():
                target = model(x + 1.0)
            F.smooth_l1_loss(values, target).backward()
            optimizer.step()
    assert series_of(spool) == {}


def test_reentrant_checkpoint_is_no_evaluation(spool: Path) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.inner = nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 3))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return checkpoint(self._loss, self.first(x), y, use_reentrant=True)

        def _loss(self, x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(self.inner(x), y)

    torch.manual_seed(0)
    model = Checkpointed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer):
        for x, y in batches(3):
            model(x, y).backward()
            optimizer.step()
    assert series_of(spool) == {}


def test_session_that_ends_amid_an_evaluation_puts_everything_back(spool: Path) -> None:
    def evaluate(model: nn.Module) -> None:
        with torch.no_grad():
            model.eval()(batches(1)[0][0])

    assert train(spool, evaluate) == {}


def test_results_are_torchs_own(spool: Path) -> None:
    results: list[Tensor] = []

    def evaluate(model: nn.Module) -> None:
        ((x, y),) = batches(1)
        with torch.no_grad():
            out = model.eval()(x)
            assert not has_torchs_own()
            seen = F.cross_entropy(out, y, reduction="none"), F.cross_entropy(out, y, label_smoothing=0.1)
            plain = (
                _nn.cross_entropy_loss(out, y, None, 0),
                _nn.cross_entropy_loss(out, y, None, 1, -100, 0.1),
            )
        results.extend(a - b for a, b in zip(seen, plain, strict=True))

    train(spool, evaluate, epochs=1)
    assert all(not difference.any() for difference in results)


class Weighted(Tensor):
    """A subclass that overrides one function, found by its identity, as libraries do."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func is F_CROSS_ENTROPY:
            return "overridden"
        return super().__torch_function__(func, types, args, kwargs or {})


class Listening:
    """Keeps nothing."""

    def note_loss(self, seen: object) -> None:
        return


@pytest.fixture
def listening() -> object:
    listener = Listening()
    loss_functions.add(listener)
    yield listener
    loss_functions.remove(listener)


def test_overrides_of_tensor_subclasses_are_found(listening: object) -> None:
    assert F.cross_entropy(torch.randn(4, 3).as_subclass(Weighted), torch.arange(4) % 3) == "overridden"


def test_scripting_reads_torchs_own_source(listening: object) -> None:
    x, y = torch.randn(4, 3), torch.arange(4) % 3
    expected = _nn.cross_entropy_loss(x, y, None, 1)
    assert not has_torchs_own()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.equal(torch.jit.script(nn.CrossEntropyLoss())(x, y), expected)
        assert torch.equal(torch.jit.trace(lambda a, b: F.cross_entropy(a, b), (x, y))(x, y), expected)


def compiled_graphs(*, listens: bool) -> int:
    """Train and evaluate a compiled loss in turn; return how many graphs dynamo has made."""
    torch._dynamo.reset()
    counter, listener = CompileCounter(), Listening()
    loss = torch.compile(lambda a, b: F.mse_loss(a * 2.0, b), backend=counter)
    for _ in range(3):
        loss(torch.ones(4, requires_grad=True), torch.zeros(4)).backward()
        if listens:
            loss_functions.add(listener)
        with torch.no_grad():
            loss(torch.ones(4, requires_grad=True), torch.zeros(4))
        loss_functions.remove(listener)
    return counter.frame_count


def test_compiled_losses_have_no_extra_graphs() -> None:
    assert compiled_graphs(listens=True) == compiled_graphs(listens=False) == 2


def test_function_imported_by_name_before_is_seen(spool: Path) -> None:
    expected = []

    def evaluate(model: nn.Module) -> None:
        ((x, y),) = batches(1)
        with torch.no_grad():
            expected.append(F_CROSS_ENTROPY(model.eval()(x), y).item())

    assert train(spool, evaluate) == pytest.approx(dict(zip([2, 5], expected, strict=True)), rel=1e-6)


def overfit(spool: Path, *, fresh: bool) -> list[str]:
    """Train on 16 random samples over and over, or on new ones each time; return the kinds of warnings."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    truth = torch.randn(10)

    def draw(count: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 10)
        return x, (x @ truth + 2.0 * torch.randn(count) > 0).long()

    kept, held_out = draw(16), draw(256)
    with probe.watch(model, optimizer):
        for step in range(240):
            x, y = draw(16) if fresh else kept
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 9:
                with torch.no_grad():
                    F.cross_entropy(model(held_out[0]), held_out[1])
    return [event.kind for event in run_of(spool).events if event.severity == "warning"]


def test_a_set_learnt_by_heart_is_overfitting_without_a_word_from_the_script(spool: Path) -> None:
    assert set(overfit(spool, fresh=False)) == {"overfitting"}


def test_samples_never_seen_twice_cannot_be_learnt_by_heart(spool: Path) -> None:
    assert overfit(spool, fresh=True) == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_cuda_results_are_averaged_without_a_wait(spool: Path) -> None:
    expected: list[float] = []

    def evaluate(model: nn.Module) -> None:
        on_device = model.eval().cuda()
        given = [(x.cuda(), y.cuda()) for x, y in batches(4) * 100]
        with torch.no_grad(), cuda_waits_are_errors():
            losses = [F.cross_entropy(on_device(x), y) for x, y in given]
        weights = torch.tensor([float(len(y)) for _, y in given], dtype=torch.float64)
        expected.append(float((torch.stack(losses).cpu().double() * weights).sum() / weights.sum()))
        model.cpu()

    series = train(spool, evaluate, epochs=1)
    assert series == pytest.approx({2: expected[0]}, rel=1e-5)


def all_series_of(spool: Path) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for frame in run_of(spool).frames:
        for name, value in frame.scalars.items():
            if name.startswith("val_loss"):
                found.setdefault(name, []).append(value)
    return found


Part = list[tuple[Tensor, Tensor]]


def mean_loss(model: nn.Module, part: Part) -> float:
    total = sum(F.cross_entropy(model(x), y).item() * len(y) for x, y in part)
    return total / sum(len(y) for _, y in part)


def of_loaders(model: nn.Module, training: Part, testing: Part) -> list[float]:
    found = []
    for part in (training, testing):
        total = count = 0.0
        for x, y in DataLoader(TensorDataset(*map(torch.cat, zip(*part, strict=True))), 4):
            total += F.cross_entropy(model(x), y).item() * len(y)
            count += len(y)
        found.append(total / count)
    return found


def of_two_calls(model: nn.Module, training: Part, testing: Part) -> list[float]:
    first = mean_loss(model, training)
    return [first, mean_loss(model, testing)]


def of_a_loop_that_says_what_it_reads(model: nn.Module, training: Part, testing: Part) -> list[float]:
    """As nanoGPT does; what was trained on comes second."""
    found = {}
    for split, part in {"train": training, "val": testing}.items():
        total = count = 0.0
        for x, y in part:
            total += F.cross_entropy(model(x), y).item() * len(y)
            count += len(y)
        found[split] = total / count
    return [found["val"], found["train"]]


def of_a_loop_that_sets_the_mode_itself(model: nn.Module, training: Part, testing: Part) -> list[float]:
    """`model.eval()` stands in the very function whose variable says what is read."""
    means = {}
    model.eval()
    for split in ["train", "val"]:
        part = training if split == "train" else testing
        losses = [F.cross_entropy(model(x), y).item() * len(y) for x, y in part]
        means[split] = sum(losses) / sum(len(y) for _, y in part)
    return [means["val"], means["train"]]


LOOPS = [
    of_loaders,
    of_two_calls,
    of_a_loop_that_says_what_it_reads,
    of_a_loop_that_sets_the_mode_itself,
]


@pytest.mark.parametrize("evaluate", LOOPS)
def test_losses_of_two_sets_of_one_evaluation_are_kept_apart(
    spool: Path, evaluate: Callable[[nn.Module, Part, Part], list[float]]
) -> None:
    expected: list[list[float]] = []

    def both(model: nn.Module) -> None:
        model.eval()
        with torch.no_grad():
            expected.append(evaluate(model, batches(3), batches(5)))

    train(spool, both, epochs=3)
    first, second = zip(*expected, strict=True)
    assert all_series_of(spool) == {"val_loss": pytest.approx(first), "val_loss/2": pytest.approx(second)}


def test_parts_of_one_loss_that_take_turns_are_no_sets(spool: Path) -> None:
    def evaluate(model: nn.Module) -> None:
        model.eval()
        with torch.no_grad():
            for x, y in batches(3):
                F.cross_entropy(model(x), y)
                F.cross_entropy(model(x * 2), y)

    train(spool, evaluate)
    assert [*all_series_of(spool)] == ["val_loss"]


def test_of_too_many_sets_nothing_is_claimed(spool: Path) -> None:
    def evaluate(model: nn.Module) -> None:
        model.eval()
        with torch.no_grad():
            for x, y in batches(8) * 2:
                for inner in DataLoader(x):
                    F.cross_entropy(model(inner), y[:1])

    train(spool, evaluate)
    assert all_series_of(spool) == {}
