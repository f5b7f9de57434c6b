"""The Event of a bound pod: scores and reasons of all agents, within bounds."""

from __future__ import annotations

import pytest

from multi_scheduler.extender.extender import _PODS, _SECONDS, Decisions, Opinion, sentence


@pytest.mark.parametrize(
    ("opinions", "expected"),
    [
        (
            [Opinion("fit", 1, {"vn-a": 87, "vn-b": 40}, 0, {"vn-c": "no room"})],
            "Bound to vn-a. Agent fit: vn-a 87, vn-b 40 (weight 1); rejected: vn-c (no room)",
        ),
        (
            [Opinion("fit", 2, {"vn-b": 90, "vn-a": 10}), Opinion("cost", 0.5, {"vn-a": 100})],
            "Bound to vn-a. Agent fit: vn-b 90, vn-a 10 (weight 2). Agent cost: vn-a 100 (weight 0.5)",
        ),
        (
            [Opinion("fit", 1, {}, 0, {"vn-b": "full"}, 3)],
            "Bound to vn-a. Agent fit: rejected: vn-b (full) and 3 more. Only one node was left, so no agent scored it",
        ),
        (
            [Opinion("fit", 1, {**{f"vn-{n}": 9 for n in range(10)}, "vn-a": 1}, 5)],
            "Bound to vn-a. Agent fit: vn-0 9, vn-1 9, vn-2 9, vn-3 9, vn-4 9, vn-5 9, vn-6 9, vn-7 9, vn-a 1 and 7 more (weight 1)",
        ),
    ],
)
def test_message_has_scores_and_reasons_of_each_agent(opinions, expected):
    """The chosen node's score is included even if others are better."""
    assert sentence("vn-a", opinions) == expected


def test_message_for_five_hundred_nodes_fits_into_an_event():
    """Long reasons are cut, and further nodes are counted."""
    decisions = Decisions()
    reasons = {f"vn-{number}": "0/1000 nodes are available: " + "x" * 5000 for number in range(500)}
    decisions.rejected("u", "fit", 1, reasons)
    decisions.scored("u", "fit", 1, {f"vn-{number:03}": 1 - number / 600 for number in range(500)})
    found = sentence("vn-0", decisions.settle("u") or ())
    assert len(found) < 1024
    assert "vn-000 100, vn-001 100" in found
    assert "and 497 more" in found


def test_answers_are_dropped_after_use_on_retry_by_age_and_by_number():
    """A scheduler that never binds pods causes no memory growth."""
    now = 0.0
    decisions = Decisions(clock=lambda: now)
    decisions.rejected("u", "fit", 1, {})
    assert decisions.settle("u")
    assert decisions.settle("u") is None
    decisions.scored("u", "fit", 1, {"vn-a": 1})
    decisions.begin("u")
    assert decisions.settle("u") is None
    for number in range(_PODS + 9):
        decisions.rejected(f"u{number}", "fit", 1, {})
    assert len(decisions) == _PODS
    now = _SECONDS + 1
    decisions.rejected("late", "fit", 1, {})
    assert len(decisions) == 1
