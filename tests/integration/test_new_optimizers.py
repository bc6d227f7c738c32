"""`dashboard run` of scripts that make optimizers all the time."""

from __future__ import annotations

import re
from pathlib import Path

from forked_scripts import ForkedScripts
from journals import read_journal

SCRIPT = Path(__file__).with_name("scripts") / "new_optimizers.py"


def test_new_optimizer_of_a_recorded_model_searches_no_objects(
    tmp_path: Path, spool: Path, forked: ForkedScripts
) -> None:
    recorded, bare = forked.launch([str(SCRIPT)], tmp_path), forked.start([str(SCRIPT)], tmp_path)
    code, out, err = recorded.finish()
    assert (code, out) == bare.finish()[:2]
    found = re.search(r"searched (\d+) times, then (\d+) times", err)
    assert found is not None
    first, later = map(int, found.groups())
    # One for each of three models, and one for each early watch.
    assert 3 <= first <= 8
    # The early watches look for optimizers that have not made a step yet, a few times in all.
    assert later <= 12
    runs = [read_journal(run) for run in spool.iterdir()]
    assert sorted(len(run.frames) for run in runs) == [43, 43, 43]
