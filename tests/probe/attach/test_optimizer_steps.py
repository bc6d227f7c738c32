"""torch's table of optimizer hooks, when who listens goes while another thread's step goes through it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn
from torch.optim import optimizer as torch_optimizer

from probe.attach.optimizer_steps import listen_to_steps


class Slow:
    """A listener that is in the middle of a step until it is let on."""

    def __init__(self) -> None:
        self.is_inside, self.go_on = threading.Event(), threading.Event()

    def before(self, optimizer, args, kwargs):
        self.is_inside.set()
        assert self.go_on.wait(20)

    def after(self, optimizer):
        pass


def make_step() -> None:
    parameter = nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    torch.optim.SGD([parameter], lr=0.1).step()


def hooks() -> int:
    tables = (torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks)
    return sum(map(len, tables))


def hooks_of_others() -> int:
    """What is there without ours: an earlier thread may have kept them."""
    listen_to_steps(Slow())()
    return hooks()


def test_listener_that_goes_during_another_thread_s_step_does_not_reach_it():
    before = hooks_of_others()
    slow = Slow()
    stop = listen_to_steps(slow)
    # A hook of somebody else behind ours: torch has to go on through its table after us.
    theirs = torch_optimizer.register_optimizer_step_pre_hook(lambda *_: None)
    with ThreadPoolExecutor(1) as other:
        step = other.submit(make_step)
        assert slow.is_inside.wait(20)
        stop()
        slow.go_on.set()
        step.result(20)
    theirs.remove()
    listen_to_steps(slow)()
    assert hooks() == before


def test_last_listener_of_the_only_stepping_thread_takes_the_hooks_off():
    before = hooks_of_others()
    slow = Slow()
    slow.go_on.set()
    stop = listen_to_steps(slow)
    make_step()
    assert hooks() == before + 2
    stop()
    stop()
    assert hooks() == before
