"""Checks expressions of alerts and panels with a real parser of PromQL, and against the existing metrics.

The parser checks syntax, functions and value types; this module checks whether the metrics exist, whether
they have the labels, and whether counters are read as counters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta

import promql_parser as promql

TARGET = frozenset({"namespace", "pod", "container", "service", "endpoint", "component", "job", "instance"})
"""Labels that a scrape by the chart's ServiceMonitor adds."""
SHORTEST_RANGE = timedelta(minutes=2)
"""Four scrapes: with fewer, one failed scrape leaves a gap."""
_OF_COUNTERS = {"rate", "increase"}
_VARIABLE_RANGE = "$__rate_interval"
_COMPARISONS = {"==", "!=", ">", "<", ">=", "<="}
_SETS = {"and", "or", "unless"}


class ExpressionError(Exception):
    """An expression uses a missing metric or label, or is meaningless."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric's type, ``counter``, ``gauge`` or ``bucket``, and its own labels."""

    kind: str
    labels: frozenset[str]


def parse(expression: str) -> promql.Expr:
    """Return the parsed expression; Grafana's own range is replaced by one of five minutes.

    Raises:
        ExpressionError: it is no PromQL.
    """
    try:
        return promql.parse(expression.replace(_VARIABLE_RANGE, "5m"))
    except ValueError as error:
        raise ExpressionError(f"{error}: {expression}") from None


def selectors(expression: promql.Expr) -> list[promql.VectorSelector]:
    """Yield every selector, also those over a range."""
    found: list[promql.Expr] = []
    promql.walk(expression, found.append)
    return [node for node in found if isinstance(node, promql.VectorSelector)]


def limits(expression: promql.Expr) -> list[tuple[str, float]]:
    """Yield every histogram with a quantile that is compared with a number, and the number."""
    found: list[tuple[str, float]] = []

    def visit(node: promql.Expr) -> None:
        if (
            isinstance(node, promql.BinaryExpr)
            and isinstance(node.lhs, promql.Call)
            and node.lhs.func.name == "histogram_quantile"
            and isinstance(node.rhs, promql.NumberLiteral)
        ):
            (buckets,) = selectors(node.lhs)
            found.append((str(buckets.name).removesuffix("_bucket"), node.rhs.val))

    promql.walk(expression, visit)
    return found


def labels(node: promql.Expr, known: Mapping[str, Metric]) -> frozenset[str]:
    """Return the labels that each series of the result has.

    Raises:
        ExpressionError: a missing metric or label, a counter without a rate, a rate of a gauge, a quantile of
            a metric without ``le``, a range too short, or a join of sides without common labels.
    """
    if isinstance(node, promql.ParenExpr):
        return labels(node.expr, known)
    if isinstance(node, promql.NumberLiteral):
        return frozenset()
    for kind, judge in _JUDGES.items():
        if isinstance(node, kind):
            return judge(node, known)
    raise ExpressionError(f"{type(node).__name__} is not expected here: {node.prettify()}")


def _selector(node: promql.VectorSelector, known: Mapping[str, Metric]) -> frozenset[str]:
    kind, found = _metric(node, known)
    if kind != "gauge":
        raise ExpressionError(f"{node.name} only ever rises: it is to be read as a rate")
    return found


def _metric(node: promql.VectorSelector, known: Mapping[str, Metric]) -> tuple[str, frozenset[str]]:
    if node.name is None or node.name not in known:
        raise ExpressionError(f"no metric {node.name}")
    metric = known[node.name]
    found = metric.labels | TARGET
    matchers = node.matchers.matchers
    if unknown := {matcher.name for matcher in matchers} - found:
        raise ExpressionError(f"{node.name} has no label {', '.join(sorted(unknown))}")
    is_ours = any(matcher.name == "job" and matcher.value == "virtual-node" for matcher in matchers)
    if not node.name.startswith("virtual_node_") and not is_ours:
        raise ExpressionError(f'{node.name} is everybody\'s name: it needs job="virtual-node"')
    return metric.kind, found


def _call(node: promql.Call, known: Mapping[str, Metric]) -> frozenset[str]:
    name, arguments = node.func.name, node.args
    if name in _OF_COUNTERS:
        (over,) = arguments
        if not isinstance(over, promql.MatrixSelector):
            raise ExpressionError(f"{name} of what is no metric over a range")
        kind, found = _metric(over.vector_selector, known)
        if kind == "gauge":
            raise ExpressionError(f"{over.vector_selector.name} is a gauge and has no {name}")
        if over.range < SHORTEST_RANGE:
            raise ExpressionError(f"{over.range} is too short for scrapes every 30 s")
        return found
    if name == "histogram_quantile":
        inner = labels(arguments[1], known)
        if "le" not in inner:
            raise ExpressionError("a quantile needs the label le")
        return inner - {"le"}
    if name == "absent":
        (asked,) = selectors(node)
        labels(asked, known)
        return frozenset(one.name for one in asked.matchers.matchers if one.op == promql.MatchOp.Equal)
    if name in {"time", "vector"}:
        return frozenset()
    raise ExpressionError(f"{name} is not among the functions that are understood here")


def _aggregate(node: promql.AggregateExpr, known: Mapping[str, Metric]) -> frozenset[str]:
    inner = labels(node.expr, known)
    if node.modifier is None:
        return frozenset()
    if node.modifier.type != promql.AggModifierType.By:
        raise ExpressionError("say what is kept: by, not without")
    kept = frozenset(node.modifier.labels)
    if unknown := kept - inner:
        raise ExpressionError(f"nothing has the label {', '.join(sorted(unknown))} that is summed by")
    return kept


def _binary(node: promql.BinaryExpr, known: Mapping[str, Metric]) -> frozenset[str]:
    left, right, operator = labels(node.lhs, known), labels(node.rhs, known), str(node.op)
    scalars = [_is_scalar(side) for side in (node.lhs, node.rhs)]
    if any(scalars):
        return left | right
    matching = node.modifier.matching if node.modifier else None
    if matching is not None and (unknown := set(matching.labels) - (left & right)):
        raise ExpressionError(f"{operator} is on {', '.join(sorted(unknown))}, which a side has not")
    if operator == "or":
        return left & right
    if matching is None and left != right:
        raise ExpressionError(f"{operator} joins {sorted(left)} and {sorted(right)}: nothing will match")
    if operator not in _SETS | _COMPARISONS | {"/", "-"}:
        raise ExpressionError(f"{operator} is not expected between metrics")
    return left


def _is_scalar(node: promql.Expr) -> bool:
    if isinstance(node, promql.ParenExpr):
        return _is_scalar(node.expr)
    if isinstance(node, promql.BinaryExpr):
        return _is_scalar(node.lhs) and _is_scalar(node.rhs)
    return isinstance(node, promql.NumberLiteral) or (
        isinstance(node, promql.Call) and node.func.name == "time"
    )


_JUDGES: dict[type, Callable[..., frozenset[str]]] = {
    promql.VectorSelector: _selector,
    promql.Call: _call,
    promql.AggregateExpr: _aggregate,
    promql.BinaryExpr: _binary,
}


def label_of_values(query: str) -> tuple[str, str]:
    """Return selector and label of Grafana's ``label_values(selector, label)``."""
    match = re.fullmatch(r"label_values\((.+), (\w+)\)", query)
    if match is None:
        raise ExpressionError(f"no label_values: {query}")
    return match[1], match[2]
