"""`dashboard run` of many optimizers, of unusual modules, and of threads that train."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from forked_scripts import ForkedScripts
from journals import read_journal

SCRIPT = Path(__file__).with_name("scripts") / "new_optimizers.py"
UNUSUAL = SCRIPT.with_name("unusual_models.py")
IN_THREADS = SCRIPT.with_name("in_threads.py")


def test_new_optimizer_of_a_recorded_model_searches_no_objects(
    tmp_path: Path, spool: Path, forked: ForkedScripts
) -> None:
    recorded, bare = forked.launch([str(SCRIPT)], tmp_path), forked.start([str(SCRIPT)], tmp_path)
    code, out, err = recorded.finish()
    assert (code, out) == bare.finish()[:2]
    found = re.search(r"searched (\d+) times, then (\d+) times", err)
    assert found is not None
    first, later = map(int, found.groups())
    # For the first model of each line, and for early watches: not for the second client.
    assert 1 <= first <= 8
    # The early watches look for optimizers that have not made a step yet, a few times in all.
    assert later <= 12
    # The clients are members of one run, also where another line trains them again.
    runs = [read_journal(run) for run in spool.iterdir()]
    members = [Counter(frame.member or 0 for frame in run.frames) for run in runs]
    assert sorted(map(len, members)) == [1, 2]
    assert {steps for run in members for steps in run.values()} == {43}


def test_scripted_lazy_and_raising_models_are_recorded_from_their_first_step(
    tmp_path: Path, spool: Path, forked: ForkedScripts
) -> None:
    recorded, bare = forked.launch([str(UNUSUAL)], tmp_path), forked.start([str(UNUSUAL)], tmp_path)
    code, out, err = recorded.finish()
    assert (code, out) == bare.finish()[:2]
    assert all(line.startswith("nanscope: recording run ") for line in err.splitlines())
    runs = [read_journal(run) for run in spool.iterdir()]
    assert [[frame.step for frame in run.frames] for run in runs] == [list(range(12))] * 3


def test_trainings_in_threads_are_runs_of_one_group(
    tmp_path: Path, spool: Path, forked: ForkedScripts
) -> None:
    recorded, bare = forked.launch([str(IN_THREADS)], tmp_path), forked.start([str(IN_THREADS)], tmp_path)
    code, out, err = recorded.finish()
    assert (code, out) == bare.finish()[:2]
    assert all(line.startswith("nanscope: recording run ") for line in err.splitlines())
    runs = [read_journal(run) for run in spool.iterdir()]
    assert [[frame.step for frame in run.frames] for run in runs] == [list(range(25))] * 4
    assert len({run.start.group for run in runs}) == 1
    assert sorted(run.layouts[0].parameters[0].shape[0] for run in runs) == [4, 5, 6, 7]
