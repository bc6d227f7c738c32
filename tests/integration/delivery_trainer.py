"""A training process without the training: writes frames and events through a real `Recorder` until killed.

Arguments: spool, run, rank, first step, number of steps (0: until killed), file for confirmed event ids.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from probe.delivery.recorder.recorder import Recorder
from probe.wire import Event, Frame, LayerInfo, Layout, ParameterInfo, RunStart, event_id

STEP_S = float(os.environ.get("DELIVERY_STEP_S", "0.004"))
CAP_BYTES = int(os.environ.get("DELIVERY_CAP_BYTES", str(2 * 1024**3)))


def main() -> None:
    spool, run, rank, first_step, steps, confirmed = sys.argv[1:7]
    start = RunStart(
        run=run, rank=int(rank), incarnation=time.time_ns(), name="delivery", host=socket.gethostname(),
        pid=os.getpid(), time=time.time(),
    )  # fmt: skip
    recorder = Recorder(Path(spool), start, connect=os.environ.get("NANSCOPE_CONNECT"), cap_bytes=CAP_BYTES)
    recorder.event(
        Layout(
            layout=0,
            model="net",
            parameters=[ParameterInfo(name="a.weight", shape=[2], dtype="float32", layer=0)],
            layers=[LayerInfo(name="a", type="Linear")],
        )
    )
    log = os.open(confirmed, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    step = int(first_step)
    end = step + int(steps) if int(steps) else sys.maxsize
    while step < end:
        recorder.frame(Frame(step=step, time=time.time(), scalars={"loss": 1.0 / (1 + step)}))
        if step % 10 == 0:
            write_event(recorder, start, step, log)
        time.sleep(STEP_S)
        step += 1
    recorder.close(outcome="finished", last_step=step - 1)


def write_event(recorder: Recorder, start: RunStart, step: int, log: int) -> None:
    """Write an event, and note its id once `event` has returned."""
    name = event_id(
        run=start.run, rank=start.rank, incarnation=start.incarnation, model="net",
        kind="custom", subject="", step=step,
    )  # fmt: skip
    recorder.event(
        Event(
            id=name,
            run=start.run,
            rank=start.rank,
            incarnation=start.incarnation,
            step=step,
            time=time.time(),
            kind="custom",
            severity="info",
            message=f"step {step}",
        )
    )
    os.write(log, name.encode() + b"\n")


if __name__ == "__main__":
    main()
