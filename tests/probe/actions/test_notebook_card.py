"""The card of a run: what it says, that it is inert, and that training beside it is the same bit for bit."""

from __future__ import annotations

import base64
import json
import re
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
import torch
from torch import nn

import probe
from probe.actions.analysis.report_contents import Contents
from probe.actions.notebook.live_display import LiveDisplay, show_live, static_bundle
from probe.actions.notebook.run_card import RunCard, visible
from probe.actions.notebook.run_follower import RunFollower
from probe.wire import Event, Frame

HOSTILE = '</div><script>alert(1)</script><img src=x onerror="alert(2)">\u202egnp\x1b[31m'


class Handle:
    """What IPython's display handle does, without a screen."""

    made: ClassVar[list[Handle]] = []

    def __init__(self) -> None:
        self.shown: list[dict[str, Any]] = []
        Handle.made.append(self)

    def display(self, bundle: dict[str, Any], *, raw: bool) -> None:
        assert raw
        self.shown.append(bundle)

    def update(self, bundle: dict[str, Any], *, raw: bool) -> None:
        self.display(bundle, raw=raw)


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))


KEPT: list[nn.Module] = []
"""Models of the running test: a session ends when its model is gone."""


@pytest.fixture(autouse=True)
def models_live_as_long_as_their_test() -> Iterator[None]:
    yield
    KEPT.clear()


def train(steps: int, *, seed: int = 0, watched: bool = True, name: str = "card", shown: bool = False) -> Any:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 3))
    KEPT.append(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    run = probe.watch(net, optimizer, name=name, quiet=True) if watched else None
    display = LiveDisplay(run._shown_folder, interval_s=0.001) if run is not None and shown else None
    if display is not None:
        display.show(Handle)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(torch.randn(8, 6)), torch.randint(3, (8,))).backward()
        optimizer.step()
    if run is not None:
        run.flush()
    return run, display, [parameter.detach().clone() for parameter in net.parameters()]


def fault(step: int, message: str, severity: str = "critical") -> Event:
    return Event(
        id=f"{step:016x}",
        run="r",
        rank=0,
        incarnation=1,
        step=step,
        time=float(step),
        kind="nonfinite_loss",
        severity=severity,
        message=message,
    )


def card(*records: Any, name: str = "train.py", page: str | None = None) -> RunCard:
    contents = Contents()
    for record in records:
        contents.add(record)
    return RunCard(run="r", name=name, state="running", contents=contents, page=page)


def frames(*losses: float) -> list[Frame]:
    return [
        Frame(step=step, time=float(step), scalars={"loss": loss, "step_time_s": 0.1})
        for step, loss in enumerate(losses)
    ]


def test_card_of_a_real_training_says_how_it_stands() -> None:
    run, _, _ = train(30)
    bundle = run._repr_mimebundle_()
    html, text = bundle["text/html"], bundle["text/plain"]
    assert "No warnings in 30 steps" in html and "step 29" in html and "running" in html
    assert text == repr(run)
    tags = Tags(html).found
    assert [tag for tag, _ in tags].count("svg") == 2 and [tag for tag, _ in tags].count("img") == 1
    run.close()
    assert "finished" in run._repr_mimebundle_()["text/html"]


def test_heatmap_image_is_a_png_with_a_row_for_each_layer() -> None:
    run, _, _ = train(10)
    run.close()
    (data,) = re.findall(r"base64,([^\"]+)", static_bundle(run._shown_folder)["text/html"])
    image = base64.b64decode(data)
    width, height = struct.unpack(">II", image[16:24])
    assert image.startswith(b"\x89PNG\r\n\x1a\n") and (width, height) == (10, 2)
    at = image.index(b"IDAT")
    size = struct.unpack(">I", image[at - 4 : at])[0]
    assert len(zlib.decompress(image[at + 4 : at + 4 + size])) == height * (1 + 4 * width)


def test_first_critical_event_is_the_verdict() -> None:
    slow = msgspec.structs.replace(fault(2, "slow", "warning"), kind="performance_degradation")
    shown = card(*frames(1.0, 2.0), fault(9, "NaN in b"), fault(4, "NaN in a"), slow)
    assert shown.verdict == ("critical", "NaN in a \N{MIDDLE DOT} 2 other events")
    assert card(msgspec.structs.replace(slow, ended=True)).verdict == ("warning", "slow")
    assert card().facts() == "train.py \N{MIDDLE DOT} waiting for the first step \N{MIDDLE DOT} running"


def test_value_that_is_nan_has_a_tick_and_is_named() -> None:
    html = card(*frames(1.0, float("nan"))).html()
    assert ">NaN</b>" in html and 'stroke="#e03131"' in html
    assert "Loss: NaN" in card(*frames(1.0, float("nan"))).text()


def test_value_of_the_newest_step_is_exact_where_points_are_pooled() -> None:
    losses = [float(step) for step in range(1001)]
    assert (
        card(*frames(*losses)).text().endswith("Loss: 1,000") or "Loss: 1000" in card(*frames(*losses)).text()
    )


def test_hostile_text_stays_text() -> None:
    shown = card(*frames(1.0), fault(0, HOSTILE), name=HOSTILE, page="http://127.0.0.1:1/?run=%3C")
    tags = Tags(shown.html()).found
    assert {tag for tag, _ in tags} <= {"div", "b", "svg", "polyline", "line", "img", "a"}
    assert not any(key.startswith("on") for _, attributes in tags for key in attributes)
    assert "\u202e" not in shown.html() + shown.text() and "\x1b" not in shown.html() + shown.text()
    assert visible("a\u202eb\x00") == "a\ufffdb\ufffd"


def test_card_loads_nothing_and_frames_nothing() -> None:
    run, _, _ = train(5)
    run.close()
    for tag, attributes in Tags(static_bundle(run._shown_folder)["text/html"]).found:
        assert tag not in ("script", "iframe", "link", "style", "object", "embed")
        assert (attributes.get("src") or "data:").startswith("data:")


def test_show_of_a_session_an_id_and_a_folder_is_the_same_text() -> None:
    run, _, _ = train(12)
    run.close()
    folder = run._shown_folder
    texts = {repr(probe.show(which)) for which in (run, run.run, folder, str(folder))}
    assert len(texts) == 1 and "No warnings in 12 steps" in texts.pop()
    assert "<svg" in probe.show(run)._repr_mimebundle_()["text/html"]


@pytest.mark.parametrize("what", ["nothing-like-it", 7, "/nowhere/at/all"])
def test_show_of_what_is_no_run_is_refused(what: object) -> None:
    with pytest.raises(ValueError, match=r"show\(\)"):
        probe.show(what)


def test_session_that_records_nothing_has_no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANSCOPE_OFF", "1")
    run = probe.watch(nn.Linear(2, 2))
    assert run._repr_mimebundle_() is None
    with pytest.raises(NotImplementedError):
        run._ipython_display_()
    with pytest.raises(ValueError, match="records nothing"):
        probe.show(run)


def test_without_a_kernel_nothing_is_shown_live() -> None:
    run, _, _ = train(2)
    assert not show_live(run._shown_folder)
    run.close()


def test_live_card_is_redrawn_and_ends_with_the_run() -> None:
    Handle.made.clear()
    run, display, _ = train(40, shown=True)
    run.close()
    deadline = time.monotonic() + 60
    while not display.is_over and time.monotonic() < deadline:
        time.sleep(0.02)
    (handle,) = Handle.made
    assert display.is_over and len(handle.shown) >= 2
    assert "finished" in handle.shown[-1]["text/html"] and "step 39" in handle.shown[-1]["text/html"]


def test_live_card_whose_kernel_takes_no_more_ends(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Handle):
        def update(self, bundle: dict[str, Any], *, raw: bool) -> None:
            raise RuntimeError("the kernel is gone")

    run, _, _ = train(3)
    display = LiveDisplay(run._shown_folder, interval_s=0.001)
    display.show(Broken)
    deadline = time.monotonic() + 60
    while not display.is_over and time.monotonic() < deadline:
        time.sleep(0.02)
    assert display.is_over and "is no longer redrawn" in caplog.text
    run.close()


def test_training_is_the_same_to_the_last_bit_beside_a_card(one_thread: None) -> None:
    _, _, plain = train(60, watched=False)
    run, display, shown = train(60, shown=True)
    assert all(torch.equal(one, other) for one, other in zip(plain, shown, strict=True))
    run.close()
    display.stop()


def test_run_that_is_started_again_shows_its_newest_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANSCOPE_RUN", "again")
    first, _, _ = train(20)
    first.close()
    follower = RunFollower(first._shown_folder)
    while follower.look():
        pass
    assert follower.contents.last_step == 19 and follower.outcome == "finished"
    second, _, _ = train(4)
    while follower.look():
        pass
    assert follower.contents.last_step == 3 and follower.outcome is None
    second.close()


def test_nothing_of_ipython_is_imported_in_a_script(tmp_path: Path) -> None:
    program = (
        "import sys, json, torch, probe\n"
        "run = probe.watch(torch.nn.Linear(2, 2), quiet=True)\n"
        "probe.show(run)\nrun._repr_mimebundle_()\nrun.close()\n"
        "print(json.dumps([name for name in sys.modules if name.split('.')[0] in ('IPython', 'ipykernel')]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240)
    assert json.loads(done.stdout) == [], done.stderr
