"""docs/reference/metrics.md lists every metric, with its type and labels."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import prometheus_client
import pytest
from prometheus_client.metrics import MetricWrapperBase

import controller_runtime
import descheduler
import multi_scheduler
import swarm
import virtual_node
import webhook

DOCS = Path(__file__).resolve().parents[3] / "docs/reference/metrics.md"
_ROW = re.compile(r"^\| `(?P<name>\w+)` \| (?P<type>\w+) \| (?P<labels>[\w, ]*) \|", re.MULTILINE)
_NOT_OURS = ("python_", "process_")


def _registered() -> dict[str, tuple[str, tuple[str, ...]]]:
    for package in (controller_runtime, descheduler, multi_scheduler, swarm, virtual_node, webhook):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    found: dict[str, tuple[str, tuple[str, ...]]] = {}
    for collector in set(prometheus_client.REGISTRY._collector_to_names):
        if isinstance(collector, MetricWrapperBase):
            name = collector._name + ("_total" if collector._type == "counter" else "")
            found[name] = (str(collector._type), tuple(collector._labelnames))
    return found


REGISTERED = _registered()


def test_every_metric_is_documented():
    text = DOCS.read_text(encoding="utf-8")
    missing = [name for name in REGISTERED if f"`{name}`" not in text and not name.startswith(_NOT_OURS)]
    assert missing == []


@pytest.mark.parametrize(
    "row", list(_ROW.finditer(DOCS.read_text(encoding="utf-8"))), ids=lambda row: row["name"]
)
def test_documented_types_and_labels_are_correct(row):
    labels = tuple(label.strip() for label in row["labels"].split(",") if label.strip())
    assert REGISTERED[row["name"]] == (row["type"], labels)
