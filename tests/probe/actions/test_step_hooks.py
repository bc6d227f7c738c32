"""The hooks of a step: one tuple each, replaced while it is gone through."""

from __future__ import annotations

from probe.actions.step_hooks import Hook, StepHooks


def called(hook: Hook[[], None]) -> None:
    for call in hook.calls:
        call()


def test_hook_calls_each_once_and_in_order() -> None:
    told: list[str] = []
    hook: Hook[[], None] = Hook()
    first, second, third = (lambda name=name: told.append(name) for name in ("first", "second", "third"))
    hook.add(second)
    hook.add(third)
    hook.add(second)
    hook.add(first, first=True)
    called(hook)
    assert told == ["first", "second", "third"]


def test_callable_that_takes_itself_out_leaves_the_others_of_this_time_alone() -> None:
    told: list[str] = []
    hook: Hook[[], None] = Hook()

    def once() -> None:
        told.append("once")
        hook.remove(once)

    hook.add(once)
    hook.add(lambda: told.append("always"))
    called(hook)
    called(hook)
    assert told == ["once", "always", "always"]


class Part:
    def act(self) -> None: ...


def test_bound_method_is_found_again() -> None:
    part, hook = Part(), Hook[[], None]()
    hook.want(part.act, True)
    hook.want(part.act, True)
    assert len(hook.calls) == 1
    hook.want(part.act, False)
    hook.want(part.act, False)
    assert hook.calls == ()


def test_steps_are_wanted_while_a_hook_of_theirs_is_not_empty() -> None:
    hooks = StepHooks()
    of_steps = {name for name, hook in vars(hooks).items() if hook in hooks._of_steps}
    assert not hooks.want_steps
    for name, hook in vars(hooks).items():
        if isinstance(hook, Hook):
            hook.add(print)
            assert hooks.want_steps is (name in of_steps), name
            hook.remove(print)
    assert vars(hooks).keys() - of_steps - {"_of_steps"} == {
        *("evaluation_call", "evaluation_inputs", "evaluation_outputs", "unused_forward"),
        *("slow_backward", "foreign_backward", "logged", "new_layout", "stop", "close"),
    }


def test_verdicts_are_acted_upon_by_recoveries_and_by_watchpoints() -> None:
    hooks = StepHooks()
    hooks.measured.add(lambda finished, measured: None)
    assert not hooks.act_on_verdicts
    for hook in (hooks.judged, hooks.accounted):
        hook.add(print)
        assert hooks.act_on_verdicts
        hook.remove(print)
