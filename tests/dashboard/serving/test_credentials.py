"""Token and ingest secret: kept, private, replaceable."""

from __future__ import annotations

from pathlib import Path

import pytest

from dashboard.errors import DashboardError
from dashboard.serving.credentials import credentials_path, load_credentials
from probe.settings.places import write_private_file


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(folder), **more}


def test_credentials_survive_a_restart(tmp_path: Path) -> None:
    first = load_credentials(environment(tmp_path))
    assert load_credentials(environment(tmp_path)) == first


def test_credentials_file_is_private(tmp_path: Path) -> None:
    load_credentials(environment(tmp_path))
    assert credentials_path(environment(tmp_path)).stat().st_mode & 0o777 == 0o600


def test_credentials_of_two_users_differ(tmp_path: Path) -> None:
    one, other = (load_credentials(environment(tmp_path / name)) for name in ("a", "b"))
    assert one.token != other.token
    assert one.secret != other.secret
    assert len({one.token, one.view_token, other.view_token, other.token}) == 4


def test_credentials_of_an_older_version_get_what_they_lack_and_keep_the_rest(tmp_path: Path) -> None:
    path = credentials_path(environment(tmp_path))
    write_private_file(path, b'{"token": "kept-token", "secret": "%s"}' % (b"ab" * 32))
    upgraded = load_credentials(environment(tmp_path))
    assert (upgraded.token, upgraded.secret) == ("kept-token", "ab" * 32)
    assert len(upgraded.view_token) >= 24 and len(upgraded.session_key) == 64
    assert load_credentials(environment(tmp_path)) == upgraded
    assert path.stat().st_mode & 0o777 == 0o600


def test_credentials_view_token_of_the_environment_wins_and_differs(tmp_path: Path) -> None:
    chosen = load_credentials(environment(tmp_path, NANSCOPE_VIEW_TOKEN="only-looks"))
    assert (chosen.view_token, chosen.token_of("view")) == ("only-looks", "only-looks")
    same = environment(tmp_path, NANSCOPE_VIEW_TOKEN="same-token", NANSCOPE_TOKEN="same-token")
    with pytest.raises(DashboardError, match="must differ"):
        load_credentials(same)


def test_credentials_token_of_the_environment_wins_and_is_not_kept(tmp_path: Path) -> None:
    kept = load_credentials(environment(tmp_path))
    chosen = load_credentials(environment(tmp_path, NANSCOPE_TOKEN="my-own-token"))
    assert (chosen.token, chosen.secret) == ("my-own-token", kept.secret)
    assert load_credentials(environment(tmp_path)) == kept


@pytest.mark.parametrize(
    "token", ["short", "has a space in it", "semi;colon;token", "line\nbreak-token", "täg-token"]
)
@pytest.mark.parametrize("name", ["NANSCOPE_TOKEN", "NANSCOPE_VIEW_TOKEN"])
def test_credentials_unusable_token_is_refused(tmp_path: Path, name: str, token: str) -> None:
    with pytest.raises(DashboardError, match=name):
        load_credentials(environment(tmp_path, **{name: token}))


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"token": "abcdefgh", "secret": "no hex"}'])
def test_credentials_damaged_file_is_replaced(tmp_path: Path, content: bytes) -> None:
    load_credentials(environment(tmp_path))
    credentials_path(environment(tmp_path)).write_bytes(content)
    assert len(load_credentials(environment(tmp_path)).token) >= 24


def test_credentials_folder_that_cannot_be_made_says_what_to_set(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("x")
    with pytest.raises(DashboardError, match=r"^Cannot write .*; set XDG_STATE_HOME to a folder of yours\.$"):
        load_credentials(environment(tmp_path / "state"))


def test_credentials_file_that_others_can_read_is_replaced(tmp_path: Path) -> None:
    leaked = load_credentials(environment(tmp_path))
    credentials_path(environment(tmp_path)).chmod(0o644)
    assert load_credentials(environment(tmp_path)).token != leaked.token
