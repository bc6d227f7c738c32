"""Every fault that demo_train.py can plant gives its event; a healthy run gives none."""

import subprocess
import sys
from pathlib import Path

import pytest
from journals import Journal, read_journal

ROOT = Path(__file__).parents[2]
FAULT_STEPS = {"nan": 60, "explode": 50, "vanish": 50, "dead": 50, "spike": 90, "exception": 50}
"""As early as they are found: a spike of the loss only beside enough of a normal course."""

_finished: dict[str, tuple[int, Journal]] = {}
"""What has been run: once each is enough."""


def run_demo(fault: str, steps: int, spool: Path) -> tuple[int, Journal]:
    if fault in _finished:
        return _finished[fault]
    arguments = ["--fault", fault, "--fault-step", str(FAULT_STEPS.get(fault, 0)), "--steps", str(steps)]
    finished = subprocess.run(
        [sys.executable, str(ROOT / "demo_train.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=380,
        cwd=spool.parent,
    )
    (run,) = spool.iterdir()
    return _finished.setdefault(fault, (finished.returncode, read_journal(run)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "kind", "at_most_later"),
    [
        ("nan", "nonfinite_loss", 0),
        ("explode", "gradient_explosion", 0),
        ("vanish", "gradient_vanishing", 10),
        ("dead", "zero_gradient", 15),
        ("spike", "loss_spike", 0),
    ],
)
def test_fault_gives_its_event_kind_at_its_step(
    fault: str, kind: str, at_most_later: int, tmp_path: Path
) -> None:
    at = FAULT_STEPS[fault]
    code, journal = run_demo(fault, at + 20, tmp_path / "spool")
    found = {event.kind: event for event in journal.latest_events}
    assert code == 0
    assert kind in found
    assert at <= found[kind].step <= at + at_most_later
    assert [frame.step for frame in journal.frames] == list(range(at + 20))
    assert journal.end is not None


@pytest.mark.slow
def test_fault_nan_names_the_planted_line_and_training_goes_on(tmp_path: Path) -> None:
    _, journal = run_demo("nan", FAULT_STEPS["nan"] + 20, tmp_path / "spool")
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


@pytest.mark.slow
def test_fault_exception_is_recorded_and_ends_the_script(tmp_path: Path) -> None:
    code, journal = run_demo("exception", FAULT_STEPS["exception"] + 20, tmp_path / "spool")
    (event,) = [event for event in journal.latest_events if event.severity == "critical"]
    assert code == 1
    assert (event.kind, event.subject, event.step) == ("exception", "IndexError", FAULT_STEPS["exception"])
    assert journal.end is not None
    assert journal.end.outcome == "exception"


@pytest.mark.slow
@pytest.mark.timeout(400)  # beside ten other processes its 300 steps took 170 s
def test_healthy_run_gives_nothing_at_warning_or_above(tmp_path: Path) -> None:
    code, journal = run_demo("none", 300, tmp_path / "spool")
    assert code == 0
    assert [event.message for event in journal.latest_events if event.severity != "info"] == []
    assert [frame.step for frame in journal.frames] == list(range(300))
