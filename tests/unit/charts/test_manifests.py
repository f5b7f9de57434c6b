"""hack/*.yaml: one component each, without Helm's labels, as the chart renders them."""

from __future__ import annotations

import pytest

from hack.chart import manifests
from hack.chart.template import NAMESPACE
from tests.unit.charts import rendering

FILES = sorted(manifests.components())
EXPECTED = {
    "virtual-node": {"virtual-node"},
    "webhook": {"webhook"},
    "descheduler": {"descheduler"},
    "multi-scheduler": {"multi-scheduler", "scheduler"},
    "swarm": {"swarm"},
}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_has_one_component(file):
    """And not the namespace, so that `kubectl delete -f` removes only the component."""
    found = rendering.parse(file.read_text("utf-8"))
    assert "Namespace" not in {one["kind"] for one in found}
    components = {one["metadata"]["labels"]["app.kubernetes.io/component"] for one in found}
    assert components == EXPECTED[file.stem]
    assert {one["metadata"].get("namespace") for one in found} >= {NAMESPACE}
    assert "Deployment" in {one["kind"] for one in found}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_has_no_helm_labels_or_hooks(file):
    text = file.read_text("utf-8")
    objects = text.partition("\n---\n")[2]
    assert "helm" not in objects.lower()
    assert "# Source" not in objects


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_begins_with_its_description(file):
    """The first lines say how it was made and what to edit; where clusters are, the Secret is named."""
    head = file.read_text("utf-8").partition("---\n")[0]
    assert all(line.startswith("#") for line in head.splitlines())
    assert "`python -m hack.chart`" in head
    assert f"kubectl apply -f hack/namespace.yaml -f hack/{file.name}" in head
    assert "Edit: " in head
    assert (manifests.SECRET in head) == (manifests.SECRET in file.read_text("utf-8").partition("---\n")[2])


def test_components_have_no_common_objects():
    """So the files may be applied together."""
    names = [
        (one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"])
        for file in FILES
        for one in rendering.parse(file.read_text("utf-8"))
    ]
    assert len(set(names)) == len(names)


def test_the_namespace_has_a_file_of_its_own():
    """All objects are in it, with the restricted standard; its header warns of its deletion."""
    text = manifests.NAMESPACE_FILE.read_text("utf-8")
    (namespace,) = rendering.parse(text)
    assert (namespace["kind"], namespace["metadata"]["name"]) == ("Namespace", NAMESPACE)
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert "Delete it last" in text
