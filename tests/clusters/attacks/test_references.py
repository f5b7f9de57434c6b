"""Attacks on real API servers through a pod's references: a tenant has ``edit`` in a namespace, and no other rights.

H2, H4, M2 and M3 are findings. The lower namespaces are adopted, so that unmanaged objects can be in them.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from hack.sandbox import Cluster
from hack.sandbox.cluster import LOOPBACK
from hack.sandbox.process import Process
from tests.clusters.attacks.test_ownership import apply, events, tenant
from tests.clusters.pool import Lend
from tests.clusters.virtual_nodes import pod
from tests.waiting import becomes, eventually, get, make_namespace, node_ready, ready

pytestmark = pytest.mark.e2e
NODE = "vn-refs"
VALUE = base64.b64encode(b"native").decode()


class Attacked(NamedTuple):
    """An upper and a lower cluster, and the virtual-node process between them."""

    upper: Cluster
    lower: Cluster
    process: Process


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def clusters(simulated: Lend) -> AsyncIterator[Attacked]:
    """One lower cluster; namespaces with the prefix ``in-`` are mirrored to it."""
    async with simulated(lower=1) as sandbox:
        lower = sandbox.lower[0]
        cluster = {
            "name": "refs",
            "kubeconfig": str(lower.kubeconfig),
            "nodeName": NODE,
            "namespaces": {"adopt": True, "allowed": ["in-*"]},
        }
        configuration = {
            "apiVersion": "virtual-node.io/v1alpha1",
            "kind": "VirtualNodeConfiguration",
            "kubeconfig": str(sandbox.upper.kubeconfig),
            "kubelet": {"port": 0, "nodeIp": LOOPBACK},
            "clusters": [cluster],
        }
        file = sandbox.directory / "refs.yaml"
        file.write_text(json.dumps(configuration), encoding="utf-8")
        process = await sandbox.start_virtual_node("--config", str(file), name=NODE)
        await node_ready(sandbox.upper, NODE)
        yield Attacked(sandbox.upper, lower, process)


def secret(name: str, **labels: str) -> dict[str, Any]:
    """Return a Secret."""
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"a": VALUE}}


def claim(name: str, **annotations: str) -> dict[str, Any]:
    """Return a claim that no volume in the upper cluster fits."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "none",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }


def mounting(name: str, *, optional: bool) -> dict[str, Any]:
    """Return a pod spec's volumes: one Secret."""
    return {"volumes": [{"name": "v", "secret": {"secretName": name, "optional": optional}}]}


def descriptors(process: Process) -> int:
    """Return how many files and connections a process has open."""
    return len(list(Path(f"/proc/{process.pid}/fd").iterdir()))


async def test_tenant_mounts_no_unmanaged_secret_and_no_unmanaged_claim(clusters: Attacked):
    """H2: an optional volume, a pull secret and a claim with names of unmanaged lower objects."""
    upper, lower, _ = clusters
    await make_namespace(lower, "in-native")
    for one in (secret("native"), claim("data")):
        await lower.kubectl("-n", "in-native", "create", "-f", "-", input=json.dumps(one))
    await tenant(upper, "in-native", "mallory")
    uses = {"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]}
    attacks = {
        "volume": (mounting("native", optional=True), "DependencyConflict"),
        "pull": ({"imagePullSecrets": [{"name": "native"}]}, "DependencyConflict"),
        "claim": (uses, "ClaimConflict"),
    }
    await apply(upper, "mallory", "in-native", claim("data"))
    for name, (spec, _) in attacks.items():
        await apply(upper, "mallory", "in-native", pod(name, "sleep 3600", node=NODE, nodeName=NODE, **spec))
    for name, (_, reason) in attacks.items():

        async def is_reported(name: str = name, reason: str = reason) -> bool:
            return f"{reason}: Lower cluster" in await events(upper, "in-native", name)

        await eventually(is_reported, what=f"{name} waits with {reason}")
    assert (await get(lower, "in-native", "pods"))["items"] == []
    assert (await get(lower, "in-native", "secret", "native"))["data"] == {"a": VALUE}


async def test_the_name_of_a_missing_secret_is_reserved_in_the_lower_cluster(clusters: Attacked):
    """H2: an unmanaged Secret created later cannot have the name; the tenant's own is mounted once it exists."""
    upper, lower, _ = clusters
    await tenant(upper, "in-held", "alice")
    await apply(
        upper, "alice", "in-held", pod("web", "sleep 3600", node=NODE, **mounting("later", optional=True))
    )
    await ready(upper, "in-held", "web")
    refused = await lower.kubectl(
        "-n", "in-held", "create", "-f", "-", input=json.dumps(secret("later")), check=False
    )
    assert "AlreadyExists" in refused.stderr
    assert "data" not in await get(lower, "in-held", "secret", "later")
    await apply(upper, "alice", "in-held", secret("later"))

    async def data() -> Any:
        return (await get(lower, "in-held", "secret", "later")).get("data")

    await becomes(data, {"a": VALUE}, what="the placeholder has the tenant's data")


async def test_references_of_a_pod_share_connections(clusters: Attacked):
    """H4: a pod with 300 references is refused before any connection; one with 90 uses fewer connections."""
    upper, lower, process = clusters
    await tenant(upper, "in-many", "bob")
    before = descriptors(process)

    def many(name: str, count: int) -> dict[str, Any]:
        sources = [
            {"configMapRef": {"name": f"{name}-{number}", "optional": True}} for number in range(count)
        ]
        return pod(name, "sleep 3600", node=NODE, container={"envFrom": sources})

    await apply(upper, "bob", "in-many", many("greedy", 300))

    async def is_reported() -> bool:
        messages = await events(upper, "in-many", "greedy")
        return "TooManyReferences" in messages and "limits.referencesPerPod" in messages

    await eventually(is_reported, what="the event names the limit and the setting")
    assert descriptors(process) - before < 30
    await apply(upper, "bob", "in-many", many("large", 90))
    await ready(upper, "in-many", "large")
    assert descriptors(process) - before < 80
    assert [one["metadata"]["name"] for one in (await get(lower, "in-many", "pods"))["items"]] == ["large"]


async def test_tenants_labels_do_not_pass_as_ours(clusters: Attacked):
    """M2: a Secret labelled as the victim's tokens; the victim's are created nevertheless."""
    upper, lower, _ = clusters
    await tenant(upper, "in-victim", "carol")
    await tenant(upper, "in-forger", "mallory2")
    await apply(upper, "carol", "in-victim", pod("web", "sleep 3600", node=NODE))
    await ready(upper, "in-victim", "web")
    uid = (await get(upper, "in-victim", "pod", "web"))["metadata"]["uid"]
    forged = secret(
        "forged", **{"virtual-node.io/token-of": uid, "virtual-node.io/node": "vn-x", "app": "kept"}
    )
    forged["metadata"]["annotations"] = {"virtual-node.io/token-expires": "2099-01-01T00:00:00Z"}
    await apply(
        upper, "mallory2", "in-forger", forged,
        pod("web", "sleep 3600", node=NODE, **mounting("forged", optional=False)),
    )  # fmt: skip
    await ready(upper, "in-forger", "web")
    copy = (await get(lower, "in-forger", "secret", "forged"))["metadata"]
    assert "virtual-node.io/token-of" not in copy["labels"]
    assert "virtual-node.io/token-expires" not in copy["annotations"]
    assert (copy["labels"]["virtual-node.io/node"], copy["labels"]["app"]) == (NODE, "kept")
    tokens = f"web-token-{uid[:8]}"
    first = (await get(lower, "in-victim", "secret", tokens))["metadata"]["uid"]
    await lower.kubectl("-n", "in-victim", "delete", "secret", tokens)

    async def again() -> bool:
        return bool((await get(lower, "in-victim", "secret", tokens))["metadata"]["uid"] != first)

    await eventually(again, what="the victim's token Secret is made again")


async def test_an_annotation_on_a_claim_creates_nothing_in_a_forbidden_namespace(clusters: Attacked):
    """M3: selected-node on a claim, and a pod that waits for it, in a namespace that is not allowed."""
    upper, lower, _ = clusters
    chosen = {"volume.kubernetes.io/selected-node": NODE}
    uses = {"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]}
    for namespace, user in (("out-side", "eve"), ("in-side", "dave")):
        await tenant(upper, namespace, user)
        await apply(upper, user, namespace, claim("data", **chosen))
        await apply(upper, user, namespace, pod("web", "sleep 3600", node=NODE, **uses))

    async def made() -> bool:
        return bool(await get(lower, "in-side", "pvc", "data"))

    await eventually(made, what="the claim of the allowed namespace is made")
    await asyncio.sleep(6)  # a claim is reconciled again after five seconds
    done = await lower.kubectl("get", "namespace", "out-side", check=False)
    assert "NotFound" in done.stderr
    upper_claim = await get(upper, "out-side", "pvc", "data")
    assert "virtual-node.io/lower-claim" not in upper_claim["metadata"]["finalizers"]


DOCS = Path(__file__).parents[3] / "docs"


async def enforce(cluster: Cluster, page: str) -> None:
    """Apply the admission policy that a page of the documentation gives as an example."""
    text = (DOCS / page).read_text(encoding="utf-8")
    (example,) = (
        block for block in text.split("```yaml\n")[1:] if "kind: ValidatingAdmissionPolicy\n" in block
    )
    await cluster.kubectl("apply", "-f", "-", input=example.partition("```")[0])


async def test_documented_policies_forbid_annotations_and_endpoints(clusters: Attacked):
    """The documented examples work unchanged, and allow everything else."""
    upper, _, _ = clusters
    await tenant(upper, "in-policy", "frank")
    slices = await upper.kubectl(
        "--as=frank",
        "-n",
        "in-policy",
        "auth",
        "can-i",
        "create",
        "endpointslices.discovery.k8s.io",
        check=False,
    )
    assert slices.stdout.strip() == "no"
    # A role that grants the right nevertheless, as in clusters that were made before Kubernetes 1.22.
    grant = ["--verb=create", "--resource=endpointslices.discovery.k8s.io"]
    await upper.kubectl("-n", "in-policy", "create", "role", "slices", *grant)
    await upper.kubectl("-n", "in-policy", "create", "rolebinding", "slices", "--role=slices", "--user=frank")
    await enforce(upper, "reference/annotations-and-labels.md")
    await enforce(upper, "use/services.md")
    piece = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"generateName": "web-", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.0.0.1"]}],
    }
    forged = pod("", "sleep 1", metadata={"annotations": {"virtual-node.io/scheduler-name": "mine"}})
    forged["metadata"] |= {"generateName": "forged-"}
    for body, message in (
        (forged, "annotations of virtual-node are not for users"),
        (piece, "endpoints are written by controllers"),
    ):

        async def refused(body: dict[str, Any] = body, message: str = message) -> bool:
            done = await upper.kubectl(
                "--as=frank", "-n", "in-policy", "create", "-f", "-", input=json.dumps(body), check=False
            )
            return message in done.stderr

        await eventually(refused, what=f"refused: {message}")
    await apply(upper, "frank", "in-policy", pod("web", "sleep 3600", node=NODE))
    await ready(upper, "in-policy", "web")
    marked = (await get(upper, "in-policy", "pod", "web"))["metadata"]["annotations"]
    assert "virtual-node.io/lower-uid" in marked
    await upper.kubectl("--as=frank", "-n", "in-policy", "annotate", "pod", "web", "note=kept")
    await upper.kubectl(
        "delete", "validatingadmissionpolicy", "virtual-node-annotations", "endpoints-by-controllers"
    )
