"""Overrides of one lower cluster on real API servers, with the stock schedulers and the multi-scheduler."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import pytest

from clusterset.model import names
from clusterset.model.overrides import Override, OverrideSet, applied
from controller_runtime.apimachinery.decoding import convert
from hack.sandbox import Sandbox
from hack.sandbox.commands.demo import configuration
from hack.sandbox.components.scheduling import start_multi_scheduler
from hack.sandbox.nodes.kwok import kwok_node
from tests.clusters.pool import Lend
from tests.waiting import becomes, create, eventually, get, make_namespace, node_ready

pytestmark = [pytest.mark.e2e]
_TAINT = {"key": "dedicated", "value": "training", "effect": "NoSchedule"}
_MIRRORED = "mirror.example/hub/library/busybox"
_OVERRIDES: list[dict[str, Any]] = [
    {
        "name": "mirror",
        "namespaces": ["ml*"],
        "images": [{"from": "docker.io/", "to": "mirror.example/hub/"}],
    },
    {
        "name": "training",
        "namespaces": ["ml"],
        "tolerations": [_TAINT],
        "patch": {
            "metadata": {"labels": {"cost-center": "42"}},
            "spec": {
                "nodeSelector": {"pool": "training"},
                "containers": [
                    {
                        "name": "*",
                        "env": [
                            {"name": "MODE", "value": "fast"},
                            {
                                "name": "TOKEN",
                                "valueFrom": {"secretKeyRef": {"name": "proxy", "key": "token"}},
                            },
                        ],
                        "resources": {"requests": {"cpu": "3.0"}, "limits": {"memory": "1024Mi"}},
                    }
                ],
            },
        },
    },
]
_CHANGED = [
    f"mirror: spec.containers[main].image: busybox:1.37 → {_MIRRORED}:1.37",
    "training: metadata.labels[cost-center]",
    "training: spec.containers[main].resources.limits",
    "training: spec.containers[main].resources.requests.cpu",
    "training: spec.containers[main].env[MODE].value",
    "training: spec.containers[main].env[TOKEN]",
]


_PATCH: dict[str, Any] = {
    "metadata": {"labels": {"app": None, "new": "yes"}},
    "spec": {
        "nodeSelector": {"clusterID": None, "pool": "training"},
        "tolerations": [_TAINT],
        "imagePullSecrets": [{"name": "mirror"}],
        "securityContext": {"fsGroup": 2},
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["192.0.2.1"]},
        "priorityClassName": "high",
        "containers": [
            {
                "name": "main",
                "image": "busybox:1.38",
                "command": ["sleep"],
                "args": ["60"],
                "env": [
                    {"name": "NEW", "value": "x"},
                    {"name": "MODE", "$patch": "delete"},
                    {"name": "OWN", "value": "y"},
                ],
                "resources": {"requests": {"cpu": None, "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
                "securityContext": {"readOnlyRootFilesystem": True},
            }
        ],
    },
}


def _pod(name: str, cluster: str, **fields: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {
            "nodeSelector": {"clusterID": cluster},
            "tolerations": [{"key": "virtual-kubelet.io/provider", "operator": "Exists"}],
            "containers": [
                {
                    "name": "main",
                    "image": "busybox:1.36",
                    "env": [{"name": "MODE", "value": "slow"}, {"name": "OWN", "value": "$(MODE)"}],
                    "resources": {"requests": {"cpu": "1"}},
                }
            ],
            **fields,
        },
    }


async def test_pods_of_one_namespace_are_changed_in_one_lower_cluster(simulated: Lend):
    """Registry, environment, resources, toleration and node selector; an image update passes, diagnose shows it."""
    async with simulated() as sandbox:
        upper, (lower1, lower2) = sandbox.upper, sandbox.lower
        labels = {"pool": "training"}
        await lower1.apply(kwok_node("training", cpu="4", memory="8Gi", labels=labels, taints=[_TAINT]))
        await _only_its_taint(lower1)
        config = configuration(sandbox)
        config["clusters"][0]["overrides"] = _OVERRIDES
        config["clusters"][0]["policy"] = {"images": {"allow": ["docker.io/*"]}, "tolerationKeys": ["other"]}
        file = sandbox.directory / "virtual-node.yaml"
        file.write_text(json.dumps(config), encoding="utf-8")
        await sandbox.start_virtual_node("--config", str(file))
        for cluster in sandbox.lower:
            await node_ready(upper, f"vn-{cluster.name}")
        await start_multi_scheduler(
            sandbox, clusters={"lower1": {key: config["clusters"][0][key] for key in ("overrides", "policy")}}
        )
        for namespace in ("ml", "shop"):
            await make_namespace(upper, namespace)
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "proxy"},
            "stringData": {"token": "x"},
        }
        await create(upper, "ml", secret, _pod("one", "lower1"), _pod("elsewhere", "lower2"))
        await create(upper, "shop", _pod("plain", "lower1"))
        for namespace, name in (("ml", "one"), ("ml", "elsewhere"), ("shop", "plain")):
            await becomes(lambda: _phase(upper, namespace, name), "Running", what=f"{namespace}/{name}")  # noqa: B023

        pod = await get(lower1, "ml", "pod", "one")
        (container,) = pod["spec"]["containers"]
        assert container["image"] == f"{_MIRRORED}:1.36"
        assert container["resources"] == {
            "requests": {"cpu": "3", "memory": "1Gi"},
            "limits": {"memory": "1Gi"},
        }
        env = {one["name"]: one for one in container["env"]}
        assert env["MODE"] == {"name": "MODE", "value": "fast"}
        assert env["OWN"] == {"name": "OWN", "value": "$(MODE)"}
        assert env["TOKEN"]["valueFrom"] == {"secretKeyRef": {"name": "proxy", "key": "token"}}
        assert (await get(lower1, "ml", "secret", "proxy"))["data"] == {"token": "eA=="}
        assert pod["spec"]["nodeName"] == "training"
        assert _TAINT["key"] in {one["key"] for one in pod["spec"]["tolerations"]}
        assert pod["metadata"]["labels"]["cost-center"] == "42"
        for cluster, namespace, name in ((lower2, "ml", "elsewhere"), (lower1, "shop", "plain")):
            other = await get(cluster, namespace, "pod", name)
            assert other["spec"]["containers"][0]["image"] == "busybox:1.36"
            assert names.ANNOTATION_OVERRIDES not in other["metadata"]["annotations"]

        # The pod needs 3 of the node's 4 cores, so the multi-scheduler binds no second one.
        await create(upper, "ml", _pod("two", "lower1"))

        async def is_rejected() -> bool:
            found = await get(upper, "ml", "pod", "two")
            conditions = found["status"].get("conditions") or []
            message = next(
                (one.get("message", "") for one in conditions if one["type"] == "PodScheduled"), ""
            )
            return "lower cluster lower1" in message and "nodeName" not in found["spec"]

        await eventually(is_rejected, what="the multi-scheduler judges the overridden pod")

        await upper.kubectl("-n", "ml", "set", "image", "pod/one", "main=busybox:1.37")

        async def image() -> str:
            changed = await get(lower1, "ml", "pod", "one")
            return str(changed["spec"]["containers"][0]["image"])

        await becomes(image, f"{_MIRRORED}:1.37", what="the update passes through the override")
        changed = await get(lower1, "ml", "pod", "one")
        assert changed["metadata"]["uid"] == pod["metadata"]["uid"]
        assert changed["metadata"]["generation"] == pod["metadata"]["generation"] + 1
        answer = await _diagnose(sandbox, "ml/one")
        assert set(_CHANGED) <= set(answer["overrides"]), answer["overrides"]
        await _merges_as_kubectl(sandbox)


async def _only_its_taint(cluster: Any) -> None:
    """Wait until the node for training is Ready; it keeps its own taint."""

    async def ready() -> bool:
        node = await get(cluster, "", "node", "training")
        return [one["key"] for one in node["spec"]["taints"]] == [_TAINT["key"]]

    await eventually(ready, what="node training has only its own taint")


async def _merges_as_kubectl(sandbox: Sandbox) -> None:
    """Check that an override without ``*`` is the strategic merge patch that kubectl applies."""
    pod = _pod("local", "lower1", imagePullSecrets=[{"name": "own"}], securityContext={"runAsUser": 1})
    pod["metadata"]["namespace"] = "ml"
    file = sandbox.directory / "local.json"
    file.write_text(json.dumps(pod), encoding="utf-8")
    words = ("patch", "--local", "--type=strategic", "--output=json", f"--filename={file}")
    done = await sandbox.upper.kubectl(*words, f"--patch={json.dumps(_PATCH)}")
    expected = json.loads(done.stdout)
    override = convert({"name": "o", "patch": _PATCH}, Override)
    found = applied(pod, OverrideSet([override]).of(pod))
    assert found["metadata"]["labels"] == expected["metadata"]["labels"]
    assert found["spec"] == {
        field: value for field, value in expected["spec"].items() if field in found["spec"]
    }


async def _phase(cluster: Any, namespace: str, name: str) -> str:
    return str((await get(cluster, namespace, "pod", name))["status"].get("phase"))


async def _diagnose(sandbox: Sandbox, pod: str) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "virtual_node", "diagnose", "pod", pod, "-o", "json",
        f"--kubeconfig={sandbox.upper.kubeconfig}", f"--client-kubeconfig={sandbox.lower[0].kubeconfig}",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, error = await process.communicate()
    assert out, error.decode()
    answer: dict[str, Any] = json.loads(out)
    return answer
