"""The kubelet's series of one virtual node: counts that follow the upper pods, volumes, and the certificate."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from controller_runtime.apimachinery.decoding import decoder
from controller_runtime.objects import Object, from_dict
from virtual_node.kubelet.series import NodeSeries, VolumeStats
from virtual_node.metrics import pod_work

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]
DOCS = Path(__file__).resolve().parents[5] / "docs/reference/metrics.md"


def _pod(uid: str, phase: str, *, running: int = 0, exited: int = 0, claim: str = "") -> Object:
    states: list[dict[str, Any]] = (
        [{"running": {}}] * running + [{"terminated": {}}] * exited + [{"waiting": {}}, {}]
    )
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}] if claim else []
    return from_dict(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"namespace": "shop", "name": uid, "uid": uid},
            "spec": {"containers": [], "volumes": volumes},
            "status": {
                "phase": phase,
                "containerStatuses": [{"name": "c", "state": state} for state in states],
                "initContainerStatuses": [{"name": "i"}],
            },
        }
    )


def _volume(claim: str, **usage: Any) -> dict[str, Any]:
    return {"name": "v", "pvcRef": {"namespace": "shop", "name": claim}, **usage}


def _samples(series: NodeSeries, *volumes: dict[str, Any]) -> dict[str, float]:
    """Return the samples with a kubelet's names, by name and label values."""
    stats = decoder(VolumeStats)(
        msgspec.json.encode({"node": {}, "pods": [{"podRef": {}, "volume": list(volumes)}]})
    )
    page = series.page(stats)
    assert openmetrics(page).endswith(b"# EOF\n")
    # Parsing all series of the process takes most of the time of a test.
    lines = [line for line in generate_latest(page).decode().splitlines() if "kubelet_" in line]
    families = text_string_to_metric_families("\n".join([*lines, ""]))
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in families
        for sample in family.samples
        if sample.name.startswith("kubelet_") and "_bucket" not in sample.name
    }


def _series(expires: float | None = None) -> NodeSeries:
    return NodeSeries("vn", certificate_expires=lambda: expires, work=pod_work())


async def test_counts_follow_the_pods():
    """An update counts a pod once, and a deleted pod no more, also one that was never seen."""
    series = _series()
    series.saw(_pod("a", "Running", running=2, exited=1))
    series.saw(_pod("a", "Running", running=3))
    series.saw(_pod("b", "Pending"))
    series.saw(_pod("c", "Succeeded", exited=1))
    found = _samples(series)
    assert found["kubelet_node_name vn"] == found["kubelet_running_pods"] == 1
    assert found["kubelet_running_containers running"] == 3
    assert found["kubelet_running_containers exited"] == 1
    for uid in ("a", "c", "never-seen"):
        series.gone(_pod(uid, "Running"))
    found = _samples(series)
    assert [
        found[f"kubelet_running_{what}"] for what in ("pods", "containers running", "containers exited")
    ] == [0] * 3


def _ended(uid: str, *, code: int = 0, reason: str = "Completed", field: str = "containerStatuses") -> Object:
    state = {"terminated": {"exitCode": code, "reason": reason}}
    return from_dict(
        {
            "kind": "Pod",
            "metadata": {"namespace": "shop", "name": uid, "uid": uid},
            "spec": {"containers": []},
            "status": {"phase": "Running", field: [{"name": "c", "state": state}]},
        }
    )


async def test_a_termination_is_counted_once_by_type_code_and_reason():
    """Each restart counts again. A container that had terminated when the pod was first seen does not count."""
    series = _series()
    series.saw(_ended("before", code=3))
    series.saw(_pod("a", "Pending"))
    for _ in range(2):
        series.saw(_ended("a", code=139, reason="Error"))
    series.saw(_pod("a", "Running", running=1))
    series.saw(_ended("a", code=139, reason="Error"))
    series.saw(_ended("a", field="initContainerStatuses"))
    assert {name: value for name, value in _samples(series).items() if "terminated" in name} == {
        "kubelet_terminated_containers_total container 139 Error": 2,
        "kubelet_terminated_containers_total init_container 0 Completed": 1,
    }


async def test_restarts_between_two_statuses_count():
    """The mirror may merge statuses of a container that ends quickly. The cause is that of the last termination."""
    series = _series()

    def saw(restarts: int, last: dict[str, Any]) -> None:
        container = {"name": "c", "state": {"running": {}}, "restartCount": restarts, "lastState": last}
        series.saw(
            from_dict(
                {
                    "kind": "Pod",
                    "metadata": {"namespace": "shop", "name": "a", "uid": "a"},
                    "spec": {"containers": []},
                    "status": {"phase": "Running", "containerStatuses": [container]},
                }
            )
        )

    saw(2, {})
    for _ in range(2):
        saw(5, {"terminated": {"exitCode": 137, "reason": "OOMKilled"}})
    assert {name: value for name, value in _samples(series).items() if "terminated" in name} == {
        "kubelet_terminated_containers_total container 137 OOMKilled": 3
    }


async def test_any_exit_codes_and_reasons_make_a_limited_number_of_series():
    """A hostile lower cluster may report as many as it likes."""
    series = _series()
    for number in range(600):
        series.saw(_pod(f"{number}", "Pending"))
        series.saw(_ended(f"{number}", code=number, reason="r" * 1000))
    found = {name: value for name, value in _samples(series).items() if "terminated" in name}
    assert len(found) == 501
    assert max(map(len, found)) < 150
    assert found["kubelet_terminated_containers_total container other other"] == 100


async def test_the_start_of_a_pod_is_measured_once():
    """Not of a pod that ran already when this process started, and not of one that fails before it runs."""
    series = _series()
    series.saw(_pod("before", "Running", running=1))
    series.saw(_pod("a", "Pending"))
    series.saw(_pod("b", "Pending"))
    await asyncio.sleep(7)
    for phase in ("Pending", "Running", "Running"):
        series.saw(_pod("a", phase))
    series.saw(_pod("b", "Failed"))
    found = _samples(series)
    assert found["kubelet_pod_start_duration_seconds_count"] == 1
    assert found["kubelet_pod_start_duration_seconds_sum"] == 7


async def test_volumes_are_by_claim():
    """Pods that share a claim report one volume. Volumes without claim, and values that are unknown, are left out."""
    series = _series()
    used = _volume("data", usedBytes=5, capacityBytes=9, inodesFree=3)
    found = _samples(series, used, used, {"name": "tmp", "usedBytes": 7}, _volume("other", usedBytes=1))
    assert {name: value for name, value in found.items() if "volume" in name} == {
        "kubelet_volume_stats_used_bytes shop data": 5,
        "kubelet_volume_stats_capacity_bytes shop data": 9,
        "kubelet_volume_stats_inodes_free shop data": 3,
        "kubelet_volume_stats_used_bytes shop other": 1,
    }


async def test_lower_kubelets_are_needed_only_if_a_pod_has_a_claim():
    series = _series()
    series.saw(_pod("a", "Running"))
    assert not series.has_claims
    series.saw(_pod("b", "Pending", claim="data"))
    series.saw(_pod("b", "Running", claim="data"))
    with_claim = series.has_claims
    series.gone(_pod("b", "Running"))
    assert (with_claim, series.has_claims) == (True, False)


async def test_certificate_of_the_server():
    """Its remaining time, and failed renewals."""
    series = _series(time.time() + 3600)
    series.renewal_failed()
    found = _samples(series)
    assert found["kubelet_certificate_manager_server_ttl_seconds"] == pytest.approx(3600, abs=60)
    assert found["kubelet_server_expiration_renew_errors"] == 1


async def test_the_documentation_lists_every_series():
    work = pod_work()
    work.labels("sync").observe(1)
    series = NodeSeries("vn", certificate_expires=time.time, work=work)
    series.saw(_pod("a", "Pending"))
    series.saw(_ended("a"))
    everything = _volume(
        "data", capacityBytes=1, availableBytes=1, usedBytes=1, inodes=1, inodesFree=1, inodesUsed=1
    )
    served = {name.split()[0] for name in _samples(series, everything)}
    served = {re.sub(r"_duration_seconds_(count|sum|created)$", "_duration_seconds", name) for name in served}
    rows = [
        line.split("|")[1]
        for line in DOCS.read_text(encoding="utf-8").splitlines()
        if line.startswith("| `kubelet_")
    ]
    assert served == {name for row in rows for name in re.findall(r"`(\w+)`", row)}
