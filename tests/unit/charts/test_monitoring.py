"""Alerts are complete and have a runbook each, and the dashboard is valid for Grafana.

Their expressions are tested in ``test_expressions``, their firing in ``test_alert_rules``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hack.chart import dashboard, grafana, values
from hack.chart.template import template
from tests.unit.charts import expressions, rendering
from tests.unit.charts.test_expressions import ALERTS, KNOWN
from tests.unit.docs.test_metrics import REGISTERED
from tests.unit.docs.test_pages import ALERTS as RUNBOOKS

ROOT = Path(__file__).resolve().parents[3]
OPERATE = (ROOT / "docs/operate/monitor.md").read_text("utf-8")
REPOSITORY = "https://github.com/virtual-node/virtual-node/blob/main/"
MADE = json.loads(dashboard.FILE.read_text("utf-8"))


def _rules(text: str, **options: str) -> dict[str, dict[str, Any]]:
    """Return the alerts of the chart's PrometheusRule, by name."""
    (rule,) = (one for one in rendering.parse(template(text, **options)) if one["kind"] == "PrometheusRule")
    return {alert["alert"]: alert for alert in rule["spec"]["groups"][0]["rules"]}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_is_complete(alert):
    """Each alert has a severity, a summary, and a runbook address."""
    assert set(alert) == {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"\d+[mh]", alert["for"])
    assert alert["labels"]["severity"] in {"critical", "warning"}
    assert set(alert["annotations"]) == {"summary", "description", "runbook_url"}
    assert all(text.strip() for text in alert["annotations"].values())


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_the_runbook_address_exists(alert):
    """It is a page of this repository, and the page has the heading of the anchor."""
    page, anchor = alert["annotations"]["runbook_url"].removeprefix(REPOSITORY).split("#")
    headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text("utf-8"), re.MULTILINE)
    assert anchor in {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
    assert anchor == alert["alert"].lower()
    (default,) = (one.default for one in values.read() if one.path == "metrics.prometheusRule.runbookUrl")
    assert alert["annotations"]["runbook_url"] == f"{default}{anchor}"


def test_runbooks_and_alerts_agree():
    """Every alert has a runbook and every runbook an alert, in the same order, with the same metrics."""
    assert tuple(alert["alert"] for alert in ALERTS) == RUNBOOKS
    for alert in ALERTS:
        section = OPERATE.split(f"\n### {alert['alert']}\n")[1].split("\n##")[0]
        asked = {
            re.sub("_bucket$", "", str(one.name))
            for one in expressions.selectors(expressions.parse(alert["expr"]))
        }
        assert [name for name in asked if f"`{name}`" not in section] == [], alert["alert"]


def test_the_charts_alerts_equal_the_files():
    """The chart is rendered for the namespace of the files."""
    enabled = (
        "metrics: {prometheusRule: {enabled: true}}\nvirtualNode: {clusters: [{name: a, kubeconfig: b}]}"
    )
    assert list(_rules(enabled).values()) == ALERTS


def test_alerts_select_their_own_installation():
    """An absent series has no labels, so an alert about it has to name its namespace and job."""
    text = "metrics: {prometheusRule: {enabled: true, runbookUrl: 'https://wiki.example.com/'}}"
    found = _rules(text, namespace="elsewhere")
    down = found["VirtualNodeDown"]
    assert 'absent(up{job="virtual-node", component="virtual-node", namespace="elsewhere"})' in down["expr"]
    assert not any("virtual-node-system" in alert["expr"] for alert in found.values())
    assert down["annotations"]["runbook_url"] == "https://wiki.example.com/virtualnodedown"


@pytest.mark.parametrize(
    ("component", "off"),
    [
        ("virtual-node", "virtualNode: {enabled: false}"),
        ("webhook", "webhook: {enabled: false}"),
        ("descheduler", "descheduler: {enabled: false}"),
        ("multi-scheduler", "virtualNode: {clusters: []}"),
    ],
)
def test_no_alert_for_components_that_are_not_installed(component, off):
    found = _rules(f"metrics: {{prometheusRule: {{enabled: true}}}}\n{off}")
    assert not any(alert["labels"].get("component") == component for alert in found.values())
    assert any(alert["labels"].get("component") == component for alert in ALERTS)


def test_a_scrape_has_the_labels_of_expressions():
    """The job is independent of the release's name; label ``cluster`` is the metric's, not the target's."""
    (endpoint,) = rendering.one("everything", "ServiceMonitor", "metrics")["spec"]["endpoints"]
    assert endpoint["honorLabels"] is True
    assert {one["targetLabel"]: one.get("replacement") for one in endpoint["relabelings"]} == {
        "component": None,
        "job": "virtual-node",
    }


def test_no_metric_label_conflicts_with_target_labels():
    """With ``honorLabels``, a metric's label would replace the target's."""
    taken = expressions.TARGET | {"prometheus", "prometheus_replica"}
    assert [name for name, (_, labels) in REGISTERED.items() if taken & set(labels)] == []


def test_the_dashboard_is_valid_for_grafana():
    """Schema, variables and places: ids are unique and no panel overlaps another."""
    assert MADE["schemaVersion"] == grafana.SCHEMA_VERSION
    assert [one["name"] for one in MADE["templating"]["list"]] == ["datasource", "cluster", "node"]
    assert len({panel["id"] for panel in MADE["panels"]}) == len(MADE["panels"])
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in MADE["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < grafana.WIDTH


def test_panels_have_types_and_units_of_grafana():
    """Names as in Grafana 11's valueFormats and core panels."""
    panels = [panel for panel in MADE["panels"] if panel["type"] != "row"]
    assert {panel["type"] for panel in panels} <= {"timeseries", "stat", "heatmap", "table"}
    units = {panel["fieldConfig"]["defaults"]["unit"] for panel in panels}
    assert units <= {"short", "s", "ops", "reqps", "Bps", "bytes"}


def test_the_versions_of_all_replicas_are_a_table():
    """A row for each current replica, a column for each label, from an instant query."""
    (table,) = (panel for panel in MADE["panels"] if panel["title"] == "Versions")
    (target,) = table["targets"]
    assert (table["type"], target["format"], target["instant"]) == ("table", "table", True)
    columns = expressions.labels(expressions.parse(target["expr"]), KNOWN)
    assert columns == {"component", "pod", "version", "python"}
    (organize,) = table["transformations"]
    assert organize["options"]["excludeByName"] == {"Time": True, "Value": True}


def test_dashboard_uses_the_selected_data_source_and_existing_variables():
    """So it works wherever it is imported."""
    variables = {one["name"] for one in MADE["templating"]["list"]}
    for panel in MADE["panels"]:
        for one in (panel, *panel.get("targets", ())) if panel["type"] != "row" else ():
            assert one["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert set(re.findall(r"\$(\w+)", one.get("expr", ""))) <= variables | {"__rate_interval"}


def test_every_metric_is_on_the_dashboard():
    """Exceptions are listed."""
    shown = {
        str(selector.name)
        for panel in MADE["panels"]
        for target in panel.get("targets", ())
        for selector in expressions.selectors(expressions.parse(target["expr"]))
    }
    elsewhere = {
        "virtual_node_services_foreign_total",
        "virtual_node_followed_objects_failed",
        "virtual_node_orphaned_claims",
        "virtual_node_worker_restarts_total",
        "virtual_node_inspection_timestamp_seconds",
    }
    ours = {name for name in REGISTERED if name.startswith(("virtual_node_", "rest_", "workqueue_"))}
    assert {name for name in ours if not {name, f"{name}_bucket"} & shown} == elsewhere
