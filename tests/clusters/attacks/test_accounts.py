"""Stolen tokens of the Swarm controller, webhook, annotator, multi-scheduler and Helm hooks on a real API server."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio
import yaml

from clusterset.model import names
from controller_runtime.client.client import Client
from hack.sandbox import Cluster
from hack.sandbox.commands.helm import CHART, NAMESPACE, RELEASE, helm
from swarm.controller import delivery
from tests.clusters.attacks.stolen_tokens import (
    ANNOTATOR,
    MULTI_SCHEDULER,
    SWARM,
    TEST,
    UNINSTALL,
    VIRTUAL_NODE,
    WEBHOOK,
    Attack,
    clients,
    enforced,
    refusal_of,
)
from tests.clusters.chart.installation import read
from tests.clusters.pool import Lend
from tests.clusters.virtual_nodes import pod
from tests.waiting import create, eventually, make_namespace
from virtual_node.translate.storage import pvc as claims
from virtual_node.translate.storage.pv import DRIVER

pytestmark = pytest.mark.e2e

NODE, SHOP, OPERATORS = "tokyo", "shop", "operators"
VALUES = {
    "virtualNode": {"clusters": [{"name": NODE, "kubeconfigSecret": {"name": "tokyo"}}]},
    "swarm": {"enabled": True},
    "annotator": {"enabled": True},
    "admissionPolicy": {"protectedNamespaces": [OPERATORS]},
}
_LABEL = delivery.LABEL_SWARM
_SYSTEM = "/api/v1/namespaces/kube-system"
_SHOP = f"/api/v1/namespaces/{SHOP}"
_SWARM = f"/apis/swarm.virtual-node.io/v1alpha1/namespaces/{SHOP}/swarms/feed"
_OWN = f"/api/v1/namespaces/{NAMESPACE}"
_MUTATING = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
_WEBHOOK_PATHS = [
    f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations/{NAMESPACE}.{WEBHOOK}"
    for kind in ("mutating", "validating")
]
_TAINT = {"key": "virtual-kubelet.io/provider", "effect": "NoSchedule"}
_GONE = {"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "gone"}
_PROTECTED = "may not write objects and evict pods of kube-system"


def _leases(namespace: str) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"


def _owned(
    name: str, *, swarm: str = "feed", owner: Mapping[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    reference = {
        "apiVersion": "swarm.virtual-node.io/v1alpha1", "kind": "Swarm", "name": "feed", "uid": "u", "controller": True,
    }  # fmt: skip
    metadata = {
        "name": name,
        "labels": {_LABEL: swarm} if swarm else {},
        "ownerReferences": [{**reference, **(owner or {})}],
    }
    return {"metadata": metadata, **more}


def _with(body: Mapping[str, Any], **metadata: Any) -> dict[str, Any]:
    return {**body, "metadata": {**body["metadata"], **metadata}}


def _on(node: str, name: str) -> dict[str, Any]:
    made = pod(name, "sleep 3600")
    return {**made, "spec": {**made["spec"], "nodeName": node}}


def _volume(name: str, driver: str) -> dict[str, Any]:
    spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}
    csi = {"driver": driver, "volumeHandle": name}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {**spec, "csi": csi},
    }


def _claim() -> dict[str, Any]:
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "none",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    metadata = {"name": "data", "finalizers": ["kubernetes.io/pvc-protection", claims.FINALIZER]}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def _eviction(name: str) -> dict[str, Any]:
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}


def _binding(name: str, **metadata: Any) -> dict[str, Any]:
    target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, **metadata}, "target": target}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def upper(alone: Lend) -> AsyncIterator[Cluster]:
    """An upper cluster with the chart's rights and policies, and objects of tenants and of a Swarm."""
    async with alone() as sandbox:
        upper = sandbox.upper
        await upper.kubectl("create", "namespace", NAMESPACE)
        await helm(
            sandbox, "install", RELEASE, str(CHART), f"--namespace={NAMESPACE}", "--no-hooks", values=VALUES
        )
        for namespace in (SHOP, OPERATORS):
            await make_namespace(upper, namespace)
        await upper.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        feed = {"statefulSet": "worker"}
        await upper.apply(
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}, "spec": {"taints": [_TAINT]}},
            {
                "apiVersion": "swarm.virtual-node.io/v1alpha1", "kind": "Swarm",
                "metadata": {"name": "feed", "namespace": SHOP}, "spec": {"jobs": [{"name": "a"}], "workers": feed},
            },
        )  # fmt: skip
        uid = (await read(upper, "-n", SHOP, "swarm", "feed"))["metadata"]["uid"]
        share = _owned("feed.worker-0", owner={"uid": uid})
        config_map = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"share.json": "{}"}, **share}
        # Not worker-0: the garbage collector may delete it before the test does, after a change of its owner.
        other = {**config_map, **_owned("feed.worker-2", owner={"uid": uid})}
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": {}, **share}
        await create(upper, SHOP, config_map, other, lease)
        await upper.kubectl("-n", SHOP, "create", "configmap", "settings", "--from-literal=config.yml=mine")
        await upper.kubectl("-n", SHOP, "create", "configmap", "table", "--from-literal=config.yml=old")
        await upper.kubectl("-n", SHOP, "label", "configmap", "table", f"{_LABEL}=feed")
        await upper.kubectl("-n", OPERATORS, "create", "configmap", "rules")
        await upper.apply(*(
            {
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": {"holderIdentity": "a"},
                "metadata": {"name": name, "namespace": namespace},
            }
            for name, namespace in (("kube-scheduler", "kube-system"), (VIRTUAL_NODE, NAMESPACE))
        ))  # fmt: skip
        for name in ("worker-0", "waiting"):
            await create(upper, SHOP, pod(name, "sleep 3600"))
        await create(upper, SHOP, pod("chosen", "sleep 3600"), _on(NODE, "ours"), _on("real", "real"))
        # Not at its creation, because the webhook does not run.
        await upper.kubectl("-n", SHOP, "label", "pod", "chosen", f"{names.LABEL_VIRTUAL_POD}=true")
        await create(upper, SHOP, _claim())
        await upper.apply(_volume("mirror", DRIVER), _volume("foreign", "ebs.csi.aws.com"))
        # Helm creates these accounts and policies only while `helm test` or `helm uninstall` runs.
        rendered = await helm(
            *(sandbox, "template", RELEASE, str(CHART), f"--namespace={NAMESPACE}", "--kube-version=1.34.0"),
            *(f"--show-only=templates/{path}.yaml" for path in ("tests/installation", "uninstall/cleanup")),
            values=VALUES,
        )
        hooks = [
            body
            for body in yaml.safe_load_all(rendered.stdout)
            if body and body["kind"] not in {"Pod", "Job"}
        ]
        await upper.apply(*hooks)
        yield upper


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def attackers(upper: Cluster) -> AsyncIterator[dict[str, Client]]:
    """A client for each account; the API server knows the policies."""
    async with clients(upper, (SWARM, WEBHOOK, ANNOTATOR, MULTI_SCHEDULER, TEST, UNINSTALL)) as found:
        await enforced(found, (SWARM, "DELETE", f"{_SHOP}/configmaps/settings?dryRun=All", None))
        # The last one that was created.
        await enforced(found, (TEST, "POST", "/api/v1/namespaces/default/pods", pod("early", "true")))
        await enforced(found, (UNINSTALL, "DELETE", f"{_SHOP}/pods/worker-0?dryRun=All", None))
        yield found


_NODE_CHANGES: list[dict[str, Any]] = [
    {"spec": {"unschedulable": True}},
    {"spec": {"taints": []}},
    {"metadata": {"labels": {"a": "b"}}},
    {"metadata": {"ownerReferences": [_GONE]}},
    {"metadata": {"finalizers": ["example.com/forever"]}},
]
REFUSED: list[tuple[Attack, str]] = [
    # With this ConfigMap, the attacker's CA would be trusted as the client CA of the cluster.
    *(
        ((SWARM, "PUT", f"{_SYSTEM}/configmaps/extension-apiserver-authentication", body), _PROTECTED)
        for body in (
            {"metadata": {"name": "extension-apiserver-authentication"}, "data": {"client-ca-file": "mine"}},
            _owned("extension-apiserver-authentication", data={"client-ca-file": "mine"}),
        )
    ),
    ((SWARM, "DELETE", f"{_SYSTEM}/configmaps/extension-apiserver-authentication", None), _PROTECTED),
    *(
        ((SWARM, "POST", f"/api/v1/namespaces/{namespace}/configmaps", _owned("x")), _PROTECTED)
        for namespace in ("kube-system", "kube-public", "kube-node-lease", NAMESPACE, OPERATORS)
    ),
    *(
        ((SWARM, "POST", f"/api/v1/namespaces/{namespace}/pods/any/eviction", _eviction("any")), _PROTECTED)
        for namespace in ("kube-system", NAMESPACE, OPERATORS)
    ),
    ((SWARM, "PUT", f"/api/v1/namespaces/{OPERATORS}/configmaps/rules", _owned("rules")), _PROTECTED),
    ((SWARM, "PUT", f"{_leases('kube-system')}/kube-scheduler", _owned("kube-scheduler", spec={})), _PROTECTED),
    ((SWARM, "DELETE", f"{_leases('kube-system')}/kube-scheduler", None), _PROTECTED),
    ((SWARM, "POST", _leases("kube-node-lease"), _owned("tokyo", spec={})), _PROTECTED),
    ((SWARM, "POST", _leases(NAMESPACE), _owned("other", spec={})), _PROTECTED),
    ((SWARM, "DELETE", f"{_leases(NAMESPACE)}/{VIRTUAL_NODE}", None), _PROTECTED),
    ((SWARM, "PUT", f"{_leases(NAMESPACE)}/{VIRTUAL_NODE}", _owned(VIRTUAL_NODE, spec={})), _PROTECTED),
    *(
        ((SWARM, method, f"{_SHOP}/configmaps{path}", body), "only ConfigMaps and Leases with the label")
        for method, path, body in (
            ("PUT", "/settings", {"metadata": {"name": "settings"}, "data": {"config.yml": "theirs"}}),
            ("PUT", "/settings", _owned("settings", data={"config.yml": "theirs"})),
            ("DELETE", "/settings", None),
            ("POST", "", {"metadata": {"name": "optional"}}),
            ("PUT", "/feed.worker-0", {"metadata": {"name": "feed.worker-0"}}),
            ("PUT", "/feed.worker-0", _owned("feed.worker-0", swarm="other")),
        )
    ),
    *(
        ((SWARM, "POST", f"{_SHOP}/configmaps", body), "create and delete only ConfigMaps and Leases that a Swarm owns")
        for body in (
            {"metadata": {"name": "optional", "labels": {_LABEL: "feed"}}},
            _owned("optional", owner={"kind": "Deployment"}),
            _owned("optional", owner={"apiVersion": "example.com/v1"}),
            _owned("optional", owner={"controller": False}),
            _owned("optional", owner={"apiVersion": "swarm.virtual-node.io/v9"}),
            _owned("optional", swarm="other"),
        )
    ),
    # An object of a Swarm that does not exist would stay.
    *(
        ((SWARM, method, f"{_SHOP}/configmaps{path}", body), "no finalizers and no other owners")
        for method, path, body in (
            ("POST", "", _with(_owned("optional"), finalizers=["example.com/forever"])),
            ("POST", "", _with(_owned("optional"), ownerReferences=[*_owned("x")["metadata"]["ownerReferences"], _GONE])),
            ("PUT", "/feed.worker-0", _with(_owned("feed.worker-0"), finalizers=["example.com/forever"])),
            ("PUT", "/feed.worker-0", _with(_owned("feed.worker-0"), ownerReferences=[])),
            ("PUT", "/table", _with(_owned("table"))),
        )
    ),
    ((SWARM, "DELETE", f"{_SHOP}/configmaps/table", None), "that a Swarm owns"),
    *(
        ((SWARM, "PATCH", _SWARM, change), "only finalizers and the status of a Swarm")
        for change in (
            {"spec": {"jobs": [{"name": "theirs"}]}},
            {"metadata": {"ownerReferences": [_GONE]}},
            {"metadata": {"labels": {"a": "b"}}},
            {"metadata": {"annotations": {"a": "b"}}},
        )
    ),
    ((SWARM, "PATCH", f"{_SHOP}/configmaps/settings", {"data": {"a": "b"}}), "cannot patch resource"),
    ((WEBHOOK, "GET", f"{_OWN}/secrets/virtual-node-tokyo", None), "cannot get resource"),
    ((WEBHOOK, "GET", f"{_OWN}/secrets", None), "cannot list resource"),
    (
        (
            WEBHOOK,
            "POST",
            f"{_OWN}/secrets",
            {
                "type": "kubernetes.io/service-account-token",
                "metadata": {
                    "name": "x",
                    "annotations": {"kubernetes.io/service-account.name": VIRTUAL_NODE},
                },
            },
        ),
        "cannot create resource",
    ),
    ((WEBHOOK, "GET", f"{_MUTATING}/theirs", None), "cannot get resource"),
    ((WEBHOOK, "PUT", f"{_MUTATING}/theirs", {"metadata": {"name": "theirs"}}), "cannot update resource"),
    *(
        ((ANNOTATOR, "PATCH", f"/api/v1/nodes/{NODE}", change), "may change only annotations of a node")
        for change in _NODE_CHANGES
    ),
    *(
        ((MULTI_SCHEDULER, "POST", f"{_SHOP}/pods/waiting/binding", _binding("waiting", **metadata)), "may bind pods only")
        for metadata in (
            {"annotations": {"iam.amazonaws.com/role": "admin"}},
            {"labels": {"virtual-node.io/a": "b"}},
        )
    ),
    *(
        ((UNINSTALL, "DELETE", f"{_SHOP}/pods/{name}", None), f"this pod is on {where}")
        for name, where in (("worker-0", "no node"), ("real", "node real"))
    ),
    ((UNINSTALL, "DELETE", "/api/v1/persistentvolumes/foreign", None), "only volumes of driver lower-cluster"),
    (
        (UNINSTALL, "PATCH", "/api/v1/persistentvolumes/foreign", {"spec": {"persistentVolumeReclaimPolicy": "Delete"}}),
        "only volumes of driver lower-cluster",
    ),
    *(
        ((UNINSTALL, "PATCH", f"{_SHOP}/persistentvolumeclaims/data", {"metadata": change}), "only its own finalizer of a claim")
        for change in ({"ownerReferences": [_GONE]}, {"finalizers": ["example.com/forever"]}, {"finalizers": None})
    ),
    ((UNINSTALL, "PATCH", "/api/v1/nodes/real", {"spec": {"unschedulable": True}}), "cannot patch resource"),
    (
        (TEST, "POST", "/api/v1/namespaces/default/pods", pod("root", "sleep 3600", hostPID=True)),
        "may create pods only as a dry run",
    ),
]  # fmt: skip
ALLOWED: list[Attack] = [
    (SWARM, "POST", _leases(NAMESPACE), {"metadata": {"name": "virtual-node-swarm"}, "spec": {"holderIdentity": "a"}}),
    (SWARM, "PUT", f"{_leases(NAMESPACE)}/virtual-node-swarm", {"metadata": {"name": "virtual-node-swarm"}, "spec": {"holderIdentity": "b"}}),
    (SWARM, "POST", f"{_SHOP}/configmaps", _owned("feed.worker-1")),
    (SWARM, "POST", _leases(SHOP), _owned("feed.worker-1", spec={})),
    (SWARM, "PUT", f"{_SHOP}/configmaps/feed.worker-0", _owned("feed.worker-0", data={"share.json": "[]"})),
    (SWARM, "PUT", f"{_SHOP}/configmaps/table", {"metadata": {"name": "table", "labels": {_LABEL: "feed"}}}),
    (SWARM, "DELETE", f"{_SHOP}/configmaps/feed.worker-2", None),
    (SWARM, "DELETE", f"{_leases(SHOP)}/feed.worker-0", None),
    (SWARM, "PATCH", _SWARM, {"metadata": {"finalizers": ["swarm.virtual-node.io/record"]}}),
    (SWARM, "PATCH", _SWARM, {"metadata": {"finalizers": None}}),
    (SWARM, "POST", f"{_SHOP}/pods/worker-0/eviction", _eviction("worker-0")),
    (WEBHOOK, "GET", f"{_MUTATING}/{NAMESPACE}.{WEBHOOK}", None),
    (ANNOTATOR, "PATCH", f"/api/v1/nodes/{NODE}", {"metadata": {"annotations": {"virtual-node.io/usage": "1"}}}),
    (MULTI_SCHEDULER, "POST", f"{_SHOP}/pods/waiting/binding", _binding("waiting", annotations={"virtual-node.io/lower-node": "n"})),
    (TEST, "POST", "/api/v1/namespaces/default/pods?dryRun=All", pod("probe", "true")),
    (UNINSTALL, "DELETE", f"{_SHOP}/pods/chosen", None),
    (UNINSTALL, "DELETE", f"{_SHOP}/pods/ours", None),
    (UNINSTALL, "PATCH", f"/api/v1/nodes/{NODE}", {"spec": {"unschedulable": True}}),
    (
        *(UNINSTALL, "PATCH", f"{_SHOP}/persistentvolumeclaims/data"),
        {"metadata": {"finalizers": ["kubernetes.io/pvc-protection"]}},
    ),
    (UNINSTALL, "DELETE", "/api/v1/persistentvolumes/mirror", None),
]  # fmt: skip


async def test_refuses_access_to_objects_of_others(upper: Cluster, attackers: dict[str, Client]):
    """Each attack is refused, by RBAC or by a policy with a message that names what the account may do."""
    for attack, expected in REFUSED:
        refusal = await refusal_of(attackers, attack)
        assert expected in refusal.replace('"', ""), attack
        assert "expression" not in refusal, "the message is a sentence, not the source of the policy"
    trusted = await read(upper, "-n", "kube-system", "configmap", "extension-apiserver-authentication")
    assert trusted["data"]["client-ca-file"].startswith("-----BEGIN CERTIFICATE")
    assert (await read(upper, "-n", SHOP, "configmap", "settings"))["data"] == {"config.yml": "mine"}


async def test_webhook_can_change_only_the_ca_of_its_configurations(
    upper: Cluster, attackers: dict[str, Client]
):
    """Otherwise it could receive and change all objects of the cluster."""
    for path in _WEBHOOK_PATHS:
        (kind,) = {part.removesuffix("s") for part in path.split("/") if part.endswith("configurations")}
        current = await read(upper, kind, f"{NAMESPACE}.{WEBHOOK}")
        (hook,) = current["webhooks"]
        everything = [{"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"], "operations": ["*"]}]
        attacks: list[dict[str, Any]] = [
            {**hook, "rules": everything},
            {**hook, "clientConfig": {"url": "https://attacker.example.com", "caBundle": "eA=="}},
            {**hook, "clientConfig": {"service": {**hook["clientConfig"]["service"], "path": "/theirs"}}},
            {**hook, "objectSelector": {"matchLabels": {"a": "b"}}},
            {**hook, "namespaceSelector": {"matchLabels": {"a": "b"}}},
            {**hook, "failurePolicy": "Ignore" if hook["failurePolicy"] == "Fail" else "Fail"},
            {**hook, "matchConditions": [{"name": "never", "expression": "false"}]},
            {**hook, "name": "other.example.com"},
        ]
        others: list[dict[str, Any]] = [
            {**current, "webhooks": []},
            {**current, "webhooks": [hook, {**hook, "name": "second.example.com", "rules": everything}]},
            {**current, "metadata": {**current["metadata"], "ownerReferences": [_GONE]}},
            {**current, "metadata": {**current["metadata"], "annotations": {}, "labels": {}}},
        ]
        for body in (*({**current, "webhooks": [changed]} for changed in attacks), *others):
            refusal = await refusal_of(attackers, (WEBHOOK, "PUT", path, body))
            assert "may change only the CA (caBundle)" in refusal, body
        ca = base64.b64encode(b"-----BEGIN CERTIFICATE-----").decode()
        bundled = {**hook, "clientConfig": {**hook["clientConfig"], "caBundle": ca}}
        own = {**current, "webhooks": [bundled]}
        assert await refusal_of(attackers, (WEBHOOK, "PUT", path, own)) == ""


async def test_allows_what_the_programs_do(attackers: dict[str, Client]):
    """Own objects; the Lease of the leader election."""
    for request in ALLOWED:
        assert await refusal_of(attackers, request) == "", request


async def test_policies_have_no_type_errors(upper: Cluster):
    """The API server checks expressions against the types of the objects they apply to."""

    async def checked() -> bool:
        found = (await read(upper, "validatingadmissionpolicies"))["items"]
        checks = {
            policy["metadata"]["name"]: (policy.get("status") or {}).get("typeChecking") for policy in found
        }
        wanted = {f"{NAMESPACE}.{account}" for account in (SWARM, WEBHOOK, ANNOTATOR, MULTI_SCHEDULER, TEST)}
        return wanted <= checks.keys() and all(check == {} for check in checks.values())

    await eventually(checked, what="type checks without warnings")
