"""Stolen tokens of the project's accounts on a real API server: what RBAC and the admission policies refuse and allow."""

from __future__ import annotations

import base64
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

from clusterset.model import names
from controller_runtime import resources
from controller_runtime.client.client import Client
from controller_runtime.errors import Forbidden
from hack.sandbox import Cluster
from hack.sandbox.commands.helm import CHART, NAMESPACE, RELEASE, helm
from tests.clusters.attacks.replacement_pods import (
    POWERFUL,
    TO_VIRTUAL,
    plain_pod,
    replacement,
    required_affinity,
    with_container,
)
from tests.clusters.attacks.stolen_tokens import (
    DESCHEDULER,
    MULTI_SCHEDULER,
    VIRTUAL_NODE,
    WEBHOOK,
    Attack,
    clients,
    enforced,
    refusal_of,
)
from tests.clusters.chart.installation import read
from tests.clusters.pool import Lend
from tests.gateways import custom_resource
from tests.waiting import create, eventually, make_namespace
from virtual_node.translate.storage.pv import DRIVER

pytestmark = pytest.mark.e2e

OURS, REAL = "tokyo", "real"
SHOP, OPERATORS = "shop", "operators"
VALUES = {
    "virtualNode": {
        "clusters": [
            {
                "name": OURS,
                "kubeconfigSecret": {"name": "virtual-node-tokyo"},
                "config": {"follow": ["ingresses", "gateways"]},
            }
        ],
        "kubelet": {"servingCertificate": "CSR", "approveServingCertificate": True},
        # The setting with which the account may request more tokens.
        "config": {"identities": {"tokens": "node"}},
    },
    "admissionPolicy": {"protectedNamespaces": [OPERATORS]},
}
_PODS = f"/api/v1/namespaces/{SHOP}/pods"
_CSR = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
_WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
_OWN = f"/api/v1/namespaces/{NAMESPACE}"
_CLAIM, _BOUND = (f"/api/v1/namespaces/{SHOP}/persistentvolumeclaims/{name}" for name in ("data", "bound"))
_GATEWAY = f"/apis/gateway.networking.k8s.io/v1/namespaces/{SHOP}/gateways/front"
_ADDRESSES: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        f"/apis/networking.k8s.io/v1/namespaces/{SHOP}/ingresses/front",
        {"status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.5"}]}}},
    ),
    (_GATEWAY, {"status": {"addresses": [{"value": "203.0.113.5"}]}}),
)
_PROTECTION, _SELECTED = "kubernetes.io/pvc-protection", "volume.kubernetes.io/selected-node"
_GONE = {"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "gone"}
"""An owner that does not exist: the garbage collector deletes its objects."""
_RESIZING = {"type": "Resizing", "status": "True"}
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
_SILENCE = {"metadata": {"annotations": {names.ANNOTATION_SILENCE: "s", names.ANNOTATION_DRAIN_STATUS: "d"}}}
_TAINT = {"key": "virtual-kubelet.io/provider", "effect": "NoSchedule"}
_STALE = {"key": names.TAINT_STALE_CLUSTER, "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}
_REPORTED = {
    "metadata": {
        "annotations": {
            names.ANNOTATION_LOWER_UID: "u",
            names.ANNOTATION_ALLOCATED_DEVICES: "{}",
            names.ANNOTATION_REQUIRED_NODE: "",
        }
    },
    **_FORGED,
}
_PROVISIONER, _MIGRATED = "pv.kubernetes.io/provisioned-by", "pv.kubernetes.io/migrated-to"
_HEARTBEATS, _ELECTIONS = (
    f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    for namespace in ("kube-node-lease", NAMESPACE)
)
"""Paths of the Leases of nodes, and of the programs' elections."""
_FORCED = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def upper(simulated: Lend) -> AsyncIterator[Cluster]:
    """An upper cluster with the chart's rights and policies, a virtual node, a real one, and pods on both."""
    async with simulated(lower=0) as sandbox:
        upper = sandbox.upper
        await upper.kubectl("create", "namespace", NAMESPACE)
        await helm(
            sandbox, "install", RELEASE, str(CHART), f"--namespace={NAMESPACE}", "--no-hooks", values=VALUES
        )
        await make_namespace(upper, SHOP)
        await make_namespace(upper, OPERATORS)
        await upper.apply(custom_resource(resources.GATEWAYS))
        await upper.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        virtual = {**_node(OURS, labels={"type": "virtual-kubelet"}), "spec": {"taints": [_TAINT]}}
        await upper.apply(
            _node(REAL), virtual, _volume("foreign", "ebs.csi.aws.com"), _volume("mirror"), _claim("data"),
            _volume("bound", storage_class="static"), _claim("bound", volumeName="bound", storageClassName="static"), _ingress(), _gateway(),
        )  # fmt: skip
        accepted = json.dumps({"status": {"conditions": [{"type": "Accepted"}]}})
        await upper.kubectl(
            *(
                "-n",
                SHOP,
                "patch",
                "gateway",
                "front",
                "--type=merge",
                "--subresource=status",
                f"-p={accepted}",
            )
        )
        await upper.kubectl(
            *("-n", SHOP, "wait", "--for=jsonpath={.status.phase}=Bound", "pvc/bound", "--timeout=60s")
        )
        await upper.kubectl("-n", NAMESPACE, "create", "secret", "generic", "virtual-node-tokyo")
        for name in ("a", "b", "c"):
            await create(upper, SHOP, plain_pod(f"{name}-ours", OURS), plain_pod(f"{name}-real", REAL))
        await create(upper, SHOP, plain_pod("waiting", ""))
        web = plain_pod("web-ours", OURS)
        web["metadata"]["labels"] = {"app": "web", "pod-template-hash": "h1"}
        await create(upper, SHOP, web)
        claiming = plain_pod("claiming", OURS)
        claiming["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
        await create(upper, SHOP, claiming)
        await create(upper, "kube-system", plain_pod("system", OURS))
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
    async with clients(upper, (VIRTUAL_NODE, WEBHOOK, DESCHEDULER)) as found:
        await enforced(found, (VIRTUAL_NODE, "DELETE", f"{_PODS}/a-real?dryRun=All", None))
        yield found


def _lease(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"holderIdentity": "a"}}


def _node(name: str, *, labels: dict[str, str] | None = None) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels or {}}}


def _volume(
    name: str,
    driver: str = "lower-cluster.virtual-node.io",
    storage_class: str = "",
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": storage_class,
            "csi": {"driver": driver, "volumeHandle": name},
        },
    }


def _ingress() -> dict[str, Any]:
    backend = {"service": {"name": "web", "port": {"number": 80}}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": {"name": "front", "namespace": SHOP},
        "spec": {"defaultBackend": backend},
    }


def _gateway() -> dict[str, Any]:
    return {
        "apiVersion": resources.GATEWAYS.api_version,
        "kind": "Gateway",
        "metadata": {"name": "front", "namespace": SHOP},
        "spec": {"gatewayClassName": "edge"},
    }


def _claim(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": SHOP, "annotations": {_SELECTED: "lost", "kept": "yes"}},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "none",
            "resources": {"requests": {"storage": "1Gi"}},
            **spec,
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
    *(
        ((VIRTUAL_NODE, "PATCH", f"{_PODS}/a-ours/status", change), "together with the status of a pod only")
        for change in (
            # With the label, the pod gets the traffic of a Service.
            {"metadata": {"labels": {"app": "web"}}},
            {"metadata": {"finalizers": ["example.com/forever"]}},
            {"metadata": {"annotations": {"a": "b"}}, **_FORGED},
        )
    ),
    (
        (
            *(VIRTUAL_NODE, "PATCH", f"{_PODS}/claiming/status"),
            {"status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "theirs"}]}},
        ),
        "together with the status of a pod only",
    ),
    *(
        ((VIRTUAL_NODE, "POST", path, _lease(name)), f"this is {name}")
        for path, name in ((_HEARTBEATS, REAL), (_ELECTIONS, "virtual-node-webhook"))
    ),
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
    # The provisioner of the annotation would delete the disk `volumeHandle` when the claim of the volume is gone.
    *(
        ((VIRTUAL_NODE, method, path, body), "may not name another provisioner on a volume")
        for key in (_PROVISIONER, _MIGRATED)
        for method, path, body in (
            ("POST", "/api/v1/persistentvolumes", _volume("disk", annotations={key: "ebs.csi.aws.com"})),
            (
                "PATCH",
                "/api/v1/persistentvolumes/mirror",
                {"metadata": {"annotations": {key: "ebs.csi.aws.com"}}},
            ),
        )
    ),
    (
        (
            VIRTUAL_NODE,
            "PATCH",
            _CLAIM,
            {"spec": {"volumeName": "foreign"}},
        ),
        "may not write the spec of a claim",
    ),
    *(
        (
            (VIRTUAL_NODE, "PATCH", _CLAIM, {"metadata": change}),
            "may change only its own finalizer of a claim",
        )
        for change in (
            {"ownerReferences": [_GONE]},
            {"labels": {"a": "b"}},
            {"annotations": {"a": "b"}},
            {"annotations": {_SELECTED: OURS}},
            {"annotations": {"kept": None}},
            {"finalizers": None},
            {"finalizers": [_PROTECTION, "example.com/forever"]},
        )
    ),
    *(
        (
            (VIRTUAL_NODE, "PATCH", f"{path}/status", {"metadata": change}),
            "may not write the metadata of a claim, Ingress",
        )
        for path in (_CLAIM, _BOUND, *(path for path, _ in _ADDRESSES[:1]))
        for change in (
            {"ownerReferences": [_GONE]},
            {"labels": {"a": "b"}},
            {"annotations": {"a": "b"}},
            {"finalizers": ["example.com/forever"]},
        )
    ),
    *(
        (
            (VIRTUAL_NODE, "PATCH", f"{path}/status", {"status": change}),
            "only the capacity and the conditions of a bound claim",
        )
        for path, change in (
            (_BOUND, {"phase": "Lost"}),
            (_BOUND, {"accessModes": ["ReadWriteMany"]}),
            (_BOUND, {"currentVolumeAttributesClassName": "slow"}),
            (_CLAIM, {"phase": "Bound"}),
            (_CLAIM, {"capacity": {"storage": "2Gi"}}),
        )
    ),
    (
        (VIRTUAL_NODE, "PATCH", f"{_GATEWAY}/status", {"status": {"conditions": []}}),
        "only the addresses of a Gateway",
    ),
    (
        (VIRTUAL_NODE, "PATCH", f"{_GATEWAY}/status", {"status": {"listeners": [{"name": "x"}]}}),
        "only the addresses of a Gateway",
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
        "not for protected namespaces such as kube-system",
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
    (
        (DESCHEDULER, "DELETE", "/api/v1/namespaces/kube-system/pods/system", None),
        "may not move pods of kube-system",
    ),
    (
        (
            DESCHEDULER,
            "POST",
            "/api/v1/namespaces/kube-system/pods/system/eviction",
            _eviction("system", "kube-system"),
        ),
        "may not move pods of kube-system",
    ),
    (
        (DESCHEDULER, "POST", _PODS, plain_pod("unlabelled", "")),
        "only pods labelled create-by-descheduler, with the annotation",
    ),
    (
        (DESCHEDULER, "POST", _PODS, replacement("bound", REAL)),
        "with the annotation virtual-node.io/replaces, on no node",
    ),
    (
        (DESCHEDULER, "POST", _PODS, replacement("first", replaces="")),
        "with the annotation virtual-node.io/replaces, on no node",
    ),
    *(
        (
            (DESCHEDULER, "POST", f"/api/v1/namespaces/{namespace}/pods", replacement("x")),
            "may not move pods of",
        )
        for namespace in (NAMESPACE, "kube-public", OPERATORS)
    ),
    *(((DESCHEDULER, "POST", _PODS, body), "add nodeSelector type: virtual-kubelet") for body in POWERFUL),
    (
        (DESCHEDULER, "POST", f"{_OWN}/pods/any/eviction", _eviction("any", NAMESPACE)),
        "may not move pods of",
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
    *(
        (
            (DESCHEDULER, "PATCH", f"/api/v1/nodes/{OURS}", change),
            "may change only the taint virtual-node.io/stale-cluster",
        )
        for change in (
            _NOTE,
            {"metadata": {"labels": {"a": "b"}}},
            {"metadata": {"labels": {"type": None}}},
            {"metadata": {"ownerReferences": [_GONE]}},
            {"metadata": {"finalizers": ["example.com/forever"]}},
            {"spec": {"taints": None}},
            {"spec": {"taints": [_TAINT, {**_STALE, "effect": "NoExecute"}]}},
            {"spec": {"taints": [_TAINT, {**_STALE, "key": "example.com/theirs"}]}},
            {"spec": {"unschedulable": True}},
            {"spec": {"podCIDR": "10.0.0.0/8", "podCIDRs": ["10.0.0.0/8"]}},
        )
    ),
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
    (VIRTUAL_NODE, "PATCH", f"{_PODS}/a-ours/status", _REPORTED),
    *(
        (VIRTUAL_NODE, "POST", path, _lease(name))
        for path, name in ((_HEARTBEATS, OURS), (_ELECTIONS, VIRTUAL_NODE))
    ),
    (VIRTUAL_NODE, "DELETE", f"{_PODS}/a-ours", _FORCED),
    (VIRTUAL_NODE, "PATCH", f"/api/v1/nodes/{OURS}", _NOTE),
    (VIRTUAL_NODE, "PATCH", f"/api/v1/nodes/{OURS}/status", _NOTE),
    (VIRTUAL_NODE, "GET", f"/api/v1/nodes?fieldSelector=metadata.name={OURS}", None),
    (VIRTUAL_NODE, "POST", "/api/v1/persistentvolumes", _volume("mine", annotations={_PROVISIONER: DRIVER})),
    (VIRTUAL_NODE, "PATCH", "/api/v1/persistentvolumes/mirror", _NOTE),
    (VIRTUAL_NODE, "DELETE", "/api/v1/persistentvolumes/mirror", None),
    (
        VIRTUAL_NODE,
        "PATCH",
        _CLAIM,
        {"metadata": {"finalizers": [_PROTECTION, "virtual-node.io/lower-claim"]}},
    ),
    (VIRTUAL_NODE, "PATCH", _CLAIM, {"metadata": {"annotations": {_SELECTED: None}}}),
    (VIRTUAL_NODE, "PATCH", _CLAIM, {"metadata": {"finalizers": [_PROTECTION]}}),
    (VIRTUAL_NODE, "PATCH", f"{_BOUND}/status", {"status": {"capacity": {"storage": "2Gi"}}}),
    (VIRTUAL_NODE, "PATCH", f"{_BOUND}/status", {"status": {"conditions": [_RESIZING]}}),
    *((VIRTUAL_NODE, "PATCH", f"{path}/status", address) for path, address in _ADDRESSES),
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
    (DESCHEDULER, "POST", _PODS, replacement("replacement")),
    *(
        (DESCHEDULER, "POST", f"{_PODS}?dryRun=All", replacement("root", hostPID=True, **pinned))
        for pinned in (
            {"nodeSelector": {"type": "virtual-kubelet"}},
            {"affinity": required_affinity(TO_VIRTUAL)},
        )
    ),
    (
        *(DESCHEDULER, "POST", f"{_PODS}?dryRun=All"),
        with_container(securityContext={"capabilities": {"add": ["NET_BIND_SERVICE"]}, "privileged": False}),
    ),
    (DESCHEDULER, "DELETE", f"{_PODS}/replacement", _FORCED),
    (DESCHEDULER, "POST", f"{_PODS}/c-ours/eviction", _eviction("c-ours", SHOP)),
    (DESCHEDULER, "PATCH", f"{_PODS}/web-ours", _RELEASED),
    (DESCHEDULER, "PATCH", f"{_PODS}/web-ours", _COST),
    (DESCHEDULER, "PATCH", f"{_PODS}/web-ours", _RESTORED),
    (DESCHEDULER, "PATCH", f"/api/v1/nodes/{OURS}", {**_SILENCE, "spec": {"taints": [_TAINT, _STALE]}}),
    (DESCHEDULER, "PATCH", f"/api/v1/nodes/{OURS}", {"spec": {"taints": [_TAINT]}}),
    (WEBHOOK, "GET", f"{_WEBHOOKS}/{NAMESPACE}.{WEBHOOK}", None),
]


async def test_refuses_access_to_objects_of_others(upper: Cluster, attackers: dict[str, Client]):
    """Each attack is refused, by RBAC or by a policy with a message that names what the account may do."""
    for attack, expected in REFUSED:
        refusal = await refusal_of(attackers, attack)
        assert expected in refusal.replace('"', ""), attack
        assert "expression" not in refusal, "the message is a sentence, not the source of the policy"
    for name in ("a-real", "waiting"):
        left = await read(upper, "-n", SHOP, "pod", name)
        assert "deletionTimestamp" not in left["metadata"]
        assert left["status"].get("message") != "forged"


async def test_account_may_act_as_its_node_only_to_request_a_serving_certificate(
    attackers: dict[str, Client],
):
    """The Node authorizer gives a node tokens for all its pods, also in kube-system, and a client certificate."""
    client_certificate = {
        **_request(OURS)["spec"],
        "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
        "usages": ["digital signature", "client auth"],
    }
    system = await attackers[VIRTUAL_NODE].get(resources.PODS, "system", namespace="kube-system")
    bound = {**_for_pod("system"), "uid": system["metadata"]["uid"]}
    attacks: list[tuple[str, Mapping[str, Any]]] = [
        ("/api/v1/namespaces/kube-system/serviceaccounts/default/token", _token(boundObjectRef=bound)),
        ("/api/v1/namespaces/kube-system/pods/system/eviction", _eviction("system", "kube-system")),
        (_CSR, {**_request(OURS), "metadata": {"name": "client"}, "spec": client_certificate}),
    ]
    impersonation = {
        "Content-Type": "application/json",
        "Impersonate-User": f"system:node:{OURS}",
        "Impersonate-Group": "system:nodes",
    }
    for path, body in attacks:
        with pytest.raises(Forbidden, match="may act as its node only to request a serving certificate"):
            await attackers[VIRTUAL_NODE].request(
                "POST", path, body=json.dumps(body).encode(), headers=impersonation
            )
    own = {**_request(OURS), "metadata": {"name": "own"}}
    await attackers[VIRTUAL_NODE].request("POST", _CSR, body=json.dumps(own).encode(), headers=impersonation)


async def test_allows_the_same_access_to_own_objects(upper: Cluster, attackers: dict[str, Client]):
    """Own nodes, pods, volumes and requests; other users are not restricted."""
    for request in ALLOWED:
        assert await refusal_of(attackers, request) == "", request
    await upper.kubectl("-n", SHOP, "delete", "pod", "b-real", "--grace-period=0", "--force")


async def test_policies_have_no_type_errors(upper: Cluster):
    """The API server checks expressions against the types of the objects they apply to."""

    async def checked() -> bool:
        found = (await read(upper, "validatingadmissionpolicies"))["items"]
        wanted = {
            f"{NAMESPACE}.{account}" for account in (VIRTUAL_NODE, DESCHEDULER, WEBHOOK, MULTI_SCHEDULER)
        }
        checks = [(one.get("status") or {}).get("typeChecking") for one in found]
        return {one["metadata"]["name"] for one in found} == wanted and all(check == {} for check in checks)

    await eventually(checked, what="type checks without warnings")
