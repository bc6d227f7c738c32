"""The trainers' callbacks on two gloo ranks, against the same training in float64 in one process."""

from pathlib import Path

import numpy as np
import pytest
import ranks_trainer
import torch
from forked_scripts import ForkedScripts
from journals import Journal, read_journal
from run_numbers import norms_of, scalars_of
from torch.nn import functional as F
from trainer_models import make_data, make_net

SCRIPT = Path(ranks_trainer.__file__)
COMMANDS = {
    "lightning": [str(SCRIPT), "lightning"],
    "huggingface": [
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *(str(SCRIPT), "huggingface"),
    ],
}


def train_in_float64() -> tuple[list[float], np.ndarray]:
    """Losses and (steps, parameters) gradient norms of both ranks together, without the last batch."""
    model, (inputs, targets) = make_net().double(), make_data().tensors
    losses, norms = [], []
    for rows in torch.arange(len(inputs)).split(2 * ranks_trainer.BATCH_SIZE)[:-1]:
        loss = F.cross_entropy(model(inputs[rows].double()), targets[rows])
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        losses.append(loss.item())
        norms.append([gradient.norm().item() for gradient in gradients])
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter -= ranks_trainer.RATE * gradient
    return losses, np.array(norms)


@pytest.fixture(scope="module", params=COMMANDS)
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, forked: ForkedScripts
) -> list[Journal]:
    """What each rank recorded."""
    folder = tmp_path_factory.mktemp("ranks")
    environment = {"NANSCOPE_SPOOL": str(folder / "spool"), "NANSCOPE_CONNECT": ""}
    code, _, err = forked.start(COMMANDS[request.param], folder, environment).finish(150)
    assert code == 0, err
    (run,) = (folder / "spool").iterdir()
    return [read_journal(run, rank) for rank in (0, 1)]


@pytest.mark.slow
def test_integration_on_two_ranks_records_one_run_of_reduced_gradients(trained: list[Journal]) -> None:
    losses, norms = train_in_float64()
    for rank, run in enumerate(trained):
        assert (run.start.rank, run.start.world_size) == (rank, 2)
        assert run.layouts[0].parameters[0].name == "net.0.weight"
        assert {frame.stage for frame in run.frames} == {"reduced"}
        np.testing.assert_allclose(norms_of(run)[:-1], norms, rtol=1e-4)
        assert run.end is not None
    each = np.array([scalars_of(run, "loss")[:-1] for run in trained])
    np.testing.assert_allclose(each.mean(axis=0), losses, rtol=1e-4)


def test_integration_on_two_ranks_counts_the_samples_of_each(
    trained: list[Journal],
) -> None:
    for run in trained:
        assert scalars_of(run, "samples") == [ranks_trainer.BATCH_SIZE] * ranks_trainer.STEPS


def test_integration_on_two_ranks_names_the_origin_of_a_nan(
    trained: list[Journal],
) -> None:
    for run in trained:
        (event,) = [event for event in run.latest_events if event.kind == "nonfinite_loss"]
        assert event.origin is not None
        assert (event.step, event.origin.op, event.origin.module) == (3, "sqrt", "net.2")
