"""Failures by address: counted in a window, forgotten after it, in a table that does not grow."""

from __future__ import annotations

import pytest

from dashboard.throttle import FAILURES, MOST_ADDRESSES, WINDOW_S, Throttle, is_loopback


class Clock:
    """Seconds that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def failed(throttle: Throttle, address: str, times: int = FAILURES) -> None:
    for _ in range(times):
        throttle.note_failure(address)


def test_throttle_slows_after_so_many_failures_until_the_window_ends() -> None:
    clock = Clock()
    throttle = Throttle(clock)
    failed(throttle, "10.0.0.1", FAILURES - 1)
    assert throttle.wait_s("10.0.0.1") == 0
    failed(throttle, "10.0.0.1", 1)
    assert throttle.wait_s("10.0.0.1") == WINDOW_S + 1
    assert throttle.wait_s("10.0.0.2") == 0
    clock.now = WINDOW_S
    assert throttle.wait_s("10.0.0.1") == 0


def test_throttle_begins_anew_after_its_window() -> None:
    clock = Clock()
    throttle = Throttle(clock)
    failed(throttle, "10.0.0.1", FAILURES - 1)
    clock.now = WINDOW_S
    failed(throttle, "10.0.0.1", FAILURES - 1)
    assert throttle.wait_s("10.0.0.1") == 0


def test_throttle_takes_a_network_of_ipv6_for_one() -> None:
    throttle = Throttle(Clock())
    for number in range(FAILURES):
        throttle.note_failure(f"2001:db8::{number:x}")
    assert throttle.wait_s("2001:db8::ffff") > 0
    assert throttle.wait_s("2001:db8:0:1::1") == 0


def test_throttle_takes_this_machine_for_one_address() -> None:
    throttle = Throttle(Clock())
    for number in range(2000):
        throttle.note_failure(f"127.0.0.{1 + number % 250}")
    for address in ("127.0.0.251", "127.9.9.9", "::1", "::ffff:127.0.0.7"):
        assert throttle.wait_s(address) > 0
    assert len(throttle) == 1
    failed(throttle, "::ffff:10.0.0.1")
    assert throttle.wait_s("10.0.0.1") > 0 and throttle.wait_s("10.0.0.2") == 0


def test_throttle_table_is_bounded_and_keeps_the_newest() -> None:
    throttle = Throttle(Clock())
    for number in range(MOST_ADDRESSES * 2):
        throttle.note_failure(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    failed(throttle, "192.0.2.1")
    assert len(throttle) == MOST_ADDRESSES
    assert throttle.wait_s("192.0.2.1") > 0


def test_throttle_takes_what_is_no_address_for_one_of_its_own() -> None:
    throttle = Throttle(Clock())
    failed(throttle, "x" * 10_000)
    assert throttle.wait_s("x" * 10_000) > 0
    assert throttle.wait_s("") == 0


@pytest.mark.parametrize("address", ["127.0.0.1", "127.255.0.9", "::1", "::ffff:127.0.0.1"])
def test_loopback_is_loopback(address: str) -> None:
    assert is_loopback(address)


@pytest.mark.parametrize(
    "address", ["", "localhost", "10.0.0.1", "0.0.0.0", "::", "::ffff:10.0.0.1", "127.0.0.1.x"]
)
def test_all_else_is_not(address: str) -> None:
    assert not is_loopback(address)
