"""The page's data: simulated clusters in the caches that the page reads."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from hack.page.scene import Scene
from tests.thorough import size
from tests.unit.virtual_node.examine.health_objects import condition, swarm
from virtual_node.web.groups import View
from virtual_node.web.overview import Overview

pytestmark = pytest.mark.looptime


async def _parts(overview: Overview, view: View | None = None, **arguments: Any) -> dict[str, Any]:
    found = await overview.parts(view or View(), **arguments)
    return {key: json.loads(part) for key, part in found.items()}


async def test_no_pod_of_a_lost_cluster_is_shown_as_running() -> None:
    """The headline names the cluster, its card the time, and its pods are unknown."""
    scene = Scene(60)
    scene.lose("frankfurt")
    parts = await _parts(scene.overview())
    assert parts["health"]["verdict"] == "faulty"
    assert parts["health"]["faults"][0]["kind"] == "ClusterLost"
    lost, well = parts["clusters"]
    assert (lost["name"], lost["reachable"], bool(lost["heard"])) == ("frankfurt", False, True)
    assert lost["nodes"][0]["pods"].keys() <= {"stale", "finished"}
    assert {one["share"] for one in lost["nodes"][0]["resources"]} == {None}
    assert well["nodes"][0]["pods"]["running"] > 0
    view = View(cluster="frankfurt", state="running")
    assert (await _parts(scene.overview(), view))["pods"]["found"] == 0


async def test_a_rejected_configuration_and_a_stopped_cluster_are_shown() -> None:
    """Also after the cluster's controllers and caches have ended."""
    scene = Scene(3)
    scene.rejected = "config.yaml: clusters[0].lables: unknown field"
    scene.failures["oregon"] = "kubeconfig: no such file"
    parts = await _parts(scene.overview())
    assert [one["kind"] for one in parts["health"]["faults"][:2]] == [
        "ConfigurationRejected",
        "ClusterFailed",
    ]
    card = next(one for one in parts["clusters"] if one["name"] == "oregon")
    assert (card["reachable"], card["error"]) == (None, "kubeconfig: no such file")


async def test_a_standby_names_the_leader() -> None:
    """And how to reach its page; a configuration that this replica cannot use is reported nevertheless."""
    scene = Scene(3, has_trouble=False)
    scene.leader, scene.rejected = "virtual-node-1", "config.yaml: not YAML"
    health = (await _parts(scene.overview()))["health"]
    assert (health["leader"], health["namespace"], health["port"]) == (
        "virtual-node-1",
        "virtual-node-system",
        "8090",
    )
    assert health["faults"][0]["cause"] == "is not applied: config.yaml: not YAML"


async def test_pods_that_wait_without_a_node_are_shown() -> None:
    """Only those for virtual nodes."""
    scene = Scene(3)
    parts = await _parts(scene.overview(), View(state="unplaced"))
    assert parts["pods"]["groups"] == ["shop/StatefulSet/search"]
    assert "untolerated taint" in parts["group shop/StatefulSet/search"]["causes"][0]["why"]


async def test_the_last_inspection_is_shown_if_there_is_one() -> None:
    """Errors first, and only where everything may be shown."""
    scene = Scene(3)
    found = (await _parts(scene.overview()))["inspection"]
    assert [(row["severity"], row["state"]) for row in found["rows"]] == [
        ("error", "new"),
        ("warning", "fixed"),
    ]
    assert (found["run"]["fixed"], found["all"]) == (1, 2)
    assert "inspection" not in await _parts(scene.overview(), in_full=False)
    scene.inspection = None
    assert "inspection" not in await _parts(scene.overview())


async def test_swarms_are_shown_if_there_are_any() -> None:
    """The headline reports the same Swarm as the table."""
    scene = Scene(3, has_trouble=False)
    assert "swarms" not in await _parts(scene.overview())
    scene.swarms.append(
        swarm("streams", condition("Degraded", "True", "JobsFailing", "1 job cannot be started"))
    )
    parts = await _parts(scene.overview())
    assert [row["name"] for row in parts["swarms"]["rows"]] == ["shop/streams"]
    assert [fault["kind"] for fault in parts["health"]["faults"]] == ["SwarmDegraded"]


async def test_filters_and_counts() -> None:
    """Counts ignore their own filter, so that another status can be selected."""
    scene = Scene(60)
    pods = (await _parts(scene.overview(), View(namespace="payments", state="running")))["pods"]
    assert pods["all"] == 61
    assert pods["found"] == pods["counts"]["running"]
    assert pods["counts"]["trouble"] > 0
    assert {key.split("/")[0] for key in pods["groups"]} == {"payments"}
    assert pods["namespaces"] == ["batch", "ml", "payments", "shop"]


async def test_an_open_workload_has_its_pods() -> None:
    """One page of them, the worst first."""
    scene = Scene(60)
    key = "payments/Deployment/gateway"
    parts = await _parts(scene.overview(), View(open=(key,), pods=2))
    opened = parts[f"open {key}"]
    assert (len(opened["pods"]), opened["all"]) == (2, parts[f"group {key}"]["total"])
    assert parts[f"row {opened['pods'][0]}"]["status"] == "CrashLoopBackOff"


async def test_a_changed_pod_changes_its_workload_only() -> None:
    """So that updates are small."""
    scene = Scene(60, has_trouble=False)
    overview = scene.overview()
    before = await overview.parts(View())
    pod = next(scene.pods()).to_dict()
    pod["status"] = {"phase": "Failed", "reason": "Evicted", "message": "disk"}
    scene.put("tokyo", pod)
    await asyncio.sleep(30)
    after = await overview.parts(View())
    changed = {key for key in after if after[key] != before.get(key)}
    assert changed - {"health", "events"} == {"clusters", "pods", "group shop/Deployment/web"}


@pytest.mark.parametrize("in_full", [True, False])
async def test_a_pods_view(*, in_full: bool) -> None:
    """Both clusters' pods on loopback; on the network only the fields of the list."""
    scene = Scene(60)
    parts = await _parts(scene.overview(), View(pod="shop/checkout-7d4b9c6f5-8"), in_full=in_full)
    pod = parts["pod"]
    assert (pod["row"]["status"], pod["diagnose"]) == (
        "ImagePullBackOff",
        "virtual-node diagnose pod shop/checkout-7d4b9c6f5-8",
    )
    assert ("upper" in pod, "lower" in pod, "placement" in pod) == (in_full,) * 3
    assert "do-not-show-me" not in json.dumps(parts)
    assert "hunter2" not in json.dumps(parts)
    assert (await _parts(scene.overview(), View(pod="shop/none")))["pod"]["missing"] is True


async def test_a_clusters_view() -> None:
    """Lower nodes with all requests on them."""
    parts = await _parts(Scene(60).overview(), View(detail="tokyo"))
    first, _, last = parts["detail"]["lowerNodes"]
    assert first["resources"][0] == {"name": "cpu", "used": "11.2", "total": "32", "share": 0.3516}
    assert all(one["total"].endswith("iB") for one in first["resources"] if one["name"] == "memory")
    assert (first["schedulable"], last["schedulable"], last["virtualNode"]) == (True, False, "vn-tokyo")


async def test_a_clusters_view_on_the_network_has_no_nodes() -> None:
    """Names and versions of lower nodes, and expiries, are for loopback."""
    parts = await _parts(Scene(3).overview(), View(detail="tokyo"), in_full=False)
    assert parts["detail"].keys() == {"name", "history"}
    assert parts["detail"]["history"]["pods"][-1] == 2


async def test_rows_are_dropped_without_browsers() -> None:
    """They take memory; the next browser gets the same again."""
    overview = Scene(60).overview()
    running = asyncio.create_task(overview.run())
    before = await overview.parts(View())
    await asyncio.sleep(45)
    assert overview._reader._known
    await asyncio.sleep(120)
    assert not overview._reader._known
    after = await overview.parts(View())
    assert after["pods"] == before["pods"]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_the_first_page_of_ten_thousand_pods_is_small() -> None:
    """Other workloads are counted only."""
    pods = size(2_000, 10_000)
    parts = await Scene(pods).overview().parts(View())
    assert sum(map(len, parts.values())) < 48 * 1024
    assert json.loads(parts["pods"])["all"] == pods + 1
