"""An upgrade: the process starts on what an earlier release left in both clusters, recorded in the folder ``earlier``."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from clusterset.model.pod.conditions import is_true
from hack.sandbox import Cluster, Sandbox
from hack.sandbox.cluster import LOOPBACK
from hack.sandbox.ports import free_ports
from tests.waiting import becomes, eventually, get, make_namespace, ready
from tests.workloads import manifest, pod
from virtual_node.cluster.lower_cluster import COMPONENT

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]

_RECORDED = Path(__file__).with_name("earlier")
_NAMESPACE, _NODE, _CLUSTER_ID = "earlier", "vn-earlier", "earlier-release"
_PROBES = ("first", "second")
_KINDS = {
    "Pod": ("/api/v1", "pods"),
    "ConfigMap": ("/api/v1", "configmaps"),
    "Secret": ("/api/v1", "secrets"),
    "Service": ("/api/v1", "services"),
    "EndpointSlice": ("/apis/discovery.k8s.io/v1", "endpointslices"),
    "PersistentVolumeClaim": ("/api/v1", "persistentvolumeclaims"),
}
_SINGLE = {
    "Node": f"/api/v1/nodes/{_NODE}",
    "PersistentVolume": "/api/v1/persistentvolumes/earlier-earlier-data",
    "Lease": f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{_NODE}",
}
_OWN = r"metadata\.annotations\.virtual-node\.io/"
_WRITTEN = {
    ("lower1", "Pod"): rf"{_OWN}(applied|made-for)|metadata\.ownerReferences",
    ("lower1", "Namespace"): rf"{_OWN}(applied|made-for)",
    ("lower1", "ConfigMap"): rf"{_OWN}applied",
    ("lower1", "Secret"): rf"{_OWN}applied",
    ("lower1", "Service"): rf"{_OWN}applied",
    ("lower1", "EndpointSlice"): rf"{_OWN}(applied|source)",
    ("lower1", "PersistentVolumeClaim"): rf"{_OWN}applied",
    ("upper", "Pod"): rf"{_OWN}lower-node",
    ("upper", "Lease"): rf"{_OWN}(process|replica)|spec\.(acquireTime|leaseTransitions|renewTime)",
    ("upper", "Node"): rf"{_OWN}applied|metadata\.labels\.node\.kubernetes\.io/exclude-|spec\.providerID"
    r"|status\.",
}
"""What the first start may change (docs/operate/upgrade.md), besides the status of pods, which their kubelet writes."""
_TIMES = re.compile(r"lastHeartbeatTime|renewTime|acquireTime|leaseTransitions|virtual-node\.io/process$")
"""Fields that each start of a process, or time, changes."""
Objects = dict[tuple[str, str, str], dict[str, Any]]
"""Cluster, kind and name → object."""


async def test_a_process_takes_over_what_an_earlier_release_left(sandbox: Sandbox):
    """No container restarts, nothing is deleted, and a second start writes nothing."""
    upper, lower = sandbox.upper, sandbox.lower[0]
    (port,) = free_ports(1)
    async with _left(sandbox):
        before = await _objects(upper, lower)
        async with _process(sandbox, "first", port):
            after = await _objects(upper, lower)
        assert _runs(after) == _runs(before)
        assert set(before) <= set(after)
        new = {key[1:] for key in set(after) - set(before)}
        assert {kind for kind, _ in new} == {"Service", "EndpointSlice"}
        assert all(name.startswith("kubernetes-") for _, name in new)
        wrong = [
            (*key, path)
            for key, path in _differences(before, after)
            if not (key[1] == "Pod" and path.startswith("status"))
            and not re.match(_WRITTEN.get(key[:2], "never"), path)
        ]
        assert not wrong
        for name in ("web", "done"):
            assert after["lower1", "Pod", name]["metadata"]["annotations"]["virtual-node.io/made-for"]
        async with _process(sandbox, "second", port):
            last = await _objects(upper, lower)
            assert not [(*key, path) for key, path in _differences(after, last) if not _TIMES.search(path)]
            assert set(last) == set(after)
            warned = (await get(upper, _NAMESPACE, "events"))["items"]
            # Schedulers and kubelets, upper and lower, also warn: of a claim or a volume that was not there yet.
            warnings = [
                (one["involvedObject"]["name"], one["reason"], one["message"])
                for one in warned
                if one["type"] == "Warning" and (one.get("source") or {}).get("component") == COMPONENT
            ]
            assert {name for name, *_ in warnings} <= {"waiting"}, warnings
            shown = await upper.kubectl("-n", _NAMESPACE, "exec", "web", "--", "cat", "/cm/greeting")
            assert shown.stdout == "hello"
            await upper.kubectl("delete", "namespace", _NAMESPACE)

            async def left() -> str:
                return (await lower.kubectl("get", "namespace", _NAMESPACE, "--ignore-not-found")).stdout

            await becomes(left, "", what="the lower namespace is removed with the upper one")


@asynccontextmanager
async def _process(sandbox: Sandbox, name: str, port: int) -> AsyncIterator[None]:
    """Run a process with the earlier release's configuration, and yield when it has reconciled what it began with.

    A pod that is created afterwards runs when all earlier pods were reconciled.
    """
    upper = sandbox.upper
    config = {
        "apiVersion": "virtual-node.io/v1alpha1",
        "kind": "VirtualNodeConfiguration",
        "clusterId": _CLUSTER_ID,
        "kubeconfig": str(upper.kubeconfig),
        "kubelet": {"port": port, "nodeIp": LOOPBACK},
        "clusters": [
            {"name": "earlier", "kubeconfig": str(sandbox.lower[0].kubeconfig), "nodeName": _NODE},
        ],
    }
    file = sandbox.directory / "earlier.yaml"
    file.write_text(json.dumps(config), encoding="utf-8")
    process = await sandbox.start_virtual_node("--config", str(file), name=f"virtual-node-{name}")
    try:
        probe = pod(name, {"command": ["sleep", "3600"]}, nodeName=_NODE)
        await upper.apply({**probe, "metadata": {**probe["metadata"], "namespace": _NAMESPACE}})
        await ready(upper, _NAMESPACE, name)
        await upper.kubectl("-n", _NAMESPACE, "delete", "pod", name)
        yield
    finally:
        await process.stop()


@asynccontextmanager
async def _left(sandbox: Sandbox) -> AsyncIterator[None]:
    """Create the recorded objects of both clusters, with pods that run on the real node."""
    upper, lower, node = sandbox.upper, sandbox.lower[0], sandbox.real_node
    assert node is not None
    values = {"node": node.name, "now": _time(), "data": str(sandbox.directory / "earlier-data")}
    storage = manifest(
        "StorageClass",
        "earlier",
        api="storage.k8s.io/v1",
        provisioner="kubernetes.io/no-provisioner",
        volumeBindingMode="WaitForFirstConsumer",
    )
    try:
        await make_namespace(upper, _NAMESPACE)
        (virtual,) = _read("node", values)
        for cluster in (upper, lower):
            await cluster.apply(storage)
        await upper.apply(virtual)
        # ``apply`` leaves out the status of a Node.
        patch = json.dumps({"status": virtual["status"]})
        await upper.kubectl("patch", "node", _NODE, "--subresource=status", "--type=merge", "-p", patch)
        uid = (await get(upper, "", "node", _NODE))["metadata"]["uid"]
        lease, volume = _read("upper", {**values, f"uid Node {_NODE}": uid})
        await upper.apply(lease, volume, *_read("users", {}))
        source = {
            "hostPath": {"path": values["data"], "type": "DirectoryOrCreate"},
            "claimRef": {"namespace": _NAMESPACE, "name": "data"},
        }
        kept = {
            field: value for field, value in volume["spec"].items() if field not in {"csi", "nodeAffinity"}
        }
        lower_volume = manifest("PersistentVolume", "earlier-data", spec={**kept, **source})
        await lower.apply(lower_volume, *_read("lower", {**values, **await _of_upper(upper)}))
        await _reported(upper, lower)
        yield
    finally:
        for cluster in (upper, lower):
            await cluster.kubectl("delete", "namespace", _NAMESPACE, "--ignore-not-found", "--wait=false")
            await cluster.kubectl("delete", "storageclass", "earlier", "--ignore-not-found")
        where = ("-n", _NAMESPACE, "pvc", "data", "--type=merge")
        await upper.kubectl("patch", *where, "-p", '{"metadata":{"finalizers":null}}', check=False)
        await upper.kubectl("delete", "node", _NODE, "--ignore-not-found")
        await upper.kubectl("delete", "pv", "earlier-earlier-data", "--ignore-not-found", "--wait=false")
        await lower.kubectl("delete", "pv", "earlier-data", "--ignore-not-found", "--wait=false")


async def _of_upper(upper: Cluster) -> dict[str, str]:
    """Return the values of the recorded lower objects that follow from objects of the upper cluster."""
    found = await _objects(upper)

    async def is_complete() -> bool:
        found.update(await _objects(upper))
        kinds = {kind for _, kind, _ in found}
        return "EndpointSlice" in kinds and ("upper", "ConfigMap", "kube-root-ca.crt") in found

    await eventually(is_complete, what="the controllers have created what the lower objects copy")
    values = {f"uid {kind} {name}": one["metadata"]["uid"] for (_, kind, name), one in found.items()}
    root = found["upper", "ConfigMap", "kube-root-ca.crt"]
    values["ca"] = root["data"]["ca.crt"]
    values["description"] = root["metadata"]["annotations"]["kubernetes.io/description"]
    piece = next(one["metadata"]["uid"] for (_, kind, _), one in found.items() if kind == "EndpointSlice")
    values["uid EndpointSlice web"] = piece
    values["slice web"] = f"web-{hashlib.sha256(f'{_CLUSTER_ID}/{piece}'.encode()).hexdigest()[:10]}"
    for name in ("web", "done"):
        uid = values[f"uid Pod {name}"]
        values[f"uid8 Pod {name}"] = uid[:8]
        bound = (f"--bound-object-name={name}", f"--bound-object-uid={uid}", "--bound-object-kind=Pod")
        token = (await upper.kubectl("-n", _NAMESPACE, "create", "token", "default", *bound)).stdout.strip()
        values[f"token {name}"] = base64.b64encode(token.encode()).decode()
        values[f"expires {name}"] = _time(hours=1)[:19] + "Z"
    return values


async def _reported(upper: Cluster, lower: Cluster) -> None:
    """Write to the upper pods what the earlier release wrote when their lower pods ran or had finished."""
    for name, wanted in (("web", "Running"), ("done", "Succeeded")):

        async def phase(name: str = name) -> str:
            status = (await get(lower, _NAMESPACE, "pod", name))["status"]
            wait = status["phase"] == "Running" and not is_true(status, "Ready")
            return "" if wait else str(status["phase"])

        await becomes(phase, wanted, what=f"lower pod {name}")
        below = await get(lower, _NAMESPACE, "pod", name)
        above = await get(upper, _NAMESPACE, "pod", name)
        uids = f"{below['metadata']['uid']}/{above['metadata']['uid']}"
        await upper.kubectl("-n", _NAMESPACE, "annotate", "pod", name, f"virtual-node.io/lower-uid={uids}")
        patch = json.dumps({"status": below["status"]})
        where = ("-n", _NAMESPACE, "pod", name, "--subresource=status", "--type=merge")
        await upper.kubectl("patch", *where, "-p", patch)
    web = await get(lower, _NAMESPACE, "pod", "web")
    endpoint = {
        "addresses": [web["status"]["podIP"]],
        "conditions": {"ready": True, "serving": True, "terminating": False},
        "nodeName": web["spec"]["nodeName"],
        "targetRef": {"kind": "Pod", "name": "web", "namespace": _NAMESPACE, "uid": web["metadata"]["uid"]},
    }
    (piece,) = (await get(lower, _NAMESPACE, "endpointslices"))["items"]
    patch = json.dumps({"endpoints": [endpoint]})
    name = piece["metadata"]["name"]
    await lower.kubectl("-n", _NAMESPACE, "patch", "endpointslice", name, "--type=merge", "-p", patch)


async def _objects(*clusters: Cluster) -> Objects:
    """Return the objects of the namespace in these clusters, the namespace, and what belongs to the virtual node."""
    found: Objects = {}
    for cluster in clusters:
        for kind, (group, plural) in _KINDS.items():
            items = (await cluster.api.read(f"{group}/namespaces/{_NAMESPACE}/{plural}"))["items"]
            found |= {(cluster.name, kind, one["metadata"]["name"]): one for one in items}
        for kind, path in _SINGLE.items() if cluster.name == "upper" else ():
            one = await cluster.api.read(path)
            found[cluster.name, kind, one["metadata"]["name"]] = one
        one = await cluster.api.read(f"/api/v1/namespaces/{_NAMESPACE}")
        found[cluster.name, "Namespace", _NAMESPACE] = one
    return {key: one for key, one in found.items() if key[2] not in _PROBES}


def _runs(objects: Objects) -> dict[tuple[str, str], Any]:
    """Return each pod's uid, and the container ids and restarts of its status."""
    return {
        (where, name): (
            one["metadata"]["uid"],
            [
                (each["containerID"], each["restartCount"])
                for each in one["status"].get("containerStatuses", [])
                if "containerID" in each
            ],
        )
        for (where, kind, name), one in objects.items()
        if kind == "Pod"
    }


def _differences(before: Objects, after: Objects) -> Iterator[tuple[tuple[str, str, str], str]]:
    """Yield the fields that differ, without upper EndpointSlices, which only their controller writes."""
    for key in before.keys() & after.keys():
        if key[:2] != ("upper", "EndpointSlice"):
            for path in _changed(before[key], after[key]):
                yield key, path


def _changed(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of fields that differ."""
    if path in {"metadata.resourceVersion", "metadata.managedFields", "metadata.generation"}:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before.keys() | after.keys():
            yield from _changed(before.get(key), after.get(key), f"{path}.{key}" if path else key)
    elif before is None and isinstance(after, dict):
        yield from _changed({}, after, path)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for old, new in zip(before, after, strict=True):
            yield from _changed(old, new, path)
    elif before != after:
        yield path


def _read(name: str, values: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return recorded objects with these values."""
    text = (_RECORDED / f"{name}.yaml").read_text(encoding="utf-8")
    return [_filled(one, values) for one in yaml.safe_load_all(text)]


def _filled(value: Any, values: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(one, values) for key, one in value.items()}
    if isinstance(value, list):
        return [_filled(one, values) for one in value]
    if isinstance(value, str):
        return re.sub(r"<([^<>]+)>", lambda match: values[match[1]], value)
    return value


def _time(*, hours: int = 0) -> str:
    return (dt.datetime.now(dt.UTC) + dt.timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
