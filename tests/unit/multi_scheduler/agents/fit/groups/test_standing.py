"""When a group may start, which group is first, and how long it holds room."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterset.model.pod.groups import Group
from multi_scheduler.agents.fit.standing import DERIVED_PATIENCE, HELD_SECONDS, HeldGroups, Member, standing

NOW = 1000.0
NODE: Any = object()


def _members(count: int, *, gated: int = 0, created: float = NOW) -> list[Member]:
    return [Member(f"u{number}", f"p{number}", created, is_gated=number < gated) for number in range(count)]


@pytest.mark.parametrize(
    ("pending", "gated", "bound", "needed", "waits_for"),
    [
        (3, 0, 0, 8, "pod group shop/train has 3 of 8 pods"),
        (8, 5, 0, 8, "pod group shop/train has 3 of 8 pods (5 more have scheduling gates)"),
        (8, 0, 0, 8, ""),
        (10, 0, 0, 8, ""),
        (5, 0, 3, 5, ""),  # the process was restarted while the group started
        (1, 0, 7, 1, ""),
        (1, 0, 8, 0, ""),  # more members than the minimum
        (2, 0, 3, 0, ""),  # others have finished
    ],
)
def test_standing(pending, gated, bound, needed, waits_for):
    group = Group("shop", "annotation", "train", 8)
    found = standing(group, _members(pending, gated=gated), bound, now=NOW)
    assert (found.needed, found.waits_for) == (needed, waits_for)


def test_derived_group_does_not_wait_forever():
    """LeaderWorkerSet's LeaderReady creates workers only when the leader is Ready."""
    group = Group("shop", "LeaderWorkerSet", "llm-0", 4)
    members = _members(1)
    assert standing(group, members, 0, now=NOW + 1).waits_for
    found = standing(group, members, 0, now=NOW + DERIVED_PATIENCE)
    assert (found.needed, found.waits_for) == (0, "")


_member = st.builds(
    Member, st.uuids().map(str), st.just("p"), st.floats(0, 100), st.integers(-5, 5), st.booleans()
)


@given(st.lists(_member, max_size=12), st.integers(0, 12), st.integers(1, 12))
def test_started_groups_have_enough_members(pending, bound, minimum):
    """Whatever starts together reaches the minimum; who has a scheduling gate is not counted."""
    found = standing(Group("shop", "annotation", "g", minimum), pending, bound, now=NOW)
    assert not any(one.is_gated for one in found.members)
    if found.needed and not found.waits_for:
        assert len(found.members) >= found.needed
        assert bound + found.needed == minimum
    if not bound and len(found.members) < minimum:
        assert found.waits_for


def test_rank_is_priority_then_age():
    """One important pod does not bring its group forward."""
    group = Group("shop", "annotation", "g", 1)

    def rank(*members: tuple[int, float]) -> tuple[int, float, str]:
        found = [Member(str(at), "", created, priority) for at, (priority, created) in enumerate(members)]
        return standing(group, found, 0, now=NOW).rank

    assert rank((5, 9.0)) < rank((0, 1.0)) < rank((0, 2.0))
    assert rank((9, 1.0), (0, 1.0)) == rank((0, 1.0))


class _Holding:
    def __init__(self) -> None:
        self.now = 0.0
        self.released: list[str] = []
        self.started: list[str] = []
        self.held = HeldGroups(self.released.append, started=self.started.append, clock=lambda: self.now)
        self.held.hold("g", {"a": NODE, "b": NODE})

    def after(self, seconds: float) -> list[str]:
        self.now += seconds
        self.held.expire()
        return self.released


def test_group_without_progress_loses_its_room_and_must_wait():
    """So a group that never uses its room does not hold it all the time."""
    one = _Holding()
    assert one.after(HELD_SECONDS - 1) == []
    one.held.passed("a")
    assert one.after(HELD_SECONDS - 1) == []
    assert one.after(1) == ["a", "b"]
    waits = [one.held.barred_for("g")]
    for _ in range(2):
        one.held.hold("g", {"a": NODE})
        one.after(HELD_SECONDS)
        waits.append(one.held.barred_for("g"))
    assert waits == sorted(waits)
    assert waits[0] < waits[-1]
    one.held.hold("g", {"a": NODE})
    one.held.bound("a")
    assert not one.held.barred_for("g")
    assert "g" not in one.held
    assert one.started == ["g"]


def test_deleted_member_is_forgotten():
    one = _Holding()
    one.held.deleted("b")
    assert one.held.node("b") is None
    assert one.held.count("g") == 1


def test_member_that_moves_to_another_group_leaves_the_first_one():
    """A user may change a pending pod's annotation; the pod's room must not be released twice."""
    one = _Holding()
    one.held.hold("other", {"a": NODE})
    assert (one.held.count("g"), one.held.count("other")) == (1, 1)
    one.held.bound("a")
    assert one.after(HELD_SECONDS) == ["b"]
    assert len(one.held) == 0
    assert one.after(HELD_SECONDS) == ["b"]
