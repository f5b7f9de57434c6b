"""The part of PromQL that the alerts use, evaluated over given samples.

It follows Prometheus' own rules (https://prometheus.io/docs/prometheus/latest/querying): look-back of five
minutes, ranges open on the left, extrapolated rates, quantiles by linear interpolation. The files of
``alerts`` are promtool's, with the same verdict.
"""

from __future__ import annotations

import math
import operator
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import promql_parser as promql

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
_LOOK_BACK = 300.0
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
_COUNT: dict[str, Callable[[float, float], float]] = {
    "*": operator.mul,
    "-": operator.sub,
    "/": lambda left, right: left / right if right else math.nan,
}
_AGGREGATE: dict[str, Callable[[Sequence[float]], float]] = {"sum": math.fsum, "max": max, "min": min}


@dataclass(frozen=True, slots=True)
class Series:
    """One series: its name, its labels, and (time, value) in order; None as a value marks its end."""

    name: str
    labels: Mapping[str, str]
    samples: Sequence[tuple[float, float | None]]


def evaluate(node: promql.Expr, series: Sequence[Series], now: float) -> Vector | float:
    """Return the value of an expression at a time."""
    if isinstance(node, promql.ParenExpr):
        return evaluate(node.expr, series, now)
    if isinstance(node, promql.NumberLiteral):
        return node.val
    if isinstance(node, promql.VectorSelector):
        return _instant(node, series, now)
    if isinstance(node, promql.Call):
        return _call(node, series, now)
    if isinstance(node, promql.AggregateExpr):
        return _aggregate(node, series, now)
    if isinstance(node, promql.BinaryExpr):
        return _binary(node, series, now)
    raise NotImplementedError(node.prettify())


def vector(node: promql.Expr, series: Sequence[Series], now: float) -> Vector:
    """Return the value of an expression that has labels."""
    value = evaluate(node, series, now)
    assert isinstance(value, dict), f"a number alone: {node.prettify()}"
    return value


def _selected(node: promql.VectorSelector, series: Sequence[Series]) -> list[Series]:
    return [
        one
        for one in series
        if one.name == node.name
        and all(_matches(matcher, one.labels.get(matcher.name, "")) for matcher in node.matchers.matchers)
    ]


def _matches(matcher: promql.Matcher, value: str) -> bool:
    if matcher.op in (promql.MatchOp.Equal, promql.MatchOp.NotEqual):
        wanted, is_it = matcher.op == promql.MatchOp.Equal, matcher.value == value
    else:
        wanted, is_it = matcher.op == promql.MatchOp.Re, re.fullmatch(matcher.value, value) is not None
    return is_it is bool(wanted)


def _instant(node: promql.VectorSelector, series: Sequence[Series], now: float) -> Vector:
    found: Vector = {}
    for one in _selected(node, series):
        seen = [value for at, value in one.samples if now - _LOOK_BACK < at <= now]
        if seen and seen[-1] is not None:
            found[frozenset(one.labels.items())] = seen[-1]
    return found


def _call(node: promql.Call, series: Sequence[Series], now: float) -> Vector | float:
    match node.func.name, node.args:
        case "time", []:
            return now
        case "absent", [promql.VectorSelector() as asked]:
            if _instant(asked, series, now):
                return {}
            equal = [one for one in asked.matchers.matchers if one.op == promql.MatchOp.Equal]
            return {frozenset((one.name, one.value) for one in equal): 1.0}
        case "histogram_quantile", [promql.NumberLiteral() as share, buckets]:
            return _quantiles(share.val, vector(buckets, series, now))
        case ("rate" | "increase") as name, [promql.MatrixSelector() as over]:
            span = over.range.total_seconds()
            found: Vector = {}
            for one in _selected(over.vector_selector, series):
                risen = _increase(one.samples, now - span, now)
                if risen is not None:
                    found[frozenset(one.labels.items())] = risen / span if name == "rate" else risen
            return found
    raise NotImplementedError(node.prettify())


def _increase(samples: Sequence[tuple[float, float | None]], start: float, end: float) -> float | None:
    seen = [(at, value) for at, value in samples if start < at <= end and value is not None]
    if len(seen) < 2:  # one sample has no increase
        return None
    risen = 0.0
    for (_, before), (_, after) in pairwise(seen):
        risen += after - before if after >= before else after
    (first, value), (last, _) = seen[0], seen[-1]
    between = (last - first) / (len(seen) - 1)
    ahead, behind = first - start, end - last
    ahead = ahead if ahead < 1.1 * between else between / 2
    behind = behind if behind < 1.1 * between else between / 2
    if risen > 0:  # it began at 0 at the earliest
        ahead = min(ahead, (last - first) * value / risen)
    return risen * (last - first + ahead + behind) / (last - first)


def _quantiles(share: float, buckets: Vector) -> Vector:
    grouped: dict[Labels, list[tuple[float, float]]] = defaultdict(list)
    for labels, count in buckets.items():
        bound = float(dict(labels)["le"].replace("+Inf", "inf"))
        grouped[frozenset(pair for pair in labels if pair[0] != "le")].append((bound, count))
    return {labels: _quantile(share, sorted(found)) for labels, found in grouped.items()}


def _quantile(share: float, buckets: Sequence[tuple[float, float]]) -> float:
    total = buckets[-1][1]
    if len(buckets) < 2 or not total or math.isfinite(buckets[-1][0]):  # with +Inf
        return math.nan
    rank = share * total
    place = next(place for place, (_, count) in enumerate(buckets) if count >= rank)
    if place == len(buckets) - 1:
        return buckets[-2][0]
    bound, count = buckets[place]
    below, before = buckets[place - 1] if place else (0.0, 0.0)
    return below + (bound - below) * (rank - before) / (count - before)


def _aggregate(node: promql.AggregateExpr, series: Sequence[Series], now: float) -> Vector:
    assert node.modifier is not None
    assert node.modifier.type == promql.AggModifierType.By
    grouped: dict[Labels, list[float]] = defaultdict(list)
    for labels, value in vector(node.expr, series, now).items():
        grouped[_only(labels, node.modifier.labels)].append(value)
    return {labels: _AGGREGATE[str(node.op)](found) for labels, found in grouped.items()}


def _only(labels: Labels, names: Sequence[str]) -> Labels:
    return frozenset(pair for pair in labels if pair[0] in names)


def _binary(node: promql.BinaryExpr, series: Sequence[Series], now: float) -> Vector | float:
    left, right = evaluate(node.lhs, series, now), evaluate(node.rhs, series, now)
    sign = str(node.op)
    if isinstance(right, float):
        if isinstance(left, float):
            return _COUNT[sign](left, right)
        if sign in _COMPARE:
            return {labels: value for labels, value in left.items() if _COMPARE[sign](value, right)}
        return {labels: _COUNT[sign](value, right) for labels, value in left.items()}
    assert isinstance(left, dict)
    matching = node.modifier.matching if node.modifier else None

    def key(labels: Labels) -> Labels:
        return labels if matching is None else _only(labels, matching.labels)

    others = {key(labels): value for labels, value in right.items()}
    match sign:
        case "or":
            mine = {key(labels) for labels in left}
            return left | {labels: value for labels, value in right.items() if key(labels) not in mine}
        case "and":
            return {labels: value for labels, value in left.items() if key(labels) in others}
        case "unless":
            return {labels: value for labels, value in left.items() if key(labels) not in others}
    assert matching is None, node.prettify()
    return {labels: _COUNT[sign](value, others[labels]) for labels, value in left.items() if labels in others}
