"""Bodies of webhooks out of news: JSON, Slack, Discord; and their signature. Pure.

Slack: https://api.slack.com/messaging/webhooks. Discord: https://discord.com/developers/docs/resources/webhook.
Texts come from trainings: nothing in them can mention a person, make a link or format.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Sequence
from typing import Any, Final

from probe.wire.event_json import jsonable
from probe.wire.event_texts import kind_label

from ..page.views.event_facts import heading
from .news import News

VERSION: Final = 1
MOST_EVENTS: Final = 50
"""Of one JSON message; the others are counted."""
MOST_ADVICE: Final = 5
MOST_LINES: Final = 10
"""Of one message to people; one line is one kind of event of one run."""
MOST_DISCORD: Final = 1900
"""Characters; Discord takes 2,000."""
_LINE: Final = 300
_FIELDS: Final = (
    "id run rank model step micro_step time kind severity subject message origin noticed_at advice "
    "count last_step ended".split()
)
_MARKS: Final = {
    "critical": "\N{LARGE RED CIRCLE}",
    "warning": "\N{LARGE YELLOW CIRCLE}",
    "info": "\N{LARGE BLUE CIRCLE}",
}
_DISCORD: Final = re.compile(r"([\\*_~`|>#\[\]()<:@-])")


def json_message(news: Sequence[News], *, delivery: str, page: str, sent: float) -> bytes:
    """Return the generic message: `{"v", "delivery", "sent", "page", "events", "left_out"}`."""
    shown = news[:MOST_EVENTS]
    document = {
        "v": VERSION,
        "delivery": delivery,
        "sent": sent,
        "page": page,
        "events": [_event(each) for each in shown],
        "left_out": len(news) - len(shown),
    }
    return json.dumps(document, allow_nan=False).encode()


def _event(news: News) -> dict[str, Any]:
    fields = {name: jsonable(getattr(news.event, name)) for name in _FIELDS}
    return {"run_name": news.run_name, **fields, "advice": fields["advice"][:MOST_ADVICE]}


def slack_message(news: Sequence[News]) -> bytes:
    """Return a message for an incoming webhook of Slack."""
    lines = [f"{mark} *{_slack(run)}* {_slack(text)}" for mark, run, text in _lines(news)]
    text = "\n".join([*lines, *_left_out(news, len(lines))])
    return json.dumps({"text": text, "unfurl_links": False, "unfurl_media": False}).encode()


def _slack(text: str) -> str:
    """https://api.slack.com/reference/surfaces/formatting#escaping"""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def discord_message(news: Sequence[News]) -> bytes:
    """Return a message for a webhook of Discord."""
    lines = [f"{mark} **{_discord(run)}** {_discord(text)}" for mark, run, text in _lines(news)]
    while sum(map(len, lines)) + len(lines) > MOST_DISCORD:
        lines.pop()
    content = "\n".join([*lines, *_left_out(news, len(lines))])
    document = {"content": content, "username": "nanscope", "allowed_mentions": {"parse": []}}
    return json.dumps(document).encode()


def _discord(text: str) -> str:
    return _DISCORD.sub(r"\\\1", text)


def _lines(news: Sequence[News]) -> list[tuple[str, str, str]]:
    """(mark, run, text) of each kind of event of each run: the first of them, and how many more."""
    lines = []
    for (run, severity, kind), members in list(_groups(news).items())[:MOST_LINES]:
        text = " ".join(heading(members[0].event).split())[:_LINE]
        others = f" (and {len(members) - 1:,} more)" if len(members) > 1 else ""
        name = " ".join((members[0].run_name or run).split())[:64]
        lines.append((_MARKS[severity], name, f"{kind_label(kind)}: {text}{others}"))
    return lines


def _left_out(news: Sequence[News], shown: int) -> list[str]:
    left = len(_groups(news)) - shown
    return [f"and {left:,} more kinds of events"] if left else []


def _groups(news: Sequence[News]) -> dict[tuple[str, str, str], list[News]]:
    """(run, severity, kind) -> what belongs together."""
    groups: dict[tuple[str, str, str], list[News]] = {}
    for each in news:
        groups.setdefault((each.event.run, each.event.severity, each.event.kind), []).append(each)
    return groups


def signature(secret: bytes, timestamp: str, body: bytes) -> str:
    """Return `v1=` and HMAC-SHA256, in hexadecimal, of timestamp, a dot and the body."""
    return "v1=" + hmac.new(secret, timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
