"""Annotated claims and pods that never start cause no unlimited reads and no unlimited memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from controller_runtime import resources
from controller_runtime.objects import Object
from tests.fakes.apiserver.storage import Body
from tests.unit.virtual_node.controllers.pod_controller_setup import clusters
from tests.unit.virtual_node.controllers.volumes.test_claim_attacks import CHOSEN, CLAIMS, waiting
from tests.unit.virtual_node.controllers.volumes.test_facade import KEY, VolumeScene, claim, following

pytestmark = pytest.mark.looptime

UNBOUND = "spec.nodeName=,status.phase=Pending"


def chosen(name: str, *, namespace: str = "shop") -> Body:
    """Return a claim with the virtual node as its selected node."""
    body = claim(uid=f"{namespace}-{name}", annotations=CHOSEN, namespace=namespace)
    body["metadata"]["name"] = name
    return body


def another(number: int, *names_of_claims: str) -> Body:
    """Return one of many unbound pods; a higher number is a younger pod."""
    body = waiting(*names_of_claims)
    body["metadata"] |= {
        "name": f"web-{number}",
        "uid": f"u-{number}",
        "creationTimestamp": f"2026-01-01T00:00:{number:02}Z",
    }
    return body


async def test_claims_of_a_namespace_without_waiting_pods_share_a_list_and_back_off():
    """The attack: 100 claims with the virtual node in selected-node, and no pod: each cost a LIST every 30 s."""
    upper, lower = clusters()
    for number in range(100):
        upper.put(CLAIMS, chosen(f"data-{number}"))
    async with following(VolumeScene(upper, lower)):
        await asyncio.sleep(600)
        assert upper.asked("list", "pods").count(UNBOUND) <= 600 / 5
        upper.calls.clear()
        await asyncio.sleep(600)
        assert upper.asked("list", "pods").count(UNBOUND) <= 600 / 120 + 1


async def test_a_slow_list_is_used_for_longer():
    """The attack: a LIST of 1 GB; it must not run all the time."""
    upper, lower = clusters()
    upper.put(CLAIMS, chosen("data"))
    scene = VolumeScene(upper, lower)
    fast = scene.scene.context.upper.list

    async def slow(resource: Any, **options: Any) -> Any:
        if resource is resources.PODS:
            await asyncio.sleep(4)
        return await fast(resource, **options)

    upper.list = slow  # type: ignore[method-assign]
    async with following(scene):
        for number in range(300):
            upper.change(CLAIMS, KEY, metadata={"labels": {"n": str(number)}})
            await asyncio.sleep(1)
    assert 2 <= upper.asked("list", "pods").count(UNBOUND) <= 300 / 44 + 1


async def test_keeps_nothing_of_listed_pods():
    """The attack: 1,000 unschedulable pods of 1 MiB and one claim took a GB of memory."""
    upper, lower = clusters()
    upper.put(CLAIMS, chosen("data"))
    for number in range(20):
        upper.put("pods", another(number, "data", f"made-up-{number}"))
    lists: list[list[Object]] = []
    scene = VolumeScene(upper, lower)
    real = upper.list

    async def noting(resource: Any, **options: Any) -> Any:
        answer = await real(resource, **options)
        if resource is resources.PODS and options.get("field_selector") == UNBOUND:
            lists.append(answer.items)
        return answer

    upper.list = noting  # type: ignore[method-assign]
    async with following(scene):
        await asyncio.sleep(3)
        (items,) = lists
        assert len(items) == 20
        assert len({id(one) for one in items}) == 1
        binder = scene.volumes._claims._binder
        (listed,) = binder._waiting._listed.values()
        assert list(listed.by_claim) == ["data"]
        assert listed.by_claim["data"][1] == "web-0"


@pytest.mark.parametrize(
    ("change", "is_found"),
    [
        (lambda _api: None, True),
        (lambda api: api.remove("pods", "shop/web"), False),
        (lambda api: api.change("pods", "shop/web", spec={"nodeName": "worker-1"}), False),
        (lambda api: api.change("pods", "shop/web", status={"phase": "Failed"}), False),
        (
            lambda api: api.change(
                "pods", "shop/web", metadata={"deletionTimestamp": "2026-01-01T00:01:00Z"}
            ),
            False,
        ),
        (lambda api: api.change("pods", "shop/web", spec={"volumes": []}), False),
    ],
    ids=["unchanged", "gone", "bound", "finished", "ending", "recreated without the claim"],
)
async def test_a_pod_of_an_earlier_list_is_read_live(change: Callable[[Any], None], is_found):
    """A pod may be bound or replaced while its LIST is shared."""
    upper, lower = clusters()
    scene = VolumeScene(upper, lower)
    upper.put(CLAIMS, claim(uid="c-1"))
    upper.put("pods", waiting("data"))
    async with following(scene):
        pods = scene.volumes._claims._binder._waiting
        assert await pods.oldest(KEY) is not None
        change(upper)
        assert (await pods.oldest(KEY) is not None) is is_found
        assert upper.asked("list", "pods").count(UNBOUND) == 1


async def test_claims_of_one_namespace_do_not_delay_those_of_another():
    """The attack: the LIST of one namespace takes an hour, and all workers wait for it."""
    upper, lower = clusters()
    for number in range(100):
        upper.put(CLAIMS, chosen(f"data-{number}", namespace="attack"))
    scene = VolumeScene(upper, lower)
    real = upper.list

    async def hanging(resource: Any, *, namespace: str | None = None, **options: Any) -> Any:
        if namespace == "attack":
            await asyncio.sleep(3600)
        return await real(resource, namespace=namespace, **options)

    upper.list = hanging  # type: ignore[method-assign]
    async with following(scene):
        upper.put("pods", waiting("data"))
        upper.put(CLAIMS, chosen("data"))
        await asyncio.sleep(10)
        assert lower.find(CLAIMS, KEY) is not None


async def test_a_pod_created_after_its_claim_gets_its_volume():
    """The node was selected for an earlier pod; an unchanged claim is read every two minutes at most."""
    upper, lower = clusters()
    upper.put(CLAIMS, chosen("data"))
    async with following(VolumeScene(upper, lower)):
        await asyncio.sleep(1000)
        upper.put("pods", waiting("data"))
        await asyncio.sleep(121)
        assert lower.find(CLAIMS, KEY) is not None
