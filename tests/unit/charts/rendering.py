"""The chart rendered for each file of ``values``, and golden files for three of them.

``python -m tests.unit.charts.rendering`` writes the golden files; read the difference before committing it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from hack.chart.template import template

VALUES = Path(__file__).with_name("values")
GOLDEN = Path(__file__).with_name("golden")
CASES = sorted(path.stem for path in VALUES.glob("*.yaml"))
REVIEWED = ("default", "everything", "several-nodes")
"""Cases with a golden file. The other cases add few lines to these, which tests assert one by one."""
COMMAND = "python -m tests.unit.charts.rendering"
_RULES = re.compile(r"(\nkind: (?:Cluster)?Role\n(?:(?!---).*\n)*?rules:\n)(?: {2}.*\n)+")
_BETWEEN = re.compile(r"^---$", re.MULTILINE)
_DASHBOARD = re.compile(r"(  virtual-node\.json: \|\n)(?: {4}.*\n|\n)+")


def values(case: str) -> str:
    """Return the values of a case, as YAML."""
    return (VALUES / f"{case}.yaml").read_text(encoding="utf-8")


@cache
def text(case: str) -> str:
    """Return helm's output for a case."""
    return template(values(case))


@cache
def _rendered(given: str, arguments: tuple[str, ...], **release: str) -> str:
    return template(given, arguments=arguments, **release)


def render(given: str = "", *, arguments: Sequence[str] = (), **release: str) -> list[dict[str, Any]]:
    """Return the objects of values, given as YAML. Helm runs once for the same arguments."""
    return parse(_rendered(given, tuple(arguments), **release))


@cache
def _document(yaml_text: str) -> dict[str, Any] | None:
    """Return an object. Most objects are the same for other values, and parsing YAML takes longer than Helm."""
    found: dict[str, Any] | None = yaml.load(yaml_text, yaml.CSafeLoader)
    return found


def parse(yaml_text: str) -> list[dict[str, Any]]:
    return [found for one in _BETWEEN.split(yaml_text) if (found := _document(one))]


def objects(case: str) -> list[dict[str, Any]]:
    return parse(text(case))


def one(case: str, kind: str, name: str) -> dict[str, Any]:
    """Return the only object of a kind with a name that ends so."""
    found = [
        item for item in objects(case) if item["kind"] == kind and item["metadata"]["name"].endswith(name)
    ]
    assert len(found) == 1, (kind, name, len(found))
    return found[0]


def configuration(items: Sequence[dict[str, Any]], component: str = "virtual-node") -> str:
    """Return the configuration file that the pods of a component read."""
    text: str = mounted(items, component)["data"]["virtual-node.yaml"]
    return text


def mounted(items: Sequence[dict[str, Any]], component: str) -> dict[str, Any]:
    """Return the ConfigMap with the configuration file of a component."""
    (deployment,) = [
        item
        for item in items
        if item["kind"] == "Deployment"
        and item["metadata"]["labels"]["app.kubernetes.io/component"] == component
    ]
    (name,) = [
        volume["configMap"]["name"]
        for volume in deployment["spec"]["template"]["spec"]["volumes"]
        if volume["name"] == "config"
    ]
    (config_map,) = [
        item for item in items if item["kind"] == "ConfigMap" and item["metadata"]["name"] == name
    ]
    return config_map


def golden(case: str) -> str:
    """Return the content of a golden file: everything but rules and the dashboard, which have their own tests."""
    return _RULES.sub(
        r"\1  (held by test_agreement.py)\n", _DASHBOARD.sub(r"\1    (files/dashboard.json)\n", text(case))
    )


def reviewed(case: str) -> str:
    """Return the committed golden file; empty: there is none."""
    file = GOLDEN / f"{case}.yaml"
    return file.read_text(encoding="utf-8") if file.exists() else ""


def pod_specs(found: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Return kind and name, and the pod spec, of everything that makes pods."""
    specs = []
    for item in found:
        name = f"{item['kind']}/{item['metadata']['name']}"
        if item["kind"] == "Pod":
            specs.append((name, item["spec"]))
        elif "template" in item.get("spec", {}):
            specs.append((name, item["spec"]["template"]["spec"]))
    return specs


def regenerate() -> None:
    """Write the golden files."""
    GOLDEN.mkdir(exist_ok=True)
    for case in REVIEWED:
        (GOLDEN / f"{case}.yaml").write_text(golden(case), encoding="utf-8")


if __name__ == "__main__":
    regenerate()
