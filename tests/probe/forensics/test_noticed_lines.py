"""A line at which a fault was only noticed: never shown like an origin, and the event says why."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from journals import read_journal
from torch import Tensor, nn

import probe
from dashboard.commands.events import table_lines
from dashboard.export.event_html import event_html
from dashboard.page.views import event_facts as facts
from dashboard.page.views.event_report import event_report
from dashboard.page.views.event_table import event_rows
from probe.wire import Event
from probe.wire.event_json import event_json
from probe.wire.event_places import BEGAN, NOTICED, is_only_noticed
from probe.wire.message_lines import why_no_line


class Counted(nn.Module):
    """Fails at its fourth call, by a count that no replay can put back."""

    def __init__(self, calls: list[int]) -> None:
        super().__init__()
        self.body, self._calls = nn.Linear(4, 3), (calls,)

    def forward(self, x: Tensor) -> Tensor:
        self._calls[0].append(1)
        return self.body(x) * (float("nan") if len(self._calls[0]) == 4 else 1.0)


class Plain(nn.Module):
    def __init__(self, calls: list[int]) -> None:
        super().__init__()
        self.body = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


def forward_not_again(model: nn.Module, opt: torch.optim.Optimizer, x: Tensor, step: int) -> None:
    model(x).square().mean().backward()


def weight_ruined_before(model: nn.Module, opt: torch.optim.Optimizer, x: Tensor, step: int) -> None:
    if step == 3:
        with torch.no_grad():
            next(model.parameters())[0, 0] = float("nan")
    model(x).square().mean().backward()


def two_suspects(model: nn.Module, opt: torch.optim.Optimizer, x: Tensor, step: int) -> None:
    parts = iter([0.0 if step == 3 else 1.0, 0.0 if step == 3 else 1.0])
    out = model(x)
    loss = out.mean() * next(parts) / next(parts)
    loss.backward()


CASES = {
    "forward not again": (Counted, forward_not_again),
    "weight ruined before": (Plain, weight_ruined_before),
    "lines not again": (Plain, two_suspects),
}


def event_of(model: nn.Module, update: Callable[..., None], spool: Path) -> Event:
    torch.manual_seed(0)
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    with probe.watch(model, opt, spool=spool, connect="") as run:
        for step in range(4):
            opt.zero_grad()
            update(model, opt, torch.randn(8, 4), step)
            opt.step()
        assert run._guard.failures == 0
    (journal,) = spool.iterdir()
    return next(event for event in read_journal(journal).events if event.kind == "nonfinite_loss")


@pytest.mark.parametrize("case", CASES)
def test_line_of_backward_is_shown_as_noticed_everywhere(case: str, tmp_path: Path) -> None:
    make, update = CASES[case]
    event = event_of(make([]), update, tmp_path / "spool")

    assert event.noticed_at is not None and is_only_noticed(event), event.message
    function = "Plain.forward" if event.stacks.forward else update.__name__
    assert (event.noticed_at.file, event.noticed_at.function) == (__file__, function)
    written = json.loads(json.dumps(event_json(event)))["noticed_at"]
    assert (written["file"], written["module"]) == (__file__, "body" if event.stacks.forward else None)
    why = why_no_line(event.message)
    assert why is not None
    label, _, reason = why.partition(" ")
    place = facts.place(event)
    assert (place[0].label, place[0].value[0]) == ("Noticed at", NOTICED)
    assert (place[1].label, place[1].value) == (label, reason)
    assert "Line" not in [fact.label for fact in place if fact.value.startswith(BEGAN)]
    texts = (
        event_report(event),
        event_html(event, started=None, stacks=False),
        "\n".join(table_lines([event])),
        event_rows([event])[0]["line"],
    )
    assert all(NOTICED in text and BEGAN not in text for text in texts)
    assert why in texts[2]


def test_proven_line_has_the_other_mark_and_no_place_where_it_was_noticed(tmp_path: Path) -> None:
    def divides(model: nn.Module, opt: torch.optim.Optimizer, x: Tensor, step: int) -> None:
        loss = model(x).mean() / (0.0 if step == 3 else 1.0)
        loss.backward()

    event = event_of(Plain([]), divides, tmp_path / "spool")

    assert event.stacks.forward, event.message
    assert event.noticed_at is None and not is_only_noticed(event)
    assert (facts.place(event)[0].label, facts.place(event)[0].value[0]) == ("Line", BEGAN)
    assert f"{BEGAN} " in event_rows([event])[0]["line"]
    assert NOTICED not in event_report(event)
