"""Synthetic runs of many ranks, as wire records: steady ones, a slow one, one in which NaN begins."""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec
import numpy as np
import page_runs

from dashboard.store.protocol import Store
from probe.wire import Event, Frame, StreamKey, encode, event_id

RUN = "demo-run"


def scalars(rank: int, step: int, *, is_slow: bool = False) -> dict[str, float]:
    """Of one step; ranks differ by some percent."""
    draw = np.random.default_rng((rank, step))
    noise = draw.standard_normal(3)
    own = (0.13 if is_slow else 0.06) + 0.002 * noise[2]
    return {
        "loss": float(2.5 + 0.02 * noise[0]),
        "grad_norm": float(0.34 * np.exp(0.05 * noise[1])),
        "step_time_s": float(0.14 + 0.001 * noise[2]),
        "before_backward_s": float(own * 0.6),
        "own_backward_s": float(own * 0.4),
    }


def fill_ranks(
    store: Store,
    *,
    ranks: Collection[int],
    steps: range,
    world_size: int | None = None,
    host_of: Callable[[int], str] = lambda rank: f"node{rank // 8}",
    nan_from: dict[int, int] | None = None,
    slow: Collection[int] = (),
    change: Callable[[int, int, dict[str, float]], None] = lambda rank, step, values: None,
    stage: str = "reduced",
    start_time: float = 1_700_000_000.0,
    seconds_of: Callable[[int], float] = lambda step: step * 0.14,
    run: str = RUN,
) -> None:
    """Append steps of ranks.

    Args:
        nan_from: Rank -> step from which on loss and gradient norm are NaN, with an event of it.
        slow: Ranks whose own work takes twice as long.
        change: Changes the scalars of (rank, step).
        seconds_of: When a step is, in seconds since the start.
    """
    for rank in ranks:
        events = page_runs.key("events", run=run, rank=rank)
        if store.position(events).next_seq == 0:
            start = page_runs.run_start(
                run=run, rank=rank, host=host_of(rank), world_size=world_size or len(ranks), time=start_time
            )
            store.append(events, 0, [encode(start), encode(page_runs.layout(1))])
    store.commit()
    for rank in ranks:
        events = page_runs.key("events", run=run, rank=rank)
        metrics = page_runs.key("metrics", run=run, rank=rank)
        frames = []
        for step in steps:
            values = scalars(rank, step, is_slow=rank in slow)
            if nan_from and step >= nan_from.get(rank, 2**62):
                values["loss"] = values["grad_norm"] = float("nan")
            change(rank, step, values)
            time = start_time + seconds_of(step)
            frames.append(Frame(step=step, time=time, stage=stage, scalars=values))
        store.append(metrics, store.position(metrics).next_seq, [encode(frame) for frame in frames])
        first = (nan_from or {}).get(rank)
        if first in steps:
            event = nan_event(rank, first, run=run)
            store.append(events, store.position(events).next_seq, [encode(event)])
    store.commit()


def nan_event(rank: int, step: int, *, kind: str = "nonfinite_loss", run: str = RUN, **more: object) -> Event:
    """What a rank tells of its first NaN."""
    number = event_id(
        run=run,
        rank=rank,
        incarnation=page_runs.INCARNATION,
        model="",
        kind=kind,
        subject=f"loss of rank {rank}",
        step=step,
    )
    template = page_runs.event(step, run=run, kind=kind, message=f"NaN in the loss at step {step}")
    return msgspec.structs.replace(template, id=number, rank=rank, **more)


def restart_rank(store: Store, rank: int, *, run: str = RUN) -> None:
    """Append the start of the rank's next incarnation, and its first steps."""
    number = page_runs.INCARNATION + 10**9
    first = page_runs.run_start(run=run, rank=rank, time=number / 1e9)
    start = msgspec.structs.replace(first, incarnation=number)
    frames = [Frame(step=step, time=0.0, scalars=scalars(rank, step)) for step in range(3)]
    records = {"events": [start, page_runs.layout(1)], "metrics": frames}
    for stream, found in records.items():
        key = StreamKey(run=run, writer=f"{rank}-{number}", stream=stream)
        store.append(key, 0, [encode(record) for record in found])
        store.commit()
