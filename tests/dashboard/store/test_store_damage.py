"""Random damage of a real data file: what every page reads works, or the file is replaced and read in again.

Never a wrong number, and never an error for ever. Seeds are in the tests' names and in what a failure says.
"""

from __future__ import annotations

import functools
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from sample_runs import frame, write_run

from dashboard.errors import DashboardError
from dashboard.ingest.spool import SpoolIngest
from dashboard.store.duck import DuckStore
from dashboard.store.protocol import StepNote
from dashboard.store.schema import FILE_NAME
from probe.delivery.journal.journal import JournalWriter
from probe.wire import Document, encode

RUNS = ("alpha", "beta", "gamma")
LAYERS = tuple(f"block.{number}" for number in range(40))
STEPS = 1200
HEADERS = 12288
"""Bytes of the file that are read when it is opened."""


class Sample(NamedTuple):
    spool: Path
    data: Path
    answers: dict[str, Any]


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    """Three runs, their journals and a data file of some MB."""
    spool, data = tmp_path_factory.mktemp("spool"), tmp_path_factory.mktemp("data")
    for place, run in enumerate(RUNS):
        folder = write_run(spool, run, layers=LAYERS, name=f"{run}.py", time=1_700_000_000.0 + place)
        journal = JournalWriter(folder / "0-1", run=run, writer="0-1")
        for first in range(0, STEPS, 200):
            frames = [frame(step, layers=LAYERS) for step in range(first, first + 200)]
            journal.append_many("metrics", list(map(encode, frames)))
            body = encode(frames[0])[:3000]
            journal.append(
                "events", encode(Document(kind="odd", key=str(first), step=1, time=1.0, body=body))
            )
        journal.close()
    store = DuckStore(data)
    SpoolIngest(store, spool).run()
    store.write_note("alpha", StepNote(id="n", step=3, text="look here", time=1.0))
    store.mark_run("beta", starred=True)
    answers = {name: question() for name, question in questions(store).items()}
    store.close()
    return Sample(spool, data, answers)


def questions(store: DuckStore) -> dict[str, Callable[[], Any]]:
    """What pages ask, each answered with plain values."""
    found: dict[str, Callable[[], Any]] = {
        "runs": lambda: [
            (run.run, run.name, run.event_counts, run.ranks[0].last_step) for run in store.runs()
        ],
        "marks": store.marks,
    }
    for run in RUNS:
        asked = functools.partial(_asked, store, run)
        for name in ("scalars", "all scalars", "heatmap", "unfolded", "tracks", "ranks"):
            found[f"{name} of {run}"] = functools.partial(asked, name)
        found[f"events of {run}"] = functools.partial(store.events, run)
        found[f"documents of {run}"] = functools.partial(store.documents, run, "odd")
        found[f"notes of {run}"] = functools.partial(store.notes, run)
        found[f"layout of {run}"] = functools.partial(store.layout, run)
    return found


def _asked(store: DuckStore, run: str, what: str) -> Any:
    if what == "scalars":
        return store.scalars(run, 0, ["loss", "grad_norm"]).to_csv()
    if what == "all scalars":
        return store.scalars(run, 0, store.scalar_names(run, 0), max_points=10**6).to_csv()
    if what == "tracks":
        tracks = store.tensor_tracks(run, 0, LAYERS[3])
        return [(one.name, one.steps.tobytes(), one.values.tobytes(), one.flags.tobytes()) for one in tracks]
    if what == "ranks":
        ranks = store.rank_scalars(run, ["loss"])
        return np.asarray(ranks.steps).tobytes()
    unfolded = (LAYERS[5],) if what == "unfolded" else ()
    picture = store.heatmap(run, 0, unfolded=unfolded, max_columns=10**6 if unfolded else 300)
    return None if picture is None else (picture.values.tobytes(), picture.flags.tobytes())


def damage(path: Path, chosen: random.Random) -> str:
    """Overwrite one to three places of a file; return what was done."""
    content = bytearray(path.read_bytes())
    done = []
    for _ in range(chosen.choice([1, 1, 1, 3])):
        how, length = chosen.choice(["flipped", "zeros", "random"]), chosen.choice([1, 64, 4096, 70_000])
        first = chosen.randrange(0 if chosen.random() < 0.1 else HEADERS, len(content) - length)
        old = content[first : first + length]
        new = {
            "flipped": bytes(byte ^ 0xFF for byte in old),
            "zeros": bytes(length),
            "random": chosen.randbytes(length),
        }
        content[first : first + length] = new[how]
        done.append(f"{length} bytes {how} at {first}")
    if chosen.random() < 0.05:
        del content[len(content) // 2 :]
        done.append("cut in half")
    path.write_bytes(content)
    return ", ".join(done)


def survive(sample: Sample, folder: Path, seed: int) -> str:
    """Damage a copy of the data file, ask everything, and return whether it was noticed.

    Raises:
        AssertionError: a wrong answer, or one that does not come after what was damaged has been replaced.
    """
    chosen = random.Random(seed)
    shutil.copytree(sample.data, folder)
    done = damage(folder / FILE_NAME, chosen)
    where = f"seed {seed}: {done}"
    store = DuckStore(folder)
    try:
        reader = SpoolIngest(store, sample.spool)
        reader.run()
        noticed = "at opening" if store.notice else ""
        order = list(questions(store).items())
        chosen.shuffle(order)
        for name, question in order:
            for attempt in range(3):
                try:
                    answer = question()
                except DashboardError as error:
                    assert attempt < 2, f"{where}: {name} does not come back: {error}"
                    noticed = noticed or "in a read"
                    reader.run()
                    continue
                # Until the journals are read again a run is not there, which is said.
                if answer != sample.answers[name]:
                    assert store.notice, f"{where}: {name} is wrong, and nothing is said"
                    reader.run()
                    assert question() in _right(name, sample), f"{where}: {name} is wrong"
                break
        if noticed:
            assert "damaged-1" in (store.notice or ""), where
            store.note_journals(RUNS)
            assert "Of 3 runs, 3 came back" in (store.notice or "") or "no runs" in (store.notice or "")
        return noticed or "no"
    finally:
        store.close()


def _right(name: str, sample: Sample) -> list[Any]:
    """The answer of before; what people have said may be lost, which is said."""
    lost = {"marks": {}, "notes of alpha": []}
    return [sample.answers[name], *([lost[name]] if name in lost else [])]


@pytest.mark.parametrize("seed", range(8))
def test_random_damage_is_replaced_and_read_in_again(sample: Sample, tmp_path: Path, seed: int) -> None:
    assert survive(sample, tmp_path / "data", seed) in ("no", "at opening", "in a read")


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_two_hundred_random_damages_are_replaced_and_read_in_again(sample: Sample, tmp_path: Path) -> None:
    noticed: dict[str, int] = {}
    for seed in range(1000, 1200):
        outcome = survive(sample, tmp_path / str(seed), seed)
        noticed[outcome] = noticed.get(outcome, 0) + 1
        shutil.rmtree(tmp_path / str(seed))
    print(f"\n200 random damages of a data file, seeds 1000 to 1199, by when they were noticed: {noticed}")
    assert noticed["in a read"] > 50
