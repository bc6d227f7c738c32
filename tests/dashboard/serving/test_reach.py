"""The page beyond loopback: what is refused and which command is said, TLS and a declared proxy for real."""

from __future__ import annotations

import http.client
import shutil
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dashboard.client import Client, ClientError
from dashboard.errors import DashboardError
from dashboard.serving.reach import Reach, connect_address, first_certificate
from dashboard.serving.running import RunningNote, find_server_of
from dashboard.serving.server import Server
from probe.settings.places import read_serve_state

TOKEN = "a-token-that-is-long-enough"


def environment(folder: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(folder / "state"), "NANSCOPE_TOKEN": TOKEN}


@contextmanager
def serving(folder: Path, reach: Reach) -> Iterator[Server]:
    server = Server(
        reach=reach,
        port=0,
        ingest="tcp://127.0.0.1:0",
        data=folder / "data",
        spool=folder / "spool",
        environment=environment(folder),
    )
    server.start()
    try:
        yield server
    finally:
        server.stop()


def note_of(folder: Path) -> RunningNote:
    note = find_server_of(folder / "data")
    assert note is not None, "the server is not found by its note"
    return note


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Reach]:
    """Two certificates of two keys, for the same name."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl that makes a certificate")
    folder, found = tmp_path_factory.mktemp("tls"), []
    for name in ("one", "other"):
        certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
        command = (
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=nanscope"
        )
        subprocess.run(
            [*command.split(), "-keyout", key, "-out", certificate],
            check=True,
            capture_output=True,
            timeout=60,
        )
        found.append(Reach(certificate=certificate, key=key))
    return found


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "gpu01.example"])
def test_page_without_tls_is_refused_and_told_what_to_use(tmp_path: Path, host: str) -> None:
    with pytest.raises(DashboardError) as caught:
        Server(host=host, port=8060, environment=environment(tmp_path))
    text = str(caught.value)
    assert "ssh -N -L 8060:127.0.0.1:8060 " in text and f"@{socket.gethostname()}" in text
    assert f"dashboard serve --host {host} --port 8060 --tls-cert" in text
    assert f"dashboard serve --host {host} --port 8060 --behind-proxy https://" in text


@pytest.mark.parametrize(
    "public",
    [
        "http://train.example",
        "https://",
        "train.example",
        "https://train.example/path",
        "https://Train.example",
        "https://user@train.example",
        "https://train.example:99999",
        "https://train.example?x",
    ],
)
def test_proxy_that_is_no_origin_is_refused(tmp_path: Path, public: str) -> None:
    with pytest.raises(DashboardError, match="--behind-proxy"):
        Server(reach=Reach(public=public), environment=environment(tmp_path))


@pytest.mark.parametrize(
    "reach",
    [
        Reach(certificate=Path("/absent.pem")),
        Reach(key=Path("/absent.pem")),
        Reach(certificate=Path(__file__)),
    ],
)
def test_certificate_that_cannot_be_used_is_refused(tmp_path: Path, reach: Reach) -> None:
    with pytest.raises(DashboardError, match="--tls-cert"):
        Server(reach=reach, environment=environment(tmp_path))


def test_short_token_beyond_loopback_is_refused(tmp_path: Path) -> None:
    known = {**environment(tmp_path), "NANSCOPE_VIEW_TOKEN": "shorter-15-char"}
    with pytest.raises(DashboardError, match="at least 16 characters"):
        Server(reach=Reach(public="https://train.example"), environment=known)
    Server(environment=known)


def test_page_with_tls_answers_its_own_commands_and_gives_secure_cookies(
    tmp_path: Path, made: list[Reach]
) -> None:
    with serving(tmp_path, made[0]) as server:
        note = note_of(tmp_path)
        assert note.page == server.page == read_serve_state(environment(tmp_path)).page  # type: ignore[union-attr]
        assert server.page.startswith("https://127.0.0.1:")
        assert Client(note.page, note.token, certificate=note.certificate).health()["status"] == "ok"
        port = int(server.page.rsplit(":", 1)[1].strip("/"))
        context = ssl.create_default_context(cadata=note.certificate)
        context.check_hostname = False
        connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=20)
        connection.request("GET", f"/?token={TOKEN}")
        cookie = connection.getresponse().headers["set-cookie"]
        connection.close()
    assert cookie.startswith(f"__Host-nanscope_{port}=c.")
    assert {"Secure", "HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))


def test_commands_take_no_other_certificate_for_that_of_the_page(tmp_path: Path, made: list[Reach]) -> None:
    assert made[1].certificate is not None
    with serving(tmp_path, made[0]) as server, pytest.raises(ClientError, match="does not answer"):
        Client(server.page, TOKEN, certificate=first_certificate(made[1].certificate)).health()


def test_page_with_tls_does_not_answer_without(tmp_path: Path, made: list[Reach]) -> None:
    with serving(tmp_path, made[0]) as server, pytest.raises((urllib.error.URLError, OSError)):
        urllib.request.urlopen(server.page.replace("https", "http"), timeout=20)


def test_page_on_all_addresses_answers_under_its_own_names_only(tmp_path: Path, made: list[Reach]) -> None:
    reach = Reach(host="0.0.0.0", certificate=made[0].certificate, key=made[0].key)
    with serving(tmp_path, reach) as server:
        note = note_of(tmp_path)
        host = socket.gethostname().lower()
        assert note.page.startswith("https://127.0.0.1:")
        assert server.address == note.address
        assert note.address.startswith(f"https://{host}:")
        port = note.page.rsplit(":", 1)[1].strip("/")
        client = Client(note.page, note.token, certificate=note.certificate)
        found = {}
        for name in (f"{host}:{port}", f"evil.example:{port}", host):
            request = urllib.request.Request(
                f"{note.page}health", headers={"host": name, "x-nanscope-token": TOKEN}
            )
            try:
                found[name] = client._opener.open(request, timeout=20).status
            except urllib.error.HTTPError as error:
                found[name] = error.code
    assert list(found.values()) == [200, 421, 421]


def test_page_behind_a_proxy_takes_its_name_and_gives_secure_cookies(tmp_path: Path) -> None:
    with serving(tmp_path, Reach(public="https://train.example")) as server:
        note = note_of(tmp_path)
        assert note.page.startswith("http://127.0.0.1:")
        assert note.address == server.address == f"https://train.example/?token={TOKEN}"
        assert note.view_address.startswith("https://train.example/?token=")
        connection = http.client.HTTPConnection(note.page.removeprefix("http://").strip("/"), timeout=20)

        def ask(method: str, path: str, **headers: str) -> http.client.HTTPResponse:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            answer.read()
            return answer

        opened = ask("GET", f"/?token={TOKEN}", host="train.example")
        cookie = opened.headers["set-cookie"]
        shown = {"host": "train.example", "cookie": cookie.partition(";")[0]}
        policy = ask("GET", "/health", **shown).headers["content-security-policy"]
        statuses = [
            ask("POST", "/logout", **shown, origin=origin).status
            for origin in ("http://train.example", "https://evil.example", "https://train.example")
        ]
        foreign = ask("GET", "/health", **{**shown, "host": "evil.example"}).status
        connection.close()
    assert cookie.startswith("__Host-nanscope_") and "; Secure" in cookie
    assert "wss://train.example" in policy
    assert (statuses, foreign) == ([403, 403, 204], 421)


@pytest.mark.parametrize(
    ("listens", "reached"),
    [
        ("tcp://0.0.0.0:8051", "tcp://127.0.0.1:8051"),
        ("tcp://[::]:8051", "tcp://[::1]:8051"),
        ("tcp://*:8051", "tcp://127.0.0.1:8051"),
        ("tcp://192.168.1.5:8051", "tcp://192.168.1.5:8051"),
        ("ipc:///tmp/x", "ipc:///tmp/x"),
    ],
)
def test_trainings_of_this_machine_reach_an_ingest_on_all_addresses(listens: str, reached: str) -> None:
    assert connect_address(listens) == reached
