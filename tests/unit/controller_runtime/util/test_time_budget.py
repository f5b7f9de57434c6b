"""A budget limits the time of work by name, in bursts and in the long run."""

from __future__ import annotations

import pytest

from controller_runtime.workqueue.fairness import TimeBudget


class Clock:
    """Seconds that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_budget_is_used_and_grows_until_it_is_full():
    """By name."""
    clock = Clock()
    budget = TimeBudget(2.0, 0.1, clock)
    budget.spend("a", 1.5)
    assert budget.left("a") == pytest.approx(0.5)
    assert budget.left("b") == 2.0
    assert budget.wait("a") == 0
    clock.now += 5
    assert budget.left("a") == pytest.approx(1.0)
    clock.now += 1000
    assert budget.left("a") == 2.0


def test_work_beyond_the_budget_is_waited_for():
    """Until the share of each second covers it."""
    clock = Clock()
    budget = TimeBudget(2.0, 0.1, clock)
    budget.spend("a", 2.5)
    assert budget.left("a") == pytest.approx(-0.5)
    assert budget.wait("a") == pytest.approx(5.0)
    clock.now += 5
    assert budget.wait("a") == pytest.approx(0.0, abs=1e-9)


def test_full_budgets_are_forgotten():
    """Names come and go."""
    clock = Clock()
    budget = TimeBudget(2.0, 0.1, clock)
    for number in range(10_000):
        clock.now += 1
        budget.spend(str(number), 0.01)
    assert len(budget._full_at) <= 1000
