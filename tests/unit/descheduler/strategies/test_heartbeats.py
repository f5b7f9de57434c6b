"""Decisions by Lease renewals."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from descheduler.strategies.stale_cluster import Heartbeats


class TestHeartbeats:
    """Decisions by Lease renewals."""

    def test_long_lease_is_stale_after_half_its_duration(self):
        beats = Heartbeats(stale_after=20)
        beats.observe("a", "t0", duration=120, now=0)
        assert beats.stale_at("a") == 60

    def test_change_without_renewal_does_not_count(self):
        beats = Heartbeats(stale_after=20)
        beats.observe("a", "t0", duration=40, now=0)
        beats.observe("a", "t0", duration=40, now=15)
        assert beats.stale_at("a") == 20

    def test_node_without_lease_is_never_stale(self):
        beats = Heartbeats(stale_after=20)
        beats.observe("a", "t0", duration=40, now=0)
        beats.forget("a")
        assert beats.stale_at("a") is None
        assert beats.renewed("a") == ""

    @given(st.lists(st.floats(1, 60), min_size=1, max_size=30))
    def test_is_never_stale_before_20_s_of_silence(self, gaps: list[float]):
        beats, moment = Heartbeats(stale_after=20), 0.0
        beats.observe("a", "t", duration=40, now=moment)
        for number, gap in enumerate(gaps):
            moment += gap
            beats.observe("b", str(number), duration=40, now=moment)
            due = beats.stale_at("a")
            assert due is not None
            assert due >= 20
