"""`robust_training_step` and `safe_inference`: allocations that fail, what is released, tried, told."""

import gc
import logging
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from recovered_runs import assert_identical, everything_of, plain_model, recoveries
from run_numbers import run_of
from small_training import batches
from torch import Tensor, nn
from torch.nn import functional as F

import probe
from probe import InputPolicy, OutputPolicy, PolicyError
from probe.calls.batch_halves import joined

pytestmark = [
    pytest.mark.usefixtures("one_thread", "nothing_switched_off"),
    # torch's own imports, at the first compilation of an optimizer.
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"),
]
TOO_MUCH = 2**50
"""Elements: four petabytes, more than an address space has."""


def lack_of_memory() -> Tensor:
    """What torch's CPU allocator raises."""
    return torch.empty(TOO_MUCH)


class Attempts:
    """A training step that runs out of memory in its first attempts at some batches, in the backward."""

    def __init__(self, failures: int, *, at: int = 1) -> None:
        self.model = plain_model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.failures, self.at, self.calls = failures, at, 0

    def __call__(self, step: int, inputs: Tensor, *, targets: Tensor) -> float:
        self.calls += 1
        loss = F.cross_entropy(self.model(inputs), targets)
        loss.backward()
        if step == self.at and self.failures:
            self.failures -= 1
            lack_of_memory()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()


def train_robustly(step: Attempts, **options: Any) -> list[Any]:
    return [
        probe.robust_training_step(step, number, inputs, targets=targets, optimizer=step.optimizer, **options)
        for number, (inputs, targets) in enumerate(batches(3))
    ]


def test_cpu_allocator_raises_what_is_taken_for_a_lack_of_memory() -> None:
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
        lack_of_memory()


@pytest.mark.capability(70)
def test_step_out_of_memory_is_tried_again_with_cleared_gradients(spool: Path) -> None:
    step, twin = Attempts(1), Attempts(0)
    # BatchNorm sees the batch of the failed attempt, too: that is the one thing left of it.
    step.model[1], twin.model[1] = nn.Identity(), nn.Identity()
    for one in (step, twin):
        one.optimizer = torch.optim.AdamW(one.model.parameters(), lr=0.01)
    with probe.watch(step.model, step.optimizer):
        losses = train_robustly(step)
    assert losses == [twin(n, inputs, targets=targets) for n, (inputs, targets) in enumerate(batches(3))]
    assert_identical(everything_of(step.model, step.optimizer), everything_of(twin.model, twin.optimizer))
    (event,) = recoveries(spool)
    assert (event.subject, event.severity, event.step, event.ended) == ("retry 1", "warning", 1, True)
    assert "ran out of memory (RuntimeError: " in event.message
    assert "memory is released and gradients are cleared; the step is tried again (1 of 1)" in event.message


@pytest.mark.capability(70, 72)
def test_step_is_skipped_once_no_retry_is_left(spool: Path) -> None:
    step = Attempts(9)
    with probe.watch(step.model, step.optimizer):
        losses = train_robustly(step, retries=2, skipped="skipped")
    assert losses[1] == "skipped" and step.calls == 5
    assert all(parameter.grad is None for parameter in step.model.parameters())
    assert [event.subject for event in recoveries(spool)] == ["retry 1", "retry 2", "skip 1"]


def test_step_out_of_memory_is_raised_on_where_asked() -> None:
    step = Attempts(9)
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
        train_robustly(step, on_out_of_memory="raise")
    assert step.calls == 3


def test_frames_of_a_failure_are_released_even_where_the_script_keeps_it() -> None:
    alive: list[weakref.ref[Tensor]] = []
    found = []

    def step() -> str:
        found.append([reference() is not None for reference in alive])
        if alive:
            return "done"
        large = torch.zeros(1000)
        alive.append(weakref.ref(large))
        lack_of_memory()
        return "not reached"

    kept: list[Exception] = []

    def strategy(error: Exception, context: Mapping[str, Any]) -> bool:
        kept.append(error)
        return True

    gc.disable()
    try:
        assert probe.robust_training_step(step, recovery_strategy=strategy) == "done"
    finally:
        gc.enable()
    assert found == [[], [False]]


def test_other_exceptions_pass_untouched() -> None:
    error = ValueError("mine")

    def step() -> None:
        raise error

    with pytest.raises(ValueError, match="mine") as caught:
        probe.robust_training_step(step, retries=3)
    assert caught.value is error


def test_memory_error_of_python_counts_too(caplog: pytest.LogCaptureFixture) -> None:
    def step() -> bytearray:
        return bytearray(TOO_MUCH * 4)

    with caplog.at_level(logging.WARNING, "probe.actions.recovery"):
        assert probe.robust_training_step(step, retries=0) is None
    assert "Training step ran out of memory (MemoryError" in caplog.text


def test_attempt_that_has_updated_is_not_repeated(spool: Path) -> None:
    model = plain_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    calls = []

    def step(inputs: Tensor) -> None:
        calls.append(1)
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
        lack_of_memory()

    with probe.watch(model, optimizer):
        probe.robust_training_step(step, torch.ones(4, 6), optimizer=optimizer, retries=3)
    assert len(calls) == 1
    (event,) = recoveries(spool)
    assert event.subject == "skip 1" and "its update had begun" in event.message


@pytest.mark.parametrize("how", ["compiled", "by hand"])
def test_attempt_whose_update_no_hook_tells_of_is_not_repeated(how: str) -> None:
    model = plain_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch._dynamo.reset()
    compiled = torch.compile(optimizer.step, backend="eager")
    calls = []

    def step(inputs: Tensor) -> None:
        calls.append(1)
        optimizer.zero_grad()
        model(inputs).sum().backward()
        if how == "compiled":
            compiled()
        else:
            with torch.no_grad():
                model[0].bias -= 0.1  # type: ignore[index, operator]
        lack_of_memory()

    probe.robust_training_step(step, torch.ones(4, 6), optimizer=optimizer, retries=3)
    torch._dynamo.reset()
    assert len(calls) == 1


def test_strategy_decides_on_every_exception(spool: Path) -> None:
    asked: list[tuple[str, Mapping[str, Any]]] = []
    model = plain_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def strategy(error: Exception, context: Mapping[str, Any]) -> bool:
        asked.append((type(error).__name__, context))
        return isinstance(error, KeyError)

    def step(error: Exception) -> None:
        model(torch.ones(4, 6)).sum().backward()
        raise error

    with probe.watch(model, optimizer):
        options: dict[str, Any] = {"recovery_strategy": strategy, "optimizer": optimizer}
        assert probe.robust_training_step(step, KeyError("a"), retries=1, skipped=0, **options) == 0
        assert all(parameter.grad is None for parameter in model.parameters())
        with pytest.raises(IndexError):
            probe.robust_training_step(step, IndexError("b"), retries=1, **options)
    assert [(name, context["attempt"]) for name, context in asked] == [
        ("KeyError", 0),
        ("KeyError", 1),
        ("IndexError", 0),
    ]
    assert not asked[0][1]["is_out_of_memory"] and asked[0][1]["optimizer"] is optimizer
    assert [event.subject for event in recoveries(spool)] == ["retry 1", "skip 1"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"retries": -1}, "retries=-1 must be a whole number from 0"),
        ({"on_out_of_memory": "ignore"}, "on_out_of_memory='ignore' must be"),
        ({"recovery_strategy": 3}, "recovery_strategy=3 must be a function"),
    ],
)
def test_wrong_option_of_a_robust_step_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        probe.robust_training_step(lambda: None, **options)


# -- inference


class RowWise(nn.Module):
    """Row by row, and out of memory above a number of rows."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([0.5, -2.0]))
        self.most = most
        self.sizes: list[int] = []

    def forward(self, x: Tensor, shift: Tensor | float = 0.0) -> dict[str, Any]:
        self.sizes.append(len(x))
        if len(x) > self.most:
            lack_of_memory()
        out = (x * self.scale + shift).tanh()
        return {"out": out, "pair": (out.argmax(1), [out.sum(1)]), "note": "same"}


def test_split_batch_gives_what_the_whole_one_would(spool: Path) -> None:
    inputs = torch.randn(11, 2, generator=torch.Generator().manual_seed(0))
    model = RowWise(3)
    with probe.watch(model):
        result = probe.safe_inference(model, inputs, retries=2, split_batch=True)
    with torch.no_grad():
        assert_identical(result.data, RowWise(100)(inputs))
    assert model.sizes == [11, 5, 2, 3, 6, 3, 3]
    assert [event.subject for event in recoveries(spool)] == ["split 1", "split 2", "split 3"]


def test_batch_is_halved_no_more_often_than_allowed() -> None:
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
        probe.safe_inference(RowWise(1), torch.ones(8, 2), retries=2, split_batch=True).unwrap()
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
        probe.safe_inference(RowWise(0), torch.ones(1, 2), retries=2, split_batch=True).unwrap()


def test_batch_is_not_split_unless_asked_for() -> None:
    model = RowWise(3)
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
        probe.safe_inference(model, torch.ones(4, 2), retries=2).unwrap()
    assert model.sizes == [4, 4, 4]


@pytest.mark.parametrize(
    "inputs", [(torch.ones(4, 2), torch.ones(4, 1)), {"x": torch.ones(4, 2), "shift": 1.0}]
)
def test_inputs_are_positional_in_a_tuple_and_keywords_in_a_mapping(inputs: Any) -> None:
    result = probe.safe_inference(RowWise(2), inputs, split_batch=True)
    assert torch.equal(result.data["out"], (torch.ones(4, 2) * torch.tensor([0.5, -2.0]) + 1).tanh())


def test_model_is_in_evaluation_without_gradients_and_as_before_afterwards() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout(0.5))
    model[1].eval()
    before = everything_of(model)
    first, second = (probe.safe_inference(model, torch.ones(3, 2)).data for _ in range(2))
    assert torch.equal(first, second) and not first.requires_grad
    assert [module.training for module in model] == [True, False, True] and model.training
    assert_identical(everything_of(model), before)


def test_bad_inputs_and_outputs_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(PolicyError, match="Input policy violated in safe_inference: input holds 2 NaN"):
        probe.safe_inference(model, torch.full((1, 2), torch.nan)).unwrap()
    with pytest.raises(PolicyError, match="output goes up to"):
        probe.safe_inference(
            model, torch.full((1, 2), 1e4), output_policy=OutputPolicy("raise", high=0.0, low=-1e-9)
        ).unwrap()
    with pytest.raises(PolicyError, match="input holds"):
        policy = InputPolicy("raise", names=("input",))
        probe.safe_inference(model, torch.full((1, 2), torch.nan), input_policy=policy).unwrap()
    mended = probe.safe_inference(model, torch.full((1, 2), torch.nan), input_policy=InputPolicy("recover"))
    assert torch.equal(mended.data, model.bias.detach()[None])
    assert "repaired copies take their place" in caplog.text


def test_broken_policy_is_an_event_of_the_session(spool: Path) -> None:
    model = nn.Linear(2, 2)
    with probe.watch(model):
        for _ in range(2):
            assert not probe.safe_inference(model, torch.full((1, 2), torch.nan)).success
        probe.safe_inference(model, torch.full((1, 2), torch.inf), input_policy=InputPolicy("recover"))
    first, second, mended = run_of(spool).latest_events
    for event, subject in ((first, "policy: input"), (second, "policy: input 2")):
        assert (event.kind, event.severity, event.subject) == ("nonfinite_input", "critical", subject)
    assert (mended.kind, mended.severity, mended.subject) == ("recovery", "warning", "input 1")


class Failing(nn.Module):
    """Fails so many times, then returns `value` times what it gets, and what is fine from the next on."""

    def __init__(self, failures: int = 0, first: float = 1.0) -> None:
        super().__init__()
        self.failures, self.factors = failures, [first]

    def forward(self, x: Tensor) -> Tensor:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("the link is down\nsecond line")
        return x * (self.factors.pop() if self.factors else 1.0)


@pytest.mark.capability(72)
def test_any_failure_is_tried_again_and_told(spool: Path) -> None:
    model, data = nn.Sequential(nn.Linear(1, 2), Failing(2)), torch.ones(2, 1)
    with probe.watch(model):
        result = probe.safe_inference(model=model, input_data=data, device=torch.device("cpu"), max_retries=3)
    assert (result.success, result.error_message, result.attempts) == (True, None, 3)
    with torch.no_grad():
        assert torch.equal(result.data, model(data))
    said = [event.message for event in recoveries(spool)]
    assert said == [
        f"Inference failed: RuntimeError: the link is down; it is tried again ({count} of 3)"
        for count in (1, 2)
    ]


def test_failure_that_stays_is_in_the_result() -> None:
    result = probe.safe_inference(Failing(9), torch.ones(1), max_retries=2)
    assert not result and (result.success, result.data, result.attempts) == (False, None, 3)
    assert result.error_message == "RuntimeError: the link is down\nsecond line"
    with pytest.raises(RuntimeError, match="the link is down"):
        result.unwrap()


def test_output_that_breaks_its_policy_is_tried_again() -> None:
    result = probe.safe_inference(Failing(first=float("nan")), torch.ones(2))
    assert torch.equal(result.data, torch.ones(2)) and result.attempts == 2
    refused = probe.safe_inference(Failing(first=float("nan")), torch.ones(2), max_retries=0)
    assert "output holds 2 NaN" in (refused.error_message or "")


def test_two_names_of_one_argument_are_refused() -> None:
    model, data = nn.Linear(1, 1), torch.ones(1)
    with pytest.raises(ValueError, match="inputs= and input_data="):
        probe.safe_inference(model, data, input_data=data)
    with pytest.raises(ValueError, match="retries= and max_retries="):
        probe.safe_inference(model, data, retries=1, max_retries=1)
    with pytest.raises(ValueError, match="needs inputs="):
        probe.safe_inference(model)


class Result(NamedTuple):
    rows: Tensor
    loss: Tensor


def test_result_that_is_not_by_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="do not have one row for each"):
        joined([(Result(torch.ones(2), torch.tensor(1.0)), 2), (Result(torch.ones(1), torch.tensor(2.0)), 1)])
    with pytest.raises(ValueError, match="different values of type float"):
        joined([((torch.ones(2), 0.5), 2), ((torch.ones(1), 0.25), 1)])
    with pytest.raises(ValueError, match="same first dimension in all tensors, found 2, 3"):
        probe.safe_inference(RowWise(9), (torch.ones(2, 2), torch.ones(3, 1)), split_batch=True)


class Renormalised(nn.Module):
    """Its forward writes to the embedding's weight, which is no update."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(10, 4, max_norm=1.0), nn.Linear(4, 1)
        with torch.no_grad():
            self.embedding.weight.mul_(5.0)

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(indices))


def test_embedding_that_its_forward_renormalises_is_not_taken_for_an_update() -> None:
    torch.manual_seed(0)
    model, calls = Renormalised(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> str:
        calls.append(len(calls))
        optimizer.zero_grad()
        loss = model(torch.tensor([1, 2, len(calls)])).sum()
        if len(calls) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory (planted)")
        loss.backward()
        optimizer.step()
        return "made"

    assert probe.robust_training_step(step, optimizer=optimizer, retries=2) == "made"
    assert len(calls) == 2


def test_parameters_that_are_not_initialised_yet_are_left_to_the_step() -> None:
    model = nn.LazyLinear(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> tuple[int, ...]:
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
        return tuple(model.weight.shape)

    assert probe.robust_training_step(step, optimizer=optimizer) == (2, 4)
