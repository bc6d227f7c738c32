"""What a recovery leaves alone, and what of a step it mends only in part: never half done, and said once."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from recovered_runs import assert_identical, everything_of, plain_model, recoveries
from small_training import batches
from torch import Tensor, nn
from torch.nn import functional as F

import probe
from probe import Recovery
from probe.actions.recovery.ledger import Ledger

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_switched_off")
QUIET: dict[str, Any] = {"replay": False, "bundles": 0}
ACTIONS: dict[str, Any] = {
    "skip": "skip",
    "zero": "zero",
    "replace": "replace",
    "clip": Recovery(nonfinite="clip", max_norm=1.0),
    "rollback": Recovery(nonfinite="rollback", keep_state_every=1),
}
BAD, STEPS = 2, 4


class _Spread(torch.autograd.Function):
    """Passes values on, and makes what goes back NaN."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient * math.nan


def train_in_backward(recovery: Any, *, bad: str) -> nn.Module:
    """Train up to the bad step; every parameter has an optimizer that steps as soon as its gradient is there.

    Args:
        recovery: for `watch`.
        bad: "loss", or "middle" for gradients that are NaN from the middle of the model on.
    """
    model = plain_model()
    optimizers = {p: torch.optim.SGD([p], lr=0.1, momentum=0.9) for p in model.parameters()}

    def update(parameter: Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    with probe.watch(model, recovery=recovery, **QUIET):
        for step, (inputs, targets) in enumerate(batches(BAD + 1)):
            hidden = model[:2](inputs)
            if bad == "middle" and step == BAD:
                hidden = _Spread.apply(hidden)
            loss = F.cross_entropy(model[2:](hidden), targets)
            (loss * math.nan if bad == "loss" and step == BAD else loss).backward()
    return model


@pytest.mark.parametrize(
    ("action", "bad"), [("clip", "loss"), ("rollback", "loss"), *((name, "middle") for name in ACTIONS)]
)
def test_optimizers_in_the_backward_are_declined_where_some_have_stepped(
    action: str, bad: str, spool: Path
) -> None:
    """A rollback would have changed, in place, what the rest of the backward needs."""
    model = train_in_backward(ACTIONS[action], bad=bad)
    (event,) = recoveries(spool)
    assert (event.subject, event.severity, event.step) == ("declined", "warning", BAD)
    assert "the optimizers step inside the backward" in event.message
    assert "Step after the backward" in event.message
    assert not bool(next(model.parameters()).isfinite().any())


@pytest.mark.parametrize("action", ["skip", "zero", "replace"])
def test_optimizers_in_the_backward_all_go_the_same_way_where_the_loss_is_bad(
    action: str, spool: Path
) -> None:
    model, twin = train_in_backward(action, bad="loss"), plain_model()
    optimizers = [torch.optim.SGD([p], lr=0.1, momentum=0.9) for p in twin.parameters()]
    for step, (inputs, targets) in enumerate(batches(BAD if action == "skip" else BAD + 1)):
        twin.zero_grad()
        F.cross_entropy(twin(inputs), targets).backward()
        if step == BAD:
            twin.zero_grad(set_to_none=False)
        for optimizer in optimizers:
            optimizer.step()
    assert_identical([p.detach() for p in model.parameters()], [p.detach() for p in twin.parameters()])
    assert [(event.subject, event.step) for event in recoveries(spool)] == [(action, BAD)]


def test_two_reasons_at_one_step_are_both_in_its_event(spool: Path) -> None:
    model = plain_model()
    with probe.watch(model) as run:
        assert run._incidents is not None
        ledger = Ledger(Recovery(nonfinite="skip"), run._incidents)
        for reason, step in (("one", 3), ("another", 3), ("one", 3), ("a third", 4)):
            ledger.note_declined(f"{reason} is so", step)
    first, second = recoveries(spool)
    assert (first.step, second.step) == (3, 4)
    assert first.message.count("one is so") == first.message.count("another is so") == 1
    assert "third" not in first.message and "one is so" not in second.message


def adversaries(recovery: Any) -> tuple[nn.Module, list[Any]]:
    """Two backwards in each step, each with its optimizer; both are bad at step BAD, or left out by hand."""
    model = plain_model()
    first = torch.optim.Adam(model[0].parameters())  # type: ignore[index]
    second = torch.optim.SGD(model[3].parameters(), lr=0.1, momentum=0.9)  # type: ignore[index]
    run = None if recovery is None else probe.watch(model, recovery=recovery, **QUIET)
    for step, (inputs, targets) in enumerate(batches(STEPS)):
        for optimizer in (first, second):
            model.zero_grad()
            output = model(inputs)
            F.cross_entropy(_Spread.apply(output) if step == BAD else output, targets).backward()
            if recovery is not None or step != BAD:
                optimizer.step()
    if run is not None:
        run.close()
    return model, [first, second]


def test_two_backwards_of_one_step_are_recovered_as_one(spool: Path) -> None:
    """Also where the limit is one step: half of it would be none."""
    model, optimizers = adversaries(Recovery(nonfinite="skip", most=1))
    twin, others = adversaries(None)
    assert_identical(everything_of(model, *optimizers), everything_of(twin, *others))
    (event,) = recoveries(spool)
    assert (event.subject, event.step, event.evidence.value) == ("skip", BAD, 1)
    assert event.message.count("the update is skipped") == 2


def test_rollback_reaches_the_optimizer_that_steps_second() -> None:
    """When the first good state is kept, nothing has been heard of it yet."""
    model = plain_model()
    both = [torch.optim.SGD(model[i].parameters(), lr=0.1, momentum=0.9) for i in (0, 3)]  # type: ignore[index]
    with probe.watch(model, recovery="rollback", **QUIET):
        for step, (inputs, targets) in enumerate(batches(4)):
            model.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            (loss * math.nan if step == 3 else loss).backward()
            for optimizer in both:
                optimizer.step()
    # The only copy is that of step 0, before the first update of either.
    assert [optimizer.state_dict()["state"] for optimizer in both] == [{}, {}]
    assert_identical(
        [p.detach() for p in model.parameters()], [p.detach() for p in plain_model().parameters()]
    )


def poison_statistics(recovery: Any) -> nn.Module:
    model = plain_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer, recovery=recovery, **QUIET):
        for step, (inputs, targets) in enumerate(batches(3)):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs * math.nan if step == 1 else inputs), targets).backward()
            optimizer.step()
    return model


def test_running_statistics_that_a_batch_has_ruined_are_named(spool: Path) -> None:
    """As in a script that leaves the update out itself: the forward was made."""
    model = poison_statistics("skip")
    assert not model[1].running_mean.isfinite().any()  # type: ignore[index, union-attr, operator]
    (event,) = recoveries(spool)
    assert (
        "2 buffers that hold NaN (1.running_mean, 1.running_var); a rollback restores buffers"
        in event.message
    )


def test_rollback_takes_running_statistics_back(spool: Path) -> None:
    model = poison_statistics("rollback")
    assert all(bool(buffer.isfinite().all()) for buffer in model.buffers())
    (event,) = recoveries(spool)
    assert "buffers that hold NaN" not in event.message


def update_by_hand(model: nn.Module) -> Callable[[], None]:
    def update() -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter -= 0.1 * parameter.grad

    return update


@pytest.mark.parametrize("bad", [0, 1, 3])
def test_updates_that_no_hook_tells_of_are_declined_once(bad: int, spool: Path) -> None:
    model, twin = plain_model(), plain_model()
    for one in (model, twin):
        run = probe.watch(one, recovery="skip", **QUIET) if one is model else None
        update = update_by_hand(one)
        for step, (inputs, targets) in enumerate(batches(STEPS + 1)):
            one.zero_grad()
            loss = F.cross_entropy(one(inputs), targets)
            (loss * math.nan if step == bad else loss).backward()
            update()
        if run is not None:
            run.close()
    assert_identical(everything_of(model), everything_of(twin))
    (event,) = recoveries(spool)
    assert (event.subject, event.severity, event.step) == ("declined", "warning", 1)
    assert "no optimizer hook runs before that (a compiled optimizer.step" in event.message


def test_step_of_which_one_half_is_updated_unseen_is_declined(spool: Path) -> None:
    """To leave out the other half would be a step that nobody has asked for."""
    model = plain_model()
    optimizer = torch.optim.SGD(model[3].parameters(), lr=0.1)  # type: ignore[index]
    update = update_by_hand(model[0])  # type: ignore[index]
    with probe.watch(model, recovery="skip", **QUIET):
        for step, (inputs, targets) in enumerate(batches(BAD + 1)):
            model.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            (loss * math.nan if step == BAD else loss).backward()
            update()
            optimizer.step()
    (event,) = recoveries(spool)
    assert (event.subject, event.severity, event.step) == ("declined", "warning", BAD)
    assert "another part of the model is updated already" in event.message
    assert not any(bool(p.isfinite().any()) for p in model[3].parameters())  # type: ignore[index]


def test_first_pass_of_two_is_no_update_that_nobody_tells_of(spool: Path) -> None:
    """Sharpness-aware minimisation, by hand: up by the first gradient, back, and a step with the second."""
    model = plain_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer, recovery="skip", **QUIET):
        for step, (inputs, targets) in enumerate(batches(STEPS)):
            before = [p.detach().clone() for p in model.parameters()]
            for is_first in (True, False):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(inputs), targets)
                (loss * math.nan if step in (0, BAD) else loss).backward()
                with torch.no_grad():
                    for parameter, value in zip(model.parameters(), before, strict=True):
                        if is_first and parameter.grad is not None:
                            parameter += 0.01 * parameter.grad
                        elif not is_first:
                            parameter.copy_(value)
            optimizer.step()
    assert [event.subject for event in recoveries(spool)] == ["skip", "skip"]
    assert all(bool(p.isfinite().all()) for p in model.parameters())


def test_embedding_that_an_evaluation_renormalises_is_not_taken_for_an_update(spool: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(10, 4, max_norm=1.0), nn.Linear(4, 1)

        def forward(self, indices: Tensor) -> Tensor:
            return self.head(self.embedding(indices))

    torch.manual_seed(0)
    model = Net()
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (model.head, model.embedding)]
    with probe.watch(model, recovery="skip"):
        for step in range(8):
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss = model(torch.randint(10, (5,))).square().sum() * 5.0
            (loss * float("nan") if step in (4, 6) else loss).backward()
            with torch.no_grad():
                model(torch.arange(10))
            for optimizer in optimizers:
                optimizer.step()
    assert all(parameter.isfinite().all() for parameter in model.parameters())
