"""Builders for the parts of a Grafana dashboard, and the queries that panels share. No IO."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

SCHEMA_VERSION = 39
"""Version of the dashboard schema that Grafana 10 and later read."""
WIDTH = 24
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
Thresholds = Sequence[tuple[float | None, str]]
"""Lower bound → colour."""
GREEN: Thresholds = ((None, "green"),)
ZERO_IS_GOOD: Thresholds = ((None, "green"), (1, "red"))
RATE = "[$__rate_interval]"
OWN_SERIES = 'job="virtual-node"'
"""Selects this project's series where other programs use the same metric name, such as ``workqueue_depth``."""


class Panel:
    """One panel.

    Args:
        title: heading.
        queries: their results are shown together.
        unit: Grafana's name of the unit.
        kind: timeseries, stat, heatmap or table; a table has a row for each series, a column for each label.
        width: in columns; the page has 24. 0: the width that the row gives to its panels.
        meaning: shown on hover.
        thresholds: for the colour of a value.
    """

    def __init__(
        self,
        title: str,
        *queries: Query,
        unit: str = "short",
        kind: str = "timeseries",
        width: int = 0,
        meaning: str = "",
        thresholds: Thresholds = GREEN,
    ) -> None:
        self.title, self.queries, self.unit, self.kind = title, queries, unit, kind
        self.width, self.meaning, self.thresholds = width, meaning, thresholds

    @property
    def height(self) -> int:
        """Return the height in Grafana's rows."""
        return 4 if self.kind == "stat" else 8

    def render(self, number: int, x: int, y: int, width: int) -> dict[str, Any]:
        """Return the panel at its position."""
        is_heat = self.kind == "heatmap"
        transformations = {"transformations": _LABELS_ALONE} if self.kind == "table" else {}
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.meaning,
            "datasource": DATASOURCE,
            "gridPos": {"h": self.height, "w": width, "x": x, "y": y},
            "fieldConfig": {"defaults": self._defaults(), "overrides": []},
            "options": _OPTIONS[self.kind] | ({"yAxis": {"unit": self.unit}} if is_heat else {}),
            **transformations,
            "targets": [
                {
                    "refId": chr(ord("A") + position),
                    "datasource": DATASOURCE,
                    "expr": expression,
                    "legendFormat": legend,
                    "format": _FORMATS.get(self.kind, "time_series"),
                    # These kinds show the current value; a range query would cover the whole window.
                    **({"instant": True} if self.kind in {"stat", "table"} else {"range": True}),
                }
                for position, (expression, legend) in enumerate(self.queries)
            ],
        }

    def _defaults(self) -> dict[str, Any]:
        steps = [{"value": value, "color": color} for value, color in self.thresholds]
        defaults: dict[str, Any] = {
            "unit": self.unit,
            "color": {"mode": "thresholds" if self.kind == "stat" else "palette-classic"},
            "thresholds": {"mode": "absolute", "steps": steps},
        }
        if self.kind == "timeseries":
            defaults |= {"min": 0, "custom": {"lineWidth": 1, "fillOpacity": 10, "showPoints": "never"}}
        return defaults


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under a title; panels without their own width get ``width``."""

    title: str
    panels: Sequence[Panel]
    width: int = 12


_FORMATS = {"heatmap": "heatmap", "table": "table"}
_LABELS_ALONE = [{"id": "organize", "options": {"excludeByName": {"Time": True, "Value": True}}}]
"""Hides columns that are not labels in the table of an instant query."""
_OPTIONS: dict[str, dict[str, Any]] = {
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "colorMode": "value",
        "graphMode": "none",
        "justifyMode": "auto",
        "textMode": "auto",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    },
    "heatmap": {
        "calculate": False,
        "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64},
        "tooltip": {"mode": "single", "yHistogram": False},
    },
    "table": {"showHeader": True, "cellHeight": "sm"},
}


def variable(name: str, label: str, query: str) -> dict[str, Any]:
    """Return a dashboard variable that selects values of a label; all values by default."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def dashboard(
    title: str, uid: str, variables: Iterable[dict[str, Any]], rows: Iterable[Row]
) -> dict[str, Any]:
    """Return a dashboard of titled rows; panels flow from left to right."""
    datasource = {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "refresh": 1,
        "includeAll": False,
        "multi": False,
        "current": {},
    }
    return {
        "uid": uid,
        "title": title,
        "tags": ["kubernetes", "virtual-node"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": [datasource, *variables]},
        "panels": _flow(rows),
    }


def _flow(rows: Iterable[Row]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    y = 0
    for row in rows:
        found.append(
            {
                "id": len(found) + 1,
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "gridPos": {"h": 1, "w": WIDTH, "x": 0, "y": y},
                "panels": [],
            }
        )
        x, y, tallest = 0, y + 1, 0
        for panel in row.panels:
            width = panel.width or row.width
            if x + width > WIDTH:
                x, y, tallest = 0, y + tallest, 0
            found.append(panel.render(len(found) + 1, x, y, width))
            x, tallest = x + width, max(tallest, panel.height)
        y += tallest
    return found


class Query(NamedTuple):
    """An expression, and the legend of its series."""

    expression: str
    legend: str = ""


def quantile(share: str, metric: str, by: str, matchers: str = "", *, legend: str = "") -> Query:
    """Return a histogram's quantile, by labels besides ``le``. The default legend has the values of these labels."""
    rates = f"rate({metric}_bucket{_selector(matchers)}{RATE})"
    return Query(f"histogram_quantile({share}, sum by ({by}, le) ({rates}))", legend or _values(by))


def quantiles(metric: str, by: str, matchers: str = "") -> list[Query]:
    """Return a histogram's median and 99th percentile, by a label besides ``le``."""
    return [
        quantile(share, metric, by, matchers, legend=f"{name} {_values(by)}")
        for share, name in (("0.5", "p50"), ("0.99", "p99"))
    ]


def rate(metric: str, by: str, matchers: str = "", *, legend: str = "") -> Query:
    """Return a counter's rate per second, by labels. The default legend has the values of these labels."""
    return Query(f"sum by ({by}) (rate({metric}{_selector(matchers)}{RATE}))", legend or _values(by))


def current(metric: str, by: str, matchers: str = "", *, function: str = "max", legend: str = "") -> Query:
    """Return a gauge's value, by labels. The default legend has the values of these labels."""
    return Query(f"{function} by ({by}) ({metric}{_selector(matchers)})", legend or _values(by))


def _selector(matchers: str) -> str:
    return f"{{{matchers}}}" if matchers else ""


def _values(labels: str) -> str:
    return " ".join(f"{{{{{label}}}}}" for label in labels.split(", "))
