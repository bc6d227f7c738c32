"""The whole line as a user has it: `dashboard serve`, a real training with a fault, a browser, an export."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked_scripts import ForkedScript, ForkedScripts
from playwright.sync_api import Browser, Locator, Page, expect

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
FAULT_STEP = 40
PLANTED = "return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight"
NEWEST_STEP = "Math.max(...nanscope.painted('loss').lines.map(line => line.x.at(-1) ?? -1))"
CRITICAL = "#timeline-markers [data-severity=critical]"


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Everything under tmp_path; probes find the dashboard by themselves, as they do for a user."""
    monkeypatch.delenv("NANSCOPE_CONNECT")
    # The server of the page's fixture has a place of its own: of two, trainings find the first.
    places = {"XDG_STATE_HOME": str(tmp_path / "own"), "NANSCOPE_SPOOL": str(tmp_path / "spool")}
    return {**places, "NANSCOPE_LINGER_S": "2"}


@pytest.fixture
def address(environment: dict[str, str], forked_dashboard: ForkedScripts) -> Iterator[str]:
    """Address of a running `dashboard serve`, with its token."""
    command = ["serve", "--port", "0", "--ingest", "tcp://127.0.0.1:*", "--no-browser"]
    server = forked_dashboard.start(["-m", "dashboard", *command], ROOT, environment)
    found = re.fullmatch(r"nanscope (\S+)", server.first_line())
    assert found, server.finish()
    yield found[1]
    server.send_signal(signal.SIGTERM)
    assert server.wait(30) == 0


def until(page: Page, script: str, arg: object = None) -> None:
    """Wait as long as a real training on a busy machine may take."""
    deadline = time.monotonic() + 120
    while not page.evaluate(script, arg):
        assert time.monotonic() < deadline, f"never true: {script}"
        page.wait_for_timeout(100)


def start_training(forked: ForkedScripts, environment: dict[str, str]) -> ForkedScript:
    arguments = ["--fault", "nan", "--fault-step", str(FAULT_STEP), "--steps", str(FAULT_STEP + 25)]
    return forked.start([str(ROOT / "demo_train.py"), *arguments], ROOT, environment)


def watch_it_grow(page: Page) -> None:
    """The loss line and the heatmap get longer on the page that was loaded before training began."""
    picture = "document.querySelector('#heatmap-canvas').toDataURL()"
    until(page, f"nanscope.painted?.('loss') && {NEWEST_STEP} >= 5")
    before = page.evaluate(NEWEST_STEP), page.evaluate(picture)
    until(page, f"before => {NEWEST_STEP} > before", arg=before[0])
    until(page, f"before => {picture} !== before", arg=before[1])
    assert page.evaluate("window.loadedBeforeTraining") is True


@pytest.mark.capability(1, 2, 3, 4, 5, 6, 12)
def test_nan_in_a_real_training_is_seen_explained_and_exported(
    page: Page,
    browser: Browser,
    address: str,
    environment: dict[str, str],
    forked: ForkedScripts,
    tmp_path: Path,
) -> None:
    page.goto(address)
    expect(page.locator("#empty-state")).to_be_visible()
    page.evaluate("window.loadedBeforeTraining = true")
    training = start_training(forked, environment)
    try:
        watch_it_grow(page)
        # Information may be in the timeline already: that the probe is above its limit, on a slow machine.
        marker = page.locator(CRITICAL).first
        expect(marker).to_be_attached(timeout=120_000)
        click_where_it_is(page, marker)
        expect(page.locator("#event-content")).to_contain_text(f"at step {FAULT_STEP}")
        expect(page.locator("#event-content")).to_contain_text("blocks.0.norm1")
        planted = page.locator("#event-content .source-line.current", has_text=PLANTED)
        expect(planted.first).to_be_visible()
        assert training.wait(120) == 0
    finally:
        training.kill()
        training.wait(30)
    assert_in_offline_export(browser, export_html(page, tmp_path / "run.html"))


def click_where_it_is(page: Page, marker: Locator) -> None:
    """Click as a hand does, once the marker is in view: the charts move on while training is live."""
    expect(marker).to_be_visible(timeout=30_000)
    box = marker.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)


def export_html(page: Page, target: Path) -> Path:
    page.locator("#page-menu").click()
    with page.expect_download() as download:
        page.locator("#export-html").click()
    download.value.save_as(target)
    return target


def assert_in_offline_export(browser: Browser, file: Path) -> None:
    """The same event, with its line, in the file alone: no server, no network."""
    context = browser.new_context()
    context.set_offline(True)
    exported = context.new_page()
    requests: list[str] = []
    exported.on("request", lambda request: requests.append(request.url))
    exported.goto(file.as_uri())
    event = exported.locator("details", has_text="blocks.0.norm1").first
    expect(event).to_contain_text(f"at step {FAULT_STEP}")
    expect(exported.locator(".source-line.current", has_text=PLANTED).first).to_be_attached()
    assert [url for url in requests if not url.startswith(("data:", "blob:"))] == [file.as_uri()]
    context.close()
