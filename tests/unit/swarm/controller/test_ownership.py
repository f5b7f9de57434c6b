"""Objects that users of the namespace created or changed, with our names and labels."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from swarm import handover, share
from tests.unit.swarm.controller.scene import NAMESPACE, Scene, so

pytestmark = pytest.mark.looptime
_LABEL = {"swarm.virtual-node.io/swarm": "s"}
_JOBS = [{"name": "a"}, {"name": "b"}]


async def _settled(scene: Scene) -> tuple[str, str]:
    """Register the worker ``w-0`` and wait until both jobs are granted to it; return the UIDs of its pod and Swarm."""
    await so(lambda: scene.find("leases", "s.w-0") is not None, True)
    uid = (scene.find("pods", "w-0") or {})["metadata"]["uid"]
    scene.acknowledge("s.w-0", uid)
    await so(lambda: _granted(scene, uid), ["a", "b"])
    return uid, (scene.find("swarms", "s") or {})["metadata"]["uid"]


def _granted(scene: Scene, uid: str) -> list[str]:
    holder = handover.load(scene.status().get("record", "")).holders.get(uid)
    return list(holder.start) if holder else []


@pytest.mark.parametrize(
    "forgery", ["another Lease", "another Lease with our owner", "the Lease of another pod"]
)
async def test_only_the_lease_of_a_pod_acknowledges_for_it(forgery: str):
    """Otherwise a user could end the session of a worker, and its jobs would start twice."""
    scene = Scene()
    scene.pod()
    scene.pod("w-1")
    scene.swarm(jobs=_JOBS, maxPerWorker=2, workers={"selector": {}}, strategy="Contiguous")
    scene.server.change("pods", f"{NAMESPACE}/w-1", status={"conditions": []})
    async with scene.running():
        uid, owner = await _settled(scene)
        forged = "s.w-1" if "pod" in forgery else "forged"
        if forged == "forged":
            body: dict[str, Any] = {"metadata": {"name": forged, "labels": _LABEL}}
            if "owner" in forgery:
                body["metadata"]["ownerReferences"] = [{"uid": owner, "controller": True}]
            scene.server.create("leases", body, namespace=NAMESPACE)
        marks = {"swarm.virtual-node.io/pod-uid": uid}
        scene.server.change("leases", f"{NAMESPACE}/{forged}", metadata={"annotations": marks})
        scene.acknowledge(forged, uid, session="forged", life=99, version=99)
        scene.server.change("swarms", f"{NAMESPACE}/s", spec={"jobs": [*_JOBS, {"name": "c"}]})
        await so(lambda: scene.status()["jobCount"], 3)
        assert handover.load(scene.status()["record"]).holders[uid].session == "t"


@pytest.mark.parametrize("version", ["9" * 5_000, "²", str(1 << 70), "-1", "7"])
async def test_versions_of_foreign_config_maps_are_not_used(version: str):
    """A number above 64 bits could not be stored, and the Swarm would never start."""
    scene = Scene()
    scene.config_map("x", {"a": "b"}, labels=_LABEL, annotations={"swarm.virtual-node.io/version": version})
    scene.pod()
    scene.swarm(jobs=_JOBS)
    async with scene.running():
        await so(lambda: 0 < scene.status().get("version", 0) < 5, True)
        assert (scene.find("configmaps", "x") or {})["data"] == {"a": "b"}


async def test_changed_share_is_written_again():
    """Also if the annotation has a later version than the record: only a later record is a reason to wait."""
    scene = Scene()
    scene.pod()
    scene.swarm(jobs=_JOBS)
    async with scene.running():
        await _settled(scene)
        mark = "swarm.virtual-node.io/version"
        metadata = {"annotations": {mark: "999"}}
        scene.server.change("configmaps", f"{NAMESPACE}/s.w-0", metadata=metadata, data={share.KEY: "{}"})

        def written() -> bool:
            found = scene.find("configmaps", "s.w-0") or {}
            return bool(found["metadata"]["annotations"][mark] != "999" and found["data"][share.KEY] != "{}")

        await so(written, True)


@pytest.mark.parametrize(
    ("data", "metadata"),
    [
        ({"Corefile": "."}, {}),
        ({"config.yml": "x"}, {"ownerReferences": [{"uid": "other", "controller": True, "kind": "App"}]}),
        ({"config.yml": "x"}, {"labels": {"swarm.virtual-node.io/swarm": "another"}}),
    ],
    ids=["other content", "other controller", "other Swarm"],
)
async def test_does_not_adopt_config_maps_of_others(data: dict[str, str], metadata: dict[str, Any]):
    """A user without rights on ConfigMaps could have the controller change any of them."""
    scene = Scene()
    before = scene.config_map("table", data, **metadata)
    scene.pod()
    scene.swarm(jobs=_JOBS, configMap="table")
    async with scene.running():
        await so(
            lambda: any(
                "spec.configMap: ConfigMap table exists" in text for text in scene.events("NameTaken")
            ),
            True,
        )
        assert scene.find("configmaps", "table") == before


async def test_adopted_table_keeps_its_keys_and_is_not_deleted():
    """k8s-swarm's manifests create it, so it is not ours to delete."""
    scene = Scene()
    scene.config_map("table", {"config.yml": "version: 7\n", "dashboard.json": "{}"})
    scene.pod()
    scene.swarm(jobs=_JOBS, configMap="table")

    def table() -> dict[str, str]:
        return dict((scene.find("configmaps", "table") or {})["data"])

    async with scene.running():
        await so(lambda: "s.w-0" in json.dumps([*table()]) or "w-0.json" in table(), True)
        assert table().keys() == {"config.yml", "dashboard.json", "w-0.json"}
        scene.server.change("swarms", f"{NAMESPACE}/s", spec={"configMap": ""})
        await so(lambda: scene.find("configmaps", "s.w-0") is not None, True)
        scene.server.change("swarms", f"{NAMESPACE}/s", spec={"jobs": _JOBS[:1]})
        await so(lambda: scene.status()["jobCount"], 1)
    assert table()["dashboard.json"] == "{}"
    assert "ownerReferences" not in (scene.find("configmaps", "table") or {})["metadata"]


def test_version_of_a_hostile_table():
    """YAML with merge keys would double at each line; int() refuses 5,000 digits."""
    bomb = "a0: &a0 {k: v}\n" + "".join(
        f"a{level}: &a{level} {{<<: [*a{level - 1}, *a{level - 1}]}}\n" for level in range(1, 40)
    )
    start = time.process_time()
    found = [share.original_version(text) for text in (bomb, f"version: {'9' * 5_000}\n", "version: true\n")]
    assert found == [0, 0, 0]
    assert time.process_time() - start < 1
