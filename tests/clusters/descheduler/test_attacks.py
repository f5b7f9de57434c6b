"""Tenants against a descheduler that has only the permissions that the chart grants it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from clusterset.model import names
from hack.sandbox import Cluster, Sandbox
from tests.clusters.descheduler.setup import (
    LARGE,
    SMALL,
    cordoned,
    descheduler,
    events_of,
    no_records,
    pod,
    refused_below,
    run_on,
)
from tests.waiting import create, eventually, get, make_namespace

RIGHTS = Path(__file__).resolve().parents[3] / "charts" / "virtual-node" / "files" / "rights.yaml"
KEY = "virtual-node-descheduler-key"
ACCOUNT = "descheduler-account"
POOR, EDITOR = "creates-config-maps", "edits"
"""A tenant whose only permission is to create ConfigMaps, and one with the ClusterRole ``edit``."""
LABELS = {names.LABEL_DESCHEDULER_RECORD: "true"}


@pytest_asyncio.fixture(loop_scope="session")
async def own(sandbox: Sandbox, upper: Cluster, namespace: str) -> AsyncIterator[str]:
    """The descheduler's own namespace, with its account, its key's empty Secret, and the tenants' permissions."""
    name = f"{namespace}-system"
    await make_namespace(upper, name)
    granted = yaml.safe_load(RIGHTS.read_text(encoding="utf-8"))["descheduler"]["upper"]
    places = {"<cluster>": "", "<own>": name}
    poor = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]}]
    await upper.apply(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": KEY, "namespace": name}},
        *(
            body
            for where, rules in granted.items()
            for body in _granted(f"{name}-descheduler", places.get(where, where), ACCOUNT, rules)
        ),
        *_granted(POOR, namespace, POOR, poor),
        _bound(EDITOR, namespace, EDITOR, "ClusterRole", "edit"),
    )
    yield name
    await upper.kubectl("delete", "clusterrole,clusterrolebinding", f"{name}-descheduler")
    await upper.kubectl("-n", "kube-node-lease", "delete", "role,rolebinding", f"{name}-descheduler")
    await upper.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def account(upper: Cluster, own: str, tmp_path: Path) -> str:
    """Return the flag that makes the descheduler use its account."""
    config = json.loads(upper.kubeconfig.read_text(encoding="utf-8"))
    config["users"][0]["user"]["as"] = ACCOUNT
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps(config), encoding="utf-8")
    return f"--kubeconfig={file}"


async def test_tenants_forged_records_have_no_effect(
    sandbox: Sandbox, upper: Cluster, namespace: str, own: str, account: str
) -> None:
    """Records of tenants create and delete nothing, while the descheduler moves the right pods."""
    owned = {**pod("owned-0", cpu="100m", prefer=LARGE)}
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "all"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "owned-0"}}},
    }
    await create(upper, namespace, budget, owned)
    await run_on(upper, namespace, LARGE, count=1)
    victim = await get(upper, namespace, "pod", "owned-0")
    async with cordoned(upper, LARGE):
        await create(upper, namespace, pod("bare"))
        await refused_below(upper, namespace)
    privileged, metadata = _privileged(namespace, "evil"), victim["metadata"]
    for tenant in (POOR, EDITOR):
        version = metadata["resourceVersion"]
        replaced = _old_style(
            _privileged(namespace, "owned-0"), uid=metadata["uid"], version=version, by=tenant
        )
        created = _old_style(privileged, uid="no-such-pod", version="1", by=tenant)
        attempts = (created, replaced, _revision(namespace, privileged), _revision(own, privileged))
        assert [await _tries(upper, tenant, body) for body in attempts] == [True, True, False, False]
    # A permission may be granted by mistake, so that the descheduler finds such records, too.
    await upper.apply(_revision(namespace, privileged), _revision(own, privileged))
    async with descheduler(sandbox, own, account):

        async def moved() -> bool:
            found = await get(upper, namespace, "pod", "bare")
            return bool(found["spec"].get("nodeName") == LARGE and found["status"]["phase"] == "Running")

        await eventually(moved, what="the bare pod on the other cluster")
        assert await _events(upper, own, "RecordRefused")
        await asyncio.sleep(3)
    found = {item["metadata"]["name"]: item for item in (await get(upper, namespace, "pods"))["items"]}
    assert set(found) == {"bare", "owned-0"}
    assert found["owned-0"]["metadata"]["uid"] == victim["metadata"]["uid"]
    assert "deletionTimestamp" not in found["owned-0"]["metadata"]


async def test_large_pod_is_moved(
    sandbox: Sandbox, upper: Cluster, namespace: str, own: str, account: str
) -> None:
    """A bare pod that is nearly as large as etcd allows (1.5 MiB) has a record and is moved."""
    async with cordoned(upper, LARGE):
        await upper.kubectl("-n", namespace, "create", "-f", "-", input=json.dumps(_large(kibibytes=1440)))
        await refused_below(upper, namespace)
    async with descheduler(sandbox, own, account):
        await run_on(upper, namespace, LARGE, count=1)
        await no_records(upper, own)


def _large(*, kibibytes: int) -> dict[str, Any]:
    body = pod("large")
    body["spec"]["containers"][0]["env"] = [
        {"name": f"V{number}", "value": "x" * 1024 * 10} for number in range(kibibytes // 10)
    ]
    return body


def _privileged(namespace: str, name: str) -> dict[str, Any]:
    """Return a pod that its author may not create."""
    body = pod(name, prefer=SMALL, namespace=namespace)
    body["spec"] |= {"hostPID": True, "nodeName": LARGE, "serviceAccountName": "default"}
    body["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    return body


def _old_style(replacement: dict[str, Any], *, uid: str, version: str, by: str) -> dict[str, Any]:
    """Return a record as releases before keyed hashes read them."""
    facts = {
        "name": replacement["metadata"]["name"],
        "uid": uid,
        "resourceVersion": version,
        "node": LARGE,
        "reason": "",
        "force": True,
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": f"virtual-node-descheduler-{uid}-{by}",
            "namespace": replacement["metadata"]["namespace"],
            "labels": LABELS,
        },
        "data": {"record": json.dumps(facts), "pod": json.dumps(replacement)},
    }


def _revision(where: str, replacement: dict[str, Any]) -> dict[str, Any]:
    """Return a record without the key."""
    content = {
        "namespace": replacement["metadata"]["namespace"],
        "namespace_uid": "x",
        "pod_name": replacement["metadata"]["name"],
        "old_uid": "no-such-pod",
        "old_version": "1",
        "node": LARGE,
        "reason": "",
        "force": True,
        "replacement": replacement,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {"name": "virtual-node-descheduler-no-such-pod", "namespace": where, "labels": LABELS},
        "revision": 1,
        "data": {"record": content, "hash": "0" * 64},
    }


async def _tries(upper: Cluster, tenant: str, body: dict[str, Any]) -> bool:
    """Report whether a tenant may create an object."""
    done = await upper.kubectl("--as", tenant, "create", "-f", "-", input=json.dumps(body), check=False)
    return done.returncode == 0


async def _events(upper: Cluster, namespace: str, reason: str) -> bool:
    async def is_reported() -> bool:
        return bool(await events_of(upper, namespace, reason))

    await eventually(is_reported, what=f"event {reason}")
    return True


def _granted(
    name: str, namespace: str, user: str, granted: list[dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    kind = "Role" if namespace else "ClusterRole"
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": metadata,
        "rules": granted,
    }
    return role, _bound(name, namespace, user, kind, name)


def _bound(name: str, namespace: str, user: str, kind: str, role: str) -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding" if namespace else "ClusterRoleBinding",
        "metadata": {"name": name, **({"namespace": namespace} if namespace else {})},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        "subjects": [{"kind": "User", "name": user}],
    }
