"""The event of what is measured less often: one a training, brought up to date."""

from pathlib import Path
from typing import Any

import pytest
import torch
from journals import read_journal
from small_training import seeded_model, train
from torch import nn

import probe
from probe.compat import all_objects
from probe.loop.throttle import TRIPWIRE, Change
from probe.loop.throttle_event import ThrottleEvent, event_of


class Writer:
    """Keeps the states that it is given."""

    def __init__(self, group: str = "a-training") -> None:
        self.group, self.is_open = group, True
        self.states: list[dict[str, Any]] = []

    def note_for_training(self, kind: str, message: str, **fields: Any) -> None:
        assert kind == "throttled"
        self.states.append({"first_line": message.splitlines()[0], "message": message, **fields})


def change(feature: str, old: int, new: int) -> Change:
    return Change(feature=feature, old=old, new=new, fraction=0.03, limit=0.02, cost_ns=1e6, step_ns=9e6)


def first_lines(*changes: tuple[str, str, int, int]) -> list[str]:
    writer = Writer()
    event = ThrottleEvent(writer)  # type: ignore[arg-type]
    for step, (model, *rest) in enumerate(changes):
        event.add(model, change(*rest), step, 0.0)  # type: ignore[arg-type]
    return [state["first_line"] for state in writer.states]


def test_changes_are_states_of_one_event() -> None:
    writer = Writer()
    event = ThrottleEvent(writer)  # type: ignore[arg-type]
    for step, (old, new) in ((40, (10, 20)), (72, (20, 40))):
        event.add("net", change("activations", old, new), step, 0.0)
    numbers = [(state["step"], state["last_step"], state["count"]) for state in writer.states]
    assert numbers == [(40, 40, 1), (40, 72, 2)]
    first, newest, *_ = writer.states[-1]["message"].splitlines()
    assert first == "To keep to 2 % of a step, the probe measures activations every 40 steps instead of 10"
    assert newest.startswith(
        "Newest change, at step 72: Activations are measured every 40 instead of 20 steps: "
    )


def test_only_what_is_no_longer_measured_is_lost() -> None:
    writer = Writer()
    event = ThrottleEvent(writer)  # type: ignore[arg-type]
    for feature, old, new in (("activations", 10, 20), ("histograms", 100, 0), (TRIPWIRE, 1, 1)):
        event.add("net", change(feature, old, new), 1, 0.0)
    event.add("net", change("histograms", 0, 6400), 90, 0.0)
    assert [state["affected"] for state in writer.states] == [[], ["histograms"], ["histograms"], []]


def test_searches_that_are_declined_are_a_state_of_the_same_event() -> None:
    writer = Writer()
    event = ThrottleEvent(writer)  # type: ignore[arg-type]
    event.add_declined("something is lost", 7, 0.0, limit=0.02)
    event.add("net", change("activations", 10, 20), 40, 0.0)
    alone, both = (state["message"].splitlines() for state in writer.states)
    said = "All objects of the process are searched less often, to keep to 2 % of the time: something is lost"
    assert alone == [said]
    assert both[0].startswith("To keep to 2 % of a step, the probe measures activations every 20 steps")
    assert both[-1] == said
    assert [(state["step"], state["count"]) for state in writer.states] == [(7, 1), (7, 2)]


def test_session_says_that_a_search_was_declined(monkeypatch: pytest.MonkeyPatch, spool: Path) -> None:
    monkeypatch.setattr(all_objects.training, "_credit_ns", -1e12)
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with probe.watch(model, run="run"):
        assert all_objects.training.instances(nn.Module) is None
        train(model, optimizer, 40)
    (event,) = [one for one in read_journal(spool / "run").latest_events if one.kind == "throttled"]
    assert event.message.count("All objects of the process are searched less often") == 1


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ([("net", "histograms", 100, 0)], "histograms no longer (asked: every 100 steps)"),
        ([("net", "gradients", 1, 2)], "full gradient statistics every 2 steps"),
        (
            [("net", "memory", 1, 2), ("net", "memory", 2, 1)],
            "everything is measured as often as asked again",
        ),
        ([("net", TRIPWIRE, 1, 1)], "because these steps are very short"),
        (
            [("judge", "memory", 1, 2), ("painter", "memory", 1, 4)],
            "memory readings of judge every 2 steps, memory readings of painter every 4 steps",
        ),
        (
            [
                ("net", name, 1, 2)
                for name in ("memory", "clipping", "loss_scale", "activations", "histograms")
            ],
            "activations every 2 steps and 1 more",
        ),
    ],
    ids=["dropped", "every step", "back", "tripwire", "models", "many"],
)
def test_first_line_says_how_things_are_now(changes: list[tuple[str, str, int, int]], line: str) -> None:
    assert first_lines(*changes)[-1].endswith(line)


def test_what_is_asked_anew_is_not_compared_with_before() -> None:
    writer = Writer()
    event = ThrottleEvent(writer)  # type: ignore[arg-type]
    event.add("net", change("activations", 10, 20), 1, 0.0)
    event.forget("net")
    event.add("net", change("memory", 1, 2), 9, 0.0)
    assert writer.states[-1]["first_line"].endswith("measures memory readings every 2 steps")


def test_models_of_a_process_share_it_until_its_journal_ends() -> None:
    first, second, other = Writer(), Writer(), Writer("another")
    event = event_of(first)  # type: ignore[arg-type]
    assert event_of(second) is event  # type: ignore[arg-type]
    assert event_of(other) is not event  # type: ignore[arg-type]
    first.is_open = False
    assert event_of(second) is not event  # type: ignore[arg-type]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("models", [1, 2, 3])
def test_training_has_one_event_whatever_its_models(models: int, spool: Any) -> None:
    sessions = []
    for number in range(models):
        model = seeded_model()
        optimizer = torch.optim.AdamW(model.parameters())
        sessions.append(
            (probe.watch(model, optimizer, overhead_limit=0.001, run=f"m{number}"), model, optimizer)
        )
    for _ in range(40):
        for _, model, optimizer in sessions:
            train(model, optimizer, 4)
    for session, *_ in sessions:
        session.close()
    journals = [read_journal(folder) for folder in spool.iterdir()]
    found = [event for journal in journals for event in journal.latest_events if event.kind == "throttled"]
    assert len(found) == 1
    assert found[0].count > 1
    assert len({journal.start.group for journal in journals}) == 1


@pytest.mark.usefixtures("one_thread")
def test_ranks_share_its_id(spool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        model = seeded_model()
        optimizer = torch.optim.AdamW(model.parameters())
        with probe.watch(model, optimizer, overhead_limit=0.001, run="shared"):
            train(model, optimizer, 100)
    both = [event for rank in range(2) for event in read_journal(spool / "shared", rank).events]
    found = [event for event in both if event.kind == "throttled"]
    assert {event.rank for event in found} == {0, 1}
    assert len({event.id for event in found}) == 1
