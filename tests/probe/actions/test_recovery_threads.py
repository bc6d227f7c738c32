"""Two models trained on two threads: a step that is tried again on one has nothing to do with the other's."""

import copy
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from recovered_runs import plain_model, recoveries
from small_training import batches
from torch import nn
from torch.nn import functional as F
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.optim.optimizer import _global_optimizer_pre_hooks as table  # type: ignore[attr-defined]

import probe
from probe.attach.optimizer_steps import _step_hooks

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_switched_off")
PATIENCE_S = 30
TOO_MUCH = 2**50


@pytest.fixture(autouse=True)
def no_hooks_left() -> Iterator[None]:
    """But those that stay in the table, with nobody to tell, while another thread may be going through it."""
    before = strangers()
    yield
    assert strangers() == before
    assert not _step_hooks._listening


def strangers() -> list[int]:
    return [key for key, hook in table.items() if getattr(hook, "__self__", None) is not _step_hooks]


class Other:
    """Runs functions on a thread of its own, one at a time, and raises here what they raise there."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again by `join`
            self._error = error

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error


def sgd(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def without_dropout(seed: int) -> nn.Module:
    model = plain_model(seed)
    model[1] = nn.Identity()
    return model


def train_once(model: nn.Module, optimizer: Optimizer) -> None:
    ((inputs, targets),) = batches(1)
    optimizer.zero_grad()
    F.cross_entropy(model(inputs), targets).backward()
    optimizer.step()


def test_update_on_another_thread_does_not_stop_a_retry(spool: Path) -> None:
    model, stranger = plain_model(), plain_model(1)
    optimizer, other = sgd(model), sgd(stranger)
    attempts = 0

    def step() -> str:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            Other(lambda: train_once(stranger, other)).join()
            torch.empty(TOO_MUCH)
        train_once(model, optimizer)
        return "trained"

    with probe.watch(model, optimizer):
        assert probe.robust_training_step(step, optimizer=optimizer) == "trained"
    assert attempts == 2
    assert [event.subject for event in recoveries(spool)] == ["retry 1"]


def test_failure_on_another_thread_is_no_matter_of_a_session_here(spool: Path) -> None:
    """Which session is meant where no optimizer is given: that of the same thread, and no other."""
    model = plain_model()
    optimizer = sgd(model)

    def fail() -> None:
        torch.empty(TOO_MUCH)

    with probe.watch(model, optimizer):
        ((inputs, targets),) = batches(1)
        F.cross_entropy(model(inputs), targets).backward()
        Other(lambda: probe.robust_training_step(fail)).join()
        assert all(parameter.grad is not None for parameter in model.parameters())
        assert recoveries(spool) == []
        probe.robust_training_step(fail, retries=0)
        assert all(parameter.grad is None for parameter in model.parameters())
    assert [event.subject for event in recoveries(spool)] == ["skip 1"]


@pytest.mark.parametrize("register", [register_optimizer_step_pre_hook, register_optimizer_step_post_hook])
def test_call_that_ends_amid_a_step_of_another_thread_leaves_it_alone(register: Any) -> None:
    """torch goes through the hooks of all, and raises where one was added or removed meanwhile."""
    model, stranger = plain_model(), plain_model(1)
    optimizer, other = sgd(model), sgd(stranger)
    inside, ended = threading.Event(), threading.Event()

    def wait(stepping: Optimizer, args: Any, kwargs: Any) -> None:
        if stepping is other:
            inside.set()
            assert ended.wait(PATIENCE_S)

    # Before those of the calls: torch has yet to come to them when they go.
    handle = register(wait)
    try:

        def robust() -> None:
            probe.robust_training_step(train_once, stranger, other)

        def step() -> Other:
            there = Other(robust)
            assert inside.wait(PATIENCE_S)
            train_once(model, optimizer)
            return there

        there = probe.robust_training_step(step)
        ended.set()
        there.join()
    finally:
        ended.set()
        handle.remove()


def test_two_threads_train_robustly_at_the_same_time() -> None:
    def train(seed: int, model: nn.Module) -> list[torch.Tensor]:
        optimizer = sgd(model)
        failed = False

        def step(inputs: torch.Tensor, targets: torch.Tensor, number: int) -> None:
            nonlocal failed
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            if number % 5 == seed and not failed:
                failed = True
                torch.empty(TOO_MUCH)
            failed = False
            optimizer.step()

        for number, (inputs, targets) in enumerate(batches(7)):
            probe.robust_training_step(step, inputs, targets, number, optimizer=optimizer)
        return [parameter.detach() for parameter in model.parameters()]

    # Made here: the threads share the random numbers that weights begin with.
    models = [without_dropout(seed) for seed in (0, 1)]
    alone = [train(seed, copy.deepcopy(model)) for seed, model in enumerate(models)]
    together: dict[int, list[torch.Tensor]] = {}
    others = [Other(lambda seed=seed: together.update({seed: train(seed, models[seed])})) for seed in (0, 1)]  # type: ignore[misc]
    for other in others:
        other.join()
    for seed in (0, 1):
        assert all(torch.equal(a, b) for a, b in zip(alone[seed], together[seed], strict=True))
