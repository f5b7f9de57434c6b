"""Lower changes write one upper object a few times, then rarely."""

from __future__ import annotations

import pytest

from controller_runtime.util.rate_limiter import Pace, Pacer


def test_an_object_has_a_burst_and_then_a_rate():
    pace: Pace[str] = Pace(burst=3, qps=0.5)
    written = [now for now in range(20) if pace.wait("a", now=float(now)) == 0]
    assert written == [0, 1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 18]
    assert pace.wait("b", now=19.0) == 0


def test_the_delay_ends_when_the_write_is_allowed():
    pace: Pace[str] = Pace(burst=1, qps=0.2)
    assert pace.wait("a", now=10.0) == 0
    assert pace.wait("a", now=11.0) == pytest.approx(4)
    assert pace.wait("a", now=15.0) == 0


def test_pacer_keeps_the_rate() -> None:
    """A burst at once, then a steady rate; idle time restores one burst."""
    pacer = Pacer(10, 3)
    assert [round(pacer.take(0.0), 3) for _ in range(6)] == [0.0, 0.0, 0.0, 0.1, 0.2, 0.3]
    assert not pacer.is_idle(0.5)
    assert pacer.is_idle(0.61)
    assert [round(pacer.take(100.0), 3) for _ in range(4)] == [100.0, 100.0, 100.0, 100.1]
