"""A replica whose event loop is late takes a smaller share."""

from __future__ import annotations

import re

from controller_runtime.objects import from_dict
from virtual_node.config.types import LeaderElectionConfig
from virtual_node.sharding.member import LEAST, OVERLOADED, RELAXED, Member, share_of


def _member() -> Member:
    return Member(LeaderElectionConfig(name="release"))


def test_an_overloaded_replica_halves_its_share_once_per_window():
    member = _member()
    found = []
    for second in range(0, 130, 10):
        member.evaluate(OVERLOADED * 2, second)
        found.append(member.share)
    assert found == [0.5] * 3 + [0.25] * 3 + [0.125] * 7
    assert member.share == LEAST


def test_the_share_rises_after_a_pause_that_doubles():
    """A machine that is always slow must not take and lose the same clusters all the time."""
    member, second, moments = _member(), 0.0, []
    for _ in range(3):
        member.evaluate(1.0, second)
        began = second
        while member.share < 1:
            second += 10
            member.evaluate(RELAXED / 2, second)
        moments.append(second - began)
        second += 100
    assert moments == [300, 600, 1200]


def test_a_moderately_late_loop_changes_nothing():
    member = _member()
    member.evaluate((OVERLOADED + RELAXED) / 2, 1e6)
    assert member.share == 1


def test_the_names_of_leases_are_valid_and_unique():
    first, second = _member(), _member()
    assert first.name != second.name
    assert re.fullmatch(r"release-replica-[a-z0-9]([-a-z0-9]*[a-z0-9])?", first.lease)


def test_an_invalid_share_counts_as_one():
    for text, share in (("0.5", 0.5), ("0", 1), ("-1", 1), ("nan", 1), ("2", 1), ("many", 1)):
        lease = from_dict({"metadata": {"annotations": {"virtual-node.io/share": text}}})
        assert share_of(lease) == share
