"""The conditions of a soak."""

from __future__ import annotations

import pytest

from tests.benchmarks.soak_verdict import Observed, verdict

HOUR = 3600.0
STEADY = [(float(at), 100.0) for at in range(0, 3600, 5)]


def grown(start: float, end: float) -> list[tuple[float, float]]:
    """Return samples that grow linearly."""
    return [(at, start + (end - start) * at / HOUR) for at, _ in STEADY]


@pytest.mark.parametrize(
    ("observed", "violated"),
    [
        (Observed(memory=STEADY, latencies=STEADY), []),
        (Observed(memory=grown(100, 104), latencies=grown(0.1, 0.12)), []),
        (Observed(memory=grown(100, 110), latencies=STEADY), ["memory growth after 10 min"]),
        (Observed(memory=STEADY, latencies=grown(0.1, 0.4)), ["median time to Running, first to last third"]),
        (Observed(created=940), ["pods created"]),
        (Observed(lost=["a"], doubled=["b"], leaked=["c"]), ["pods lost", "pods doubled", "objects leaked"]),
    ],
)
def test_each_condition(observed, violated):
    """Growth before the end of the warm-up is allowed."""
    rows = verdict(observed, warm_up=600, end=HOUR, wanted=1000 if observed.created else 0)
    assert [row["what"] for row in rows if not row["isMet"]] == violated


def test_a_short_soak_does_not_judge_memory():
    rows = verdict(Observed(memory=grown(100, 900), latencies=STEADY), warm_up=600, end=700, wanted=0)
    assert not any(row["what"].startswith("memory") for row in rows)
