"""Alerts and dashboard speak of metrics that there are, with labels that these have, and have a runbook each."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
import yaml

from hack.chart import dashboard, grafana
from hack.chart.rights import CHART
from tests.unit.docs.test_metrics import REGISTERED
from tests.unit.docs.test_pages import ALERTS as RUNBOOKS

ALERTS: list[dict[str, Any]] = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text("utf-8"))["rules"]
OPERATE = (Path(__file__).resolve().parents[3] / "docs" / "operate.md").read_text("utf-8")
TARGET = {"namespace", "pod", "component", "job", "instance"}
"""Labels that Prometheus puts on whatever it scrapes; ``component`` is the chart's ServiceMonitor's doing."""
_FUNCTIONS = {"rate", "increase", "histogram_quantile", "absent", "time", "vector", "label_values"}
_WORDS = {"sum", "max", "min", "count", "by", "or", "and", "unless", "on"} | _FUNCTIONS
_TOKEN = re.compile(
    r"""(?P<space>\s+)|(?P<text>"[^"]*")|(?P<range>\[(?:\d+[smh]|\$__rate_interval)\])
    |(?P<number>\d+(?:\.\d+)?)|(?P<name>[a-zA-Z_]\w*)|(?P<operator>=~|!~|!=|==|>=|<=|[-+*/<>=(){},])""",
    re.VERBOSE,
)
_SELECTOR = re.compile(r"\b([a-z_]\w*)(\{[^}]*\})?(\[[^\]]+\])?")
_BY = re.compile(r"\bby \(([^)]*)\)")
_PAIRS = {"(": ")", "{": "}"}


def _panels() -> list[dict[str, Any]]:
    made = json.loads(dashboard.FILE.read_text("utf-8"))
    return [panel for panel in made["panels"] if panel["type"] != "row"]


EXPRESSIONS = [
    *(pytest.param(alert["expr"], id=alert["alert"]) for alert in ALERTS),
    *(
        pytest.param(target["expr"], id=f"{panel['title']} {target['refId']}")
        for panel in _panels()
        for target in panel["targets"]
    ),
    *(
        pytest.param(variable["definition"], id=f"${variable['name']}")
        for variable in json.loads(dashboard.FILE.read_text("utf-8"))["templating"]["list"]
        if "definition" in variable
    ),
]


def _tokens(expression: str) -> list[str]:
    found, position = [], 0
    while position < len(expression):
        match = _TOKEN.match(expression, position)
        assert match, f"not PromQL from here: {expression[position:]}"
        if match.lastgroup != "space":
            found.append(match[0])
        position = match.end()
    return found


def _known() -> dict[str, tuple[str, set[str]]]:
    """Every name that a scrape has → its type and labels."""
    found: dict[str, tuple[str, set[str]]] = {"up": ("gauge", set())}
    for name in prometheus_client.REGISTRY._names_to_collectors:
        if name.startswith("process_"):
            found[name] = ("counter" if name.endswith("_total") else "gauge", set())
    for name, (kind, labels) in REGISTERED.items():
        if kind == "histogram":
            found[f"{name}_bucket"] = ("counter", {*labels, "le"})
            found |= {f"{name}_{part}": ("counter", set(labels)) for part in ("sum", "count")}
        else:
            found[name] = (kind, set(labels))
    return found


KNOWN = _known()


def _selectors(expression: str) -> list[tuple[str, set[str], bool]]:
    """Metrics of an expression: name, labels in its matchers, whether over a range."""
    bare = _BY.sub(
        "", re.sub(r'"[^"]*"', lambda text: '"' + re.sub(r"\w", ".", text[0][1:-1]) + '"', expression)
    )
    bare = re.sub(r"(label_values\([^)]*), *\w+\)", r"\1)", bare)
    return [
        (name, set(re.findall(r"(\w+) *(?:=~|!~|!=|=)", matchers)), bool(span))
        for name, matchers, span in _SELECTOR.findall(bare)
        if name not in _WORDS
    ]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_is_well_formed(expression):
    """Every token is PromQL's, brackets close what they opened, and no operator stands before nothing."""
    waiting: list[str] = []
    tokens = _tokens(expression)
    for position, token in enumerate(tokens):
        if token in _PAIRS:
            waiting.append(_PAIRS[token])
        elif token in _PAIRS.values():
            assert waiting.pop() == token
        if token in {"or", "unless", "and", "==", "/", ">", "<", "by", ","}:
            assert 0 < position < len(tokens) - 1
            assert tokens[position + 1] not in {")", "or", "unless", "and", "=="}
        if token in _FUNCTIONS or token == "by":
            assert tokens[position + 1] == "("
    assert waiting == []


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_asks_for_what_there_is(expression):
    """Metrics are registered by the code; labels in matchers and in ``by`` are theirs or Prometheus' own."""
    found = _selectors(expression)
    assert found
    labels = set(TARGET)
    for name, matched, _ in found:
        assert name in KNOWN, f"no metric {name}"
        assert matched <= KNOWN[name][1] | TARGET
        labels |= KNOWN[name][1]
    for group in _BY.findall(expression):
        assert {label.strip() for label in group.split(",")} <= labels


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_counters_are_read_as_rates_and_gauges_as_they_are(expression):
    """A counter's value alone says nothing, and a gauge has no rate."""
    for name, _, has_range in _selectors(expression):
        assert has_range == (KNOWN[name][0] == "counter"), name
    assert expression.count("[") == len(re.findall(r"\b(?:rate|increase)\(", expression))


def test_an_unknown_metric_would_be_found():
    """The checks above see a name and a label that nobody registers."""
    assert _selectors('sum by (x) (rate(nothing_total{code="x", verb!~"a|b"}[5m]))') == [
        ("nothing_total", {"code", "verb"}, True)
    ]
    with pytest.raises(AssertionError, match="not PromQL"):
        _tokens("up == 1 ? 2")


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_is_whole(alert):
    """Each alert says how bad it is, what it is about, and where to read on."""
    assert set(alert) == {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"\d+[mh]", alert["for"])
    assert alert["labels"]["severity"] in {"critical", "warning"}
    assert set(alert["annotations"]) == {"summary", "description", "runbook_url"}
    assert all(text.strip() for text in alert["annotations"].values())
    assert alert["annotations"]["runbook_url"].endswith(f"/docs/operate.md#{alert['alert'].lower()}")


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_texts_name_labels_that_the_alert_has(alert):
    """A label in a text is one of those that the expression keeps."""
    kept = {label.strip() for group in _BY.findall(alert["expr"]) for label in group.split(",")} - {"le"}
    texts = " ".join(alert["annotations"].values())
    assert set(re.findall(r"\$labels\.(\w+)", texts)) <= kept


def test_runbooks_and_alerts_agree():
    """Every alert has a runbook, every runbook an alert, in the same order, and speaks of the same metrics."""
    names = [alert["alert"] for alert in ALERTS]
    assert tuple(names) == RUNBOOKS
    for alert in ALERTS:
        section = OPERATE.split(f"\n### {alert['alert']}\n")[1].split("\n##")[0]
        asked = {re.sub("_bucket$", "", name) for name, _, _ in _selectors(alert["expr"])}
        assert [name for name in asked if f"`{name}`" not in section] == []


def test_the_dashboard_is_one_that_grafana_takes():
    """Schema, variables and places: ids are unique and no panel lies on another."""
    made = json.loads(dashboard.FILE.read_text("utf-8"))
    assert made["schemaVersion"] >= 38
    assert [one["name"] for one in made["templating"]["list"]] == ["datasource", "cluster", "node"]
    assert len({panel["id"] for panel in made["panels"]}) == len(made["panels"])
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in made["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < grafana.WIDTH


def test_every_metric_of_ours_is_on_the_dashboard():
    """What is measured is shown; what is left out is left out on purpose."""
    shown = dashboard.FILE.read_text("utf-8")
    elsewhere = {"virtual_node_services_foreign_total", "virtual_node_orphaned_claims"}
    missing = {name for name in REGISTERED if name.startswith(("virtual_node_", "rest_", "workqueue_"))}
    assert {name for name in missing if name not in shown} == elsewhere


def test_legends_name_labels_that_the_query_keeps():
    """A legend that asks for another label would be empty."""
    for panel in _panels():
        for target in panel["targets"]:
            kept = {label.strip() for group in _BY.findall(target["expr"]) for label in group.split(",")}
            asked = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert asked <= (kept or TARGET), panel["title"]
