"""`dashboard export --format wandb`, read back out of the file by its format and wandb's own records."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tracked_journal import STEPS, expected, require, time_of, write_tracked_run

from dashboard.cli import main

BLOCK = 32 * 1024
HEADER = 7
pytestmark = pytest.mark.filterwarnings("default")
"""wandb's own are its."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require("wandb")
    folder = tmp_path_factory.mktemp("wandb")
    run = write_tracked_run(folder / "spool")
    assert main(["export", str(run), "--format", "wandb", "--project", "mine", "-o", str(folder)]) == 0
    return folder


def pieces(data: bytes) -> Iterator[bytes]:
    """The records of a log of LevelDB: blocks of 32 KiB, each piece after checksum, length and kind."""
    at, record = HEADER, b""
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        record += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (1, 4):  # whole, or the last piece of one
            yield record
            record = b""


def records(folder: Path, kind: str) -> list[Any]:
    from wandb.proto import wandb_internal_pb2

    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    data = file.read_bytes()
    assert data.startswith(b":W&B")
    read = [wandb_internal_pb2.Record.FromString(piece) for piece in pieces(data)]
    return [getattr(one, kind) for one in read if one.WhichOneof("record_type") == kind]


def items(record: Any) -> dict[str, Any]:
    return {(item.key or ".".join(item.nested_key)): json.loads(item.value_json) for item in record}


@pytest.mark.capability(67)
def test_wandb_has_every_number_at_its_step_and_time(folder: Path) -> None:
    rows = {record.step.num: items(record.item) for record in records(folder, "history")}
    assert list(rows) == [*range(STEPS), STEPS + 3]
    for name, values in expected().items():
        kept = {step: row[name] for step, row in rows.items() if name in row}
        assert list(kept) == list(values)
        np.testing.assert_array_equal([*kept.values()], [*values.values()])
    assert [row["_timestamp"] for row in rows.values()] == [time_of(step) for step in rows]
    assert {step for step, row in rows.items() if row.get("events/nonfinite_gradient") == 1} == {7}
    assert rows[STEPS + 3]["events/loss_spike"] == 1


@pytest.mark.capability(67)
def test_wandb_has_configuration_and_name_and_none_of_this_process(folder: Path) -> None:
    run = records(folder, "run")[0]
    assert (run.run_id, run.project, run.display_name) == ("run-a", "mine", "train.py")
    config = items(run.config.update)
    assert (config["lr"], config["batch|size"]) == ("0.001", "32")
    assert config["nanscope"]["state"] == "finished"
    assert not records(folder, "stats")


def test_wandb_sync_takes_the_folder(folder: Path) -> None:
    (run,) = folder.glob("wandb/offline-run-*")
    command = [sys.executable, "-m", "wandb", "sync", "--dry-run", str(run)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "Would sync 1 run" in said.stdout + said.stderr
