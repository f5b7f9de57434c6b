"""Helm's notes after an installation and after an upgrade."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.chart import template
from hack.chart.rights import CHART
from hack.sandbox.builds.programs import KUBERNETES_VERSION
from tests.unit.charts import rendering

ONE = "virtualNode: {clusters: [{name: a, kubeconfigSecret: {name: s}}]}\n"
TWO = "virtualNode: {clusters: [{name: a, kubeconfigSecret: {name: s}}, {name: b, kubeconfigSecret: {name: s}, config: {%s}}]}"
LOOKUP = re.compile(r'lookup "[a-z0-9/]+" "(ConfigMap|Deployment)" \.Release\.Namespace \$name')
Notes = Callable[..., str]


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    """Return the notes of values, after previous ones.

    Helm renders them for installations only, and they look into the cluster. Here a copy of the chart has
    them as an object, and the objects of previous values in place of the cluster.
    """
    copy = shutil.copytree(CHART, tmp_path / "virtual-node") / "templates"
    text = (copy / "NOTES.txt").read_text("utf-8")
    (copy / "_notes.tpl").write_text(f'{{{{ define "notes" }}}}{text}{{{{ end }}}}', "utf-8")
    (copy / "notes.yaml").write_text('notes: {{ include "notes" . | toJson }}', "utf-8")
    gone = (copy / "_gone.tpl").read_text("utf-8")
    assert len(LOOKUP.findall(gone)) == 3

    def render(values: str, *, before: str = "", upgrade: bool = True, nodes: str = "") -> str:
        there: dict[str, dict[str, Any]] = {"ConfigMap": {}, "Deployment": {}}
        for one in rendering.render(before):
            if one["kind"] in there:
                there[one["kind"]][one["metadata"]["name"]] = one
        looked = LOOKUP.sub(
            lambda found: f"get (fromJson `{json.dumps(there[found[1]])}`) $name | default dict", gone
        )
        virtual = [
            {"metadata": {"name": name, "labels": {"type": "virtual-kubelet"}}} for name in nodes.split()
        ]
        items = [{"metadata": {"name": "real"}}, *virtual]
        looked = looked.replace('lookup "v1" "Node" "" ""', f"fromJson `{json.dumps({'items': items})}`")
        (copy / "_gone.tpl").write_text(looked, "utf-8")
        found = template.helm(
            *("template", "vn", str(copy.parent), f"--namespace={template.NAMESPACE}"),
            *("--show-only=templates/notes.yaml", "--values=-", f"--kube-version={KUBERNETES_VERSION}"),
            *(["--is-upgrade"] if upgrade else []),
            stdin=values or "{}",
        )
        said: str = yaml.safe_load(found)["notes"]
        return said

    return render


def test_notes_show_the_next_steps(notes: Notes):
    """Without clusters, the notes show how to add one and keep the values. With a cluster, they show how to inspect it."""
    without, with_one = notes("", upgrade=False), notes(ONE, upgrade=False)
    assert "No lower cluster is configured yet" in without
    assert "--reset-then-reuse-values" in without
    assert "helm test vn" in with_one
    assert "may run on virtual nodes, scheduled by virtual-node-scheduler" in with_one
    assert "lower-cluster join" in without
    assert 'type":"virtual-kubelet' in with_one
    assert "ATTENTION" not in without + with_one


@pytest.mark.parametrize(
    "change",
    [
        "multiScheduler: {scheduler: {name: other}}",
        "multiScheduler: {scheduler: {enabled: false}, tls: {enabled: false}}",
        "multiScheduler: {enabled: false}",
    ],
)
def test_removal_of_the_scheduler_is_reported_with_what_to_do(notes: Notes, change: str):
    """Pods with its name would wait forever, so the notes show how to find and recreate them."""
    said = notes(ONE + change, before=ONE)
    assert "this release no longer runs scheduler virtual-node-scheduler" in said
    selector = "--all-namespaces --field-selector spec.schedulerName=virtual-node-scheduler,spec.nodeName="
    assert f"kubectl get pods {selector}\n" in said
    assert f"kubectl delete pods {selector}\n" in said


@pytest.mark.parametrize(
    ("config", "left"), [("", ["b"]), ("nodeName: c", ["c"]), ("nodes: [{name: d}, {name: e}]", ["d", "e"])]
)
def test_removal_of_a_cluster_is_reported_with_its_nodes(notes: Notes, config: str, left: list[str]):
    """Pods of a cluster that is removed from the values keep running."""
    said = notes(ONE, before=TWO % config)
    assert re.findall("ATTENTION: virtual node (.*) is no longer in the values", said) == left
    assert f"spec.nodeName={left[0]}\n" in said


def test_notes_of_an_upgrade_that_removes_nothing_are_silent(notes: Notes):
    """The same values, more clusters, another scheduler where none ran before."""
    for before, values in (
        (ONE, ONE),
        (ONE, TWO % ""),
        ("", ONE + "multiScheduler: {scheduler: {name: other}}"),
    ):
        assert "ATTENTION" not in notes(values, before=before)


def test_names_virtual_nodes_that_the_descheduler_may_not_taint(notes: Notes):
    """Its right to patch nodes is by name; nodes of other releases have to be named in the values."""
    said = notes(ONE, nodes="a elsewhere")
    assert "does not run virtual node elsewhere." in said
    assert "descheduler.virtualNodes" in said
    assert "virtual node a." not in said
    assert "virtual node real." not in said
    assert "ATTENTION" not in notes(f"{ONE}descheduler: {{virtualNodes: [elsewhere]}}", nodes="a elsewhere")
