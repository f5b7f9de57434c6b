"""hack/*.yaml: one component each, without a trace of Helm, as the chart would make them."""

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
    """Each has the objects of its component and of no other, and not the namespace: `kubectl delete -f` takes one alone."""
    found = rendering.parse(file.read_text("utf-8"))
    assert "Namespace" not in {one["kind"] for one in found}
    components = {one["metadata"]["labels"]["app.kubernetes.io/component"] for one in found}
    assert components == EXPECTED[file.stem]
    assert {one["metadata"].get("namespace") for one in found} >= {NAMESPACE}
    assert "Deployment" in {one["kind"] for one in found}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_has_nothing_of_helm(file):
    """Nobody takes the objects for those of a release, and there are no hooks that nobody would run."""
    text = file.read_text("utf-8")
    objects = text.partition("\n---\n")[2]
    assert "helm" not in objects.lower()
    assert "# Source" not in objects


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_says_what_it_is(file):
    """The first lines say how it was made and what to edit; where clusters are, the Secret is named."""
    head = file.read_text("utf-8").partition("---\n")[0]
    assert all(line.startswith("#") for line in head.splitlines())
    assert "`python -m hack.chart`" in head
    assert f"kubectl apply -f hack/namespace.yaml -f hack/{file.name}" in head
    assert "Edit: " in head
    assert (manifests.SECRET in head) == (manifests.SECRET in file.read_text("utf-8").partition("---\n")[2])


def test_components_do_not_meet():
    """The files may be applied beside each other: no object is in two of them."""
    names = [
        (one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"])
        for file in FILES
        for one in rendering.parse(file.read_text("utf-8"))
    ]
    assert len(set(names)) == len(names)


def test_the_namespace_has_a_file_of_its_own():
    """It is the one that everything else is in, under the restricted standard, and says what deleting it takes."""
    text = manifests.NAMESPACE_FILE.read_text("utf-8")
    (namespace,) = rendering.parse(text)
    assert (namespace["kind"], namespace["metadata"]["name"]) == ("Namespace", NAMESPACE)
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert "Delete it last" in text
