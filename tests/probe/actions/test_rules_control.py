"""Requests to a session from outside: what the files carry, what is followed, what is refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from journals import read_journal
from small_training import seeded_model, train

import probe
from dashboard.commands.resume import resume_run
from dashboard.errors import DashboardError
from probe.delivery.control.control_files import new_id, put_request, take_answer, take_requests, withdraw
from probe.delivery.control.control_messages import (
    MAX_REQUEST_BYTES,
    AddWatchpoint,
    Answer,
    Ask,
    AskState,
    ChangeFeatures,
    ChangeLevel,
    ChangeLimit,
    ChangePreset,
    KeepSnapshot,
    Pause,
    Profile,
    RemoveWatchpoint,
    Request,
    Resume,
    TakeMemorySnapshot,
    WriteBundle,
    decode_answer,
    decode_ask,
    encode_ask,
    read_request,
)
from probe.delivery.journal.journal_reader import read_stream
from probe.errors import WireError
from probe.settings.levels import LEVEL_FEATURES
from probe.wire import Document, decode_record
from probe.wire.documents import read_body
from probe.wire.memory_snapshots import MemorySnapshot

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_switched_off")

Sender = Callable[[Request | bytes], Answer]


class Session:
    """A recorded training, and somebody outside who asks."""

    def __init__(self, spool: Path) -> None:
        self.model = seeded_model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.run = probe.watch(self.model, self.optimizer, spool=spool, connect="", overhead_limit=0.0)
        (self.run_folder,) = spool.iterdir()
        (self.folder,) = self.run_folder.glob("0-*")

    def train(self, steps: int) -> None:
        train(self.model, self.optimizer, steps)

    def ask(self, request: Request | bytes) -> Answer:
        data = request if isinstance(request, bytes) else encode_ask(Ask(request=request, source="api"))
        request_id = new_id()
        put_request(self.folder, request_id, data)
        until = time.monotonic() + 20
        while (answer := take_answer(self.folder, request_id)) is None:
            assert time.monotonic() < until, "no answer"
            time.sleep(0.01)
        return decode_answer(answer)


@pytest.fixture
def session(spool: Path) -> Iterator[Session]:
    made = Session(spool)
    yield made
    made.run.close()


def test_watchpoint_from_outside_is_listed_fires_and_is_removed(session: Session) -> None:
    added = session.ask(AddWatchpoint(condition="step == 3", name="third"))
    assert added.problem is None
    assert [(one.name, one.condition, one.action) for one in added.state.watchpoints] == [
        ("third", "step == 3", "event")
    ]
    session.ask(AddWatchpoint(condition="step == 4", name="fourth"))
    session.ask(RemoveWatchpoint(name="fourth"))
    session.train(5)
    assert session.ask(RemoveWatchpoint(name="third")).state.watchpoints == []
    assert "no watchpoint 'third'" in (session.ask(RemoveWatchpoint(name="third")).problem or "")
    session.run.close()
    found = [
        (event.subject, event.severity, event.step)
        for event in read_journal(session.run_folder).latest_events
    ]
    assert ("asked for: third", "info", 0) in found
    assert {("asked for: fourth", "info", 0), ("removed: fourth", "info", 0)} <= {*found}
    assert ("third", "warning", 3) in found


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        (AddWatchpoint(condition="loss > 9**9**9"), "'9**9**9' at character 8 is not allowed here"),
        (AddWatchpoint(condition='grad_norm("layers.*") > 1'), "no layer or parameter has a name like that"),
        (AddWatchpoint(condition='grad_norm("[!\x1b]*") > 1'), "characters without a glyph"),
        (AddWatchpoint(condition="loss > 1", name="a\x1b[2J"), "must be one line of at most 200 printable"),
        (ChangeFeatures(features={"activation": 1}), "is not a feature"),
        (ChangePreset(preset="fast"), "preset='fast' is not available"),
        (ChangeLimit(overhead_limit=7.0), "must be a fraction"),
        (Resume(), "the training is not paused"),
        (b"\x93\x01\x02", "request does not decode"),
        (b"x" * (MAX_REQUEST_BYTES + 1), "at most 16384 are allowed"),
        (msgspec.msgpack.encode({"request": {"do": "exec"}, "source": "api"}), "request does not decode"),
        (encode_ask(Ask(request=AskState(), source="api", version=2)), "request of version 2"),
    ],
)
def test_what_cannot_be_followed_is_answered_with_the_reason(
    session: Session, request_: Request | bytes, problem: str
) -> None:
    answer = session.ask(request_)
    assert problem in (answer.problem or "")
    assert answer.state.watchpoints == []
    session.train(2)
    assert session.ask(AskState()).problem is None, "and nothing is broken by it"


def test_request_that_fails_is_answered_and_so_is_the_next_one(session: Session) -> None:
    def changing() -> Iterator[object]:
        raise RuntimeError("dictionary changed size during iteration")

    session.model.named_modules = changing  # type: ignore[assignment]
    asked = AddWatchpoint(condition='activation_rms("0") > 1')
    assert session.ask(asked).problem == "dictionary changed size during iteration"
    del session.model.named_modules
    assert session.ask(asked).problem is None


@pytest.mark.capability(49)
def test_level_preset_switch_and_limit_are_followed_at_the_next_step(session: Session) -> None:
    for request in (
        ChangeLevel(level="advanced"),
        ChangePreset(preset="memory"),
        ChangeFeatures(features={"activations": 3}),
        ChangeLimit(overhead_limit=0.5),
    ):
        assert session.ask(request).problem is None
    session.train(2)
    state = session.ask(AskState()).state
    assert (state.level, state.preset, state.overhead_limit, state.step) == ("advanced", "memory", 0.5, 1)
    (change,) = [e for e in read_journal(session.run_folder).latest_events if e.kind == "level_changed"]
    assert "asked for by the HTTP API" in change.message
    assert "Activations: every 3 steps" in change.message


def test_state_has_what_is_asked_for_before_the_next_step_follows_it(session: Session) -> None:
    before = session.ask(AskState()).state
    assert before.features == LEVEL_FEATURES["basic"].periods()
    told = session.ask(ChangeFeatures(features={"activations": 3, "memory": 0})).state
    assert (told.features["activations"], told.features["memory"]) == (3, 0)
    assert session.ask(ChangeLevel(level="advanced")).state.level == "advanced"
    off = session.ask(ChangeLevel(level="off")).state
    assert set(off.features.values()) == {0} and off.level == "off"
    assert session.run._tracker.settings.level == "basic", "no step has followed it yet"


@pytest.mark.parametrize("request_", [WriteBundle(), KeepSnapshot(), Pause()])
def test_what_needs_a_step_is_refused_at_level_off(session: Session, request_: Request) -> None:
    session.ask(ChangeLevel(level="off"))
    assert "level `off` records no steps" in (session.ask(request_).problem or "")
    session.train(2)
    assert session.ask(AskState()).state.watchpoints == []
    session.ask(ChangeLevel(level="basic"))
    assert session.ask(KeepSnapshot()).problem is None, "the level that is asked for counts"


@pytest.mark.parametrize("level", ["basic", "off"])
def test_memory_snapshot_on_request_is_a_document_and_an_event(session: Session, level: str) -> None:
    session.train(3)
    session.ask(ChangeLevel(level=level))
    assert [session.ask(TakeMemorySnapshot()).problem for _ in range(2)] == [None, None]
    session.run.close()
    journal = read_journal(session.run_folder)
    taken = [
        read_body(one, MemorySnapshot)
        for one in (decode_record(data) for _, data in read_stream(session.folder, "events"))
        if isinstance(one, Document) and one.kind == "memory_snapshot"
    ]
    labels = [f"asked for by the HTTP API ({number})" for number in (1, 2)]
    assert [(one.label, one.cause, one.step) for one in taken] == [(label, "request", 2) for label in labels]
    assert all(one.rss_bytes and one.uss_bytes for one in taken)
    found = [event for event in journal.latest_events if event.kind == "snapshot"]
    assert [(event.subject, event.severity) for event in found] == [(label, "info") for label in labels]
    assert "MiB in the process" in found[0].message or "GiB in the process" in found[0].message


def test_memory_snapshots_on_request_are_bounded(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probe.memory.run_snapshots.MOST_ASKED", 1)
    assert session.ask(TakeMemorySnapshot()).problem is None
    assert "which is the most" in (session.ask(TakeMemorySnapshot()).problem or "")


def test_requests_leave_the_training_bit_identical(session: Session) -> None:
    requests = (
        TakeMemorySnapshot(),
        ChangePreset(preset="gradients"),
        ChangeFeatures(features={"activations": 1}),
        ChangeLimit(overhead_limit=0.5),
        KeepSnapshot(),
        WriteBundle(),
        ChangeLevel(level="off"),
        ChangeLevel(level="extreme"),
    )
    torch.manual_seed(3)
    for request in requests:
        assert session.ask(request).problem is None
        session.train(2)
    plain = seeded_model()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    torch.manual_seed(3)
    for _ in requests:
        train(plain, optimizer, 2)
    assert all(map(torch.equal, plain.parameters(), session.model.parameters()))


def test_bundle_on_request_is_of_the_next_step(session: Session) -> None:
    session.train(2)
    assert session.ask(WriteBundle()).problem is None
    session.train(8)
    session.run.close()
    (folder,) = (session.run_folder / "bundles").iterdir()
    (event,) = [event for event in read_journal(session.run_folder).latest_events if event.id == folder.name]
    assert (event.step, event.severity) == (2, "info")


def test_paused_training_is_resumed_by_the_command_that_needs_no_server(session: Session) -> None:
    session.ask(AddWatchpoint(condition="step == 1", action="pause", name="stop"))
    said: list[str] = []

    def resume() -> None:
        until = time.monotonic() + 20
        while not session.ask(AskState()).state.is_paused and time.monotonic() < until:
            time.sleep(0.02)
        said.extend(resume_run(str(session.run_folder), rank=None))

    other = threading.Thread(target=resume)
    other.start()
    session.train(3)
    other.join(timeout=30)
    assert said == ["rank 0: goes on"]
    assert resume_run(str(session.run_folder), rank=0) == ["rank 0: the training is not paused"]
    session.run.close()
    pause = next(e for e in read_journal(session.run_folder).latest_events if e.subject == "pause: stop")
    assert "resumed by `dashboard resume`" in pause.message


def test_command_says_that_an_ended_run_does_not_answer(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dashboard.commands.resume.PATIENCE_S", 0.1)
    session.run.close()
    with pytest.raises(DashboardError, match="has answered within"):
        resume_run(str(session.run_folder), rank=None)
    with pytest.raises(DashboardError, match="has no trainer to resume of rank 7"):
        resume_run(str(session.run_folder), rank=7)
    assert not (session.folder / "control").exists()


def test_files_are_taken_once_in_order_and_a_withdrawn_one_never(tmp_path: Path) -> None:
    ids = [new_id() for _ in range(3)]
    for number, request_id in enumerate(ids):
        put_request(tmp_path, request_id, bytes([number]))
    withdraw(tmp_path, ids[1])
    assert (tmp_path / "control" / f"{ids[0]}.ask").stat().st_mode & 0o777 == 0o600
    assert take_requests(tmp_path) == [(ids[0], b"\0"), (ids[2], b"\2")]
    assert take_requests(tmp_path) == []


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.binary(max_size=300), st.text(max_size=100).map(str.encode)))
def test_arbitrary_bytes_are_a_request_or_a_wire_error(data: bytes) -> None:
    for read in (decode_ask, read_request, decode_answer):
        try:
            read(data)
        except WireError as error:
            assert str(error)


def test_request_with_a_field_that_is_not_known_is_refused() -> None:
    assert read_request(b'{"do": "resume"}') == Resume()
    assert read_request(b'{"do": "profile", "steps": 7.0}') == Profile(steps=7), "JSON has one kind of number"
    with pytest.raises(WireError, match="unknown field `condtion`"):
        read_request(b'{"do": "add_watchpoint", "condition": "loss > 1", "condtion": "x"}')
    with pytest.raises(WireError, match="Invalid value 'eval'"):
        read_request(b'{"do": "eval", "code": "1"}')


def control_events(session: Session) -> list[tuple[str, str]]:
    session.run.close()
    return [(e.subject, e.message) for e in read_journal(session.run_folder).events if e.kind == "control"]


def test_every_request_that_changes_something_is_an_event_with_who_what_and_outcome(session: Session) -> None:
    who = {"source": "browser", "caller": "control from 10.0.0.7"}
    session.ask(encode_ask(Ask(request=ChangeLevel(level="advanced"), **who)))
    session.ask(encode_ask(Ask(request=AddWatchpoint(condition="loss > lss"), **who)))
    session.ask(AskState())
    session.ask(b"no request")
    by_page = "Requested by control from 10.0.0.7 over the page: "
    subject, refused = control_events(session)[1]
    assert control_events(session)[0] == ("set_level", f"{by_page}set_level (level=advanced)\nAccepted.")
    assert (subject, len(control_events(session))) == ("add_watchpoint", 2)
    assert refused.startswith(f"{by_page}add_watchpoint (condition=loss > lss, action=event")
    assert "\nRefused: " in refused and "'lss'" in refused


def test_same_request_twice_at_a_step_is_two_events(session: Session) -> None:
    for _ in range(3):
        session.ask(TakeMemorySnapshot())
    assert [subject for subject, _ in control_events(session)] == ["memory_snapshot"] * 3


def test_request_of_an_older_dashboard_says_the_way_that_it_came(session: Session) -> None:
    session.ask(Resume())
    ((_, message),) = control_events(session)
    assert message == "Requested by the HTTP API: resume\nRefused: the training is not paused"


def test_request_of_any_length_is_an_event_that_the_journal_takes(session: Session) -> None:
    name = "n" * 200
    session.ask(AddWatchpoint(condition="loss > 1 " + "or loss > 1 " * 40, name=name))
    ((_, message),) = control_events(session)
    assert len(message) < 4096
