"""Memory snapshots the whole way: a real training, its journal, the store, and the section of the page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from dash.development.base_component import Component
from small_training import seeded_model, train

import probe
from dashboard.ingest.spool import ingest_spool
from dashboard.page.callbacks.documents import documents_view
from dashboard.store.duck import DuckStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DuckStore]:
    opened = DuckStore(tmp_path / "data")
    yield opened
    opened.close()


def cells(part: object) -> Iterator[str]:
    """The text of every cell, in order."""
    for one in part._traverse() if isinstance(part, Component) else ():
        if type(one).__name__ in ("Td", "Th"):
            children = one.children if isinstance(one.children, list) else [one.children]
            yield "".join(str(getattr(child, "children", child)) for child in children)


@pytest.mark.capability(38, 42)
def test_snapshots_of_a_training_are_in_the_pages_memory_section(store: DuckStore, tmp_path: Path) -> None:
    model, spool = seeded_model(), tmp_path / "spool"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with probe.watch(model, optimizer, spool=spool, connect="") as run:
        train(model, optimizer, 3)
        before = run.take_memory_snapshot("before <b>")
        kept = torch.ones(16 * 2**20)
        after = run.take_memory_snapshot("after")
        run.end_epoch()
    ingest_spool(store, spool)
    sections = {one.id: one for one in documents_view(store, {"run": run.run})}
    section = sections["documents-memory_snapshot"]
    table = list(cells(section))
    heads = table.index("Machine in use") + 1
    rows = {row[0]: row for row in (table[at : at + heads] for at in range(heads, len(table), heads))}
    assert set(rows) == {"before <b>", "after", "epoch 1"}
    assert rows["epoch 1"][1:3] == ["2", "end of epoch"]
    change = (after - before).rss_bytes
    assert change is not None and abs(change - kept.nbytes) < 8 * 2**20
    shown = re.fullmatch(r"[\d.]+ [MG]iB \+([\d.]+) MiB", rows["after"][3])
    assert shown is not None and float(shown[1]) == pytest.approx(change / 2**20, rel=1e-3)
