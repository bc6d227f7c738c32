"""The example of docs/rules.md runs and does what the page says; the page names everything that there is."""

import re
from pathlib import Path

import pytest
from journals import read_journal

from probe.delivery.control.grammar import HISTORY, MODULE_FUNCTIONS, NAMES, PARAMETER_FUNCTIONS
from probe.delivery.control.rule_options import ACTIONS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "rules.md"


@pytest.mark.usefixtures("one_thread", "nothing_switched_off")
def test_docs_example_runs_and_its_watchpoints_fire(spool: Path) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    exec(compile(block, str(PAGE), "exec"), {"__name__": "docs"})  # noqa: S102
    (folder,) = spool.iterdir()
    found = {
        event.subject: event.step
        for event in read_journal(folder).latest_events
        if event.kind in ("custom", "snapshot")
    }
    assert found == {
        'grad_norm("2.*") > 8 * median': 35,
        "accuracy fell": 38,
        "loss > 5 * previous": 35,
        "step == 20": 20,
    }
    assert (folder / "snapshots").is_dir()


@pytest.mark.parametrize("name", [*NAMES, *PARAMETER_FUNCTIONS, *MODULE_FUNCTIONS, *HISTORY, *ACTIONS])
def test_docs_name_everything(name: str) -> None:
    assert re.search(rf"[`\"]{name}[`(\"]", PAGE.read_text(encoding="utf-8"))
