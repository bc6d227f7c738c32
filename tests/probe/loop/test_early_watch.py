"""The looks at the first steps: in the hooks as long as there is something to see, and out of them then."""

from __future__ import annotations

import pytest
import torch
from small_training import seeded_model, train
from torch import nn

import probe
from probe.actions.step_hooks import Hook, StepHooks
from probe.session import Probe

CLEARING = {"before_any_backward", "after_any_backward", "after_step"}


def hooks_of(run: Probe) -> StepHooks:
    assert run._tracker is not None
    return run._tracker._hooks


def filled(hooks: StepHooks) -> set[str]:
    """The hooks of every step in which somebody is."""
    named = {name: hook for name, hook in vars(hooks).items() if isinstance(hook, Hook)}
    return {name for name, hook in named.items() if hook in hooks._of_steps and hook.calls}


def test_looks_are_taken_out_one_after_the_other() -> None:
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with probe.watch(model, optimizer) as run:
        hooks = hooks_of(run)
        assert filled(hooks) == CLEARING | {"before_backward", "measured"}
        train(model, optimizer, 3)
        assert "before_forward" in filled(hooks), "the fourth forward is followed"
        train(model, optimizer, 1)
        assert "before_forward" not in filled(hooks)
        train(model, optimizer, 21)
        assert filled(hooks) == CLEARING | {"before_backward"}, "what gradients reach is known"
        assert len(hooks.before_backward.calls) == 1, "the shapes of the losses are known, the labels are not"
        train(model, optimizer, 7)
        assert filled(hooks) == CLEARING, "the labels are known"
        train(model, optimizer, 67)
        assert filled(hooks) == CLEARING
        train(model, optimizer, 1)
        assert filled(hooks) == set() and not hooks.want_steps


def test_other_parameters_are_looked_at_anew() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3))
    model[1].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with probe.watch(model, optimizer) as run:
        hooks = hooks_of(run)
        train(model, optimizer, 30)
        assert "measured" not in filled(hooks)
        model[1].requires_grad_(True)
        train(model, optimizer, 2)
        assert "measured" in filled(hooks)
        train(model, optimizer, 30)
        assert "measured" not in filled(hooks)


def test_rule_and_evaluation_are_in_the_hooks_only_while_they_want_it() -> None:
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with probe.watch(model, optimizer) as run:
        train(model, optimizer, 100)
        hooks = hooks_of(run)
        run.add_rule(lambda step: None, "mine")
        assert filled(hooks) == {"complete"}
        run.remove_rule("mine")
        train(model, optimizer, 2)
        model.eval()
        with torch.no_grad():
            model(torch.ones(2, 6))
        assert filled(hooks) == {"training_call", "before_any_backward"}
        model.train()
        train(model, optimizer, 1)
        assert filled(hooks) == set()


def test_raised_forward_is_followed_to_its_end() -> None:
    told: list[str] = []
    model = seeded_model()
    with probe.watch(model) as run:
        hooks = hooks_of(run)
        hooks.before_forward.add(lambda root, args, kwargs: told.append("before"))
        hooks.after_forward.add(lambda output: told.append("after"))
        hooks.forward_raised.add(lambda: told.append("raised"))
        model(torch.ones(2, 6))
        with pytest.raises(RuntimeError):
            model(torch.ones(2, 5))
    assert told == ["before", "after", "before", "raised"]
