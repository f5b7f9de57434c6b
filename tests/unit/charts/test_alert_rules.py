"""Each alert fires when it should, with the right text, and not on a healthy system or one that recovers.

The files of ``alerts`` are promtool's: ``promtool test rules tests/unit/charts/alerts/*.yaml`` checks them,
too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.charts import alert_rules
from tests.unit.charts.test_expressions import ALERTS

FILES = Path(__file__).with_name("alerts")
RULES = {alert["alert"]: alert for alert in ALERTS}
CASES: list[tuple[str, dict[str, Any]]] = [
    (path.stem, told)
    for path in sorted(FILES.glob("*.yaml"))
    for told in yaml.load(path.read_text("utf-8"), yaml.CSafeLoader)["tests"]
]


def _order(alert: dict[str, Any]) -> list[tuple[str, str]]:
    return sorted(alert["exp_labels"].items())


@pytest.mark.parametrize(("alert", "told"), CASES, ids=[f"{alert}: {told['name']}" for alert, told in CASES])
def test_an_alert_fires_as_specified(alert, told):
    """At each time exactly the alerts of the file fire, with these labels and texts."""
    interval = alert_rules.seconds(told["interval"])
    given = [alert_rules.series(one["series"], one["values"], interval) for one in told["input_series"]]
    for check in told["alert_rule_test"]:
        assert check["alertname"] == alert
        found = alert_rules.firing(
            RULES[alert], given, until=alert_rules.seconds(check["eval_time"]), every=30.0
        )
        assert sorted(found, key=_order) == sorted(check.get("exp_alerts", []), key=_order), check[
            "eval_time"
        ]


def test_every_alert_has_cases_firing_and_silent():
    for outcome in (True, False):
        tried = {
            alert
            for alert, told in CASES
            if any(("exp_alerts" in check) is outcome for check in told["alert_rule_test"])
        }
        assert tried == set(RULES)
