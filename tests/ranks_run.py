"""Journals of several ranks as training would write them: the same gradients, parameters by a rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from probe.delivery.journal.journal import JournalWriter
from probe.delivery.journal.run_json import write_run_json
from probe.wire import Event, Frame, LayerInfo, Layout, ParameterInfo, Record, RunEnd, RunStart, encode
from probe.wire.columns import pack_column

RUN = "ranks"
NAMES = ("a.weight", "a.bias", "b.weight")
BEGAN = 1_700_000_000.0
STEP_S = 0.25

Parameters = Callable[[int, int], np.ndarray]
"""(rank, step) -> factors of the parameters' norms."""
Early = Callable[[int, int], float]
"""(rank, step) -> seconds before backward, or of a rank's own in it."""


def equal(rank: int, step: int) -> np.ndarray:
    return np.ones(len(NAMES))


def bad_from(guilty: int, first: int) -> Parameters:
    """The last parameter of one rank is 2 % larger from a step on."""

    def factors(rank: int, step: int) -> np.ndarray:
        return np.array([1, 1, 1.02 if rank == guilty and step >= first else 1.0])

    return factors


def incarnation_of(rank: int, began: float = BEGAN) -> int:
    return int(began * 1e9) + rank


def run_start(rank: int, ranks: int, *, began: float = BEGAN, host: str = "box") -> RunStart:
    return RunStart(
        run=RUN,
        rank=rank,
        incarnation=incarnation_of(rank, began),
        world_size=ranks,
        host=host,
        time=began,
        devices=["cpu x 2"],
    )


def layout() -> Layout:
    return Layout(
        layout=0,
        model="net",
        parameters=[
            ParameterInfo(name=name, shape=[2], dtype="float32", layer="ab".index(name[0])) for name in NAMES
        ],
        layers=[LayerInfo(name=name, type="Linear") for name in "ab"],
    )


def frames(
    rank: int,
    steps: range,
    parameters: Parameters = equal,
    *,
    before_s: Early | None = None,
    own_backward_s: Early | None = None,
    waited: Early | None = None,
    began: float = BEGAN,
    seed: int = 0,
) -> Iterator[Frame]:
    """Gradients are the same on all ranks; parameters are measured at every tenth step."""
    generator = np.random.default_rng(seed)
    for step in range(steps.stop):
        gradients = generator.lognormal(size=len(NAMES))
        if step not in steps:
            continue
        columns = [pack_column("grad_norm", gradients)]
        if step % 10 == 0:
            norms = (1 + 1e-4 * step) * np.arange(1.0, 1 + len(NAMES))
            columns.append(pack_column("parameter_norm", norms * parameters(rank, step)))
        scalars = {"loss": 1.0, "grad_norm": float(np.linalg.norm(gradients)), "step_time_s": STEP_S}
        if before_s is not None:
            scalars["before_backward_s"] = before_s(rank, step)
        if own_backward_s is not None:
            scalars["own_backward_s"] = own_backward_s(rank, step)
        if waited is not None and step % 5 == 0:
            # Read about once a second, with the memory.
            scalars |= {"process_rss_bytes": 1e9, "processor_wait": waited(rank, step)}
        yield Frame(step=step, time=began + STEP_S * step, stage="reduced", scalars=scalars, columns=columns)


def write_rank(
    spool: Path,
    rank: int,
    ranks: int,
    written: Sequence[Frame],
    *,
    events: Sequence[Event] = (),
    host: str = "box",
    began: float = BEGAN,
    ends: bool = True,
) -> Path:
    """Write one incarnation; return its folder."""
    start = run_start(rank, ranks, began=began, host=host)
    name = f"{rank}-{start.incarnation}"
    folder = spool / RUN / name
    journal = JournalWriter(folder, run=RUN, writer=name)
    write_run_json(spool / RUN, start)
    records: list[Record] = [start, layout(), *events]
    if ends:
        records.append(RunEnd(time=began + 1e4, step=written[-1].step, outcome="finished"))
    for record in records:
        journal.append("events", encode(record))
    for frame in written:
        journal.append("metrics", encode(frame))
    journal.close()
    return folder


def write_ranks(
    spool: Path,
    ranks: int,
    steps: int,
    parameters: Parameters = equal,
    *,
    before_s: Early | None = None,
    own_backward_s: Early | None = None,
    waited: Early | None = None,
    hosts: Sequence[str] = ("box",),
    ends: bool = True,
) -> None:
    """Write a run with all its ranks, dealt out to the hosts in blocks."""
    for rank in range(ranks):
        written = list(
            frames(
                rank,
                range(steps),
                parameters,
                before_s=before_s,
                own_backward_s=own_backward_s,
                waited=waited,
            )
        )
        write_rank(spool, rank, ranks, written, host=hosts[rank * len(hosts) // ranks], ends=ends)
