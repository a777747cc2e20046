"""How often keys may be tried, with a clock that the tests move."""

from __future__ import annotations

import pytest

from seesay.ui.tries import MAX_IN_ALL, MAX_PER_NETWORK, WINDOW_S, Tries, find_network


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_network_has_a_few_tries_a_minute() -> None:
    clock = Clock()
    tries = Tries(clock)
    for _ in range(MAX_PER_NETWORK):
        assert tries.begin("10.0.0.1") == 0
        clock.now_s += 1
    assert tries.begin("10.0.0.1") == WINDOW_S - MAX_PER_NETWORK
    assert tries.begin("10.0.0.2") == 0
    clock.now_s += WINDOW_S - MAX_PER_NETWORK - 0.5
    assert tries.begin("10.0.0.1") == 0.5
    clock.now_s += 0.5
    assert tries.begin("10.0.0.1") == 0
    assert tries.begin("10.0.0.1") == 1, "one for each that is a minute old"


def test_all_together_have_no_more_either() -> None:
    clock = Clock()
    tries = Tries(clock)
    assert all(tries.begin(f"10.0.1.{number}") == 0 for number in range(MAX_IN_ALL))
    assert tries.begin("10.0.2.1") == WINDOW_S
    clock.now_s += WINDOW_S
    assert tries.begin("10.0.2.1") == 0
    assert len(tries._recent) == 1, "old ones are forgotten"


def test_right_keys_are_not_counted() -> None:
    tries = Tries(Clock())
    for _ in range(2 * MAX_PER_NETWORK):
        assert tries.begin("10.0.0.1") == 0
        tries.forgive("10.0.0.1")
    tries.begin("10.0.0.2")
    tries.forgive("10.0.0.1")
    assert len(tries._recent) == 1


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("", ""),
        ("testclient", ""),
    ],
)
def test_addresses_of_one_client_are_one_network(address: str, network: str) -> None:
    assert find_network(address) == network
