"""`control`: commands are checked when made, wait in order, and say what they changed."""

import threading

import pytest

from probe.loop.control import (
    MAX_WAITING,
    Command,
    Mailbox,
    SetFeatures,
    SetLevel,
    SetLimit,
    SetPreset,
    describe_change,
)
from probe.settings.levels import Settings


def applied(settings: Settings, *commands: Command) -> Settings:
    for command in commands:
        settings = command.apply(settings)
    return settings


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (SetLevel, "loud", "level='loud' is not available"),
        (SetPreset, "fast", "preset='fast' is not available"),
        (SetFeatures, {"activation": 1}, "is not a feature"),
        (SetFeatures, {"activation": None}, "is not a feature"),
        (SetFeatures, {"activations": -1}, "must be a whole number"),
        (SetFeatures, "activations", "must be a mapping"),
        (SetLimit, 5, "must be a fraction"),
    ],
)
def test_command_that_is_not_valid_is_refused_when_made(kind: type, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(value)


def test_commands_change_settings_one_after_the_other() -> None:
    settings = applied(
        Settings(), SetLevel("advanced"), SetFeatures({"histograms": 0, "activations": 3}), SetLimit(0.5)
    )
    assert (settings.level, settings.limit) == ("advanced", 0.5)
    assert (settings.features.histograms, settings.features.activations) == (0, 3)


def test_set_level_leaves_the_preset_and_keeps_single_switches() -> None:
    before = Settings(preset="minimal", overrides={"activations": 3})
    after = applied(before, SetLevel("extreme"))
    assert after.preset is None
    assert after.features.activations == 3
    assert after.limit == 0.25


def test_feature_set_to_none_follows_the_level_again() -> None:
    settings = applied(
        Settings(level="advanced", overrides={"histograms": 0}), SetFeatures({"histograms": None})
    )
    assert settings.features == Settings(level="advanced").features


def test_mailbox_gives_commands_in_order_and_is_empty_then() -> None:
    mailbox = Mailbox()
    commands: list[Command] = [SetLevel("advanced"), SetLimit(0.3), SetLevel("basic")]
    assert not mailbox.waiting
    assert all(mailbox.post(command) for command in commands)
    assert mailbox.waiting
    assert mailbox.drain() == commands
    assert not mailbox.waiting
    assert mailbox.drain() == []


def test_mailbox_that_is_full_refuses_and_keeps_what_it_has() -> None:
    mailbox = Mailbox()
    accepted = [mailbox.post(SetLimit(step / 100)) for step in range(MAX_WAITING + 5)]
    assert accepted == [True] * MAX_WAITING + [False] * 5
    assert mailbox.drain()[-1] == SetLimit((MAX_WAITING - 1) / 100)


def test_mailbox_posted_from_threads_while_drained_loses_none_and_repeats_none() -> None:
    mailbox = Mailbox()
    taken: list[Command] = []

    def post(thread: int) -> None:
        for number in range(200):
            while not mailbox.post(SetFeatures({"activations": thread * 1000 + number})):
                pass

    threads = [threading.Thread(target=post, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or mailbox.waiting:
        taken += mailbox.drain()
    for thread in threads:
        thread.join(timeout=10)
    periods = [command.features["activations"] for command in taken if isinstance(command, SetFeatures)]
    assert sorted(period or 0 for period in periods) == [t * 1000 + n for t in range(4) for n in range(200)]
    for t in range(4):
        own = [period for period in periods if (period or 0) // 1000 == t]
        assert own == sorted(own, key=int)  # type: ignore[type-var]


def test_change_is_described_with_level_limit_and_each_feature() -> None:
    before, after = Settings(), applied(Settings(), SetLevel("advanced"))
    text = describe_change(before, after, "browser")
    assert text is not None
    first, *lines = text.splitlines()
    assert first == (
        "Level advanced instead of basic, overhead limit 10 % instead of 2 %, asked for by the page"
    )
    assert f"Activations: every {after.features.activations} steps (was: every 100 steps)" in lines


def test_change_of_a_feature_alone_is_named_in_the_first_line() -> None:
    text = describe_change(Settings(), applied(Settings(), SetFeatures({"gradients": 5})))
    assert text == (
        "Other periods for full gradient statistics, asked for by the script\n"
        "Full gradient statistics: every 5 steps (was: every step)"
    )


def test_command_that_changes_nothing_is_not_described() -> None:
    assert describe_change(Settings(), applied(Settings(), SetLevel("basic"))) is None
