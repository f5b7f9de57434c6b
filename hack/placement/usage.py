"""Simulated usage of tasks: steady ones and bursty ones, autocorrelated, repeatable by seed.

A steady task varies around its mean (first-order autoregression). A bursty one is idle most of the time and
uses up to its limit in bursts of several minutes. Bursts of tasks of one application coincide in part, as
requests of users do.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

_CORRELATION = 0.9
"""Correlation of a steady task's usage from one minute to the next."""
_SPREAD = 0.15
_BURST, _PAUSE = 10.0, 40.0
"""Mean minutes of a burst, and nominal minutes of a pause between two bursts; the mean pause is longer, about 54."""
_TOGETHER = 0.5
"""Probability that a bursty task's pause ends when a burst of its application begins."""


@dataclass(frozen=True, slots=True)
class Job:
    """A task before it runs."""

    seed: int
    request: int
    """Requested CPU in thousandths."""
    limit: int
    minutes: int
    """Minutes for which the task runs."""
    is_bursty: bool
    app: int


class Usage:
    """The usage of one running task, minute by minute."""

    def __init__(self, job: Job) -> None:
        """Start the task."""
        self._job = job
        self._random = random.Random(job.seed)  # noqa: S311 - a simulation is to be repeatable
        self._mean = self._random.uniform(0.35, 0.85)
        self._noise = self._random.gauss(0, _SPREAD)
        self._is_on = self._random.random() < _BURST / (_BURST + _PAUSE)
        self._height = self._random.uniform(0.7, 1.0)

    def next(self, *, app_begins: bool) -> float:
        """Return the CPU that the task would use in the next minute.

        Args:
            app_begins: whether a burst of the task's application begins.
        """
        if not self._job.is_bursty:
            step = self._random.gauss(0, _SPREAD * (1 - _CORRELATION**2) ** 0.5)
            self._noise = _CORRELATION * self._noise + step
            return max(0.0, self._job.request * self._mean * (1 + self._noise))
        chance = self._random.random()
        if self._is_on:
            self._is_on = chance >= 1 / _BURST
        else:
            self._is_on = chance < (_TOGETHER if app_begins else (1 - _TOGETHER) / _PAUSE)
        return self._job.limit * self._height if self._is_on else 0.15 * self._job.request


def jobs(seed: int, minutes: int, per_minute: float, apps: int) -> list[list[Job]]:
    """Return the tasks that arrive, by minute."""
    generator = random.Random(seed)  # noqa: S311 - a simulation is to be repeatable
    found = []
    for _minute in range(minutes):
        arriving, waited = [], generator.expovariate(per_minute)
        while waited < 1:
            waited += generator.expovariate(per_minute)
            app = generator.randrange(apps)
            request = generator.choice([500, 1000, 2000, 2000, 4000, 4000, 8000])
            arriving.append(
                Job(
                    seed=generator.randrange(2**31),
                    request=request,
                    limit=2 * request,
                    minutes=max(5, int(generator.expovariate(1 / 240))),
                    # Tasks of one application are all bursty or all steady.
                    is_bursty=app % 2 == 0,
                    app=app,
                )
            )
        found.append(arriving)
    return found


def app_bursts(seed: int, minutes: int, apps: int) -> list[set[int]]:
    """Return the applications that begin a burst, by minute."""
    generator = random.Random(seed + 1)  # noqa: S311 - a simulation is to be repeatable
    chance = _TOGETHER / _PAUSE
    return [{app for app in range(apps) if generator.random() < chance} for _minute in range(minutes)]
