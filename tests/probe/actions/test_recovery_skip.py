"""An update that is left out, against a twin whose script leaves it out itself: bit by bit the same."""

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from recovered_runs import BAD, assert_identical, everything_of, plain_model, recoveries, train_with_bad_step
from small_training import batches
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.optimizer import Optimizer

import probe
from probe.actions.recovery.update_skip import SkippedUpdate

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_switched_off")
Make = Callable[[Iterable[Tensor]], Optimizer]


class WithoutCheck(Optimizer):
    """An optimizer as people write them: no look at missing gradients, decay and counters regardless."""

    def __init__(self, params: Iterable[Tensor], lr: float = 0.05) -> None:
        super().__init__(params, {"lr": lr, "steps": 0})
        self.calls = 0

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.calls += 1
        for group in self.param_groups:
            group["steps"] += 1
            for p in group["params"]:
                p.mul_(0.999)
                state = self.state[p]
                average = state.setdefault("average", torch.zeros_like(p))
                state["history"] = [*state.get("history", [])[-1:], p.grad.clone()]
                average.mul_(0.9).add_(p.grad)
                p.sub_(group["lr"] * average)
        return loss


class Lookahead(Optimizer):
    """Steps another optimizer, and moves its own slow weights every second time."""

    def __init__(self, params: Iterable[Tensor]) -> None:
        super().__init__(params, {"lr": 0.1})
        self.inner = torch.optim.SGD(self.param_groups[0]["params"], lr=0.1, momentum=0.9)
        self.count = 0

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        loss = self.inner.step(closure)  # type: ignore[arg-type]
        self.count += 1
        for p in self.param_groups[0]["params"]:
            slow = self.state[p].setdefault("slow", p.clone())
            if self.count % 2 == 0:
                slow.lerp_(p, 0.5)
                p.copy_(slow)
        return loss


OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    "sgd foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "sgd fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adam foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "adam fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adamw foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "adamw tensor lr": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01)),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "adagrad fused": lambda p: torch.optim.Adagrad(p, lr=0.1, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "adamax": lambda p: torch.optim.Adamax(p),
    "asgd": lambda p: torch.optim.ASGD(p),
    "nadam": lambda p: torch.optim.NAdam(p),
    "radam": lambda p: torch.optim.RAdam(p),
    "rprop": lambda p: torch.optim.Rprop(p),
    "adafactor": lambda p: torch.optim.Adafactor(p),
    "without check": WithoutCheck,
    "lookahead": Lookahead,
}
WITH_CLOSURE: dict[str, Make] = {
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=4),
    "lbfgs wolfe": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=4, line_search_fn="strong_wolfe"),
    **{name: OPTIMIZERS[name] for name in ("sgd momentum", "adam", "adamw fused", "without check")},
}


def both(make: Make, **options: Any) -> tuple[Any, Any]:
    """States after a training with the recovery and after one that leaves the step out by hand."""
    found = []
    for leave_out in (False, True):
        model = plain_model()
        optimizer = make(model.parameters())
        if leave_out:
            train_with_bad_step(model, optimizer, leave_out=True, **options)
        else:
            with probe.watch(model, optimizer, recovery="skip", replay=False, bundles=0):
                train_with_bad_step(model, optimizer, leave_out=False, **options)
        found.append({**everything_of(model, optimizer), "calls": getattr(optimizer, "calls", None)})
        if isinstance(optimizer, Lookahead):
            found[-1] |= everything_of(model, optimizer, optimizer.inner)
    return found[0], found[1]


@pytest.mark.capability(69)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_skipped_update_is_as_if_step_had_not_been_called(name: str, spool: Path) -> None:
    assert_identical(*both(OPTIMIZERS[name]))
    (event,) = recoveries(spool)
    assert (event.subject, event.severity, event.step, event.ended) == ("skip", "info", BAD, True)
    assert event.message.startswith("Loss is NaN at step 3: the update is skipped")
    assert (event.evidence.value, event.evidence.threshold) == (1, 100)


@pytest.mark.parametrize("name", WITH_CLOSURE)
def test_skipped_update_with_closure_is_as_if_step_had_not_been_called(name: str, spool: Path) -> None:
    assert_identical(*both(WITH_CLOSURE[name], with_closure=True))
    assert [(event.subject, event.step) for event in recoveries(spool)] == [("skip", BAD)]


@pytest.mark.parametrize("name", ["adam", "without check", "lookahead"])
def test_first_step_of_all_can_be_skipped(name: str, spool: Path) -> None:
    assert_identical(*both(OPTIMIZERS[name], bad=0))
    assert [event.step for event in recoveries(spool)] == [0]


@pytest.mark.parametrize("name", ["sgd momentum", "adamw", "without check"])
def test_accumulated_step_is_skipped_as_a_whole(name: str, spool: Path) -> None:
    assert_identical(*both(OPTIMIZERS[name], micro_steps=3))
    assert [(event.subject, event.step) for event in recoveries(spool)] == [("skip", BAD)]


def test_scheduler_goes_on_as_usual() -> None:
    rates = []
    model = plain_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def after() -> None:
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])

    with probe.watch(model, optimizer, recovery="skip", replay=False, bundles=0):
        train_with_bad_step(model, optimizer, leave_out=False, after=after, bad=0)
    assert rates == [0.1 * 0.5**step for step in range(1, 7)]


def test_gradients_of_a_skipped_step_stay_to_be_looked_at() -> None:
    model = plain_model()
    optimizer = torch.optim.Adam(model.parameters())
    with probe.watch(model, optimizer, recovery="skip", replay=False, bundles=0):
        (model(torch.ones(4, 6)).sum() * math.nan).backward()
        before = [parameter.grad for parameter in model.parameters()]
        optimizer.step()
    assert all(p.grad is gradient for p, gradient in zip(model.parameters(), before, strict=True))


def test_clipping_that_spread_a_nan_is_skipped_too(spool: Path) -> None:
    states = []
    for is_watched in (True, False):
        model = plain_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        options: dict[str, Any] = {"recovery": "skip", "replay": False, "bundles": 0}
        run = probe.watch(model, optimizer, **options) if is_watched else None
        for step, (inputs, targets) in enumerate(batches(5)):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            if step == 2:
                model[3].weight.grad[0, 0] = math.inf  # type: ignore[index, union-attr]
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if is_watched or step != 2:
                optimizer.step()
        if run is not None:
            run.close()
        states.append(everything_of(model, optimizer))
    assert_identical(*states)
    assert [(event.subject, event.step) for event in recoveries(spool)] == [("skip", 2)]


def test_both_optimizers_of_a_step_are_skipped_with_one_event(spool: Path) -> None:
    states = []
    for is_watched in (True, False):
        model = plain_model()
        first = torch.optim.Adam(model[0].parameters())
        second = torch.optim.SGD(model[3].parameters(), lr=0.1, momentum=0.9)
        run = probe.watch(model, recovery="skip", replay=False, bundles=0) if is_watched else None
        for step, (inputs, targets) in enumerate(batches(5)):
            model.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            # Of a constant the gradients know nothing: nothing but the loss is bad.
            (loss + math.inf if step == 2 else loss).backward()
            if is_watched or step != 2:
                first.step()
                second.step()
        if run is not None:
            run.close()
        states.append(everything_of(model, first, second))
    assert_identical(*states)
    (event,) = recoveries(spool)
    assert (event.subject, event.step, event.evidence.value) == ("skip", 2, 1)


def test_optimizer_with_a_good_backward_of_its_own_is_not_skipped(spool: Path) -> None:
    states = []
    for is_watched in (True, False):
        model = plain_model()
        first = torch.optim.Adam(model[0].parameters())
        second = torch.optim.SGD(model[3].parameters(), lr=0.1, momentum=0.9)
        run = probe.watch(model, recovery="skip", replay=False, bundles=0) if is_watched else None
        for step, (inputs, targets) in enumerate(batches(4)):
            for number, optimizer in enumerate((first, second)):
                model.zero_grad()
                loss = F.cross_entropy(model(inputs), targets)
                is_bad = step == 2 and number == 0
                (loss * math.nan if is_bad else loss).backward()
                if is_watched or not is_bad:
                    optimizer.step()
        if run is not None:
            run.close()
        states.append(everything_of(model, first, second))
    assert_identical(*states)
    assert [(event.subject, event.step) for event in recoveries(spool)] == [("skip", 2)]


def test_sparse_gradients_are_skipped() -> None:
    states = []
    for is_watched in (True, False):
        torch.manual_seed(0)
        model = nn.EmbeddingBag(10, 4, sparse=True)
        optimizer = torch.optim.SparseAdam(model.parameters())
        options: dict[str, Any] = {"recovery": "skip", "replay": False, "bundles": 0}
        run = probe.watch(model, optimizer, **options) if is_watched else None
        for step in range(4):
            optimizer.zero_grad()
            loss = model(torch.tensor([[step, step + 1]])).square().sum()
            (loss * math.inf if step == 2 else loss).backward()
            if is_watched or step != 2:
                optimizer.step()
        if run is not None:
            run.close()
        states.append(everything_of(model, optimizer))
    assert_identical(*states)


class Sam(Optimizer):
    """Climbs before it evaluates: what is there when the closure returns is not what was there before."""

    def __init__(self, params: Iterable[Tensor]) -> None:
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        assert closure is not None
        for p in self.param_groups[0]["params"]:
            self.state[p]["old"] = p.clone()
            p.add_(0.01)
        with torch.enable_grad():
            closure()
        for p in self.param_groups[0]["params"]:
            p.copy_(self.state[p]["old"])
            p.sub_(0.1 * p.grad)


def test_optimizer_that_moves_first_is_declined_with_the_reason(spool: Path) -> None:
    model = plain_model()
    optimizer = Sam(model.parameters())
    with probe.watch(model, optimizer, recovery="skip", replay=False, bundles=0):
        train_with_bad_step(model, optimizer, leave_out=False, with_closure=True)
    (declined,) = recoveries(spool)
    assert (declined.subject, declined.severity, declined.step) == ("declined", "warning", BAD)
    assert "moved the parameters before it evaluated its closure" in declined.message


class _NoRoom(Tensor):
    """A gradient that cannot be copied, as where memory is short."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.zeros_like:
            raise MemoryError
        return super().__torch_function__(func, types, args, kwargs or {})


def test_skip_that_fails_leaves_every_gradient_as_it_was() -> None:
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    first.grad, second.grad = torch.full((2,), math.nan), torch.ones(2).as_subclass(_NoRoom)
    before = first.grad, second.grad
    with pytest.raises(MemoryError):
        SkippedUpdate(WithoutCheck([first, second]))
    assert first.grad is before[0]
    assert second.grad is before[1]


class _Growing(WithoutCheck):
    """Has one group of parameters more after each step, so that nothing can be put back."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        loss = super().step(closure)
        self.add_param_group({"params": [nn.Parameter(torch.zeros(1))], "lr": 0.1})
        return loss


def test_skip_that_cannot_be_undone_is_the_last_and_keeps_the_gradients(spool: Path) -> None:
    model = plain_model()
    optimizer = _Growing(model.parameters())
    with probe.watch(model, optimizer, spool=spool, connect="", recovery="skip", replay=False):
        for step in range(3):
            for group in optimizer.param_groups[1:]:
                group["params"][0].grad = torch.zeros(1)
            (x, _), *_ = batches(1)
            (model(x).sum() * (math.nan if step else 1.0)).backward()
            optimizer.step()
            assert all(p.grad is not None for p in model.parameters())
            assert any(bool(p.grad.isnan().any()) for p in model.parameters()) == (step > 0)
    assert any(bool(p.isnan().any()) for p in model.parameters()), "the third update is made as it comes"
