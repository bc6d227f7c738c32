"""A profile that the script makes has the modules that it has without the probe, from its first steps on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_scripts import ForkedScripts
from torch import nn
from torch.autograd import profiler as autograd_profiler
from torch.profiler import ProfilerActivity

import probe
from probe.compat.profiler_starts import STARTS, ProfilerStarts
from probe.compat.torch_profiler import OtherProfilers

PROGRAM = """
import collections, contextlib, json, sys, torch
from torch import nn
how, spool = sys.argv[1:]
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
run = contextlib.nullcontext()
if spool:
    import probe
    run = probe.watch(model, optimizer, connect="", spool=spool, quiet=True)
def step():
    optimizer.zero_grad()
    model(torch.ones(4, 8)).square().mean().backward()
    optimizer.step()
kinds = {"stack": {"with_stack": True}, "modules": {"with_modules": True, "record_shapes": True}}
def scheduled():
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=1)
    with torch.profiler.profile(with_stack=True, schedule=schedule) as profile:
        for _ in range(6):
            step()
            profile.step()
    return profile
def plain(**options):
    step()
    with torch.profiler.profile(**options) as profile:
        for _ in range(3):
            step()
    return profile
def old():
    step()
    with torch.autograd.profiler.profile(use_kineto=True, with_stack=True) as profile:
        for _ in range(3):
            step()
    return profile
made = {"scheduled": scheduled, "old": old}
with run:
    first = made[how]() if how in made else plain(**kinds[how])
    again = plain(with_stack=True)
def modules(profile):
    inner = getattr(profile, "profiler", profile)
    names = collections.Counter()
    waiting = list(inner.kineto_results.experimental_event_tree())
    while waiting:
        event = waiting.pop()
        waiting += event.children
        if event.tag.name == "PyCall" and event.extra_fields.module is not None:
            names[event.name] += 1
    return dict(sorted(names.items()))
print(json.dumps([modules(first), modules(again)]))
"""


def modules_of(forked: ForkedScripts, folder: Path, how: str, spool: str) -> Any:
    """In a process that has made no profile before."""
    code, out, err = forked.start(["-c", PROGRAM, how, spool], folder).finish()
    assert code == 0, err
    return json.loads(out.splitlines()[-1])


@pytest.mark.parametrize(
    "how",
    ["stack", "scheduled", *(pytest.param(how, marks=pytest.mark.faults) for how in ("modules", "old"))],
)
def test_modules_of_a_profile_are_those_without_the_probe(
    how: str, tmp_path: Path, forked: ForkedScripts
) -> None:
    plain = modules_of(forked, tmp_path, how, "")
    assert plain[1] and modules_of(forked, tmp_path, how, str(tmp_path / "watched")) == plain


def test_start_of_profiles_is_torchs_own_again_after_a_session(tmp_path: Path) -> None:
    kind = autograd_profiler.profile
    before = kind._prepare_trace, kind._start_trace
    model = nn.Linear(4, 1)
    with probe.watch(model, torch.optim.SGD(model.parameters(), lr=0.1), spool=tmp_path, connect=""):
        assert (kind._prepare_trace, kind._start_trace) != before
    assert (kind._prepare_trace, kind._start_trace) == before


class Starts(ProfilerStarts):
    """Counts the starts that something was done around."""

    def __init__(self) -> None:
        super().__init__(self._around_one)
        self.count = 0

    @contextmanager
    def _around_one(self) -> Iterator[None]:
        self.count += 1
        yield

    def sees(self) -> bool:
        """Whether it sees a profile of now."""
        before = self.count
        with torch.profiler.profile(activities=[ProfilerActivity.CPU]):
            pass
        return self.count > before


def _strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in STARTS:
        below = getattr(autograd_profiler.profile, name)
        monkeypatch.setattr(
            autograd_profiler.profile, name, lambda profile, *args, below=below: below(profile, *args)
        )


@pytest.mark.parametrize("begins", ["before", "within", "never"])
@pytest.mark.parametrize("ends", ["before", "after"])
def test_profiles_are_seen_again_whatever_others_put_there_and_took_away(begins: str, ends: str) -> None:
    own = [getattr(autograd_profiler.profile, name) for name in STARTS]
    starts = Starts()
    with pytest.MonkeyPatch.context() as monkeypatch:
        if begins == "before":
            _strangers(monkeypatch)
        starts.watch()
        if begins == "within":
            _strangers(monkeypatch)
        assert starts.sees()
        if ends == "before":
            starts.stop()
    starts.stop()
    starts.watch()
    starts.watch()
    assert starts.sees()
    starts.stop()
    assert [getattr(autograd_profiler.profile, name) for name in STARTS] == own and not starts.sees()


@pytest.mark.parametrize("first", ["begun", "ended"])
def test_watches_of_profiles_end_in_any_order(first: str) -> None:
    own = [getattr(autograd_profiler.profile, name) for name in STARTS]
    told: list[bool] = []
    starts, others = Starts(), OtherProfilers(lambda: told.append(True))
    for watch in (starts, others) if first == "begun" else (others, starts):
        watch.watch()
    assert starts.sees() and told == [True]
    assert starts.sees() and told == [True]
    others.watch()
    for watch in (starts, others):
        watch.stop()
    assert [getattr(autograd_profiler.profile, name) for name in STARTS] == own
    assert not starts.sees() and told == [True]
