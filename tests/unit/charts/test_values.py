"""Generated files are up to date, and every value is documented and validated."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from hack.chart import schema, values
from hack.chart.__main__ import MADE, WITHOUT_HELM, main, stale


def test_generated_files_are_up_to_date():
    """The failure names the command that updates them."""
    assert [str(file) for file in stale()] == [], "run `python -m hack.chart`"


def test_only_stale_files_are_written(tmp_path, monkeypatch, capsys):
    """And reported."""
    file = tmp_path / "made"
    for real in list(MADE):
        monkeypatch.delitem(MADE, real)
    monkeypatch.setitem(MADE, file, lambda: "new\n")
    assert list(stale()) == [file]
    assert main([]) == 0
    assert (file.read_text(encoding="utf-8"), capsys.readouterr().out) == ("new\n", f"wrote {file}\n")
    assert main([]) == 0
    assert capsys.readouterr().out == ""


def test_check_reports_stale_file_and_writes_nothing(tmp_path, monkeypatch, capsys):
    """``make lint`` fails and names the file and the command."""
    file = tmp_path / "made"
    monkeypatch.setitem(WITHOUT_HELM, file, lambda: "new\n")
    assert main(["--check"]) == 1
    assert capsys.readouterr().out == f"{file} is stale: run make generate\n"
    assert not file.exists()


@pytest.mark.parametrize("value", values.read(), ids=lambda value: value.path)
def test_every_value_has_a_comment(value):
    """It is the documentation in values.yaml and the README."""
    assert len(value.meaning) > 4


def test_every_comment_has_a_value():
    """Each ``# --`` comment precedes a value."""
    text = values.FILE.read_text(encoding="utf-8")
    known = {value.path for value in values.read(text)}
    assert set(values.comments(text)) <= known


def test_the_schema_has_the_values_and_no_others():
    """Every path of values.yaml is in the schema, and every path of the schema is in values.yaml."""
    told = json.loads(schema.FILE.read_text(encoding="utf-8"))
    content = yaml.safe_load(values.FILE.read_text(encoding="utf-8"))
    assert told["properties"].pop("enabled") == {"type": "boolean"}, "for charts that this one is part of"
    # Globals of a parent chart for all its subcharts do not belong to this chart.
    assert told["properties"]["global"].pop("additionalProperties") is True
    told["properties"]["global"]["additionalProperties"] = False
    assert set(_paths(told)) == set(_known(content, told))


def test_required_values_are_those_that_templates_need():
    """A missing required value is an error that names it; optional ones may be null."""
    told = schema.schema()
    node, webhook = told["properties"]["virtualNode"], told["properties"]["webhook"]
    assert {"virtualNode", "webhook", "descheduler", "multiScheduler", "swarm", "metrics"} <= set(
        told["required"]
    )
    assert {"kubelet", "replicas", "podDisruptionBudget"} <= set(node["required"])
    assert {"port", "failurePolicy", "tls"} <= set(webhook["required"])
    for optional in ("resources", "affinity", "extraArgs", "podAnnotations", "updateStrategy", "hostNetwork"):
        assert optional not in webhook["required"]


def test_maps_with_own_keys_are_closed():
    """Only maps with keys of others, and objects to which newer versions of Kubernetes may add fields, allow additional keys."""
    open_maps = {tuple(where.split("/")[-2:]) for where in _open(schema.schema(), "")}
    assert open_maps == {(name, "items") for name in ("extraEnv", "tolerations", "topologySpreadConstraints")}
    text = schema.FILE.read_text(encoding="utf-8")
    assert text.count('"additionalProperties": true') == 1, "global"


def test_a_value_without_a_rule_is_refused(monkeypatch, tmp_path):
    """An empty map or list needs an explicit schema."""
    file = tmp_path / "values.yaml"
    file.write_text("webhook:\n  novelty: {}\n", encoding="utf-8")
    monkeypatch.setattr(values, "FILE", file)
    with pytest.raises(ValueError, match=r"webhook\.novelty"):
        schema.schema()


def test_a_comment_may_have_several_lines():
    """An empty line ends it."""
    text = "# head\n\n# -- One\n#    and two.\na:\n  # -- B.\n  b: 1\n# -- lost\n\nc: 2\n"
    assert values.comments(text) == {"a": "One and two.", "a.b": "B."}
    assert [value.path for value in values.read(text)] == ["a.b", "c"]


def _paths(node: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in node.get("properties", {}).items():
        if value is False:  # a name that open maps must not have
            continue
        yield f"{prefix}{key}"
        yield from _paths(value, f"{prefix}{key}.")


def _known(content: dict[str, Any], told: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in content.items():
        yield f"{prefix}{key}"
        inner = told.get("properties", {}).get(key, {})
        if isinstance(value, dict) and inner.get("additionalProperties") is False:
            yield from _known(value, inner, f"{prefix}{key}.")


def _open(node: Any, where: str) -> Iterator[str]:
    if isinstance(node, dict):
        if node.get("type") == "object" and "properties" in node and "additionalProperties" not in node:
            yield where
        for key, value in node.items():
            yield from _open(value, f"{where}/{key}")
