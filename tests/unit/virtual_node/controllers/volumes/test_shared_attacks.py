"""Volumes on shared storage: cases in which a second writer could start, or data could be deleted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clusterset.config import VolumeConfig
from clusterset.model import names
from controller_runtime import resources
from tests.unit.virtual_node.controllers.volumes import test_shared
from tests.unit.virtual_node.controllers.volumes.test_shared import MIRROR, VOLUMES, Pair
from virtual_node.translate.storage import shared

pytestmark = pytest.mark.looptime


@pytest.mark.parametrize("modes", [("ReadWriteOnce", "ReadOnlyMany"), ("ReadWriteOncePod",)])
async def test_a_volume_that_one_node_may_write_is_used_in_one_cluster(modes: tuple[str, ...]):
    """With ReadWriteOnce and ReadOnlyMany, either one node writes, or many nodes read."""
    pair = Pair(modes=modes)
    async with pair.running():
        pair.home.bind("one", uid="u-1", volumes=VOLUMES)
        await asyncio.sleep(20)
        pair.guest.bind("two", uid="u-2", volumes=VOLUMES)
        await asyncio.sleep(20)
        assert (pair.home.is_below("one"), pair.guest.is_below("two")) == (True, False)


async def test_a_claim_for_one_node_is_used_in_one_cluster_though_its_volume_allows_many():
    """A static volume can have more access modes than its claim."""
    pair = Pair(modes=("ReadWriteOnce",))
    pair.home.lower.change(
        "persistentvolumes", "pv-1", spec={"accessModes": ["ReadWriteOnce", "ReadWriteMany"]}
    )
    async with pair.running():
        pair.home.bind("one", uid="u-1", volumes=VOLUMES)
        await asyncio.sleep(20)
        pair.guest.bind("two", uid="u-2", volumes=VOLUMES)
        await asyncio.sleep(20)
        assert (pair.home.is_below("one"), pair.guest.is_below("two")) == (True, False)


async def test_a_home_cluster_that_declares_nothing_any_more_waits_for_the_guest(
    monkeypatch: pytest.MonkeyPatch,
):
    """The node affinity of the mirror stays, so the guest may use the volume."""
    pair = Pair()
    async with pair.running():
        pair.guest.bind(uid="u-guest", volumes=VOLUMES)
        await asyncio.sleep(20)
        assert (pair.guest.is_below(), pair.users()) == (True, "guest")
        monkeypatch.setattr(test_shared, "SHARED", VolumeConfig())
        await pair.restart("home")
        pair.home.bind("other", uid="u-home", volumes=VOLUMES)
        await asyncio.sleep(60)
        assert not pair.home.is_below("other")


async def test_a_label_makes_no_claim_of_a_home_cluster_one_of_a_guest():
    """Whoever may change claims in the lower namespace can write the label; the claim holds the data."""
    pair = Pair()
    async with pair.running():
        labels = pair.home.lower.the("persistentvolumeclaims", "shop/data")["metadata"]["labels"]
        forged = {"labels": {**labels, shared.LABEL_GUEST: pair.mirror["metadata"]["uid"]}}
        pair.home.lower.change("persistentvolumeclaims", "shop/data", metadata=forged)
        await asyncio.sleep(120)
        claim = pair.home.lower.the("persistentvolumeclaims", "shop/data")
        assert claim["metadata"]["uid"] == "l-1"


@pytest.mark.parametrize("is_kept", [True, False], ids=["finalizer", "no finalizer"])
async def test_a_lower_pod_with_a_claim_stays_until_its_kubelet_has_stopped_it(is_kept):
    """A deletion without grace removes the object at once, and its containers still write."""
    pair = Pair()
    async with pair.running():
        extra: dict[str, Any] = {} if is_kept else {"terminationGracePeriodSeconds": 0}
        pair.home.bind(uid="u-home", volumes=VOLUMES, **extra)
        await asyncio.sleep(20)
        pair.home.lower.server.bind("shop/web", "n1")
        if is_kept:
            pair.upper.change("pods", "shop/web", metadata={"finalizers": ["test/keep"]})
        await pair.upper.delete(resources.PODS, "web", namespace="shop", grace_period_seconds=0)
        pair.guest.bind("two", uid="u-2", volumes=VOLUMES)
        await asyncio.sleep(60)
        assert (pair.home.is_below(), pair.guest.is_below("two")) == (True, False)


async def test_a_volume_that_only_some_nodes_of_its_cluster_reach_stays():
    """Labels of lower nodes mean nothing in another cluster."""
    pair = Pair()
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    pair.home.lower.change(
        "persistentvolumes", "pv-1", spec={"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}
    )
    async with pair.running():
        terms = pair.mirror["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
        assert [one["matchExpressions"][0]["key"] for one in terms] == [names.LABEL_HOSTNAME]
        assert pair.mirror["metadata"]["name"] == MIRROR
