"""Real trainings under one run id, started again: what the store shows of each, and what the page says."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forked_scripts import TORCH, ForkedScripts

from dashboard.export.json import export_json
from dashboard.ingest.spool import ingest_spool
from dashboard.live.pictures import Pictures
from dashboard.live.view import Subscription
from dashboard.store.duck import DuckStore

SCRIPT = """
import os, sys, signal, time, torch

if back_s := float(os.environ.get("CLOCK_BACK_S", "0")):
    now_s, now_ns = time.time, time.time_ns
    time.time, time.time_ns = lambda: now_s() - back_s, lambda: now_ns() - int(back_s * 1e9)
import probe

steps, seed, dies_at = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
torch.manual_seed(seed)
net = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
begin = 0
if os.path.exists("checkpoint.pt"):
    kept = torch.load("checkpoint.pt")
    net.load_state_dict(kept["net"])
    begin = kept["step"]
run = probe.watch(net, optimizer)
losses = open("losses", "a")
for step in range(begin, steps):
    torch.manual_seed(1000 + step)
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(net(torch.randn(8, 6)), torch.randint(3, (8,)))
    loss.backward()
    optimizer.step()
    losses.write(f"{begin} {step} {loss.item()!r}\\n")
    losses.flush()
    if step == 19:
        torch.save({"net": net.state_dict(), "step": step + 1}, "checkpoint.pt.new")
    if step == dies_at:
        os.rename("checkpoint.pt.new", "checkpoint.pt")
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def torch_scripts() -> Iterator[ForkedScripts]:
    with ForkedScripts(*TORCH) as scripts:
        yield scripts


def train(scripts: ForkedScripts, folder: Path, *arguments: int, clock_back_s: float = 0.0) -> int:
    (folder / "train.py").write_text(SCRIPT)
    environment = {
        "NANSCOPE_SPOOL": str(folder / "spool"),
        "NANSCOPE_CONNECT": "",
        "NANSCOPE_QUIET": "1",
        "NANSCOPE_RUN": "again",
        "NANSCOPE_LINGER_S": "1",
        "CLOCK_BACK_S": str(clock_back_s),
    }
    code, _, errors = scripts.start(["train.py", *map(str, arguments)], folder, environment).finish(120)
    assert code in (0, -signal.SIGKILL), errors
    return code


def losses(folder: Path) -> list[list[float]]:
    """What each start printed, in order."""
    rows = [line.split() for line in (folder / "losses").read_text().splitlines()]
    found: list[list[float]] = []
    for number, (_, step, loss) in enumerate(rows):
        if number == 0 or int(step) != int(rows[number - 1][1]) + 1:
            found.append([])
        found[-1].append(float(loss))
    return found


def stored(folder: Path) -> DuckStore:
    store = DuckStore(folder / "data")
    ingest_spool(store, folder / "spool")
    return store


def look(store: DuckStore) -> dict[str, Any]:
    picture = Pictures(store).look(Subscription(id=1, run="again"), with_data=True)
    assert picture.fields is not None
    return picture.status.fields | picture.fields


def shown_losses(store: DuckStore) -> list[float]:
    return store.scalars("again", 0, ["loss"])["mean"].tolist()


def test_started_twice_the_second_start_is_what_is_shown(
    torch_scripts: ForkedScripts, tmp_path: Path
) -> None:
    train(torch_scripts, tmp_path, 40, 0, -1)
    train(torch_scripts, tmp_path, 12, 1, -1)
    first, second = losses(tmp_path)
    store = stored(tmp_path)
    assert shown_losses(store) == pytest.approx([*second, *first[12:]], rel=1e-6)
    header = look(store)
    tiles = {tile["id"]: tile["value"] for tile in header["tiles"]}
    assert float(tiles["loss"]) == pytest.approx(second[-1], rel=1e-3) and tiles["step"] == "11"
    assert header["range"] == [0, 12] and header["run"] == "again"
    assert [each["step"] for each in header["breaks"]] == [0, 12]
    assert "it had come to step 39" in header["breaks"][0]["text"]
    document = json.loads(json.dumps(export_json(store, "again"), allow_nan=False))
    assert document["breaks"] == header["breaks"]
    store.close()


def test_killed_and_resumed_from_a_checkpoint(torch_scripts: ForkedScripts, tmp_path: Path) -> None:
    """The probe counts the steps of a start from 0: the resumed ones take the place of the first ones."""
    assert train(torch_scripts, tmp_path, 60, 0, 30) == -signal.SIGKILL
    train(torch_scripts, tmp_path, 28, 0, -1)
    first, resumed = losses(tmp_path)
    assert (len(first), len(resumed)) == (31, 8) and resumed == first[20:28], "the checkpoint was taken"
    store = stored(tmp_path)
    assert shown_losses(store) == pytest.approx([*resumed, *first[8:]], rel=1e-6)
    starts = store.starts("again")
    assert [(each.first_step, each.last_step) for each in starts] == [(0, 30), (0, 7)]
    header = look(store)
    assert [each["step"] for each in header["breaks"]] == [0, 8] and header["newestStep"] == 7
    store.close()


@pytest.mark.parametrize("clock_back_s", [3600.0])
def test_started_again_after_the_clock_went_back_the_second_start_is_what_is_shown(
    torch_scripts: ForkedScripts, tmp_path: Path, clock_back_s: float
) -> None:
    began = [train(torch_scripts, tmp_path, 40, 0, -1)]
    began += [
        train(torch_scripts, tmp_path, 12, seed, -1, clock_back_s=seed * clock_back_s) for seed in (1, 2)
    ]
    first, second, third = losses(tmp_path)
    assert second != third and began == [0, 0, 0]
    store = stored(tmp_path)
    assert shown_losses(store) == pytest.approx([*third, *first[12:]], rel=1e-6)
    starts = store.starts("again")
    assert [each.last_step for each in starts] == [39, 11, 11]
    assert starts[1].time < starts[0].time
    assert starts[2].incarnation > starts[1].incarnation > starts[0].incarnation
    assert look(store)["newestStep"] == 11
    store.close()
