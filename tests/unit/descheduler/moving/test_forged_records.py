"""Attacks with forged records: they neither create nor delete a pod."""

from __future__ import annotations

import asyncio
import base64
import copy
import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import pytest

from controller_runtime import resources
from controller_runtime.errors import ApiError, Forbidden
from descheduler.moving import record as records
from tests.unit.descheduler.bodies import pod
from tests.unit.descheduler.cluster import Cluster
from tests.unit.descheduler.process import Process
from tests.unit.descheduler.refusing_clusters import cluster_with, process_on

pytestmark = pytest.mark.looptime

KEY = b"k" * 32
EVIL: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "evil", "namespace": "default"},
    "spec": {
        "hostPID": True,
        "nodeName": "control-plane",
        "serviceAccountName": "admin",
        "containers": [{"name": "main", "image": "evil", "securityContext": {"privileged": True}}],
    },
}
RECORD = records.Record(
    namespace="default",
    namespace_uid="uid-default",
    pod_name="evil",
    old_uid="no-such-pod",
    old_version="1",
    node="a",
    reason="",
    force=True,
    replacement=EVIL,
)
LABELS = {"virtual-node.io/descheduler-record": "true"}


def _old_style(facts: dict[str, Any], replacement: dict[str, Any]) -> dict[str, Any]:
    """Return a ConfigMap record, as releases before keyed hashes wrote it into the pod's namespace."""
    return {
        "metadata": {
            "name": f"virtual-node-descheduler-{facts['uid']}",
            "namespace": "default",
            "labels": LABELS,
        },
        "data": {"record": json.dumps(facts), "pod": json.dumps(replacement)},
    }


async def _attack(cluster: Cluster, body: dict[str, Any]) -> Process:
    """Store the object and run a descheduler on the cluster."""
    resource = resources.CONTROLLER_REVISIONS if body.get("revision") else resources.CONFIG_MAPS
    cluster.put(resource.plural, body)
    process = process_on(cluster)
    async with process.running():
        await asyncio.sleep(600)
    return process


async def test_record_in_config_map_creates_no_pod():
    cluster = cluster_with()
    facts = {"name": "evil", "uid": "x", "resourceVersion": "1", "node": "a", "reason": "", "force": True}
    await _attack(cluster, _old_style(facts, EVIL))
    assert cluster.created == []


async def test_record_in_config_map_deletes_no_pod():
    cluster = cluster_with(pod(owner="statefulset", refused_at=None, phase="Running"))
    (victim,) = cluster.all("pods")
    metadata = victim["metadata"]
    facts = {
        "name": metadata["name"],
        "uid": metadata["uid"],
        "resourceVersion": metadata["resourceVersion"],
        "node": "a",
        "reason": "",
        "force": True,
    }
    process = await _attack(
        cluster, _old_style(facts, {**EVIL, "metadata": {**EVIL["metadata"], "name": "p"}})
    )
    assert process.client.writes == []
    assert cluster.all("pods") == [victim]


async def test_ignores_record_in_tenant_namespace_even_with_valid_hash():
    cluster = cluster_with(pod())
    async with process_on(cluster).running():
        await asyncio.sleep(60)  # The key is there now.
    key = _key_of(cluster)
    created = list(cluster.created)
    await _attack(cluster, records.render(RECORD, namespace="default", key=key))
    assert cluster.created == created


@pytest.mark.parametrize("mark", [None, "", "0" * 64, 7, {}], ids=str)
async def test_reports_and_ignores_record_without_valid_hash(mark):
    body = records.render(RECORD, namespace="kube-system", key=KEY)
    body["data"]["hash"] = mark
    cluster = cluster_with()
    process = await _attack(cluster, body)
    assert cluster.created == []
    assert process.reasons() == ["RecordRefused"]
    assert "delete this object" in process.events[0][2]


async def test_reports_and_ignores_record_of_another_key():
    cluster = cluster_with()
    process = await _attack(cluster, records.render(RECORD, namespace="kube-system", key=KEY))
    assert cluster.created == []
    assert process.reasons() == ["RecordRefused"]


async def test_refuses_copy_of_record_under_another_name():
    """Otherwise two records of one pod could be used concurrently."""
    copied = records.render(RECORD, namespace="kube-system", key=KEY)
    copied["metadata"]["name"] = "virtual-node-descheduler-other"
    with pytest.raises(ValueError, match="copy"):
        records.parse(copied, records.Record, key=KEY)


@pytest.mark.parametrize("data", [None, {}, [], "text", {"record": {}}, {"record": [], "hash": "x"}], ids=str)
def test_parse_raises_value_error_for_arbitrary_data(data):
    with pytest.raises(ValueError, match="hash is not valid"):
        records.parse({"metadata": {"name": RECORD.name}, "data": data}, records.Record, key=KEY)


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, (*path, name))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _leaves(inner, (*path, number))
    else:
        yield path


GENUINE = records.render(RECORD, namespace="kube-system", key=KEY)


@pytest.mark.parametrize("path", list(_leaves(GENUINE["data"]["record"])), ids=str)
def test_hash_covers_every_field_of_record(path):
    changed = copy.deepcopy(GENUINE)
    holder = changed["data"]["record"]
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = "changed" if holder[path[-1]] != "changed" else "x"
    with pytest.raises(ValueError, match="hash is not valid"):
        records.parse(changed, records.Record, key=KEY)


async def test_without_key_bare_pods_stay_and_event_has_remedy():
    cluster = cluster_with(pod())
    process = process_on(cluster)
    process.client.before = _no_secrets
    async with process.running():
        await asyncio.sleep(600)
    assert process.client.writes == []
    assert process.reasons() == ["NotRescheduled"]
    assert "kubectl -n kube-system create secret generic virtual-node-descheduler-key" in process.events[0][2]


async def test_completes_record_when_key_is_readable_again():
    cluster = cluster_with(pod())
    first = process_on(cluster)
    await first.run_until(lambda what: what == "create pods")
    second = process_on(cluster)
    read = second.client.get

    async def get(resource: Any, name: str, **options: Any) -> Any:
        if resource is resources.SECRETS:
            raise Forbidden("secrets is forbidden", code=403)
        return await read(resource, name, **options)

    second.client.get = get  # type: ignore[method-assign]
    async with second.running():
        await asyncio.sleep(30)
        assert len(cluster.created) == 1
        assert set(second.reasons()) == {"RecordRefused"}
        second.client.get = read  # type: ignore[method-assign]
        await asyncio.sleep(60)
    assert len(cluster.created) == 2
    assert cluster.all("controllerrevisions") == []


async def test_record_of_replaced_key_keeps_the_pod_and_event_names_it():
    cluster = cluster_with(pod())
    (existing,) = cluster.all("pods")
    stale = dataclasses.replace(RECORD, old_uid=existing["metadata"]["uid"], pod_name="p")
    process = await _attack(cluster, records.render(stale, namespace="kube-system", key=KEY))
    assert cluster.all("pods") == [existing]
    assert {"RecordRefused", "NotRescheduled"} <= set(process.reasons())
    assert any(stale.name in message and "Delete it" in message for _, _, message in process.events)


@pytest.mark.parametrize("code", [403, 413, 422])
async def test_keeps_pod_if_record_cannot_be_stored(code):
    """For example, a quota in the descheduler's namespace, or a pod too large for etcd."""
    cluster = cluster_with(pod())
    process = process_on(cluster)

    async def refuse(what: str) -> None:
        if what == "create controllerrevisions":
            raise ApiError("too much", code=code)

    process.client.before = refuse
    async with process.running():
        await asyncio.sleep(60)
    assert "delete pods" not in process.client.writes
    assert process.events == [
        ("Normal", "NotRescheduled", "Stays: no record can be written to namespace kube-system: too much")
    ]


@pytest.mark.parametrize("state", ["gone", "another", "ending"])
async def test_creates_no_pod_in_replaced_namespace(state):
    """The new namespace of that name may belong to another tenant."""
    cluster = cluster_with(pod())
    process = process_on(cluster)

    async def replace(what: str) -> None:
        if what != "delete pods":
            return
        cluster.remove("namespaces", "default")
        if state != "gone":
            ending = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if state == "ending" else {}
            uid = "uid-default" if state == "ending" else "uid-other"
            cluster.put("namespaces", {"metadata": {"name": "default", "uid": uid, **ending}})

    process.client.after = replace
    async with process.running():
        await asyncio.sleep(60)
    assert "create pods" not in process.client.writes
    assert cluster.all("controllerrevisions") == []


async def _no_secrets(what: str) -> None:
    if what.endswith("secrets"):
        raise Forbidden("secrets is forbidden", code=403)


def _key_of(cluster: Cluster) -> bytes:
    secret = cluster.find("secrets", "kube-system/virtual-node-descheduler-key")
    assert secret is not None
    return base64.b64decode(secret["data"]["key"])
