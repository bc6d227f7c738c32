"""What is written of tracked tensors: by hand, by the clock, and by a whole run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import probe
from probe.actions import tracked_watch
from probe.actions.analysis import tensor_lives
from probe.actions.tracked_watch import TrackedWatch
from probe.delivery.journal.journal_reader import read_stream
from probe.delivery.journal.run_folders import list_writers
from probe.wire import Document, decode_record
from probe.wire.documents import read_body
from probe.wire.tracked_tensors import KIND, MOST, TrackedBody


@pytest.fixture(autouse=True)
def nothing_tracked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_lives, "_tracked", type(tensor_lives._tracked)(maxlen=1000))


def written(watch: TrackedWatch) -> list[TrackedBody]:
    return [read_body(document, TrackedBody) for document in watch.look()]


def test_table_has_what_lives_by_size_and_then_what_was_freed() -> None:
    small, large, gone = torch.zeros(4), torch.zeros(3, 100, dtype=torch.float64), torch.zeros(50)
    for tensor, name in ((small, "small"), (large, "large"), (gone, "gone")):
        probe.track_tensor(tensor, name)
    del gone, tensor
    (body,) = written(TrackedWatch(last_step=lambda: 7))
    assert [(row.name, row.bytes, row.shape, row.dtype, row.freed is None) for row in body.tensors] == [
        ("large", 2400, (3, 100), "float64", True),
        ("small", 16, (4,), "float32", True),
        ("gone", 200, (50,), "float32", False),
    ]
    assert (body.alive, body.alive_bytes, body.tracked) == (2, 2416, 3)
    freed = body.tensors[2].freed
    assert freed is not None and freed >= body.tensors[2].since


def test_nothing_is_written_before_a_tensor_is_tracked_nor_again_without_news(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch = TrackedWatch(last_step=lambda: None)
    monkeypatch.delitem(sys.modules, tracked_watch._LIVES)
    assert watch.look() == watch.close() == []
    monkeypatch.undo()
    kept = torch.zeros(4)
    probe.track_tensor(kept, "kept")
    assert len(written(watch)) == 1
    assert watch.close() == []


def test_the_longer_a_run_lasts_the_less_often_it_is_written() -> None:
    now_s = 0.0
    watch = TrackedWatch(last_step=lambda: 0, clock=lambda: now_s)
    kept, documents = [], 0
    for look in range(3000):
        now_s = 2.0 * look
        kept.append(torch.zeros(1))
        probe.track_tensor(kept[-1], f"one {look}")
        documents += len(watch.look())
    # 100 s at every look, then each fiftieth part of the time: 50 ln(6000 / 100) more.
    assert 200 < documents < 300
    (last,) = watch.close() or [None]
    assert last is None or len(read_body(last, TrackedBody).tensors) == MOST


def test_a_run_has_the_document(tmp_path: Path) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = torch.zeros(8, 8)
    with probe.watch(model, optimizer, spool=tmp_path, connect="") as run:
        probe.track_tensor(kept, "history <b>")
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    (folder,) = list_writers(tmp_path / run.run)
    records = [decode_record(data) for _, data in read_stream(folder, "events")]
    documents = [one for one in records if isinstance(one, Document) and one.kind == KIND]
    (row,) = read_body(documents[-1], TrackedBody).tensors
    assert (row.name, row.bytes, row.device, row.freed) == ("history <b>", 256, "cpu", None)
