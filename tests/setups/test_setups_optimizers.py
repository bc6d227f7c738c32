"""Closures, line searches, two passes, wrapped and nested `step`, clipping by norm and by value."""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from reference import Scene, recorded
from small_training import batches, small_model
from thinned import thinned
from torch import Tensor, nn
from torch.nn import functional as F

Optimizer = torch.optim.Optimizer


def quiet_model() -> nn.Sequential:
    """Without dropout, so that a closure evaluated twice gives the same."""
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))


OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "Adadelta": lambda p: torch.optim.Adadelta(p),
    "Adagrad": lambda p: torch.optim.Adagrad(p),
    "RMSprop": lambda p: torch.optim.RMSprop(p),
    "NAdam": lambda p: torch.optim.NAdam(p),
    "AdamW": lambda p: torch.optim.AdamW(p, foreach=False),
    "AdamW fused": lambda p: torch.optim.AdamW(p, fused=True),
}


@pytest.mark.parametrize(
    ("form", "name"), thinned(["no closure", "positional", "keyword"], list(OPTIMIZERS), every=3)
)
def test_closure_or_none_gives_the_gradients_of_its_update(tmp_path: Path, form: str, name: str) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = small_model()
        optimizer = OPTIMIZERS[name](model.parameters())
        with scene.watch(model, optimizer):
            for inputs, targets in batches(4):

                def closure(inputs: Tensor = inputs, targets: Tensor = targets) -> Tensor:
                    optimizer.zero_grad()
                    loss = F.cross_entropy(model(inputs), targets)
                    scene.backward(loss, samples=8)
                    scene.note(model)
                    return loss

                if form == "no closure":
                    closure()
                    optimizer.step()
                elif form == "positional":
                    optimizer.step(closure)  # type: ignore[arg-type]
                else:
                    optimizer.step(closure=closure)  # type: ignore[arg-type]
        return model

    assert recorded(loop, tmp_path).differences(frames=4) == []


@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
def test_lbfgs_step_is_its_first_evaluation(tmp_path: Path, line_search: str | None) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = quiet_model()
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5, line_search_fn=line_search)
        with scene.watch(model, optimizer):
            for inputs, targets in batches(3):
                evaluations = 0

                def closure(inputs: Tensor = inputs, targets: Tensor = targets) -> Tensor:
                    nonlocal evaluations
                    optimizer.zero_grad()
                    loss = F.cross_entropy(model(inputs), targets)
                    if evaluations == 0:
                        scene.backward(loss, samples=8)
                        scene.note(model)
                    else:
                        loss.backward()
                    evaluations += 1
                    return loss

                optimizer.step(closure)  # type: ignore[arg-type]
                assert evaluations > 1
        return model

    assert recorded(loop, tmp_path).differences(frames=3) == []


def test_closure_that_accumulates_is_one_step_of_its_micro_steps(tmp_path: Path) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = list(batches(6))
        with scene.watch(model, optimizer):
            for step in range(3):

                def closure(step: int = step) -> float:
                    optimizer.zero_grad()
                    for inputs, targets in data[2 * step : 2 * step + 2]:
                        loss = F.cross_entropy(model(inputs), targets)
                        scene.backward(loss, raw=loss / 2, samples=8)
                    scene.note(model)
                    return 0.0

                optimizer.step(closure)
        return model

    assert recorded(loop, tmp_path).differences(frames=3) == []


class TwoPasses(torch.optim.Optimizer):
    """Sharpness-aware minimisation: climbs with the first gradients, updates with those found there."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        base: type[Optimizer],
        rho: float = 0.05,
        *,
        through_data: bool = False,
        **options: Any,
    ):
        super().__init__(list(parameters), {"rho": rho, **options})
        self.through_data = through_data
        self.base = base(self.param_groups, **options)
        self.param_groups = self.base.param_groups
        self.climbed: dict[Tensor, Tensor] = {}

    @torch.no_grad()
    def first_step(self) -> None:
        parameters = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in parameters]).norm()
        for p in parameters:
            self.climbed[p] = p.data.clone()
            (p.data if self.through_data else p).add_(p.grad * (0.05 / (norm + 1e-12)))

    @torch.no_grad()
    def second_step(self) -> None:
        for p, kept in self.climbed.items():
            if self.through_data:
                p.data.copy_(kept)
            else:
                p.data = kept
        self.base.step()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        again = torch.enable_grad()(closure)
        self.first_step()
        self.zero_grad()
        again()
        self.second_step()


@pytest.mark.parametrize("through_data", [False, True], ids=["in place", "through .data"])
def test_two_passes_called_one_by_one_are_one_step_with_the_gradients_of_the_second(
    through_data: bool, tmp_path: Path
) -> None:
    """Only the first step of a run shows both passes: what they are is known once an optimizer has told."""

    def loop(scene: Scene) -> nn.Module:
        model = quiet_model()
        optimizer = TwoPasses(model.parameters(), torch.optim.SGD, lr=0.1, through_data=through_data)
        with scene.watch(model, optimizer):
            for number, (inputs, targets) in enumerate(batches(4)):
                scene.backward(F.cross_entropy(model(inputs), targets), samples=8)
                if number == 0:
                    scene.note(model)
                optimizer.first_step()
                optimizer.zero_grad()
                scene.backward(F.cross_entropy(model(inputs), targets), samples=8)
                scene.note(model, number=number)
                optimizer.second_step()
                optimizer.zero_grad()
        return model

    assert recorded(loop, tmp_path).differences(frames=5) == []


def test_two_passes_with_a_closure_are_one_step_with_the_gradients_of_the_closure(tmp_path: Path) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = quiet_model()
        optimizer = TwoPasses(model.parameters(), torch.optim.SGD, lr=0.1)
        with scene.watch(model, optimizer):
            for number, (inputs, targets) in enumerate(batches(4)):
                loss = F.cross_entropy(model(inputs), targets)
                scene.backward(loss, samples=8)
                if number == 0:
                    scene.note(model)

                def closure(
                    inputs: Tensor = inputs, targets: Tensor = targets, number: int = number
                ) -> Tensor:
                    loss = F.cross_entropy(model(inputs), targets)
                    scene.backward(loss, samples=8)
                    scene.note(model, number=number)
                    return loss

                optimizer.step(closure)
                optimizer.zero_grad()
        return model

    assert recorded(loop, tmp_path).differences(frames=5) == []


class Subclass(torch.optim.AdamW):
    """Calls the class that it extends, with a decorator of its own in between."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        for group in self.param_groups:
            group["lr"] *= 0.99
        return super().step(closure)


@pytest.mark.parametrize("with_closure", [False, True])
def test_subclass_that_calls_super_step_counts_once(tmp_path: Path, with_closure: bool) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = small_model()
        optimizer = Subclass(model.parameters(), lr=0.01)
        with scene.watch(model, optimizer):
            for inputs, targets in batches(4):

                def closure(inputs: Tensor = inputs, targets: Tensor = targets) -> Tensor:
                    optimizer.zero_grad()
                    loss = F.cross_entropy(model(inputs), targets)
                    scene.backward(loss, samples=8)
                    scene.note(model)
                    return loss

                if with_closure:
                    optimizer.step(closure)
                else:
                    closure()
                    optimizer.step()
        return model

    assert recorded(loop, tmp_path).differences(frames=4) == []


class Lookahead:
    """No `Optimizer` at all: wraps one, and moves slow weights every second step."""

    def __init__(self, inner: Optimizer) -> None:
        self.inner, self.count = inner, 0
        self.slow = [p.detach().clone() for group in inner.param_groups for p in group["params"]]

    @torch.no_grad()
    def step(self) -> None:
        self.inner.step()
        self.count += 1
        if self.count % 2 == 0:
            fast = [p for group in self.inner.param_groups for p in group["params"]]
            for slow, p in zip(self.slow, fast, strict=True):
                slow.lerp_(p, 0.5)
                p.copy_(slow)


def test_wrapper_that_is_no_optimizer_is_seen_through(tmp_path: Path) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        lookahead = Lookahead(optimizer)
        with scene.watch(model):
            for inputs, targets in batches(5):
                optimizer.zero_grad()
                scene.backward(F.cross_entropy(model(inputs), targets), samples=8)
                scene.note(model)
                lookahead.step()
        return model

    assert recorded(loop, tmp_path).differences(frames=5) == []


def test_scheduler_does_not_hide_the_step(tmp_path: Path) -> None:
    """A learning-rate scheduler wraps `optimizer.step` on the instance."""

    def loop(scene: Scene) -> nn.Module:
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with scene.watch(model, optimizer):
            scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=6)
            for inputs, targets in batches(5):
                optimizer.zero_grad()
                scene.backward(F.cross_entropy(model(inputs), targets), samples=8)
                scene.note(model)
                optimizer.step()
                scheduler.step()
        return model

    assert recorded(loop, tmp_path).differences(frames=5) == []


def clip_by_hand(parameters: Iterable[nn.Parameter]) -> None:
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    for gradient in gradients:
        gradient.mul_(0.01 / norm)


CLIPPINGS: dict[str, Callable[[Iterable[nn.Parameter]], object]] = {
    "by norm": lambda p: nn.utils.clip_grad_norm_(p, 0.01),
    "by norm, no foreach": lambda p: nn.utils.clip_grad_norm_(p, 0.01, foreach=False),
    "by norm, not fired": lambda p: nn.utils.clip_grad_norm_(p, 1e6),
    "by largest": lambda p: nn.utils.clip_grad_norm_(p, 0.01, norm_type=float("inf")),
    "by value": lambda p: nn.utils.clip_grad_value_(p, 1e-3),
    "by known norm": lambda p: nn.utils.clip_grads_with_norm_(p, 0.01, torch.tensor(3.0)),
    "from its own module": lambda p: nn.utils.clip_grad.clip_grad_norm_(p, 0.01),
}


@pytest.mark.parametrize("clipping", list(CLIPPINGS))
def test_clipped_step_has_the_gradients_before_clipping(tmp_path: Path, clipping: str) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with scene.watch(model, optimizer):
            for inputs, targets in batches(4):
                optimizer.zero_grad()
                scene.backward(F.cross_entropy(model(inputs), targets), samples=8)
                scene.note(model)
                CLIPPINGS[clipping](list(model.parameters()))
                optimizer.step()
        return model

    assert recorded(loop, tmp_path).differences(frames=4) == []


def test_gradients_clipped_by_the_scripts_own_code_are_those_of_the_update(tmp_path: Path) -> None:
    """Nothing tells that it happened: the numbers are what the optimizer is given."""

    def loop(scene: Scene) -> nn.Module:
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with scene.watch(model, optimizer):
            for inputs, targets in batches(3):
                optimizer.zero_grad()
                scene.backward(F.cross_entropy(model(inputs), targets), samples=8)
                clip_by_hand(model.parameters())
                scene.note(model)
                optimizer.step()
        return model

    assert recorded(loop, tmp_path).differences(frames=3) == []


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_bad_value_is_counted_before_clipping_spreads_it(tmp_path: Path, bad: float) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with scene.watch(model, optimizer):
            for index, (inputs, targets) in enumerate(batches(3)):
                optimizer.zero_grad()
                scene.backward(F.cross_entropy(model(inputs), targets), samples=8)
                if index == 1:
                    assert model[4].weight.grad is not None
                    model[4].weight.grad[0, 0] = bad
                scene.note(model)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                if index != 1:
                    optimizer.step()
        return model

    assert recorded(loop, tmp_path).differences(frames=3) == []


def test_optimizer_replaced_in_mid_run_goes_on_counting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = small_model()
        optimizer: Optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with scene.watch(model, optimizer):
            for index, (inputs, targets) in enumerate(batches(6)):
                if index == 3:
                    optimizer = torch.optim.Adam(model.parameters())
                optimizer.zero_grad()
                scene.backward(F.cross_entropy(model(inputs), targets), samples=8)
                scene.note(model)
                optimizer.step()
        return model

    with caplog.at_level(logging.WARNING):
        assert recorded(loop, tmp_path).differences(frames=6) == []
    assert caplog.records == []
