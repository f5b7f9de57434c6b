"""Trust anchors and certificates of a pod are those of the upper cluster."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from controller_runtime import resources
from controller_runtime.apimachinery.timestamps import rfc3339
from hack.sandbox import Cluster, Sandbox
from tests.clusters.virtual_nodes import pod
from tests.waiting import create, eventually, get, ready

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]
BUNDLES, REQUESTS = resources.CLUSTER_TRUST_BUNDLES[0], resources.POD_CERTIFICATE_REQUESTS[0]
MOUNT = {"volumeMounts": [{"name": "tls", "mountPath": "/tls"}]}


def name(text: str) -> x509.Name:
    """Return a subject."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


class Authority:
    """A CA that signs PodCertificateRequests of its signer."""

    def __init__(self, subject: str) -> None:
        self.key, self.subject = ec.generate_private_key(ec.SECP256R1()), name(subject)
        self.pem = self._sign(self.subject, self.key.public_key(), timedelta(days=1), is_ca=True)

    def leaf(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the status of a request with a certificate for it."""
        csr = x509.load_der_x509_csr(base64.b64decode(request["spec"]["stubPKCS10Request"]))
        life = timedelta(seconds=request["spec"]["maxExpirationSeconds"])
        certificate = self._sign(name(request["spec"]["serviceAccountName"]), csr.public_key(), life)  # type: ignore[arg-type]
        begin = x509.load_pem_x509_certificate(certificate.encode()).not_valid_before_utc
        issued = {"type": "Issued", "status": "True", "reason": "Signed", "message": "signed by the test"}
        return {
            "conditions": [{**issued, "lastTransitionTime": rfc3339(datetime.now(UTC))}],
            "certificateChain": certificate,
            "notBefore": rfc3339(begin),
            "beginRefreshAt": rfc3339(begin + life / 2),
            "notAfter": rfc3339(begin + life),
        }

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, life: timedelta, *, is_ca: bool = False
    ) -> str:
        begin = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=1)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject).issuer_name(self.subject).public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin).not_valid_after(begin + life)
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .sign(self.key, hashes.SHA256())
        )  # fmt: skip
        return certificate.public_bytes(serialization.Encoding.PEM).decode()


@contextlib.asynccontextmanager
async def bundles(upper: Cluster, **found: dict[str, Any]) -> AsyncIterator[None]:
    """Create ClusterTrustBundles, which are deleted at the end."""
    for spec in found.values():
        body = {"apiVersion": BUNDLES.api_version, "kind": BUNDLES.kind, **spec}
        await upper.api.create(BUNDLES.path(), body)
    try:
        yield
    finally:
        for spec in found.values():
            await upper.api.delete(BUNDLES.path(name=spec["metadata"]["name"]))


def bundle(named: str, anchors: str, signer: str = "", **labels: str) -> dict[str, Any]:
    """Return a ClusterTrustBundle without its kind."""
    spec = {"trustBundle": anchors, **({"signerName": signer} if signer else {})}
    return {"metadata": {"name": named, "labels": labels}, "spec": spec}


def mounting(named: str, *sources: dict[str, Any]) -> dict[str, Any]:
    """Return a pod with these sources in /tls."""
    volume = {"name": "tls", "projected": {"sources": list(sources)}}
    return pod(named, "sleep 3600", volumes=[volume], container=MOUNT)


async def cat(upper: Cluster, namespace: str, named: str, path: str) -> str:
    """Return a file of a pod."""
    return (await upper.kubectl("-n", namespace, "exec", named, "--", "cat", f"/tls/{path}")).stdout


async def test_anchors_are_those_of_the_upper_cluster(upper: Cluster, namespace):
    """By name, by signer and labels, and missing; a change of a bundle reaches the file."""
    first, second, third = (Authority(text).pem for text in "abc")
    signer, plain = f"example.com/{namespace}", f"plain.{namespace}"
    prefix = signer.replace("/", ":")
    pods = mounting(
        "trusts",
        {"clusterTrustBundle": {"name": plain, "path": "plain.pem"}},
        {
            "clusterTrustBundle": {
                "signerName": signer,
                "labelSelector": {"matchLabels": {"live": "yes"}},
                "path": "live.pem",
            }
        },
        {"clusterTrustBundle": {"name": "gone", "optional": True, "path": "empty.pem"}},
    )
    waits = mounting("waits", {"clusterTrustBundle": {"name": f"late.{namespace}", "path": "late.pem"}})
    async with bundles(
        upper,
        plain=bundle(plain, f"# a comment\n{first}"),
        live=bundle(f"{prefix}:1", second, signer, live="yes"),
        dead=bundle(f"{prefix}:2", third, signer, live="no"),
    ):
        await create(upper, namespace, pods, waits)
        await ready(upper, namespace, "trusts")
        assert (await cat(upper, namespace, "trusts", "plain.pem")).strip() == first.strip()
        assert (await cat(upper, namespace, "trusts", "live.pem")).strip() == second.strip()
        assert await cat(upper, namespace, "trusts", "empty.pem") == ""
        await upper.api.merge(BUNDLES.path(name=plain), {"spec": {"trustBundle": third}})
        # The kubelet reads the files again at the next sync of the pod, which a change of the pod causes.
        numbers = itertools.count()

        async def followed() -> bool:
            await upper.kubectl(
                "-n", namespace, "label", "--overwrite", "pod", "trusts", f"n=x{next(numbers)}"
            )
            return (await cat(upper, namespace, "trusts", "plain.pem")).strip() == third.strip()

        await eventually(followed, what="the file follows the bundle")

        async def told() -> bool:
            events = (await get(upper, namespace, "events"))["items"]
            return any(f'clustertrustbundle "late.{namespace}" not found' in one["message"] for one in events)

        await eventually(told, what="an event names the missing bundle")
        async with bundles(upper, late=bundle(f"late.{namespace}", first)):
            await ready(upper, namespace, "waits")


async def test_a_signer_of_the_upper_cluster_issues_certificates(upper: Cluster, sandbox: Sandbox, namespace):
    """For the upper pod and its ServiceAccount; the key is only in the Secret, which is deleted with the pod."""
    signer, authority = f"example.com/{namespace}", Authority("ca")
    source = {
        "signerName": signer,
        "keyType": "ECDSAP256",
        "credentialBundlePath": "all.pem",
        "maxExpirationSeconds": 3600,
    }

    async def sign() -> None:
        while True:
            for request in (await upper.api.read(REQUESTS.path(namespace=namespace)))["items"]:
                if not (request.get("status") or {}).get("conditions"):
                    path = REQUESTS.path(
                        namespace=namespace, name=request["metadata"]["name"], subresource="status"
                    )
                    await upper.api.merge(path, {"status": authority.leaf(request)})
            await asyncio.sleep(0.3)

    signing = asyncio.create_task(sign())
    try:
        await create(upper, namespace, mounting("served", {"podCertificate": source}))
        await ready(upper, namespace, "served")
    finally:
        signing.cancel()
    text = await cat(upper, namespace, "served", "all.pem")
    key = serialization.load_pem_private_key(text.encode(), None)
    leaf = x509.load_pem_x509_certificate(text[text.index("-----BEGIN CERTIFICATE") :].encode())
    assert leaf.public_key() == key.public_key()
    assert leaf.subject == name("default")
    (request,) = (await upper.api.read(REQUESTS.path(namespace=namespace)))["items"]
    assert request["spec"]["podUID"] == (await get(upper, namespace, "pod", "served"))["metadata"]["uid"]
    await upper.kubectl("-n", namespace, "delete", "pod", "served", "--grace-period=0", "--wait=false")

    async def is_deleted() -> bool:
        found = (await get(sandbox.lower[0], namespace, "secrets"))["items"]
        return not any("-certificates-" in one["metadata"]["name"] for one in found)

    await eventually(is_deleted, what="the Secret is deleted with the pod")
