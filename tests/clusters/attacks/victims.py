"""Objects in an upper cluster that stolen tokens attack: those of a virtual node, of a real node, and of their pods."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from controller_runtime import resources
from hack.sandbox import Cluster
from hack.sandbox.commands.helm import NAMESPACE
from tests.clusters.attacks.replacement_pods import plain_pod
from tests.gateways import custom_resource
from tests.waiting import create, make_namespace

OURS, REAL = "tokyo", "real"
SHOP, OPERATORS = "shop", "operators"
PODS = f"/api/v1/namespaces/{SHOP}/pods"
CSR = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
OWN = f"/api/v1/namespaces/{NAMESPACE}"
CLAIM, BOUND = (f"/api/v1/namespaces/{SHOP}/persistentvolumeclaims/{name}" for name in ("data", "bound"))
GATEWAY = f"/apis/gateway.networking.k8s.io/v1/namespaces/{SHOP}/gateways/front"
PROTECTION, SELECTED = "kubernetes.io/pvc-protection", "volume.kubernetes.io/selected-node"
GONE = {"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "gone"}
"""An owner that does not exist: the garbage collector deletes its objects."""
NOTE = {"metadata": {"annotations": {"a": "b"}}}
TAINT = {"key": "virtual-kubelet.io/provider", "effect": "NoSchedule"}
FORCED = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}


async def create_victims(upper: Cluster) -> None:
    """Create a virtual node, a real one, pods on both and on none, claims, volumes, and requests for certificates."""
    await make_namespace(upper, SHOP)
    await make_namespace(upper, OPERATORS)
    await upper.apply(custom_resource(resources.GATEWAYS))
    await upper.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    virtual = {**node(OURS, labels={"type": "virtual-kubelet"}), "spec": {"taints": [TAINT]}}
    await upper.apply(
        node(REAL), virtual, volume("foreign", "ebs.csi.aws.com"), volume("mirror"), claim("data"),
        volume("bound", storage_class="static"), claim("bound", volumeName="bound", storageClassName="static"), ingress(), gateway(),
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
            input=json.dumps(signing_request(name)),
        )


def node(name: str, *, labels: dict[str, str] | None = None) -> dict[str, Any]:
    """Return a Node."""
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels or {}}}


def volume(
    name: str,
    driver: str = "lower-cluster.virtual-node.io",
    storage_class: str = "",
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return a PersistentVolume of a CSI driver."""
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


def ingress() -> dict[str, Any]:
    """Return an Ingress."""
    backend = {"service": {"name": "web", "port": {"number": 80}}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": {"name": "front", "namespace": SHOP},
        "spec": {"defaultBackend": backend},
    }


def gateway() -> dict[str, Any]:
    """Return a Gateway."""
    return {
        "apiVersion": resources.GATEWAYS.api_version,
        "kind": "Gateway",
        "metadata": {"name": "front", "namespace": SHOP},
        "spec": {"gatewayClassName": "edge"},
    }


def claim(name: str, **spec: Any) -> dict[str, Any]:
    """Return a claim that a scheduler has given a node."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": SHOP, "annotations": {SELECTED: "lost", "kept": "yes"}},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "none",
            "resources": {"requests": {"storage": "1Gi"}},
            **spec,
        },
    }


@cache
def signing_request(node: str) -> dict[str, Any]:
    """Return a request for a node's serving certificate."""
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


def eviction(name: str, namespace: str) -> dict[str, Any]:
    """Return an Eviction."""
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}


def lease(name: str) -> dict[str, Any]:
    """Return a Lease."""
    return {"metadata": {"name": name}, "spec": {"holderIdentity": "a"}}


def token(**spec: Any) -> dict[str, Any]:
    """Return a request for a token."""
    return {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"audiences": [], **spec},
    }


def for_pod(name: str) -> dict[str, str]:
    """Return the pod that a token is bound to."""
    return {"apiVersion": "v1", "kind": "Pod", "name": name}


def for_node(name: str) -> dict[str, str]:
    """Return the node that a token is bound to."""
    return {"apiVersion": "v1", "kind": "Node", "name": name}
