"""Objects of the whole cluster, or with fixed names, that several releases or other programs may create."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.chart import template
from hack.chart.rights import CHART
from hack.sandbox.builds.programs import KUBERNETES_VERSION
from tests.unit.charts import rendering

LOOKUP = "lookup (index . 1) (index . 2) (index . 3) (index . 4)"
SHARED = {
    "CustomResourceDefinition": "swarms.swarm.virtual-node.io",
    "CSIDriver": "lower-cluster.virtual-node.io",
}
VALUES = "{virtualNode: {clusters: [{name: a, kubeconfigSecret: {name: s}}]}, swarm: {enabled: true}}"


def _release(name: str, namespace: str) -> dict[str, str]:
    return {"meta.helm.sh/release-name": name, "meta.helm.sh/release-namespace": namespace}


def _rendered(folder: Path, existing: dict[str, Any], *shown: str) -> str:
    """Return Helm's output with an existing object in place of every object of the cluster."""
    copy = shutil.copytree(CHART, folder / "virtual-node") / "templates"
    names = (copy / "_names.tpl").read_text("utf-8")
    assert names.count(LOOKUP) == 1
    (copy / "_names.tpl").write_text(names.replace(LOOKUP, f"fromJson `{json.dumps(existing)}`"), "utf-8")
    notes = (copy / "NOTES.txt").read_text("utf-8")
    (copy / "_notes.tpl").write_text(f'{{{{ define "notes" }}}}{notes}{{{{ end }}}}', "utf-8")
    (copy / "notes.yaml").write_text('notes: {{ include "notes" . | toJson }}', "utf-8")
    return template.helm(
        *("template", "vn", str(copy.parent), f"--namespace={template.NAMESPACE}", "--values=-"),
        *(f"--kube-version={KUBERNETES_VERSION}", *(f"--show-only=templates/{file}" for file in shown)),
        stdin=VALUES,
    )


@pytest.mark.parametrize(
    ("existing", "is_created"),
    [
        ({}, True),
        ({"metadata": {"annotations": _release("vn", template.NAMESPACE)}}, True),
        ({"metadata": {"annotations": _release("vn", "other")}}, False),
        ({"metadata": {"annotations": _release("other", template.NAMESPACE)}}, False),
        ({"metadata": {"name": "applied by kubectl"}}, False),
    ],
    ids=["none", "its own", "other namespace", "other release", "no release"],
)
def test_a_release_does_not_create_what_another_has_created(
    tmp_path: Path, existing: dict[str, Any], *, is_created: bool
):
    """Helm would refuse the whole release: invalid ownership metadata."""
    items = rendering.parse(_rendered(tmp_path, existing))
    found = {item["kind"]: item["metadata"]["name"] for item in items if item.get("kind") in SHARED}
    assert found == (SHARED if is_created else {})


def test_helm_keeps_a_definition_that_kubectl_replaced_by_the_file(tmp_path: Path):
    """The next revision of its release is without it. Helm deletes such an object, unless it has this annotation itself."""
    replaced = yaml.safe_load((CHART / "files/swarm-crd.yaml").read_text("utf-8"))
    kinds = {item.get("kind") for item in rendering.parse(_rendered(tmp_path, replaced))}
    assert "CustomResourceDefinition" not in kinds
    assert replaced["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


@pytest.mark.parametrize("is_foreign", [False, True])
def test_notes_tell_who_upgrades_the_definition_of_swarms(tmp_path: Path, *, is_foreign: bool):
    existing = {"metadata": {"annotations": _release("other", "other")}} if is_foreign else {}
    notes = _rendered(tmp_path, existing, "notes.yaml")
    assert ("this release does not upgrade it" in notes) is is_foreign
