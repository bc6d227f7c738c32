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


@pytest.mark.parametrize("clears", [True, False])
def test_backward_of_another_model_before_the_first_call_begins_no_step(tmp_path: Path, clears: bool) -> None:
    """Until the first call nobody knows on which thread a model is trained: it may be another thread's."""
    other, model = seeded_model(), seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = probe.watch(model, optimizer, spool=tmp_path / "spool", connect="")
    if clears:
        optimizer.zero_grad()
    thread = threading.Thread(target=lambda: other(torch.ones(8, 6)).sum().backward())
    thread.start()
    thread.join(30)
    train(model, optimizer, 3)
    run.close()
    (folder,) = (tmp_path / "spool").iterdir()
    frames = read_journal(folder).frames
    assert [(frame.step, frame.scalars["samples"]) for frame in frames] == [(0, 8.0), (1, 8.0), (2, 8.0)]
