"""Pure judgement of leases."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from descheduler.view.heartbeat import Heartbeats


class TestHeartbeats:
    """Pure judgement of leases."""

    def test_custom_lease_duration(self):
        """A lease of two minutes is not lost after 20 s: its renewals are half a minute apart."""
        beats = Heartbeats(stale_after=20)
        beats.observe("a", "t0", duration=120, now=0)
        assert beats.stale_at("a") == 60

    def test_same_renewal_seen_again(self):
        """A lease that changes in other ways than by renewal is no sign of life."""
        beats = Heartbeats(stale_after=20)
        beats.observe("a", "t0", duration=40, now=0)
        beats.observe("a", "t0", duration=40, now=15)
        assert beats.stale_at("a") == 20

    def test_unknown_and_forgotten(self):
        """Who has no lease is not judged by one."""
        beats = Heartbeats(stale_after=20)
        beats.observe("a", "t0", duration=40, now=0)
        beats.forget("a")
        assert beats.stale_at("a") is None
        assert beats.renewed("a") == ""

    @given(st.lists(st.floats(1, 60), min_size=1, max_size=30))
    def test_never_lost_early(self, gaps: list[float]):
        """Whatever the others do, nobody is lost before 20 s of silence."""
        beats, moment = Heartbeats(stale_after=20), 0.0
        beats.observe("a", "t", duration=40, now=moment)
        for number, gap in enumerate(gaps):
            moment += gap
            beats.observe("b", str(number), duration=40, now=moment)
            due = beats.stale_at("a")
            assert due is not None
            assert due >= 20
