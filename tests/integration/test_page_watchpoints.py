"""The watchpoints' section in a real browser, against a helper that answers over the real wire."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import msgspec
import pytest
import zmq
from page_fixtures import Served
from playwright.sync_api import Page, expect

from probe.delivery.control.control_messages import (
    AddWatchpoint,
    Answer,
    RemoveWatchpoint,
    Resume,
    TrainerState,
    WatchpointState,
    decode_ask,
    encode_answer,
)
from probe.settings.places import read_serve_state
from probe.wire import (
    VERSION,
    Answered,
    Challenge,
    Control,
    Hello,
    Message,
    Position,
    Proof,
    StreamKey,
    decode_message,
    encode,
    handshake_proof,
)

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]


class Helper:
    """A helper of the run with one trainer, which follows what it is asked and knows no layer but "a"."""

    def __init__(self, endpoint: str, secret: bytes) -> None:
        self.state = TrainerState(
            step=7, level="basic", preset=None, overhead_limit=0.02, is_paused=True, watchpoints=[]
        )
        self._endpoint, self._secret = endpoint, secret
        self._stopping, self.ready = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._serve, name="nanscope-test-helper")
        self._thread.start()
        assert self.ready.wait(20)

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(10)

    def _serve(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(self._endpoint)
        nonce = os.urandom(32)
        socket.send(encode(Hello(version=VERSION, nonce=nonce, takes_control=True)))
        while not self._stopping.is_set():
            if socket.poll(20):
                for message in self._replies(decode_message(socket.recv()), nonce):
                    socket.send(encode(message))
        socket.close()
        context.term()

    def _replies(self, message: Message, nonce: bytes) -> list[Message]:
        if isinstance(message, Challenge):
            proof = handshake_proof(self._secret, "helper", nonce, message.nonce)
            key = StreamKey(run="demo-run", writer="0-5", stream="events")
            return [Proof(proof=proof), Position(key=key)]
        if isinstance(message, Control):
            answer = encode_answer(self._follow(message.request))
            return [Answered(id=message.id, answers=[("0-5", answer)])]
        self.ready.set()
        return []

    def _follow(self, data: bytes) -> Answer:
        request = decode_ask(data).request
        watched = list(self.state.watchpoints)
        if isinstance(request, AddWatchpoint):
            if '"b"' in request.condition:
                return Answer(problem="no layer is called b", state=self.state)
            name = request.condition
            watched.append(WatchpointState(name=name, condition=name, action=request.action, once=False))
        elif isinstance(request, RemoveWatchpoint):
            watched = [one for one in watched if one.name != request.name]
        paused = self.state.is_paused and not isinstance(request, Resume)
        self.state = msgspec.structs.replace(self.state, watchpoints=watched, is_paused=paused)
        return Answer(problem=None, state=self.state)


@pytest.fixture
def helper(served: Served) -> Iterator[Helper]:
    state = read_serve_state({"XDG_STATE_HOME": str(served.folder / "state")})
    assert state is not None
    made = Helper(served.server.ingest, bytes.fromhex(state.secret))
    yield made
    made.close()


def test_page_adds_lists_refuses_removes_and_resumes(page: Page, served: Served, helper: Helper) -> None:
    served.fill(steps=range(20))
    page.goto(served.server.address)
    page.locator("#tab-controls").click()
    field = page.locator("#watchpoint-condition")
    expect(page.locator("#watchpoint-list")).to_contain_text("paused at step 7")
    field.fill("loss > lss")
    page.locator("#watchpoint-add").click()
    expect(page.locator("#watchpoints")).to_contain_text("'lss' at character 8 is not a name")
    field.fill('grad_norm("b") > 1')
    field.press("Enter")
    expect(page.locator("#watchpoints")).to_contain_text("no layer is called b")
    expect(field).to_have_value('grad_norm("b") > 1')
    field.fill('grad_norm("a") > 8 * median')
    page.locator("#watchpoint-action").click()
    page.get_by_text("write a bundle").click()
    page.locator("#watchpoint-add").click()
    expect(page.locator("#watchpoint-list li")).to_contain_text('grad_norm("a") > 8 * medianwrite a bundle')
    expect(field).to_have_value("")
    page.locator("#watchpoint-resume").click()
    expect(page.locator("#watchpoint-resume")).to_be_hidden()
    page.get_by_role("button", name="Remove").click()
    expect(page.locator("#watchpoint-list")).to_contain_text("No watchpoints.")
    assert not helper.state.watchpoints
    assert not helper.state.is_paused


def test_tensor_panel_watches_its_tensor_and_says_what_the_trainer_answers(
    page: Page, served: Served, helper: Helper
) -> None:
    served.fill(steps=range(20), is_full=True)
    page.goto(served.server.address + "&run=demo-run&row=embed.weight")
    field = page.locator("#row-condition")
    expect(field).to_have_value('grad_norm("embed.weight") > 8 * median')
    page.locator("#row-watch").click()
    expect(page.locator("#row-watch-said")).to_contain_text("Watching: an event is recorded")
    assert [one.condition for one in helper.state.watchpoints] == ['grad_norm("embed.weight") > 8 * median']
    field.fill('grad_norm("b") > 1')
    field.press("Enter")
    expect(page.locator("#row-watching")).to_contain_text("no layer is called b")
    expect(page.locator("#row-watch-said")).to_have_text("")
    page.evaluate("nanscope.openRow('head')")
    expect(field).to_have_value('grad_norm("head") > 8 * median')
    page.locator("#tab-controls").click()
    expect(page.locator("#watchpoint-list li")).to_contain_text('grad_norm("embed.weight") > 8 * median')
