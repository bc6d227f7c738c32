"""Sessions: signed, of one role; ended by age, by logging out, by a revocation; they survive a restart."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.serving.credentials import Credentials, credentials_path, end_all_sessions, load_credentials
from dashboard.serving.sessions import MOST_ENDED, SESSION_SECONDS, Sessions

CREDENTIALS = Credentials(token="t" * 20, view_token="v" * 20, secret="0" * 64, session_key="1" * 64)


class Clock:
    """UNIX seconds that a test moves."""

    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def started(folder: Path, clock: Clock | None = None, **environment: str) -> Sessions:
    """Sessions of a server that has started on this state."""
    known = {"XDG_STATE_HOME": str(folder), **environment}
    return Sessions(load_credentials(known), known, clock=clock or Clock())


@pytest.mark.parametrize("role", ["control", "view"])
def test_session_has_its_role_after_a_restart(tmp_path: Path, role: str) -> None:
    session = started(tmp_path).begin(role)  # type: ignore[arg-type]
    assert started(tmp_path).role_of(session) == role


def test_sessions_hold_no_token_and_differ(tmp_path: Path) -> None:
    sessions = started(tmp_path, NANSCOPE_TOKEN="token-in-clear")
    one, other = sessions.begin("control"), sessions.begin("control")
    assert one != other
    assert "token-in-clear" not in one + other


def test_session_ends_by_age(tmp_path: Path, clock: Clock) -> None:
    sessions = started(tmp_path, clock)
    session = sessions.begin("control")
    clock.now += SESSION_SECONDS - 1
    assert sessions.role_of(session) == "control"
    clock.now += 1
    assert sessions.role_of(session) is None


def test_session_from_the_future_is_none_but_survives_a_clock_put_right(tmp_path: Path, clock: Clock) -> None:
    sessions = started(tmp_path, clock)
    session = sessions.begin("control")
    clock.now -= 60
    assert sessions.role_of(session) == "control"
    clock.now -= 3600
    assert sessions.role_of(session) is None


def test_session_ends_with_a_revocation_at_a_running_server(tmp_path: Path) -> None:
    sessions = started(tmp_path)
    session = sessions.begin("control")
    end_all_sessions({"XDG_STATE_HOME": str(tmp_path)})
    assert sessions.role_of(session) is None
    assert sessions.role_of(sessions.begin("control")) == "control"
    assert started(tmp_path).role_of(session) is None


def test_revocation_leaves_tokens_and_secret(tmp_path: Path) -> None:
    before = load_credentials({"XDG_STATE_HOME": str(tmp_path)})
    end_all_sessions({"XDG_STATE_HOME": str(tmp_path)})
    after = load_credentials({"XDG_STATE_HOME": str(tmp_path)})
    assert (after.token, after.view_token, after.secret) == (before.token, before.view_token, before.secret)
    assert after.session_key != before.session_key


def test_session_that_was_ended_stays_so_after_a_restart_and_others_go_on(tmp_path: Path) -> None:
    sessions = started(tmp_path)
    ended, other = sessions.begin("control"), sessions.begin("control")
    sessions.end(ended)
    for each in (sessions, started(tmp_path)):
        assert (each.role_of(ended), each.role_of(other)) == (None, "control")


def test_ended_sessions_are_few_and_one_too_many_ends_all(tmp_path: Path) -> None:
    sessions = started(tmp_path)
    path = credentials_path({"XDG_STATE_HOME": str(tmp_path)})
    kept = msgspec.json.decode(path.read_bytes(), type=Credentials)
    full = tuple(f"c.{int(Clock.now):x}.{number}" for number in range(MOST_ENDED))
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(kept, ended=full)))
    one, other = sessions.begin("view"), sessions.begin("control")
    sessions.end(one)
    assert (sessions.role_of(one), sessions.role_of(other)) == (None, None)
    assert msgspec.json.decode(path.read_bytes(), type=Credentials).ended == ()


def test_ended_sessions_are_forgotten_once_they_are_too_old_anyway(tmp_path: Path, clock: Clock) -> None:
    sessions = started(tmp_path, clock)
    sessions.end(sessions.begin("view"))
    clock.now += SESSION_SECONDS
    sessions.end(sessions.begin("view"))
    path = credentials_path({"XDG_STATE_HOME": str(tmp_path)})
    assert len(msgspec.json.decode(path.read_bytes(), type=Credentials).ended) == 1


def test_session_of_another_token_is_none(tmp_path: Path) -> None:
    session = started(tmp_path, NANSCOPE_TOKEN="first-token").begin("control")
    assert started(tmp_path, NANSCOPE_TOKEN="second-token").role_of(session) is None
    assert started(tmp_path, NANSCOPE_TOKEN="first-token").role_of(session) == "control"


def test_sessions_go_on_where_the_file_was_deleted_or_damaged(tmp_path: Path) -> None:
    sessions = started(tmp_path)
    session = sessions.begin("control")
    path = credentials_path({"XDG_STATE_HOME": str(tmp_path)})
    path.write_bytes(b"{")
    assert sessions.role_of(session) == "control"
    path.unlink()
    assert sessions.role_of(session) == "control"


@given(st.text(max_size=250) | st.from_regex(r"\A[cvx]\.[0-9a-f]{0,8}\.[^.]{0,16}\.[A-Za-z0-9_-]{0,43}\Z"))
def test_what_is_no_session_is_none(text: str) -> None:
    assert Sessions(CREDENTIALS, {"XDG_STATE_HOME": "/nowhere"}).role_of(text) is None


@given(st.integers(0, 200), st.integers(0, 127))
def test_session_with_one_character_changed_is_none(place: int, code: int) -> None:
    sessions = Sessions(CREDENTIALS, {"XDG_STATE_HOME": "/nowhere"}, clock=Clock())
    session = sessions.begin("view")
    place %= len(session)
    changed = session[:place] + chr(code) + session[place + 1 :]
    assert (sessions.role_of(changed) is None) == (changed != session)
