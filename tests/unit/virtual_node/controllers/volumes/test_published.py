"""Attacks and accidents: a lower cluster offers free volumes for classes of the upper cluster."""

from __future__ import annotations

import asyncio
import json

import pytest
from structlog.testing import capture_logs

from controller_runtime.errors import Invalid
from tests.objects import volume
from tests.unit.virtual_node.controllers.cluster import Cluster
from tests.unit.virtual_node.controllers.pod_controller_setup import clusters
from tests.unit.virtual_node.controllers.volumes.test_facade import (
    following,
    mirror,
    publishing,
    storage_class,
)
from virtual_node.controllers.volumes.pv_controller import MOST_FREE
from virtual_node.translate.storage import pv

pytestmark = pytest.mark.looptime


def mirrors(upper: Cluster) -> list[str]:
    """Return the names of the upper volumes."""
    return sorted(key for plural, key in upper.objects if plural == "persistentvolumes")


@pytest.mark.parametrize(
    ("provisioner", "published", "expected"),
    [
        ("kubernetes.io/no-provisioner", ["fast"], ["lower1-pv-1"]),
        ("virtual-node.io/lower", ["fast"], ["lower1-pv-1"]),
        ("kubernetes.io/no-provisioner", [], []),
        ("kubernetes.io/no-provisioner", ["slow"], []),
        ("ebs.csi.aws.com", ["fast"], []),
        ("virtual-node.io.evil.example", ["fast"], []),
    ],
)
async def test_only_free_volumes_of_published_classes_have_mirrors(provisioner, published, expected):
    """Claims of every upper namespace would be bound to them, before a provisioner creates a volume."""
    upper, lower = clusters()
    upper.put("storageclasses", storage_class("fast", provisioner))
    with capture_logs() as logs:
        async with following(publishing(upper, lower, *published)):
            for number in (1, 2):
                spec = {"storageClassName": "fast" if number == 1 else "unknown"}
                lower.put("persistentvolumes", volume(f"pv-{number}", **spec))
            await asyncio.sleep(10)
            lower.change("persistentvolumes", "pv-1", spec={"capacity": {"storage": "2Gi"}})
            await asyncio.sleep(10)
    assert mirrors(upper) == expected
    warnings = [entry["storage_class"] for entry in logs if "not published" in entry["event"]]
    assert warnings == ([] if expected else ["fast"])


async def test_free_mirrors_of_a_class_that_is_no_longer_published_are_deleted():
    """A mirror that a claim is bound to stays."""
    upper, lower = clusters()
    upper.put("storageclasses", storage_class("fast"))
    for number in (1, 2):
        lower.put("persistentvolumes", volume(f"pv-{number}"))
    upper.put("persistentvolumes", mirror("lower1-pv-1"))
    upper.put("persistentvolumes", mirror("lower1-pv-2", claimRef={"namespace": "shop", "name": "data"}))
    async with following(publishing(upper, lower)):
        await asyncio.sleep(60)
        assert mirrors(upper) == ["lower1-pv-2"]


async def test_a_lower_cluster_has_a_limited_number_of_free_mirrors():
    """Others follow when some are bound or deleted; the limit is logged once."""
    upper, lower = clusters()
    upper.put("storageclasses", storage_class("fast"))
    with capture_logs() as logs:
        async with following(publishing(upper, lower, "fast")):
            for number in range(MOST_FREE + 20):
                lower.put("persistentvolumes", volume(f"pv-{number:04}"))
            await asyncio.sleep(60)
            first = mirrors(upper)
            assert len(first) == MOST_FREE
            for name in first[:5]:
                claim = {"namespace": "shop", "name": name, "uid": name}
                upper.change("persistentvolumes", name, spec={"claimRef": claim})
            await asyncio.sleep(60)
            assert len(mirrors(upper)) == MOST_FREE + 5
            for name in first[5:10]:
                lower.remove("persistentvolumes", name.removeprefix("lower1-"))
            await asyncio.sleep(60)
            assert len(mirrors(upper)) == MOST_FREE + 5
    assert len([entry for entry in logs if "not published" in entry["event"]]) == 1


@pytest.mark.parametrize(("padding", "expected"), [(1000, ["lower1-pv-1"]), (100_000, [])])
async def test_a_volume_with_a_huge_spec_has_no_mirror(padding, expected):
    """A hostile server could occupy the event loop with each change of it."""
    upper, lower = clusters()
    upper.put("storageclasses", storage_class("fast"))
    async with following(publishing(upper, lower, "fast")):
        lower.put("persistentvolumes", volume("pv-1", nfs={"server": "x" * padding, "path": "/"}))
        await asyncio.sleep(60)
        assert mirrors(upper) == expected


async def test_a_refused_mirror_does_not_count():
    """The upper cluster refuses each of many malformed volumes; a valid one still gets its mirror."""
    upper, lower = clusters()
    upper.put("storageclasses", storage_class("fast"))
    async with following(publishing(upper, lower, "fast")):
        upper.fault = lambda verb, plural, _key: (
            Invalid("refused", code=422) if (verb, plural) == ("create", "persistentvolumes") else None
        )
        for number in range(MOST_FREE):
            lower.put("persistentvolumes", volume(f"bad-{number}"))
        await asyncio.sleep(5)
        for number in range(MOST_FREE):
            lower.remove("persistentvolumes", f"bad-{number}")
        upper.fault = lambda _verb, _plural, _key: None
        lower.put("persistentvolumes", volume("good"))
        await asyncio.sleep(60)
        assert mirrors(upper) == ["lower1-good"]


def test_a_mirror_of_a_free_volume_has_a_limited_size():
    """Only known values of known fields of the lower volume are in it."""
    lower = volume(
        "pv-1",
        accessModes=["ReadWriteOnce", *("x" * 1000 for _ in range(1000))],
        capacity={"storage": "1Gi", **{f"example.com/{number}": "1" for number in range(1000)}},
        volumeMode="x" * 100_000,
        persistentVolumeReclaimPolicy="Retain",
        csi={"driver": "x" * 100_000},
        mountOptions=["x" * 100_000],
    )
    lower["metadata"] |= {"annotations": {"a": "x" * 100_000}, "labels": {"a": "x"}}
    made = pv.upper_volume(
        lower, cluster="c", cluster_labels={}, nodes=["vn"], storage_class="fast", claim=None
    )
    assert made["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert made["spec"]["capacity"] == {"storage": "1Gi"}
    assert made["spec"]["persistentVolumeReclaimPolicy"] == "Retain"
    assert len(json.dumps(made)) < 1000
