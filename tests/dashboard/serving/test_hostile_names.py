"""No path is built from the wire: names of records, requests and addresses name nothing outside."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

import msgspec
import pytest
from api_server import call, fill, serving

from dashboard.ingest.run_removal import remove_runs, spool_folder, star_run
from dashboard.ingest.spool import SpoolIngest
from dashboard.serving.profile_routes import find_trace
from dashboard.store.duck import DuckStore
from probe.delivery.journal.run_folders import list_runs, list_writers
from probe.errors import WireError
from probe.wire import (
    Control,
    Document,
    Event,
    Frame,
    LayerInfo,
    Layout,
    ParameterInfo,
    Position,
    RunStart,
    StreamKey,
    decode_message,
    decode_record,
    encode,
)
from probe.wire.records import RunId, WriterId

HOSTILE: Final = (
    "../outside", "..", ".", "", "/etc/passwd", "~root", "a/../../outside", "a/b", "a\\..\\outside",
    "a\0b", "\0",
    "con ", "a" * 4096, "line\nfeed", "ends\n", "\r", "ｅｔｃ．．／", "‥/x", "\u202e..", "a\u0301", "ı",
    "％2e％2e", "%2e%2e%2f",
    "file:///etc/passwd", "\\\\host\\share", "a:b", "*", "${HOME}", "$(id)", "`id`", "-rf", "café", "０-１",
)  # fmt: skip
BARE_NAMES: Final = frozenset({"-rf"})
"""A name of one part is a name, whatever programs make of its dash: it stays in its folder."""
CANARY = "canary: nobody touches this"


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """A spool beside things that must stay as they are."""
    for name in ("outside", "outside/profiles", "spool", "spool/good", "spool/good/profiles"):
        (tmp_path / name).mkdir()
    for name in ("outside/run.json", "outside/starred.txt", "outside/profiles/x.trace.json.gz", "secret"):
        (tmp_path / name).write_text(CANARY)
    return tmp_path / "spool"


def everything(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.mark.parametrize("name", [name for name in HOSTILE if name not in BARE_NAMES])
@pytest.mark.parametrize("kind", [RunId, WriterId])
def test_hostile_name_is_no_id(name: str, kind: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(name, kind)


@pytest.mark.parametrize("name", [name for name in HOSTILE if name not in BARE_NAMES])
def test_hostile_name_does_not_decode_as_run_or_writer(name: str) -> None:
    for message in (
        Position(key=StreamKey(run=name, writer="0-1", stream="events")),
        Position(key=StreamKey(run="run", writer=name, stream="events")),
        Control(id="0" * 32, run=name, request=b""),
    ):
        with pytest.raises(WireError):
            decode_message(encode(message))
    with pytest.raises(WireError):
        decode_record(encode(RunStart(run=name, rank=0, incarnation=1)))


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_run_names_no_folder(spool: Path, tmp_path: Path, name: str) -> None:
    before = everything(tmp_path)
    store = DuckStore(tmp_path / "data")
    assert spool_folder(spool, name) is None
    assert find_trace(spool, name, "x") is None
    assert find_trace(spool, "good", name) is None
    assert find_trace(spool, "good", f"../../../outside/profiles/{name}") is None
    remove_runs(store, [name], spool=spool)
    star_run(store, spool, name, starred=True)
    store.close()
    after = everything(tmp_path)
    assert {path: data for path, data in after.items() if not path.startswith("data")} == before


def test_hostile_names_in_records_write_nothing_but_the_store(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(CANARY)
    store = DuckStore(tmp_path / "data")
    events = StreamKey(run="run", writer="0-1", stream="events")
    metrics = StreamKey(run="run", writer="0-1", stream="metrics")
    for number, name in enumerate(HOSTILE):
        parameter = ParameterInfo(name=name, shape=[1], dtype=name, layer=0)
        records = [
            RunStart(run="run", rank=0, incarnation=1, name=name, host=name, working_directory=name),
            Layout(
                layout=number, model=name, parameters=[parameter], layers=[LayerInfo(name=name, type=name)]
            ),
            Event(
                id=f"{number:016x}", run="run", rank=0, incarnation=1, step=number, time=1.0, kind="custom",
                severity="info", subject=name, model=name, message=name,
            ),
            Document(kind="profile", key=name[:512], time=1.0, body=b"{}"),
        ]  # fmt: skip
        store.append(events, store.position(events).next_seq, [encode(one) for one in records])
        frame = Frame(step=number, time=1.0, layout=number, scalars={f"log/{name}"[:1000]: 1.0})
        store.append(metrics, number, [encode(frame)])
        store.commit()
    assert len(store.events("run")) == len(HOSTILE)
    store.close()
    written = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert written == {"secret", "nanscope.duckdb", "nanscope.runs.json"}
    assert (tmp_path / "secret").read_text() == CANARY


def test_hostile_folders_of_a_spool_are_no_runs(spool: Path, tmp_path: Path) -> None:
    made = []
    for name in HOSTILE:
        with contextlib.suppress(OSError, ValueError):
            if "/" not in name and name not in ("", ".", ".."):
                (spool / name / "0-1").mkdir(parents=True)
                made.append(name)
    assert len(made) > 10
    (spool / "good" / "0-1").mkdir()
    assert {folder.name for folder in list_runs(spool)} <= {"good", *BARE_NAMES}
    for name in made:
        with contextlib.suppress(OSError):
            (spool / "good" / name).mkdir(exist_ok=True)
    assert {folder.name for folder in list_writers(spool / "good")} <= {"0-1", *BARE_NAMES}
    store = DuckStore(tmp_path / "data")
    SpoolIngest(store, spool).run()
    assert {run.run for run in store.runs()} <= {"good", *BARE_NAMES}
    store.close()


def test_hostile_names_in_addresses_and_downloads(tmp_path: Path) -> None:
    from urllib.parse import quote

    (tmp_path / "secret").write_text(CANARY)
    with serving(tmp_path) as server:
        fill(server)
        for name in HOSTILE:
            text = quote(name, safe="")
            for path in (
                f"/api/v1/runs/{text}", f"/api/v1/runs/{text}/profiles/x/trace", f"/assets/{text}",
                f"/api/v1/runs/demo-run/profiles/{text}/trace", f"/export/json?run={text}",
                f"/assets/..%2f..%2f{text}", f"/assets/../../{text}",
                f"/api/v1/runs/demo-run/export?format=csv&track={text or 'x'}",
            ):  # fmt: skip
                got = call(server, path)
                assert got.status in (404, 422, 307, 200), (path, got.status)
                assert CANARY.encode() not in got.body
                assert b"root:" not in got.body
                if got.status == 200 and "api/v1/runs/" in path and text:
                    assert path.startswith("/api/v1/runs/demo-run/export")
