"""Which frame is the first behind a hole."""

import pytest

from dashboard.store.changes import PartChanges
from dashboard.store.edge import GapRow
from dashboard.store.gaps import Gaps
from dashboard.store.limits import RunLimits


@pytest.mark.parametrize(("seq", "is_behind"), [(3, False), (9, False), (10, True), (14, True)])
def test_frame_that_is_sent_again_lies_in_front_of_the_hole(seq: int, is_behind: bool) -> None:
    gaps = Gaps(PartChanges(), RunLimits())
    gaps.add(
        GapRow(
            run="run",
            writer="0-1",
            source="skip",
            first_seq=5,
            end_seq=10,
            reason="evicted",
            first_step=149,
            last_step=None,
        )
    )
    assert gaps.open_runs("0-1", before=seq) == ["run"] * is_behind
    assert gaps.open_runs("0-2", before=seq) == []
