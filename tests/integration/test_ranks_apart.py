"""A rank whose weights differ from the other's: told of by the helper alone, and by a later dashboard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from delivery_processes import RUN, Site, wait_until
from forked_scripts import ForkedScripts
from journals import Journal, read_journal

from dashboard.commands.events import load_events
from dashboard.runs import read_events
from dashboard.store.duck import DuckStore
from probe.wire import Event, event_id
from probe.wire.columns import unpack_column

SCRIPT = Path(__file__).with_name("scripts") / "ranks_apart.py"
DAMAGED = 35


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path, NANSCOPE_RUN=RUN, NANSCOPE_LINGER_S="60", OMP_NUM_THREADS="1")
    yield site
    site.close()


def parameter_norms(journal: Journal) -> dict[int, np.ndarray]:
    """Step -> norms, where they were measured: more rarely on a slow machine."""
    return {
        frame.step: unpack_column(column)
        for frame in journal.frames
        for column in frame.columns
        if column.name == "parameter_norm"
    }


def recorded(site: Site) -> list[Event]:
    """Events that ranks and helper have written, without what is worked out of them in reading."""
    return [event for event in read_events([site.spool / RUN]).events if event.kind == "rank_divergence"]


@pytest.mark.slow
def test_damaged_rank_is_one_event_of_helper_journals_and_dashboard(
    site: Site, forked: ForkedScripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NANSCOPE_CONNECT")  # a helper is to come
    command = ["--quiet", "--spool", str(site.spool), str(SCRIPT)]
    code, _, err = forked.launch(command, site.spool.parent, site.environment).finish()
    assert code == 0, err
    wait_until(lambda: any(event.ended for event in recorded(site)), "the helper has written no event")
    journals = [read_journal(site.spool / RUN, rank) for rank in (0, 1)]
    own, other = (parameter_norms(journals[rank]) for rank in (1, 0))
    common = sorted(own.keys() & other.keys())
    first = next(step for step in common if not np.allclose(own[step], other[step], rtol=1e-5, atol=0))
    assert first > DAMAGED

    (event,) = recorded(site)
    assert (event.rank, event.step, event.severity) == (1, first, "critical")
    assert event.propagated_to == ["2"]
    assert event.message.startswith(f"Rank 1 is not a replica of rank 0 at step {first}: norm of `2.weight` ")
    relative = abs(own[first] - other[first]) / np.maximum(own[first], other[first])
    assert event.evidence.value == pytest.approx(relative.max(), rel=1e-9)
    start = journals[1].start
    assert event.id == event_id(
        run=RUN,
        rank=1,
        incarnation=start.incarnation,
        model=journals[1].layouts[0].model,
        kind="rank_divergence",
        subject="parameters",
        step=first,
    )
    found = load_events(str(site.spool / RUN)).events
    assert [item.id for item in found if item.kind == "rank_divergence"] == [event.id]

    dashboard = site.start_dashboard()
    site.wait_for_helper_to_leave()
    site.stop(dashboard)
    store = DuckStore(site.data)
    shown = [item for item in store.events(RUN) if item.kind == "rank_divergence"]
    store.close()
    assert shown == [event]
