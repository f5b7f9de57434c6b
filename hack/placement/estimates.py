"""Off-policy evaluation: estimates another policy's reward from logged decisions, with confidence intervals. No IO.

Dudik, Langford and Li, "Doubly robust policy evaluation and learning", ICML 2011.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_REPEATS = 200
_Z = 1.96


@dataclass(frozen=True, slots=True)
class Logged:
    """One decision and its reward."""

    candidates: Sequence[Sequence[float]]
    """Features by candidate."""
    chosen: int
    propensity: float
    """Probability with which the logging policy made the choice."""
    reward: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """Mean reward of a policy, with its 95 % confidence interval."""

    mean: float
    low: float
    high: float


Policy = Callable[[Logged], Sequence[float]]
"""Returns a probability for each candidate."""
Model = Callable[[Sequence[float]], float]
"""Predicts a reward from features."""


def inverse_propensity(log: Sequence[Logged], policy: Policy) -> Estimate:
    """Weight each reward by ``policy``'s probability over the propensity; self-normalised, interval by bootstrap."""
    pairs = [((weight := policy(one)[one.chosen] / one.propensity), weight * one.reward) for one in log]
    if not any(weight for weight, _ in pairs):
        return Estimate(math.nan, math.nan, math.nan)
    generator = random.Random(0)  # noqa: S311 - an estimate is to be repeatable
    means = []
    for _ in range(_REPEATS):
        drawn = generator.choices(pairs, k=len(pairs))
        weight = sum(one for one, _ in drawn)
        if weight:
            means.append(sum(reward for _, reward in drawn) / weight)
    means.sort()
    mean = sum(reward for _, reward in pairs) / sum(weight for weight, _ in pairs)
    return Estimate(mean, means[int(0.025 * len(means))], means[int(0.975 * len(means))])


def doubly_robust(log: Sequence[Logged], policy: Policy, model: Model) -> Estimate:
    """Predict rewards with a model, and correct them by the weighted errors of the logged choices.

    The model must not have been fitted to the same decisions.
    """
    values = []
    for one in log:
        wanted = policy(one)
        predicted = [model(features) for features in one.candidates]
        correction = wanted[one.chosen] / one.propensity * (one.reward - predicted[one.chosen])
        values.append(sum(share * value for share, value in zip(wanted, predicted, strict=True)) + correction)
    mean = sum(values) / len(values)
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1) / len(values))
    return Estimate(mean, mean - _Z * spread, mean + _Z * spread)
