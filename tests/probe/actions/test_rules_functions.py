"""Rules that are functions: what they are given, what becomes of their answers, how they are dropped."""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
import torch
from journals import read_journal
from small_training import seeded_model, train
from torch.optim.optimizer import register_optimizer_step_pre_hook

import probe
from probe.actions.rules import entry_points, quantities
from probe.actions.rules.quantities import StepNumbers
from probe.wire import Event

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def run(spool: Path) -> Iterator[probe.Probe]:
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer, spool=spool, connect="", overhead_limit=0.0) as session:
        session.train = lambda steps: train(model, optimizer, steps)  # type: ignore[attr-defined]
        session.model = model  # type: ignore[attr-defined]
        yield session


def events(run: probe.Probe, spool: Path) -> list[Event]:
    run.close()
    (folder,) = spool.iterdir()
    return [event for event in read_journal(folder).latest_events if event.kind == "custom"]


def test_view_has_the_numbers_that_torch_has(run, spool):
    seen, expected = [], []
    run.add_rule(
        lambda step: seen.append((step, dict(step.layer_grad_norms), dict(step.parameter_grad_norms)))
    )

    def note(optimizer, args, kwargs):
        expected.append({n: float(p.grad.double().norm()) for n, p in run.model.named_parameters()})

    hook = register_optimizer_step_pre_hook(note)
    losses = run.train(5)
    hook.remove()
    run.log(accuracy=0.75)
    run.close()
    assert [step.step for step, _, _ in seen] == [0, 1, 2, 3, 4]
    for (step, layers, parameters), loss, norms in zip(seen, losses, expected, strict=True):
        assert step.loss == pytest.approx(loss, rel=1e-6)
        assert parameters == pytest.approx(norms, rel=1e-6)
        assert list(layers) == ["0", "1", "4"]
        assert layers["4"] == pytest.approx((norms["4.weight"] ** 2 + norms["4.bias"] ** 2) ** 0.5, rel=1e-6)
        assert step.grad_norm == pytest.approx(sum(v**2 for v in norms.values()) ** 0.5, rel=1e-6)
        assert step.learning_rates == {"lr": 0.1}
        assert (step.scalars["samples"], step.scalars["loss"]) == (8.0, step.loss)
    assert seen[-1][0].logged == {"accuracy": 0.75}
    assert seen[0][0].logged == {}


def test_view_can_only_be_read(run):
    views = []
    run.add_rule(views.append)
    run.train(1)
    run.flush()
    run.close()
    with pytest.raises(AttributeError):
        views[0].loss = 1.0
    with pytest.raises(TypeError):
        views[0].scalars["loss"] = 1.0


def test_what_a_rule_returns_becomes_one_event_while_it_lasts(run, spool):
    run.add_rule(lambda step: "too warm\nmore of it" if 3 <= step.step < 7 else None, name="thermometer")
    run.train(15)
    (event,) = events(run, spool)
    assert event.message == "too warm at step 3 (rule thermometer)\nmore of it"
    assert (event.step, event.count, event.last_step, event.ended) == (3, 4, 6, True)
    assert (event.subject, event.severity) == ("thermometer", "warning")
    assert event.stacks.training_loop[-1].function == "train"


def test_result_gives_severity_numbers_and_what_it_is_about(run, spool):
    def judge(step: probe.StepView) -> probe.RuleResult | bool:
        if step.step == 1:
            return probe.RuleResult(
                message="far", severity="info", value=3.0, threshold=2.0, affected=("4.weight",)
            )
        return step.step == 9

    run.add_rule(judge)
    run.train(12)
    first, second = events(run, spool)
    assert (first.severity, first.evidence.value, first.evidence.threshold) == ("info", 3.0, 2.0)
    assert (first.subject, first.propagated_to) == ("judge", ["4.weight"])
    assert second.message == "Rule judge holds at step 9 (rule judge)"


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda step: {}["loss"], "it raised KeyError: 'loss'"),
        (
            lambda step: 3.5,
            "it raised TypeError: it returned float; a rule returns None, a text, True, False",
        ),
    ],
)
def test_rule_that_fails_is_dropped_with_one_event_and_training_goes_on(run, spool, caplog, function, why):
    calls = []
    run.add_rule(lambda step: (calls.append(step.step), function(step))[1], name="broken")
    run.add_rule(lambda step: step.step == 6 and "still here", name="sound")
    run.train(8)
    dropped, sound = events(run, spool)
    assert calls == [0]
    assert dropped.message.startswith(f"Rule broken is no longer called from step 0 on: {why}")
    assert sound.subject == "sound"
    assert "switched off" not in caplog.text


def test_slow_rule_is_dropped_and_says_how_slow(run, spool):
    run.add_rule(lambda step: time.sleep(0.03), name="sleepy")
    run.train(40)
    (event,) = events(run, spool)
    assert event.subject == "dropped: sleepy"
    assert " ms of a step of " in event.message


def test_slow_watchpoint_is_dropped_and_says_how_slow_with_its_event_ended(run, spool, monkeypatch):
    class SlowNumbers(StepNumbers):
        def read(self, quantity):
            # Never for 0 s: on a busy machine that gives the processor away for milliseconds.
            if quantity.name == "grad_norm":
                time.sleep(0.03)
            return super().read(quantity)

    monkeypatch.setattr(quantities, "StepNumbers", SlowNumbers)
    run.watchpoint("grad_norm > 0", name="sleepy")
    run.watchpoint("step == 30", name="quick")
    run.train(40)
    assert [one.name for one in run.watchpoints] == ["quick"]
    found, dropped, quick = events(run, spool)
    assert dropped.subject == "dropped: sleepy"
    assert dropped.message.startswith(f"Watchpoint sleepy is no longer judged from step {dropped.step} on: ")
    assert " ms of a step of " in dropped.message
    # Judged at 15 steps, or one more: what the first of all took is not known.
    assert (found.subject, found.ended, found.count) == ("sleepy", True, dropped.step + 1)
    assert 15 <= found.count <= 16
    assert (quick.subject, quick.step) == ("quick", 30)


def test_what_is_no_function_is_refused(run):
    with pytest.raises(ValueError, match=r"add_rule\(\) takes a function of a step, got int"):
        run.add_rule(3)
    with pytest.raises(ValueError, match="severity='loud' is not available"):
        probe.RuleResult(message="x", severity="loud")


def test_inert_handle_checks_and_does_nothing(monkeypatch):
    monkeypatch.setenv("NANSCOPE_OFF", "1")
    run = probe.watch(seeded_model())
    assert run.add_rule(lambda step: True, name="x") == "x"
    assert run.watchpoint("loss > 1") == "loss > 1"
    assert (run.watchpoints, run.resume(), run.is_paused, run.remove_rule("x")) == ((), False, False, False)
    with pytest.raises(ValueError, match="not a name that conditions know"):
        run.watchpoint("lss > 1")


def installed_rule(step: probe.StepView) -> str | None:
    return "from a package" if step.step == 2 else None


def test_rules_of_installed_packages_are_called_and_a_broken_one_is_left_out(spool, monkeypatch, caplog):
    points = [
        EntryPoint(name="theirs", value=f"{__name__}:installed_rule", group=entry_points.GROUP),
        EntryPoint(name="gone", value="no_such_module_at_all:rule", group=entry_points.GROUP),
    ]
    monkeypatch.setattr(
        entry_points, "entry_points", lambda *, group: [p for p in points if p.group == group]
    )
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer, spool=spool, connect="") as session:
        train(model, optimizer, 4)
    (event,) = events(session, spool)
    assert (event.subject, event.step) == ("theirs", 2)
    assert "the rule gone (no_such_module_at_all:rule) is not used: ModuleNotFoundError" in caplog.text


def test_metadata_that_cannot_be_read_leaves_the_script_alone(spool, monkeypatch, caplog):
    def unreadable(*, group):
        raise TypeError("expected string or bytes-like object")

    monkeypatch.setattr(entry_points, "entry_points", unreadable)
    model = seeded_model()
    with probe.watch(model, spool=spool, connect=""):
        pass
    assert "rules of installed packages are not used: expected string" in caplog.text


@pytest.mark.parametrize("message", ["", " \n", None])
def test_result_without_a_text_is_refused(message):
    with pytest.raises(ValueError, match="must be a text"):
        probe.RuleResult(message=message)


class _UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def _raise_unspeakable(step):
    raise _UnspeakableError


@pytest.mark.parametrize(
    ("answer", "first_line", "value", "affected"),
    [
        (lambda step: np.float64(3) > 2, "Rule odd holds", None, []),
        (lambda step: probe.RuleResult(message="a", value=np.float32(2.5)), "a", 2.5, []),
        (lambda step: probe.RuleResult(message="a", value=torch.tensor(2.5)), "a", 2.5, []),
        (lambda step: probe.RuleResult(message="a", affected="4.weight"), "a", None, ["4.weight"]),
        (lambda step: probe.RuleResult(message="a", affected=["4.bias"]), "a", None, ["4.bias"]),
        (lambda step: probe.RuleResult(message="a", affected={"4.bias": 1}.keys()), "a", None, ["4.bias"]),
        (lambda step: "\n\n half \ud800 a pair\nmore", "half ? a pair", None, []),
    ],
)
def test_answer_of_another_type_is_read_for_what_it_is(run, spool, answer, first_line, value, affected):
    run.add_rule(answer, name="odd")
    run.train(2)
    (event,) = events(run, spool)
    assert event.message.splitlines()[0] == f"{first_line} at step 0 (rule odd)"
    assert (event.evidence.value, event.propagated_to, event.count) == (value, affected, 2)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda step: probe.RuleResult(message="a", value="x"), "value='x' must be a number"),
        (lambda step: probe.RuleResult(message="a", threshold=10**400), "must be a number"),
        (lambda step: probe.RuleResult(message="a", value=torch.ones(2)), "must be a number"),
        (lambda step: probe.RuleResult(message="a", affected=None), "affected=None must be names"),
        (lambda step: probe.RuleResult(message="a", affected=(1,)), "must be names"),
        (_raise_unspeakable, "it raised _UnspeakableError"),
    ],
)
def test_answer_that_says_nothing_drops_its_rule_alone(run, spool, answer, why):
    run.add_rule(answer, name="odd")
    run.add_rule(lambda step: True, name="even")
    run.train(2)
    dropped, even = events(run, spool)
    assert dropped.subject == "dropped: odd" and why in dropped.message
    assert (even.subject, even.count) == ("even", 2)


@pytest.mark.parametrize("name", ["two\nlines", "half \ud800 a pair", "\x1b[1m"])
def test_name_that_no_log_can_show_is_refused(run, name):
    with pytest.raises(ValueError, match="one line of at most 200 printable characters"):
        run.add_rule(lambda step: None, name=name)
