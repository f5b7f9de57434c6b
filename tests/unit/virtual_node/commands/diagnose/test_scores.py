"""Scores from the Event that the multi-scheduler writes."""

from __future__ import annotations

from clusterset.model import names
from multi_scheduler.extender.extender import Opinion, sentence
from virtual_node.commands.diagnose import Score, scores


def _event(*opinions: Opinion) -> dict[str, str]:
    return {"reason": names.EVENT_SCORED, "message": sentence("vn-a", opinions)}


def test_reads_the_scores_of_each_agent_and_node() -> None:
    """The newest event counts; reasons with brackets and commas stay complete."""
    full = "lower cluster c: 0/3 nodes are available: 3 Too many pods (limit 10), 1 node(s) had taints"
    other = "usage: cpu would exceed 90% with a probability of 97%"
    newest = _event(
        Opinion("fit", 0.5, {"vn-a": 87, "vn-b": 40}, 3, {"vn-c": full, "vn-d": other}, 2),
        Opinion("safe", 2, {}, 0, {"vn-e": other}),
        Opinion("load", 1, {"vn-a": 100}),
    )
    assert scores([_event(Opinion("fit", 1, {"vn-b": 1})), newest, {"reason": "Pulled", "message": "x"}]) == [
        Score("fit", "0.5", "vn-a", 87),
        Score("fit", "0.5", "vn-b", 40),
        Score("fit", "0.5", "vn-c", None, full),
        Score("fit", "0.5", "vn-d", None, other),
        Score("safe", "", "vn-e", None, other),
        Score("load", "1", "vn-a", 100),
    ]


def test_a_pod_that_was_not_scored_has_no_rows() -> None:
    """Without an event, and with one node left."""
    assert scores([]) == []
    assert scores([_event()]) == []
    (row,) = scores(
        [_event(Opinion("fit", 1, {}, 0, {"vn-b": "0/3 nodes are available: 3 Insufficient cpu"}))]
    )
    assert row == Score("fit", "", "vn-b", None, "0/3 nodes are available: 3 Insufficient cpu")
