"""Watchpoints on real trainings fire exactly where an independent computation with torch says."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import torch
from journals import Journal, read_journal
from small_training import batches, seeded_model
from torch import nn
from torch.nn import functional as F

import probe
from probe.actions.rules.rule_book import RuleBook
from probe.delivery.control.grammar import HISTORY_STEPS

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_switched_off")

STEPS = 60
Numbers = dict[str, float]


def norms(model: nn.Module) -> Numbers:
    """Gradient norm of every parameter and layer, in float64, by torch alone."""
    found = {
        name: float(parameter.grad.double().norm())
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    for name in list(found):
        layer = name.rpartition(".")[0]
        own = [value for key, value in found.items() if key.rpartition(".")[0] == layer and key.count(".")]
        found[layer] = sum(value**2 for value in own) ** 0.5
    return found


class Training:
    """A recorded training that keeps what a condition is to be computed of."""

    def __init__(self, folder: Path, **options: object) -> None:
        self.folder = folder
        self.model = seeded_model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.norms: list[Numbers] = []
        self.losses: list[float] = []
        self.run = probe.watch(
            self.model, self.optimizer, spool=folder, connect="", overhead_limit=0.0, **options
        )

    def train(self, steps: int = STEPS, *, each: Callable[[int], None] = lambda step: None) -> Journal:
        for step, (inputs, targets) in enumerate(batches(steps)):
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(inputs), targets)
            # The gradients of two steps are far from all others.
            (loss * (40.0 if step in (50, 51) else 1.0)).backward()
            self.losses.append(loss.item() * (40.0 if step in (50, 51) else 1.0))
            self.norms.append(norms(self.model))
            self.optimizer.step()
            each(step)
        self.run.close()
        (folder,) = self.folder.iterdir()
        return read_journal(folder)


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    made = Training(tmp_path / "spool")
    yield made
    made.run.close()


def firsts(journal: Journal) -> list[int]:
    """Steps at which an event of ours began."""
    return [event.step for event in journal.latest_events if event.kind == "custom"]


def episodes(holds: list[bool], patience: int = 3) -> list[tuple[int, int]]:
    """(first step, steps) of each run of steps, up to `patience` of them apart."""
    found: list[tuple[int, int]] = []
    last = -100
    for step, is_true in enumerate(holds):
        if not is_true:
            continue
        if step - last > patience + 1 or not found:
            found.append((step, 1))
        else:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        last = step
    return found


def above_median(series: list[float], factor: float) -> list[bool]:
    """Whether each value is above the factor times the median of at most 64 values before, of 8 at least."""
    return [
        step >= 8 and value > factor * statistics.median(series[max(step - HISTORY_STEPS, 0) : step])
        for step, value in enumerate(series)
    ]


def test_pattern_against_its_own_median_fires_where_torch_says(training: Training) -> None:
    training.run.watchpoint('when grad_norm("4.*") > 2 * median')
    journal = training.train()
    names = [name for name in training.norms[0] if fnmatchcase(name, "4.*")]
    assert sorted(names) == ["4.bias", "4.weight"]
    single = [above_median([numbers[name] for numbers in training.norms], 2.0) for name in names]
    expected = episodes([any(held) for held in zip(*single, strict=True)])
    events = [event for event in journal.latest_events if event.kind == "custom"]
    assert [(event.step, event.count) for event in events] == expected
    assert 50 in [event.step for event in events]
    event = next(event for event in events if event.step == 50)
    worst = max(names, key=lambda name: abs(training.norms[50][name]))
    median = statistics.median([numbers[worst] for numbers in training.norms[:50]])
    assert event.evidence.value == pytest.approx(training.norms[50][worst], rel=1e-6)
    assert event.evidence.threshold == pytest.approx(2 * median, rel=1e-6)
    assert event.evidence.baseline == pytest.approx({"median": median, "steps": 50.0}, rel=1e-6)
    assert f" in {worst} and 1 more" in event.message
    assert sorted(event.propagated_to) == names[::-1] or sorted(event.propagated_to) == sorted(names)


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("loss > 20", lambda t, s: t.losses[s] > 20),
        ("grad_norm > 10", lambda t, s: sum(v**2 for k, v in t.norms[s].items() if "." in k) > 100),
        ('grad_norm("4") > 1 and step % 2 == 0', lambda t, s: t.norms[s]["4"] > 1 and s % 2 == 0),
        (
            'grad_norm("0.weight") / grad_norm("4.weight") > 1',
            lambda t, s: t.norms[s]["0.weight"] > t.norms[s]["4.weight"],
        ),
        ("loss > 5 * previous", lambda t, s: s > 0 and t.losses[s] > 5 * t.losses[s - 1]),
        ("loss > 1.1 * max", lambda t, s: s >= 8 and t.losses[s] > 1.1 * max(t.losses[max(s - 64, 0) : s])),
        ("not loss < 20 or step == 3", lambda t, s: t.losses[s] >= 20 or s == 3),
        ("learning_rate < 0.1", lambda t, s: s > 40),
        ("nan_count > 0 or grad_max > 1e9", lambda t, s: False),
    ],
)  # fmt: skip
def test_condition_holds_at_the_steps_at_which_it_is_true(
    training: Training, condition: str, holds: Callable[[Training, int], bool]
) -> None:
    training.run.watchpoint(condition)

    def lower_rate(step: int) -> None:
        if step == 40:
            training.optimizer.param_groups[0]["lr"] = 0.01

    journal = training.train(each=lower_rate)
    expected = episodes([bool(holds(training, step)) for step in range(STEPS)])
    events = [event for event in journal.latest_events if event.kind == "custom"]
    assert [(event.step, event.count) for event in events] == expected


def test_mean_and_mad_are_those_of_the_last_64_steps(training: Training) -> None:
    training.run.watchpoint("loss > mean + 4 * mad")
    events = [event for event in training.train().latest_events if event.kind == "custom"]
    spike = next(event for event in events if event.step == 50)
    before = training.losses[:50]
    middle = statistics.median(before)
    mad = statistics.median(abs(value - middle) for value in before)
    assert spike.evidence.threshold == pytest.approx(statistics.fmean(before) + 4 * mad, rel=1e-5)


def test_logged_value_is_judged_with_its_step_although_it_comes_after_the_update(training: Training) -> None:
    training.run.watchpoint('logged("accuracy") < 0.5', name="bad", once=True)
    journal = training.train(
        30, each=lambda step: training.run.log(accuracy=0.1 if step in (12, 25) else 0.9)
    )
    (event,) = [event for event in journal.latest_events if event.kind == "custom"]
    assert (event.step, event.subject, event.ended, event.evidence.value) == (12, "bad", True, 0.1)


def test_norms_of_parameters_are_judged_at_the_steps_that_measure_them(training: Training) -> None:
    training.run.watchpoint('parameter_norm("0.weight") > 0', cooldown_steps=0)
    (event,) = [event for event in training.train(35).latest_events if event.kind == "custom"]
    assert (event.step, event.count) == (0, 4)


def test_output_of_a_module_is_judged_where_it_was_measured(tmp_path: Path) -> None:
    training = Training(tmp_path / "spool", features={"activations": 5})
    seen: dict[int, float] = {}
    training.model[4].register_forward_hook(
        lambda module, args, output: seen.__setitem__(
            len(seen), float(output.detach().square().mean().sqrt())
        )
    )
    training.run.watchpoint('activation_rms("4") > 0')
    events = [event for event in training.train(12).latest_events if event.kind == "custom"]
    assert events[0].evidence.value == pytest.approx(seen[events[0].step], rel=1e-5)


def test_cooldown_leaves_out_the_events_that_come_too_soon(training: Training) -> None:
    training.run.watchpoint("step % 10 == 0", cooldown_steps=25)
    assert firsts(training.train()) == [0, 30]


def test_nan_makes_no_condition_true(tmp_path: Path) -> None:
    training = Training(tmp_path / "spool", replay=False, bundles=0)
    for condition in ("loss > 0", "loss != 1", "grad_norm > 0", 'grad_norm("*") >= 0'):
        training.run.watchpoint(condition)
    with torch.no_grad():
        training.model[0].weight.fill_(float("nan"))
        training.model[0].bias.fill_(float("nan"))
    training.model[1].weight.requires_grad_(True)
    journal = training.train(3)
    kinds = {event.kind for event in journal.latest_events}
    assert "nonfinite_loss" in kinds
    assert "custom" not in kinds


def test_pattern_that_matches_nothing_is_refused_with_the_names_that_there_are(training: Training) -> None:
    with pytest.raises(ValueError, match=r"no layer or parameter has a name like that; there are '0', '1'"):
        training.run.watchpoint('grad_norm("layers.*") > 1')
    with pytest.raises(ValueError, match=r"no module has a name like that"):
        training.run.watchpoint('activation_rms("layers.*") > 1')
    assert training.run.watchpoints == ()


def test_name_is_taken_once_and_free_again_after_removal(training: Training) -> None:
    assert training.run.watchpoint("loss > 1", name="mine") == "mine"
    with pytest.raises(ValueError, match="there is a rule or watchpoint 'mine' already"):
        training.run.add_rule(lambda step: None, name="mine")
    assert training.run.remove_rule("mine")
    assert not training.run.remove_rule("mine")
    training.run.watchpoint("loss > 2", name="mine")
    assert [one.condition for one in training.run.watchpoints] == ["loss > 2"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"condition": 3}, "condition=3 must be a text"),
        ({"action": "mail"}, "action='mail' is not available; choose one of event, snapshot, bundle, pause"),
        ({"severity": "bad"}, "severity='bad' is not available"),
        ({"once": 1}, "once=1 must be True or False"),
        ({"cooldown_steps": -1}, "cooldown_steps=-1 must be a whole number of steps"),
        ({"name": "two\nlines"}, "must be one line of at most 200 printable"),
        ({"condition": "loss > lss"}, "watchpoint 'loss > lss': 'lss' at character 8 is not a name"),
    ],
)
def test_wrong_option_is_refused_with_what_is_allowed(
    training: Training, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        training.run.watchpoint(**{"condition": "loss > 1", **options})  # type: ignore[arg-type]


def test_without_rules_nothing_of_them_runs(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("before_update", "after_step", "hold"):
        monkeypatch.setattr(RuleBook, name, lambda *args: pytest.fail("a rule was looked at"))
    assert firsts(training.train(20)) == []


def test_removed_in_the_middle_of_an_event_it_ends(training: Training) -> None:
    training.run.watchpoint("loss > 0", name="always")
    journal = training.train(20, each=lambda step: step == 10 and training.run.remove_rule("always"))
    (event,) = [event for event in journal.latest_events if event.kind == "custom"]
    assert (event.step, event.count, event.ended) == (0, 11, True)
