"""A contextual bandit: discounted linear Thompson sampling. No IO.

Rewards are modelled as linear in the features of a choice, plus noise. Older rewards count less, so the bandit follows
changes of clusters. Each choice is drawn with known probabilities (propensities), so that the rewards of other policies
can later be estimated from the same decisions.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul

Vector = Sequence[float]
_DRAWS = 24
"""Number of sampled models that give the propensities. Choices are drawn with these propensities, so the logged ones
are exact."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A ranking of candidates."""

    best: int
    scores: list[float]
    """From 0 to 1, 1 for the best."""
    propensities: list[float]
    """Probability of each candidate to be drawn as the best."""


@dataclass(eq=False)
class Bandit:
    """A linear model of rewards."""

    size: int
    """Number of features."""
    discount: float = 0.998
    """Factor by which earlier rewards are multiplied at each new reward."""
    exploration: float = 0.05
    """Share of choices that are uniformly random; gives propensities a lower bound."""
    spread: float = 0.3
    """Standard deviation of the sampled models, as a multiple of the posterior's."""
    seed: int | None = None
    """Seed of the random choices; None: a random seed."""
    rewards: int = 0
    """Number of learned rewards."""

    def __post_init__(self) -> None:
        size = self.size
        self._random = random.Random(self.seed)  # noqa: S311 - not for secrets
        self.precision = [[float(row == column) for column in range(size)] for row in range(size)]
        self.weighted = [0.0] * size
        """Sum of rewards times features."""
        self._draws: list[list[float]] = []
        self._mean: list[float] = []

    def add(self, features: Vector, reward: float) -> None:
        """Learn the reward, from 0 to 1, of a choice with these features."""
        keep, prior = self.discount, 1 - self.discount
        for row, values in enumerate(self.precision):
            for column in range(self.size):
                values[column] = keep * values[column] + features[row] * features[column]
            values[row] += prior
            self.weighted[row] = keep * self.weighted[row] + reward * features[row]
        self.rewards += 1
        self._draws = []

    def choose(self, candidates: Sequence[Vector]) -> Choice:
        """Rank candidates by their features; at least one is needed."""
        self._sample()
        wins = [0] * len(candidates)
        for model in self._draws:
            values = [sum(map(mul, model, features)) for features in candidates]
            wins[values.index(max(values))] += 1
        rest = self.exploration / len(candidates)
        propensities = [(1 - self.exploration) * count / len(self._draws) + rest for count in wins]
        [best] = self._random.choices(range(len(candidates)), propensities)
        values = [self.expected(features) for features in candidates]
        low, high = min(values), max(values)
        scores = [0.9 * (value - low) / (high - low) if high > low else 0.5 for value in values]
        scores[best] = 1.0
        return Choice(best, scores, propensities)

    def expected(self, features: Vector) -> float:
        """Return the expected reward of a choice."""
        self._sample()
        return float(sum(map(mul, self._mean, features)))

    def _sample(self) -> None:
        """Draw models from the posterior, unless nothing was learned since the last draw."""
        if self._draws:
            return
        lower = _cholesky(self.precision)
        self._mean = _backward(lower, _forward(lower, self.weighted))
        for _ in range(_DRAWS):
            noise = _backward(lower, [self._random.gauss(0, self.spread) for _ in range(self.size)])
            self._draws.append([one + more for one, more in zip(self._mean, noise, strict=True)])


def _cholesky(matrix: Sequence[Vector]) -> list[list[float]]:
    """Return the lower triangular Cholesky factor of a positive definite matrix."""
    lower = [[0.0] * len(matrix) for _ in matrix]
    for row, values in enumerate(matrix):
        for column in range(row + 1):
            rest = values[column] - sum(map(mul, lower[row][:column], lower[column][:column]))
            lower[row][column] = (
                math.sqrt(max(rest, 1e-12)) if row == column else rest / lower[column][column]
            )
    return lower


def _forward(lower: Sequence[Vector], right: Vector) -> list[float]:
    found: list[float] = []
    for row, value in enumerate(right):
        found.append((value - sum(map(mul, lower[row][:row], found))) / lower[row][row])
    return found


def _backward(lower: Sequence[Vector], right: Vector) -> list[float]:
    """Solve the linear system of the transposed lower triangular matrix."""
    found = list(right)
    for row in range(len(found) - 1, -1, -1):
        found[row] = (
            found[row] - sum(lower[below][row] * found[below] for below in range(row + 1, len(found)))
        ) / lower[row][row]
    return found
