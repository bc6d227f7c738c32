"""What `watch(recovery=...)` does besides skipping: each action, its event and its limit, and its silence."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recovered_runs import assert_identical, everything_of, plain_model, recoveries, train_with_bad_step
from run_numbers import run_of
from small_training import batches, seeded_model, train
from torch import Tensor, nn
from torch.nn import functional as F

import probe
from probe import Recovery
from probe.settings.config import ProbeConfig

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_switched_off")
QUIET: dict[str, Any] = {"replay": False, "bundles": 0}


def one_bad_gradient(model: nn.Module, optimizer: Any, recovery: object, *, value: float = math.nan) -> None:
    """Train two steps; one element of the second one's gradients is bad."""
    with probe.watch(model, optimizer, recovery=recovery, **QUIET):
        for step, (inputs, targets) in enumerate(batches(2)):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            if step == 1:
                model[3].weight.grad[0, 0] = value  # type: ignore[index]
            optimizer.step()


def gradients_of(model: nn.Module) -> list[Tensor]:
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def expected_gradients() -> list[Tensor]:
    """Of the second step of `one_bad_gradient`, without its bad element."""
    model = plain_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, targets in batches(2):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        gradients = gradients_of(model)
        optimizer.step()
    return gradients


@pytest.mark.capability(71)
def test_zero_makes_the_update_with_gradients_of_zero(spool: Path) -> None:
    model = plain_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    one_bad_gradient(model, optimizer, "zero")
    twin = plain_model()
    other = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    for step, (inputs, targets) in enumerate(batches(2)):
        other.zero_grad()
        F.cross_entropy(twin(inputs), targets).backward()
        if step == 1:
            other.zero_grad(set_to_none=False)
        other.step()
    assert_identical(everything_of(model, optimizer), everything_of(twin, other))
    (event,) = recoveries(spool)
    assert (event.subject, event.severity, event.step) == ("zero", "warning", 1)


@pytest.mark.capability(71)
@pytest.mark.parametrize(("value", "replacement"), [(math.nan, 0.0), (math.inf, 0.5), (-math.inf, -0.25)])
def test_replace_puts_a_number_in_the_place_of_what_is_not_finite(
    value: float, replacement: float, spool: Path
) -> None:
    model = plain_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    one_bad_gradient(model, optimizer, Recovery(nonfinite="replace", replacement=replacement), value=value)
    expected = expected_gradients()
    expected[-2][0, 0] = replacement
    assert_identical(gradients_of(model), expected)
    (event,) = recoveries(spool)
    assert (event.subject, event.severity, event.step) == ("replace", "warning", 1)
    assert "1 gradient elements that were not finite are replaced" in event.message
    assert "hides where they came from" in event.message


@pytest.mark.capability(71)
def test_nonfinite_clip_replaces_by_zero_and_clips_the_rest(spool: Path) -> None:
    model = plain_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    one_bad_gradient(model, optimizer, Recovery(nonfinite="clip", max_norm=0.01))
    expected = expected_gradients()
    expected[-2][0, 0] = 0.0
    norm = math.sqrt(sum(float(g.double().square().sum()) for g in expected))
    for found, reference in zip(gradients_of(model), expected, strict=True):
        np.testing.assert_allclose(found.numpy(), (reference.double() * 0.01 / norm).numpy(), rtol=1e-3)
    assert [(event.subject, event.severity) for event in recoveries(spool)] == [("clip", "info")]


def explode(model: nn.Module, optimizer: Any, recovery: object, *, at: int = 40) -> list[float]:
    """Train; the gradients of step `at` are 1e4 times what they were. Returns each update's gradient norm."""
    norms = []
    optimizer.register_step_post_hook(
        lambda *_: norms.append(math.sqrt(sum(float(g.double().square().sum()) for g in gradients_of(model))))
    )
    with probe.watch(model, optimizer, recovery=recovery, **QUIET):
        for step, (inputs, targets) in enumerate(batches(at + 3)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            (loss * 1e4 if step == at else loss).backward()
            optimizer.step()
    return norms


@pytest.mark.capability(24, 71)
def test_explosion_is_clipped_at_its_own_step_and_no_other(spool: Path) -> None:
    model = plain_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    norms = explode(model, optimizer, Recovery(explosion="clip", max_norm=0.5))
    assert norms[40] == pytest.approx(0.5, rel=1e-4)
    assert max(norms[:40] + norms[41:]) > 0.5
    (event,) = recoveries(spool)
    assert (event.subject, event.severity, event.step) == ("clip", "info", 40)
    assert "to 0.5" in event.message


@pytest.mark.capability(69)
def test_explosion_is_skipped(spool: Path) -> None:
    model = plain_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    kept: list[dict[str, Any]] = []
    optimizer.register_step_post_hook(lambda *_: kept.append(everything_of(model)["model"]))
    explode(model, optimizer, Recovery(explosion="skip"))
    assert_identical(
        {k: v for k, v in kept[40].items() if "weight" in k or "bias" in k},
        {k: v for k, v in kept[39].items() if "weight" in k or "bias" in k},
    )
    assert [(event.subject, event.step) for event in recoveries(spool)] == [("skip", 40)]


@pytest.mark.parametrize("keep_on", ["host", "device"])
@pytest.mark.capability(71)
def test_rollback_puts_the_saved_state_back_bit_by_bit(keep_on: Any, spool: Path) -> None:
    model, states = plain_model(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    recovery = Recovery(nonfinite="rollback", keep_state_every=2, keep_state_on=keep_on)
    # Before the recovery acts: what a copy at this step holds.
    with probe.watch(model, optimizer, recovery=recovery, **QUIET):
        for step, (inputs, targets) in enumerate(batches(6)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            (loss * math.nan if step == 5 else loss).backward()
            states.append(everything_of(model, optimizer))
            optimizer.step()
        after = everything_of(model, optimizer)
    # Copies are made at good steps 0, 2 and 4.
    assert_identical(after, states[4])
    (event,) = recoveries(spool)
    assert (event.subject, event.severity, event.step) == ("rollback", "warning", 5)
    assert "are restored from step 4" in event.message


def test_rollback_to_a_state_before_the_first_update_empties_the_optimizer() -> None:
    model = plain_model()
    optimizer = torch.optim.Adam(model.parameters())
    recovery = Recovery(nonfinite="rollback", keep_state_every=100)
    with probe.watch(model, optimizer, recovery=recovery, **QUIET):
        train_with_bad_step(model, optimizer, leave_out=False, bad=3, steps=4)
    assert optimizer.state_dict()["state"] == {}
    assert_identical(
        [p.detach() for p in model.parameters()], [p.detach() for p in plain_model().parameters()]
    )


def test_rollback_reaches_an_optimizer_that_was_loaded_since() -> None:
    model = plain_model()
    optimizer = torch.optim.Adam(model.parameters())
    with probe.watch(model, optimizer, recovery="rollback", **QUIET):
        for step, (inputs, targets) in enumerate(batches(4)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            (loss * math.nan if step == 3 else loss).backward()
            optimizer.step()
            if step == 1:
                optimizer.load_state_dict(optimizer.state_dict())
    # The only copy is that of step 0, before the first update.
    assert optimizer.state_dict()["state"] == {}


def test_state_is_kept_once_a_step_of_two_optimizers(spool: Path) -> None:
    model = plain_model()
    both = torch.optim.Adam(model[0].parameters()), torch.optim.Adam(model[3].parameters())
    recovery = Recovery(nonfinite="rollback", keep_state_every=2)
    with probe.watch(model, recovery=recovery, **QUIET):
        for step, (inputs, targets) in enumerate(batches(6)):
            model.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            (loss * math.nan if step == 5 else loss).backward()
            for optimizer in both:
                optimizer.step()
    (event,) = recoveries(spool)
    # Of steps 0, 2 and 4; counted twice a step it would be that of the newest.
    assert "are restored from step 4" in event.message


@pytest.mark.capability(69)
def test_rollback_without_a_good_state_skips(spool: Path) -> None:
    model = plain_model()
    optimizer = torch.optim.Adam(model.parameters())
    with probe.watch(model, optimizer, recovery="rollback", **QUIET):
        train_with_bad_step(model, optimizer, leave_out=False, bad=0, steps=1)
    (event,) = recoveries(spool)
    assert (event.subject, event.step) == ("skip", 0)
    assert "no good state to restore yet" in event.message


def test_rollback_of_the_random_state_repeats_the_numbers() -> None:
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recovery = Recovery(nonfinite="rollback", keep_random_state=True)
    with probe.watch(model, optimizer, recovery=recovery, **QUIET):
        (model(torch.ones(4, 6)).sum()).backward()
        optimizer.step()
        numbers = torch.rand(3), np.random.rand(3)
        optimizer.zero_grad()
        (model(torch.ones(4, 6)).sum() * math.nan).backward()
        optimizer.step()
    assert torch.equal(torch.rand(3), numbers[0])
    assert np.array_equal(np.random.rand(3), numbers[1])


@pytest.mark.capability(72)
def test_strategy_is_asked_with_the_error_and_the_context(spool: Path) -> None:
    asked: list[tuple[Exception, Mapping[str, Any]]] = []

    def recovery_strategy(error: Exception, context: Mapping[str, Any]) -> bool:
        asked.append((error, context))
        return True

    model, twin = plain_model(), plain_model()
    optimizer = torch.optim.Adam(model.parameters())
    other = torch.optim.Adam(twin.parameters())
    with probe.watch(model, optimizer, recovery=recovery_strategy, **QUIET):
        train_with_bad_step(model, optimizer, leave_out=False)
    train_with_bad_step(twin, other, leave_out=True)
    assert_identical(everything_of(model, optimizer), everything_of(twin, other))
    ((error, context),) = asked
    assert isinstance(error, probe.AnomalyError) and str(error) == "Loss is NaN at step 3"
    assert (context["step"], context["kind"], context["recovered"]) == (3, "nonfinite_loss", 0)
    assert context["model"] is model and context["optimizer"] is optimizer
    assert [(event.subject, event.step) for event in recoveries(spool)] == [("strategy", 3)]


def test_strategy_that_says_no_leaves_the_update_as_it_comes(spool: Path) -> None:
    model = plain_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer, recovery=lambda error, context: False, **QUIET):
        train_with_bad_step(model, optimizer, leave_out=False, bad=1, steps=2)
    assert not any(bool(torch.isfinite(parameter).all()) for parameter in model[0].parameters())  # type: ignore[union-attr]
    assert recoveries(spool) == []


def test_what_a_strategy_raises_reaches_the_script() -> None:
    def give_up(error: Exception, context: Mapping[str, Any]) -> bool:
        raise KeyError("enough")

    model = plain_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer, recovery=give_up, **QUIET), pytest.raises(KeyError, match="enough"):
        train_with_bad_step(model, optimizer, leave_out=False)


def bad_from(first: int, steps: int, recovery: Recovery) -> nn.Module:
    model = plain_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer, recovery=recovery, **QUIET):
        for step, (inputs, targets) in enumerate(batches(steps)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            (loss * math.nan if step >= first else loss).backward()
            optimizer.step()
    return model


@pytest.mark.parametrize(("option", "said"), [("most", "most=2"), ("most_in_a_row", "most_in_a_row=2")])
def test_recovery_ends_at_its_limit_and_says_so_once(option: str, said: str, spool: Path) -> None:
    model = bad_from(1, 6, Recovery(nonfinite="skip", **{option: 2}))
    events = [(event.subject, event.severity, event.step) for event in recoveries(spool)]
    assert events == [("skip", "info", 1), ("skip", "info", 2), ("stopped", "critical", 3)]
    assert said in recoveries(spool)[-1].message
    assert not torch.isfinite(next(model.parameters())).any()


def test_good_steps_break_the_row(spool: Path) -> None:
    model = plain_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recovery = Recovery(nonfinite="skip", most_in_a_row=1)
    with probe.watch(model, optimizer, recovery=recovery, **QUIET):
        for step, (inputs, targets) in enumerate(batches(6)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            (loss * math.nan if step % 2 else loss).backward()
            optimizer.step()
    assert [(event.subject, event.step) for event in recoveries(spool)] == [("skip", s) for s in (1, 3, 5)]


def test_overflow_that_a_scaler_handles_is_not_touched(spool: Path) -> None:
    model = plain_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000)
    with probe.watch(model, optimizer, recovery="skip", **QUIET):
        for step, (inputs, targets) in enumerate(batches(4)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            scaler.scale(loss * math.inf if step == 1 else loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert recoveries(spool) == []
    assert scaler.get_scale() == 2.0
    assert all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters())


def test_overflow_is_left_to_a_fused_optimizer_and_its_scaler(spool: Path) -> None:
    model = plain_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000)
    with probe.watch(model, optimizer, recovery="replace", **QUIET):
        for step, (inputs, targets) in enumerate(batches(4)):
            optimizer.zero_grad()
            scaler.scale(F.cross_entropy(model(inputs), targets)).backward()
            if step == 1:
                model[3].weight.grad[0, 0] = math.inf  # type: ignore[index, union-attr]
            scaler.step(optimizer)
            scaler.update()
    assert recoveries(spool) == []
    assert scaler.get_scale() == 2.0
    assert [float(state["step"]) for state in optimizer.state.values()] == [3.0] * 6


def test_script_that_mends_its_gradients_is_left_alone(spool: Path) -> None:
    model = plain_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer, recovery="skip", **QUIET):
        for step, (inputs, targets) in enumerate(batches(3)):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            if step == 1:
                model[3].weight.grad[0, 0] = math.inf  # type: ignore[index, union-attr]
                if not torch.isfinite(nn.utils.clip_grad_norm_(model.parameters(), 1.0)):
                    for parameter in model.parameters():
                        torch.nan_to_num_(parameter.grad, nan=0.0)  # type: ignore[arg-type]
            optimizer.step()
    assert recoveries(spool) == []


def test_bad_step_that_the_script_drops_does_not_follow_the_next_one(spool: Path) -> None:
    model = plain_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer, recovery="skip", **QUIET):
        for step, (inputs, targets) in enumerate(batches(4)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            (loss * math.nan if step == 1 else loss).backward()
            if step != 1:
                optimizer.step()
    assert recoveries(spool) == []


@pytest.mark.parametrize(
    "recovery",
    [
        "skip",
        Recovery(
            nonfinite="rollback", explosion="clip", max_norm=1.0, keep_state_every=2, keep_random_state=True
        ),
    ],
)
def test_healthy_training_is_bit_identical_with_recovery_on(recovery: object, spool: Path) -> None:
    model, twin = seeded_model(), seeded_model()
    optimizer, other = (torch.optim.AdamW(m.parameters(), lr=0.01) for m in (model, twin))
    torch.manual_seed(3)
    with probe.watch(model, optimizer, recovery=recovery, **QUIET):
        losses = train(model, optimizer, 45)
    torch.manual_seed(3)
    assert losses == train(twin, other, 45)
    assert_identical(everything_of(model, optimizer), everything_of(twin, other))
    assert recoveries(spool) == []


def test_nothing_is_done_unless_asked_for(spool: Path) -> None:
    model = plain_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    one_bad_gradient(model, optimizer, None)
    assert not torch.isfinite(model[3].weight).all()  # type: ignore[arg-type]
    assert recoveries(spool) == []
    assert [event.kind for event in run_of(spool).latest_events] == ["nonfinite_gradient"]


@pytest.mark.parametrize(
    ("recovery", "message"),
    [
        ("ignore", "nonfinite='ignore' is not available; choose one of 'skip'"),
        ("clip", '"clip" needs the norm to clip to'),
        (3, "recovery=3 must be one of 'skip'"),
    ],
)
def test_wrong_recovery_is_refused_at_attach(recovery: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ProbeConfig.resolve({"recovery": recovery}, {})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "switches nothing on"),
        ({"explosion": "zero"}, "explosion='zero' is not available"),
        ({"explosion": "clip", "max_norm": 0}, "max_norm=0 must be a number above 0"),
        ({"nonfinite": "replace", "replacement": math.nan}, "replacement=nan must be a finite number"),
        ({"nonfinite": "skip", "most": 0}, "most=0 must be a whole number of at least 1"),
        ({"nonfinite": "rollback", "keep_state_on": "disk"}, "keep_state_on='disk' must be"),
        ({"nonfinite": "rollback", "keep_random_state": 1}, "keep_random_state=1 must be True or False"),
    ],
)
def test_wrong_option_of_a_recovery_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Recovery(**options)


def test_recovery_and_mode_raise_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="choose one of them"):
        ProbeConfig.resolve({"recovery": "skip", "mode": "raise"}, {})
