"""The verdict on a run, and which events are one fault: the origin is named, never a victim."""

from __future__ import annotations

import math
import random
from typing import Any

import msgspec
import page_runs
import pytest

from dashboard.page.views.verdict import verdict
from dashboard.store.protocol import RankSummary
from probe.wire import Event
from probe.wire.causes import group_by_cause, is_of_probe

ORIGIN = page_runs.event(400, kind="nonfinite_activation", subject="blocks.3.norm")
LOSS = msgspec.structs.replace(page_runs.event(400, kind="nonfinite_loss", subject="loss"), origin=None)
GRADIENTS = page_runs.event(400, kind="nonfinite_gradient", subject="embed")
WEIGHTS = msgspec.structs.replace(
    page_runs.event(401, kind="nonfinite_parameter", subject="embed.weight"),
    origin=None,
    time=ORIGIN.time - 5,  # the clock was set back in between
)
CHAIN = [ORIGIN, LOSS, GRADIENTS, WEIGHTS]


def changed(event: Event, **fields: Any) -> Event:
    return msgspec.structs.replace(event, **fields)


def says(events: list[Event], *, last_step: int = 500) -> str:
    return "".join(part for part, _ in verdict(events, last_step=last_step)["parts"])


@pytest.mark.parametrize("seed", range(5))
def test_nan_is_one_fault_whose_origin_comes_first_in_whatever_order_it_arrives(seed: int) -> None:
    events = list(CHAIN)
    random.Random(seed).shuffle(events)
    (cause,) = group_by_cause(events)
    assert cause.origin == ORIGIN
    assert [event.kind for event in cause.consequences] == [each.kind for each in CHAIN[1:]]
    said = verdict(events, last_step=500)
    assert (said["event"], said["severity"], said["consequences"]) == (ORIGIN.id, "critical", 3)
    assert said["title"] == "NaN at step 400 in blocks.1.norm1"


def test_victim_that_arrives_alone_is_named_until_the_origin_is_there() -> None:
    assert verdict([WEIGHTS], last_step=401)["title"] == "NaN at step 401 in embed.weight"
    assert verdict([WEIGHTS, ORIGIN], last_step=401)["event"] == ORIGIN.id


def test_nan_that_ended_and_one_much_later_are_two_faults() -> None:
    first = [changed(event, ended=True, last_step=event.step) for event in CHAIN]
    later = page_runs.event(900, kind="nonfinite_loss")
    causes = group_by_cause([*first, later])
    assert [len(cause.events) for cause in causes] == [4, 1]
    assert verdict([*first, later], last_step=950)["event"] == later.id


def test_nan_that_goes_on_takes_what_comes_hundreds_of_steps_later() -> None:
    late = page_runs.event(900, kind="nonfinite_parameter", subject="head.weight")
    (cause,) = group_by_cause([*CHAIN, late])
    assert cause.consequences[-1] == late


def test_members_of_a_run_have_faults_of_their_own_and_the_worst_is_named_with_its_model() -> None:
    # That of member 2 never ended, and member 16 has its fault at an earlier step.
    lasting = [changed(event, member=2) for event in CHAIN]
    other = changed(page_runs.event(3, kind="nonfinite_loss"), member=16, id="c" * 16)
    causes = group_by_cause([other, *lasting])
    assert [(cause.origin.id, len(cause.events)) for cause in causes] == [(ORIGIN.id, 4), (other.id, 1)]
    assert says([other, *lasting]).startswith("model 3: NaN first at step 400")
    warning = changed(page_runs.event(5, kind="loss_spike", severity="warning"), member=1)
    said = verdict([warning, other], last_step=2, member=4, counts=(1, 7))
    assert (said["event"], said["step"], said["counts"]) == (other.id, None, (1, 7))
    assert verdict([other], last_step=4, member=16)["step"] == 3
    assert said["run"] == other.run


def test_nan_of_other_ranks_is_a_consequence_though_their_starts_differ() -> None:
    others = [changed(LOSS, rank=rank, incarnation=LOSS.incarnation + rank, id=f"{rank}") for rank in (1, 2)]
    (cause,) = group_by_cause([*CHAIN, *others])
    assert cause.origin == ORIGIN and len(cause.consequences) == 5


def rank_of(incarnation: int, *, first: int | None, last: int | None, rank: int = 0) -> RankSummary:
    return RankSummary(
        rank=rank, incarnation=incarnation, state="running", first_step=first, last_step=last, last_time=None
    )


@pytest.mark.parametrize("has_event", [False, True])
def test_fault_before_a_healthy_restart_is_told_as_past(has_event: bool) -> None:
    newest = ORIGIN.incarnation + 10**12
    restarted = page_runs.event(3, kind="level_changed", severity="info", message="basic since step 3")
    events = [*CHAIN, *([changed(restarted, incarnation=newest)] if has_event else [])]
    for first, last, quiet in ((0, 20, "No warnings in 21 steps"), (390, 500, "No warnings in 111 steps")):
        said = verdict(events, last_step=last, ranks=[rank_of(newest, first=first, last=last)])
        text = "".join(part for part, _ in said["parts"])
        shown = ORIGIN.message.replace("`", "")  # as code
        assert text == f"{quiet}; before the restart at step {first}: {shown}"
        assert (said["severity"], said["title"], said["consequences"]) == ("none", "", 0)
        assert said["event"] == ORIGIN.id, "a click opens it"
        assert said["counts"] == (4, 0)
    said = verdict(events, last_step=None, ranks=[rank_of(newest, first=None, last=None)])
    assert said["parts"][0] == ("No step yet; before the restart: ", False)


def test_fault_after_a_restart_is_the_verdict_and_the_older_one_is_not_told() -> None:
    newest = ORIGIN.incarnation + 10**12
    again = changed(page_runs.event(30), incarnation=newest, id="f" * 16)
    said = verdict([*CHAIN, again], last_step=40, ranks=[rank_of(newest, first=0, last=40)])
    assert (said["event"], said["severity"]) == (again.id, "critical")
    assert "restart" not in "".join(part for part, _ in said["parts"])


def test_only_the_rank_that_was_restarted_is_well_again() -> None:
    other = changed(LOSS, rank=1, id="e" * 16)
    ranks = [
        rank_of(ORIGIN.incarnation + 9, first=0, last=5),
        rank_of(LOSS.incarnation, first=0, last=5, rank=1),
    ]
    assert verdict([*CHAIN, other], last_step=5, ranks=ranks)["event"] == other.id


def test_warning_before_a_restart_is_a_number_alone() -> None:
    spike = page_runs.event(90, kind="loss_spike", severity="warning")
    said = verdict([spike], last_step=20, ranks=[rank_of(spike.incarnation + 1, first=0, last=20)])
    assert (said["parts"], said["counts"]) == ((("No warnings in 21 steps", False),), (0, 1))


def test_critical_fault_is_named_before_an_earlier_warning() -> None:
    spike = page_runs.event(90, kind="loss_spike", severity="warning")
    assert verdict([spike, *CHAIN], last_step=500)["event"] == ORIGIN.id


@pytest.mark.parametrize("ended", [True, False], ids=["over", "goes_on"])
def test_first_warning_is_the_verdict_whether_it_is_over_or_not(ended: bool) -> None:
    spike = page_runs.event(90, kind="loss_spike", severity="warning", message="A spike")
    leak = page_runs.event(95, kind="memory_leak", severity="warning", message="A leak")
    later = page_runs.event(20, kind="level_changed", severity="info", message="Level")
    events = [leak, changed(spike, ended=ended), later]
    said = verdict(events, last_step=500)
    assert (says(events), said["severity"], said["counts"]) == ("A spike", "warning", (0, 2))


def test_run_with_information_alone_has_no_warnings() -> None:
    events = [page_runs.event(9, kind=kind, severity="info") for kind in ("throttled", "replayed")]
    assert says(events) == "No warnings in 501 steps"
    lost = changed(events[0], propagated_to=["activations"])
    assert [is_of_probe(changed(events[0], propagated_to=[])), is_of_probe(events[1]), is_of_probe(lost)] == [
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("losses", "state"),
    [
        ([math.nan] * 5, "critical"),
        ([1.0] + [math.inf] * 31, "none"),
        ([math.nan] * 4, "none"),
        ([math.nan] * 31 + [2.0], "none"),
        ([math.nan] * 31 + [-math.inf], "critical"),
        ([], "none"),
    ],
)
def test_losses_that_are_not_finite_are_critical_though_no_event_says_so(
    losses: list[float], state: str
) -> None:
    said = verdict([], last_step=500, losses=losses)
    assert (said["severity"], said["event"]) == (state, None)
    spike = page_runs.event(90, kind="loss_spike", severity="warning", message="A spike")
    assert verdict([spike], last_step=500, losses=losses)["severity"] in (state, "warning")
    assert verdict(CHAIN, last_step=500, losses=losses)["event"] == ORIGIN.id


def test_verdict_tells_code_from_words() -> None:
    event = page_runs.event(4, message="NaN first at step 4 in `blocks.3`, `train.py:26`, forward\nmore")
    parts = verdict([event], last_step=5)["parts"]
    assert [text for text, is_code in parts if is_code] == ["blocks.3", "train.py:26"]
    assert "more" not in says([event])


@pytest.mark.parametrize(
    ("message", "module", "code"),
    [
        ("NaN first at step 4 in `a.norm1`, train.py:26, forward", "a.norm1", ["a.norm1", "train.py:26"]),
        ("NaN first at step 4 in head, my train.py:26", "head", ["head", "train.py:26"]),
        ("NaN first at step 4 in a.norm1.b and ahead, x.py:3.", "a.norm1", ["x.py:3"]),
        ("NaN at step 4 in the root module", "", []),
        ("Gone at 10.0.0.1:80, ratio 3:4", None, []),
        ("`a.norm1` is NaN at step 4 in a.norm1", "a.norm1", ["a.norm1", "a.norm1"]),
    ],
)
def test_module_and_line_of_the_origin_are_code_whatever_the_message_writes(
    message: str, module: str | None, code: list[str]
) -> None:
    origin = msgspec.structs.replace(ORIGIN.origin, module=module)
    event = changed(page_runs.event(4, message=message), origin=origin)
    parts = verdict([event], last_step=5)["parts"]
    assert [text for text, is_code in parts if is_code] == code
    assert "".join(text for text, _ in parts) == message.replace("`", "")


def test_verdict_on_nothing() -> None:
    assert says([], last_step=0) == "No warnings in 1 step"
    assert verdict([], last_step=None)["parts"] == (("No step yet", False),)
