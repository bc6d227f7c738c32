"""`Budget`: what is due, and that a simulated run is kept to its limit, calmly."""

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest

from probe.loop.budget import Budget
from probe.loop.throttle import TRIPWIRE, Change, tighten
from probe.settings.levels import LEVEL_FEATURES, PHASES, Features

US = 1_000


@dataclass
class Trainer:
    """Takes simulated steps: a training time, a time at every step, a cost per measured feature, noise."""

    training_ns: float = 10_000 * US
    base_ns: float = 50 * US
    costs_ns: dict[str, float] = field(default_factory=dict)
    noise: float = 0.05
    random: Random = field(default_factory=lambda: Random(1))
    step: int = 0
    own_ns: list[int] = field(default_factory=list)
    step_ns: list[int] = field(default_factory=list)

    def run(self, budget: Budget, steps: int) -> list[Change]:
        changes: list[Change] = []
        for _ in range(steps):
            changes += self.take_step(budget)
        return changes

    def take_step(self, budget: Budget) -> tuple[Change, ...]:
        due = budget.features_at(self.step)
        own = self._noisy(self.base_ns)
        for name, cost in self.costs_ns.items():
            if getattr(due, name):
                spent = self._noisy(cost)
                budget.charge(name, spent)
                own += spent
        whole = own + self._noisy(self.training_ns)
        self.step += 1
        self.own_ns.append(own)
        self.step_ns.append(whole)
        return budget.end_step(step_ns=whole, own_ns=own)

    def fraction(self, steps: int) -> float:
        """The true share of the newest steps."""
        return sum(self.own_ns[-steps:]) / sum(self.step_ns[-steps:])

    def _noisy(self, ns: float) -> int:
        return round(ns * self.random.lognormvariate(0.0, self.noise))


EARLY_STEPS = (0, 1, 2, 4, 8, 16)
"""On which activations are measured besides."""


def periods_of_activations(budget: Budget) -> int:
    return budget.periods.activations


# -- what is due


@pytest.mark.parametrize("level", ["basic", "advanced", "extreme"])
def test_due_gives_each_feature_at_its_steps(level: str) -> None:
    features = LEVEL_FEATURES[level]  # type: ignore[index]
    budget = Budget(features, 0.02)
    for step in range(400):
        due = budget.features_at(step).periods()
        for name, period in features.periods().items():
            expected = bool(period) and (step - PHASES.get(name, 0)) % period == 0
            expected |= name == "activations" and step in EARLY_STEPS
            assert due[name] == (period if expected else 0), (name, step)


def test_due_at_level_off_is_nothing() -> None:
    assert Budget(LEVEL_FEATURES["off"], 0.0).features_at(0) == Features()


def test_is_sampled_tells_steps_with_more_than_the_usual() -> None:
    budget = Budget(Features(gradients=1, activations=10), 0.02)
    assert [step for step in range(25) if budget.is_sampled(step)] == [0, 1, 2, 4, 8, 10, 16, 20]


@pytest.mark.parametrize("cost", [500_000 * US, 500_000_000 * US])
def test_early_looks_are_finished_though_throttled(cost: int) -> None:
    """The second is dropped for good."""
    trainer = Trainer(training_ns=100_000 * US, costs_ns={"activations": cost, "parameter_norms": cost})
    budget = Budget(Features(gradients=1, activations=10, parameter_norms=10), 0.02)
    assert trainer.run(budget, 10) == []
    assert trainer.run(budget, 1)
    assert [step for step in range(11, 60) if budget.features_at(step).activations] == [16]
    assert [step for step in range(11, 60) if budget.features_at(step).parameter_norms] == [20, 30]


def test_what_is_switched_off_is_not_looked_at_early() -> None:
    budget = Budget(Features(gradients=1), 0.02)
    assert not any(budget.features_at(step).activations for step in range(40))
    assert not any(budget.features_at(step).parameter_norms for step in range(40))


@pytest.mark.parametrize("level", ["basic", "advanced", "extreme"])
@pytest.mark.parametrize(
    "usual", [{"gradients"}, {"gradients", "parameter_norms", "memory", "update_ratios"}]
)
def test_next_due_besides_is_the_first_step_with_anything_else(level: Any, usual: set[str]) -> None:
    usual = usual | {"learning_rates", "clipping", "loss_scale"}
    budget = Budget(LEVEL_FEATURES[level], 0.0)

    def first(step: int) -> int:
        while {name for name, period in budget.features_at(step).periods().items() if period} <= usual:
            step += 1
        return step

    assert [budget.next_due_besides(step, usual) for step in range(230)] == [first(at) for at in range(230)]


def test_next_due_besides_is_none_where_nothing_else_ever_is() -> None:
    assert Budget(Features(gradients=1), 0.0).next_due_besides(5, {"gradients"}) is None


@pytest.mark.parametrize("limit", [0.0, 0.02])
@pytest.mark.parametrize("counts", [[1] * 40, [49] * 12, [7, 200, 3, 1000], [31, 32, 33, 64, 65]])
@pytest.mark.parametrize("own", [50 * US, 190 * US, 290 * US, 2_000 * US])
def test_equal_steps_together_are_judged_as_one_by_one(limit: float, counts: list[int], own: int) -> None:
    features = Features(gradients=1, parameter_norms=10, activations=100)
    together, single = Budget(features, limit), Budget(features, limit)
    for budget in (together, single):
        for _ in range(3):
            budget.charge("activations", 400 * US)
            budget.end_step(step_ns=10_000 * US, own_ns=own + 400 * US)
    for count in counts:
        seen = together.end_steps(count, step_ns=10_000 * US, own_ns=own)
        one_by_one = [single.end_step(step_ns=10_000 * US, own_ns=own) for _ in range(count)]
        expected = [change for changes in one_by_one for change in changes]
        assert {change.feature for change in seen} == {change.feature for change in expected}
        assert together.periods == single.periods
        assert together.fraction == pytest.approx(single.fraction)


def test_is_sampled_counts_the_step_after_an_update_that_was_looked_at() -> None:
    budget = Budget(Features(gradients=1, update_ratios=10), 0.02)
    assert [step for step in range(25) if budget.is_sampled(step)] == [0, 1, 10, 11, 20, 21]


# -- keeping to the limit


def test_budget_within_its_limit_changes_nothing() -> None:
    trainer = Trainer(costs_ns={"gradients": 60 * US, "activations": 500 * US})
    budget = Budget(Features(gradients=1, activations=20), 0.02)
    assert trainer.run(budget, 3_000) == []


@pytest.mark.parametrize("limit", [0.01, 0.02, 0.10])
@pytest.mark.parametrize("noise", [0.02, 0.3])
def test_budget_brings_the_true_share_below_the_limit_and_keeps_it(limit: float, noise: float) -> None:
    costs = {
        "gradients": 20 * US,
        "activations": 9_000 * US,
        "histograms": 30_000 * US,
        "update_ratios": 800 * US,
    }
    trainer = Trainer(costs_ns=costs, noise=noise)
    budget = Budget(Features(gradients=1, activations=5, histograms=10, update_ratios=10), limit)
    trainer.run(budget, 1_500)
    trainer.run(budget, 6_400)
    assert trainer.fraction(6_400) <= limit
    assert budget.periods.gradients == 1


def test_budget_lengthens_the_dearest_and_leaves_the_cheap() -> None:
    trainer = Trainer(costs_ns={"gradients": 20 * US, "activations": 6_000 * US, "update_ratios": 100 * US})
    budget = Budget(Features(gradients=1, activations=10, update_ratios=10), 0.02)
    changes = trainer.run(budget, 500)
    assert {change.feature for change in changes} == {"activations"}
    assert (changes[0].old, changes[0].limit) == (10, 0.02)
    assert changes[0].fraction == pytest.approx(680 / 10_680, rel=0.1)
    assert changes[0].cost_ns == pytest.approx(6_000 * US, rel=0.1)


def test_budget_answers_a_feature_that_becomes_dear() -> None:
    trainer = Trainer(costs_ns={"gradients": 20 * US, "activations": 300 * US})
    budget = Budget(Features(gradients=1, activations=10), 0.02)
    assert trainer.run(budget, 1_000) == []
    trainer.costs_ns["activations"] = 20_000 * US
    assert trainer.run(budget, 1_000)
    trainer.run(budget, 6_400)
    assert trainer.fraction(6_400) <= 0.02


def test_budget_goes_back_to_what_is_wanted_when_steps_become_long() -> None:
    wanted = Features(gradients=1, activations=10, histograms=50)
    trainer = Trainer(costs_ns={"gradients": 300 * US, "activations": 5_000 * US, "histograms": 9e9})
    budget = Budget(wanted, 0.02)
    trainer.run(budget, 4_000)
    assert budget.periods.histograms == 0
    assert budget.periods.gradients > 1
    trainer.training_ns *= 1e4
    changes = trainer.run(budget, 30_000)
    assert budget.periods == wanted
    assert all(change.is_looser for change in changes)


def test_budget_with_no_limit_throttles_nothing_and_still_says_its_share() -> None:
    trainer = Trainer(costs_ns={"gradients": 40_000 * US}, noise=0.0)
    budget = Budget(Features(gradients=1), 0.0)
    assert trainer.run(budget, 500) == []
    assert budget.fraction == pytest.approx(40_050 / 50_050, rel=1e-3)


def test_budget_looks_at_the_sampled_share_spread_over_its_period() -> None:
    trainer = Trainer(costs_ns={"gradients": 40 * US, "activations": 1_000 * US}, noise=0.0)
    budget = Budget(Features(gradients=1, activations=20), 0.0)
    trainer.run(budget, 500)
    assert budget.sampled_fraction == pytest.approx(50 / 10_140, rel=1e-3)
    assert budget.fraction == pytest.approx(140 / 10_140, rel=1e-3)


# -- at once, where it is far too much


def steps_until_change(trainer: Trainer, budget: Budget, *, at_most: int) -> int:
    """Train until something changes; the number of steps that it took."""
    for taken in range(1, at_most + 1):
        if trainer.take_step(budget):
            return taken
    raise AssertionError(f"nothing changed in {at_most} steps")


@pytest.mark.parametrize(
    ("period", "limit"), [(1, 0.25), (2, 0.25), (5, 0.10), (10, 0.02)], ids=lambda value: str(value)
)
def test_budget_tightens_at_the_second_measurement_that_is_far_too_dear(period: int, limit: float) -> None:
    # One measurement takes all that the limit allows for 40 steps.
    cost = 40 * limit / (1 - limit) * 100_000 * US
    trainer = Trainer(training_ns=100_000 * US, costs_ns={"activations": cost})
    budget = Budget(Features(gradients=1, activations=period), limit)
    assert steps_until_change(trainer, budget, at_most=100) == period + 1
    assert 40 < budget.periods.activations <= 100


def test_budget_that_tightened_at_once_says_what_it_took_and_keeps_to_the_limit() -> None:
    trainer = Trainer(training_ns=100_000 * US, costs_ns={"activations": 500_000 * US})
    budget = Budget(Features(gradients=1, activations=2), 0.25)
    changes = [change for _ in range(4) for change in trainer.take_step(budget)]
    assert [(change.feature, change.old, change.limit) for change in changes] == [("activations", 2, 0.25)]
    assert changes[0].fraction == pytest.approx(250 / 350, rel=0.1)
    assert changes[0].cost_ns == pytest.approx(500_000 * US, rel=0.1)
    assert changes[0].step_ns == pytest.approx(350_000 * US, rel=0.1)
    trainer.run(budget, 800)
    assert trainer.fraction(800) <= 0.25


def test_budget_tightens_soon_what_is_several_times_too_dear() -> None:
    trainer = Trainer(costs_ns={"gradients": 20 * US, "parameter_statistics": 2_000 * US})
    budget = Budget(Features(gradients=1, parameter_statistics=1), 0.02)
    assert steps_until_change(trainer, budget, at_most=100) <= 8


def test_budget_tightens_at_once_after_a_change_of_settings_too() -> None:
    trainer = Trainer(costs_ns={"gradients": 40 * US, "activations": 80_000 * US})
    budget = Budget(LEVEL_FEATURES["basic"], 0.02)
    trainer.run(budget, 200)
    budget.configure(replace(LEVEL_FEATURES["basic"], activations=4), 0.10)
    assert steps_until_change(trainer, budget, at_most=100) <= 5


def test_budget_is_not_fooled_by_a_first_measurement_that_fills_caches() -> None:
    trainer = Trainer(costs_ns={"activations": 3_000_000 * US})
    budget = Budget(Features(gradients=1, activations=20), 0.02)
    assert not trainer.run(budget, 1)
    trainer.costs_ns["activations"] = 1_000 * US
    assert trainer.run(budget, 1_000) == []


@pytest.mark.parametrize("dear", [1, 2, 7, 30])
def test_budget_is_not_fooled_by_one_measurement_that_was_interrupted(dear: int) -> None:
    trainer = Trainer(costs_ns={"activations": 1_000 * US})
    budget = Budget(Features(gradients=1, activations=20), 0.02)
    assert not trainer.run(budget, 20 * dear)
    trainer.costs_ns["activations"] = 400_000 * US
    assert not trainer.run(budget, 1)
    trainer.costs_ns["activations"] = 1_000 * US
    assert trainer.run(budget, 1_000) == []


def test_budget_lets_a_rare_measurement_be_dear_within_its_share() -> None:
    # A hundredth of the step, spread: half of the limit, though one takes that of 500 steps.
    trainer = Trainer(costs_ns={"module_memory": 100_000 * US})
    budget = Budget(Features(gradients=1, module_memory=1_000), 0.02)
    assert trainer.run(budget, 20_000) == []


def test_budget_is_not_fooled_by_a_slow_first_step_of_training() -> None:
    trainer = Trainer(training_ns=5_000_000 * US, costs_ns={"activations": 800_000 * US})
    budget = Budget(Features(gradients=1, activations=1), 0.25)
    assert not trainer.run(budget, 1)
    trainer.training_ns = 100_000 * US
    assert steps_until_change(trainer, budget, at_most=100) <= 3


def test_budget_that_can_do_no_more_seldom_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []

    def spy(*args: Any, **kwargs: Any) -> dict[str, int]:
        looks.append(1)
        return tighten(*args, **kwargs)

    trainer = Trainer(training_ns=20 * US, base_ns=600 * US, costs_ns={"gradients": 200 * US})
    budget = Budget(Features(gradients=1), 0.02)
    trainer.run(budget, 1_000)
    monkeypatch.setattr("probe.loop.budget.tighten", spy)
    assert trainer.run(budget, 3_200) == []
    assert len(looks) <= 3_200 / 16


# -- calm


def test_budget_on_steps_too_short_for_the_tripwire_says_so_once_and_rests() -> None:
    trainer = Trainer(training_ns=400 * US, base_ns=30 * US, costs_ns={"gradients": 60 * US}, noise=0.2)
    budget = Budget(Features(gradients=1, learning_rates=1), 0.02)
    changes = trainer.run(budget, 1_000)
    assert [change.feature for change in changes].count(TRIPWIRE) == 1
    assert budget.periods == Features(gradients=64, learning_rates=1)
    assert changes[-1].fraction > 0.02
    assert trainer.run(budget, 20_000) == []


@pytest.mark.parametrize("share", [0.0172, 0.0185, 0.0199, 0.0201, 0.0215])
@pytest.mark.parametrize("seed", range(3))
def test_budget_near_its_limit_does_not_flap(share: float, seed: int) -> None:
    cost = share * 10_000 / (1 - share) - 50
    trainer = Trainer(costs_ns={"activations": cost * 10 * US}, noise=0.25, random=Random(seed))
    budget = Budget(Features(activations=10), 0.02)
    changes = trainer.run(budget, 30_000)
    assert len(changes) <= 1, [(change.old, change.new) for change in changes]


def test_budget_under_a_load_that_comes_and_goes_waits_longer_each_time() -> None:
    budget = Budget(Features(activations=10), 0.02)
    trainer = Trainer(costs_ns={"activations": 1_500 * US})
    changes: list[list[Change]] = []
    for _ in range(40):
        trainer.costs_ns["activations"] = 6_000 * US
        first = trainer.run(budget, 400)
        trainer.costs_ns["activations"] = 500 * US
        changes.append(first + trainer.run(budget, 600))
    assert sum(map(len, changes[:10])) >= 6
    assert sum(map(len, changes[25:])) <= 2


def test_budget_ignores_its_own_time_of_the_first_steps_and_the_first_cost_of_a_feature() -> None:
    budget = Budget(Features(gradients=1, activations=20), 0.02)
    trainer = Trainer(costs_ns={"gradients": 40 * US, "activations": 1_000 * US})
    for step in range(10):
        # Imports, caches: the feature's first measurement, and what no feature accounts for.
        budget.charge("gradients", (40 if step else 30_000) * US)
        assert not budget.end_step(step_ns=90_000 * US, own_ns=80_000 * US), step
    budget.charge("activations", 900_000 * US)
    budget.end_step(step_ns=910_000 * US, own_ns=900_100 * US)
    trainer.step = 1
    assert trainer.run(budget, 2_000) == []


def test_budget_does_not_count_replays_pauses_and_steps_of_no_length() -> None:
    budget = Budget(Features(gradients=1, activations=20), 0.02)
    trainer = Trainer(costs_ns={"gradients": 90 * US, "activations": 500 * US})
    for step in range(900):
        assert not trainer.run(budget, 4)
        budget.charge("gradients", 15_000 * US)
        assert not budget.end_step(step_ns=25_000 * US, own_ns=18_000 * US, is_ordinary=False)
        assert not budget.end_step(step_ns=0, own_ns=0)
        if step % 3 == 0:
            # An evaluation: long, and the probe has nothing to do in it.
            assert not budget.end_step(step_ns=5_000_000 * US, own_ns=50 * US)
    assert budget.fraction == pytest.approx(165 / 10_165, rel=0.05)


def test_budget_is_not_lulled_by_long_pauses() -> None:
    budget = Budget(Features(gradients=1), 0.02)
    trainer = Trainer(costs_ns={"gradients": 900 * US})
    changes: list[Change] = []
    for _ in range(100):
        changes += trainer.run(budget, 9)
        changes += budget.end_step(step_ns=50_000_000 * US, own_ns=950 * US)
    assert [change.feature for change in changes] == ["gradients"]


def test_budget_counts_long_steps_that_come_regularly() -> None:
    budget = Budget(Features(gradients=1), 0.0)
    for step in range(400):
        waits_for_data = 90_000 * US if step % 4 == 0 else 0
        budget.charge("gradients", 200 * US)
        budget.end_step(step_ns=10_000 * US + waits_for_data, own_ns=300 * US)
    assert budget.fraction == pytest.approx(300 / 32_500, rel=0.01)


def test_budget_counts_its_own_work_of_every_tenth_step() -> None:
    budget = Budget(Features(gradients=1), 0.0)
    for step in range(400):
        budget.end_step(step_ns=10_000 * US, own_ns=(50 + 1_000 * (step % 10 == 0)) * US)
    assert budget.fraction == pytest.approx(150 / 10_000, rel=0.25)


def test_shares_add_up_to_the_fraction() -> None:
    trainer = Trainer(costs_ns={"gradients": 40 * US, "activations": 1_000 * US}, noise=0.0)
    budget = Budget(Features(gradients=1, activations=20, histograms=50), 0.0)
    assert budget.shares() == {}
    trainer.run(budget, 500)
    shares = budget.shares()
    assert shares == pytest.approx(
        {
            "gradients": 40 / 10_140,
            "activations": 50 / 10_140,
            "histograms": 0.0,
            TRIPWIRE: 50 / 10_140,
        },
        rel=1e-3,
    )
    assert sum(shares.values()) == pytest.approx(budget.fraction)


def test_configure_takes_other_wishes_from_the_next_step_on() -> None:
    budget = Budget(LEVEL_FEATURES["basic"], 0.02)
    trainer = Trainer(costs_ns={"gradients": 40 * US, "activations": 9_000 * US})
    trainer.run(budget, 200)
    budget.configure(replace(LEVEL_FEATURES["basic"], activations=4), 0.10)
    assert budget.features_at(404).activations == 4
    assert trainer.run(budget, 500)[0].limit == 0.10
    budget.configure(LEVEL_FEATURES["basic"], 0.02)
    assert not budget.features_at(404).activations
