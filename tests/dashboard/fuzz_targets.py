"""What odd input is given to, each with real input to begin with and the exceptions that it documents."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import page_runs
from fuzz_cases import JSON, MSGPACK, Codec

from dashboard.errors import DashboardError
from dashboard.live.hub import _decoder as page_decoder
from dashboard.live.message import ClientView
from dashboard.live.pictures import Pictures
from dashboard.live.view import Subscription
from dashboard.outlets.settings import read_outlets
from dashboard.store.duck import DuckStore
from probe.delivery.control.control_messages import (
    Ask,
    decode_answer,
    decode_ask,
    encode_ask,
    read_request,
)
from probe.delivery.control.parser import parse
from probe.delivery.journal.journal import JournalWriter
from probe.delivery.journal.journal_reader import end_of_stream, read_stream
from probe.delivery.journal.ring_rest import read_rest
from probe.delivery.journal.run_folders import read_run_json
from probe.delivery.recorder.ring import Ring
from probe.delivery.recorder.ring_format import FRAME
from probe.errors import BundleError, JournalError, WireError
from probe.forensics.bundle.reproduce import read_bundle
from probe.wire import (
    Ack,
    Answered,
    Batch,
    Challenge,
    Document,
    Event,
    Frame,
    Gap,
    Hello,
    HostSample,
    LayerInfo,
    Layout,
    ParameterInfo,
    Position,
    Proof,
    Record,
    RunEnd,
    RunStart,
    Skip,
    StreamKey,
    Watch,
    decode_message,
    decode_record,
    encode,
)
from probe.wire.columns import pack_column, unpack_column, unpack_missing

KEY = StreamKey(run="run", writer="0-1", stream="metrics")


@dataclass(frozen=True)
class Target:
    """One kind of input."""

    seeds: list[bytes]
    take: Callable[[bytes], object]
    """Fails by any exception but those of `refusals`."""
    refusals: tuple[type[Exception], ...]
    in_make_test: int = 300
    """Cases; a hundredth of what `make faults` takes."""
    after: Callable[[], None] = lambda: None
    codec: Codec | None = None


def real_records() -> list[bytes]:
    """One of each kind."""
    parameter = ParameterInfo(name="weight", shape=[2, 3], dtype="float32", layer=0)
    column = pack_column("grad_norm", np.array([1.5]))
    event = Event(
        id="0123456789abcdef", run="run", rank=0, incarnation=1, step=3, time=1.0, kind="custom",
        severity="info", message="one\ntwo", data={"a": [1, 2.5, None, {"b": "c"}]},
    )  # fmt: skip
    records: list[Record] = [
        RunStart(run="run", rank=0, incarnation=1, time=1.0, name="x.py", options={"mode": "raise"}),
        Layout(layout=0, model="net", parameters=[parameter], layers=[LayerInfo(name="", type="Net")]),
        Frame(
            step=3, time=1.0, scalars={"loss": 0.5, "log/a": float("nan")}, columns=[column], missing=b"\0"
        ),
        event,
        Gap(stream="metrics", first_seq=3, end_seq=9, reason="evicted", time=1.0),
        HostSample(time=1.0, rank=0, incarnation=1, state="running", rss_bytes=2**30),
        Document(kind="profile", key="1", time=1.0, body=b'{"a": [1]}'),
        RunEnd(time=1.0, step=3, outcome="finished"),
    ]
    return [encode(record) for record in records]


def _records(folder: Path) -> Target:
    def take(data: bytes) -> None:
        record = decode_record(data)
        assert decode_record(encode(record)) is not None
        if isinstance(record, Frame):
            unpack_missing(record, 8 * len(record.missing))
            for column in record.columns:
                unpack_column(column)

    return Target(real_records(), take, (WireError,), 4000, codec=MSGPACK)


def _messages(folder: Path) -> Target:
    nonce = b"n" * 32
    messages = [
        Hello(version=1, nonce=nonce), Challenge(version=1, nonce=nonce, proof=nonce), Proof(proof=nonce),
        Position(key=KEY), Batch(key=KEY, first_seq=3, records=real_records()), Ack(key=KEY, next_seq=9),
        Skip(key=KEY, first_seq=3, end_seq=9, reason="evicted"),
        Watch(run="run", ranks=[3, 7]), Answered(id="0" * 32, answers=[("0-1", None), ("1-1", b"x")]),
    ]  # fmt: skip
    return Target([encode(one) for one in messages], decode_message, (WireError,), 4000, codec=MSGPACK)


def _store(folder: Path) -> Target:
    """Whatever arrives, other runs stay whole and every read answers; closed by `after`."""
    store = DuckStore(folder / "store")
    page_runs.fill(store, steps=range(5), run="whole")
    events, frames = StreamKey(run="run", writer="0-1", stream="events"), KEY
    host = StreamKey(run="run", writer="host-a", stream="host")
    for data in real_records()[:2]:
        store.append(events, store.position(events).next_seq, [data])
    given = 0

    def take(data: bytes) -> None:
        nonlocal given
        given += 1
        for key in (events, frames, host):
            expected = store.append(key, 2**61, [data])
            if expected != 2**61:
                store.append(key, expected, [data])
        if given % 200 == 0:
            read()

    def read() -> None:
        store.commit()
        for run in store.runs():
            for rank in run.ranks[:4]:
                store.scalars(run.run, rank.rank, store.scalar_names(run.run, rank.rank)[:50])
                store.heatmap(run.run, rank.rank)
                store.layout(run.run, rank.rank)
            store.events(run.run)
            store.gaps(run.run)
            store.positions(run.run)
            for kind in store.document_kinds(run.run):
                store.documents(run.run, kind)
            Pictures(store).look(Subscription(id=1, run=run.run), with_data=True)
        assert len(store.scalars("whole", 0, ["loss"])) == 5

    def after() -> None:
        read()
        store.close()

    return Target(real_records(), take, (), 600, after, MSGPACK)


def _segments(folder: Path) -> Target:
    return _writer_files(folder, "metrics-00000000000000000000.seg", 300)


def _rings(folder: Path) -> Target:
    return _writer_files(folder, "ring", 300)


def _writer_files(folder: Path, name: str, count: int) -> Target:
    source = folder / "source" / "run" / "0-1"
    journal = JournalWriter(source, run="run", writer="0-1")
    ring = Ring(source / "ring", 4096)
    for number in range(5):
        journal.append_many("metrics", [encode(Frame(step=number, time=1.0))])
        ring.append(FRAME, encode(Frame(step=number, time=1.0)))
    journal.append_many("events", real_records()[:2])
    journal.close()
    target = folder / "run" / "0-1"
    shutil.copytree(source, target)
    seed = (source / name).read_bytes()

    def take(data: bytes) -> None:
        (target / name).write_bytes(data)
        records = read_stream(target, "metrics", on_skip=lambda hole: None)
        for number, _ in enumerate(records):
            assert number <= len(data) + 10, "more records than bytes"
        end_of_stream(target, "metrics")
        read_rest(target, metrics_end=2)

    return Target([seed], take, (JournalError,), count)


def _run_json(folder: Path) -> Target:
    (folder / "run").mkdir()
    start = RunStart(run="run", rank=0, incarnation=1, time=1.0, name="x.py", options={"mode": "raise"})

    def take(data: bytes) -> None:
        (folder / "run" / "run.json").write_bytes(data)
        read_run_json(folder / "run")

    return Target([msgspec.json.encode(start)], take, (), 1500, codec=JSON)


def _bundles(folder: Path) -> Target:
    def take(data: bytes) -> None:
        (folder / "bundle.json").write_bytes(data)
        read_bundle(folder)

    from bundle_models import Planted
    from bundled_step import bundle_of
    from replayed_step import batch, run_step

    written = bundle_of(run_step(Planted(), batch(32), shift=1.0), folder / "spool")
    return Target([(written / "bundle.json").read_bytes()], take, (BundleError,), 1500, codec=JSON)


def _asks(folder: Path) -> Target:
    requests = [
        {"do": "state"}, {"do": "set_level", "level": "advanced"}, {"do": "set_limit", "percent": 3.5},
        {"do": "add_watchpoint", "name": "a", "condition": "loss > 3", "action": "pause"}, {"do": "profile"},
    ]  # fmt: skip
    written = [json.dumps(one).encode() for one in requests]
    asks = [encode_ask(Ask(request=read_request(b'{"do": "state"}'), source="api"))]

    def take(data: bytes) -> None:
        for decode in (decode_ask, decode_answer, read_request):
            try:
                decode(data)
            except WireError:
                continue

    return Target([*asks, *written], take, (), 2000)


def _conditions(folder: Path) -> Target:
    texts = [
        "when loss > 3 and not grad_norm <= 1e3",
        "not loss > -1 and step % 100 == 0 or grad_norm < 1 - 2 - 3",
        "grad_norm('layers.*') / learning_rate >= 2 or loss != loss",
    ]  # fmt: skip
    return Target(
        [text.encode() for text in texts],
        lambda data: parse(data.decode("utf-8", "surrogateescape")),
        (ValueError,),
        1500,
    )


def _outlets(folder: Path) -> Target:
    toml = '[[webhook]]\nname = "ops"\nkind = "slack"\nurl = "https://hooks.example/x"\nper_minute = 6\n'
    otlp = '[otlp]\nurl = "http://127.0.0.1:4318"\nheaders = { a = "b" }\ninterval_s = 15.0\n'
    as_json = '{"webhook": [{"name": "ops", "kind": "json", "url": "https://hooks.example/x"}]}'

    def take(data: bytes) -> None:
        for name in ("outlets.toml", "outlets.json"):
            path = folder / name
            path.write_bytes(data)
            path.chmod(0o600)
            try:
                read_outlets(path, {})
            except DashboardError:
                continue

    return Target([(toml + otlp).encode(), as_json.encode()], take, (), 800)


def _subscriptions(folder: Path) -> Target:
    store = DuckStore(folder / "store")
    page_runs.fill(store, steps=range(5), run="whole")
    view = ClientView(Pictures(store))
    wishes = [
        {"m": "subscribe", "id": 1},
        {"m": "subscribe", "id": 2, "run": "whole", "rank": 0, "first": 0, "end": 9, "window": 100,
         "points": 600, "columns": 600, "unfolded": ["a", ""], "statistic": "grad_norm", "logged": True,
         "ranks": "loss"},
        {"m": "ack"},
        {"m": "visible", "visible": True},
    ]  # fmt: skip

    def take(data: bytes) -> None:
        wish = page_decoder.decode(data)
        if isinstance(wish, Subscription):
            view.message(wish, with_data=True)

    seeds = [json.dumps(wish).encode() for wish in wishes]
    return Target(
        seeds, take, (msgspec.MsgspecError, UnicodeDecodeError, RecursionError), 800, store.close, JSON
    )


TARGETS: dict[str, Callable[[Path], Target]] = {
    "records": _records,
    "messages": _messages,
    "store": _store,
    "segments": _segments,
    "rings": _rings,
    "run_json": _run_json,
    "bundles": _bundles,
    "control": _asks,
    "conditions": _conditions,
    "outlets": _outlets,
    "subscriptions": _subscriptions,
}
"""Each makes its target with a folder of its own."""
