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


def test_training_of_another_model_before_the_first_call_is_no_step(tmp_path: Path) -> None:
    """Also where the other one is trained on a thread of its own: ours is followed from its first call on."""
    models = [seeded_model(), seeded_model()]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    places = [tmp_path / "first", tmp_path / "second"]
    pairs = zip(models, optimizers, places, strict=True)
    runs = [probe.watch(model, optimizer, spool=place, connect="") for model, optimizer, place in pairs]
    for model, optimizer in zip(models, optimizers, strict=True):
        train(model, optimizer, 3)
    for run, place in zip(runs, places, strict=True):
        run.close()
        (folder,) = place.iterdir()
        frames = read_journal(folder).frames
        assert [(frame.step, frame.scalars["samples"]) for frame in frames] == [(0, 8.0), (1, 8.0), (2, 8.0)]
