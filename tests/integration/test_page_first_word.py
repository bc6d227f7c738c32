"""What the page shows before the server has said which runs there are: nothing that may be wrong."""

from __future__ import annotations

import pytest
from page_fixtures import Served, until
from playwright.sync_api import Page, WebSocketRoute, expect

pytestmark = pytest.mark.browser

RECORD = """
window.seen = [];
new MutationObserver(() => {
  const empty = document.getElementById('empty-state');
  if (empty && !empty.hidden) window.seen.push('empty state');
  const state = document.getElementById('live-text')?.textContent;
  if (state === 'waiting for a run') window.seen.push(state);
  if (document.getElementById('run-name')?.textContent === 'no run yet') window.seen.push('no run yet');
}).observe(document, { childList: true, subtree: true, attributes: true, characterData: true });
"""


class HeldSocket:
    """The page's live connection, whose messages wait until they are let go."""

    def __init__(self, page: Page) -> None:
        self._held: list[str | bytes] = []
        self._is_held = True
        page.route_web_socket("**/live", self._open)

    def _open(self, socket: WebSocketRoute) -> None:
        self._socket = socket
        server = socket.connect_to_server()
        server.on_message(self._take)

    def _take(self, message: str | bytes) -> None:
        if self._is_held:
            self._held.append(message)
        else:
            self._socket.send(message)

    def wait(self, page: Page) -> None:
        """Until the server has sent something that is held."""
        for _ in range(400):
            if self._held:
                return
            page.wait_for_timeout(50)
        raise AssertionError("the server sends nothing")

    def let_go(self) -> None:
        self._is_held = False
        for message in self._held:
            self._socket.send(message)


def test_no_run_yet_never_stands_before_a_run_that_is_there(page: Page, served: Served) -> None:
    served.fill(steps=range(30), name="train.py")
    page.add_init_script(RECORD)
    socket = HeldSocket(page)
    page.goto(served.server.address)
    socket.wait(page)
    expect(page.locator("#live-text")).to_have_text("connecting")
    expect(page.locator("#run-name")).to_have_text("connecting")
    expect(page.locator("#connecting")).to_be_visible()
    expect(page.locator("#empty-state")).to_be_hidden()
    expect(page.locator("#charts")).to_be_hidden()
    socket.let_go()
    expect(page.locator("#charts")).to_be_visible()
    expect(page.locator("#run-name")).to_have_text("train.py")
    expect(page.locator("#connecting")).to_be_hidden()
    until(page, "nanscope.newestStep === 29")
    assert page.evaluate("window.seen") == []


def test_no_run_yet_stands_there_once_the_server_has_said_so(page: Page, served: Served) -> None:
    socket = HeldSocket(page)
    page.goto(served.server.address)
    socket.wait(page)
    expect(page.locator("#empty-state")).to_be_hidden()
    socket.let_go()
    expect(page.locator("#empty-state")).to_be_visible()
    expect(page.locator("#live-text")).to_have_text("waiting for a run")
    expect(page.locator("#connecting")).to_be_hidden()
