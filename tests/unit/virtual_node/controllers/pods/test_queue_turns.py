"""Namespaces take turns in the queues of pods' dependencies: thousands of objects of one delay no other."""

from __future__ import annotations

from typing import Any

import pytest

from clusterset.model.namespace_map import NamespaceConfig
from controller_runtime.objects import from_dict
from tests.unit.virtual_node.controllers.copies import service_controller_setup as services
from tests.unit.virtual_node.controllers.pod_controller_setup import Scene, clusters, lower_pod, pod
from virtual_node.controllers.copies.single_objects import ObjectKey

pytestmark = pytest.mark.looptime


async def first_two(queue: Any, noisy: list[Any], quiet: Any) -> list[Any]:
    """The first two keys that workers get."""
    for key in [*noisy, quiet]:
        queue.add(key)
    return [await queue.get(), await queue.get()]


async def test_pods() -> None:
    """A namespace has no second turn for lower pods of which the upper pod is gone, and which have another namespace."""
    scene = Scene(*clusters(), namespaces=NamespaceConfig(prefix="up-"))
    for name, uid in (("noisy", "u-1"), ("quiet", "q")):
        body = pod("web", uid=uid, nodeName="vn")
        body["metadata"]["namespace"] = name
        scene.caches.upper["vn"].store.put(f"{name}/web", from_dict(body))
    left = lower_pod("u-2", namespace="noisy")
    left["metadata"]["namespace"] = "up-noisy"
    scene.caches.lower.store.put("up-noisy/web", from_dict(left))
    assert await first_two(scene.pods.controller.queue, ["u-1", "u-2"], "q") == ["u-1", "q"]


async def test_dependencies() -> None:
    """ConfigMaps and Secrets."""
    noisy = [ObjectKey("Secret", "noisy", f"s{number}") for number in range(100)]
    quiet = ObjectKey("Secret", "quiet", "s")
    queue = Scene(*clusters()).dependencies.controller.queue
    assert await first_two(queue, noisy, quiet) == [noisy[0], quiet]


async def test_identities() -> None:
    """Token Secrets, whose keys are the uids of their pods."""
    identities = Scene(*clusters()).identities
    noisy = [f"u{number}" for number in range(100)]
    identities._named.update({uid: ("noisy", f"{uid}-token") for uid in noisy} | {"q": ("quiet", "q-token")})
    assert await first_two(identities.controller.queue, noisy, "q") == ["u0", "q"]


async def test_services() -> None:
    """Services and their endpoints."""
    queue = services.Scene().controller.services.controller.queue
    noisy = [f"noisy/s{number}" for number in range(100)]
    assert await first_two(queue, noisy, "quiet/s") == ["noisy/s0", "quiet/s"]
