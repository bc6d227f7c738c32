"""Events of samplings are counted by themselves in the debug summary of the HTTP API."""

from __future__ import annotations

import msgspec
import pytest
from sample_events import nan_event

from dashboard.serving.api.summaries import debug_summary
from dashboard.store.protocol import RankSummary


@pytest.mark.capability(52, 75)
def test_events_of_samplings_are_counted_under_diffusion_alone() -> None:
    kinds = ("diffusion_nonfinite", "diffusion_drift", "nonfinite_loss")
    events = [
        msgspec.structs.replace(nan_event(), kind=kind, id=str(number) * 16)
        for number, kind in enumerate(kinds)
    ]
    rank = RankSummary(rank=0, incarnation=1, state="finished", first_step=0, last_step=999, last_time=None)
    found = debug_summary(events, rank)
    assert found["diffusion_debugger"] == {"total_anomalies": 2, "debug_history_length": 2}
    assert found["training_debugger"]["total_anomalies"] == 1
    assert found["general_debugger"]["total_anomalies"] == 0
