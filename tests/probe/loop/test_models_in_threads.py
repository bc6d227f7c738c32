"""Models that are trained at the same time, each in a thread of its own, with a session each."""

import threading
from pathlib import Path

import pytest
import torch
from journals import read_journal
from small_training import seeded_model, train

import probe

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_switched_off")
STEPS = 60


def test_each_session_follows_its_own_thread_alone(tmp_path: Path) -> None:
    """Gradients that another thread's backward writes must not be read: that ends the process."""
    models, runs, threads = [], [], []
    for number in range(3):
        model = seeded_model()
        models.append(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        runs.append(probe.watch(model, optimizer, spool=tmp_path / str(number), connect=""))
        threads.append(threading.Thread(target=train, args=(model, optimizer, STEPS)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    for number, run in enumerate(runs):
        run.close()
        (folder,) = (tmp_path / str(number)).iterdir()
        assert [frame.step for frame in read_journal(folder).frames] == list(range(STEPS))
