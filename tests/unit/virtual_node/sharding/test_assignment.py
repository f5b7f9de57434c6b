"""Every cluster has one replica, no replica has too many, and few clusters move."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from virtual_node.sharding import assign, limits

NAMES = st.sets(st.text("abcdef", min_size=1, max_size=4), max_size=40)
SHARES = st.dictionaries(
    st.sampled_from("rstuvwxyz"), st.sampled_from([0.125, 0.25, 0.5, 1.0]), min_size=1, max_size=6
)


def _even(*members: str) -> dict[str, float]:
    return dict.fromkeys(members, 1.0)


@given(NAMES, SHARES, st.data())
def test_every_cluster_has_one_replica_within_its_limit(clusters, shares, data):
    """Whatever the Leases say, also of replicas that do not work."""
    holders = {cluster: data.draw(st.sampled_from([*shares, "ended"])) for cluster in clusters}
    found = assign(clusters, shares, holders)
    assert found.keys() == clusters
    room = limits(len(clusters), shares)
    assert all(count <= room[member] for member, count in Counter(found.values()).items())


@given(NAMES, SHARES, st.data())
def test_an_assignment_is_stable(clusters, shares, data):
    """With the result as holders nothing moves, so nothing oscillates."""
    holders = {cluster: data.draw(st.sampled_from([*shares])) for cluster in clusters}
    once = assign(clusters, shares, holders)
    assert assign(clusters, shares, once) == once


@given(NAMES, SHARES, st.sampled_from("rstuvwxyz"))
def test_only_the_clusters_of_a_replica_that_ends_move(clusters, shares, ended):
    before = assign(clusters, shares | {ended: 1.0}, {})
    left = {member: share for member, share in shares.items() if member != ended} or _even("other")
    after = assign(clusters, left, before)
    room = limits(len(clusters), left)
    for member in left:
        kept = {cluster for cluster, owner in before.items() if owner == member and after[cluster] == member}
        assert len(kept) == min(room[member], sum(owner == member for owner in before.values()))


def test_a_new_replica_takes_its_share_and_nothing_else_moves():
    clusters = {f"c{number}" for number in range(20)}
    before = assign(clusters, _even("a", "b", "c"), {})
    after = assign(clusters, _even("a", "b", "c", "d"), before)
    assert Counter(after.values()) == {"a": 5, "b": 5, "c": 5, "d": 5}
    assert all(after[cluster] in {before[cluster], "d"} for cluster in clusters)


def test_an_overloaded_replica_runs_fewer_clusters():
    clusters = {f"c{number}" for number in range(12)}
    before = assign(clusters, _even("a", "b"), {})
    after = assign(clusters, {"a": 0.5, "b": 1.0}, before)
    assert Counter(after.values()) == {"a": 4, "b": 8}


def test_without_replicas_nothing_is_assigned():
    assert assign({"c"}, {}, {}) == {}
