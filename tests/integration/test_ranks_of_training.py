"""The view Ranks of a real training on three gloo ranks: what it shows is what the ranks have recorded."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from forked_scripts import ForkedScripts
from journals import read_journal

from dashboard.ingest.spool import ingest_spool
from dashboard.live.pictures import Picture, Pictures
from dashboard.live.view import Subscription
from dashboard.store.duck import DuckStore

SCRIPT = Path(__file__).with_name("scripts") / "ranks_of_view.py"
BAD, RANKS = 50, 3


@pytest.fixture(scope="module")
def spool(tmp_path_factory: pytest.TempPathFactory, forked: ForkedScripts) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    spool = folder / "spool"
    environment = {"NANSCOPE_CONNECT": "", "OMP_NUM_THREADS": "1"}
    command = ["--quiet", "--spool", str(spool), str(SCRIPT)]
    code, _, err = forked.launch(command, folder, environment).finish()
    assert code == 0, err
    return spool


@pytest.fixture
def pictures(spool: Path, tmp_path: Path) -> Iterator[Pictures]:
    store = DuckStore(tmp_path / "data")
    ingest_spool(store, spool)
    yield Pictures(store)
    store.close()


def look(pictures: Pictures, statistic: str) -> tuple[Picture, np.ndarray]:
    """The picture, and its (1 + ranks, steps) values."""
    picture = pictures.look(Subscription(id=1, ranks=statistic), with_data=True)
    (track,) = [each for each in picture.tracks if each.index_key == "ranks/steps"]
    return picture, track.values.reshape(len(track.index), track.rows).T


@pytest.mark.slow
def test_ranks_of_a_training_are_what_they_recorded(pictures: Pictures, spool: Path) -> None:
    (run,) = spool.iterdir()
    journals = [read_journal(run, rank) for rank in range(RANKS)]
    for statistic in ("loss", "grad_norm"):
        picture, values = look(pictures, statistic)
        for rank, journal in enumerate(journals):
            recorded = {
                frame.step: frame.scalars[statistic] for frame in journal.frames if statistic in frame.scalars
            }
            shown = values[1 + rank][[step for step in range(BAD) if step in recorded]]
            expected = [recorded[step] for step in range(BAD) if step in recorded]
            np.testing.assert_allclose(shown, expected, rtol=1e-6)
        assert picture.fields["ranks"]["hosts"] == (socket.gethostname(),) * RANKS


@pytest.mark.slow
def test_ranks_of_a_training_say_that_the_gradient_is_the_averaged_one(pictures: Pictures) -> None:
    picture, norms = look(pictures, "grad_norm")
    assert "has averaged over the ranks" in picture.fields["ranks"]["caption"]
    np.testing.assert_allclose(norms[1:, :BAD], np.broadcast_to(norms[0, :BAD], (RANKS, BAD)), rtol=1e-5)
    _, losses = look(pictures, "loss")
    assert (np.ptp(losses[1:, :BAD], axis=0) > 1e-3).all(), "while each rank has a loss of its own"


@pytest.mark.slow
def test_ranks_of_a_training_name_the_first_bad_and_the_slow_rank(pictures: Pictures) -> None:
    picture, values = look(pictures, "own_work")
    bad, slow = picture.fields["ranks"]["remarks"][:2]
    assert bad["ranks"] == (1,) and bad["step"] == BAD
    assert bad["text"].startswith(f"Rank 1 went NaN first at step {BAD}, ")
    assert slow["ranks"] == (2,) and slow["kind"] == "slow", picture.fields["ranks"]["remarks"]
    own = np.where(np.isfinite(values), values, np.nan)
    assert np.nanmedian(own[3]) > 0.06 > np.nanmedian(own[1:3])
    step_times = picture.fields["ranks"]["times"]
    assert step_times["what"] == "own work" and step_times["p50"][2] > 0.06
