"""`benchmark_optimizations`: what it measures, compares, recommends and leaves alone."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from journals import read_journal
from optimised_models import Net, batch, everything, is_same, net
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import probe
from probe.actions.optimisation.benchmark_result import ModeResult
from probe.actions.optimisation.copies import CopySource
from probe.actions.optimisation.differences import Difference, StepValues, compare, limits_of
from probe.actions.optimisation.intervals import median_interval
from probe.actions.optimisation.measuring import pair_times, peak_bytes
from probe.actions.optimisation.recommendation import recommend
from probe.actions.profiling.recording import Recording
from probe.delivery.journal.journal_reader import read_stream
from probe.delivery.journal.run_folders import list_writers
from probe.threads.unnoticed import is_replaying
from probe.wire import Document, decode_record
from probe.wire.compared_modes import KIND, OptimizationBody
from probe.wire.documents import read_body

CPU = torch.device("cpu")
PLAIN = ("none",)
QUICK = ("none", "amp", "memory_efficient")
# torch's own imports, at the first compilation.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
LOSS = nn.CrossEntropyLoss()


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def result(mode: str, **fields: Any) -> ModeResult:
    given = {
        "first_step_s": 0.1,
        "speedup": 1.5,
        "speedup_low": 1.2,
        "speedup_high": 1.8,
        "is_within": True,
        **fields,
    }
    return ModeResult(mode=mode, step_s=0.1, **given)  # type: ignore[arg-type]


def kept(folder: Path) -> list[OptimizationBody]:
    """The comparisons in a run's journal."""
    (writer,) = list_writers(folder)
    records = [decode_record(data) for _, data in read_stream(writer, "events")]
    found = [one for one in records if isinstance(one, Document) and one.kind == KIND]
    return [read_body(one, OptimizationBody) for one in found]


@pytest.mark.parametrize(("count", "cut"), [(7, None), (8, 0), (9, 0), (12, 1), (15, 2)])
def test_interval_of_the_median_has_its_confidence(count: int, cut: int | None) -> None:
    """The reference counts every way in which values can lie below and above the true median."""
    found = median_interval([float(at) for at in reversed(range(count))])
    assert (None if found is None else found.low) == cut
    if found is not None:
        holds = sum(
            cut < sum(below) < count - cut for below in itertools.product((0, 1), repeat=count)
        )  # the cut-th smallest value is below the median, and the cut-th largest is above it
        assert holds / 2**count >= 0.99
        tighter = sum(cut + 1 < sum(b) < count - cut - 1 for b in itertools.product((0, 1), repeat=count))
        assert tighter / 2**count < 0.99
        assert found.high == count - 1 - cut


def test_steps_are_timed_in_turn_with_the_first_one_changing() -> None:
    order: list[str] = []
    times = pair_times(lambda: order.append("p"), lambda: order.append("o"), CPU, pairs=3, warm_up=1)
    assert "".join(order) == "po" + "po" + "op" + "po"
    assert len(times.plain_s) == len(times.own_s) == 3


def test_peak_is_what_was_allocated_at_most() -> None:
    def run() -> None:
        first = torch.empty(1000, dtype=torch.float32)
        del first
        kept = [torch.empty(2000, dtype=torch.float32) for _ in range(2)]
        del kept

    found = peak_bytes(run, CPU)
    assert found is not None and 16_000 <= found < 17_000


def test_peak_is_unknown_while_another_profiler_runs() -> None:
    recording = Recording(stacks=False)
    try:
        assert peak_bytes(lambda: None, CPU) is None
    finally:
        recording.stop()


def values(*, output: Sequence[float], loss: float = 1.0, **gradients: Sequence[float]) -> StepValues:
    return StepValues(
        outputs=[torch.tensor(output)],
        loss=loss,
        gradients={name: torch.tensor(one) for name, one in gradients.items()},
    )


def test_differences_are_relative_norms() -> None:
    plain = values(output=[3.0, 4.0], loss=2.0, a=[3.0, 4.0], b=[0.0, 12.0])
    found = compare(plain, values(output=[3.0, 4.5], loss=2.1, a=[3.0, 4.0], b=[0.0, 10.7]))
    assert found.output == pytest.approx(0.5 / 5)
    assert found.loss == pytest.approx(0.1 / 2)
    assert found.gradient == pytest.approx(1.3 / 13)
    assert found.worst_parameter == "b" and found.worst_gradient == pytest.approx(1.3 / 12)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_difference_of_a_nonfinite_number_on_one_side_is_infinite(bad: float) -> None:
    good, other = values(output=[1.0], a=[1.0]), values(output=[1.0], loss=bad, a=[bad])
    found = compare(good, other)
    assert found.loss == found.gradient == float("inf")
    assert not found.within(limits_of("amp", set()))
    assert compare(other, other).gradient == 0


def test_missing_gradient_counts_as_zero() -> None:
    found = compare(values(output=[1.0], a=[3.0], b=[4.0]), values(output=[1.0], a=[3.0]))
    assert found.gradient == pytest.approx(4 / 5)


@pytest.mark.parametrize("name", ["output", "loss", "gradient"])
def test_each_number_has_its_limit(name: str) -> None:
    numbers: dict[str, Any] = dict.fromkeys(("output", "loss", "gradient", "worst_gradient"), 0.0)
    assert Difference(**numbers, worst_parameter=None).within(limits_of("amp", set()))
    far = Difference(**{**numbers, name: 0.2}, worst_parameter=None)
    assert not far.within(limits_of("amp", set()))


def test_limits_are_wider_in_half_precision() -> None:
    near = Difference(output=0.01, loss=0.01, gradient=0.01, worst_gradient=0.01, worst_parameter="a")
    assert near.within(limits_of("amp", {torch.float32}))
    assert not near.within(limits_of("compilation", {torch.float32}))
    assert near.within(limits_of("compilation", {torch.bfloat16}))


@pytest.mark.parametrize(
    ("others", "recommended", "said"),
    [
        ([result("amp"), result("full", speedup=2.0, speedup_high=2.5)], "full", "2.00 times as fast"),
        ([result("amp", speedup_low=0.99)], "none", "No mode is certainly faster"),
        ([result("amp", speedup_low=1.0)], "none", "No mode is certainly faster"),
        ([result("amp", speedup_low=None)], "none", "No mode is certainly faster"),
        ([result("amp", is_within=False)], "none", "amp would be faster, but its numbers are out"),
        ([result("amp", is_within=None)], "none", "amp would be faster, but its numbers are not comparable"),
        ([result("amp", error="it fails")], "none", "No mode is certainly"),
        ([result("amp", first_step_s=5.1)], "amp", "takes 5 s longer, made up for after 100 steps"),
        (
            [result("amp"), result("memory_efficient", speedup=0.8, speedup_low=0.7, memory_saved=0.4)],
            "amp",
            "memory_efficient needs 40% less of it in a step, at 0.80 times the speed",
        ),
    ],
)  # fmt: skip
@pytest.mark.capability(77)
def test_recommendation_is_certain_and_says_why(
    others: list[ModeResult], recommended: str, said: str
) -> None:
    plain = ModeResult(mode="none", step_s=0.1)
    assert recommend([plain, *others]) == (recommended, recommend([plain, *others])[1])
    assert said in recommend([plain, *others])[1]


@pytest.mark.capability(77)
def test_benchmark_has_times_memory_and_differences_of_each_mode() -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    found = probe.benchmark_optimizations(model, batch(), optimizer, LOSS, modes=QUICK, pairs=8)
    assert list(found) == list(QUICK) and found.device == "cpu" and found.model == "Net"
    for mode, row in found.items():
        assert "error" not in row and row["total_time"] > 0, mode
        assert row["first_step_s"] > 0 and row["peak_bytes"] > 0
    assert found["none"].speedup is None
    inputs, _ = batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = model(inputs).detach().double()
    plain = model(inputs).detach().double()
    amp = found["amp"].difference
    assert amp is not None
    assert amp.output == pytest.approx(((half - plain).norm() / plain.norm()).item(), rel=1e-6)
    exact = found["memory_efficient"].difference
    assert exact is not None and exact.output is not None and exact.output < 1e-6 > exact.gradient
    assert found["memory_efficient"].is_within and found["amp"].is_within
    text = str(found)
    assert text.splitlines()[1].startswith(f"recommended: {found.recommended}. ")
    assert json.loads(json.dumps(found.to_dict()))["results"]["amp"]["mode"] == "amp"


@pytest.mark.capability(77)
def test_checkpoints_need_less_memory_where_activations_are_large() -> None:
    found = probe.benchmark_optimizations(net(), batch(4096), None, LOSS, modes=QUICK, pairs=8)
    saved = found["memory_efficient"].memory_saved
    assert saved is not None and saved > 0.2


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.capability(77)
def test_benchmark_changes_nothing_and_is_no_step(watched: bool, tmp_path: Path) -> None:
    model = net(dropout=0.5, norm=True)
    optimizer = torch.optim.AdamW(model.parameters())
    inputs, targets = batch()
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=4, shuffle=True)
    run = probe.watch(model, optimizer) if watched else None
    LOSS(model(inputs), targets).backward()
    optimizer.step()
    model.layers[1].eval()
    before = everything(model, optimizer)
    steps = None if run is None else run.steps_made
    probe.benchmark_optimizations(model, loader, optimizer, LOSS, modes=QUICK, pairs=8)
    assert is_same(everything(model, optimizer), before)
    if run is not None:
        assert run.steps_made == steps == 1
        run.close()
        folder = Path(os.environ["NANSCOPE_SPOOL"]) / run.run
        assert len(read_journal(folder).frames) == 1
        (body,) = kept(folder)
        assert [row.mode for row in body.rows] == list(QUICK) and body.model == "Net"


def test_copied_optimizer_updates_the_copied_model_from_a_copied_state() -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    LOSS(model(batch()[0]), batch()[1]).backward()
    optimizer.step()
    made = CopySource(model, optimizer, LOSS).copy()
    assert made.optimizer is not None
    copied = [one for group in made.optimizer.param_groups for one in group["params"]]
    assert list(map(id, copied)) == list(map(id, made.model.parameters()))
    assert set(made.optimizer.state) == set(copied) != set(optimizer.state)
    assert is_same(made.optimizer.state_dict(), optimizer.state_dict())


def test_sessions_take_no_notice_of_the_copies() -> None:
    seen: list[bool] = []

    class Watching(Net):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(is_replaying())
            return super().forward(x)

    probe.benchmark_optimizations(Watching(), batch(), None, LOSS, modes=("amp",), pairs=8)
    assert seen and all(seen) and not is_replaying()


@pytest.mark.capability(77)
def test_dropout_is_no_difference_but_other_random_numbers_are_said() -> None:
    found = probe.benchmark_optimizations(net(dropout=0.5), batch(), None, LOSS, modes=QUICK, pairs=8)
    assert found["memory_efficient"].is_within and found["memory_efficient"].note is None

    class Noisy(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x + torch.randn_like(x))

    noisy = probe.benchmark_optimizations(Noisy(), batch(), None, LOSS, modes=("amp",), pairs=8)
    assert noisy["amp"].is_within is None and "draws random numbers" in str(noisy["amp"].note)
    assert noisy.recommended == "none"


@pytest.mark.capability(77)
def test_mode_that_fails_is_a_row_with_its_error() -> None:
    found = probe.benchmark_optimizations(
        nn.Linear(8, 3), batch(), None, LOSS, modes=("amp", "memory_efficient"), pairs=8
    )
    assert found["memory_efficient"]["error"].startswith("ValueError: Linear has no block to checkpoint")
    assert "error" not in found["amp"]
    assert "memory_efficient does not work here: ValueError: Linear has no block" in str(found)


def test_batch_of_one_row_is_the_modes_error() -> None:
    found = probe.benchmark_optimizations(net(), batch(1), None, LOSS, modes=("memory_efficient",), pairs=8)
    assert "a batch of one row cannot be split" in found["memory_efficient"]["error"]


@pytest.mark.capability(77)
def test_missing_cpp_compiler_is_the_modes_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    found = probe.benchmark_optimizations(net(), batch(), None, LOSS, modes=("compilation",), pairs=8)
    assert found["compilation"]["error"].startswith("RuntimeError: torch.compile needs a C++ compiler")
    assert found.recommended == "none" and found["none"].step_s is not None


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.capability(77)
def test_model_that_cannot_be_compiled_is_said() -> None:
    class Odd(Net):
        @torch.compiler.disable(recursive=True)
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)

    found = probe.benchmark_optimizations(Odd(), batch(), None, LOSS, modes=("compilation",), pairs=8)
    assert "nothing of the model was compiled" in found["compilation"]["error"]


@pytest.mark.slow
@pytest.mark.timeout(600)  # it is compiled on an empty cache: half a minute of CPU
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.capability(76, 77)
@pytest.mark.parametrize("mode", [pytest.param("compilation", marks=pytest.mark.faults), "full"])
def test_compiled_mode_is_measured_with_its_compilation_apart(mode: str) -> None:
    model = net(dropout=0.5, blocks=1)  # the C++ compiler is asked once for each of its kernels
    found = probe.benchmark_optimizations(model, batch(), None, LOSS, modes=(mode,), pairs=8)
    row = found[mode]
    assert row.error is None and row.is_within, str(found)
    assert row.first_step_s > row.step_s and row.compile_s > 0


def test_model_is_made_anew_where_it_cannot_be_copied() -> None:
    class Held(Net):
        def __init__(self) -> None:
            super().__init__()
            self.derived = self.head.weight * 1

    model = Held()
    with pytest.raises(ValueError, match=r"cannot be copied .*: pass a function that makes it"):
        probe.benchmark_optimizations(model, batch(), None, LOSS, modes=PLAIN, pairs=8)
    found = probe.benchmark_optimizations(
        Held, batch(), lambda parameters: torch.optim.SGD(parameters, lr=0.1), LOSS, modes=("amp",), pairs=8
    )
    assert found["amp"].is_within


class FSDPModule(nn.Linear):
    """Has the name of one of torch's."""


@pytest.mark.parametrize(
    ("arguments", "options", "problem"),
    [
        ((net(), batch()), {"modes": ("ampp",)}, "did you mean 'amp'"),
        ((net(), batch()), {"pairs": 7}, "pairs=7 must be a whole number, at least 8"),
        ((net(), batch()), {"accumulation": 0}, "accumulation=0"),
        ((3, batch()), {}, "model must be a torch.nn.Module or make one, got int"),
        ((net(), batch()[0]), {}, "batch must be .*, got Tensor"),
        ((net(), iter(())), {}, "the loader has no batch"),
        ((net(), (torch.ones(2, 5), torch.ones(2))), {}, "a plain step of the model fails"),
        ((nn.Sequential(FSDPModule(8, 3)), batch()), {}, "FSDPModule 0 is under FSDP"),
        ((net, batch(), torch.optim.SGD(net().parameters())), {}, "pass a function of its parameters"),
    ],
)
def test_misuse_is_refused_in_a_sentence(
    arguments: tuple[Any, ...], options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        probe.benchmark_optimizations(*arguments, criterion=LOSS, **options)


@pytest.mark.capability(77)
def test_comparison_stands_in_the_runs_report(tmp_path: Path) -> None:
    model = net()
    with probe.watch(model, torch.optim.SGD(model.parameters(), lr=0.1)) as run:
        found = run.benchmark_optimizations(model, batch(), None, LOSS, modes=("amp",), pairs=8)
        page = run.save_debug_report(tmp_path / "report.html").read_text()
        plain = json.loads(run.save_debug_report(tmp_path / "report.json").read_text())
    (document,) = plain["optimizations"]
    assert document["key"] == "Net" and document["body"]["recommended"] == found.recommended
    assert "<h2>Optimisations</h2>" in page
    assert f"recommended: {found.recommended}" in page and "<td>memory_efficient" not in page
    assert "<td>amp</td>" in page
    assert run.optimization_metrics[-1].mode.value == "amp"
