"""Stolen tokens of the project's accounts on a real API server: what RBAC and the admission policies refuse and allow."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from functools import cache
from typing import Any

import pytest
import pytest_asyncio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from controller_runtime.api import names
from controller_runtime.auth import kubeconfig
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError
from hack.sandbox import Cluster, Sandbox
from hack.sandbox.commands.helm import CHART, NAMESPACE, RELEASE, helm

from .conftest import create, eventually, make_namespace, pod
from .installation import read

pytestmark = pytest.mark.e2e

OURS, REAL = "tokyo", "real"
SHOP = "shop"
VIRTUAL_NODE, WEBHOOK, DESCHEDULER = (
    f"{RELEASE}-virtual-node{part}" for part in ("", "-webhook", "-descheduler")
)
VALUES = {
    "virtualNode": {
        "clusters": [{"name": OURS, "kubeconfigSecret": {"name": "virtual-node-tokyo"}}],
        "kubelet": {"servingCertificate": "CSR", "approveServingCertificate": True},
        # The setting with which the account may request more tokens.
        "config": {"identities": {"tokens": "node"}},
    }
}
_PODS = f"/api/v1/namespaces/{SHOP}/pods"
_CSR = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
_WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
_OWN = f"/api/v1/namespaces/{NAMESPACE}"
_NOTE = {"metadata": {"annotations": {"a": "b"}}}
_COST = {
    "metadata": {
        "annotations": {names.ANNOTATION_DELETION_COST: "7", names.ANNOTATION_DELETION_COST_WRITTEN: "7"}
    }
}
_RELEASED, _RESTORED = (
    {"metadata": {"labels": {"pod-template-hash": label}, "annotations": {"virtual-node.io/leaving": mark}}}
    for label, mark in (("x", "h1"), ("h1", None))
)
_FORGED = {"status": {"message": "forged"}}
_FORCED = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}

Attack = tuple[str, str, str, Mapping[str, Any] | None]
"""Account, HTTP method, path, body."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def upper() -> AsyncIterator[Cluster]:
    """An upper cluster with the chart's rights and policies, a virtual node, a real one, and pods on both."""
    async with Sandbox(lower=0, kwok_nodes=0) as sandbox:
        upper = sandbox.upper
        await upper.kubectl("create", "namespace", NAMESPACE)
        await helm(
            sandbox, "install", RELEASE, str(CHART), f"--namespace={NAMESPACE}", "--no-hooks", values=VALUES
        )
        await make_namespace(upper, SHOP)
        virtual = _node(OURS, labels={"type": "virtual-kubelet"})
        await upper.apply(
            _node(REAL), virtual, _volume("foreign", "ebs.csi.aws.com"), _volume("mirror"), _claim()
        )
        await upper.kubectl("-n", NAMESPACE, "create", "secret", "generic", "virtual-node-tokyo")
        for name in ("a", "b", "c"):
            await create(upper, SHOP, _pod(f"{name}-ours", OURS), _pod(f"{name}-real", REAL))
        await create(upper, SHOP, _pod("waiting", ""))
        web = _pod("web-ours", OURS)
        web["metadata"]["labels"] = {"app": "web", "pod-template-hash": "h1"}
        await create(upper, SHOP, web)
        await create(upper, "kube-system", _pod("system", OURS))
        for name in (REAL, OURS):
            await upper.kubectl(
                *(f"--as=system:node:{name}", "--as-group=system:nodes", "--as-group=system:authenticated"),
                *("create", "-f", "-"),
                input=json.dumps(_request(name)),
            )
        yield upper


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def attackers(upper: Cluster) -> AsyncIterator[dict[str, Client]]:
    """A client for each account, with its token; the API server knows the policies."""
    async with contextlib.AsyncExitStack() as stack:
        found = {}
        for account in (VIRTUAL_NODE, WEBHOOK, DESCHEDULER):
            token = (await upper.kubectl("-n", NAMESPACE, "create", "token", account)).stdout.strip()
            config = await kubeconfig.load(str(_kubeconfig(upper, account, token)), in_cluster=False)
            found[account] = await stack.enter_async_context(Client(config, cluster="upper"))

        async def enforced() -> bool:
            refusal = await _refusal(found, (VIRTUAL_NODE, "DELETE", f"{_PODS}/a-real?dryRun=All", None))
            return "denied request" in refusal

        await eventually(enforced, what="the API server knows the policies")
        yield found


def _kubeconfig(upper: Cluster, account: str, token: str) -> Any:
    config = json.loads(upper.kubeconfig.read_text("utf-8"))
    config["users"][0]["user"] = {"token": token}
    path = upper.directory / f"{account}.kubeconfig"
    path.write_text(json.dumps(config), "utf-8")
    return path


async def _refusal(attackers: Mapping[str, Client], attack: Attack) -> str:
    """Send a request; return why it is refused, empty when it is not."""
    account, method, path, body = attack
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    try:
        await attackers[account].request(
            method, path, body=json.dumps(body).encode() if body else None, headers={"Content-Type": kind}
        )
    except ApiError as error:
        return error.message if error.code == 403 else f"not refused, but {error}"
    return ""


def _node(name: str, *, labels: dict[str, str] | None = None) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels or {}}}


def _pod(name: str, node: str) -> dict[str, Any]:
    made = pod(name, "sleep 3600")
    del made["spec"]["nodeSelector"]
    return made if not node else {**made, "spec": {**made["spec"], "nodeName": node}}


def _volume(name: str, driver: str = "lower-cluster.virtual-node.io") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": driver, "volumeHandle": name},
        },
    }


def _claim() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": SHOP},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "none",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }


@cache
def _request(node: str) -> dict[str, Any]:
    key = ec.generate_private_key(ec.SECP256R1())
    attributes = [
        x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:nodes"),
        x509.NameAttribute(NameOID.COMMON_NAME, f"system:node:{node}"),
    ]
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name(attributes))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(node)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": "of-ours" if node == OURS else "of-real"},
        "spec": {
            "request": base64.b64encode(request.public_bytes(serialization.Encoding.PEM)).decode(),
            "signerName": "kubernetes.io/kubelet-serving",
            "usages": ["digital signature", "server auth"],
        },
    }


def _eviction(name: str, namespace: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}


def _token(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"audiences": [], **spec},
    }


def _for_pod(name: str) -> dict[str, str]:
    return {"apiVersion": "v1", "kind": "Pod", "name": name}


def _for_node(name: str) -> dict[str, str]:
    return {"apiVersion": "v1", "kind": "Node", "name": name}


def _labelled(name: str, node: str) -> dict[str, Any]:
    made = _pod(name, node)
    return {**made, "metadata": {"name": name, "labels": {"create-by-descheduler": "true"}}}


_APPROVED = {
    **_request(REAL),
    "status": {
        "conditions": [{"type": "Approved", "status": "True", "reason": "Test", "message": "by a test"}]
    },
}
REFUSED: list[tuple[Attack, str]] = [
    (
        (VIRTUAL_NODE, "DELETE", f"{_PODS}/a-real", None),
        "only on nodes that it may patch; this pod is on node real",
    ),
    ((VIRTUAL_NODE, "DELETE", f"{_PODS}/a-real", _FORCED), "this pod is on node real"),
    ((VIRTUAL_NODE, "DELETE", f"{_PODS}/waiting", None), "this pod is on no node"),
    ((VIRTUAL_NODE, "PATCH", f"{_PODS}/a-real/status", _FORGED), "this pod is on node real"),
    ((VIRTUAL_NODE, "PATCH", f"{_PODS}/waiting/status", _FORGED), "this pod is on no node"),
    ((VIRTUAL_NODE, "PATCH", f"{_PODS}/a-ours", _NOTE), "cannot patch resource"),
    ((VIRTUAL_NODE, "DELETE", _PODS, None), "cannot deletecollection resource"),
    ((VIRTUAL_NODE, "PATCH", "/api/v1/nodes/real", _NOTE), "cannot patch resource"),
    ((VIRTUAL_NODE, "PATCH", "/api/v1/nodes/real/status", _NOTE), "cannot patch resource"),
    ((VIRTUAL_NODE, "DELETE", "/api/v1/nodes/real", None), "cannot delete resource"),
    ((VIRTUAL_NODE, "POST", "/api/v1/nodes", _node("paris")), "only nodes that it may patch; this is paris"),
    (
        (VIRTUAL_NODE, "DELETE", "/api/v1/persistentvolumes/foreign", None),
        "only volumes of driver lower-cluster",
    ),
    (
        (VIRTUAL_NODE, "PATCH", "/api/v1/persistentvolumes/foreign", _NOTE),
        "only volumes of driver lower-cluster",
    ),
    (
        (VIRTUAL_NODE, "POST", "/api/v1/persistentvolumes", _volume("theirs", "ebs.csi.aws.com")),
        "only volumes of driver lower-cluster",
    ),
    (
        (
            VIRTUAL_NODE,
            "PATCH",
            f"/api/v1/namespaces/{SHOP}/persistentvolumeclaims/data",
            {"spec": {"volumeName": "foreign"}},
        ),
        "may not write the spec of a claim",
    ),
    (
        (VIRTUAL_NODE, "POST", f"/api/v1/namespaces/{SHOP}/serviceaccounts/default/token", _token()),
        "tokens only for pods",
    ),
    (
        (
            VIRTUAL_NODE,
            "POST",
            f"/api/v1/namespaces/{SHOP}/serviceaccounts/default/token",
            _token(boundObjectRef=_for_node(REAL)),
        ),
        "tokens only for pods and its own nodes",
    ),
    (
        (
            VIRTUAL_NODE,
            "POST",
            "/api/v1/namespaces/kube-system/serviceaccounts/default/token",
            _token(boundObjectRef=_for_pod("system")),
        ),
        "not for kube-system",
    ),
    (
        (
            VIRTUAL_NODE,
            "POST",
            f"{_OWN}/serviceaccounts/{DESCHEDULER}/token",
            _token(boundObjectRef=_for_pod("any")),
        ),
        "or our other programs",
    ),
    ((VIRTUAL_NODE, "DELETE", f"{_CSR}/of-real", None), "serving certificates of its own nodes"),
    ((VIRTUAL_NODE, "PUT", f"{_CSR}/of-real/approval", _APPROVED), "serving certificates of its own nodes"),
    ((DESCHEDULER, "DELETE", f"{_PODS}/a-real", None), "this pod is on node real"),
    ((DESCHEDULER, "DELETE", f"{_PODS}/waiting", None), "this pod is on no node"),
    ((DESCHEDULER, "DELETE", "/api/v1/namespaces/kube-system/pods/system", None), "pods of kube-system"),
    (
        (
            DESCHEDULER,
            "POST",
            "/api/v1/namespaces/kube-system/pods/system/eviction",
            _eviction("system", "kube-system"),
        ),
        "pods of kube-system",
    ),
    (
        (DESCHEDULER, "POST", _PODS, _pod("unlabelled", "")),
        "only pods labelled create-by-descheduler, on no node",
    ),
    (
        (DESCHEDULER, "POST", _PODS, _labelled("bound", REAL)),
        "only pods labelled create-by-descheduler, on no node",
    ),
    ((DESCHEDULER, "PATCH", f"{_PODS}/a-real", _RELEASED), "may change only the label pod-template-hash"),
    ((DESCHEDULER, "PATCH", f"{_PODS}/waiting", _RELEASED), "may change only the label pod-template-hash"),
    ((DESCHEDULER, "PATCH", f"{_PODS}/web-ours", _NOTE), "may change only the label pod-template-hash"),
    (
        (DESCHEDULER, "PATCH", f"{_PODS}/web-ours", {"metadata": {"labels": {"app": "x"}}}),
        "may change only the label pod-template-hash",
    ),
    (
        (DESCHEDULER, "PATCH", f"{_PODS}/web-ours", {"spec": {"activeDeadlineSeconds": 1}}),
        "may change only the label pod-template-hash",
    ),
    ((DESCHEDULER, "PATCH", "/api/v1/nodes/real", _NOTE), "cannot patch resource"),
    (
        (DESCHEDULER, "POST", "/api/v1/namespaces/kube-system/configmaps", {"metadata": {"name": "coredns"}}),
        "cannot create resource",
    ),
    ((DESCHEDULER, "GET", f"{_OWN}/secrets/virtual-node-tokyo", None), "cannot get resource"),
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
    ((WEBHOOK, "GET", f"{_WEBHOOKS}/theirs", None), "cannot get resource"),
    ((WEBHOOK, "PUT", f"{_WEBHOOKS}/theirs", {"metadata": {"name": "theirs"}}), "cannot update resource"),
]
ALLOWED: list[Attack] = [
    (VIRTUAL_NODE, "PATCH", f"{_PODS}/a-ours/status", _FORGED),
    (VIRTUAL_NODE, "DELETE", f"{_PODS}/a-ours", _FORCED),
    (VIRTUAL_NODE, "PATCH", f"/api/v1/nodes/{OURS}", _NOTE),
    (VIRTUAL_NODE, "PATCH", f"/api/v1/nodes/{OURS}/status", _NOTE),
    (VIRTUAL_NODE, "GET", f"/api/v1/nodes?fieldSelector=metadata.name={OURS}", None),
    (VIRTUAL_NODE, "POST", "/api/v1/persistentvolumes", _volume("mine")),
    (VIRTUAL_NODE, "PATCH", "/api/v1/persistentvolumes/mirror", _NOTE),
    (VIRTUAL_NODE, "DELETE", "/api/v1/persistentvolumes/mirror", None),
    (VIRTUAL_NODE, "PATCH", f"/api/v1/namespaces/{SHOP}/persistentvolumeclaims/data", _NOTE),
    (
        VIRTUAL_NODE,
        "POST",
        f"/api/v1/namespaces/{SHOP}/serviceaccounts/default/token",
        _token(boundObjectRef=_for_pod("b-ours")),
    ),
    (
        VIRTUAL_NODE,
        "POST",
        f"/api/v1/namespaces/{SHOP}/serviceaccounts/default/token",
        _token(boundObjectRef=_for_node(OURS)),
    ),
    (VIRTUAL_NODE, "DELETE", f"{_CSR}/of-ours", None),
    (DESCHEDULER, "DELETE", f"{_PODS}/b-ours", _FORCED),
    (DESCHEDULER, "POST", _PODS, _labelled("replacement", "")),
    (DESCHEDULER, "DELETE", f"{_PODS}/replacement", _FORCED),
    (DESCHEDULER, "POST", f"{_PODS}/c-ours/eviction", _eviction("c-ours", SHOP)),
    (DESCHEDULER, "PATCH", f"{_PODS}/web-ours", _RELEASED),
    (DESCHEDULER, "PATCH", f"{_PODS}/web-ours", _COST),
    (DESCHEDULER, "PATCH", f"{_PODS}/web-ours", _RESTORED),
    (DESCHEDULER, "PATCH", f"/api/v1/nodes/{OURS}", _NOTE),
    (WEBHOOK, "GET", f"{_OWN}/secrets?fieldSelector=metadata.name={WEBHOOK}-tls", None),
    (WEBHOOK, "GET", f"{_WEBHOOKS}/{NAMESPACE}.{WEBHOOK}", None),
]


async def test_refuses_access_to_objects_of_others(upper: Cluster, attackers: dict[str, Client]):
    """Each attack is refused, by RBAC or by a policy with a message that names what the account may do."""
    for attack, expected in REFUSED:
        refusal = await _refusal(attackers, attack)
        assert expected in refusal.replace('"', ""), attack
        assert "expression" not in refusal, "the message is a sentence, not the source of the policy"
    for name in ("a-real", "waiting"):
        left = await read(upper, "-n", SHOP, "pod", name)
        assert "deletionTimestamp" not in left["metadata"]
        assert left["status"].get("message") != "forged"


async def test_allows_the_same_access_to_own_objects(upper: Cluster, attackers: dict[str, Client]):
    """Own nodes, pods, volumes and requests; other users are not restricted."""
    for request in ALLOWED:
        assert await _refusal(attackers, request) == "", request
    await upper.kubectl("-n", SHOP, "delete", "pod", "b-real", "--grace-period=0", "--force")


async def test_policies_have_no_type_errors(upper: Cluster):
    """The API server checks expressions against the types of the objects they apply to."""

    async def checked() -> bool:
        found = (await read(upper, "validatingadmissionpolicies"))["items"]
        wanted = {f"{NAMESPACE}.{VIRTUAL_NODE}", f"{NAMESPACE}.{DESCHEDULER}"}
        checks = [(one.get("status") or {}).get("typeChecking") for one in found]
        return {one["metadata"]["name"] for one in found} == wanted and all(check == {} for check in checks)

    await eventually(checked, what="type checks without warnings")
