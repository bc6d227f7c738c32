"""Synthetic runs as wire records: what a probe would send, without a training."""

from __future__ import annotations

import msgspec
import numpy as np

from dashboard.store.protocol import Store
from probe.wire import (
    Document,
    Event,
    Evidence,
    Frame,
    Histogram,
    LayerInfo,
    Layout,
    ModuleInfo,
    Origin,
    ParameterInfo,
    RunEnd,
    RunStart,
    StackFrame,
    Stacks,
    StreamKey,
    encode,
    event_id,
)
from probe.wire.columns import pack_column
from probe.wire.documents import make_document
from probe.wire.magnitude_bins import BIN_EDGES, BINS, NAN_BIN
from probe.wire.memory_snapshots import MEMORY_SNAPSHOT, MemorySnapshot
from probe.wire.module_frames import pack_histogram, pack_module_columns
from probe.wire.profiles import KIND as PROFILE
from probe.wire.profiles import PlaceRow, ProfileBody
from probe.wire.tracked_tensors import KIND as TRACKED
from probe.wire.tracked_tensors import TensorRow, TrackedBody

INCARNATION = 1_700_000_000_000_000_000


def key(stream: str, *, run: str = "demo-run", rank: int = 0) -> StreamKey:
    return StreamKey(run=run, writer=f"{rank}-{INCARNATION}", stream=stream)


def run_start(
    *,
    run: str = "demo-run",
    rank: int = 0,
    time: float = 1_700_000_000.0,
    name: str = "train.py",
    group: str = "",
    model: str = "",
    host: str = "",
    world_size: int = 1,
) -> RunStart:
    facts = {"name": name, "time": time, "group": group, "model": model, "host": host}
    return RunStart(run=run, rank=rank, incarnation=INCARNATION, world_size=world_size, **facts)


def layout(blocks: int = 4) -> Layout:
    names = ["embed"]
    for block in range(blocks):
        names += [
            f"blocks.{block}.{part}" for part in ("norm1", "attn.qkv", "attn.out", "norm2", "mlp.0", "mlp.2")
        ]
    names += ["norm", "head"]
    layers = [LayerInfo(name=name, type="Linear") for name in names]
    parameters = [
        ParameterInfo(name=f"{name}.{part}", shape=[8, 8], dtype="float32", layer=index)
        for index, name in enumerate(names)
        for part in ("weight", "bias")
    ]
    blocks_of = [ModuleInfo(name=f"blocks.{block}", type="Block") for block in range(blocks)]
    modules = [ModuleInfo(name=name, type="Linear") for name in ("", *names)] + blocks_of
    return Layout(layout=0, model="Transformer", parameters=parameters, layers=layers, modules=modules)


def frame(step: int, description: Layout, *, time: float, bad: str = "", seed: int = 0) -> Frame:
    """One step; `bad` is "nan" or "inf" for non-finite loss and gradients from the third layer on."""
    count = len(description.parameters)
    draw = np.random.default_rng((seed, step))
    depth = np.linspace(0.0, -2.5, count)
    norms = 10 ** (depth + 0.15 * draw.standard_normal(count) - 0.3 * np.log10(1 + step / 50))
    loss = 4.2 * np.exp(-step / 400) + 1.2 + 0.05 * draw.standard_normal()
    if bad:
        norms[: count // 2] = np.nan if bad == "nan" else np.inf
        loss = float(bad)
    scalars = {
        "loss": float(loss),
        "grad_norm": float(np.sqrt(np.sum(norms**2))),
        "step_time_s": 0.1,
        "probe_fraction": 0.011,
        "process_rss_bytes": 1.1e9 + 1e5 * step,
        "system_used_bytes": 5.6e9,
        "system_total_bytes": 16e9,
    }
    return Frame(step=step, time=time, scalars=scalars, columns=[pack_column("grad_norm", norms)])


def measured_frame(step: int, description: Layout, *, time: float, bad: str = "") -> Frame:
    """One step of a run that measures everything, much of it at some steps only."""
    plain = frame(step, description, time=time, bad=bad)
    scalars = {
        "lr": 1e-3 * 0.99**step,
        "samples": 32.0,
        "data_wait_s": 0.02,
        "forward_s": 0.03,
        "backward_s": 0.04,
        "optimizer_s": 0.005,
        "grad_norm_clipped": min(1.0, plain.scalars["grad_norm"]),
        "clip_fired": float(step % 10 < 3),
        "amp_scale": 65536.0,
        "amp_skipped_updates": float(step >= 7),
        "step_time_added": 0.003,
        "step_time_added_half_width": 0.009,
        "process_cpu_fraction": 0.4,
        "system_cpu_fraction": 0.5,
        "gpu_fraction": 0.9,
        "cuda_allocated_bytes": 2e9,
        "cuda_reserved_bytes": 3e9,
        "memory_parameters_bytes": 4e8,
        "memory_gradients_bytes": 4e8,
        "memory_optimizer_bytes": 8e8,
        "memory_activations_bytes": 3e8,
        "memory_other_bytes": 4e8,
        "log/accuracy": step / 1000,
        "log/<b>bold</b>": 1.0,
    }
    parameters, modules = len(description.parameters), len(description.modules)
    sampled = {"update_ratio": np.full(parameters, 1e-3)} if step % 10 == 0 else {}
    ones = np.arange(1.0, modules + 1)
    observed = {"activation_rms": ones, "saved_bytes": ones * 2**20} if step % 5 == 0 else {}
    gaps = {"activation_rms": np.arange(modules) == 1}
    return msgspec.structs.replace(
        plain,
        scalars=plain.scalars | scalars | ({"update_ratio": 1e-3, "val_loss": 2.0} if sampled else {}),
        parameter_columns=pack_module_columns(sampled, {}),
        module_columns=pack_module_columns(observed, gaps),
        histograms=histograms(step, parameters, modules) if step % HISTOGRAMS_EVERY == 0 else [],
    )


HISTOGRAMS_EVERY = 20
_EXPONENTS = {"gradient": (-20.0, -6.0), "parameter": (-12.0, 1.0), "activation": (-6.0, 7.0)}


def magnitudes(name: str, step: int, rows: int) -> np.ndarray:
    """(rows, elements) what a histogram counts at a step; a gradient's last element is NaN, its first 0."""
    draw = np.random.default_rng((step, len(name)))
    low, high = _EXPONENTS[name]
    middle = draw.uniform(low + 3, high - 3, size=(rows, 1))
    values = 2.0 ** np.clip(middle + draw.standard_normal((rows, 200)), low, high)
    values *= draw.choice([-1.0, 1.0], size=values.shape)
    if name == "gradient":
        values[:, 0], values[:, -1] = 0.0, np.nan
    return values


def histograms(step: int, parameters: int, modules: int) -> list[Histogram]:
    """Histograms of one step, as a probe counts them."""
    packed = []
    for name in _EXPONENTS:
        is_of_modules = name == "activation"
        values = np.abs(magnitudes(name, step, modules if is_of_modules else parameters))
        bins = np.where(np.isnan(values), NAN_BIN, np.searchsorted(BIN_EDGES, values, side="right"))
        counts = np.zeros((len(values), BINS), dtype=np.int64)
        np.add.at(counts, (np.arange(len(values))[:, None], bins), 1)
        packed.append(pack_histogram(name, "modules" if is_of_modules else "parameters", counts))
    return packed


def event(
    step: int,
    *,
    run: str = "demo-run",
    kind: str = "nonfinite_loss",
    severity: str = "critical",
    time: float = 0.0,
    message: str = "",
    subject: str = "blocks.1.norm1",
) -> Event:
    code = "def forward(self, x):\n    variance = x.var(-1)\n    return x / variance.sqrt()\n"
    where = StackFrame(file="/home/ann/train.py", line=26, function="forward", code=code, code_first_line=24)
    return Event(
        id=event_id(
            run=run, rank=0, incarnation=INCARNATION, model="", kind=kind, subject=subject, step=step
        ),
        run=run,
        rank=0,
        incarnation=INCARNATION,
        step=step,
        time=time or 1_700_000_000.0 + step * 0.1,
        kind=kind,
        severity=severity,
        subject=subject,
        message=message or f"NaN first at step {step} in `blocks.1.norm1`, train.py:26, forward",
        evidence=Evidence(value=float("nan"), baseline={"median": 1.3, "steps": 400.0}),
        origin=Origin(phase="forward", op="aten.div", module="blocks.1.norm1"),
        stacks=Stacks(forward=[where], training_loop=[where]),
        advice=["Add an epsilon to the variance."],
    )


def fill(
    store: Store,
    *,
    steps: range,
    blocks: int = 4,
    run: str = "demo-run",
    rank: int = 0,
    bad: dict[int, str] | None = None,
    start_time: float = 1_700_000_000.0,
    name: str = "train.py",
    group: str = "",
    model: str = "",
    is_bare: bool = False,
    is_full: bool = False,
) -> None:
    """Append frames, and before the first ones what describes the run.

    Bare frames measure nothing, full ones everything.
    """
    description = layout(blocks)
    events, metrics = key("events", run=run, rank=rank), key("metrics", run=run, rank=rank)
    if store.position(events).next_seq == 0:
        start = run_start(run=run, rank=rank, time=start_time, name=name, group=group, model=model)
        store.append(events, 0, [encode(start), encode(description)])
    make = measured_frame if is_full else frame
    frames = [
        Frame(step=step, time=start_time + step * 0.1)
        if is_bare
        else make(step, description, time=start_time + step * 0.1, bad=(bad or {}).get(step, ""))
        for step in steps
    ]
    store.append(metrics, store.position(metrics).next_seq, [encode(each) for each in frames])
    store.commit()


def add_models(
    store: Store, count: int, *, run: str = "demo-run", start_time: float = 1_700_000_000.0
) -> None:
    """Append models that a run has made after its first one, two steps of each."""
    began = run_start(run=run, time=start_time, name="sweep.py", model="fast")
    models = [(member, start_time + member) for member in range(1, count + 1)]
    records = {
        "events": [msgspec.structs.replace(began, member=member, time=time) for member, time in models],
        "metrics": [
            Frame(step=step, time=time + step / 10, scalars={"loss": 1.0 / member}, member=member)
            for member, time in models
            for step in range(2)
        ],
    }
    for stream, added in records.items():
        where = key(stream, run=run)
        store.append(where, store.position(where).next_seq, [encode(each) for each in added])
    store.commit()


def add_event(store: Store, first: Event, *more: Event) -> None:
    """Append events of one rank to their run."""
    events = key("events", run=first.run, rank=first.rank)
    store.append(events, store.position(events).next_seq, [encode(event) for event in (first, *more)])
    store.commit()


def memory_snapshot(step: int, label: str = "") -> Document:
    """A snapshot of a process that has 1 MiB more at each step."""
    rss_bytes = (100 + step) * 2**20
    body = MemorySnapshot(label=label, cause="call", time=1.7e9 + step, step=step, rss_bytes=rss_bytes)
    return make_document(body, kind=MEMORY_SNAPSHOT, key=f"s{step}", step=step, time=body.time)


def tracked_tensor(name: str) -> Document:
    """A tensor that has lived for a minute."""
    row = TensorRow(name=name, dtype="float32", shape=(4, 4), device="cpu", bytes=64, since=1.7e9)
    body = TrackedBody(tensors=(row,), alive=1, alive_bytes=64, tracked=1)
    return make_document(body, kind=TRACKED, key="", step=1, time=1.7e9 + 60)


def module_times(step: int) -> Frame:
    """What the modules took at a step: the root its number in ms in forward, twice that in backward."""
    names = [module.name for module in layout().modules]
    inner = [sum(other.startswith(f"{name}.") for other in names) or 1 for name in names]
    forward = 1e-3 * step * np.array(inner) * 0.9 / len(names)
    forward[0] = 1e-3 * step
    columns = {"forward_time_s": forward, "backward_time_s": 2 * forward}
    return Frame(step=step, time=1e9 + step, module_columns=pack_module_columns(columns, {}))


def profile(first: int, steps: int) -> Document:
    """A profile in which the root and two blocks take half a second a step each."""
    rows = [
        PlaceRow(
            name=name, calls=1, self_cpu_s=0.5 * steps, backward_cpu_s=0.1, self_cuda_s=0.0, allocated_bytes=0
        )
        for name in ("", "blocks.0", "blocks.1")
    ]
    body = ProfileBody(
        first_step=first,
        steps=steps,
        asked_steps=steps,
        asked_by="a test",
        wall_s=2.0 * steps,
        cpu_s=1.5 * steps,
        cuda_s=0.0,
        has_cuda=False,
        own_s=0.0,
        input_wait_s=0.0,
        modules=rows,
    )
    return make_document(body, kind=PROFILE, key=str(first), step=first, time=1.7e9 + first)


def add_frames(store: Store, *frames: Frame) -> None:
    """Append frames to the metrics of the first run's rank 0."""
    metrics = key("metrics")
    store.append(metrics, store.position(metrics).next_seq, [encode(frame) for frame in frames])
    store.commit()


def add_records(store: Store, *records: Event | Document, run: str = "demo-run") -> None:
    """Append records to the events of a run's rank 0."""
    events = key("events", run=run)
    store.append(events, store.position(events).next_seq, [encode(record) for record in records])
    store.commit()


def end_run(store: Store, *, run: str = "demo-run") -> None:
    """Append the record of an orderly end."""
    events = key("events", run=run)
    record = encode(RunEnd(time=1_700_000_000.0, step=None, outcome="finished"))
    store.append(events, store.position(events).next_seq, [record])
    store.commit()
