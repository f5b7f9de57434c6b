"""When a process answers, and what it does with its Lease: decisions without IO."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from multi_scheduler.extender import active
from multi_scheduler.extender.active import BIND_SECONDS, Situation, Step, Verdict

HOLDER: dict[str, Any] = {"authority_left": 9.0, "since_attempt": 1.0}


@pytest.mark.parametrize(
    ("situation", "expected"),
    [
        ({}, Verdict.WAIT),
        ({"is_attempting": True, "since_attempt": 0.5}, Verdict.WAIT),
        ({"since_attempt": 0.5}, Verdict.REFUSE),
        ({"since_attempt": 1.0}, Verdict.WAIT),
        ({"since_attempt": 0.5, "other_holder": "b"}, Verdict.REFUSE),
        (HOLDER, Verdict.ANSWER),
        ({**HOLDER, "is_attempting": True}, Verdict.ANSWER),
        ({**HOLDER, "knows_bound_pods": False}, Verdict.WAIT),
        ({**HOLDER, "is_stopping": True}, Verdict.REFUSE),
        ({"authority_left": 0.0, "since_attempt": 0.5}, Verdict.REFUSE),
        ({"authority_left": -60.0}, Verdict.WAIT),
        ({"is_stopping": True}, Verdict.REFUSE),
    ],
)
def test_verdict_on_a_call(situation, expected):
    assert Situation(**situation).verdict is expected


@pytest.mark.parametrize(
    ("situation", "expected"),
    [
        # Without a call, the Lease is never touched.
        ({}, (Step.REST, inf)),
        ({"since_call": 0.5, "since_attempt": 3.0}, (Step.REST, inf)),
        ({"calls": 1}, (Step.ATTEMPT, 0)),
        # A failed attempt is repeated after a second, while calls arrive.
        ({"calls": 1, "since_attempt": 0.25}, (Step.REST, 0.75)),
        ({"calls": 1, "since_attempt": 0.9995}, (Step.ATTEMPT, 0)),
        # The holder renews after five seconds, and repeats a failed renewal every second.
        ({**HOLDER, "calls": 1}, (Step.REST, 4.0)),
        ({**HOLDER, "authority_left": 5.0, "calls": 1}, (Step.ATTEMPT, 0)),
        ({**HOLDER, "authority_left": 5.0, "since_call": 3.0}, (Step.ATTEMPT, 0)),
        ({**HOLDER, "authority_left": 2.0, "calls": 1, "since_attempt": 0.5}, (Step.REST, 0.5)),
        ({**HOLDER, "authority_left": -1.0, "calls": 1}, (Step.ATTEMPT, 0)),
        # Without calls it releases the Lease; a call that takes long counts as a call.
        ({**HOLDER, "since_call": 13.0}, (Step.REST, 2.0)),
        ({**HOLDER, "since_call": 15.0}, (Step.RELEASE, 0)),
        ({**HOLDER, "authority_left": 5.0, "since_call": 15.0}, (Step.RELEASE, 0)),
        ({**HOLDER, "since_call": 15.0, "calls": 1}, (Step.REST, 4.0)),
        # A holder whose authority ended without calls leaves the Lease to expire.
        ({"authority_left": -1.0, "since_call": 15.0, "since_attempt": 1.0}, (Step.REST, inf)),
    ],
)
def test_next_step_with_the_lease(situation, expected):
    step, rest = Situation(**situation).next_step
    assert step is expected[0]
    assert rest == pytest.approx(expected[1])


@pytest.mark.parametrize(
    ("situation", "parts"),
    [
        ({"is_stopping": True, "other_holder": "b"}, ["stopping", "tries again"]),
        ({**HOLDER, "list_error": "403 forbidden"}, ["does not know all bound pods yet: 403 forbidden"]),
        ({"lease_error": "timeout", "other_holder": "b"}, ["Lease ns/x cannot be acquired", "timeout"]),
        (
            {"other_holder": "pod-b_1_ff"},
            ["pod-b_1_ff is the active replica", "Lease ns/x", "15 s", "replicas"],
        ),
        ({}, ["Lease ns/x is not acquired"]),
    ],
)
def test_refusal_names_the_cause_and_the_next_step(situation, parts):
    refusal = Situation(**situation).refusal("ns/x")
    assert [part for part in parts if part not in refusal] == []


def test_what_the_holder_began_ends_before_another_process_takes_the_lease():
    """A binding that starts in the last moment of the authority has ended. A renewal and its repetition fit before that."""
    assert active.AUTHORITY_SECONDS + BIND_SECONDS < active.LEASE_SECONDS
    assert active.RENEW_SECONDS + active.AUTHORITY_SECONDS / 2 <= active.AUTHORITY_SECONDS
