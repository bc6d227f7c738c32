"""Plain containers that grow are named at the usual pace of readings and looks, in steps of 15 ms."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_leaks_plain import healthy, leaking

from probe.memory.heap_meter import heap_reader

pytestmark = pytest.mark.skipif(heap_reader() is None, reason="malloc does not tell what is in use")
BY_BYTES = ("leaks_list_of_long_texts", "leaks_records_of_bytes")
"""Seen by malloc's figures alone: on a busy machine the watch takes longer to be sure of them."""
ALWAYS = (
    *("leaks_dict_of_dicts_of_numbers", "leaks_set_of_texts", "leaks_errors_with_their_tracebacks"),
    *(
        "healthy_losses_and_metrics",
        "healthy_cache_that_fills_and_stops",
        "healthy_predictions_of_each_epoch",
    ),
)
"""Of a kind each; `make faults` runs all, and at another pace `test_leaks_plain.py` does."""
Named = dict[str, tuple[str | None, list[str]]]


def marked(runs: list[Any]) -> list[Any]:
    return [
        pytest.param(run, marks=[] if run.__name__ in ALWAYS else [pytest.mark.faults])
        for run in runs
        if run.__name__ not in BY_BYTES
    ]


@pytest.fixture(scope="module")
def named(request: pytest.FixtureRequest) -> Named:
    """What is expected of each loop that is tried, and what was named."""
    tried = [item for item in request.session.items if item.path == request.path]
    loops = [item.callspec.params["run"].__name__ for item in tried if isinstance(item, pytest.Function)]
    script = Path(__file__).with_name("paced_leaks.py")
    paths = os.pathsep.join([str(script.parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, str(script), *loops],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: Any = json.loads(done.stdout)
    return {name: tuple(found) for name, found in result.items()}


@pytest.mark.parametrize("run", marked(leaking()))
def test_plain_container_that_grows_is_named_at_the_usual_pace(
    named: Named, run: Callable[[Any], str]
) -> None:
    expected, found = named[run.__name__]
    assert found == [expected]


@pytest.mark.parametrize("run", marked(healthy()))
def test_plain_container_of_a_healthy_loop_is_not_named(named: Named, run: Callable[[Any], None]) -> None:
    assert named[run.__name__][1] == []
