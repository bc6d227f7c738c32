"""A second `watch` on the same model: what it changes, and what it is refused."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from journals import read_journal
from small_training import seeded_model, train
from torch import nn

import probe
from probe.delivery.journal.run_folders import read_run_json
from probe.detectors.base import DetectorThresholds
from probe.session import Probe

pytestmark = pytest.mark.usefixtures("one_thread")
LIMIT = {"overhead_limit": 0.0}


def watched(**options: Any) -> tuple[Probe, nn.Module, torch.optim.Optimizer]:
    model = seeded_model()
    optimizer = torch.optim.AdamW(model.parameters())
    return probe.watch(model, optimizer, **{**LIMIT, **options}), model, optimizer


@pytest.mark.capability(49, 50)
@pytest.mark.parametrize(
    ("second", "check"),
    [
        ({"level": "advanced"}, lambda settings: settings.level == "advanced"),
        ({"level": "off"}, lambda settings: settings.level == "off"),
        ({"preset": "memory"}, lambda settings: settings.preset == "memory"),
        ({"level": "extreme", "preset": "minimal"}, lambda s: (s.level, s.preset) == ("extreme", "minimal")),
        ({"features": {"activations": 7}}, lambda settings: settings.features.activations == 7),
        ({"parameter_norm_every": 3}, lambda settings: settings.features.parameter_norms == 3),
        ({"overhead_limit": 0.5}, lambda settings: settings.limit == 0.5),
    ],
)
def test_second_watch_is_followed_from_the_next_step(
    second: dict[str, Any], check: Callable[[Any], bool]
) -> None:
    run, model, optimizer = watched()
    with run:
        train(model, optimizer, 2)
        assert probe.watch(model, optimizer, **second) is run
        train(model, optimizer, 2)
        assert run._tracker is not None
        assert check(run._tracker.settings)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("mode", "raise"),
        ("name", "another"),
        ("model_name", "net"),
        ("run", "another"),
        ("connect", "tcp://127.0.0.1:9"),
        ("spool", "/elsewhere"),
        ("bundles", 7),
        ("replay", False),
        ("recovery", "skip"),
        ("thresholds", DetectorThresholds(warmup_steps=7)),
        ("intended_infinities", ["mask"]),
    ],
)
def test_what_cannot_change_is_refused_by_its_name(option: str, value: object) -> None:
    run, model, optimizer = watched()
    with run:
        with pytest.raises(ValueError, match=rf"^{option}=.* cannot change while a session runs"):
            probe.watch(model, optimizer, level="advanced", **{option: value})
        train(model, optimizer, 1)
        assert run._tracker is not None
        assert run._tracker.settings.level == "basic", "half of what was asked for"
        assert run.active


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"level": "advanced", "preset": "memory", "features": {"activations": 4}, "overhead_limit": 0.1},
        {"mode": "warn", "name": "mine", "run": "chosen", "bundles": 1, "intended_infinities": ("mask",)},
        {"recovery": "skip", "thresholds": DetectorThresholds(warmup_steps=7), "replay_limit_s": 3},
    ],
)
def test_the_same_options_again_change_nothing(options: dict[str, Any]) -> None:
    run, model, optimizer = watched(**options)
    folder = None
    with run:
        assert run._recorder is not None
        folder = run._recorder.folder.parent
        train(model, optimizer, 2)
        assert probe.watch(model, optimizer, **{**LIMIT, **options}) is run
        assert probe.watch(model) is run
        assert probe.watch(model, run=run.run) is run
        train(model, optimizer, 2)
    assert [event for event in read_journal(folder).events if event.kind == "level_changed"] == []


def test_another_optimizer_of_the_same_parameters_is_followed() -> None:
    run, model, _ = watched()
    with run:
        assert probe.watch(model, torch.optim.SGD(model.parameters(), lr=0.1)) is run


def test_optimizer_of_other_parameters_is_refused() -> None:
    run, model, _ = watched()
    with run, pytest.raises(ValueError, match="optimizer=SGD updates nothing that the running session"):
        probe.watch(model, torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1))


def test_session_of_a_launcher_tells_and_goes_on() -> None:
    run, model, optimizer = watched()
    told: list[str] = []
    with run:
        run.tell_refusals_to(told.append)
        assert probe.watch(model, optimizer, level="advanced", name="mine", mode="raise") is run
        train(model, optimizer, 1)
        assert run._tracker is not None
        assert run._tracker.settings.level == "advanced"
    assert [sentence.partition("=")[0] for sentence in told] == ["mode", "name"]


def test_names_that_the_running_session_has_are_no_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run, model, _ = watched(spool=tmp_path / "spool")
    with run:
        start = read_run_json(tmp_path / "spool" / run.run)
        assert start is not None
        assert probe.watch(model, name=start.name, model_name=start.model, spool="spool") is run
        with pytest.raises(ValueError, match=f"whose name is '{re.escape(start.name)}'"):
            probe.watch(model, name="another")
