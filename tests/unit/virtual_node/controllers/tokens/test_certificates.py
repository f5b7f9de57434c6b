"""Trust anchors and certificates of a pod follow the upper cluster for its lifetime."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from clusterset.model import names
from controller_runtime.apimachinery import timestamps
from controller_runtime.errors import Forbidden, NotFound
from tests.background import working
from tests.thorough import only_thorough
from tests.unit.virtual_node.controllers import pod_controller_setup
from tests.unit.virtual_node.controllers.cluster import Cluster
from virtual_node.controllers import certificates
from virtual_node.controllers.base.problems import Problem

pytestmark = pytest.mark.looptime
UID = "12345678-aaaa"
KEY = "shop/web-certificates-12345678"
SIGNER = "example.com/mesh"
TRUST = {"clusterTrustBundle": {"name": "ca", "path": "ca.pem"}}
CERTIFICATE = {
    "podCertificate": {"signerName": SIGNER, "keyType": "ECDSAP256", "credentialBundlePath": "all"}
}


def pem(text: str) -> str:
    """Return a PEM block."""
    return f"-----BEGIN CERTIFICATE-----\n{base64.b64encode(text.encode()).decode()}\n-----END CERTIFICATE-----\n"


class Upper(Cluster):
    """An upper cluster that serves the certificates API."""

    requests = 0
    served = True
    refuses = False

    async def read(self, path: str, **options: Any) -> dict[str, Any]:
        if self.served and path == "/apis/certificates.k8s.io/v1":
            return {"resources": [{"name": "clustertrustbundles"}, {"name": "podcertificaterequests"}]}
        raise NotFound(path, code=404)

    async def create(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        if arguments[0].plural == "podcertificaterequests":
            self.requests += 1
            if self.refuses:
                raise Forbidden("no", code=403)
            body = arguments[1]
            named = {**body, "metadata": {**body["metadata"], "name": f"req-{self.requests}"}}
            arguments = (arguments[0], named, *arguments[2:])
        return await super().create(*arguments, **options)


class Scene(pod_controller_setup.Scene):
    """A certificate controller, its two clusters, and one upper pod."""

    upper: Upper

    def __init__(
        self, *sources: Mapping[str, Any], upper: Upper | None = None, lower: Cluster | None = None
    ) -> None:
        super().__init__(upper or Upper("upper"), lower or Cluster("lower"), enable_serviceaccount=True)
        self.woken: list[str] = []
        self.certificates.wake = self.woken.append
        start, loop = datetime.now(UTC).timestamp(), asyncio.get_running_loop()
        self.certificates.clock = lambda: start + loop.time()
        if lower is None:
            self.lower.put("namespaces", pod_controller_setup.lower_namespace())
            self.upper.put(
                "serviceaccounts", {"metadata": {"name": "robot", "namespace": "shop", "uid": "sa-1"}}
            )
            self.upper.put("namespaces", {"metadata": {"name": "shop", "uid": "ns-1"}})
            self.upper.put("nodes", {"metadata": {"name": "vn", "uid": "node-1"}})
            volume = {"name": "tls", "projected": {"sources": list(sources)}}
            pod = pod_controller_setup.pod(
                "web", uid=UID, nodeName="vn", serviceAccountName="robot", volumes=[volume]
            )
            self.upper.put("pods", {**pod, "status": {"phase": "Running"}})
        self.upper.feed(self.caches.upper["vn"])
        self.lower.feed(self.all_caches.lower_namespaces, self.all_caches.secrets, self.caches.lower)

    async def ensure(self) -> list[Problem]:
        """Request what the pod needs."""
        pod = self.caches.upper_pod(UID)
        assert pod is not None
        return await self.certificates.ensure(pod, pod.to_dict(), self.context.options["vn"])

    def start_pod(self) -> None:
        """Create the lower pod."""
        labels = {
            names.LABEL_UPPER_CLUSTER: pod_controller_setup.CLUSTER,
            names.LABEL_UPPER_UID: UID,
            names.LABEL_NODE: "vn",
        }
        source = {"secret": {"name": KEY.partition("/")[2]}}
        pod = pod_controller_setup.pod(
            "web", uid="lower", volumes=[{"name": "tls", "projected": {"sources": [source]}}]
        )
        pod["metadata"]["labels"] = labels
        self.lower.put("pods", pod)

    def trust(self, name: str, text: str) -> None:
        """Create or change a bundle."""
        self.upper.put("clustertrustbundles", {"metadata": {"name": name}, "spec": {"trustBundle": text}})

    def issue(self, name: str, *, hours: int = 24) -> None:
        """Sign a request, to be renewed after half of the hours."""
        now = datetime.now(UTC)
        status = {
            "conditions": [{"type": "Issued", "status": "True"}],
            "certificateChain": pem(f"leaf of {name}"),
            "beginRefreshAt": timestamps.rfc3339(now + timedelta(hours=hours / 2)),
            "notAfter": timestamps.rfc3339(now + timedelta(hours=hours)),
        }
        self.upper.server.replace("podcertificaterequests", f"shop/{name}", status=status)

    def data(self) -> dict[str, str]:
        """Return the content of the lower Secret; empty: it does not exist."""
        secret = self.lower.find("secrets", KEY)
        return (
            {key: base64.b64decode(value).decode() for key, value in secret["data"].items()} if secret else {}
        )


@contextlib.asynccontextmanager
async def running(*sources: Mapping[str, Any], **clusters: Any) -> AsyncIterator[Scene]:
    """Run a controller. Not a fixture, because fixtures run outside of virtual time."""
    made = Scene(*sources, **clusters)
    async with working(made.certificates.run()):
        yield made


async def test_a_pod_waits_for_its_bundle_and_follows_it():
    """It is woken when the bundle appears. A change reaches the Secret of the running pod; a deletion keeps it."""
    async with running(TRUST) as scene:
        (problem,) = await scene.ensure()
        assert (
            problem.message == 'MountVolume.SetUp failed for volume "tls" : clustertrustbundle "ca" not found'
        )
        scene.trust("ca", pem("old"))
        await asyncio.sleep(5)
        assert scene.woken == [UID]
        assert await scene.ensure() == []
        scene.start_pod()
        scene.trust("ca", pem("new"))
        await asyncio.sleep(5)
        assert [*scene.data().values()] == [pem("new")]
        scene.upper.remove("clustertrustbundles", "ca")
        await asyncio.sleep(5)
        assert [*scene.data().values()] == [pem("new")]


async def test_a_certificate_is_requested_once_and_renewed():
    """The key of the renewed certificate is new."""
    async with running(CERTIFICATE) as scene:
        (problem,) = await scene.ensure()
        assert problem.message.endswith(f"signer {SIGNER} has not answered PodCertificateRequest shop/req-1")
        assert await scene.ensure() == [problem]
        spec = scene.upper.the("podcertificaterequests", "shop/req-1")["spec"]
        assert (spec["nodeName"], spec["nodeUID"], spec["podUID"]) == ("vn", "node-1", UID)
        assert (spec["serviceAccountName"], spec["serviceAccountUID"]) == ("robot", "sa-1")
        scene.issue("req-1")
        await asyncio.sleep(5)
        assert scene.woken == [UID]
        assert await scene.ensure() == []
        first = scene.data()
        assert first["certificate-0.bundle"] == first["certificate-0.key"] + pem("leaf of req-1")
        scene.start_pod()
        await asyncio.sleep(13 * 3600)
        assert scene.upper.requests == 2
        assert scene.data() == first
        scene.issue("req-2")
        await asyncio.sleep(5)
        renewed = scene.data()
        assert renewed["certificate-0.chain"] == pem("leaf of req-2")
        assert renewed["certificate-0.key"] != first["certificate-0.key"]


async def test_a_pod_makes_one_key_at_a_time():
    """RSA keys take seconds. Keys of other pods are made in between."""
    async with running(CERTIFICATE, CERTIFICATE, CERTIFICATE) as scene:
        for made in (1, 2, 3, 3):
            assert len(await scene.ensure()) == 3
            assert scene.upper.requests == made
            await asyncio.sleep(5)
        assert scene.woken == [UID, UID, UID]


async def test_an_unknown_key_type_causes_no_loop():
    """A later Kubernetes may have more. Other certificates of the pod are requested."""
    later = {"podCertificate": {**CERTIFICATE["podCertificate"], "keyType": "MLDSA65"}}
    async with running(later, CERTIFICATE) as scene:
        await scene.ensure()
        problems = await scene.ensure()
        assert "unknown key type 'MLDSA65'" in problems[0].message
        assert scene.upper.requests == 1
        await asyncio.sleep(60)
        assert len(scene.woken) < 10


async def test_a_refused_renewal_is_not_repeated_every_second():
    """For example because the ServiceAccount is gone."""
    async with running(CERTIFICATE) as scene:
        await scene.ensure()
        scene.issue("req-1")
        await asyncio.sleep(5)
        await scene.ensure()
        scene.start_pod()
        scene.upper.refuses = True
        await asyncio.sleep(13 * 3600)
        assert 6 < scene.upper.requests - 1 < 70
        scene.upper.refuses = False
        await asyncio.sleep(600)
        assert scene.upper.find("podcertificaterequests", f"shop/req-{scene.upper.requests}") is not None


async def test_a_signer_that_never_answers_causes_no_work():
    """Until its request is deleted."""
    async with running(CERTIFICATE) as scene:
        await scene.ensure()
        await asyncio.sleep(3600)
        assert len(scene.woken) <= 2
        scene.upper.remove("podcertificaterequests", "shop/req-1")
        await asyncio.sleep(5)
        await scene.ensure()
        assert scene.upper.requests == 2


async def test_a_deleted_pod_leaves_nothing_in_memory():
    """Neither its keys nor what was written."""
    async with running(CERTIFICATE) as scene:
        await scene.ensure()
        scene.issue("req-1")
        await asyncio.sleep(5)
        await scene.ensure()
        scene.upper.remove("pods", "shop/web")
        scene.certificates.forget_pod(UID)
        await asyncio.sleep(5)
        kept = scene.certificates
        assert (kept._pods, kept._left, kept._store._contents) == ({}, {}, {})


async def test_a_new_process_keeps_certificates_and_deletes_secrets_without_a_pod():
    """It requests nothing and writes nothing."""
    async with running(CERTIFICATE, TRUST) as scene:
        scene.trust("ca", pem("x"))
        await scene.ensure()
        scene.issue("req-1")
        await asyncio.sleep(5)
        assert await scene.ensure() == []
        scene.start_pod()
    before = scene.lower.the("secrets", KEY)
    async with running(upper=scene.upper, lower=scene.lower) as scene:
        pod = scene.caches.upper_pod(UID)
        assert pod is not None
        scene.certificates.adopt(pod, {KEY.partition("/")[2]})
        await asyncio.sleep(120)
        assert (scene.upper.requests, scene.lower.the("secrets", KEY)) == (1, before)
        scene.upper.remove("pods", "shop/web")
        scene.lower.remove("pods", "shop/web")
        scene.certificates.forget_pod(UID)
        await asyncio.sleep(5)
        assert scene.lower.find("secrets", KEY) is None


async def test_a_secret_that_others_labelled_does_not_keep_the_key_of_a_deleted_pod():
    """A user of the lower cluster can label one before a restart."""
    async with running(CERTIFICATE) as scene:
        await scene.ensure()
        scene.issue("req-1")
        await asyncio.sleep(5)
        assert await scene.ensure() == []
        scene.start_pod()
    other = scene.lower.the("secrets", KEY)
    other["metadata"] |= {"name": "zz-certificates-12345678", "uid": "zz"}
    scene.lower.put("secrets", other)
    async with running(upper=scene.upper, lower=scene.lower) as scene:
        pod = scene.caches.upper_pod(UID)
        assert pod is not None
        scene.certificates.adopt(pod, {KEY.partition("/")[2]})
        await asyncio.sleep(5)
        scene.upper.remove("pods", "shop/web")
        scene.lower.remove("pods", "shop/web")
        scene.certificates.forget_pod(UID)
        await asyncio.sleep(120)
        assert scene.lower.find("secrets", KEY) is None


async def test_a_denied_request_is_reported_and_not_repeated():
    """As by a kubelet."""
    async with running(CERTIFICATE) as scene:
        await scene.ensure()
        conditions = [
            {"type": "Denied", "status": "True", "reason": "UnsupportedKeyType", "message": "use RSA3072"}
        ]
        scene.upper.server.replace("podcertificaterequests", "shop/req-1", status={"conditions": conditions})
        await asyncio.sleep(5)
        (problem,) = await scene.ensure()
        assert 'was denied, reason="UnsupportedKeyType", message="use RSA3072"' in problem.message
        assert [reason for reason, _ in scene.events] == ["Denied"]
        await asyncio.sleep(3600)
        assert scene.upper.requests == 1


async def test_a_deleted_or_changed_secret_is_written_again():
    """With the same key."""
    async with running(CERTIFICATE) as scene:
        await scene.ensure()
        scene.issue("req-1")
        await asyncio.sleep(5)
        await scene.ensure()
        scene.start_pod()
        first = scene.data()
        scene.lower.remove("secrets", KEY)
        await asyncio.sleep(5)
        assert scene.data() == first
        scene.lower.server.replace("secrets", KEY, data={})
        await asyncio.sleep(5)
        assert scene.data() == first


async def test_a_cluster_without_the_api_is_named():
    """The pod waits with the reason."""
    async with running(TRUST) as scene:
        scene.upper.served = False
        (problem,) = await scene.ensure()
        assert problem.message.endswith(
            "the upper cluster does not serve clustertrustbundles.certificates.k8s.io"
        )


@pytest.mark.parametrize(
    "key_type",
    [
        pytest.param(name, marks=only_thorough) if name == "RSA4096" else name
        for name in sorted(certificates._KEYS)
    ],
)
def test_each_key_type_has_a_proof(key_type: str):
    """An empty request."""
    key, csr = certificates.key_and_request(key_type)
    assert key.startswith("-----BEGIN PRIVATE KEY-----")
    assert csr
    assert json.dumps(key)
