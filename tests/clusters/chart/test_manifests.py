"""hack/*.yaml, and the chart's output for the golden values, on a real API server: accepted, run, deleted without remains."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from hack.chart.manifests import NAMESPACE_FILE, components
from hack.chart.template import NAMESPACE
from hack.sandbox import Cluster
from tests.clusters.pool import Lend
from tests.unit.charts import rendering
from tests.waiting import becomes, get

pytestmark = pytest.mark.e2e

FILES = sorted(components())
OURS = "app.kubernetes.io/part-of=virtual-node"
WHOLE = (
    "namespaces,clusterroles,clusterrolebindings,mutatingwebhookconfigurations,validatingwebhookconfigurations,"
    "priorityclasses,csidrivers,validatingadmissionpolicies,validatingadmissionpolicybindings"
)
OURS_BEFORE = [f"Namespace/{NAMESPACE}"]
FOREIGN = {"ServiceMonitor", "PrometheusRule"}
"""Kinds of the Prometheus operator."""
NAMESPACED = (
    "roles,rolebindings,serviceaccounts,configmaps,secrets,services,deployments,poddisruptionbudgets,pods"
)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def upper(alone: Lend) -> AsyncIterator[Cluster]:
    """An upper cluster without nodes, so that pods stay Pending."""
    async with alone() as sandbox:
        yield sandbox.upper


async def _items(cluster: Cluster, *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((await cluster.kubectl("get", *arguments, "-o", "json")).stdout)[
        "items"
    ]
    return found


async def _names(cluster: Cluster) -> list[str]:
    found = await _items(cluster, WHOLE, "-l", OURS)
    found += await _items(cluster, NAMESPACED, "-A", "-l", OURS)
    return [f"{one['kind']}/{one['metadata']['name']}" for one in found]


async def _changed(cluster: Cluster, *files: Path) -> list[str]:
    """Return what a second apply changes. kubectl always replaces the selector of a budget, by an equal one."""
    again = await cluster.kubectl("apply", *_flags(*files))
    return [
        line
        for line in again.stdout.splitlines()
        if not line.endswith(" unchanged") and not line.startswith("poddisruptionbudget")
    ]


def _flags(*files: Path) -> list[str]:
    return [word for file in files for word in ("-f", str(file))]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def namespace(upper: Cluster) -> AsyncIterator[None]:
    """The namespace, from its own file, and an unrelated object in it, which deleting a component does not touch."""
    await upper.kubectl("apply", "-f", str(NAMESPACE_FILE))
    await upper.kubectl("-n", NAMESPACE, "create", "secret", "generic", "virtual-node-lower1")
    yield
    await upper.kubectl("-n", NAMESPACE, "get", "secret", "virtual-node-lower1")
    await upper.kubectl("delete", "-f", str(NAMESPACE_FILE), "--timeout=150s")
    assert await _names(upper) == []


@pytest.mark.usefixtures("namespace")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
async def test_a_file_is_accepted_and_leaves_nothing(upper: Cluster, file: Path):
    """`kubectl apply -f` prints no warning, every Deployment gets its pods, `kubectl delete -f` removes exactly these objects."""
    tried = await upper.kubectl("apply", "--dry-run=server", "-f", str(file))
    assert tried.stderr == ""
    assert await _names(upper) == OURS_BEFORE

    applied = await upper.kubectl("apply", "-f", str(file))
    assert applied.stderr == ""
    assert await _changed(upper, file) == []

    # Pod Security is enforced in the namespace: pods that are not restricted would never be created.
    wanted = sum(spec["replicas"] for spec in await _specs(upper))
    assert wanted > 0

    async def pods() -> int:
        return len((await get(upper, NAMESPACE, "pods"))["items"])

    await becomes(pods, wanted, what="every Deployment's pods")

    await upper.kubectl("delete", "-f", str(file), "--timeout=150s")
    await becomes(lambda: _names(upper), OURS_BEFORE, what="the namespace alone is left")


@pytest.mark.usefixtures("namespace")
async def test_the_files_work_together(upper: Cluster):
    """They are one installation: no file changes an object of another, and server-side apply takes over without a conflict."""
    files = _flags(*FILES)
    await upper.kubectl("apply", *files)
    assert await _changed(upper, *FILES) == []
    before = [await _specs(upper), await _names(upper)]
    await upper.kubectl("apply", "--server-side", *files)
    await upper.kubectl("diff", "--server-side", *files)
    assert [await _specs(upper), await _names(upper)] == before
    await upper.kubectl("delete", *files, "--timeout=150s")
    await becomes(lambda: _names(upper), OURS_BEFORE, what="the namespace alone is left")


@pytest.mark.usefixtures("namespace")
async def test_two_field_managers_do_not_conflict(upper: Cluster):
    """Helm 4, kubectl or Argo CD after one another: fields that the API server defaults are set explicitly.

    Otherwise the next manager applies another value than the stored one, which is a conflict.
    """
    made = [
        one
        for one in rendering.objects("everything")
        if one["kind"] not in FOREIGN and "helm.sh/hook" not in one["metadata"].get("annotations", {})
    ]
    body = json.dumps({"apiVersion": "v1", "kind": "List", "items": made})
    for manager in ("helm", "argocd-controller"):
        await upper.kubectl("apply", "--server-side", f"--field-manager={manager}", "-f", "-", input=body)
    await upper.kubectl("delete", "-f", "-", "--timeout=150s", input=body)
    await becomes(lambda: _names(upper), OURS_BEFORE, what="the namespace alone is left")


async def _specs(cluster: Cluster) -> list[dict[str, Any]]:
    """Return the specs of the Deployments. Their generation also counts changes of annotations, such as kubectl's own."""
    return [one["spec"] for one in (await get(cluster, NAMESPACE, "deployments"))["items"]]


@pytest.mark.usefixtures("namespace")
async def test_the_charts_output_is_accepted(upper: Cluster):
    """The API server knows every field that the chart renders for the golden values, and warns of none."""
    made = [one for case in rendering.CASES for one in rendering.objects(case) if one["kind"] not in FOREIGN]
    for name in {one["metadata"].get("namespace", "") for one in made} - {""}:
        await upper.kubectl("create", "namespace", name, check=False)  # it may exist
    # Most of it is the same in many cases.
    found = list({json.dumps(one): _tried(one) for one in made}.values())
    body = json.dumps({"apiVersion": "v1", "kind": "List", "items": found})
    tried = await upper.kubectl(
        "apply", "--dry-run=server", "--validate=strict", "-f", "-", input=body, timeout=150
    )
    assert tried.stderr == ""
    assert len(tried.stdout.splitlines()) == len(found)


def _tried(one: dict[str, Any]) -> dict[str, Any]:
    """Return a pod as a template, because a dry run does not create the account that a pod requires."""
    if one["kind"] != "Pod":
        return one
    metadata = {"name": one["metadata"]["name"], "namespace": one["metadata"]["namespace"]}
    template = {key: one[key] for key in ("metadata", "spec")}
    return {"apiVersion": "v1", "kind": "PodTemplate", "metadata": metadata, "template": template}
