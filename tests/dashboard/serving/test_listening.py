"""What a browser is started with, which every user of the machine can read."""

from __future__ import annotations

import stat
import webbrowser
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest

from dashboard.serving.listening import open_browser

ADDRESS = "http://127.0.0.1:8050/?token=secret&run=%22%3E"


def test_browser_is_started_with_a_private_page_that_leads_to_the_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    open_browser(ADDRESS, {"XDG_STATE_HOME": str(tmp_path / "a state")})
    (said,) = opened
    assert "secret" not in said and said.startswith("file:///")
    page = Path(url2pathname(urlsplit(said).path))
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert stat.S_IMODE(page.parent.stat().st_mode) == 0o700
    text = page.read_text(encoding="utf-8")
    assert 'content="0; url=http://127.0.0.1:8050/?token=secret&amp;run=%22%3E"' in text


def test_browser_is_not_started_where_no_page_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webbrowser, "open", lambda address: pytest.fail(address))
    (tmp_path / "nanscope").write_bytes(b"in the way")
    open_browser(ADDRESS, {"XDG_STATE_HOME": str(tmp_path)})
