"""The file of outlets: what it may say, where secrets come from, and that no message repeats one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dashboard.errors import DashboardError
from dashboard.outlets.settings import Outlets, chosen_outlets, read_outlets

HOOK = '[[webhook]]\nname = "ops"\n'
SECRET = "https://hooks.example/T0/SECRET"


def read(
    folder: Path, text: str, *, mode: int = 0o600, name: str = "outlets.toml", **environment: str
) -> Outlets:
    path = folder / name
    path.write_text(text)
    path.chmod(mode)
    return read_outlets(path, environment)


def test_outlets_of_a_file_have_their_defaults(tmp_path: Path) -> None:
    ((hook, target),) = read(tmp_path, HOOK + f'url = "{SECRET}"\n').webhooks
    assert (hook.kind, hook.severities, hook.per_minute) == ("json", ("critical", "warning"), 6)
    assert (target.url, target.secret, target.attempts) == (SECRET, None, 6)


def test_outlets_may_be_json(tmp_path: Path) -> None:
    text = json.dumps({"webhook": [{"name": "ops", "kind": "slack", "url": SECRET}]})
    ((hook, _),) = read(tmp_path, text, name="outlets.json").webhooks
    assert hook.kind == "slack"


def test_outlets_take_addresses_and_secrets_from_environment_and_files(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("key\n")
    text = HOOK + 'url_env = "HOOK"\nsecret_file = "secret"\n'
    ((_, target),) = read(tmp_path, text, mode=0o644, HOOK=SECRET).webhooks
    assert (target.url, target.secret) == (SECRET, b"key")


def test_outlets_with_an_address_that_others_may_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DashboardError, match="chmod 600"):
        read(tmp_path, HOOK + f'url = "{SECRET}"\n', mode=0o644)


def test_outlets_show_no_secret_when_they_are_printed(tmp_path: Path) -> None:
    found = read(tmp_path, HOOK + f'url = "{SECRET}"\nsecret = "SECRET"\n')
    assert "SECRET" not in f"{found} {found!r}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[webhook", "is no TOML"),
        (HOOK, "has 0"),
        (HOOK + f'url = "{SECRET}"\nurl_env = "X"\n', "has 2"),
        (HOOK + 'url_env = "NOT_SET_SECRET_NAME"\n', "no variable NOT_SET"),
        (HOOK + 'url_file = "nowhere"\n', "cannot read its url_file"),
        (HOOK + 'url = "ftp://SECRET/x"\n', "http://HOST"),
        (HOOK + 'url = "https://user:SECRET@host/"\n', "http://HOST"),
        (HOOK + 'url = "https://host/ SECRET"\n', "http://HOST"),
        (HOOK + 'url = "https://host:99999/SECRET"\n', "http://HOST"),
        (HOOK + f'url = "{SECRET}"\nattempts = 0\n', "attempts"),
        (HOOK + f'url = "{SECRET}"\nseverities = []\n', "severities"),
        (HOOK + f'url = "{SECRET}"\ncolour = "red"\n', "colour"),
        (HOOK.replace("ops", "a b") + f'url = "{SECRET}"\n', "name"),
        ((HOOK + f'url = "{SECRET}"\n') * 2, "name of its own"),
        ('[otlp]\nurl = "http://h"\nheaders = {"x y" = "SECRET"}\n', "not a header"),
        ('[otlp]\nurl = "http://h"\nheaders = {x = "SECRET\\r\\ny: z"}\n', "not a header"),
        ('[otlp]\nurl = "http://h"\nheaders = {Content-Length = "1"}\n', "not a header"),
    ],
)
def test_outlets_that_are_wrong_say_what_and_no_secret(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(DashboardError, match=problem) as caught:
        read(tmp_path, text)
    assert "SECRET" not in str(caught.value).replace("NOT_SET_SECRET_NAME", "")


def test_outlets_of_otlp_take_headers_as_opentelemetry_writes_them(tmp_path: Path) -> None:
    text = '[otlp]\nurl = "http://h:4318/"\nheaders_env = "H"\n'
    found = read(tmp_path, text, H="api-key=a%20b, x=1").otlp
    assert found is not None
    assert (found[1].url, found[1].headers) == ("http://h:4318", {"api-key": "a b", "x": "1"})


def test_outlets_are_named_by_the_option_before_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "outlets.toml"
    path.write_text("")
    assert chosen_outlets(None, {}) is None
    assert chosen_outlets(None, {"NANSCOPE_OUTLETS": str(path)}) == Outlets()
    with pytest.raises(DashboardError, match="cannot read"):
        chosen_outlets(tmp_path / "other", {"NANSCOPE_OUTLETS": str(path)})
