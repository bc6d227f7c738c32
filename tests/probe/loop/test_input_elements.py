"""How many elements a step's input has: the same number in every way that a step goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from armed_training import ARMED_AT, Planted, Training, watched_training
from followed_kinds import Accumulating, OfDictionary, Single, Structured, WithDictionary, WithResult

from probe.detectors.base import ObservationBatch
from probe.incidents.incidents import IncidentReporter
from probe.measure.kernels import hot_binding

pytestmark = [
    pytest.mark.skipif(hot_binding.status().calls is None, reason=hot_binding.status().reason),
    pytest.mark.usefixtures("nothing_switched_off", "one_thread"),
]
KINDS: dict[str, tuple[type[Training], type[Planted]]] = {
    "single": (Single, Planted),
    "micro-steps": (Accumulating, Planted),
    "dictionary": (WithDictionary, OfDictionary),
    "result": (WithResult, Structured),
}


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """Elements of the input by step, as they are judged."""
    found: dict[int, int] = {}
    judge: Callable[..., Any] = IncidentReporter.judge_quiet

    def noted(self: IncidentReporter, batch: ObservationBatch, times: Sequence[float], stacks: Any) -> Any:
        found.update(zip(batch.steps, batch.input_elements, strict=True))
        return judge(self, batch, times, stacks)

    monkeypatch.setattr(IncidentReporter, "judge_quiet", noted)
    return found


@pytest.mark.parametrize("options", [{}, {"verdict": "after_update"}], ids=["before", "after"])
@pytest.mark.parametrize("kind", KINDS)
def test_input_elements_are_the_same_in_c_and_in_the_slow_way(
    tmp_path: Path, seen: dict[int, int], kind: str, options: dict[str, Any]
) -> None:
    loop, model = KINDS[kind]
    both = []
    for in_c in (True, False):
        seen.clear()
        spool = tmp_path / str(in_c)
        with watched_training(in_c=in_c, spool=spool, kind=loop, model=model, **options) as training:
            training.steps(10)
        both.append(dict(seen))
    assert both[0] == both[1]
    assert len(both[0]) >= ARMED_AT and min(both[0].values()) > 0
