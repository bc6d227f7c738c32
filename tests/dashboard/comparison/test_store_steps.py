"""Steps for a comparison, read from a store: the same as from the journals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sample_runs import frame, write_run
from test_journal_steps import with_loss, write

from dashboard.comparison.journal_steps import open_rank, read_steps
from dashboard.comparison.parting import WINDOW, StepBlock, find_parting
from dashboard.comparison.store_steps import read_store_steps, stored_facts
from dashboard.ingest.spool import SpoolIngest
from dashboard.store.duck import DuckStore
from dashboard.store.protocol import StepRange
from probe.wire import Frame


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DuckStore]:
    opened = DuckStore(tmp_path / "data")
    yield opened
    opened.close()


def test_store_and_journal_give_the_same_blocks(tmp_path: Path, store: DuckStore) -> None:
    folder = write_run(tmp_path / "spool", "one", steps=WINDOW * 17 + 5)
    SpoolIngest(store, tmp_path / "spool").run()
    pairs = zip(read_store_steps(store, "one", 0), read_steps(open_rank(folder, 0)), strict=True)
    for of_store, of_journal in pairs:
        np.testing.assert_array_equal(of_store.steps, of_journal.steps)
        np.testing.assert_array_equal(of_store.norms, of_journal.norms)
        np.testing.assert_array_equal(of_store.measured, of_journal.measured)
        assert of_store.layers == of_journal.layers and not of_store.pooled
        assert of_store.scalars.keys() == of_journal.scalars.keys()
        for name, series in of_store.scalars.items():
            np.testing.assert_array_equal(series.values, of_journal.scalars[name].values)


def test_runs_of_a_store_part_where_their_journals_do(tmp_path: Path, store: DuckStore) -> None:
    def frames(at: int) -> list[Frame]:
        return [frame(step, nan_at=at) for step in range(0, 600, 3)]

    spool = tmp_path / "spool"
    write(spool / "one", frames(420))
    write(spool / "two", frames(450))
    SpoolIngest(store, spool).run()
    found = find_parting(read_store_steps(store, "one", 0), read_store_steps(store, "two", 0))
    of_journals = find_parting(*(read_steps(open_rank(spool / run, 0)) for run in ("one", "two")))
    assert found.step == of_journals.step == 420
    assert (found.equal, found.compared) == (of_journals.equal, of_journals.compared)
    assert [each.name for each in found.layers] == ["head", "blocks.3", "embedding"]
    assert np.isnan(found.layers[0].first) and np.isfinite(found.layers[0].second)


def test_restarted_run_has_the_same_steps_in_store_and_journal(tmp_path: Path, store: DuckStore) -> None:
    folder = tmp_path / "spool" / "one"
    write(folder, [with_loss(step, 1.0) for step in range(300)], incarnation=1)
    write(folder, [with_loss(step, 2.0) for step in range(200, 260)], incarnation=2)
    SpoolIngest(store, tmp_path / "spool").run()
    (block, more), (journal, more_of_it) = read_store_steps(store, "one", 0), read_steps(open_rank(folder, 0))
    np.testing.assert_array_equal(block.scalars["loss"].values, journal.scalars["loss"].values)
    np.testing.assert_array_equal(more.steps, more_of_it.steps)


def test_restart_far_behind_the_first_step_hides_nothing(tmp_path: Path, store: DuckStore) -> None:
    folder = tmp_path / "spool" / "one"
    write(folder, [with_loss(step, 1.0) for step in range(0, 6000, 50)], incarnation=1)
    write(folder, [with_loss(step, 2.0) for step in range(5000, 5200, 50)], incarnation=2)
    SpoolIngest(store, tmp_path / "spool").run()
    steps = [step for block in read_store_steps(store, "one", 0) for step in block.steps.tolist()]
    assert steps == list(range(0, 5200, 50))


def test_reading_stops_before_an_end(tmp_path: Path, store: DuckStore) -> None:
    write_run(tmp_path / "spool", "one", steps=600)
    SpoolIngest(store, tmp_path / "spool").run()
    blocks = list(read_store_steps(store, "one", 0, end=300))
    assert sum(len(block.steps) for block in blocks) == 300


class Pooled:
    """A store that has kept only averages of old steps."""

    def __init__(self, store: DuckStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def scalars(self, run: str, rank: int, names: list[str], steps: StepRange, max_points: int) -> object:
        return self._store.scalars(run, rank, names, steps, max_points // 16)


def test_averages_are_said_and_not_compared(tmp_path: Path, store: DuckStore) -> None:
    write_run(tmp_path / "spool", "one", steps=600)
    SpoolIngest(store, tmp_path / "spool").run()
    pooled: Iterator[StepBlock] = read_store_steps(Pooled(store), "one", 0)  # type: ignore[arg-type]
    found = find_parting(pooled, read_store_steps(store, "one", 0))
    assert found.pooled.count and not found.compared.count and not found.is_equal


def test_unknown_run_has_no_step_and_no_facts(store: DuckStore) -> None:
    assert list(read_store_steps(store, "nothing", 0)) == []
    assert stored_facts(store, "nothing") is None
