"""After any sequence of upgrades a release's objects are those of a fresh installation with the same values.

Helm walks over random values on a real API server: upgrades, rollbacks, values that Helm refuses, and ones
that the API server refuses half-way. There are no nodes, so no pods run and hooks, which are pods, are left
out (``--no-hooks``); data that programs write into objects is not compared. More seeds by hand:

    CHART_WALKS=100-200 pytest tests/clusters/chart/test_walk.py
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from hack.sandbox import Sandbox
from hack.sandbox.commands.helm import CHART, NAMESPACE, RELEASE, helm
from tests.clusters.chart.installation import read
from tests.clusters.chart.values import REFUSED_BY_HELM, REFUSED_BY_SERVER, Values, merged, valid
from tests.clusters.pool import Lend

pytestmark = pytest.mark.e2e

_FIRST, _, _LAST = os.environ.get("CHART_WALKS", "0-1").partition("-")
_STEPS = 5
_NAMESPACED = "deployments,jobs,services,configmaps,secrets,serviceaccounts,roles,rolebindings,poddisruptionbudgets,networkpolicies"
_OF_CLUSTER = (
    "clusterroles,clusterrolebindings,mutatingwebhookconfigurations,validatingwebhookconfigurations,csidrivers,"
    "priorityclasses,validatingadmissionpolicies,validatingadmissionpolicybindings"
)
_SET_BY_SERVER = (
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "generation",
    "managedFields",
    "ownerReferences",
)
_REVISION = "deployment.kubernetes.io/revision"
_ADDRESSES = ("clusterIP", "clusterIPs")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def empty(alone: Lend) -> AsyncIterator[Sandbox]:
    """An upper cluster without nodes."""
    async with alone() as sandbox:
        await sandbox.upper.kubectl("create", "namespace", NAMESPACE)
        yield sandbox


class _Release:
    """A release that changes at random."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.upper = sandbox.upper
        self._sandbox = sandbox
        self.revisions: list[Values] = []
        """Values by revision; the first is revision 1."""
        self.story: list[str] = []

    async def apply(self, verb: str, values: Values, *more: str) -> None:
        """Install or upgrade; it must succeed."""
        self.story.append(f"{verb} {json.dumps(values)}")
        await self._helm(verb, str(CHART), *more, values=values)
        self.revisions.append(values)

    async def refuse(self, values: Values, *, by_helm: bool) -> None:
        """Upgrade to invalid values; Helm itself refuses before it makes a revision."""
        self.story.append(f"refused upgrade {json.dumps(values)}")
        before = await self.state() if by_helm else {}
        done = await self._helm("upgrade", str(CHART), values=values, check=False)
        assert done.returncode != 0, "\n".join(self.story)
        if by_helm:
            assert await self.state() == before, "\n".join(self.story)
        else:
            self.revisions.append(values)

    async def rollback(self, revision: int) -> None:
        """Roll back to a revision that succeeded."""
        self.story.append(f"rollback to {revision}")
        await self._helm("rollback", str(revision))
        self.revisions.append(self.revisions[revision - 1])

    async def uninstall(self) -> None:
        """Uninstall the release, and delete the one object that Helm keeps."""
        await self._helm("uninstall")
        await self.upper.kubectl("delete", "csidriver", "lower-cluster.virtual-node.io", "--ignore-not-found")

    async def state(self) -> dict[str, Any]:
        """Return the fields of every object that users and Helm set, by kind and name."""
        found = await asyncio.gather(
            read(self.upper, "-n", NAMESPACE, _NAMESPACED), read(self.upper, _OF_CLUSTER)
        )
        return {
            f"{one['kind']}/{one['metadata']['name']}": _set_fields(one)
            for listed in found
            for one in listed["items"]
            if _is_of_releases(one)
        }

    async def _helm(self, verb: str, *more: str, values: Values | None = None, check: bool = True) -> Any:
        return await helm(
            self._sandbox, verb, RELEASE, *more, f"--namespace={NAMESPACE}", "--no-hooks", values=values, check=check,
        )  # fmt: skip


def _is_of_releases(one: dict[str, Any]) -> bool:
    """Report whether an object is neither Helm's storage nor Kubernetes' own."""
    if one.get("type") == "helm.sh/release.v1":
        return False
    if one["metadata"].get("namespace"):
        return one["metadata"]["name"] not in {"kube-root-ca.crt", "default"}
    return "virtual-node" in json.dumps(one)


def _set_fields(one: dict[str, Any]) -> dict[str, Any]:
    """Return an object without the fields that the API server and its controllers set."""
    metadata = {key: value for key, value in one["metadata"].items() if key not in _SET_BY_SERVER}
    annotations = {key: value for key, value in metadata.pop("annotations", {}).items() if key != _REVISION}
    fields = {key: value for key, value in one.items() if key != "status"}
    if one["kind"] == "Service":
        fields["spec"] = {key: value for key, value in one["spec"].items() if key not in _ADDRESSES}
    return {**fields, "metadata": {**metadata, "annotations": annotations}}


def _differences(found: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    return [
        f"{name}:\n  after the walk: {json.dumps(found.get(name))}\n  installed directly: {json.dumps(wanted.get(name))}"
        for name in sorted({*found, *wanted})
        if found.get(name) != wanted.get(name)
    ]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(int(_FIRST), int(_LAST) + 1))
async def test_a_walk_over_values_ends_as_a_fresh_installation(empty: Sandbox, seed: int):
    """Nothing of earlier values remains; refused values change nothing."""
    chance, release = random.Random(seed), _Release(empty)
    values = valid(chance)
    good: list[int] = []
    try:
        await release.apply("install", values)
        for _ in range(_STEPS):
            good.append(len(release.revisions))
            match chance.choice(["upgrade", "upgrade", "rollback", "helm refuses", "server refuses"]):
                case "upgrade":
                    values = valid(chance)
                    await release.apply("upgrade", values)
                case "rollback":
                    await release.rollback(chance.choice(good))
                    values = release.revisions[-1]
                case "helm refuses":
                    await release.refuse(merged(values, chance.choice(REFUSED_BY_HELM)), by_helm=True)
                case _:
                    # Revert to the previous configuration by an upgrade or a rollback.
                    await release.refuse(merged(values, chance.choice(REFUSED_BY_SERVER)), by_helm=False)
                    if chance.random() < 0.5:
                        await release.apply("upgrade", values)
                    else:
                        await release.rollback(good[-1])
        found = await release.state()
    finally:
        await release.uninstall()
    fresh = _Release(empty)
    try:
        await fresh.apply("install", values)
        wanted = await fresh.state()
    finally:
        await fresh.uninstall()
    assert await fresh.state() == {}
    different = _differences(found, wanted)
    assert different == [], "\n".join([*release.story, *different])
