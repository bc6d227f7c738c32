"""Pages of other sites in a real Chromium: what they try with the dashboard's cookie in it is refused.

The other site is a real server on another port of the same host, to which browsers send the same cookies, and
the dashboard itself under another name (DNS rebinding).
"""

from __future__ import annotations

import contextlib
import http.server
import json
import socket
import threading
import time
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import page_runs
import psutil
import pytest
from page_fixtures import ARGUMENTS, PATIENCE_MS, TOKEN, Served, serving
from playwright.sync_api import BrowserContext, Page, Playwright

from dashboard.serving.listening import open_browser

pytestmark = pytest.mark.browser
RUN = "demo-run"
EVIL = "rebound.example"
"""A name that Chromium is made to find on this machine, as a rebinding name server would."""
ATTACKS = f"""
const base = document.body.dataset.target;
const socketBase = base.replace("http", "ws");
const json = {{ "content-type": "application/json" }};
const body = JSON.stringify({{ runs: ["{RUN}"] }});
const word = (answer) => answer.status ? `status ${{answer.status}}` : "opaque";
const ask = (path, options) =>
  fetch(base + path, {{ credentials: "include", ...options }}).then(word, () => "refused");
const loaded = (kind, set) => new Promise((done) => {{
  const element = document.createElement(kind);
  element.onload = () => done("loaded");
  element.onerror = () => done("refused");
  set(element);
  document.body.append(element);
}});
const attacks = {{
  read: () => ask("api/v1/runs"),
  readBlind: () => ask("api/v1/runs", {{ mode: "no-cors" }}),
  remove: () => ask("api/v1/runs/remove", {{ method: "POST", headers: json, body }}),
  removeBlind: () => ask("api/v1/runs/remove", {{ method: "POST", mode: "no-cors", body }}),
  star: () => ask("api/v1/runs/{RUN}/star", {{ method: "PUT" }}),
  image: () => loaded("img", (one) => {{ one.src = `${{base}}assets/ns_icon.svg`; }}),
  script: () => loaded("script", (one) => {{ one.src = `${{base}}assets/ns_00_core.js`; }}),
  socket: () => new Promise((done) => {{
    const socket = new WebSocket(`${{socketBase}}live`);
    socket.onopen = () => done("opened");
    socket.onerror = () => done("refused");
  }}),
}};
window.attack = async () => {{
  const found = {{}};
  for (const [name, run] of Object.entries(attacks)) found[name] = await run();
  return found;
}};
"""
FORMS = "".join(
    f'<form id="{name}" method="post" enctype="{kind}" target="sent" action="{{target}}api/v1/runs/remove">'
    f'<input name=\'{{{{"runs": ["{RUN}"], "x": "\' value=\'"}}}}\'></form>'
    for name, kind in (
        ("plain", "text/plain"),
        ("encoded", "application/x-www-form-urlencoded"),
        ("parts", "multipart/form-data"),
    )
)


class _Handler(http.server.BaseHTTPRequestHandler):
    page = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(self.page)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("attacked")) as started:
        page_runs.fill(started.server.store, steps=range(5))
        yield started


@pytest.fixture(scope="module")
def site(dashboard: Served) -> Iterator[str]:
    """Address of the other site: the same host, another port."""
    target = dashboard.server.page
    text = (
        f'<!doctype html><meta charset="utf-8"><title>evil</title><body data-target="{target}">'
        f'<iframe name="sent"></iframe>{FORMS.format(target=target)}<script>{ATTACKS}</script></body>'
    )
    handler = type("Handler", (_Handler,), {"page": text.encode()})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def context(playwright: Playwright, chromium_path: str, dashboard: Served) -> Iterator[BrowserContext]:
    """A browser in which somebody has opened the dashboard, and for which another name is this machine."""
    rules = f"--host-resolver-rules=MAP {EVIL} 127.0.0.1"
    chromium = playwright.chromium.launch(executable_path=chromium_path, args=[*ARGUMENTS, rules])
    made = chromium.new_context()
    page = made.new_page()
    page.goto(dashboard.server.address)
    page.wait_for_selector("#run-button, header")
    assert any(cookie["httpOnly"] for cookie in made.cookies())
    page.close()
    yield made
    chromium.close()


@pytest.fixture
def attacker(context: BrowserContext, site: str) -> Iterator[Page]:
    page = context.new_page()
    page.goto(site)
    yield page
    page.close()


def runs(dashboard: Served) -> list[str]:
    return [run.run for run in dashboard.server.store.runs()]


def test_scripts_of_another_site_get_nothing(attacker: Page, dashboard: Served) -> None:
    found = attacker.evaluate("window.attack()")
    blind = {name: found.pop(name) for name in ("readBlind", "removeBlind")}
    assert found == dict.fromkeys(found, "refused")
    assert set(blind.values()) <= {"refused", "opaque"}
    assert runs(dashboard) == [RUN]
    assert RUN not in dashboard.server.store.marks()


@pytest.mark.parametrize("form", ["plain", "encoded", "parts"])
def test_form_of_another_site_changes_nothing(attacker: Page, dashboard: Served, form: str) -> None:
    with attacker.expect_response("**/api/v1/runs/remove") as answered:
        attacker.evaluate("(id) => document.getElementById(id).submit()", form)
    assert answered.value.status in (401, 403)
    assert runs(dashboard) == [RUN]


def test_frame_in_another_site_shows_nothing(attacker: Page, dashboard: Served) -> None:
    attacker.evaluate(
        """(address) => {
          const one = document.createElement("iframe");
          one.name = "framed";
          one.src = address;
          document.body.append(one);
        }""",
        dashboard.server.page,
    )
    attacker.wait_for_function("() => window.frames.length === 2", timeout=PATIENCE_MS)
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while (framed := attacker.frame("framed")) is None:  # it hears of a frame a moment later
        assert time.monotonic() < deadline
        attacker.wait_for_timeout(50)
    framed.wait_for_load_state()
    assert framed.url.startswith("chrome-error:")


def test_browser_started_by_serve_keeps_the_token_out_of_sight(
    context: BrowserContext, dashboard: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither what it is started with, nor its address, nor its history has the token; it is signed in."""
    started_with: list[str] = []
    monkeypatch.setattr(webbrowser, "open", started_with.append)
    open_browser(dashboard.server.address, {"XDG_STATE_HOME": str(tmp_path)})
    fresh = context.browser.new_context()  # type: ignore[union-attr]
    page = fresh.new_page()
    page.goto(started_with[0])
    page.wait_for_url(f"{dashboard.server.page}*", timeout=PATIENCE_MS)
    page.wait_for_selector("#run-button, header")
    assert page.evaluate("fetch('/api/v1/runs').then((answer) => answer.status)") == 200
    history = fresh.new_cdp_session(page).send("Page.getNavigationHistory")
    addresses = [page.url, *(entry["url"] for entry in history["entries"])]
    commands = [" ".join(_command_of(process)) for process in psutil.Process().children(recursive=True)]
    fresh.close()
    assert any("chrom" in command for command in commands)
    assert not [seen for seen in (*started_with, *addresses, *commands) if TOKEN in seen]


def _command_of(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


def test_page_under_another_name_is_refused_with_everything_on_it(
    context: BrowserContext, dashboard: Served
) -> None:
    """The name leads to the dashboard itself, so that its scripts would be of the same origin."""
    port = dashboard.server.page.rsplit(":", 1)[1].strip("/")
    rebound = f"http://{EVIL}:{port}"
    page = context.new_page()
    answers = {
        path: page.goto(f"{rebound}{path}")
        for path in ("/", f"/?token={TOKEN}", "/api/v1/runs", "/assets/ns_00_core.js", "/_dash-layout")
    }
    assert {path: answer.status if answer else None for path, answer in answers.items()} == dict.fromkeys(
        answers, 421
    )
    tried = page.evaluate(
        """async (body) => {
          const removed = await fetch("/api/v1/runs/remove", {
            method: "POST", headers: { "content-type": "application/json" }, body });
          const opened = await new Promise((done) => {
            const socket = new WebSocket(`ws://${location.host}/live`);
            socket.onopen = () => done("opened");
            socket.onerror = () => done("refused");
          });
          return [removed.status, opened];
        }""",
        json.dumps({"runs": [RUN]}),
    )
    page.close()
    assert tried == [421, "refused"]
    assert runs(dashboard) == [RUN]


@pytest.mark.parametrize("host", [EVIL, "localhost.evil.example", "127.0.0.1.nip.io", "0.0.0.0", ""])
def test_raw_request_under_another_name_is_refused(dashboard: Served, host: str) -> None:
    port = int(dashboard.server.page.rsplit(":", 1)[1].strip("/"))
    lines = (
        f"GET /api/v1/runs HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {TOKEN}\r\n"
        "Connection: close\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port), timeout=20) as stranger:
        stranger.sendall(lines.encode())
        answer = b""
        while part := stranger.recv(65536):
            answer += part
    assert answer.split(b" ", 2)[1] in (b"421", b"400")
    assert RUN.encode() not in answer
