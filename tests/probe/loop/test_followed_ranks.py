"""What C follows on two real ranks is what the slow way sees there."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
import torch
from armed_training import ARMED_AT
from forked_scripts import ForkedScripts
from journal_differences import differences
from journals import Journal, read_journal

from probe.measure.kernels import hot_binding

pytestmark = [
    pytest.mark.skipif(hot_binding.status().calls is None, reason=hot_binding.status().reason),
    pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed"),
]
HERE = Path(__file__).resolve().parents[1]
WAITED = ("before_backward_s", "own_backward_s")
"""Clock readings, which detectors compare between ranks."""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory, forked: ForkedScripts) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    paths = [HERE.parents[1], HERE.parent, HERE.parent / "integration", HERE]
    variables = {
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "NANSCOPE_CONNECT": "",
        "NANSCOPE_SPOOL": str(folder / "spool"),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    code, out, err = forked.start([str(HERE / "followed_ranks.py"), str(folder)], folder, variables).finish(
        170
    )
    assert code == 0, out + err
    return folder


def both(folder: Path, name: str, rank: int) -> tuple[Journal, Journal]:
    (in_c,), (slow,) = ([*(folder / f"{name}-{rank}-{way}").iterdir()] for way in ("c", "slow"))
    return read_journal(in_c, rank), read_journal(slow, rank)


@pytest.mark.parametrize("name", ["averaged", "averaged-at-the-end"])
@pytest.mark.parametrize("rank", [0, 1])
def test_rank_records_the_same_both_ways(ranks: Path, name: str, rank: int) -> None:
    in_c, slow = both(ranks, name, rank)
    assert differences(slow, in_c) == []
    assert {event.step for event in in_c.latest_events} >= {ARMED_AT + 30}
    mine, theirs = (torch.load(ranks / f"{name}-{rank}-{way}.pt", weights_only=True) for way in ("c", "slow"))
    assert all(
        torch.equal(one.nan_to_num(), other.nan_to_num()) for one, other in zip(mine, theirs, strict=True)
    )


@pytest.mark.parametrize("name", ["averaged", "averaged-at-the-end"])
def test_followed_steps_say_how_long_a_rank_did_not_wait(ranks: Path, name: str) -> None:
    in_c, slow = both(ranks, name, 0)
    for waited in WAITED:
        times = {frame.step: frame.scalars[waited] for frame in in_c.frames if waited in frame.scalars}
        others = {frame.step for frame in slow.frames if waited in frame.scalars}
        assert set(times) == others >= {*range(ARMED_AT, ARMED_AT + 30)}
        assert all(0 < seconds < 5 for seconds in times.values())
