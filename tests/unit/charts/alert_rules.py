"""Files of promtool's rule tests, evaluated here: the alerts that fire at a time, given samples.

Format: https://prometheus.io/docs/prometheus/latest/configuration/unit_testing_rules.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.unit.charts import evaluation, expressions
from tests.unit.charts.evaluation import Labels, Series

_UNITS = {"s": 1, "m": 60, "h": 3600}
_SERIES = re.compile(r"(\w+)\{(.*)\}")
_VALUES = re.compile(r"(?P<first>_|stale|-?[\d.]+)(?P<step>[-+][\d.]+)?(?:x(?P<more>\d+))?")
_TEMPLATE = re.compile(r"\{\{ \$(?:labels\.(?P<label>\w+)|value \| (?P<how>\w+)) \}\}")
_DAY, _HOUR, _MINUTE = 86400, 3600, 60


def seconds(duration: str) -> float:
    """Return seconds: ``7m30s`` → 450."""
    return sum(int(count) * _UNITS[unit] for count, unit in re.findall(r"(\d+)([smh])", duration))


def series(text: str, values: str, interval: float) -> Series:
    """Return one of ``input_series``."""
    match = _SERIES.fullmatch(text)
    assert match is not None, text
    labels = dict(re.findall(r'(\w+)="([^"]*)"', match[2]))
    samples = [
        (place * interval, value)
        for place, value in enumerate(one for part in values.split() for one in _expand(part))
        if value != "_"
    ]
    return Series(match[1], labels, [(at, None if value is None else float(value)) for at, value in samples])


def _expand(part: str) -> Iterator[float | str | None]:
    """Return the samples: ``1+2x3`` → 1, 3, 5, 7; ``_`` is a missing sample, ``stale`` the end."""
    match = _VALUES.fullmatch(part)
    assert match is not None, part
    first, count = match["first"], int(match["more"] or 0)
    if first in {"_", "stale"}:
        yield from ["_" if first == "_" else None] * (count if match["more"] else 1)
        return
    for times in range(count + 1):
        yield float(first) + float(match["step"] or 0) * times


def firing(
    alert: Mapping[str, Any], given: Sequence[Series], *, until: float, every: float
) -> list[dict[str, Any]]:
    """Return the alerts that fire at a time, as in ``exp_alerts``: the rule is evaluated at each step until then."""
    expression, patience = expressions.parse(alert["expr"]), seconds(alert["for"])
    since: dict[Labels, float] = {}
    active: evaluation.Vector = {}
    for step in range(int(until / every) + 1):
        active = evaluation.vector(expression, given, step * every)
        since = {labels: since.get(labels, step * every) for labels in active}
    return [
        _shown(alert, dict(labels), value)
        for labels, value in active.items()
        if until - since[labels] >= patience
    ]


def _shown(alert: Mapping[str, Any], labels: dict[str, str], value: float) -> dict[str, Any]:
    def put(match: re.Match[str]) -> str:
        return labels[match["label"]] if match["label"] else _HUMAN[match["how"]](value)

    return {
        "exp_labels": labels | alert["labels"],
        "exp_annotations": {key: _TEMPLATE.sub(put, text) for key, text in alert["annotations"].items()},
    }


def _duration(value: float) -> str:
    if value < _MINUTE:
        return f"{value:.4g}s"
    whole = int(value)
    parts = [
        (whole // _DAY, "d"),
        (whole // _HOUR % 24, "h"),
        (whole // _MINUTE % 60, "m"),
        (whole % 60, "s"),
    ]
    first = next(place for place, (count, _) in enumerate(parts) if count)
    return " ".join(f"{count}{unit}" for count, unit in parts[first:])


def _humanize(value: float) -> str:
    assert 1 <= value < 1000 or math.isnan(value), "no prefixes here"
    return f"{value:.4g}"


_HUMAN = {
    "humanizeDuration": _duration,
    "humanizePercentage": lambda v: f"{v * 100:.4g}%",
    "humanize": _humanize,
}
