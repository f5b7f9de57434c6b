"""A replica that has too much to do takes a smaller share."""

from __future__ import annotations

import re

import pytest

from controller_runtime.objects import from_dict
from tests.thorough import size
from virtual_node.config.types import LeaderElectionConfig
from virtual_node.sharding import BUSY, FRESH, LEAST, OLD, OVERLOADED, RELAXED, Load, Member, assign, share_of


def _member() -> Member:
    return Member(LeaderElectionConfig(name="release"))


LATE = Load(delay=OVERLOADED * 2)
BEHIND = Load(busy=0.95, age=OLD * 2)


@pytest.mark.parametrize(
    ("load", "is_high", "is_low"),
    [
        (Load(), False, True),
        (LATE, True, False),
        (Load(delay=(OVERLOADED + RELAXED) / 2), False, False),
        (BEHIND, True, False),
        # A full core that keeps up.
        (Load(busy=1.0, age=FRESH / 2), False, True),
        (Load(busy=1.0, age=(OLD + FRESH) / 2), False, False),
        # A slow API server, or a rate limit.
        (Load(busy=BUSY / 2, age=OLD * 100), False, True),
    ],
)
def test_a_late_loop_or_old_work_of_a_busy_loop_is_overload(load, is_high, is_low):
    """The age of work alone does not count, because another replica would wait for the same API server."""
    assert (load.is_high(), load.is_low()) == (is_high, is_low)


@pytest.mark.parametrize("load", [LATE, BEHIND])
def test_an_overloaded_replica_halves_its_share_once_per_window(load):
    member = _member()
    found = []
    for second in range(0, 130, 10):
        member.evaluate(load, second)
        found.append(member.share)
    assert found == [0.5] * 3 + [0.25] * 3 + [0.125] * 7
    assert member.share == LEAST


@pytest.mark.parametrize("load", [LATE, BEHIND])
def test_the_share_rises_after_a_pause_that_doubles(load):
    """A machine that is always slow must not take and lose the same clusters all the time."""
    member, second, moments = _member(), 0.0, []
    for _ in range(3):
        member.evaluate(load, second)
        began = second
        while member.share < 1:
            second += 10
            member.evaluate(Load(), second)
        moments.append(second - began)
        second += 100
    assert moments == [300, 600, 1200]


def test_a_replica_that_can_run_only_a_part_moves_clusters_rarely():
    """With more than three of eight clusters it has more work than it can do; the other replica has room."""
    slow, clusters = _member(), {f"c{number}" for number in range(8)}
    owners, moves = assign(clusters, {slow.name: 1.0, "other": 1.0}, {}), 0
    for second in range(0, size(6, 24) * 3600, 2):
        count = list(owners.values()).count(slow.name)
        slow.evaluate(BEHIND if count > 3 else Load(busy=0.9, age=1.0), second)
        fresh = assign(clusters, {slow.name: slow.share, "other": 1.0}, owners)
        moves += sum(fresh[cluster] != owner for cluster, owner in owners.items())
        owners = fresh
    assert moves < 2 * 30  # one cluster there and back, 28 times a day with the longest pause of an hour


def test_the_names_of_leases_are_valid_and_unique():
    first, second = _member(), _member()
    assert first.name != second.name
    assert re.fullmatch(r"release-replica-[a-z0-9]([-a-z0-9]*[a-z0-9])?", first.lease)


def test_an_invalid_share_counts_as_one():
    for text, share in (("0.5", 0.5), ("0", 1), ("-1", 1), ("nan", 1), ("2", 1), ("many", 1)):
        lease = from_dict({"metadata": {"annotations": {"virtual-node.io/share": text}}})
        assert share_of(lease) == share
