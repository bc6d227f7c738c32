"""Input and output policies: each condition, each action, what is raised, what is left alone."""

import math
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from recovered_runs import assert_identical, everything_of
from run_numbers import run_of
from small_training import batches, seeded_model, train
from torch import Tensor, nn

import probe
from probe import InputPolicy, OutputPolicy, PolicyError
from probe.actions.recovery.tensor_conditions import map_tensors, mended, violations_of
from probe.settings.config import ProbeConfig
from probe.settings.policies import Policy
from probe.wire import Event

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_switched_off")
FINE = torch.tensor([[0.5, -1.0], [2.0, 0.0]])


def with_value(value: float) -> Tensor:
    tensor = FINE.clone()
    tensor[1, 1] = value
    return tensor


CASES: list[tuple[str, dict[str, Any], Tensor, str]] = [
    ("finite", {}, with_value(math.nan), "x holds 1 NaN and 0 Inf among 4 values"),
    ("finite", {}, with_value(-math.inf), "x holds 0 NaN and 1 Inf among 4 values"),
    ("max_abs", {"max_abs": 3.0}, with_value(-3.5), "x reaches an absolute value of 3.5 (limit 3)"),
    ("range", {"low": -2.0}, with_value(-2.5), "x goes down to -2.5 (lowest allowed -2)"),
    ("range", {"high": 2.5}, with_value(4.0), "x goes up to 4 (highest allowed 2.5)"),
    ("ndim", {"ndim": 3}, FINE, "x has 2 dimensions, not 3"),
    ("shape", {"shape": (None, 3)}, FINE, "x has the shape (2, 2), not (any, 3)"),
    ("dtype", {"dtype": torch.float64}, FINE, "x has the type torch.float32, not torch.float64"),
]


@pytest.mark.parametrize(("condition", "options", "tensor", "text"), CASES)
@pytest.mark.parametrize("kind", [InputPolicy, OutputPolicy])
def test_broken_condition_is_named(
    kind: Any, condition: str, options: dict[str, Any], tensor: Tensor, text: str
) -> None:
    policy = kind("event", **options)
    (violation,) = violations_of(policy, "x", tensor, is_first=True)
    assert violation.condition == condition
    assert f"{violation.name} {violation.text}" == text


@pytest.mark.parametrize("kind", [InputPolicy, OutputPolicy])
def test_tensor_that_keeps_to_all_conditions_breaks_none(kind: Any) -> None:
    policy = kind("event", max_abs=2.0, low=-1.0, high=2.0, ndim=2, shape=(None, 2), dtype=torch.float32)
    assert violations_of(policy, "x", FINE, is_first=True) == []
    integers = torch.tensor([[7, -9]])
    assert violations_of(kind("event", max_abs=2.0), "x", integers, is_first=True) == []


def test_uniform_predictions_are_named_unless_they_are_one_value() -> None:
    policy = OutputPolicy("event")
    (violation,) = violations_of(policy, "output", torch.full((4, 3), 0.25), is_first=True)
    assert (violation.condition, violation.value, violation.threshold) == ("uniform", 0.0, 1e-6)
    assert violations_of(policy, "output", torch.tensor([0.25]), is_first=True) == []
    assert violations_of(policy, "output", torch.full((4, 3), 0.25), is_first=False) == []
    assert violations_of(OutputPolicy("event", min_std=None), "output", torch.zeros(9), is_first=True) == []


def test_mended_values_are_within_the_limits_and_pass_gradients() -> None:
    policy = InputPolicy("recover", max_abs=3.0, low=-1.0)
    tensor = torch.tensor([math.nan, math.inf, -5.0, 9.0, 0.5], requires_grad=True)
    result = mended(policy, tensor, is_first=True)
    assert result.tolist() == [0.0, 0.0, -1.0, 3.0, 0.5]
    result.sum().backward()
    assert tensor.grad is not None and tensor.grad.tolist() == [0.0, 0.0, 0.0, 0.0, 1.0]


class Pair(NamedTuple):
    left: Tensor
    right: Any


def test_tensors_are_replaced_in_their_containers_and_nothing_else_is_copied() -> None:
    one, other = torch.zeros(1), torch.ones(1)
    value = {"a": [one, 3], "b": Pair(other, (one, "text")), "c": {"deep": other}}
    seen: list[str] = []

    def visit(name: str, tensor: Tensor) -> Tensor:
        seen.append(name)
        return tensor + 1 if tensor is one else tensor

    result = map_tensors(value, "x", visit)
    assert seen == ["x['a'][0]", "x['b'][0]", "x['b'][1][0]", "x['c']['deep']"]
    assert result == {
        "a": [torch.ones(1), 3],
        "b": Pair(other, (torch.ones(1), "text")),
        "c": {"deep": other},
    }
    assert result["c"] is value["c"] and value["a"][0] is one  # type: ignore[index]
    assert map_tensors(value, "x", lambda _, tensor: tensor) is value


def bad_batch(step: int, at: int = 2) -> Tensor:
    inputs = list(batches(step + 1))[step][0]
    return inputs.index_fill(0, torch.tensor([1]), math.nan) if step == at else inputs


def run_with(policy: Policy, *, steps: int = 4, model: nn.Module | None = None) -> list[int]:
    """Train on batches of which number 2 holds NaN; returns the steps at which `PolicyError` was raised."""
    model = seeded_model() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    side = {"input_policy" if isinstance(policy, InputPolicy) else "output_policy": policy}
    raised = []
    with probe.watch(model, optimizer, replay=False, bundles=0, **side):
        for step in range(steps):
            optimizer.zero_grad()
            try:
                model(bad_batch(step)).square().mean().backward()
            except PolicyError:
                raised.append(step)
                continue
            optimizer.step()
    return raised


def events(spool: Path, *kinds: str) -> list[Event]:
    """Those that a policy has made; the detectors have their own about the same values."""
    found = [event for event in run_of(spool).latest_events if event.kind in kinds]
    return [event for event in found if " policy violated at step " in event.message]


def test_raise_stops_before_the_forward(spool: Path) -> None:
    calls: list[int] = []
    model = seeded_model()
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    assert run_with(InputPolicy("raise"), model=model) == [2]
    assert len(calls) == 3
    assert all(bool(torch.isfinite(tensor).all()) for tensor in model.state_dict().values())
    (event,) = events(spool, "nonfinite_input")
    assert (event.subject, event.severity, event.step) == ("policy: input", "critical", 2)


def test_raised_error_is_a_value_error_and_an_anomaly_that_names_the_tensor() -> None:
    model = seeded_model()
    with probe.watch(model, input_policy=InputPolicy("raise", ndim=3)), pytest.raises(ValueError) as caught:
        model(torch.ones(4, 6))
    assert isinstance(caught.value, probe.AnomalyError)
    assert str(caught.value) == "Input policy violated at step 0: input has 2 dimensions, not 3"


def test_event_goes_on_with_what_it_was_given(spool: Path) -> None:
    model = seeded_model()
    assert run_with(InputPolicy("event"), model=model) == []
    assert not torch.isfinite(next(model.parameters())).all()
    (event,) = events(spool, "nonfinite_input")
    assert (event.subject, event.severity, event.step) == ("policy: input", "warning", 2)
    assert math.isnan(event.evidence.value)  # type: ignore[arg-type]


def test_recover_calls_the_model_with_a_mended_copy(spool: Path) -> None:
    model, given = seeded_model(), bad_batch(2)
    seen: list[Tensor] = []
    model.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with probe.watch(model, input_policy=InputPolicy("recover")):
        model(given)
    assert torch.equal(seen[0], torch.nan_to_num(given, nan=0.0))
    assert bool(given.isnan().any())
    (event,) = events(spool, "recovery")
    assert (event.subject, event.severity, event.step) == ("input", "warning", 0)


def test_recover_raises_what_cannot_be_mended() -> None:
    model = seeded_model()
    policy = InputPolicy("recover", shape=(8, 6))
    with probe.watch(model, input_policy=policy), pytest.raises(PolicyError, match=r"not \(8, 6\)"):
        model(torch.ones(4, 6))


def test_output_is_raised_after_the_forward_and_training_goes_on(spool: Path) -> None:
    model = nn.Linear(6, 3)
    assert run_with(OutputPolicy("raise"), model=model) == [2]
    (event,) = events(spool, "nonfinite_activation")
    assert (event.subject, event.severity, event.step) == ("policy: output", "critical", 2)
    assert [frame.step for frame in run_of(spool).frames] == [0, 1, 2]


def test_output_is_mended_for_the_script_and_its_gradients_are_finite(spool: Path) -> None:
    model = nn.Linear(6, 3)
    assert run_with(OutputPolicy("recover", max_abs=100.0), model=model, steps=3) == []
    assert [(event.subject, event.step) for event in events(spool, "recovery")] == [("output", 2)]
    # 0 * NaN of the input, in the weight's own gradient: the output was mended, the batch was not.
    assert bool(torch.isfinite(model.bias).all())


def test_uniform_predictions_are_an_event_with_a_count(spool: Path) -> None:
    model = nn.Linear(6, 3)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    with probe.watch(model, output_policy=OutputPolicy("event")):
        for inputs, _ in batches(3):
            model(inputs).sum().backward()
            torch.optim.SGD(model.parameters(), lr=0.0).step()
    (event,) = events(spool, "output_degenerate")
    assert (event.subject, event.severity, event.step, event.count) == ("policy: output", "warning", 0, 3)
    assert (event.evidence.value, event.evidence.threshold) == (0.0, 1e-6)


def test_arguments_are_named_and_some_can_be_left_out() -> None:
    class Masked(nn.Linear):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
            return super().forward(x) + (0.0 if mask is None else mask.exp())

    model, mask = Masked(6, 3), torch.full((3,), -math.inf)
    with probe.watch(model, input_policy=InputPolicy("raise", names=("x",))):
        model(torch.ones(2, 6), mask=mask)
        with pytest.raises(PolicyError, match="x holds 12 NaN"):
            model(torch.full((2, 6), math.nan), mask=mask)
    with (
        probe.watch(model, input_policy=InputPolicy("raise")),
        pytest.raises(PolicyError, match="mask holds"),
    ):
        model(torch.ones(2, 6), mask=mask)


def test_arguments_of_a_compiled_model_have_the_names_of_its_own_forward() -> None:
    model = nn.Linear(2, 2)
    compiled: Any = torch.compile(model, backend="eager")
    with probe.watch(compiled, input_policy=InputPolicy("raise", names=("input",))):
        with pytest.raises(PolicyError, match="input holds 1 NaN"):
            compiled(with_value(math.nan))


@pytest.mark.capability(28, 29, 79)
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("trained_steps", [0, 5])
def test_policies_hold_in_evaluation(spool: Path, context: Any, trained_steps: int) -> None:
    model, calls = nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 1)), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    policies = {"input_policy": InputPolicy("raise", max_abs=1000.0, ndim=2)}
    with probe.watch(model, optimizer, output_policy=OutputPolicy("event", high=50.0), **policies):
        for inputs, _ in batches(trained_steps):
            model(inputs).square().mean().backward()
            optimizer.step()
        del calls[:]
        with context():
            for bad, problem in (
                (torch.full((2, 6), 2000.0), r"input reaches an absolute value of 2000 \(limit 1000\)"),
                (torch.full((2, 6), math.nan), "input holds 12 NaN"),
                (torch.ones(6), "input has 1 dimensions, not 2"),
            ):
                with pytest.raises(ValueError, match=problem):
                    model(bad)
            assert calls == []
            model[1].bias.fill_(100.0)
            outputs = model(torch.ones(2, 6))
    assert bool((outputs > 50.0).all())
    (event,) = events(spool, "output_degenerate")
    assert (event.subject, event.severity, event.evidence.threshold) == ("policy: output", "warning", 50.0)


def test_parts_that_an_evaluated_model_calls_are_not_checked_by_themselves() -> None:
    model = nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 1))
    with probe.watch(model, input_policy=InputPolicy("raise", shape=(None, 6))), torch.no_grad():
        assert model(torch.ones(2, 6)).shape == (2, 1)


def test_only_every_nth_call_is_checked() -> None:
    model = nn.Linear(6, 3)
    bad = torch.full((2, 6), math.nan)
    with probe.watch(model, input_policy=InputPolicy("raise", every=2)):
        model(torch.ones(2, 6))
        model(bad)
        with pytest.raises(PolicyError):
            model(bad)


def test_values_on_a_device_are_not_read_unless_asked_for() -> None:
    # The meta device has no values: reading them raises.
    tensor = torch.empty(2, 3, device="meta")
    assert violations_of(InputPolicy("raise", max_abs=1.0), "x", tensor, is_first=True) == []
    policy = InputPolicy("raise", max_abs=1.0, ndim=1)
    assert [v.condition for v in violations_of(policy, "x", tensor, is_first=True)] == ["ndim"]


def test_training_within_the_policies_is_bit_identical(spool: Path) -> None:
    model, twin = seeded_model(), seeded_model()
    optimizer, other = (torch.optim.AdamW(m.parameters(), lr=0.01) for m in (model, twin))
    torch.manual_seed(3)
    policies: dict[str, Any] = {
        "input_policy": InputPolicy("recover", max_abs=1e3, dtype=torch.float32),
        "output_policy": OutputPolicy("raise", low=-1e3, high=1e3),
    }
    with probe.watch(model, optimizer, replay=False, **policies):
        losses = train(model, optimizer, 10)
    torch.manual_seed(3)
    assert losses == train(twin, other, 10)
    assert_identical(everything_of(model, optimizer), everything_of(twin, other))
    assert run_of(spool).latest_events == []


@pytest.mark.parametrize("kind", [InputPolicy, OutputPolicy])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"action": "warn"}, "is not available; choose one of 'raise', 'event', 'recover'"),
        ({"action": "raise", "max_abs": -1.0}, "max_abs=-1.0 must be a number above 0"),
        ({"action": "raise", "low": math.nan}, "low=nan must be a number"),
        ({"action": "raise", "low": 2.0, "high": 1.0}, "low=2.0 is above high=1.0"),
        ({"action": "raise", "every": 0}, "every=0 must be a whole number of at least 1"),
        ({"action": "raise", "ndim": "two"}, "ndim='two' must be a whole number"),
        ({"action": "raise", "finite": 1}, "finite=1 must be True or False"),
    ],
)
def test_wrong_option_of_a_policy_is_refused(kind: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**options)


def test_policy_of_the_other_side_is_refused_at_attach() -> None:
    with pytest.raises(ValueError, match=r"input_policy=.* must be a probe.InputPolicy"):
        ProbeConfig.resolve({"input_policy": OutputPolicy("raise")}, {})


@pytest.mark.parametrize(
    ("policy", "kind"),
    [
        (InputPolicy("event", ndim=3), "custom"),
        (InputPolicy("event", shape=(None, 7)), "custom"),
        (InputPolicy("event", dtype=torch.float64), "custom"),
        (InputPolicy("event", max_abs=1e-9), "input_out_of_range"),
        (OutputPolicy("event", ndim=3), "custom"),
        (OutputPolicy("event", dtype=torch.float64), "custom"),
    ],
    ids=["rank", "shape", "dtype", "range", "output_rank", "output_dtype"],
)
def test_form_that_only_the_policy_asks_for_is_an_event_of_its_own_kind(
    policy: InputPolicy | OutputPolicy, kind: str, spool: Path
) -> None:
    side = "input" if isinstance(policy, InputPolicy) else "output"
    with probe.watch(model := nn.Linear(6, 3), **{f"{side}_policy": policy}):
        model(torch.ones(2, 6)).sum().backward()
    found = [event for event in run_of(spool).latest_events if event.subject.startswith("policy: ")]
    assert [(event.kind, event.severity) for event in found] == [(kind, "warning")]
    assert "policy" in found[0].advice[0]


def test_advice_of_a_broken_policy_is_about_the_policy(spool: Path) -> None:
    run_with(OutputPolicy("event", high=-1e9))
    (event,) = events(spool, "output_degenerate")
    assert event.subject == "policy: output"
    assert "policy" in event.advice[0]
    assert not any("collapsed" in line for line in event.advice)
