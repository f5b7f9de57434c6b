"""Every expression of the alerts and the dashboard is valid PromQL with existing metrics and labels."""

from __future__ import annotations

import json
import re
from typing import Any

import prometheus_client
import pytest
import yaml

from hack.chart import dashboard
from hack.chart.rights import CHART
from hack.size import PRODUCT
from tests.unit.charts import expressions
from tests.unit.charts.expressions import TARGET, ExpressionError, Metric
from tests.unit.docs.test_metrics import DOCS, REGISTERED

ALERTS: list[dict[str, Any]] = yaml.load(
    (CHART / "files" / "alerts.yaml").read_text("utf-8"), yaml.CSafeLoader
)["groups"][0]["rules"]
METRICS = DOCS.read_text("utf-8").split("## Alerts worth having")[1].split("\n## ")[0]
ROOT = DOCS.parents[2]
DASHBOARD = json.loads(dashboard.FILE.read_text("utf-8"))
TARGETS = [
    pytest.param(target["expr"], target["legendFormat"], id=f"{panel['title']} {target['refId']}")
    for panel in DASHBOARD["panels"]
    for target in panel.get("targets", ())
]


def _known() -> dict[str, Metric]:
    """Return every name that a scrape has."""
    found = {"up": Metric("gauge", frozenset())}
    for name in prometheus_client.REGISTRY._names_to_collectors:
        if name.startswith("process_"):
            found[name] = Metric("counter" if name.endswith("_total") else "gauge", frozenset())
    for name, (kind, own) in REGISTERED.items():
        if kind == "histogram":
            found[f"{name}_bucket"] = Metric("bucket", frozenset({*own, "le"}))
            found |= {f"{name}_{part}": Metric("counter", frozenset(own)) for part in ("sum", "count")}
        else:
            found[name] = Metric(kind, frozenset(own))
    return found


KNOWN = _known()


def _labels(expression: str) -> frozenset[str]:
    return expressions.labels(expressions.parse(expression), KNOWN)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_alerts_use_existing_metrics(alert):
    """The expression is valid, and its texts use labels that it has in every branch."""
    kept = _labels(alert["expr"])
    texts = " ".join(alert["annotations"].values())
    assert set(re.findall(r"\$labels\.(\w+)", texts)) <= kept
    assert "namespace" in kept, "whoever is woken learns which installation it is about"


@pytest.mark.parametrize(("expression", "legend"), TARGETS)
def test_panels_use_existing_metrics(expression, legend):
    """The expression is valid, and its legend uses labels that the result has."""
    assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= _labels(expression)


@pytest.mark.parametrize(
    "query", [one["definition"] for one in DASHBOARD["templating"]["list"] if "definition" in one]
)
def test_variables_use_existing_labels(query):
    selector, label = expressions.label_of_values(query)
    assert label in _labels(selector) - TARGET


@pytest.mark.parametrize("expression", re.findall(r"^\| [^|]+ \| `(\w+[({].+?)`", METRICS, re.MULTILINE))
def test_documented_alerts_use_existing_metrics(expression):
    """docs/reference/metrics.md has working alerts to copy."""
    assert _labels(expression)


def _bounds(metric: str) -> list[float]:
    """Return upper bounds of a histogram's buckets."""
    found = prometheus_client.REGISTRY._names_to_collectors[metric]
    assert isinstance(found, prometheus_client.Histogram)
    return list(found._kwargs["buckets"])


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_a_quantile_is_compared_with_the_bound_of_a_bucket(alert):
    """Within a bucket a quantile is interpolated: between bounds of 0.1 and 1 s, 0.15 s may show as 0.99 s."""
    for metric, limit in expressions.limits(expressions.parse(alert["expr"])):
        assert limit in _bounds(metric)[:-1], "and above the last one no quantile ever is"


def test_selected_label_values_exist_in_the_code():
    """Otherwise the selector never matches."""
    source = "\n".join(
        path.read_text("utf-8") for package in PRODUCT for path in ROOT.glob(f"{package}/**/*.py")
    )
    asked = {
        value
        for expression in [*(alert["expr"] for alert in ALERTS), *(str(case.values[0]) for case in TARGETS)]
        for selector in expressions.selectors(expressions.parse(expression))
        for matcher in selector.matchers.matchers
        if matcher.name not in TARGET
        for value in matcher.value.split("|")
    }
    ours = {value for value in asked if not re.fullmatch(r"\$\w+|[\d.]+", value)}
    assert {"<error>", "refused", "back-off", "mirrored-pods", "down"} <= ours
    assert [value for value in sorted(ours) if f'"{value}"' not in source] == []


def test_each_expression_of_a_dashboard_is_instant_or_over_the_panels_own_range():
    """A fixed range is empty when zoomed in and blurred when zoomed out."""
    for expression, _ in (case.values for case in TARGETS):
        assert re.findall(r"\[([^\]]*)\]", str(expression)) in ([], ["$__rate_interval"])


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("up{job=", "unexpected end"),
        ('rate(up{job="virtual-node"})', "expected type matrix"),
        ('sum by (a b) (up{job="virtual-node"})', "invalid promql"),
        ("nothing_total", "no metric nothing_total"),
        ("up", "everybody's name"),
        ('virtual_node_leader{node="a"}', "virtual_node_leader has no label node"),
        ("sum by (name) (virtual_node_cluster_up)", "nothing has the label name"),
        ("sum without (name) (virtual_node_leader)", "by, not without"),
        ("virtual_node_pods_lost_total > 0", "only ever rises"),
        ("rate(virtual_node_cluster_up[5m])", "is a gauge and has no rate"),
        ("rate(virtual_node_pods_lost_total[1m])", "too short"),
        ("rate(rate(virtual_node_pods_lost_total[5m])[5m:])", "no metric over a range"),
        (
            "histogram_quantile(0.9, sum by (cluster) (rate(virtual_node_mirror_seconds_bucket[5m])))",
            "needs the label le",
        ),
        ("virtual_node_cluster_up / virtual_node_node_ready", "nothing will match"),
        ("virtual_node_cluster_up unless on (node) virtual_node_node_ready", "which a side has not"),
        ("stddev_over_time(virtual_node_cluster_up[5m])", "not among the functions"),
        ("virtual_node_cluster_up * virtual_node_cluster_up", "not expected between"),
    ],
)
def test_wrong_expressions_are_found(wrong, why):
    """Each check above can fail."""
    with pytest.raises(ExpressionError, match=re.escape(why)):
        _labels(wrong)


def test_common_labels_of_branches_are_kept():
    """A text may only use labels that the alert has in every branch."""
    assert _labels("sum by (cluster, node) (virtual_node_node_ready) or virtual_node_cluster_up") == {
        "cluster"
    }
    assert _labels('absent(up{job="virtual-node", component=~"a|b"})') == {"job"}
