"""Several ranks as real processes (gloo): what each of them records, and that none waits for another.

Every loop runs with no step followed in C, and with all followed that can be.
"""

import math
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forked_scripts import ForkedScripts
from journal_differences import differences
from journals import Journal, read_journal
from never_followed import NOT_FOLLOWED_ON_RANKS
from reference import frame_differences, gradient_differences, state_differences
from run_numbers import scalars_of, steps_of
from small_training import small_model, train

import probe
from dashboard.ingest.spool import SpoolIngest
from dashboard.store.duck import DuckStore
from probe.delivery.journal.run_folders import list_runs

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ON_TWO = (
    "averaged",
    "bucket views",
    "inner",
    "static graph",
    "accumulated",
    "never averaged",
    "unused",
    "uneven",
    "sharded",
    "sharded later",
    "sharded and accumulated",
    "split",
    "split, normalised",
    "replicated",
    "own gradients",
    "own gradients now and then",
    "own gradients, accumulated",
    "own gradients in bucket views",
    "own gradients, averaged each time",
    "own gradients, scaled",
)

SHARDED = ("sharded", "sharded later", "sharded and accumulated", "split")


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Places of a training process of its own, and where the modules of the tests are."""
    tests = (HERE, HERE.parent, HERE.parent / "probe", HERE.parent / "integration")
    return {
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, *tests))),
        "NANSCOPE_CONNECT": "",
        "NANSCOPE_SPOOL": str(folder / "spool"),
        "XDG_STATE_HOME": str(folder / "state"),
        "XDG_CACHE_HOME": str(folder / "cache"),
        **more,
    }


def free_port() -> int:
    with socket.socket() as probe_socket:
        probe_socket.bind(("127.0.0.1", 0))
        return int(probe_socket.getsockname()[1])


def launch(forked: ForkedScripts, folder: Path, world_size: int, names: tuple[str, ...]) -> None:
    """Run the loops on so many ranks; a failure shows what the ranks wrote."""
    variables = environment(folder, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    run_quietly(forked, [str(HERE / "ranks.py"), str(folder), str(world_size), *names], variables)


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory, forked: ForkedScripts) -> Path:
    folder = tmp_path_factory.mktemp("two")
    launch(forked, folder, 2, (*ON_TWO, "bad on one rank"))
    return folder


@pytest.fixture(scope="module")
def four_ranks(tmp_path_factory: pytest.TempPathFactory, forked: ForkedScripts) -> Path:
    folder = tmp_path_factory.mktemp("four")
    launch(forked, folder, 4, ("averaged", "accumulated", "sharded in replicas"))
    return folder


def seen_by(folder: Path, name: str, rank: int) -> dict[str, Any]:
    seen: dict[str, Any] = torch.load(folder / f"{name}-{rank}.pt", weights_only=False)
    return seen


def journal_of(folder: Path, name: str, rank: int, way: str = "in_c") -> Journal:
    return read_journal(folder / name / way / "run", rank)


def differences_of(folder: Path, name: str, rank: int) -> list[str]:
    """Where one rank's frames are not what it saw, its weights not those of the run without the probe."""
    seen, found = seen_by(folder, name, rank), []
    plain, *watched = seen["ways"].values()
    for way in watched:
        found += state_differences(plain["weights"], way["weights"])
        if not torch.equal(plain["random"], way["random"]):
            found.append("the probe has drawn random numbers")
    return found + frame_differences(journal_of(folder, name, rank), seen["steps"])


@pytest.mark.parametrize("name", ON_TWO)
def test_each_of_two_ranks_records_what_it_has(two_ranks: Path, name: str) -> None:
    assert [differences_of(two_ranks, name, rank) for rank in range(2)] == [[], []]
    assert all(seen_by(two_ranks, name, rank)["steps"] for rank in range(2))


@pytest.mark.parametrize("name", [*ON_TWO, "bad on one rank"])
def test_ranks_record_the_same_with_steps_followed_in_c(two_ranks: Path, name: str) -> None:
    for rank in range(2):
        slow, in_c = (journal_of(two_ranks, name, rank, way) for way in ("slow", "in_c"))
        assert differences(slow, in_c) == []
        ways = seen_by(two_ranks, name, rank)["ways"]
        assert ways["slow"]["told"] == ways["in_c"]["told"]
        assert bool(ways["in_c"]["followed"]) == (name not in NOT_FOLLOWED_ON_RANKS), ways["in_c"]["followed"]


@pytest.mark.parametrize("name", ["averaged", "accumulated"])
def test_each_of_four_ranks_records_what_it_has(four_ranks: Path, name: str) -> None:
    assert [differences_of(four_ranks, name, rank) for rank in range(4)] == [[], [], [], []]
    norms = [scalars_of(journal_of(four_ranks, name, rank), "grad_norm") for rank in range(4)]
    assert norms[0] == norms[1] == norms[2] == norms[3]


@pytest.mark.parametrize("name", ["averaged", "bucket views", "inner", "static graph"])
def test_averaged_gradients_are_the_mean_of_the_ranks_own(two_ranks: Path, name: str) -> None:
    own = [seen_by(two_ranks, name, rank)["twins"] for rank in range(2)]
    means = [
        {parameter: (first[parameter] + second[parameter]) / 2 for parameter in first}
        for first, second in zip(*own, strict=True)
    ]
    for rank in range(2):
        journal = journal_of(two_ranks, name, rank)
        for frame, mean in zip(journal.frames, means, strict=True):
            assert gradient_differences(frame, journal.layouts[0], mean, rtol=1e-4) == []


@pytest.mark.parametrize("name", ["averaged", "bucket views", "inner", "accumulated", "unused"])
def test_ranks_agree_on_the_norm_of_averaged_gradients(two_ranks: Path, name: str) -> None:
    first, second = (journal_of(two_ranks, name, rank) for rank in range(2))
    assert scalars_of(first, "grad_norm") == scalars_of(second, "grad_norm")
    assert scalars_of(first, "loss") != scalars_of(second, "loss")


@pytest.mark.parametrize("name", ["own gradients", "own gradients, accumulated"])
def test_own_gradient_norm_is_that_before_the_average(two_ranks: Path, name: str) -> None:
    found = [own_norms(two_ranks, name, rank) for rank in range(2)]
    for rank, norms in enumerate(found):
        twins = seen_by(two_ranks, name, rank)["twins"]
        expected = [math.hypot(*(float(own.norm()) for own in twin.values())) for twin in twins]
        np.testing.assert_allclose(norms, expected, rtol=1e-5)
        assert not np.allclose(norms, scalars_of(journal_of(two_ranks, name, rank), "grad_norm"), rtol=1e-3)
    assert found[0] != found[1]


def test_own_gradient_norm_is_there_at_the_steps_that_were_asked_for(two_ranks: Path) -> None:
    norms = own_norms(two_ranks, "own gradients now and then", 0)
    assert [step for step, norm in enumerate(norms) if norm is not None] == [0, 5]
    assert norms[0] == own_norms(two_ranks, "own gradients", 0)[0]


@pytest.mark.parametrize(
    "name",
    [
        *("averaged", "own gradients in bucket views", "own gradients, averaged each time"),
        "own gradients, scaled",
    ],
)
def test_own_gradient_norm_is_missing_where_nobody_asks_or_it_is_gone(two_ranks: Path, name: str) -> None:
    for rank in range(2):
        assert set(own_norms(two_ranks, name, rank)) == {None}


def own_norms(folder: Path, name: str, rank: int) -> list[float | None]:
    return [frame.scalars.get("own_grad_norm") for frame in journal_of(folder, name, rank).frames]


def test_rank_without_inputs_left_adds_no_steps(two_ranks: Path) -> None:
    assert [len(journal_of(two_ranks, "uneven", rank).frames) for rank in range(2)] == [5, 3]


@pytest.mark.parametrize("name", SHARDED)
def test_sharded_norms_make_the_norm_of_the_whole(two_ranks: Path, tmp_path: Path, name: str) -> None:
    """In the dashboard's store, on both ranks, as torch's own collective has it."""
    check_whole_norms(two_ranks, name, tmp_path, ranks=2)


def test_norm_of_replicas_that_are_sharded_counts_each_element_once(four_ranks: Path, tmp_path: Path) -> None:
    check_whole_norms(four_ranks, "sharded in replicas", tmp_path, ranks=4)


def check_whole_norms(folder: Path, name: str, tmp_path: Path, *, ranks: int) -> None:
    expected = seen_by(folder, name, 0)["wholes"]
    assert len(expected) == 3
    for way in ("slow", "in_c"):
        store = DuckStore(tmp_path / way)
        SpoolIngest(store, folder / name / way).run_one(folder / name / way / "run")
        for rank in range(ranks):
            found = store.scalars("run", rank, ["grad_norm_whole", "grad_norm"])
            whole = found[found["name"] == "grad_norm_whole"]
            assert whole["step"].tolist() == [0, 1, 2]
            np.testing.assert_allclose(whole["mean"], expected, rtol=1e-5)
            assert not np.allclose(found[found["name"] == "grad_norm"]["mean"], expected, rtol=1e-3)
        store.close()


def test_norm_of_partial_sums_is_not_put_together(two_ranks: Path) -> None:
    """A gradient that is a term of a sum over the ranks has a norm that says nothing of the sum's."""
    for rank in range(2):
        journal = journal_of(two_ranks, "split, normalised", rank)
        assert journal.layouts[0].sharded_over == [0, 1]
        assert scalars_of(journal, "grad_norm") and not any(
            "grad_square_part" in frame.scalars for frame in journal.frames
        )


@pytest.mark.parametrize("name", ["sharded", "sharded later", "split"])
def test_user_is_told_once_that_norms_are_of_shards(two_ranks: Path, name: str) -> None:
    for rank in range(2):
        (told,) = seen_by(two_ranks, name, rank)["ways"]["in_c"]["told"]
        assert "each rank records the gradients of its own part (stage 'shard')" in told


def test_replicated_parameters_are_not_called_shards(two_ranks: Path) -> None:
    assert seen_by(two_ranks, "replicated", 0)["ways"]["in_c"]["told"] == []


def test_bad_step_of_a_sharded_model_is_not_replayed_and_says_why(two_ranks: Path) -> None:
    journal = journal_of(two_ranks, "bad on one rank", 0)
    (event,) = [event for event in journal.latest_events if event.severity == "critical"]
    assert (event.kind, event.step, event.origin) == ("nonfinite_loss", 1, None)
    assert "sharded over several ranks" in event.message
    assert "replayed" not in {event.kind for event in journal.latest_events}


SCRIPT = """
import os, pathlib, time, torch, probe

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
again = os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
with probe.watch(model, optimizer) as run:
    for step in range(3):
        optimizer.zero_grad()
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
        if step == 1 and not again and os.environ["RANK"] == "1":
            run.flush()
            folder, deadline = pathlib.Path(os.environ["NANSCOPE_SPOOL"]) / run.run, time.time() + 60
            while not list(folder.glob("0-*/events-*")) and time.time() < deadline:
                time.sleep(0.05)
            os._exit(3)
"""


@pytest.mark.slow
def test_torchrun_ranks_and_their_restart_are_one_run_with_new_incarnations(
    tmp_path: Path, forked: ForkedScripts
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *("--max-restarts", "1", "--monitor-interval", "0.1", str(script)),
    ]
    run_quietly(forked, command, environment(tmp_path))
    (run,) = list_runs(tmp_path / "spool")
    assert len(list(run.glob("0-*"))) == len(list(run.glob("1-*"))) == 2
    for rank in range(2):
        assert steps_of(read_journal(run, rank)) == [0, 1, 2]


LATE = """
import torch, probe

model = torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with probe.watch(model, optimizer):
    model(torch.ones(8, 6)).sum().backward()
    optimizer.step()
"""


def test_rank_that_joins_later_is_part_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forked: ForkedScripts
) -> None:
    """Ranks that no common launcher started agree by `NANSCOPE_RUN`."""
    for name, value in (("NANSCOPE_RUN", "elastic"), ("RANK", "0"), ("WORLD_SIZE", "1")):
        monkeypatch.setenv(name, value)
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer):
        train(model, optimizer, 1)
        variables = environment(tmp_path, NANSCOPE_RUN="elastic", RANK="1", WORLD_SIZE="2")
        run_quietly(forked, ["-c", LATE], variables)
        train(model, optimizer, 1)
    (run,) = list_runs(tmp_path / "spool")
    journals = [read_journal(run, rank) for rank in range(2)]
    starts = [(journal.start.run, journal.start.rank, journal.start.world_size) for journal in journals]
    assert starts == [("elastic", 0, 1), ("elastic", 1, 2)]
    assert [steps_of(journal) for journal in journals] == [[0, 1], [0]]


WORKERS = """
import sys, torch, probe
from torch.utils.data import DataLoader, Dataset

class Squares(Dataset):
    def __init__(self, count):
        self.count = count
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        # A worker that trains something of its own leaves no trace in the run.
        twin = torch.nn.Linear(1, 1)
        twin(torch.ones(1, 1)).sum().backward()
        return torch.full((3,), float(index % 8))

if __name__ == "__main__":
    for method in sys.argv[1:]:
        # Other workers in every epoch: those that are not forked import torch each time.
        epochs = 2 if method == "fork" else 1
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with probe.watch(model, optimizer, run=method):
            data = Squares(16 // epochs)
            loader = DataLoader(data, batch_size=2, num_workers=1, multiprocessing_context=method)
            for _ in range(epochs):
                for batch in loader:
                    optimizer.zero_grad()
                    model(batch).sum().backward()
                    optimizer.step()
        print(method, [p.sum().item() for p in model.parameters()], flush=True)
"""


def test_workers_of_a_loader_leave_the_run_alone(tmp_path: Path, forked: ForkedScripts) -> None:
    """Started by fork, forkserver and spawn: one incarnation each, its frames complete, the same weights."""
    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    methods = ["fork", "forkserver", "spawn"]
    printed = run_quietly(forked, [str(script), *methods], environment(tmp_path))
    weights = {line.partition(" ")[2] for line in printed.splitlines() if line.split()[0] in methods}
    assert len(weights) == 1
    for method in methods:
        (incarnation,) = (tmp_path / "spool" / method).glob("0-*")
        assert incarnation.is_dir()
        journal = read_journal(tmp_path / "spool" / method)
        assert steps_of(journal) == list(range(8))
        assert scalars_of(journal, "samples") == [2.0] * 8


def run_quietly(forked: ForkedScripts, command: list[str], variables: Mapping[str, str]) -> str:
    """Run a program to its end; return what it has printed."""
    code, out, err = forked.start(command, ROOT, variables).finish(150)
    assert code == 0, out + err
    return out
