"""Webhooks against a real HTTP server: one that takes, fails, hangs, redirects, or asks to wait."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import page_runs
import pytest
from receiver import Answer, receiving, wait_for

from dashboard.outlets.courier import Courier
from dashboard.outlets.messages import MOST_EVENTS, discord_message, json_message, slack_message
from dashboard.outlets.news import News
from dashboard.outlets.posting import LONGEST_WAIT_S, retry_after_s
from dashboard.outlets.settings import Target, Webhook
from dashboard.outlets.waiting_news import MOST_WAITING
from dashboard.outlets.webhooks import WebhookThread

SECRET = b"the operator's secret"


def news(step: int = 7, **fields: Any) -> News:
    return News(run_name="train.py", event=page_runs.event(step, **fields))


@contextmanager
def hooked(url: str, *, timeout_s: float = 5.0, attempts: int = 3, **options: Any) -> Iterator[WebhookThread]:
    target = Target(url=url, secret=SECRET, timeout_s=timeout_s, attempts=attempts)
    hook = Webhook(name="ops", **{"group_s": 0.0, "per_minute": 600, **options})
    thread = WebhookThread(hook, target, page="http://127.0.0.1:8050/", first_wait_s=0.01)
    thread.start()
    try:
        yield thread
    finally:
        thread.stop()


def test_webhook_sends_an_event_as_json_with_a_signature_over_time_and_body() -> None:
    with receiving() as receiver, hooked(receiver.url + "/in") as hook:
        hook.offer([news()])
        (request,) = receiver.wait(1)
    timestamp = request.headers["x-nanscope-timestamp"]
    expected = hmac.new(SECRET, f"{timestamp}.".encode() + request.body, hashlib.sha256).hexdigest()
    assert request.headers["x-nanscope-signature"] == f"v1={expected}"
    assert abs(int(timestamp) - time.time()) < 60
    assert request.path == "/in"
    document = request.json()
    assert document["delivery"] == request.headers["x-nanscope-delivery"]
    (event,) = document["events"]
    assert (event["run"], event["kind"], event["step"]) == ("demo-run", "nonfinite_loss", 7)
    assert "stacks" not in event


def test_webhook_that_fails_is_tried_again_with_the_same_delivery() -> None:
    with receiving(Answer(500), Answer(503), Answer(204)) as receiver, hooked(receiver.url) as hook:
        hook.offer([news()])
        wait_for(lambda: hook.status.sent == 1)
    assert len({request.headers["x-nanscope-delivery"] for request in receiver.requests}) == 1
    assert len({request.body for request in receiver.requests}) == 1
    assert len(receiver.requests) == 3
    assert hook.status.problem is None


def test_webhook_that_goes_on_failing_is_given_up_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), receiving(Answer(500)) as receiver:
        with hooked(receiver.url + "/services/T0/SECRET") as hook:
            hook.offer([news(1)])
            wait_for(lambda: hook.status.failed == 1)
            hook.offer([news(2)])
            wait_for(lambda: hook.status.failed == 2)
            assert hook.status.problem == "it answered 500"
    assert len(receiver.requests) == 6
    assert [record.message for record in caplog.records] == ["outlet ops: it answered 500"]


@pytest.mark.parametrize("status", [400, 401, 404, 410])
def test_webhook_that_refuses_is_not_tried_again(status: int) -> None:
    with receiving(Answer(status)) as receiver, hooked(receiver.url) as hook:
        hook.offer([news()])
        wait_for(lambda: hook.status.failed == 1)
    assert len(receiver.requests) == 1


def test_webhook_follows_no_redirect() -> None:
    with receiving() as elsewhere:
        with receiving(Answer(302, {"location": elsewhere.url})) as receiver, hooked(receiver.url) as hook:
            hook.offer([news()])
            wait_for(lambda: hook.status.failed == 1)
            assert "redirect" in str(hook.status.problem)
        assert elsewhere.requests == []


def test_webhook_waits_as_long_as_the_other_side_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = []
    waiting = Courier._wait_s

    def noted(self: Courier, attempt: int, posted: Any) -> float:
        waits.append(waiting(self, attempt, posted))
        return 0.0

    monkeypatch.setattr(Courier, "_wait_s", noted)
    answers = [Answer(429, {"retry-after": "17"}), Answer(204)]
    with receiving(*answers) as receiver, hooked(receiver.url) as hook:
        hook.offer([news()])
        wait_for(lambda: hook.status.sent == 1)
    assert waits == [17.0]


def test_webhook_that_hangs_times_out_and_holds_up_neither_others_nor_who_offers() -> None:
    with receiving(Answer(hangs=True)) as slow, receiving() as quick:
        with hooked(slow.url, timeout_s=0.2, attempts=2) as stuck, hooked(quick.url) as hook:
            stuck.offer([news(1)])
            slow.wait(1)
            stuck.offer([news(2)])
            hook.offer([news(2)])
            quick.wait(1)
            wait_for(lambda: stuck.status.failed >= 1)
            assert stuck.status.problem == "it did not answer within 0.2 s"


def test_webhook_that_nobody_answers_says_so_without_its_address(caplog: pytest.LogCaptureFixture) -> None:
    with receiving() as receiver:
        gone = receiver.url
    with hooked(gone + "/services/SECRET") as hook:
        hook.offer([news()])
        wait_for(lambda: hook.status.failed == 1)
    assert hook.status.problem == "Connection refused"
    assert "SECRET" not in caplog.text + repr(hook.status)


@pytest.mark.parametrize("host", ["a" * 70, "a..b"])
def test_webhook_of_a_host_that_cannot_be_found_says_so(host: str) -> None:
    with hooked(f"http://{host}/", attempts=1) as hook:
        hook.offer([news()])
        wait_for(lambda: hook.status.failed == 1)
    assert hook.status.problem == "its host's name is not known"


def test_webhook_groups_what_comes_together_and_keeps_to_its_limit() -> None:
    with receiving() as receiver, hooked(receiver.url, per_minute=1) as hook:
        hook.offer([news(1), news(2)])
        receiver.wait(1)
        hook.offer([news(3)])
        hook.offer([news(4)])
        wait_for(lambda: hook.status.waiting == 2)
        assert len(receiver.requests) == 1
    assert [len(request.json()["events"]) for request in receiver.requests] == [2, 2]  # the rest at the end


def test_webhook_takes_only_its_severities_and_kinds() -> None:
    with receiving() as receiver, hooked(receiver.url, severities=["critical"], kinds=["hang"]) as hook:
        hook.offer([news(1), news(2, kind="hang", severity="warning"), news(3, kind="hang")])
        (request,) = receiver.wait(1)
    assert [event["step"] for event in request.json()["events"]] == [3]


def test_webhook_that_cannot_keep_up_counts_what_it_throws_away() -> None:
    with receiving(Answer(hangs=True)) as receiver:
        with hooked(receiver.url, timeout_s=0.5, attempts=1) as hook:
            hook.offer([news(0)])
            receiver.wait(1)
            hook.offer([news(step) for step in range(MOST_WAITING + 5)])
            assert (hook.status.dropped, hook.status.waiting) == (5, MOST_WAITING)


def test_slack_message_cannot_mention_and_groups_an_episode_of_many_layers() -> None:
    events = [news(step, subject=f"l{step}", message="<!channel> & NaN") for step in (1, 2, 3)]
    text = json.loads(slack_message(events))["text"]
    assert text.splitlines() == [
        "\N{LARGE RED CIRCLE} *train.py* non-finite loss: &lt;!channel&gt; &amp; NaN (and 2 more)"
    ]


def test_discord_message_mentions_nobody_and_fits() -> None:
    events = [news(1, kind=f"kind{n}", message="@everyone **x** " + "y" * 4000) for n in range(12)]
    document = json.loads(discord_message(events))
    assert document["allowed_mentions"] == {"parse": []}
    assert len(document["content"]) <= 2000
    assert r"\@everyone \*\*x\*\*" in document["content"]
    shown = document["content"].count("\N{LARGE RED CIRCLE}")
    assert document["content"].endswith(f"and {12 - shown} more kinds of events")


def test_json_message_of_many_events_is_bounded_and_says_so() -> None:
    document = json.loads(json_message([news(n) for n in range(60)], delivery="d", page="p", sent=1.0))
    assert (len(document["events"]), document["left_out"]) == (MOST_EVENTS, 60 - MOST_EVENTS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3", 3.0),
        ("0.25", 0.25),
        ("-1", 0.0),
        ("99999999", LONGEST_WAIT_S),
        ("nan", None),
        ("soon", None),
        (None, None),
        ("Thu, 01 Jan 1970 00:01:00 GMT", 20.0),
    ],
)
def test_retry_after_reads_seconds_and_dates(text: str | None, expected: float | None) -> None:
    assert retry_after_s(text, now=40.0) == expected
