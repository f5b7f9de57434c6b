"""Recent samples of a node, and figures computed from them: mean, deviation, forecast. No IO."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass

_LEVEL, _TREND, _DAMPING = 0.5, 0.3, 0.9
"""Parameters of Holt's linear method. The trend is damped, so that one steep minute does not forecast an empty or full node."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures of one resource of one node; CPU in millicores, memory in bytes."""

    latest: float
    mean: float
    deviation: float
    """The sample standard deviation; 0 with one sample."""
    forecast: float | None = None
    """Forecast of the next sample; None: unknown."""


class Series:
    """The last samples of one quantity, with four bytes each."""

    __slots__ = ("_measured", "_size", "_values")

    def __init__(self, size: int) -> None:
        self._values = array("f")
        self._size = size
        self._measured: Measured | None = None

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: float) -> None:
        """Append a sample, and drop the oldest one above the limit."""
        if len(self._values) >= self._size:
            del self._values[0]
        self._values.append(value)
        self._measured = None

    def measured(self) -> Measured:
        """Return the figures; at least one sample is needed."""
        if self._measured is None:
            values = self._values
            mean = math.fsum(values) / len(values)
            squares = math.fsum((value - mean) ** 2 for value in values)
            deviation = math.sqrt(squares / (len(values) - 1)) if len(values) > 1 else 0.0
            self._measured = Measured(values[-1], mean, deviation, self._forecast())
        return self._measured

    def _forecast(self) -> float:
        level, trend = self._values[0], 0.0
        for value in self._values[1:]:
            expected = level + _DAMPING * trend
            before, level = level, _LEVEL * value + (1 - _LEVEL) * expected
            trend = _TREND * (level - before) + (1 - _TREND) * _DAMPING * trend
        return max(0.0, level + _DAMPING * trend)
