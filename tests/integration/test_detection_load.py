"""How `tests/benchmarks/detection_load.py` compares the events of two runs; it runs them by hand."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS / "faults"))
sys.path.insert(0, str(TESTS / "benchmarks"))

from bank import load_bank  # noqa: E402
from detection_load import CHOSEN, difference, places_of  # noqa: E402


def test_chosen_scripts_are_twenty_of_the_bank() -> None:
    assert len(set(CHOSEN)) == 20 and set(CHOSEN) <= {script.name for script in load_bank()}


def test_difference_names_what_only_one_run_has() -> None:
    events = [
        {"severity": "warning", "kind": "loss_plateau", "subject": "loss", "step": 340},
        {"severity": "info", "kind": "throttled", "subject": "throttled", "step": 11},
    ]
    assert difference(places_of(events), places_of(events)) == []
    assert difference(places_of(events), Counter()) == ["only alone: loss_plateau of 'loss' at step 340"]
    later = [events[0] | {"step": 360}]
    assert len(difference(places_of(events), places_of(later))) == 2
