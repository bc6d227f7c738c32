"""Every fault that demo_train.py can plant gives its event; a healthy run gives none."""

import subprocess
import sys
from pathlib import Path

import pytest
from forked_scripts import ForkedScripts
from journals import Journal, read_journal

ROOT = Path(__file__).parents[2]
FAULT_STEPS = {"nan": 20, "explode": 50, "vanish": 50, "dead": 50, "spike": 90, "exception": 10}
"""As early as they are found: a spike of the loss only beside enough of a normal course."""

DEMO = str(ROOT / "demo_train.py")


def arguments(fault: str, steps: int) -> list[str]:
    return ["--fault", fault, "--fault-step", str(FAULT_STEPS.get(fault, 0)), "--steps", str(steps)]


def run_demo(forked: ForkedScripts, fault: str, steps: int, spool: Path) -> Journal:
    code, _, err = forked.start([DEMO, *arguments(fault, steps)], spool.parent).finish(380)
    assert code == 0, err
    return recorded(spool)


def recorded(spool: Path) -> Journal:
    (run,) = spool.iterdir()
    return read_journal(run)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "kind", "at_most_later"),
    [
        ("nan", "nonfinite_loss", 0),
        ("explode", "gradient_explosion", 0),
        pytest.param("vanish", "gradient_vanishing", 10, marks=pytest.mark.faults),
        pytest.param("dead", "zero_gradient", 15, marks=pytest.mark.faults),
        ("spike", "loss_spike", 0),
    ],
)
@pytest.mark.capability(10, 25, 34)
def test_fault_gives_its_event_kind_at_its_step(
    fault: str, kind: str, at_most_later: int, forked: ForkedScripts, spool: Path
) -> None:
    at = FAULT_STEPS[fault]
    journal = run_demo(forked, fault, at + 20, spool)
    found = {event.kind: event for event in journal.latest_events}
    assert kind in found
    assert at <= found[kind].step <= at + at_most_later
    assert [frame.step for frame in journal.frames] == list(range(at + 20))
    assert journal.end is not None
    if fault == "nan":
        names_the_planted_line_and_goes_on(journal)
        comes_again_from_its_bundle(spool)


def names_the_planted_line_and_goes_on(journal: Journal) -> None:
    event = next(event for event in journal.latest_events if event.kind == "nonfinite_loss")
    assert event.origin is not None
    assert (event.origin.phase, event.origin.op, event.origin.module) == (
        "forward",
        "rsqrt",
        "blocks.0.norm1",
    )
    frame = next(frame for frame in reversed(event.stacks.forward) if frame.file.endswith("demo_train.py"))
    assert "torch.rsqrt" in frame.code.splitlines()[frame.line - frame.code_first_line]
    assert (event.count, event.ended) == (1, True)
    assert journal.frames[-1].scalars["loss"] < 4


def comes_again_from_its_bundle(spool: Path) -> None:
    (bundle,) = spool.glob("*/bundles/*")
    command = [sys.executable, "-m", "dashboard", "replay", str(bundle), "--entry", "demo_train:build_model"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert finished.returncode == 0, finished.stderr
    assert "began in blocks.0.norm1, demo_train.py:41, forward (rsqrt)" in finished.stdout


@pytest.mark.slow
def test_fault_exception_is_recorded_and_ends_the_script(forked: ForkedScripts, spool: Path) -> None:
    command = [DEMO, *arguments("exception", FAULT_STEPS["exception"] + 20)]
    code = forked.start(command, spool.parent).wait()
    journal = recorded(spool)
    (event,) = [event for event in journal.latest_events if event.severity == "critical"]
    assert code == 1
    assert (event.kind, event.subject, event.step) == ("exception", "IndexError", FAULT_STEPS["exception"])
    assert journal.end is not None
    assert journal.end.outcome == "exception"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_healthy_run_gives_nothing_at_warning_or_above(forked: ForkedScripts, spool: Path) -> None:
    journal = run_demo(forked, "none", 150, spool)
    assert [event.message for event in journal.latest_events if event.severity != "info"] == []
    assert [frame.step for frame in journal.frames] == list(range(150))
