"""docs/migration.md: what it says to call is executed in the order of each older guide, and checked."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import walk_of_ads_guide
import walk_of_email_guide
import walk_of_security_guide
import walk_of_video_guide
from guide_walk import TEXT, Example, Walk, examples, items, sections, wait_for, walking
from page_fixtures import TOKEN, Served

import probe
from probe.delivery.helper.helper import host_folder, lock_owner, lock_path
from probe.settings.places import read_serve_state

WALKS: dict[str, list[Example]] = {
    "The training debugger of the ads system": walk_of_ads_guide.WALK,
    "The debugger of the email system": walk_of_email_guide.WALK,
    "The debugger of the video system": walk_of_video_guide.WALK,
    "The debugger of the security system": walk_of_security_guide.WALK,
}
BLOCKS = {
    "The training debugger of the ads system": 22,
    "The debugger of the email system": 25,
    "The debugger of the video system": 14,
    "The debugger of the security system": 34,
}
"""How many the guides have."""


def test_page_has_each_block_of_each_guide_in_its_order_and_a_check_for_each_line() -> None:
    assert list(sections()) == list(WALKS)
    for title, text in sections().items():
        shape = [(example, len(found)) for example, found in examples(text)]
        assert shape == [(example, len(checks)) for example, checks in WALKS[title]], title
        assert len(shape) == BLOCKS[title]


def test_every_row_and_block_of_the_page_is_one_of_those_that_are_executed() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("| ") and "| before |" not in line]
    fences = TEXT.count("\n```python\n") - 1  # that before the first section
    assert len(rows) + fences == sum(len(items(text)) for text in sections().values()) > 120


def follow(walk: Walk, title: str) -> None:
    for (_, found), (_, checks) in zip(examples(sections()[title]), WALKS[title], strict=True):
        for item, check in zip(found, checks, strict=True):
            walk.go(item, check)


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread", "nothing_switched_off", "fresh_compiler")
@pytest.mark.filterwarnings("ignore:Error detected in MulBackward0")
# torch's own imports, at the first compilation
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    "title",
    [
        pytest.param(title, marks=[pytest.mark.faults] if "email" in title else [])
        for title in WALKS
        if "ads" not in title
    ],
)
def test_guide_is_walked_from_its_first_block_to_its_last(
    title: str, spool: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(spool.parent)
    caplog.set_level("INFO")
    with walking(spool, caplog) as walk:
        follow(walk, title)


def http_of(served: Served) -> Callable[[str, str], Any]:
    """A client of a page, for programs."""

    def http(method: str, path: str) -> Any:
        address = served.server.page + path.removeprefix("/")
        request = urllib.request.Request(address, method=method)
        request.add_header("authorization", f"Bearer {TOKEN}")
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.loads(answer.read())

    return http


def has_arrived(http: Callable[[str, str], Any], run: probe.Probe) -> bool:
    """Whether the page has what the run has recorded, and can ask its training."""
    try:
        http("GET", f"/api/v1/runs/{run.run}/control")
        arrived = http("GET", f"/training-logs/debug/summary?run={run.run}")
    except urllib.error.HTTPError:
        return False
    recorded = run.get_debug_summary()
    return arrived["training_debugger"]["total_steps"] == recorded["total_steps"] and (
        sum(part["debug_history_length"] for part in arrived.values()) == recorded["debug_history_length"]
    )


@pytest.mark.usefixtures("one_thread", "nothing_switched_off")
def test_guide_of_the_ads_system_is_walked_beside_a_page(
    served: Served, spool: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    state = read_serve_state({"XDG_STATE_HOME": str(spool.parent / "state")})
    assert state is not None
    monkeypatch.setenv("NANSCOPE_SECRET", state.secret)
    monkeypatch.setenv("NANSCOPE_CONNECT", served.server.ingest)
    monkeypatch.chdir(spool.parent)
    caplog.set_level("INFO")
    probe.clear_debug_history()  # denoising steps are counted by the process, which other tests share
    http = http_of(served)
    with walking(spool, caplog) as walk:
        walk.scope["http"] = http
        walk.scope["wait_for_page"] = lambda: wait_for(
            lambda: has_arrived(http, walk.scope["run"]), "the page does not have what was recorded"
        )
        follow(walk, "The training debugger of the ads system")
    locks = [lock_path(host_folder(folder)) for folder in spool.iterdir() if folder.is_dir()]
    wait_for(lambda: all(lock_owner(lock) is None for lock in locks), "a helper does not leave")
