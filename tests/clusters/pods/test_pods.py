"""Pods of the upper cluster run in lower ones, and their complete status is mirrored back."""

from __future__ import annotations

import json

import pytest

from hack.sandbox import Cluster, Sandbox
from tests import workloads
from tests.clusters.virtual_nodes import REAL, SIMULATED, pod
from tests.waiting import becomes, create, eventually, get, make_namespace, node_ready, ready

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]


def deployment(name: str, *, node: str, replicas: int, image: str = "busybox:1.36") -> dict:
    """A Deployment on a virtual node."""
    template = pod(name, "sleep 3600", node=node)
    template["spec"]["containers"][0]["image"] = image
    return workloads.deployment(template, replicas=replicas)


async def test_the_node_shows_its_lower_cluster(sandbox: Sandbox, upper: Cluster):
    """A virtual node carries its labels, taint, the lower version, and the lower nodes' resources."""

    async def capacity() -> tuple[str, str]:
        found = (await get(upper, "", "node", SIMULATED))["status"]["capacity"]
        return found["cpu"], found["pods"]

    await becomes(capacity, ("128", "10k"))
    node = await get(upper, "", "node", SIMULATED)
    labels = node["metadata"]["labels"]
    assert labels["type"] == "virtual-kubelet"
    assert labels["kubernetes.io/role"] == "agent"
    assert labels["clusterID"] == "lower2"
    assert {"key": "virtual-kubelet.io/provider", "value": "k8s", "effect": "NoSchedule"} in node["spec"][
        "taints"
    ]
    version = (await sandbox.lower[1].api.read("/version"))["gitVersion"]
    assert node["status"]["nodeInfo"]["kubeletVersion"] == version


async def test_a_deployment_scales_rolls_and_is_deleted(sandbox: Sandbox, upper: Cluster, namespace):
    """The lower cluster always has exactly the upper cluster's pods."""
    lower = sandbox.lower[1]
    await create(upper, namespace, deployment("web", node=SIMULATED, replicas=2))
    await upper.kubectl("-n", namespace, "rollout", "status", "deployment/web", "--timeout=150s")
    await upper.kubectl("-n", namespace, "scale", "deployment/web", "--replicas=5")
    await upper.kubectl("-n", namespace, "rollout", "status", "deployment/web", "--timeout=150s")
    assert len((await get(lower, namespace, "pods"))["items"]) == 5
    await upper.kubectl("-n", namespace, "set", "image", "deployment/web", "main=busybox:1.37")
    await upper.kubectl("-n", namespace, "rollout", "status", "deployment/web", "--timeout=150s")

    async def only_new() -> bool:
        pods = (await get(lower, namespace, "pods"))["items"]
        return len(pods) == 5 and all(p["spec"]["containers"][0]["image"] == "busybox:1.37" for p in pods)

    await eventually(only_new, what="five pods of the new image below")
    await upper.kubectl("-n", namespace, "delete", "deployment/web")

    async def gone() -> bool:
        upper_pods = (await get(upper, namespace, "pods"))["items"]
        return not upper_pods and not (await get(lower, namespace, "pods"))["items"]

    await eventually(gone, what="no pods left on either side")


async def test_a_job_completes(upper: Cluster, namespace):
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "sum"},
        "spec": {"template": {"spec": {**pod("sum", "echo done")["spec"], "restartPolicy": "Never"}}},
    }
    await create(upper, namespace, job)
    await upper.kubectl("-n", namespace, "wait", "--for=condition=Complete", "job/sum", "--timeout=150s")
    done = await upper.kubectl("-n", namespace, "logs", "job/sum")
    assert done.stdout == "done\n"


async def test_describe_shows_lower_events(upper: Cluster, namespace):
    """A failing image pull among them."""
    broken = pod("broken", "true", container={"image": "registry.invalid/none:1"})
    await create(upper, namespace, broken)

    async def is_shown() -> bool:
        done = await upper.kubectl("-n", namespace, "describe", "pod", "broken")
        return "Failed to pull image" in done.stdout and "kubelet" in done.stdout

    await eventually(is_shown, what="the image pull error in describe")

    async def shown() -> bool:
        status = (await get(upper, namespace, "pod", "broken"))["status"]
        waiting = status["containerStatuses"][0]["state"]["waiting"]["reason"]
        return waiting in {"ErrImagePull", "ImagePullBackOff"}

    await eventually(shown, what="the kubelet's waiting reason above")


async def test_a_pod_waits_for_its_dependencies_and_sees_changes(sandbox: Sandbox, upper: Cluster, namespace):
    """ConfigMap and Secret, as with a kubelet."""
    lower = sandbox.lower[0]
    needy = pod(
        "needy",
        "sleep 3600",
        container={
            "env": [{"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "word", "key": "word"}}}],
            "volumeMounts": [{"name": "settings", "mountPath": "/settings"}],
        },
        volumes=[{"name": "settings", "configMap": {"name": "settings"}}],
    )
    await create(upper, namespace, needy)

    async def waits() -> bool:
        done = await upper.kubectl("-n", namespace, "describe", "pod", "needy")
        return "not found" in done.stdout

    await eventually(waits, what="an event about the missing object")
    assert not (await get(lower, namespace, "pods"))["items"]
    await upper.kubectl("-n", namespace, "create", "secret", "generic", "word", "--from-literal=word=hush")
    await upper.kubectl("-n", namespace, "create", "configmap", "settings", "--from-literal=mode=one")
    await ready(upper, namespace, "needy")
    done = await upper.kubectl(
        "-n", namespace, "exec", "needy", "--", "sh", "-c", "echo $WORD; cat /settings/mode"
    )
    assert done.stdout == "hush\none"
    patch = json.dumps({"data": {"mode": "two"}})
    await upper.kubectl("-n", namespace, "patch", "configmap", "settings", "-p", patch)

    async def followed() -> bool:
        copy = await get(lower, namespace, "configmap", "settings")
        return bool(copy["data"]["mode"] == "two")

    await eventually(followed, what="the change in the lower copy")


async def test_unmanaged_lower_objects_are_left_alone(sandbox: Sandbox, upper: Cluster, namespace):
    """A lower pod or ConfigMap of the same name stays unchanged; the upper pod gives the reason why it waits."""
    lower = sandbox.lower[1]
    await make_namespace(lower, namespace)
    await lower.kubectl("-n", namespace, "create", "configmap", "settings", "--from-literal=owner=stranger")
    await lower.kubectl("-n", namespace, "run", "taken", "--image=theirs")
    await upper.kubectl("-n", namespace, "create", "configmap", "settings", "--from-literal=owner=us")
    mounting = pod(
        "mounting", "true", node=SIMULATED, volumes=[{"name": "v", "configMap": {"name": "settings"}}]
    )
    await create(upper, namespace, mounting, pod("taken", "true", node=SIMULATED))

    async def explained() -> bool:
        one = (await upper.kubectl("-n", namespace, "describe", "pod", "mounting")).stdout
        two = (await upper.kubectl("-n", namespace, "describe", "pod", "taken")).stdout
        return "not ours" in one and "not ours" in two

    await eventually(explained, what="both conflicts explained in describe")
    assert (await get(lower, namespace, "configmap", "settings"))["data"] == {"owner": "stranger"}
    await upper.kubectl("-n", namespace, "delete", "pod", "taken", "mounting")
    unmanaged = await get(lower, namespace, "pod", "taken")
    assert unmanaged["spec"]["containers"][0]["image"] == "theirs"
    assert "deletionTimestamp" not in unmanaged["metadata"]


async def test_eviction_of_the_lower_pod_fails_the_upper_pod(sandbox: Sandbox, upper: Cluster, namespace):
    """Its controller replaces it under a new uid."""
    lower = sandbox.lower[1]
    await create(upper, namespace, pod("single", "sleep 3600", node=SIMULATED))
    await ready(upper, namespace, "single")
    before = await get(upper, namespace, "pod", "single")
    await lower.kubectl("-n", namespace, "delete", "pod", "single", "--grace-period=1")

    async def failed() -> bool:
        return bool((await get(upper, namespace, "pod", "single"))["status"]["phase"] == "Failed")

    await eventually(failed, what="phase Failed above")
    after = await get(upper, namespace, "pod", "single")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert not (await get(lower, namespace, "pods"))["items"]


async def test_deletion_ends_with_the_lower_pod(upper: Cluster, namespace):
    """A pod that stops at SIGTERM is gone then, before the end of its grace period."""
    quick = pod(
        "quick",
        "trap 'exit 0' TERM; echo trapped; while true; do sleep 0.1; done",
        terminationGracePeriodSeconds=3600,
    )
    await create(upper, namespace, quick)
    await ready(upper, namespace, "quick")

    async def trapped() -> bool:
        return "trapped" in (await upper.kubectl("-n", namespace, "logs", "quick")).stdout

    await eventually(trapped, what="a shell that heeds SIGTERM")
    await upper.kubectl("-n", namespace, "delete", "pod", "quick", "--timeout=150s")


async def test_labels_follow_and_lower_labels_stay(sandbox: Sandbox, upper: Cluster, namespace):
    """Labels set or removed in the upper cluster change in the lower one; labels added there stay."""
    lower = sandbox.lower[1]
    await create(upper, namespace, pod("labelled", "sleep 3600", node=SIMULATED))
    await ready(upper, namespace, "labelled")
    await lower.kubectl("-n", namespace, "label", "pod", "labelled", "theirs=stays")
    await upper.kubectl("-n", namespace, "label", "pod", "labelled", "ours=comes", "app-")

    async def followed() -> bool:
        labels = (await get(lower, namespace, "pod", "labelled"))["metadata"]["labels"]
        return labels.get("ours") == "comes" and labels.get("theirs") == "stays" and "app" not in labels

    await eventually(followed, what="labels below")


async def test_readiness_gates_keep_the_upper_pod_unready(upper: Cluster, namespace):
    """A pod with a readiness gate is Ready once the upper condition is True."""
    await create(
        upper,
        namespace,
        pod("gated", "sleep 3600", node=SIMULATED, readinessGates=[{"conditionType": "example.com/lb"}]),
    )

    async def held() -> bool:
        status = (await get(upper, namespace, "pod", "gated"))["status"]
        conditions = {entry["type"]: entry for entry in status.get("conditions", ())}
        return bool(conditions.get("Ready", {}).get("reason") == "ReadinessGatesNotReady")

    await eventually(held, what="Ready=False for the gate")
    opened = {"status": {"conditions": [{"type": "example.com/lb", "status": "True"}]}}
    await upper.kubectl(
        "-n", namespace, "patch", "pod", "gated", "--subresource=status", "-p", json.dumps(opened)
    )
    await ready(upper, namespace, "gated")


async def test_cluster_selector_is_restored(sandbox: Sandbox, upper: Cluster, namespace):
    """The webhook's annotation becomes the lower pod's own scheduling fields."""
    lower = sandbox.lower[1]
    await lower.kubectl("label", "node", "lower2-node-1", "disk=ssd", "--overwrite")
    selector = json.dumps({"nodeSelector": {"disk": "ssd"}})
    await create(
        upper,
        namespace,
        pod(
            "picky",
            "sleep 3600",
            node=SIMULATED,
            metadata={"annotations": {"clusterSelector": selector}},
        ),
    )
    await ready(upper, namespace, "picky")
    lower_pod = await get(lower, namespace, "pod", "picky")
    assert lower_pod["spec"]["nodeSelector"] == {"disk": "ssd"}
    assert lower_pod["spec"]["nodeName"] == "lower2-node-1"


async def test_the_token_is_the_upper_clusters(upper: Cluster, namespace):
    """The mounted token authenticates to the upper apiserver, with the rights of the ServiceAccount there."""
    await upper.kubectl("-n", namespace, "create", "serviceaccount", "reader")
    await upper.kubectl("-n", namespace, "create", "role", "reader", "--verb=list", "--resource=configmaps")
    await upper.kubectl(
        "-n",
        namespace,
        "create",
        "rolebinding",
        "reader",
        "--role=reader",
        f"--serviceaccount={namespace}:reader",
    )
    await create(upper, namespace, pod("caller", "sleep 3600", serviceAccountName="reader"))
    await ready(upper, namespace, "caller")
    done = await upper.kubectl(
        "-n", namespace, "exec", "caller", "--", "cat", "/var/run/secrets/kubernetes.io/serviceaccount/token"
    )
    token = done.stdout.strip()
    # Without a client certificate, so that only the token authenticates.
    base = ("--server", upper.server, "--certificate-authority", str(upper.ca), "--token", token)
    allowed = await upper.kubectl(
        *base, "--kubeconfig=/dev/null", "-n", namespace, "get", "configmaps", check=False
    )
    refused = await upper.kubectl(
        *base, "--kubeconfig=/dev/null", "-n", namespace, "get", "secrets", check=False
    )
    assert allowed.returncode == 0, allowed.stderr
    assert "Forbidden" in refused.stderr
    assert f"system:serviceaccount:{namespace}:reader" in refused.stderr


async def test_capacity_follows_the_lower_nodes(sandbox: Sandbox, upper: Cluster):
    """A cordoned lower node leaves the virtual node's capacity; uncordoned, it is back."""
    lower = sandbox.lower[1]

    async def cpu(wanted: str) -> bool:
        return bool((await get(upper, "", "node", SIMULATED))["status"]["capacity"]["cpu"] == wanted)

    await lower.kubectl("cordon", "lower2-node-0")
    try:
        await eventually(lambda: cpu("64"), what="64 cpu while cordoned")
    finally:
        await lower.kubectl("uncordon", "lower2-node-0")
    await eventually(lambda: cpu("128"), what="128 cpu again")


async def test_a_deleted_node_is_registered_again(upper: Cluster):
    """And becomes Ready."""
    before = (await get(upper, "", "node", SIMULATED))["metadata"]["uid"]
    await upper.kubectl("delete", "node", SIMULATED)

    async def back() -> bool:
        return bool((await get(upper, "", "node", SIMULATED))["metadata"]["uid"] != before)

    await eventually(back, what="the node registered again")
    await node_ready(upper, SIMULATED)


async def test_kube_system_is_not_mirrored(upper: Cluster, sandbox: Sandbox):
    """A kube-system pod on a virtual node stays Pending with an explanation, and can be deleted."""
    await create(upper, "kube-system", pod("system", "true", node=REAL))

    async def explained() -> bool:
        return "NotMirrored" in (await upper.kubectl("-n", "kube-system", "describe", "pod", "system")).stdout

    await eventually(explained, what="the explanation")
    await upper.kubectl("-n", "kube-system", "delete", "pod", "system", "--timeout=150s")
    assert "system" not in (await sandbox.lower[0].kubectl("-n", "kube-system", "get", "pods")).stdout


async def test_a_pod_that_does_not_fit_is_rejected_with_the_reason_of_a_kubelet(
    sandbox: Sandbox, upper: Cluster, namespace: str
):
    """With ``onUnschedulable: Reject``. Its owner replaces it, and the lower cluster keeps no pod that waits."""
    lower, node = sandbox.lower[1], "vn-rejecting"
    config = {
        "apiVersion": "virtual-node.io/v1alpha1",
        "kind": "VirtualNodeConfiguration",
        "clusters": [{"name": node, "kubeconfig": str(lower.kubeconfig), "onUnschedulable": "Reject"}],
    }
    file = sandbox.directory / f"{node}.yaml"
    file.write_text(json.dumps(config), encoding="utf-8")
    process = await sandbox.start_virtual_node(f"--config={file}", name=node, env={"KUBELET_PORT": "0"})
    try:
        await node_ready(upper, node)
        large = pod("large", "sleep 3600", node=node)
        large["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "100"}}
        await create(upper, namespace, large, pod("small", "sleep 3600", node=node))

        async def outcome() -> tuple[str, str]:
            status = (await get(upper, namespace, "pod", "large"))["status"]
            return status["phase"], status.get("reason", "")

        await becomes(outcome, ("Failed", "OutOfcpu"))
        await ready(upper, namespace, "small")
        found = (await get(lower, namespace, "pods"))["items"]
        assert [one["metadata"]["name"] for one in found] == ["small"]
        events = (await get(upper, namespace, "events"))["items"]
        assert any(
            event["reason"] == "OutOfcpu" and "Insufficient cpu" in event["message"] for event in events
        )
    finally:
        await upper.kubectl("-n", namespace, "delete", "pods", "--all", "--timeout=150s", check=False)
        await process.stop()
        await upper.kubectl("delete", "node", node, "--ignore-not-found")
