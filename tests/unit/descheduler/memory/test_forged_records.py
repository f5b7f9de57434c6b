"""Attacks with records: whoever writes one that is not ours has no pod created and none deleted."""

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
from descheduler.view import record as records
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
    """A ConfigMap as releases before keyed hashes wrote them into the pod's namespace."""
    return {
        "metadata": {
            "name": f"virtual-node-descheduler-{facts['uid']}",
            "namespace": "default",
            "labels": LABELS,
        },
        "data": {"record": json.dumps(facts), "pod": json.dumps(replacement)},
    }


async def _attack(cluster: Cluster, body: dict[str, Any]) -> Process:
    """Run a descheduler that finds such an object."""
    resource = resources.CONTROLLER_REVISIONS if body.get("revision") else resources.CONFIG_MAPS
    cluster.put(resource.plural, body)
    process = process_on(cluster)
    async with process.running():
        await asyncio.sleep(600)
    return process


async def test_config_map_creates_no_pod():
    """A tenant's ConfigMap with our label, in a namespace of its own, has no pod created."""
    cluster = cluster_with()
    facts = {"name": "evil", "uid": "x", "resourceVersion": "1", "node": "a", "reason": "", "force": True}
    await _attack(cluster, _old_style(facts, EVIL))
    assert cluster.created == []


async def test_config_map_deletes_no_pod():
    """A tenant's ConfigMap does not have another's running pod force-deleted and replaced."""
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


async def test_record_in_a_tenants_namespace_is_not_looked_at():
    """Even a record with a valid hash counts only in the descheduler's own namespace."""
    cluster = cluster_with(pod())
    async with process_on(cluster).running():
        await asyncio.sleep(60)  # The key is there now.
    key = _key_of(cluster)
    created = list(cluster.created)
    await _attack(cluster, records.render(RECORD, namespace="default", key=key))
    assert cluster.created == created


@pytest.mark.parametrize("mark", [None, "", "0" * 64, 7, {}], ids=str)
async def test_record_without_a_valid_hash_is_reported_and_not_acted_on(mark):
    """A record in our namespace that we did not write: an event says what to do with it."""
    body = records.render(RECORD, namespace="kube-system", key=KEY)
    body["data"]["hash"] = mark
    cluster = cluster_with()
    process = await _attack(cluster, body)
    assert cluster.created == []
    assert process.reasons() == ["RecordRefused"]
    assert "delete this object" in process.told[0][2]


async def test_record_of_another_key_is_not_acted_on():
    """A hash with a key that is not ours proves nothing."""
    cluster = cluster_with()
    process = await _attack(cluster, records.render(RECORD, namespace="kube-system", key=KEY))
    assert cluster.created == []
    assert process.reasons() == ["RecordRefused"]


async def test_copy_of_a_record_is_not_acted_on():
    """A record of ours is valid under its own name only, so that no two of one pod are acted upon at once."""
    copied = records.render(RECORD, namespace="kube-system", key=KEY)
    copied["metadata"]["name"] = "virtual-node-descheduler-other"
    with pytest.raises(ValueError, match="copy"):
        records.parse(copied, key=KEY)


@pytest.mark.parametrize("data", [None, {}, [], "text", {"record": {}}, {"record": [], "hash": "x"}], ids=str)
def test_anything_else_is_not_a_record(data):
    """Whatever is in the object, the error is a ValueError."""
    with pytest.raises(ValueError, match="hash is not valid"):
        records.parse({"metadata": {"name": RECORD.name}, "data": data}, key=KEY)


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
def test_no_field_of_a_record_can_be_changed(path):
    """The hash covers every field, those of the pod included."""
    changed = copy.deepcopy(GENUINE)
    holder = changed["data"]["record"]
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = "changed" if holder[path[-1]] != "changed" else "x"
    with pytest.raises(ValueError, match="hash is not valid"):
        records.parse(changed, key=KEY)


async def test_without_the_key_bare_pods_stay_and_the_event_says_what_to_do():
    """No permission to the Secret: nothing is deleted, and no attempt is counted."""
    cluster = cluster_with(pod())
    process = process_on(cluster)
    process.client.before = _no_secrets
    async with process.running():
        await asyncio.sleep(600)
    assert process.client.writes == []
    assert process.reasons() == ["NotRescheduled"]
    assert "kubectl -n kube-system create secret generic virtual-node-descheduler-key" in process.told[0][2]


async def test_record_waits_for_the_key():
    """A pod under way whose record cannot be verified for now is finished when the key can be read again."""
    cluster = cluster_with(pod())
    first = process_on(cluster)
    crashed = asyncio.Event()

    async def crash(what: str) -> None:
        if what == "create pods":
            crashed.set()
            await asyncio.Event().wait()

    first.client.before = crash
    async with first.running():
        await crashed.wait()
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


async def test_record_with_a_lost_key_stands_in_the_way_and_says_so():
    """The key was replaced, and the pod of a record is still there: it stays, and the event names the record."""
    cluster = cluster_with(pod())
    (there,) = cluster.all("pods")
    stale = dataclasses.replace(RECORD, old_uid=there["metadata"]["uid"], pod_name="p")
    process = await _attack(cluster, records.render(stale, namespace="kube-system", key=KEY))
    assert cluster.all("pods") == [there]
    assert {"RecordRefused", "NotRescheduled"} <= set(process.reasons())
    assert any(stale.name in message and "Delete it" in message for _, _, message in process.told)


@pytest.mark.parametrize("code", [403, 413, 422])
async def test_record_that_the_server_does_not_store_leaves_the_pod_alone(code):
    """A quota in our namespace, or a pod too large for etcd: the pod stays, and an event says why."""
    cluster = cluster_with(pod())
    process = process_on(cluster)

    async def refuse(what: str) -> None:
        if what == "create controllerrevisions":
            raise ApiError("too much", code=code)

    process.client.before = refuse
    async with process.running():
        await asyncio.sleep(60)
    assert "delete pods" not in process.client.writes
    assert process.told == [
        ("Normal", "NotRescheduled", "Stays: no record can be written to namespace kube-system: too much")
    ]


@pytest.mark.parametrize("state", ["gone", "another", "ending"])
async def test_pod_is_not_created_in_another_namespace_of_the_same_name(state):
    """The namespace went while the pod was under way: its next one may be another tenant's."""
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
