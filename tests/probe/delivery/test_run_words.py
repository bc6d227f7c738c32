"""What a session says at its start and at its end."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from probe.delivery.recorder.tally import Tally
from probe.delivery.run_words import Ending, end_line, start_line
from probe.settings.places import ServeState, write_serve_state
from probe.wire import Event, Origin, StackFrame, Stacks
from probe.wire.message_lines import EARLIER, MOVED, NOT_DETERMINED

FAULT = StackFrame(file="/home/me/loss.py", line=12, function="loss_of")
LOOP = StackFrame(file="/home/me/train.py", line=40, function="main")
TORCH = StackFrame(file="/venv/lib/python3.12/site-packages/torch/optim/sgd.py", line=5, function="step")
PROVEN = Origin(phase="forward", op="log", module="")


def event(number: int, **changes: Any) -> Event:
    fields: dict[str, Any] = {
        "id": f"{number:016x}",
        "run": "a",
        "rank": 0,
        "incarnation": 1,
        "step": number,
        "time": 10.0 + number,
        "kind": "loss_spike",
        "severity": "warning",
        "message": f"The loss jumps at step {number}.\nMore about it.",
    }
    return Event(**{**fields, **changes})


def tally_of(*events: Event) -> Tally:
    tally = Tally()
    for item in events:
        tally.note(item)
    return tally


@pytest.mark.parametrize(
    ("events", "counts", "worst"),
    [
        ([], "", None),
        ([event(1, severity="info")], "", None),
        ([event(1)], "1 warning", "The loss jumps at step 1"),
        ([event(2), event(1)], "2 warnings", "The loss jumps at step 1"),
        (
            [event(1), event(2, severity="critical")],
            "1 critical event and 1 warning",
            "The loss jumps at step 2",
        ),
        ([event(1), event(1, severity="info")], "", None),
        ([event(1), event(1, severity="critical", message="Worse")], "1 critical event", "Worse"),
        ([event(1), event(2, origin=PROVEN)], "2 warnings", "The loss jumps at step 1"),
        (
            [
                event(2, severity="critical"),
                event(2, id="b" * 16, severity="critical", origin=PROVEN, stacks=Stacks(forward=[FAULT])),
            ],
            "2 critical events",
            "The loss jumps at step 2 (at loss.py:12)",
        ),
        ([event(1, message="a\x1b[2Jb")], "1 warning", "a[U+001B][2Jb"),
        ([event(1, message="")], "1 warning", "loss spike at step 1"),
    ],
    ids="none info one first critical calmed grown warnings proven control empty".split(),
)
def test_tally_counts_newest_states_and_keeps_the_worst(
    events: list[Event], counts: str, worst: str | None
) -> None:
    tally = tally_of(*events)
    assert (tally.counts, tally.worst) == (counts, worst)


@pytest.mark.parametrize(
    ("changes", "ending"),
    [
        ({"stacks": Stacks(forward=[LOOP, FAULT])}, " (at loss.py:12)"),
        ({"stacks": Stacks(backward=[FAULT, TORCH])}, " (at loss.py:12)"),
        ({"stacks": Stacks(training_loop=[LOOP, TORCH])}, " (noticed at train.py:40)"),
        ({"stacks": Stacks(training_loop=[LOOP]), "kind": "exception"}, " (at train.py:40)"),
        ({"stacks": Stacks(forward=[FAULT]), "message": "NaN, loss.py:12"}, "NaN, loss.py:12"),
        ({"stacks": Stacks(training_loop=[TORCH])}, "step 1"),
    ],
    ids=["forward", "backward", "noticed", "exception", "said", "library"],
)
def test_worst_is_named_with_the_users_line(changes: dict[str, Any], ending: str) -> None:
    worst = tally_of(event(1, **changes)).worst
    assert worst is not None
    assert worst.endswith(ending)


def test_end_line_gives_the_command_that_shows_the_rest(tmp_path: Path) -> None:
    usual = {"XDG_CACHE_HOME": str(tmp_path), "NANSCOPE_SPOOL": "elsewhere"}
    tally = tally_of(event(1), event(2))
    inside = end_line(tally, (tmp_path / "nanscope" / "spool" / "a").resolve(), usual)
    assert inside == "2 warnings; the first: The loss jumps at step 1; see: dashboard events a"
    outside = end_line(tally, tmp_path / "my spool" / "a", usual)
    assert outside is not None
    assert outside.endswith(f"see: dashboard events '{tmp_path}/my spool/a'")
    assert end_line(Tally(), tmp_path / "a", usual) is None


def test_end_line_names_which_of_several_models_the_worst_is_of(tmp_path: Path) -> None:
    tally = tally_of(event(4), event(5, member=16, severity="critical"), event(1, member=17))
    one, folder = end_line(tally, tmp_path / "a"), tmp_path / "a"
    assert one is not None
    assert one.startswith("1 critical event and 2 warnings; the worst: The loss")
    tally.models = 40
    said = end_line(Tally().add([tally]), folder)
    assert said is not None
    assert said.startswith("1 critical event and 2 warnings; the worst, model 17: The loss jumps at step 5")
    first = tally_of(event(4))
    first.models = 40
    said = end_line(first, folder)
    assert said is not None
    assert said.startswith("1 warning; this, model 1: The loss")


@pytest.mark.parametrize(
    ("line", "led"),
    [
        (
            f"{MOVED}loss 9x{EARLIER}learning rate 0.001 -> 0.3 at step 60",
            ". Changed before it: learning rate 0.001 -> 0.3 at step 60",
        ),
        (
            f"{NOT_DETERMINED}the parameter `wte.weight` was already non-finite before the forward.",
            f". {NOT_DETERMINED}the parameter `wte.weight` was already non-finite before the forward",
        ),
        ("Replay of the step: exact.", ""),
    ],
    ids=["moved", "no_origin", "neither"],
)
def test_end_line_says_what_led_to_the_worst(tmp_path: Path, line: str, led: str) -> None:
    tally = tally_of(event(1), event(2, severity="critical", message=f"NaN\nMore\n{line}"))
    said = end_line(tally, tmp_path / "a")
    assert said is not None
    assert said.startswith(f"1 critical event and 1 warning; the worst: NaN{led}; see: ")


def test_end_line_of_several_ranks_names_the_one_of_the_worst(tmp_path: Path) -> None:
    def line_of(*events: Event) -> str:
        line = end_line(tally_of(*events), tmp_path / "a", has_ranks=True)
        assert line is not None
        return line.partition(": ")[0]

    assert line_of(event(1, rank=1)) == "1 warning; this, on rank 1"
    assert line_of(event(1), event(2, rank=0)) == "2 warnings; the first, on rank 0"
    both = (event(1), event(2, rank=3, severity="critical"))
    assert line_of(*both) == "1 critical event and 1 warning on 2 ranks; the worst, on rank 3"


def test_start_line_leads_to_a_running_dashboard_without_its_token(tmp_path: Path) -> None:
    environment = {
        "XDG_STATE_HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path),
        "NANSCOPE_TOKEN": "secret7",
    }
    folder = (tmp_path / "nanscope" / "spool" / "a").resolve()
    assert start_line(folder, "net", environment).endswith(f"of net; in {folder}, open with: dashboard serve")
    state = ServeState(
        page="http://127.0.0.1:8050/", ingest="tcp://127.0.0.1:1", pid=os.getpid(), secret="secret8"
    )
    write_serve_state(state, environment)
    line = start_line(folder, "net", environment)
    assert "http://127.0.0.1:8050/" in line
    assert "dashboard url" in line
    assert "secret" not in line


@pytest.mark.parametrize("is_same", [True, False])
def test_start_line_says_why_a_dashboard_with_another_spool_shows_the_run(
    tmp_path: Path, is_same: bool
) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    theirs = tmp_path / ("mine" if is_same else "theirs")
    state = ServeState(
        page="http://127.0.0.1:8050/", ingest="i", pid=os.getpid(), secret="s", spool=str(theirs)
    )
    write_serve_state(state, environment)
    line = start_line(tmp_path / "mine" / "a", "net", environment)
    reason = f"that dashboard (process {os.getpid()}, spool {theirs}) receives all trainings of your account"
    assert (reason in line) != is_same
    assert ("NANSCOPE_CONNECT= " in line) != is_same


@pytest.mark.parametrize("pid", [2**22 + 7, 0, -1])
def test_start_line_does_not_lead_to_a_dashboard_that_has_gone(tmp_path: Path, pid: int) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    write_serve_state(ServeState(page="http://h:1/", ingest="tcp://h:2", pid=pid, secret="s"), environment)
    line = start_line(tmp_path / "other spool" / "a", "net", environment)
    assert line.endswith(f"open with: dashboard serve --spool '{tmp_path}/other spool'")


@dataclass(eq=False)
class Told:
    """As much of a recorder as an ending looks at."""

    tally: Tally
    folder: Path
    group: str
    world_size: int = 1


def test_sessions_of_a_group_that_ran_together_have_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, other, healthy = (
        Told(tally_of(*events), tmp_path / run / "0-1", group)
        for run, group, events in [
            ("a", "a", [event(1)]),
            ("a-judge", "a", [event(2, severity="critical")]),
            ("b", "b", [event(3)]),
            ("c", "c", []),
        ]
    )
    (tmp_path / "a").mkdir()
    ending = Ending()
    for told in (first, second, other, healthy):
        ending.let_speak(told, may=True)  # type: ignore[arg-type]
    lines = []
    for told in (healthy, second, other, first, first):
        ending.end(told)  # type: ignore[arg-type]
        lines.append(capsys.readouterr().err)
    assert lines[0] == lines[1] == lines[4] == ""
    assert lines[2].startswith("nanscope: 1 warning; this: ")
    assert lines[3].startswith(
        "nanscope: 1 critical event and 1 warning; the worst: The loss jumps at step 2; see: "
    )
    assert lines[3].endswith(f"{tmp_path}/a\n")
