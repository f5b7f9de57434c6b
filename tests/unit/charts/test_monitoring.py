"""Alerts are whole and have a runbook each, and the dashboard is one that Grafana takes.

What their expressions say is in ``test_expressions``, what makes the alerts fire in ``test_alert_rules``.
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
OPERATE = (ROOT / "docs" / "operate.md").read_text("utf-8")
REPOSITORY = "https://github.com/virtual-node/virtual-node/blob/main/"
MADE = json.loads(dashboard.FILE.read_text("utf-8"))


def _rules(text: str, **options: str) -> dict[str, dict[str, Any]]:
    """The alerts of the chart's PrometheusRule, by name."""
    (rule,) = (one for one in rendering.parse(template(text, **options)) if one["kind"] == "PrometheusRule")
    return {alert["alert"]: alert for alert in rule["spec"]["groups"][0]["rules"]}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_is_whole(alert):
    """Each alert says how bad it is, what it is about, and where to read on."""
    assert set(alert) == {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"\d+[mh]", alert["for"])
    assert alert["labels"]["severity"] in {"critical", "warning"}
    assert set(alert["annotations"]) == {"summary", "description", "runbook_url"}
    assert all(text.strip() for text in alert["annotations"].values())


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_the_runbook_is_where_the_alert_says(alert):
    """The address is that of a page of this repository, and the page has a heading that makes this anchor."""
    page, anchor = alert["annotations"]["runbook_url"].removeprefix(REPOSITORY).split("#")
    headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text("utf-8"), re.MULTILINE)
    assert anchor in {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
    assert anchor == alert["alert"].lower()
    (default,) = (one.default for one in values.read() if one.path == "metrics.prometheusRule.runbookUrl")
    assert alert["annotations"]["runbook_url"] == f"{default}{anchor}"


def test_runbooks_and_alerts_agree():
    """Every alert has a runbook, every runbook an alert, in the same order, and speaks of the same metrics."""
    assert tuple(alert["alert"] for alert in ALERTS) == RUNBOOKS
    for alert in ALERTS:
        section = OPERATE.split(f"\n### {alert['alert']}\n")[1].split("\n##")[0]
        asked = {
            re.sub("_bucket$", "", str(one.name))
            for one in expressions.selectors(expressions.parse(alert["expr"]))
        }
        assert [name for name in asked if f"`{name}`" not in section] == [], alert["alert"]


def test_the_chart_s_alerts_are_the_files():
    """In the namespace that the file names they are the very same."""
    enabled = (
        "metrics: {prometheusRule: {enabled: true}}\nvirtualNode: {clusters: [{name: a, kubeconfig: b}]}"
    )
    assert list(_rules(enabled).values()) == ALERTS


def test_alerts_speak_of_their_own_installation():
    """What is absent has no labels: an alert about it has to be told where it is looked for, and by whom it is read."""
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
def test_no_alert_waits_for_what_is_not_installed(component, off):
    """A component that is off is absent for good."""
    found = _rules(f"metrics: {{prometheusRule: {{enabled: true}}}}\n{off}")
    assert not any(alert["labels"].get("component") == component for alert in found.values())
    assert any(alert["labels"].get("component") == component for alert in ALERTS)


def test_a_scrape_gives_the_labels_that_expressions_ask_for():
    """Our job whatever the release is called, the component, and our own label ``cluster`` instead of a target's."""
    (endpoint,) = rendering.one("everything", "ServiceMonitor", "metrics")["spec"]["endpoints"]
    assert endpoint["honorLabels"] is True
    assert {one["targetLabel"]: one.get("replacement") for one in endpoint["relabelings"]} == {
        "component": None,
        "job": "virtual-node",
    }


def test_nothing_of_ours_takes_a_targets_place():
    """Labels are honoured as they come, so none of ours may be called like one that a target has."""
    taken = expressions.TARGET | {"prometheus", "prometheus_replica"}
    assert [name for name, (_, labels) in REGISTERED.items() if taken & set(labels)] == []


def test_the_dashboard_is_one_that_grafana_takes():
    """Schema, variables and places: ids are unique and no panel lies on another."""
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


def test_panels_are_of_kinds_and_units_that_grafana_has():
    """Names as in Grafana 11's valueFormats and core panels; an unknown one shows no panel, or bare numbers."""
    panels = [panel for panel in MADE["panels"] if panel["type"] != "row"]
    assert {panel["type"] for panel in panels} <= {"timeseries", "stat", "heatmap", "table"}
    units = {panel["fieldConfig"]["defaults"]["unit"] for panel in panels}
    assert units <= {"short", "s", "ops", "reqps", "Bps", "bytes"}


def test_the_versions_of_all_replicas_are_a_table():
    """A row for each replica that there is now, a column for each label: Grafana makes a table of an instant query."""
    (table,) = (panel for panel in MADE["panels"] if panel["title"] == "Versions")
    (target,) = table["targets"]
    assert (table["type"], target["format"], target["instant"]) == ("table", "table", True)
    columns = expressions.labels(expressions.parse(target["expr"]), KNOWN)
    assert columns == {"component", "pod", "version", "python"}
    (organize,) = table["transformations"]
    assert organize["options"]["excludeByName"] == {"Time": True, "Value": True}


def test_whatever_is_asked_is_asked_of_the_chosen_source_with_variables_that_there_are():
    """The dashboard works wherever it is imported: no source of ours is named in it, and no variable is missing."""
    variables = {one["name"] for one in MADE["templating"]["list"]}
    for panel in MADE["panels"]:
        for one in (panel, *panel.get("targets", ())) if panel["type"] != "row" else ():
            assert one["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert set(re.findall(r"\$(\w+)", one.get("expr", ""))) <= variables | {"__rate_interval"}


def test_every_metric_of_ours_is_on_the_dashboard():
    """What is measured is shown; what is left out is left out on purpose."""
    shown = {
        str(selector.name)
        for panel in MADE["panels"]
        for target in panel.get("targets", ())
        for selector in expressions.selectors(expressions.parse(target["expr"]))
    }
    elsewhere = {"virtual_node_services_foreign_total", "virtual_node_orphaned_claims"}
    ours = {name for name in REGISTERED if name.startswith(("virtual_node_", "rest_", "workqueue_"))}
    assert {name for name in ours if not {name, f"{name}_bucket"} & shown} == elsewhere
